"""One token at a time: greedy search, sampling, and streaming of either.

Sampling applies filters in this order:

    temperature   log-probabilities are divided by it: below 1 is closer to greedy search, above 1 is more uniform
    top-k         the k most probable tokens; of equal ones those with the lowest ids
    top-p         of these the most probable ones, as few as have the probability p together (Holtzman et al. 2020)
    min-p         of these the ones with at least p times the probability of the most probable one

Scores of samples are those of the model: filters change what is drawn, not its reported probability. Random numbers
come from splitmix64 (Steele, Lea and Flood 2014) at a counter mixed from the seed, the sample's number and the
position, so a sample depends neither on its batch nor on the device.

Legend: R rows, V vocabulary, C tokens that may be drawn.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard import checks
from regard.checks import whole_number
from regard.decoding.beam_state import exact_topk
from regard.decoding.constraints import Constraint, Prefixes
from regard.decoding.graph_search import run_graph_search
from regard.decoding.request import Hypothesis, LengthLimit, Prompts, SearchRequest, SourceInput
from regard.decoding.scheduler import prefill
from regard.decoding.token_search import TokenChoice, TokenSearch, most_probable, run_token_search
from regard.models.contract import GenerativeModel

SPLITMIX_STEP, SPLITMIX_FIRST, SPLITMIX_SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
WORD_RANGE = 1 << 64


def row_seeds(seed: int, numbers: Iterable[int]) -> list[int]:
    """A seed for each row, from one for all of them and the numbers of the rows."""
    points = torch.tensor([_signed_word(whole_number("seed", seed))], dtype=torch.long)
    numbered = torch.tensor(list(numbers), dtype=torch.long)
    return [value % WORD_RANGE for value in splitmix64(splitmix64(points) + numbered).tolist()]


def seed_tensor(seeds: Iterable[int], device: torch.device) -> Tensor:
    """Seeds as 64-bit words on a device."""
    return torch.tensor([_signed_word(whole_number("seed", seed)) for seed in seeds], dtype=torch.long, device=device)


def uniform_numbers(seeds: Tensor, tries: Tensor, places: Tensor) -> Tensor:
    """Numbers from 0 to below 1, in steps of 2⁻⁵³ where the device has float64, else of 2⁻²⁴."""
    words = splitmix64(splitmix64(splitmix64(seeds) + tries) + places)
    bits, dtype = (24, torch.float32) if words.device.type == "mps" else (53, torch.float64)
    return _logical_shift(words, 64 - bits).to(dtype) * 2.0 ** -bits


def splitmix64(points: Tensor) -> Tensor:
    """The word of splitmix64 at each of these points: products and sums are taken modulo 2⁶⁴."""
    words = points + _signed_word(SPLITMIX_STEP)
    words = (words ^ _logical_shift(words, 30)) * _signed_word(SPLITMIX_FIRST)
    words = (words ^ _logical_shift(words, 27)) * _signed_word(SPLITMIX_SECOND)
    return words ^ _logical_shift(words, 31)


def _logical_shift(words: Tensor, bits: int) -> Tensor:
    """To the right, with zeros from the left: a shift of signed words would bring the sign."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def _signed_word(word: int) -> int:
    """The number that has the same last 64 bits, as torch has them."""
    return (word + WORD_RANGE // 2) % WORD_RANGE - WORD_RANGE // 2


# ---- filters: Which tokens may be drawn, and with which probabilities: temperature, top-k, top-p, min-p, in this order.
#
#     temperature   log-probabilities are divided by it: below 1 nearer to greedy search, above 1 more even
#     top-k         the k most probable tokens; of equal ones those with the lowest ids
#     top-p         of these the most probable ones, as few as together have the probability p (Holtzman et al. 2020)
#     min-p         of these the ones that have at least p times the probability of the most probable one
#
# It knows neither models nor how is drawn.
#
# Legend: R rows, V vocabulary, C tokens that may be drawn.


class FilteredTokens(NamedTuple):
    """What may be drawn."""

    probabilities: Tensor
    """(R, C): not normalised; 0 for what may not."""
    tokens: Tensor | None
    """(R, C): which tokens these are; None where each place is its own token."""


@dataclass(frozen=True)
class SamplingFilters:
    """How the probabilities of a model are changed before a token is drawn."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def __post_init__(self) -> None:
        value = self.temperature
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            remedy = "For the most probable tokens ask for greedy search." if value == 0 else ""
            raise checks.wrong("temperature", "a number above 0", repr(value), remedy)
        if self.top_k is not None:
            whole_number("top_k", self.top_k, 1)
        for name, share in (("top_p", self.top_p), ("min_p", self.min_p)):
            if share is not None and (isinstance(share, bool) or not isinstance(share, int | float)
                                      or not 0 < share <= 1):
                raise checks.wrong(name, "a probability, above 0 and at most 1", repr(share))

    def __call__(self, log_probabilities: Tensor) -> FilteredTokens:
        """From log-probabilities (R, V) of any sum."""
        logs = log_probabilities.to(torch.float32 if log_probabilities.device.type == "mps" else torch.float64)
        # The highest becomes 0, which a low temperature leaves as it is. Rows without a number have no order.
        values = ((logs - logs.amax(dim=-1, keepdim=True)) / self.temperature).nan_to_num(-torch.inf, neginf=-torch.inf)
        tokens = None
        if self.top_k is not None and self.top_k < values.shape[-1]:
            values, tokens, _ = exact_topk(values, self.top_k)
        elif self.top_p is not None:
            values, tokens = values.sort(dim=-1, descending=True, stable=True)
        shares = values.softmax(dim=-1)
        if self.top_p is not None:
            before = shares.cumsum(dim=-1) - shares
            shares = shares.masked_fill(before >= self.top_p, 0.0)
        if self.min_p is not None:
            shares = shares.masked_fill(shares < self.min_p * shares.amax(dim=-1, keepdim=True), 0.0)
        return FilteredTokens(shares, tokens)


# ---- sampling: Sampling: every next token is drawn, with the probability that the model gives it, as filters leave it.
#
# The scores of samples are those of the model: filters change what is drawn, and not how probable it is said to be. What
# is drawn for a prompt follows from its seed, and does not depend on its batch.
#
# Legend: R rows, V vocabulary, C tokens that may be drawn.


@torch.no_grad()
def sample(model: GenerativeModel, memory: SourceInput = None, *, prompts: Prompts, end: int | Iterable[int], limit: LengthLimit,
           seed: int | Sequence[int], samples: int = 1, temperature: float = 1.0, top_k: int | None = None,
           top_p: float | None = None, min_p: float | None = None, least: int = 0, rules: Sequence[Constraint] = (),
           room: int | None = None) -> list[list[Hypothesis]]:
    """For each prompt its `samples`, in the order in which they were drawn; the same seed gives the same ones.

    Args:
        model, memory, prompts, end, limit, least, rules, room: as for `regard.decoding.sampling.greedy`.
        seed: one for all prompts, of which each gets its own by its number; or one for each prompt. Where prompts are
            given in several batches, `regard.decoding.sampling.row_seeds` makes those that one batch would have.
        samples: how many are drawn for each prompt. The first ones do not depend on how many there are.
        temperature, top_k, top_p, min_p: see `regard.decoding.sampling`.
    """
    filters = SamplingFilters(temperature, top_k, top_p, min_p)
    request = SearchRequest.of(model, memory, prompts, end, limit, least, rules, room, whole_number("samples", samples, 1))
    draw = TokenSampler(filters, seed_tensor(_prompt_seeds(seed, len(request.prompts)), request.device))
    found = run_token_search(model, memory, request, draw)
    return [found[first:first + samples] for first in range(0, len(found), samples)]


@dataclass(frozen=True)
class TokenSampler:
    """The choice of a token by chance."""

    filters: SamplingFilters
    seeds: Tensor
    """One for each prompt."""

    def __call__(self, log_probabilities: Tensor, written: Prefixes) -> Tensor:
        """(R, V) -> (R,)"""
        return sample_tokens(self.filters(log_probabilities), uniform_numbers(self.seeds[written.rows], written.tries, written.lengths))


def sample_tokens(filtered: FilteredTokens, chances: Tensor) -> Tensor:
    """The token of each row at which its probabilities, added up one after another, exceed this part of their sum."""
    sums_RC = filtered.probabilities.cumsum(dim=-1)
    whole_R1 = sums_RC[:, -1:]
    # A product may be rounded up to the whole, which no sum exceeds.
    at_R1 = torch.minimum(chances.unsqueeze(-1) * whole_R1, torch.nextafter(whole_R1, torch.zeros_like(whole_R1)))
    place_R1 = (sums_RC <= at_R1).sum(dim=-1, keepdim=True).clamp(max=sums_RC.shape[-1] - 1)
    token_R1 = place_R1 if filtered.tokens is None else filtered.tokens.gather(-1, place_R1)
    return token_R1.squeeze(-1)


def _prompt_seeds(seed: object, rows: int) -> list[int]:
    if isinstance(seed, int):
        return row_seeds(seed, range(rows))
    if isinstance(seed, str) or not isinstance(seed, Sequence) or len(seed) != rows:
        got = f"{len(seed)} of them" if isinstance(seed, list | tuple) else checks.kind(seed)[0]
        raise checks.wrong("seed", f"one number, or one for each of the {rows} prompts", got)
    return [*seed]


# ---- greedy: Greedy search: of every next token the most probable one. Fast, and blind to what a better beginning would allow.


@torch.no_grad()
def greedy(model: GenerativeModel, memory: SourceInput = None, *, prompts: Prompts, end: int | Iterable[int], limit: LengthLimit,
           least: int = 0, rules: Sequence[Constraint] = (), room: int | None = None) -> list[Hypothesis]:
    """One hypothesis for each prompt, in their order; a row's result does not depend on the others.

    Args:
        model: in evaluation mode.
        memory: what the model has read of the sources, a row for each prompt; or `Sources`, which it reads when their
            turn comes; None for a language model.
        prompts: what each row reads first: [START] for a translation, the text so far for a completion. Rows of ids,
            of different lengths if need be.
        end: the token, or the tokens, at which a row ends. With none at all, (), every row is cut at its limit.
        limit: how many tokens a row may write, the end not counted: one number, or one for each row. The model must
            have room for the longest prompt and the highest limit together.
        least: how many tokens come before an end may.
        rules: further rules of what may be written.
        room: how many tokens, of prompts and limits, the rows may have together that are written at once; others wait.
            Without it all are.
    """
    request = SearchRequest.of(model, memory, prompts, end, limit, least, rules, room)
    return run_graph_search(model, memory, request, TokenSearch(request, most_probable))


# ---- streaming: One text, token by token, as it is written: what `greedy` or `sample` would give for it in the end.
#
# A turn is that of `regard.decoding.token_search`, so that each token is chosen as there. A beam search cannot be followed so:
# it changes its mind until the end. It does not know what the tokens mean.


@torch.no_grad()
def stream(model: GenerativeModel, prompt: Sequence[int], choose: TokenChoice, *, end: int | Iterable[int], limit: int,
           least: int = 0, rules: Sequence[Constraint] = ()) -> Iterator[int]:
    """The tokens after a prompt, each as soon as it is chosen, without the end.

    Args:
        choose: `regard.decoding.sampling.highest`, or a `regard.decoding.sampling.TokenSampler`.
        model, prompt, end, limit, least, rules: as for `regard.decoding.sampling.greedy`.
    """
    request = SearchRequest.of(model, None, [prompt], end, limit, least, rules)
    search = TokenSearch(request, choose)
    batch, (logits, state, _) = search.first([0], None), prefill(model, None, [prompt], request.capacity, request.device)
    while True:
        batch, _, finished = search.turn(batch, logits, None)
        if finished:
            return
        yield int(batch.tokens[0])
        logits_BnV, state, _ = model.step(state, batch.tokens.unsqueeze(-1))
        logits = logits_BnV[:, -1]
