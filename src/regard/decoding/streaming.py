"""One text, token by token, as it is written: what `greedy` or `sample` would give for it in the end.

A turn is that of `regard.decoding.writing`, so that each token is chosen as there. A beam search cannot be followed so:
it changes its mind until the end. It does not know what the tokens mean.
"""

from collections.abc import Iterable, Iterator, Sequence

import torch

from regard.decoding.reading import read
from regard.decoding.request import Request
from regard.decoding.rules import Rule
from regard.decoding.writing import Choice, Writing
from regard.models.contract import Writer


@torch.no_grad()
def stream(model: Writer, prompt: Sequence[int], choose: Choice, *, end: int | Iterable[int], limit: int,
           least: int = 0, rules: Sequence[Rule] = ()) -> Iterator[int]:
    """The tokens after a prompt, each as soon as it is chosen, without the end.

    Args:
        choose: `regard.decoding.greedy.highest`, or a `regard.decoding.sampling.Draw`.
        model, prompt, end, limit, least, rules: as for `regard.decoding.greedy.greedy`.
    """
    request = Request.of(model, None, [prompt], end, limit, least, rules)
    search = Writing(request, choose)
    batch, (logits, state, _) = search.first([0], None), read(model, None, [prompt], request.capacity, request.device)
    while True:
        batch, _, finished = search.turn(batch, logits, None)
        if finished:
            return
        yield int(batch.tokens[0])
        logits_BnV, state, _ = model.step(state, batch.tokens.unsqueeze(-1))
        logits = logits_BnV[:, -1]
