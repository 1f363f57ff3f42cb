"""Recurrent networks: cells (one step), scans (over time, layers and directions), the LSTMN, gradient flow."""
