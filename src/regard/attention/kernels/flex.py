"""The `flex` backend: torch's flex_attention on CUDA, which skips every block of pairs that a mask forbids.

For scores that are dot products, under softmax, with a mask that leaves out whole blocks of a long sequence (windows,
packed rows, causal with padding): no matrix of the mask is held while attention runs. The kernel is compiled on its
first use, and again for another kind of mask or another width, which takes seconds.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from regard.attention import mask_cache
from regard.attention.kernels import sdpa, tiled
from regard.attention.problem import AttentionProblem

SHORT = 2048
"""Below this many keys, skipping blocks saves less than finding them costs."""


@dataclass(frozen=True)
class ScalarIndices:
    """The place of one query and one key, inside the compiled kernel: every index is a number."""

    batch: Tensor
    head: Tensor
    row: Tensor
    column: Tensor
    position: Tensor
    n_queries: int
    n_keys: int
    leading: int

    def per_sequence(self, numbers: Tensor) -> Tensor:
        return _entry(numbers, (self.batch, self.head)[2 - self.leading:])

    def select(self, matrix: Tensor) -> Tensor:
        return _entry(matrix, (self.batch, self.head, self.row, self.column)[4 - matrix.dim():])

    def at(self, position: Tensor) -> "ScalarIndices":
        return replace(self, position=position)


def refusal(problem: AttentionProblem) -> str | None:
    """Why this backend cannot do the work; None when it can."""
    other = sdpa.refusal(problem)
    if other is not None:
        return other
    if problem.query.device.type != "cuda":
        return f"it needs a CUDA device, and the query is on {problem.query.device.type}"
    if problem.bias is not None:
        return "it takes no bias"
    if problem.dropout:
        return "it has no dropout"
    if problem.query.dtype == torch.float64:
        return "it does not compute in float64"
    if len(problem.leading) > 2:
        return f"it takes two leading dimensions (batch, heads), and there are {len(problem.leading)}"
    if 0 in problem.query.shape or 0 in problem.key.shape:
        return "there are no queries or no keys"
    return None


def drawback(problem: AttentionProblem) -> str | None:
    """Why this backend, which can do the work, is not the one to choose; None when it is."""
    if problem.mask is None:
        return "without a mask there is no block to skip"
    return f"it pays from {SHORT} keys on, and there are {problem.n_keys}" if problem.n_keys < SHORT else None


def detail(problem: AttentionProblem) -> str:
    """How it goes about it, in a few words."""
    return "blocks of pairs that the mask forbids are skipped"


def run(problem: AttentionProblem) -> Tensor:
    """The output of the compiled kernel."""
    form = sdpa.sdpa_inputs(replace(problem, mask=None))
    key, value = _without_unused(problem, form.query, form.key, form.value)
    block_mask = None
    if problem.mask is not None:
        block_mask = _compiled("create_block_mask")(_rule(problem), form.query.shape[0], form.query.shape[1],
                                                    problem.n_queries, problem.n_keys, device=problem.query.device)
    output = _compiled("flex_attention")(form.query, key, value, block_mask=block_mask, scale=form.scale,
                                         enable_gqa=form.query.shape[1] != key.shape[1])
    return output[..., :problem.value.shape[-1]].reshape(*problem.leading, problem.n_queries, -1)


def _entry(numbers: Tensor, indices: tuple[Tensor, ...]) -> Tensor:
    """The entry at these indices, of which there may be more than dimensions; a size of 1 stands for all."""
    if numbers.dim() == 0:  # a number has no indices, and torch's tracing does not take an empty list of them
        return numbers
    return numbers[tuple(i if size > 1 else 0 for i, size in zip(indices, numbers.shape, strict=False))]


def _rule(problem: AttentionProblem) -> Any:
    """The mask as a function of one pair."""
    # The rule must hold nothing of the problem that has a gradient.
    mask, n_queries, n_keys, leading = problem.mask, problem.n_queries, problem.n_keys, len(problem.leading)
    assert mask is not None

    def rule(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        place = ScalarIndices(batch, head, row, column, row + (n_keys - n_queries), n_queries, n_keys, leading)
        return mask.allowed(mask.aligned(place))

    return rule


def _without_unused(problem: AttentionProblem, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Key and value with zeros where no query looks, so that NaN and inf there are never read."""
    if problem.mask is None:
        return key, value
    used = None
    for rows, _ in tiled.blocks(problem, max(1, (1 << 24) // problem.n_keys)):
        allowed = problem.allowed(problem.block(rows))
        assert allowed is not None
        seen = mask_cache.any_along(allowed, -2)
        used = seen if used is None else used | seen
    assert used is not None
    used = used[(None,) * (4 - used.dim())]
    if used.shape[1] not in (1, key.shape[1]):  # heads that share a key may differ in which keys they use
        key, value = (t.repeat_interleave(used.shape[1] // t.shape[1], dim=1) for t in (key, value))
    _, key, value = mask_cache.hide(query, key, value, used, bounded=True)
    return key, value


@cache
def _compiled(name: str) -> Any:
    """The function of torch's flex_attention module, compiled once a process."""
    from torch.nn.attention import flex_attention

    return torch.compile(getattr(flex_attention, name))
