"""How a model writes text, and what it wrote: `Beam`, `Sampling` and the base class of their results.

    Beam(beams=5, nbest=3)                  the most probable texts; one beam without a length penalty is greedy search
    Sampling(tries=10, top_p=0.9, seed=1)   random texts, the same for the same seed

A strategy checks its values when it is made, so a wrong one is refused before any text is read. The random numbers of a
text depend on the seed and on the text, not on its position in a list or on other texts.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, NamedTuple, Self, TypeVar

from torch import nn

from regard import checks
from regard.checks import whole_number
from regard.data.tokenizer.interface import Tokenizer
from regard.decoding.beam import beam
from regard.decoding.constraints import Constraint, NoRepeatNgram, TermAlternatives
from regard.decoding.request import Hypothesis
from regard.decoding.sampling import SamplingFilters, greedy, row_seeds, sample
from regard.decoding.scoring import CoveragePenalty, LengthPenalty, as_coverage_penalty, as_length_penalty
from regard.models.contract import Memory


class ScoredWord(NamedTuple):
    """The characters text[start:end] of what was written, and the log-probability of the word."""

    text: str
    start: int
    end: int
    score: float


def scored_words(tokenizer: Tokenizer, ids: Sequence[int], log_probabilities: Sequence[float],
                 prompt: Sequence[int] = ()) -> tuple[ScoredWord, ...]:
    """The words of what ids add to the text of a prompt. There may be a log-probability more than ids, the end's."""
    before, whole = tokenizer.decode(prompt), [*prompt, *ids]
    text = tokenizer.decode(whole)
    if not text.startswith(before):  # some join what stands side by side: then the ids are a text of their own
        return scored_words(tokenizer, ids, log_probabilities)
    found = []
    for word in tokenizer.decoded_words(whole):
        first, start = max(word.first_token - len(prompt), 0), max(word.start, len(before))
        last = word.last_token - len(prompt)
        if last >= 0 and start < word.end:
            found.append(ScoredWord(text[start:word.end], start - len(before), word.end - len(before),
                                    float(sum(log_probabilities[first:last + 1]))))
    return tuple(found)


# ---- searches: How a model is to write, as values: `Beam` and `Sampling`. Each says what is asked, and runs the search that does it.
#
#     Beam(beams=5, nbest=3)                  the most probable texts; one beam without a length penalty is greedy search
#     Sampling(tries=10, top_p=0.9, seed=1)   texts drawn by chance, the same for the same seed
#
# A value is checked when it is made, so that a wrong one is refused before any text is read. What all have in common is
# how long a text may be, and that it may not repeat itself. What is drawn for a text follows from the seed and from the
# text itself: not from its place in a list, nor from its neighbours. They know searches and ids; they do not know text.


@dataclass(frozen=True)
class SearchInputs:
    """What is written after: rows of ids, each with its limit, and with what must appear, where something must."""

    model: nn.Module
    memory: Memory | None
    keys: Sequence[Sequence[int]]
    """The ids of each text, from which its chance follows."""
    prompts: Sequence[Sequence[int]]
    end: Sequence[int]
    limits: Sequence[int]
    rules: Sequence[Constraint] = ()
    terms: Sequence[Sequence[TermAlternatives]] | None = None


@dataclass(frozen=True, kw_only=True)
class DecodingStrategy(ABC):
    """What every way to write has.

    Args:
        limit: how many tokens a text may have.
        least: how many tokens it has at least.
        no_repeat: no sequence of so many tokens is written twice; None where all may be.
    """

    limit: int | None = None
    least: int = 0
    no_repeat: int | None = None

    def __post_init__(self) -> None:
        if self.limit is not None:
            whole_number("limit", self.limit)
        if whole_number("least", self.least) > (self.least if self.limit is None else self.limit):
            raise checks.wrong("least", f"at most the limit, {self.limit}", self.least)
        if self.no_repeat is not None:
            whole_number("no_repeat", self.no_repeat, 1)

    @property
    @abstractmethod
    def rows(self) -> int:
        """How many rows of a batch a text takes, for its share of the memory."""

    @abstractmethod
    def _run(self, problem: SearchInputs, options: dict[str, Any]) -> list[list[Hypothesis]]: ...

    def run(self, problem: SearchInputs) -> list[list[Hypothesis]]:
        """For each row what was found, the best, or the first, in front."""
        return self._run(problem, {"prompts": problem.prompts, "end": problem.end, "max_length": problem.limits,
                                   "min_length": self.least, "constraints": [*problem.rules, *self.rules()]})

    def rules(self) -> list[Constraint]:
        """What may not be written, whatever is read."""
        return [] if self.no_repeat is None else [NoRepeatNgram(self.no_repeat)]

    def table(self) -> dict[str, Any]:
        """All that is asked for, by name, as words and numbers."""
        named = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {"search": type(self).__name__.lower()} | {name: _plain_value(value) for name, value in named}


