"""Recurrence: cells (one step), scans (over time, layers, directions), kernels, the four shapes, gradient flow."""
