"""Sampling: every next token is drawn, with the probability that the model gives it, as filters leave it.

The scores of samples are those of the model: filters change what is drawn, and not how probable it is said to be. What
is drawn for a prompt follows from its seed, and does not depend on its batch.

Legend: R rows, V vocabulary, C tokens that may be drawn.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard import checks
from regard.decoding.chance import as_words, row_seeds, uniform
from regard.decoding.filters import Filtered, Filters
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.request import Limit, Prompts, Request
from regard.decoding.rules import Rule, Written, whole
from regard.decoding.sources import Given
from regard.decoding.writing import write
from regard.models.contract import Writer


@torch.no_grad()
def sample(model: Writer, memory: Given = None, *, prompts: Prompts, end: int | Iterable[int], limit: Limit,
           seed: int | Sequence[int], samples: int = 1, temperature: float = 1.0, top_k: int | None = None,
           top_p: float | None = None, min_p: float | None = None, least: int = 0, rules: Sequence[Rule] = (),
           room: int | None = None) -> list[list[Hypothesis]]:
    """For each prompt its `samples`, in the order in which they were drawn; the same seed gives the same ones.

    Args:
        model, memory, prompts, end, limit, least, rules, room: as for `regard.decoding.greedy.greedy`.
        seed: one for all prompts, of which each gets its own by its number; or one for each prompt. Where prompts are
            given in several batches, `regard.decoding.chance.row_seeds` makes those that one batch would have.
        samples: how many are drawn for each prompt. The first ones do not depend on how many there are.
        temperature, top_k, top_p, min_p: see `regard.decoding.filters`.
    """
    filters = Filters(temperature, top_k, top_p, min_p)
    request = Request.of(model, memory, prompts, end, limit, least, rules, room, whole("samples", samples, 1))
    draw = Draw(filters, as_words(_seeds(seed, len(request.prompts)), request.device))
    found = write(model, memory, request, draw)
    return [found[first:first + samples] for first in range(0, len(found), samples)]


@dataclass(frozen=True)
class Draw:
    """The choice of a token by chance."""

    filters: Filters
    seeds: Tensor
    """One for each prompt."""

    def __call__(self, log_probabilities: Tensor, written: Written) -> Tensor:
        """(R, V) -> (R,)"""
        return drawn(self.filters(log_probabilities), uniform(self.seeds[written.rows], written.tries, written.lengths))


def drawn(filtered: Filtered, chances: Tensor) -> Tensor:
    """The token of each row at which its probabilities, added up one after another, exceed this part of their sum."""
    sums_RC = filtered.probabilities.cumsum(dim=-1)
    whole_R1 = sums_RC[:, -1:]
    # A product may be rounded up to the whole, which no sum exceeds.
    at_R1 = torch.minimum(chances.unsqueeze(-1) * whole_R1, torch.nextafter(whole_R1, torch.zeros_like(whole_R1)))
    place_R1 = (sums_RC <= at_R1).sum(dim=-1, keepdim=True).clamp(max=sums_RC.shape[-1] - 1)
    token_R1 = place_R1 if filtered.tokens is None else filtered.tokens.gather(-1, place_R1)
    return token_R1.squeeze(-1)


def _seeds(seed: object, rows: int) -> list[int]:
    if isinstance(seed, int):
        return row_seeds(seed, range(rows))
    if isinstance(seed, str) or not isinstance(seed, Sequence) or len(seed) != rows:
        got = f"{len(seed)} of them" if isinstance(seed, list | tuple) else checks.kind(seed)[0]
        raise checks.wrong("seed", f"one number, or one for each of the {rows} prompts", got)
    return [*seed]
