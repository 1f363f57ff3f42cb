"""Blocks: a mixer, attention to a context where there is one, and a feed-forward part, with residuals and norms."""
