"""Searches that follow one hypothesis per sequence: greedy search, sampling, and streaming of either.

A `TokenSearch` adds one token to each sequence at every step; a `TokenChoice` says which one. Greedy search takes the
most probable token. Sampling draws it after these filters, in this order:

    temperature   log-probabilities are divided by it: below 1 is closer to greedy search, above 1 is more uniform
    top-k         the k most probable tokens; of equal ones those with the lowest ids
    top-p         of these the most probable ones, as few as have the probability p together (Holtzman et al. 2020)
    min-p         of these the ones with at least p times the probability of the most probable one

Scores of samples are those of the model: filters change what is drawn, not its reported probability. Random numbers
come from splitmix64 (Steele, Lea and Flood 2014) at a counter mixed from the seed, the number of the sample and the
position. No state is kept between draws, so a sample depends neither on its batch nor on the device.

Legend: B slots of the batch, t tokens of the longest sequence, V vocabulary, C tokens that may be drawn.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard import checks
from regard.checks import renamed_arguments, whole_number
from regard.decoding.beam_state import exact_topk
from regard.decoding.constraints import Constraint, Prefixes
from regard.decoding.recompute import honour_hooks
from regard.decoding.request import (
    FINISHED,
    INVALID,
    RUNNING,
    TRUNCATED,
    Hypothesis,
    LengthLimit,
    Prompts,
    SearchRequest,
    SourceInput,
)
from regard.decoding.scheduler import SearchStep, prefill, run_search
from regard.models.contract import GenerativeModel

TokenChoice = Callable[[Tensor, Prefixes], Tensor]
"""Log-probabilities (B, V) and the tokens so far -> the next token of each row, (B,)."""

RENAMED = {"limit": "max_length", "least": "min_length", "rules": "constraints", "room": "token_budget"}
"""Older names of arguments."""


@renamed_arguments(**RENAMED)
@torch.no_grad()
def greedy(model: GenerativeModel, memory: SourceInput = None, *, prompts: Prompts, end: int | Iterable[int],
           max_length: LengthLimit, min_length: int = 0, constraints: Sequence[Constraint] = (),
           token_budget: int | None = None) -> list[Hypothesis]:
    """Generate by greedy search: the most probable token at every step.

    The result for a prompt does not depend on the other prompts.

    Args:
        model: a model that generates, in evaluation mode.
        memory: the encoded sources, a row for each prompt; or `Sources`, which are encoded when a slot is free; None
            for a language model.
        prompts: the ids that each row begins with: [START] for a translation, the text so far for a completion. Rows
            may differ in length.
        end: the end token, or several. With none, (), every row is truncated at its maximum length.
        max_length: the maximum number of generated tokens, not counting the end token: one number, or one for each
            prompt. The model must have room for the longest prompt and the largest maximum length together.
        min_length: the minimum number of tokens before an end token.
        constraints: further constraints on the tokens.
        token_budget: the maximum number of tokens, prompts and maximum lengths together, that all rows of a batch may
            have; other prompts wait. By default all prompts run at once.

    Returns:
        One hypothesis for each prompt.

    Example:
        import regard

        model = regard.build("gpt-tiny", vocab_size=100).eval()
        text = regard.greedy(model, prompts=[[5, 6]], end=(), max_length=4)[0]
        assert len(text.ids) == 4
    """
    search = greedy_search(model, memory, prompts=prompts, end=end, max_length=max_length, min_length=min_length,
                           constraints=constraints, token_budget=token_budget)
    return run_search(model, memory, search.request, search)


def greedy_search(model: GenerativeModel, memory: SourceInput = None, *, prompts: Prompts, end: int | Iterable[int],
                  max_length: LengthLimit, min_length: int = 0, constraints: Sequence[Constraint] = (),
                  token_budget: int | None = None) -> "TokenSearch":
    """The search that `greedy` runs, after its arguments have been checked."""
    request = SearchRequest.of(model, memory, prompts, end, max_length, min_length, constraints, token_budget)
    return TokenSearch(request, most_probable)


@renamed_arguments(**RENAMED, samples="num_samples")
@torch.no_grad()
def sample(model: GenerativeModel, memory: SourceInput = None, *, prompts: Prompts, end: int | Iterable[int],
           max_length: LengthLimit, seed: int | Sequence[int], num_samples: int = 1, temperature: float = 1.0,
           top_k: int | None = None, top_p: float | None = None, min_p: float | None = None, min_length: int = 0,
           constraints: Sequence[Constraint] = (), token_budget: int | None = None) -> list[list[Hypothesis]]:
    """Generate by sampling: each token is drawn from the model's distribution. The same seed gives the same samples.

    Args:
        model, memory, prompts, end, max_length, min_length, constraints, token_budget: see `greedy`.
        seed: one for all prompts, from which each prompt gets its own by its index; or one for each prompt. For prompts
            in several batches, `row_seeds` returns the seeds that one batch would have.
        num_samples: the number of samples for each prompt. The first ones do not depend on it.
        temperature: probabilities are raised to the power 1 / temperature; below 1 they become sharper.
        top_k: draw from the `top_k` most probable tokens only.
        top_p: draw from the most probable tokens whose probabilities sum to `top_p` only (nucleus sampling).
        min_p: draw from tokens with at least `min_p` times the largest probability only.

    Returns:
        `num_samples` hypotheses for each prompt, in the order drawn.
    """
    search = sampling_search(model, memory, prompts=prompts, end=end, max_length=max_length, seed=seed,
                             num_samples=num_samples, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
                             min_length=min_length, constraints=constraints, token_budget=token_budget)
    found = run_search(model, memory, search.request, search)
    return [found[first:first + num_samples] for first in range(0, len(found), num_samples)]


def sampling_search(model: GenerativeModel, memory: SourceInput = None, *, prompts: Prompts, end: int | Iterable[int],
                    max_length: LengthLimit, seed: int | Sequence[int], num_samples: int = 1, temperature: float = 1.0,
                    top_k: int | None = None, top_p: float | None = None, min_p: float | None = None,
                    min_length: int = 0, constraints: Sequence[Constraint] = (),
                    token_budget: int | None = None) -> "TokenSearch":
    """The search that `sample` runs, after its arguments have been checked."""
    filters = SamplingFilters(temperature, top_k, top_p, min_p)
    request = SearchRequest.of(model, memory, prompts, end, max_length, min_length, constraints, token_budget,
                               whole_number("num_samples", num_samples, 1))
    return TokenSearch(request, TokenSampler(
        filters, seed_tensor(_prompt_seeds(seed, len(request.prompts)), request.device)))


@torch.no_grad()
def stream(model: GenerativeModel, prompt: Sequence[int], choose: TokenChoice, *, end: int | Iterable[int],
           max_length: int, min_length: int = 0, constraints: Sequence[Constraint] = ()) -> Iterator[int]:
    """Yield the tokens after a prompt as they are chosen, without the end token.

    These are the tokens that `greedy` or `sample` would return. A beam search cannot be streamed: it may still change
    its first token at the last step.

    Args:
        choose: `most_probable`, or a `TokenSampler`.
        model, prompt, end, max_length, min_length, constraints: see `greedy`.
    """
    request = SearchRequest.of(model, None, [prompt], end, max_length, min_length, constraints)
    search, model = TokenSearch(request, choose), honour_hooks(model)
    batch = search.start([0], None)
    logits, state, _ = prefill(model, None, [prompt], request.capacity, request.device)
    while True:
        batch, _, finished = search.advance(batch, logits, None)
        if finished:
            return
        yield int(batch.tokens[0])
        logits_BnV, state, _ = model.step(state, batch.tokens.unsqueeze(-1))
        logits = logits_BnV[:, -1]


@dataclass(frozen=True)
class TokenBatch:
    """The tokens of a batch of sequences, including those that have finished."""

    ids: Tensor
    """(B, t), including end tokens; entries after the length of a row are undefined."""
    logs: Tensor
    """(B, t)"""
    sequences: list[int]
    lengths: list[int]
    """The number of tokens of each row, including the end token."""
    statuses: list[int]
    tokens: Tensor
    """(B,): the token that each row reads next; undefined for a finished row."""

    def extend(self, tokens: Tensor, logs: Tensor, lengths: Tensor, statuses: list[int]) -> "TokenBatch":
        """Add a token to every running row that is not truncated; `lengths` (B,) are the lengths as a tensor."""
        width, places_B1 = max(self.lengths) + 1, lengths.unsqueeze(-1)
        ids, probabilities = (pad(old.to(new.dtype), (0, width - old.shape[1])).scatter(1, places_B1, new.unsqueeze(-1))
                              for old, new in ((self.ids, tokens), (self.logs, logs)))
        now = [old if old != RUNNING else new for old, new in zip(self.statuses, statuses, strict=True)]
        longer = [length + (old == RUNNING and new != TRUNCATED)
                  for length, old, new in zip(self.lengths, self.statuses, now, strict=True)]
        return TokenBatch(ids, probabilities, self.sequences, longer, now, tokens)

    def select(self, slots: Sequence[int]) -> "TokenBatch":
        """The rows in these slots."""
        index = torch.tensor(slots, dtype=torch.long, device=self.ids.device)
        sequences, lengths, statuses = ([part[slot] for slot in slots]
                                        for part in (self.sequences, self.lengths, self.statuses))
        width = max(lengths, default=0)
        ids, logs = self.ids[index, :width], self.logs[index, :width]
        return TokenBatch(ids, logs, sequences, lengths, statuses, self.tokens[index])

    def with_tokens(self, tokens: Tensor) -> "TokenBatch":
        """The same rows, which read these tokens (B,) next."""
        return replace(self, tokens=tokens)

    def concat(self, other: "TokenBatch") -> "TokenBatch":
        """These rows followed by those of another batch."""
        width = max(self.ids.shape[1], other.ids.shape[1])
        ids, logs = (torch.cat([pad(part, (0, width - part.shape[1])) for part in parts])
                     for parts in ((self.ids, other.ids), (self.logs, other.logs)))
        return TokenBatch(ids, logs, self.sequences + other.sequences, self.lengths + other.lengths,
                          self.statuses + other.statuses, torch.cat([self.tokens, other.tokens]))


@dataclass(frozen=True)
class TokenSearch:
    """A search that follows one hypothesis per sequence: a `regard.decoding.scheduler.SearchStrategy`."""

    request: SearchRequest
    choose: TokenChoice
    width: int = 1
    needs_cross: bool = False

    def start(self, sequences: Sequence[int], present: Tensor | None) -> TokenBatch:
        """Rows without tokens."""
        rows, device = len(sequences), self.request.device
        ids = torch.zeros(rows, 0, dtype=torch.long, device=device)
        return TokenBatch(ids, torch.zeros(rows, 0, device=device), [*sequences], [0] * rows, [RUNNING] * rows,
                          ids.new_zeros(rows))

    def advance(self, batch: TokenBatch, logits: Tensor, cross: Tensor | None) -> SearchStep[TokenBatch]:
        """Add one token to every row."""
        prefixes = self.request.prefixes(batch.ids, batch.sequences, batch.lengths)
        logs_BV = self.request.log_probabilities(logits, prefixes)
        token_B = self.choose(logs_BV, prefixes)
        log_B = logs_BV.gather(-1, token_B.unsqueeze(-1)).squeeze(-1)
        known = token_status(log_B, self.request.is_end(token_B, logits.shape[-1])).tolist()
        statuses = [TRUNCATED if status == RUNNING and length >= self.request.max_length_of(sequence) else status
                    for status, sequence, length in zip(known, batch.sequences, batch.lengths, strict=True)]
        finished = [slot for slot, status in enumerate(statuses)
                    if status != RUNNING and batch.statuses[slot] == RUNNING]
        for slot in finished:
            if statuses[slot] == INVALID:
                raise self.request.invalid_logits(batch.sequences[slot], batch.lengths[slot])
        return SearchStep(batch.extend(token_B, log_B, prefixes.lengths, statuses), None, finished)

    def results(self, batch: TokenBatch) -> list[tuple[int, Hypothesis]]:
        """The hypotheses of finished rows; the score is the sum of the log-probabilities."""
        found = []
        parts = (batch.sequences, batch.ids.tolist(), batch.logs.tolist(), batch.lengths, batch.statuses)
        for sequence, ids, logs, length, status in zip(*parts, strict=True):
            ended, logs = status == FINISHED, logs[:length]
            end = ids[length - 1] if ended else None
            found.append((sequence, Hypothesis(ids[:length - ended], logs, sum(logs, 0.0), end)))
        return found


def token_status(log_B: Tensor, ended_B: Tensor) -> Tensor:
    """The status of each row apart from its maximum length, from the log-probability of its token."""
    status_B = torch.where(ended_B, FINISHED, RUNNING)
    status_B = torch.where(log_B == -torch.inf, TRUNCATED, status_B)  # every token is forbidden
    return torch.where(log_B.isnan(), INVALID, status_B)


def most_probable(log_probabilities: Tensor, prefixes: Prefixes) -> Tensor:
    """The most probable token of each row; of equal ones the lowest id."""
    return log_probabilities.argmax(dim=-1)


class FilteredTokens(NamedTuple):
    """The tokens that may be drawn."""

    probabilities: Tensor
    """(B, C): not normalised; 0 for tokens that were filtered out."""
    tokens: Tensor | None
    """(B, C): their ids; None where the column is the id."""


@dataclass(frozen=True)
class SamplingFilters:
    """Temperature, top-k, top-p and min-p; see the documentation of this module."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def __post_init__(self) -> None:
        value = self.temperature
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            remedy = "Use greedy search to get the most probable tokens." if value == 0 else ""
            raise checks.wrong("temperature", "a number above 0", repr(value), remedy)
        if self.top_k is not None:
            whole_number("top_k", self.top_k, 1)
        for name, share in (("top_p", self.top_p), ("min_p", self.min_p)):
            if share is not None and (isinstance(share, bool) or not isinstance(share, int | float)
                                      or not 0 < share <= 1):
                raise checks.wrong(name, "a probability, above 0 and at most 1", repr(share))

    def __call__(self, log_probabilities: Tensor) -> FilteredTokens:
        """Filter log-probabilities (B, V), which need not be normalised."""
        logs = log_probabilities.to(torch.float32 if log_probabilities.device.type == "mps" else torch.float64)
        # The highest becomes 0, so that a low temperature does not overflow. Rows of NaN or −∞ have no order.
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


