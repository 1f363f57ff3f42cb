"""Kernels of searches, in Triton. Nothing is imported here: see `regard.kernels`."""
