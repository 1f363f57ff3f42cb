"""Kernels written for regard: Triton functions, packed CPU layouts, and the code that launches them.

Kernels take plain tensors. They know neither layers, masks nor models; the packages above choose when to call them.
Modules that hold Triton functions import Triton, so import them only where `regard.kernels.launch` says they can run.
"""
