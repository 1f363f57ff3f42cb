"""Reading prompts: from what was asked to the state after the prompt and the logits of the first token to write.

Prompts are read in chunks, because a step gives the logits of all tokens that it reads, and of a long prompt those
would fill the memory. Rows may have prompts of different lengths. It does not know what is done with the logits.

Legend: B rows, N tokens of the longest prompt, n of a chunk, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor

from regard.decoding.request import Request
from regard.models.contract import Memory, Tokens, Writer

CHUNK = 64
"""Tokens of each row that are read at once."""


def read(model: Writer, memory: Memory | None, request: Request) -> tuple[Tensor, Any]:
    """The logits (B, V) after each row's last token, and the state that has read all of them."""
    ids_BN = Tokens.of(request.prompts).ids.to(request.device)
    lengths = [len(row) for row in request.prompts]
    lengths_B = torch.tensor(lengths, device=request.device)
    state = model.start(memory, rows=len(lengths), capacity=request.capacity)
    logits_BV: Tensor | None = None
    for first in range(0, max(lengths), CHUNK):
        chunk_Bn = ids_BN[:, first:first + CHUNK]
        here_B = (lengths_B - first).clamp(min=0, max=chunk_Bn.shape[1])
        if min(lengths) >= first + chunk_Bn.shape[1]:
            step = model.step(state, chunk_Bn)
        else:
            step = model.step(state, chunk_Bn, lengths=here_B)
        state = step.state
        last_BV = step.logits[torch.arange(len(lengths), device=request.device), (here_B - 1).clamp(min=0)]
        logits_BV = last_BV if logits_BV is None else torch.where((here_B > 0).unsqueeze(-1), last_BV, logits_BV)
    assert logits_BV is not None, "no prompt is empty"
    return logits_BV, state
