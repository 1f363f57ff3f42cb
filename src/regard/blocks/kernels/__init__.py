"""Kernels of blocks, in Triton. Nothing is imported here: see `regard.kernels`."""
