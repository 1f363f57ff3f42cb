"""Models as CTranslate2 runs them: what fits, and the folder that holds one."""