@dataclass(frozen=True)
class TokenSampler:
    """The `TokenChoice` of sampling."""

    filters: SamplingFilters
    seeds: Tensor
    """One for each prompt."""

    def __call__(self, log_probabilities: Tensor, prefixes: Prefixes) -> Tensor:
        """(B, V) -> (B,)"""
        numbers = uniform_numbers(self.seeds[prefixes.rows], prefixes.samples, prefixes.lengths)
        filtered = self.filters(log_probabilities)
        # A row of NaN has no distribution; its NaN is chosen, even if a constraint has set some tokens to −∞.
        no_distribution = filtered.probabilities[:, 0].isnan()
        return torch.where(no_distribution, log_probabilities.argmax(-1), sample_tokens(filtered, numbers))


def sample_tokens(filtered: FilteredTokens, numbers: Tensor) -> Tensor:
    """Draw a token for each row by inverting the cumulative distribution at numbers (B,) in [0, 1)."""
    sums_BC = filtered.probabilities.cumsum(dim=-1)
    total_B1 = sums_BC[:, -1:]
    # The product may be rounded up to the total, which no sum exceeds.
    at_B1 = torch.minimum(numbers.unsqueeze(-1) * total_B1, torch.nextafter(total_B1, torch.zeros_like(total_B1)))
    place_B1 = (sums_BC <= at_B1).sum(dim=-1, keepdim=True).clamp(max=sums_BC.shape[-1] - 1)
    token_B1 = place_B1 if filtered.tokens is None else filtered.tokens.gather(-1, place_B1)
    return token_B1.squeeze(-1)


