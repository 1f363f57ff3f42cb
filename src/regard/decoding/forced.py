"""Forced decoding: a model reads given texts; nothing is chosen.

`forced` returns the log-probability of each token. `with_cross` adds the cross-attention weights to hypotheses: a search
does not keep them, since it discards nearly all hypotheses of a beam and their weights would fill the memory. Reading
all tokens at once equals reading them step by step, so these are the weights that the search used.

Legend: B rows, L layers, H heads, n tokens of a chunk, N states of the memory, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from regard import checks
from regard.decoding.request import Hypothesis, Prompts, SearchRequest
from regard.decoding.scheduler import PREFILL_CHUNK, require_cross
from regard.models.contract import GenerativeModel, Memory
from regard.tokens import Tokens


@torch.no_grad()
def forced(model: GenerativeModel, memory: Memory | None, prompts: Sequence[Sequence[int]],
           texts: Sequence[Sequence[int]]) -> list[list[float]]:
    """The log-probability of each token of each text, given its prompt and what is before it."""
    request = SearchRequest.of(model, memory, prompts, (), [len(text) for text in texts], 0, ())
    rows = [[*prompt, *text] for prompt, text in zip(request.prompts, texts, strict=True)]
    ids_BN = Tokens.of(rows, padding=rows[0][0]).ids.to(request.device)  # what fills up is read, and told of nobody
    state, found = model.start(memory, rows=len(rows), capacity=ids_BN.shape[1]), []
    wanted_BN = torch.cat([ids_BN[:, 1:], ids_BN[:, :1]], dim=1)
    for chunk_Bn, next_Bn in zip(ids_BN.split(PREFILL_CHUNK, dim=1), wanted_BN.split(PREFILL_CHUNK, dim=1), strict=True):
        logits_BnV, state, _ = model.step(state, chunk_Bn)
        logs_BnV = logits_BnV.log_softmax(-1, dtype=torch.promote_types(logits_BnV.dtype, torch.float32))
        found.append(logs_BnV.gather(-1, next_Bn.unsqueeze(-1)).squeeze(-1))
    logs = torch.cat(found, dim=1).tolist()
    return [row[len(prompt) - 1:len(prompt) - 1 + len(text)]
            for row, prompt, text in zip(logs, request.prompts, texts, strict=True)]


# ---- cross: Where a model looked while it wrote: the cross-attention weights of hypotheses, from one more reading of them.
#
# A search does not keep them: nearly all hypotheses of a beam are thrown away, and their weights would fill the memory.
# What was written is read again, all rows together; step by step equals all at once, so these are the weights that were
# used. It knows the contract of the models, and not which search made the hypotheses.
#
# Legend: B rows, L layers, H heads, n tokens of a chunk, N states of the memory.


@torch.no_grad()
def with_cross(model: GenerativeModel, memory: Memory, hypotheses: Sequence[Hypothesis], *,
               prompts: Prompts) -> list[Hypothesis]:
    """The hypotheses, one for each row of the memory and of the prompts, with `cross` (layers, heads, n, N).

    Its row i is the look at the states of the source from which token i was predicted. For several hypotheses of one
    source, repeat its row: memory.pick([0, 0, 1, 1]).
    """
    if len(hypotheses) != memory.rows:
        raise checks.wrong("hypotheses", f"{memory.rows}, as many as the memory has rows", len(hypotheses))
    request = SearchRequest.of(model, memory, prompts, (), [len(one.ids) for one in hypotheses], 0, ())
    if not hypotheses:
        return []
    texts = [[*prompt, *one.ids] for prompt, one in zip(request.prompts, hypotheses, strict=True)]
    ids_BN = Tokens.of(texts, padding=texts[0][0]).ids.to(request.device)  # what fills up is read, and seen by nobody
    state = model.start(memory, rows=len(texts), capacity=ids_BN.shape[1], cross=True)
    pieces = []
    for chunk_Bn in ids_BN.split(PREFILL_CHUNK, dim=1):
        _, state, cross_BLHnN = model.step(state, chunk_Bn)
        pieces.append(require_cross(model, cross_BLHnN))
    cross = torch.cat(pieces, dim=-2)
    count = memory.states.shape[1]
    sources = [count] * len(texts) if memory.lengths is None else memory.lengths.tolist()
    results = []
    for row, one in enumerate(hypotheses):
        first = len(request.prompts[row]) - 1
        seen = cross[row, ..., first:first + len(one.log_probabilities), :sources[row]]
        results.append(replace(one, cross=seen.clone()))
    return results
