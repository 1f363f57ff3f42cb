"""Forced decoding: a model reads given texts; nothing is chosen.

`forced` returns the log-probability of each token, `ranked` also the most probable tokens at each place of one text.
`with_cross` adds the cross-attention weights to hypotheses: a
search does not keep them, since it discards nearly all hypotheses of a beam and their weights would fill the memory.
Reading all tokens at once equals reading them step by step, so these are the weights that the search used.

Legend: B rows, L layers, H heads, T tokens of the longest row, n tokens of a chunk, N states of the memory, V
vocabulary.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from regard import checks
from regard.decoding.recompute import honour_hooks
from regard.decoding.request import Hypothesis, Prompts, SearchRequest
from regard.decoding.scheduler import PREFILL_CHUNK, require_cross
from regard.models.contract import GenerativeModel, Memory
from regard.tokens import Tokens


@torch.no_grad()
def forced(model: GenerativeModel, memory: Memory | None, prompts: Sequence[Sequence[int]],
           texts: Sequence[Sequence[int]]) -> list[list[float]]:
    """The log-probability of each token of each text, given its prompt and the tokens before it."""
    request = SearchRequest.of(model, memory, prompts, (), [len(text) for text in texts], 0, ())
    ids_BT, model = _joined_ids(request, texts), honour_hooks(model)
    read_BT, next_BT, found = ids_BT[:, :-1], ids_BT[:, 1:], list[Tensor]()  # the last token is not read
    if not read_BT.numel():
        return [[] for _ in texts]
    state = model.start(memory, rows=len(read_BT), capacity=read_BT.shape[1])
    for chunk_Bn, next_Bn in zip(read_BT.split(PREFILL_CHUNK, dim=1), next_BT.split(PREFILL_CHUNK, dim=1), strict=True):
        logits_BnV, state, _ = model.step(state, chunk_Bn)
        logs_BnV = logits_BnV.log_softmax(-1, dtype=torch.promote_types(logits_BnV.dtype, torch.float32))
        found.append(logs_BnV.gather(-1, next_Bn.unsqueeze(-1)).squeeze(-1))
    logs = torch.cat(found, dim=1).tolist()
    return [row[len(prompt) - 1:len(prompt) - 1 + len(text)]
            for row, prompt, text in zip(logs, request.prompts, texts, strict=True)]


class RankedTokens(NamedTuple):
    """What a model predicts while it reads one text of n ids."""

    log_probabilities: list[float]
    """Of each id after the first: n - 1."""
    ids: list[list[int]]
    """The most probable ids after each id of the text, the best first: n rows."""
    id_log_probabilities: list[list[float]]
    """The log-probability of each of them."""


@torch.no_grad()
def ranked(model: GenerativeModel, text: Sequence[int], count: int, *, never: Sequence[int] = ()) -> RankedTokens:
    """Read one text, and rank the tokens at each place.

    Args:
        count: the number of ids that are kept at each place.
        never: ids that are not ranked.
    """
    request = SearchRequest.of(model, None, [text], (), 0, 0, ())
    ids_BT, model, found = torch.tensor(request.prompts, device=request.device), honour_hooks(model), list[Tensor]()
    hidden, best = torch.tensor([*never], dtype=torch.long, device=request.device), list[tuple[Tensor, Tensor]]()
    state = model.start(None, rows=1, capacity=len(text))
    for first in range(0, len(text), PREFILL_CHUNK):
        logits_BnV, state, _ = model.step(state, ids_BT[:, first:first + PREFILL_CHUNK])
        logs_BnV = logits_BnV.log_softmax(-1, dtype=torch.promote_types(logits_BnV.dtype, torch.float32))
        next_Bn = ids_BT[:, first + 1:first + 1 + logs_BnV.shape[1]]  # one less at the end of the text
        found.append(logs_BnV[:, :next_Bn.shape[1]].gather(-1, next_Bn.unsqueeze(-1)).squeeze(-1))
        values_Bnk, ids_Bnk = logs_BnV.index_fill(-1, hidden, -torch.inf).topk(min(count, logs_BnV.shape[-1]))
        best.append((ids_Bnk, values_Bnk))
    [logs] = torch.cat(found, dim=1).tolist()
    [ids], [id_logs] = (torch.cat(parts, dim=1).tolist() for parts in zip(*best, strict=True))
    return RankedTokens(logs, ids, id_logs)


@torch.no_grad()
def with_cross(model: GenerativeModel, memory: Memory, hypotheses: Sequence[Hypothesis], *,
               prompts: Prompts) -> list[Hypothesis]:
    """Return hypotheses with their cross-attention: `cross`, of shape (layers, heads, n, N).

    There is one hypothesis for each row of the memory and of the prompts.
    Row i of `cross` has the attention weights from which token i was predicted. For several hypotheses of one source,
    repeat its row: memory.pick([0, 0, 1, 1]).
    """
    if len(hypotheses) != memory.rows:
        raise checks.wrong("hypotheses", f"as many as the memory has rows, {memory.rows}", len(hypotheses))
    request = SearchRequest.of(model, memory, prompts, (), [len(one.ids) for one in hypotheses], 0, ())
    if not hypotheses:
        return []
    ids_BT, model = _joined_ids(request, [one.ids for one in hypotheses]), honour_hooks(model)
    state = model.start(memory, rows=len(ids_BT), capacity=ids_BT.shape[1], cross=True)
    pieces = []
    for chunk_Bn in ids_BT.split(PREFILL_CHUNK, dim=1):
        _, state, cross_BLHnN = model.step(state, chunk_Bn)
        pieces.append(require_cross(model, cross_BLHnN))
    cross = torch.cat(pieces, dim=-2)
    count = memory.states.shape[1]
    sources = [count] * len(ids_BT) if memory.lengths is None else memory.lengths.tolist()
    results = []
    for row, one in enumerate(hypotheses):
        first = len(request.prompts[row]) - 1
        weights = cross[row, ..., first:first + len(one.log_probabilities), :sources[row]]
        results.append(replace(one, cross=weights.clone()))
    return results


def _joined_ids(request: SearchRequest, texts: Sequence[Sequence[int]]) -> Tensor:
    """(B, T): each prompt followed by its text. The padding is read after them, and its results are discarded."""
    rows = [[*prompt, *text] for prompt, text in zip(request.prompts, texts, strict=True)]
    return Tokens.of(rows, padding=rows[0][0]).ids.to(request.device)