def _prompt_seeds(seed: object, rows: int) -> list[int]:
    if isinstance(seed, int):
        return row_seeds(seed, range(rows))
    if isinstance(seed, str) or not isinstance(seed, Sequence) or len(seed) != rows:
        got = checks.plural(len(seed), "number") if isinstance(seed, list | tuple) else checks.kind(seed)[0]
        raise checks.wrong("seed", f"one number, or one for each prompt, {rows} in all", got)
    return [*seed]


SPLITMIX_STEP, SPLITMIX_FIRST, SPLITMIX_SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
WORD_RANGE = 1 << 64


def row_seeds(seed: int, rows: Iterable[int]) -> list[int]:
    """A seed for each row, from one seed for all and the indices of the rows."""
    points = torch.tensor([_signed_word(whole_number("seed", seed))], dtype=torch.long)
    indices = torch.tensor(list(rows), dtype=torch.long)
    return [value % WORD_RANGE for value in splitmix64(splitmix64(points) + indices).tolist()]


def seed_tensor(seeds: Iterable[int], device: torch.device) -> Tensor:
    """Seeds as 64-bit words on a device."""
    return torch.tensor([_signed_word(whole_number("seed", seed)) for seed in seeds], dtype=torch.long, device=device)


def uniform_numbers(seeds: Tensor, samples: Tensor, positions: Tensor) -> Tensor:
    """Numbers in [0, 1), multiples of 2⁻⁵³ on devices with float64, else of 2⁻²⁴."""
    words = splitmix64(splitmix64(splitmix64(seeds) + samples) + positions)
    bits, dtype = (24, torch.float32) if words.device.type == "mps" else (53, torch.float64)
    return _logical_shift(words, 64 - bits).to(dtype) * 2.0 ** -bits


def splitmix64(points: Tensor) -> Tensor:
    """The word of splitmix64 at each of these points; products and sums are modulo 2⁶⁴."""
    words = points + _signed_word(SPLITMIX_STEP)
    words = (words ^ _logical_shift(words, 30)) * _signed_word(SPLITMIX_FIRST)
    words = (words ^ _logical_shift(words, 27)) * _signed_word(SPLITMIX_SECOND)
    return words ^ _logical_shift(words, 31)


def _logical_shift(words: Tensor, bits: int) -> Tensor:
    """A shift to the right that fills with zeros; `>>` of signed words fills with the sign."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def _signed_word(word: int) -> int:
    """The signed 64-bit number with the same bits, as torch stores it."""
    return (word + WORD_RANGE // 2) % WORD_RANGE - WORD_RANGE // 2
