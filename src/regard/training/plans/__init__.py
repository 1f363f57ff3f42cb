"""From files to a work, with the choices in between: one plan for each way to train."""
