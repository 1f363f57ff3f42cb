"""Reading prompts: from what was asked to the state after the prompt and the logits of the first token to write.

Prompts are read in chunks, because a step gives the logits of all tokens that it reads, and of a long prompt those
would fill the memory. Rows may have prompts of different lengths. It does not know what is done with the logits.

Legend: B rows, L layers, H heads, N tokens of the longest prompt, n of a chunk, S states of the memory, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard import checks
from regard.models.contract import Memory, Tokens, Writer

CHUNK = 64
"""Tokens of each row that are read at once."""


class Read(NamedTuple):
    """What there is after the last token of each row."""

    logits: Tensor
    """(B, V)"""
    state: Any
    cross: Tensor | None
    """(B, L, H, S), where asked for."""


def read(model: Writer, memory: Memory | None, prompts: Sequence[Sequence[int]], capacity: int, device: torch.device,
         cross: bool = False) -> Read:
    """Read the prompts, none of which is empty, into storage for `capacity` tokens a row."""
    ids_BN = Tokens.of(prompts).ids.to(device)
    lengths = [len(row) for row in prompts]
    lengths_B, rows_B = torch.tensor(lengths, device=device), torch.arange(len(lengths), device=device)
    state = model.start(memory, rows=len(lengths), capacity=capacity, cross=cross)
    found = list[Tensor]()
    for first in range(0, max(lengths), CHUNK):
        chunk_Bn = ids_BN[:, first:first + CHUNK]
        here_B = (lengths_B - first).clamp(min=0, max=chunk_Bn.shape[1])
        if min(lengths) >= first + chunk_Bn.shape[1]:
            step = model.step(state, chunk_Bn)
        else:
            step = model.step(state, chunk_Bn, lengths=here_B)
        state, last_B = step.state, (here_B - 1).clamp(min=0)
        parts = [step.logits[rows_B, last_B]]
        if cross:
            parts.append(looked(model, step.cross)[rows_B, ..., last_B, :])
        found = [_where(here_B > 0, new, old) for new, old in zip(parts, found or parts, strict=True)]
    return Read(found[0], state, found[1] if cross else None)


def looked(model: Writer, cross: Tensor | None) -> Tensor:
    """The weights of a step in which they were asked for; a ValueError where the model has none."""
    if cross is None:
        raise checks.wrong("model", "one that attends to its memory", f"a {type(model).__name__} that does not")
    return cross


def _where(condition_B: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(condition_B.view(-1, *[1] * (new.dim() - 1)), new, old)
