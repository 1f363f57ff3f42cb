"""How a model generates text, and what it generated: `Beam`, `Sampling`, and the base class of their results.

    Beam(beams=5, nbest=3)                       the most probable texts; one beam without a length penalty is greedy
    Sampling(num_samples=10, top_p=0.9, seed=1)  random texts, the same for the same seed

A strategy checks its values when it is made, so a wrong one is refused before any text is read. The random numbers of a
text depend on the seed and on the text, not on its position in a list or on other texts.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from torch import nn

from regard import checks
from regard.checks import whole_number
from regard.data.tokenizer.interface import Tokenizer, Word
from regard.decoding.beam import BeamSearch, beam, beam_search
from regard.decoding.constraints import Constraint, NoRepeatNgram, TermAlternatives
from regard.decoding.request import Hypothesis, SourceInput
from regard.decoding.sampling import (
    SamplingFilters,
    TokenSearch,
    greedy,
    greedy_search,
    row_seeds,
    sample,
    sampling_search,
)
from regard.decoding.scoring import (
    CoveragePenalty,
    LengthPenalty,
    as_coverage_penalty,
    as_length_penalty,
    check_weight,
)

RENAMED = {"limit": "max_length", "least": "min_length", "no_repeat": "no_repeat_ngram_size",
           "groups": "num_beam_groups", "diversity": "diversity_penalty", "coverage": "coverage_penalty",
           "tries": "num_samples"}
"""Old names of arguments, which still work with a warning."""
REPR_CHARACTERS = 120
"""Characters of a text that a `repr` shows."""
StrategyT = TypeVar("StrategyT", bound="DecodingStrategy")
GeneratedTextT = TypeVar("GeneratedTextT", bound="GeneratedText")


@dataclass(frozen=True)
class SearchInputs:
    """The rows that a search generates text for, each with its own maximum length."""

    model: nn.Module
    memory: SourceInput
    keys: Sequence[Sequence[int]]
    """The ids of each input text, which decide its random numbers."""
    prompts: Sequence[Sequence[int]]
    end: Sequence[int]
    max_lengths: Sequence[int]
    constraints: Sequence[Constraint] = ()
    terms: Sequence[Sequence[TermAlternatives]] | None = None
    """For each row the terms that must appear."""


def _accept_old_names(strategy: type[StrategyT]) -> type[StrategyT]:
    """Let a dataclass also take its fields by their old names."""
    strategy.__init__ = checks.renamed_arguments(**RENAMED)(strategy.__init__)  # type: ignore[method-assign]
    return strategy


@dataclass(frozen=True, kw_only=True, repr=False)
class DecodingStrategy(ABC):
    """The options that beam search and sampling share.

    Args:
        max_length: the maximum number of tokens of a text.
        min_length: the minimum number of tokens of a text.
        no_repeat_ngram_size: no n-gram of this size appears twice; None allows all.
    """

    max_length: int | None = None
    min_length: int = 0
    no_repeat_ngram_size: int | None = None
    _shown: ClassVar[tuple[str, ...]] = ()
    """The options that a `repr` shows even if they have their defaults."""

    def __post_init__(self) -> None:
        if self.max_length is not None:
            whole_number("max_length", self.max_length)
        if whole_number("min_length", self.min_length) > (
                self.min_length if self.max_length is None else self.max_length):
            raise checks.wrong("min_length", f"at most max_length, {self.max_length}", self.min_length)
        if self.no_repeat_ngram_size is not None:
            whole_number("no_repeat_ngram_size", self.no_repeat_ngram_size, 1)

    @property
    @abstractmethod
    def rows_per_text(self) -> int:
        """The number of batch rows that a text counts for."""

    @property
    def hypotheses_per_text(self) -> int:
        """The number of hypotheses of a text that a search extends at the same time."""
        return self.rows_per_text

    @abstractmethod
    def _run(self, inputs: SearchInputs, options: dict[str, Any]) -> list[list[Hypothesis]]: ...

    @abstractmethod
    def _prepare(self, inputs: SearchInputs, options: dict[str, Any]) -> BeamSearch | TokenSearch: ...

    def run(self, inputs: SearchInputs) -> list[list[Hypothesis]]:
        """For each row the hypotheses: of beam search the best first, of sampling in the order drawn."""
        return self._run(inputs, self._options(inputs))

    def prepare(self, inputs: SearchInputs) -> BeamSearch | TokenSearch:
        """The search that `run` runs, for a scheduler that lets sequences enter and leave."""
        return self._prepare(inputs, self._options(inputs))

    def _options(self, inputs: SearchInputs) -> dict[str, Any]:
        return {"prompts": inputs.prompts, "end": inputs.end, "max_length": inputs.max_lengths,
                "min_length": self.min_length, "constraints": [*inputs.constraints, *self.constraints()]}

    def constraints(self) -> list[Constraint]:
        """Constraints on the generated text that do not depend on the input."""
        return [] if self.no_repeat_ngram_size is None else [NoRepeatNgram(self.no_repeat_ngram_size)]

    def __repr__(self) -> str:
        changed = ((each.name, getattr(self, each.name)) for each in fields(self) if each.name in self._shown
                   or getattr(self, each.name) != each.default)
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in changed)})"

    def table(self) -> dict[str, Any]:
        """All options by name, as text and numbers."""
        named = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {"search": type(self).__name__.lower()} | {
            name: value if value is None or isinstance(value, str | int | float) else repr(value)
            for name, value in named}


@_accept_old_names
@dataclass(frozen=True, kw_only=True, repr=False)
class Beam(DecodingStrategy):
    """Beam search; see `regard.decoding.beam`.

    Args:
        beams: the beam size.
        nbest: the number of texts that are returned, at most `beams`; the best has the others as alternatives.
        length_penalty: "none", "mean", or the α of Wu et al. 2016; see `regard.decoding.scoring`.
        coverage_penalty: the β of Wu et al. 2016, for models with cross-attention; see `regard.decoding.scoring`.
        num_beam_groups: the number of groups of diverse beam search.
        diversity_penalty: subtracted from the log-probability of a token for each use in an earlier group.
    """

    beams: int = 5
    nbest: int = 1
    length_penalty: str | float | LengthPenalty = "mean"
    coverage_penalty: float | CoveragePenalty | None = None
    num_beam_groups: int = 1
    diversity_penalty: float = 0.5
    _shown = ("beams",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if whole_number("nbest", self.nbest, 1) > whole_number("beams", self.beams, 1):
            raise checks.wrong("nbest", f"at most the {self.beams} beams", self.nbest)
        if self.beams % whole_number("num_beam_groups", self.num_beam_groups, 1):
            raise checks.wrong("num_beam_groups", f"a number that divides the {self.beams} beams",
                               self.num_beam_groups)
        check_weight("diversity_penalty", self.diversity_penalty)
        as_length_penalty(self.length_penalty)
        as_coverage_penalty(self.coverage_penalty)

    @property
    def rows_per_text(self) -> int:
        """One: batch sizes already allow for beams."""
        return 1

    @property
    def hypotheses_per_text(self) -> int:
        return self.beams

    @property
    def is_greedy(self) -> bool:
        """Whether this is greedy search: one beam without penalties."""
        return (self.beams, self.length_penalty, self.coverage_penalty) == (1, "none", None)

    def _run(self, inputs: SearchInputs, options: dict[str, Any]) -> list[list[Hypothesis]]:
        if self.is_greedy and inputs.terms is None:
            return [[one] for one in greedy(inputs.model, inputs.memory, **options)]  # type: ignore[arg-type]
        return beam(inputs.model, inputs.memory, **options, **self._beam_options(inputs))  # type: ignore[arg-type]

    def _prepare(self, inputs: SearchInputs, options: dict[str, Any]) -> BeamSearch | TokenSearch:
        if self.is_greedy and inputs.terms is None:
            return greedy_search(inputs.model, inputs.memory, **options)  # type: ignore[arg-type]
        return beam_search(inputs.model, inputs.memory, **options, **self._beam_options(inputs))  # type: ignore[arg-type]

    def _beam_options(self, inputs: SearchInputs) -> dict[str, Any]:
        names = ("beams", "nbest", "length_penalty", "coverage_penalty", "num_beam_groups", "diversity_penalty")
        return {"terms": inputs.terms} | {name: getattr(self, name) for name in names}


@_accept_old_names
@dataclass(frozen=True, kw_only=True, repr=False)
class Sampling(DecodingStrategy):
    """Sampling: each token is drawn from the model's distribution after filtering.

    Args:
        num_samples: the number of texts that are drawn. The first ones do not depend on the number.
        temperature, top_k, top_p, min_p: see `regard.decoding.sampling`.
        seed: the same seed gives the same texts.
    """

    num_samples: int = 1
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int = 0
    _shown = ("num_samples", "seed")

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("num_samples", self.num_samples, 1)
        whole_number("seed", self.seed)
        _ = self.filters  # checked by its constructor

    @property
    def filters(self) -> SamplingFilters:
        """The filters that limit which tokens may be drawn."""
        return SamplingFilters(self.temperature, self.top_k, self.top_p, self.min_p)

    @property
    def rows_per_text(self) -> int:
        """One for each sample."""
        return self.num_samples

    def seeds(self, keys: Sequence[Sequence[int]]) -> list[int]:
        """A seed for each text, given by its ids."""
        hashes = (hashlib.sha256(",".join(map(str, key)).encode()).digest() for key in keys)
        return row_seeds(self.seed, [int.from_bytes(one[:8], "little", signed=True) for one in hashes])

    def _run(self, inputs: SearchInputs, options: dict[str, Any]) -> list[list[Hypothesis]]:
        assert inputs.terms is None, "sampling cannot enforce terms"
        return sample(inputs.model, inputs.memory, **options, **self._sampling_options(inputs))  # type: ignore[arg-type]

    def _prepare(self, inputs: SearchInputs, options: dict[str, Any]) -> TokenSearch:
        return sampling_search(inputs.model, inputs.memory, **options,  # type: ignore[arg-type]
                               **self._sampling_options(inputs))

    def _sampling_options(self, inputs: SearchInputs) -> dict[str, Any]:
        names = ("num_samples", "temperature", "top_k", "top_p", "min_p")
        return {"seed": self.seeds(inputs.keys)} | {name: getattr(self, name) for name in names}


GREEDY = Beam(beams=1, length_penalty="none")


class ScoredWord(NamedTuple):
    """The characters text[start:end] of a generated text, and the log-probability of the word."""

    text: str
    start: int
    end: int
    score: float


@dataclass(frozen=True, repr=False)
class GeneratedText:
    """A text that a model generated; the base class of `Translation` and `Completion`."""

    text: str
    score: float
    """The score by which the search ranked it; of a sample, the sum of its log-probabilities."""
    ids: tuple[int, ...]
    cut: bool
    """Whether the maximum length was reached before an end token."""
    alternatives: tuple[Self, ...] = ()
    """The other hypotheses, the best first; the other samples, in the order drawn."""
    log_probabilities: tuple[float, ...] = ()
    """The log-probability of each id, and last of the end token if there is one."""
    tokenizer: Tokenizer | None = field(default=None, repr=False, compare=False)
    """The tokenizer of the ids."""

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        more = f", {checks.plural(len(self.alternatives), 'alternative')}" if self.alternatives else ""
        return f"{type(self).__name__}({shortened(self.text)}, score {self.score:.4g}{', truncated' * self.cut}{more})"

    @property
    def truncated(self) -> bool:
        """Whether the maximum length was reached before an end token; another name of `cut`."""
        return self.cut

    @property
    def context_ids(self) -> tuple[int, ...]:
        """The ids of the prompt that the text continues."""
        return ()

    @cached_property
    def words(self) -> tuple[ScoredWord, ...]:
        """The words, their positions in the text, and their log-probabilities."""
        if not self.ids:
            return ()
        if self.tokenizer is None or len(self.log_probabilities) < len(self.ids):
            raise ValueError("This text has no log-probabilities, so its words have no scores. `Translator` and "
                             "`Completer` return them; the CTranslate2 engine does not.")
        return scored_words(self.tokenizer, self.ids, self.log_probabilities, self.context_ids)


def shortened(text: str, length: int = REPR_CHARACTERS) -> str:
    """A text in quotes for a `repr`, shortened in the middle."""
    half = length // 2
    return repr(text if len(text) <= length else f"{text[:half]}…{text[-half:]}")


def with_alternatives(texts: list[GeneratedTextT]) -> GeneratedTextT:
    """The first text, with the others as its alternatives."""
    first, *others = texts
    return replace(first, alternatives=tuple(others))


def scored_words(tokenizer: Tokenizer, ids: Sequence[int], log_probabilities: Sequence[float],
                 prompt: Sequence[int] = ()) -> tuple[ScoredWord, ...]:
    """The words of a text with their log-probabilities, the sums over their tokens.

    Of a word that the prompt began, only the generated tokens count. The end token is not a word, so
    `log_probabilities` may have one element more than `ids`.
    """
    text, words = generated_words(tokenizer, ids, prompt)
    return tuple(ScoredWord(text[word.start:word.end], word.start, word.end,
                            float(sum(log_probabilities[word.first_token:word.last_token + 1]))) for word in words)


def generated_words(tokenizer: Tokenizer, ids: Sequence[int], prompt: Sequence[int] = ()) -> tuple[str, list[Word]]:
    """The text that ids add to a prompt, and its words; of a word that the prompt began, only the generated tokens."""
    before, all_ids = tokenizer.decode(prompt), [*prompt, *ids]
    text = tokenizer.decode(all_ids)
    if not text.startswith(before):  # some tokenizers join neighbours: then the ids are a text of their own
        return generated_words(tokenizer, ids)
    words = []
    for word in tokenizer.decoded_words(all_ids):
        first, start = max(word.first_token - len(prompt), 0), max(word.start, len(before))
        last = word.last_token - len(prompt)
        if last >= 0 and start < word.end:
            words.append(Word(start - len(before), word.end - len(before), first, last))
    return text[len(before):], words
