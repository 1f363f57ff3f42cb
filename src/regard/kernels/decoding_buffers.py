"""Tensors that a search on a GPU keeps in place; `regard.kernels.decoding` updates them. It needs no Triton.

Legend: R hypotheses, B rows, K hypotheses of each, M tokens of each, P places of a pool, T token positions, S pieces of
the vocabulary, V vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from regard.kernels import launch

VOCABULARY_PIECE = 2048
"""The number of tokens that one program reads."""
MAX_MERGED = 8192
"""The maximum number of candidates from all pieces that the last program holds."""
MAX_CANDIDATES, MAX_BEAMS = 128, 16
"""The largest numbers of candidates and hypotheses of a row that one program can sort."""
STATUSES = range(4)
"""The status of a row: running, finished, truncated, invalid, with the numbers of `regard.decoding.request`."""


class RowStatus(NamedTuple):
    """The lengths and the status of each row, (B,), int32."""

    lengths: Tensor
    """The number of generated tokens."""
    max_lengths: Tensor
    status: Tensor


class BackPointers(NamedTuple):
    """The generated tokens, (B, K, T): entry (b, k, t) is the token that hypothesis k got at position t."""

    tokens: Tensor
    logs: Tensor
    parents: Tensor
    """The hypothesis of the row that has the tokens before it."""


class PoolBuffers(NamedTuple):
    """The pool of completed hypotheses: (B, P)."""

    scores: Tensor
    truncated: Tensor
    lengths: Tensor
    beams: Tensor
    """The hypothesis whose tokens these are, without the end token; −1 − p for place p of a pool that was loaded."""
    tokens: Tensor
    """The end token."""
    logs: Tensor


class TopTokens(NamedTuple):
    """The results of `find_top_tokens`, and what passes between its kernels."""

    values: Tensor
    """(R, M): log-probabilities, the highest first."""
    tokens: Tensor
    """(R, M), int32."""
    sums: Tensor
    """(2, R, S): the highest logit of each piece, and the sum of its exponentials."""
    piece_values: Tensor
    """(R, S, M)"""
    piece_tokens: Tensor

    @staticmethod
    def allocate(logits: Tensor, count: int) -> "TopTokens":
        """Storage for the `count` best tokens of logits (R, V)."""
        rows, pieces = len(logits), -(-logits.shape[1] // piece_size(logits.shape[1], count))
        values = torch.zeros(rows, count, dtype=torch.promote_types(logits.dtype, torch.float32), device=logits.device)
        found = values.new_zeros(rows, pieces, count)
        return TopTokens(values, values.int(), values.new_zeros(2, rows, pieces), found, found.int())


def piece_size(vocabulary: int, count: int) -> int:
    """The number of tokens that one program reads: more if there would be too many pieces to merge."""
    size = min(VOCABULARY_PIECE, launch.next_power_of_2(vocabulary))
    while launch.next_power_of_2(-(-vocabulary // size)) * launch.next_power_of_2(count) > MAX_MERGED:
        size *= 2
    return size
