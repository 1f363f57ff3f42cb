"""The steps of each cell as Triton kernels, and what lays out their work. They know tensors only: no cells, no time
but steps. Only `fused` imports them, when it runs: triton is not everywhere."""
