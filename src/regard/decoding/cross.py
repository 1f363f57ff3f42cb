"""Where a model looked while it wrote: the cross-attention weights of hypotheses, from one more reading of them.

A search does not keep them: nearly all hypotheses of a beam are thrown away, and their weights would fill the memory.
What was written is read again, all rows together; step by step equals all at once, so these are the weights that were
used. It knows the contract of the models, and not which search made the hypotheses.

Legend: B rows, L layers, H heads, n tokens of a chunk, N states of the memory.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from regard import checks
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.reading import CHUNK, looked
from regard.decoding.request import Prompts, Request
from regard.models.contract import Memory, Tokens, Writer


@torch.no_grad()
def with_cross(model: Writer, memory: Memory, hypotheses: Sequence[Hypothesis], *,
               prompts: Prompts) -> list[Hypothesis]:
    """The hypotheses, one for each row of the memory and of the prompts, with `cross` (layers, heads, n, N).

    Its row i is the look at the states of the source from which token i was predicted. For several hypotheses of one
    source, repeat its row: memory.pick([0, 0, 1, 1]).
    """
    if len(hypotheses) != memory.rows:
        raise checks.wrong("hypotheses", f"{memory.rows}, as many as the memory has rows", len(hypotheses))
    request = Request.of(model, memory, prompts, (), [len(one.ids) for one in hypotheses], 0, ())
    if not hypotheses:
        return []
    texts = [[*prompt, *one.ids] for prompt, one in zip(request.prompts, hypotheses, strict=True)]
    ids_BN = Tokens.of(texts, padding=texts[0][0]).ids.to(request.device)  # what fills up is read, and seen by nobody
    state = model.start(memory, rows=len(texts), capacity=ids_BN.shape[1], cross=True)
    pieces = []
    for chunk_Bn in ids_BN.split(CHUNK, dim=1):
        _, state, cross_BLHnN = model.step(state, chunk_Bn)
        pieces.append(looked(model, cross_BLHnN))
    cross = torch.cat(pieces, dim=-2)
    count = memory.states.shape[1]
    sources = [count] * len(texts) if memory.lengths is None else memory.lengths.tolist()
    results = []
    for row, one in enumerate(hypotheses):
        first = len(request.prompts[row]) - 1
        seen = cross[row, ..., first:first + len(one.log_probabilities), :sources[row]]
        results.append(replace(one, cross=seen.clone()))
    return results
