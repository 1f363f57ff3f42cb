"""Masks that were written out, recognised again.

A model writes the mask of a padded batch out as a matrix. Of one sequence of it, without padding, what is left is often
no mask at all, or a causal one: kernels are fast for these, and a file needs no matrix. It knows masks and no looks.
"""

import torch
from torch import Tensor

from regard.attention.mask import Allowed, Causal, Mask

ROWS = 1024
"""Rows that are compared at a time."""


def recognised(matrix: Tensor) -> Mask | None:
    """The mask of a matrix (..., n, N) by its meaning: None where all may attend, `Causal()`, or as it is."""
    if bool(matrix.all()):
        return None
    n, N = matrix.shape[-2:]
    columns = torch.arange(N, device=matrix.device)
    for first in range(0, n, ROWS):
        rows = torch.arange(first, min(first + ROWS, n), device=matrix.device).unsqueeze(-1)
        if not bool((matrix[..., first:first + ROWS, :] == (columns <= rows + (N - n))).all()):
            return Allowed(matrix)
    return Causal()
