"""How a model is to write, as values: `Beam` and `Sampling`. Each says what is asked, and runs the search that does it.

    Beam(beams=5, nbest=3)                  the most probable texts; one beam without a length penalty is greedy search
    Sampling(tries=10, top_p=0.9, seed=1)   texts drawn by chance, the same for the same seed

A value is checked when it is made, so that a wrong one is refused before any text is read. What all have in common is
how long a text may be, and that it may not repeat itself. What is drawn for a text follows from the seed and from the
text itself: not from its place in a list, nor from its neighbours. They know searches and ids; they do not know text.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from torch import nn

from regard import checks
from regard.decoding.beam import beam
from regard.decoding.chance import row_seeds
from regard.decoding.coverage import Coverage, as_coverage
from regard.decoding.filters import Filters
from regard.decoding.greedy import greedy
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.ranking import Ranking, as_ranking
from regard.decoding.rules import NoRepeat, Rule, whole
from regard.decoding.sampling import sample
from regard.decoding.terms import Alternatives
from regard.models.contract import Memory


@dataclass(frozen=True)
class Problem:
    """What is written after: rows of ids, each with its limit, and with what must appear, where something must."""

    model: nn.Module
    memory: Memory | None
    keys: Sequence[Sequence[int]]
    """The ids of each text, from which its chance follows."""
    prompts: Sequence[Sequence[int]]
    end: Sequence[int]
    limits: Sequence[int]
    rules: Sequence[Rule] = ()
    terms: Sequence[Sequence[Alternatives]] | None = None


@dataclass(frozen=True, kw_only=True)
class Search(ABC):
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
            whole("limit", self.limit)
        if whole("least", self.least) > (self.least if self.limit is None else self.limit):
            raise checks.wrong("least", f"at most the limit, {self.limit}", self.least)
        if self.no_repeat is not None:
            whole("no_repeat", self.no_repeat, 1)

    @property
    @abstractmethod
    def rows(self) -> int:
        """How many rows of a batch a text takes, for its share of the memory."""

    @abstractmethod
    def _run(self, problem: Problem, options: dict[str, Any]) -> list[list[Hypothesis]]: ...

    def run(self, problem: Problem) -> list[list[Hypothesis]]:
        """For each row what was found, the best, or the first, in front."""
        return self._run(problem, {"prompts": problem.prompts, "end": problem.end, "limit": problem.limits,
                                   "least": self.least, "rules": [*problem.rules, *self.rules()]})

    def rules(self) -> list[Rule]:
        """What may not be written, whatever is read."""
        return [] if self.no_repeat is None else [NoRepeat(self.no_repeat)]

    def table(self) -> dict[str, Any]:
        """All that is asked for, by name, as words and numbers."""
        named = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {"search": type(self).__name__.lower()} | {name: _plain(value) for name, value in named}


@dataclass(frozen=True, kw_only=True)
class Beam(Search):
    """Beam search: `regard.decoding.beam` says how it goes.

    Args:
        beams: how many beginnings of a text are followed side by side.
        nbest: how many texts are given, at most `beams`; the best has the others as alternatives.
        length_penalty: "none", "mean", or the α of Wu et al. 2016; see `regard.decoding.ranking`.
        coverage: the β of Wu et al. 2016, for models that look at their source; see `regard.decoding.coverage`.
        groups: into how many groups the beams are parted that are to differ.
        diversity: what a token costs that a group before has taken, in log-probability.
    """

    beams: int = 5
    nbest: int = 1
    length_penalty: str | float | Ranking = "mean"
    coverage: float | Coverage | None = None
    groups: int = 1
    diversity: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if whole("nbest", self.nbest, 1) > whole("beams", self.beams, 1):
            raise checks.wrong("nbest", f"at most the {self.beams} beams", self.nbest)
        if self.beams % whole("groups", self.groups, 1):
            raise checks.wrong("groups", f"a number that divides the {self.beams} beams", self.groups)
        if isinstance(self.diversity, bool) or not isinstance(self.diversity, int | float) or not self.diversity >= 0:
            raise checks.wrong("diversity", "a number, at least 0", repr(self.diversity))
        as_ranking(self.length_penalty)
        as_coverage(self.coverage)

    @property
    def rows(self) -> int:
        """One: batches are made for beams."""
        return 1

    @property
    def is_greedy(self) -> bool:
        """Whether it takes the most probable token at each step: one beam, of which nothing else is asked."""
        return (self.beams, self.length_penalty, self.coverage) == (1, "none", None)

    def _run(self, problem: Problem, options: dict[str, Any]) -> list[list[Hypothesis]]:
        if self.is_greedy and problem.terms is None:
            return [[one] for one in greedy(problem.model, problem.memory, **options)]  # type: ignore[arg-type]
        return beam(problem.model, problem.memory, **options, beams=self.beams,  # type: ignore[arg-type]
                    nbest=self.nbest, length_penalty=self.length_penalty, coverage=self.coverage, groups=self.groups,
                    diversity=self.diversity, terms=problem.terms)


@dataclass(frozen=True, kw_only=True)
class Sampling(Search):
    """Every token is drawn, with the probability that the model gives it, as filters leave it.

    Args:
        tries: how many texts are drawn. The first ones do not depend on how many there are.
        temperature, top_k, top_p, min_p: see `regard.decoding.filters`.
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
        whole("tries", self.tries, 1)
        whole("seed", self.seed)
        _ = self.filters  # which is checked where it is made

    @property
    def filters(self) -> Filters:
        """What may be drawn."""
        return Filters(self.temperature, self.top_k, self.top_p, self.min_p)

    @property
    def rows(self) -> int:
        """One for each try."""
        return self.tries

    def seeds(self, keys: Sequence[Sequence[int]]) -> list[int]:
        """A seed for each text, of these ids."""
        hashes = (hashlib.sha256(",".join(map(str, key)).encode()).digest() for key in keys)
        return row_seeds(self.seed, [int.from_bytes(one[:8], "little", signed=True) for one in hashes])

    def _run(self, problem: Problem, options: dict[str, Any]) -> list[list[Hypothesis]]:
        assert problem.terms is None, "a sample cannot be made to hold terms"
        return sample(problem.model, problem.memory, **options, seed=self.seeds(problem.keys),  # type: ignore[arg-type]
                      samples=self.tries, temperature=self.temperature, top_k=self.top_k, top_p=self.top_p,
                      min_p=self.min_p)


GREEDY = Beam(beams=1, length_penalty="none")


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, str | int | float) else repr(value)