@dataclass(frozen=True, kw_only=True)
class Beam(DecodingStrategy):
    """Beam search: `regard.decoding.beam` says how it goes.

    Args:
        beams: how many beginnings of a text are followed side by side.
        nbest: how many texts are given, at most `beams`; the best has the others as alternatives.
        length_penalty: "none", "mean", or the α of Wu et al. 2016; see `regard.decoding.scoring`.
        coverage: the β of Wu et al. 2016, for models that look at their source; see `regard.decoding.scoring`.
        groups: into how many groups the beams are parted that are to differ.
        diversity: what a token costs that a group before has taken, in log-probability.
    """

    beams: int = 5
    nbest: int = 1
    length_penalty: str | float | LengthPenalty = "mean"
    coverage: float | CoveragePenalty | None = None
    groups: int = 1
    diversity: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if whole_number("nbest", self.nbest, 1) > whole_number("beams", self.beams, 1):
            raise checks.wrong("nbest", f"at most the {self.beams} beams", self.nbest)
        if self.beams % whole_number("groups", self.groups, 1):
            raise checks.wrong("groups", f"a number that divides the {self.beams} beams", self.groups)
        if isinstance(self.diversity, bool) or not isinstance(self.diversity, int | float) or not self.diversity >= 0:
            raise checks.wrong("diversity", "a number, at least 0", repr(self.diversity))
        as_length_penalty(self.length_penalty)
        as_coverage_penalty(self.coverage)

    @property
    def rows(self) -> int:
        """One: batches are made for beams."""
        return 1

    @property
    def is_greedy(self) -> bool:
        """Whether it takes the most probable token at each step: one beam, of which nothing else is asked."""
        return (self.beams, self.length_penalty, self.coverage) == (1, "none", None)

    def _run(self, problem: SearchInputs, options: dict[str, Any]) -> list[list[Hypothesis]]:
        if self.is_greedy and problem.terms is None:
            return [[one] for one in greedy(problem.model, problem.memory, **options)]  # type: ignore[arg-type]
        return beam(problem.model, problem.memory, **options, beams=self.beams,  # type: ignore[arg-type]
                    nbest=self.nbest, length_penalty=self.length_penalty, coverage_penalty=self.coverage,
                    num_beam_groups=self.groups, diversity_penalty=self.diversity, terms=problem.terms)


@dataclass(frozen=True, kw_only=True)
class Sampling(DecodingStrategy):
    """Every token is drawn, with the probability that the model gives it, as filters leave it.

    Args:
        tries: how many texts are drawn. The first ones do not depend on how many there are.
        temperature, top_k, top_p, min_p: see `regard.decoding.sampling`.
        seed: the same one gives the same texts.
    """

    tries: int = 1
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("tries", self.tries, 1)
        whole_number("seed", self.seed)
        _ = self.filters  # which is checked where it is made

    @property
    def filters(self) -> SamplingFilters:
        """What may be drawn."""
        return SamplingFilters(self.temperature, self.top_k, self.top_p, self.min_p)

    @property
    def rows(self) -> int:
        """One for each try."""
        return self.tries

    def seeds(self, keys: Sequence[Sequence[int]]) -> list[int]:
        """A seed for each text, of these ids."""
        hashes = (hashlib.sha256(",".join(map(str, key)).encode()).digest() for key in keys)
        return row_seeds(self.seed, [int.from_bytes(one[:8], "little", signed=True) for one in hashes])

    def _run(self, problem: SearchInputs, options: dict[str, Any]) -> list[list[Hypothesis]]:
        assert problem.terms is None, "a sample cannot be made to hold terms"
        return sample(problem.model, problem.memory, **options, seed=self.seeds(problem.keys),  # type: ignore[arg-type]
                      num_samples=self.tries, temperature=self.temperature, top_k=self.top_k, top_p=self.top_p,
                      min_p=self.min_p)


GREEDY = Beam(beams=1, length_penalty="none")


def _plain_value(value: object) -> object:
    return value if value is None or isinstance(value, str | int | float) else repr(value)


# ---- results: What a model wrote: a text with its score, its tokens, its words, and where the model looked.
#
#     translation.text, .score, .words, .alignment, .alternatives
#
# Words and alignment are found when they are asked for: words from the tokens, an alignment by the model, which reads
# what it wrote once more. Nothing here knows how a text was found.

GeneratedTextT = TypeVar("GeneratedTextT", bound="GeneratedText")


@dataclass(frozen=True)
class GeneratedText:
    """A text that a model wrote."""

    text: str
    score: float
    """By which the search ranked it; what that is, the search says. Of a sample the sum of its log-probabilities."""
    ids: tuple[int, ...]
    cut: bool
    """The model had not come to an end when the limit was reached."""
    alternatives: tuple[Self, ...] = ()
    """What the search found besides, the best first; of samples the others, in the order in which they were drawn."""
    log_probabilities: tuple[float, ...] = ()
    """Of each id given all before it, and of the end last, where it came."""
    tokenizer: Tokenizer | None = field(default=None, repr=False, compare=False)
    """What the ids are of."""

    @property
    def before(self) -> tuple[int, ...]:
        """The ids of a prompt that the text goes on from."""
        return ()

    @cached_property
    def words(self) -> tuple[ScoredWord, ...]:
        """The words, where each stands in the text, and its log-probability."""
        if not self.ids:
            return ()
        if self.tokenizer is None or len(self.log_probabilities) < len(self.ids):
            raise checks.wrong("log_probabilities", "those of all ids, for words with scores", "missing",
                               "Not everything that translates tells them: `Translator` does.")
        return scored_words(self.tokenizer, self.ids, self.log_probabilities, self.before)


def with_alternatives(found: list[GeneratedTextT]) -> GeneratedTextT:
    """The first, with the others beside it."""
    first, *others = found
    return replace(first, alternatives=tuple(others))
