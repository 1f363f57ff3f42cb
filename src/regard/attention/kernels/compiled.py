"""Whether kernels written in Triton can run on a tensor. One rule, for all that have a plain way beside them.

Triton comes with torch's builds for CUDA, and may be missing. Inside of `torch.compile` and of exporters the plain way
is taken: they see through it, and make kernels of their own. It does not know what a kernel computes.
"""

import importlib.util
from functools import cache

import torch
from torch import Tensor

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
"""In which numbers are read and written; sums are always in float32."""


def usable(*tensors: Tensor) -> bool:
    """Whether there is something in all of them, on a GPU, in numbers that kernels read, and Triton is installed."""
    return (all(tensor.is_cuda and tensor.dtype in DTYPES and tensor.numel() > 0 for tensor in tensors)
            and not torch.compiler.is_compiling() and _installed())


@cache
def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None
