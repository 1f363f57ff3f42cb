"""Blocks: a mixer, cross-attention where there is a context, and a feed-forward layer, with residuals and norms."""
