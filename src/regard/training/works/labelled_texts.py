"""Texts with labels, from TSV files to ids on disk.

    survey_texts(data, validation, config)        what is in the files
    prepare_texts(survey, tokenizer, place)       a tokenizer, trained once, and all texts as ids

Lines without text are left out, and told. It does not know what is learned from the texts.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import compress
from pathlib import Path

import numpy as np

from regard.data import store as stores
from regard.data.doctor import seen
from regard.data.doctor.characters import is_blank
from regard.data.labelled import LabelledText, labelled_texts
from regard.data.pair import DataError
from regard.data.sources.inputs import Input, shown
from regard.data.store import TextStore
from regard.data.tokenizer.contract import Tokenizer
from regard.data.tokenizer.settings import TokenizerConfig
from regard.training.settings import DataConfig
from regard.training.works.files import blocks, digests, inputs
from regard.training.works.labels import Numbers, check_classes, numbered
from regard.training.works.room import lengths
from regard.training.works.sentences import Counting
from regard.training.works.splitting import Hashes, Held, held_out
from regard.training.works.tokenizers import stored_one

BLOCK = 1024
"""Texts that are encoded in one go."""


@dataclass(frozen=True)
class Found:
    """What was met in texts with labels."""

    labels: tuple[str, ...]
    """The names, sorted."""
    numbers: Numbers
    """Of the label of each text."""
    hashes: Hashes
    characters: int
    distinct: frozenset[str]
    """The different characters."""
    longest: int
    """Characters of the longest text."""
    empty: tuple[str, ...]
    """Where texts stand that are left out."""

    @property
    def count(self) -> int:
        """How many texts are kept."""
        return len(self.numbers)


@dataclass(frozen=True)
class TextSurvey:
    """What is in the files."""

    files: dict[str, str]
    """The sha256 of every file by its name."""
    config: DataConfig
    inputs: tuple[Input, ...]
    found: Found
    validation: tuple[Input, ...]
    given: Found | None
    """What was met in the validation data, with the labels of the training data; None where none is given."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels, sorted."""
        return self.found.labels

    @property
    def count(self) -> int:
        """How many texts there are to learn from, those that are held out among them."""
        return self.found.count

    @cached_property
    def held(self) -> Held:
        """For each text whether it is held out."""
        share = 0.0 if self.given is not None else self.config.held
        return held_out(self.found.hashes, share, self.found.numbers)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should know of the data."""
        told = []
        for one in (self.found, self.given):
            if one is not None and one.empty:
                told.append(f"{len(one.empty):,} lines have no text and are left out, the first at {one.empty[0]}.")
        if self.given is not None:
            both = int(np.isin(self.given.hashes, self.found.hashes).sum())
            if both:
                told.append(f"{both:,} of {self.given.count:,} validation texts are in the training data too.")
        return tuple(told)


def survey_texts(data: Sequence[str], validation: Sequence[str], config: DataConfig,
                 counted: Counting = iter) -> TextSurvey:
    """Read all texts once."""
    files, others = inputs(data), inputs(validation)
    found = _look(files, counted, None)
    check_classes(", ".join(input.name for input in files), found.labels)
    given = _look(others, iter, found.labels) if others else None
    if given is not None and not given.count:
        raise DataError(f"{', '.join(validation)}: There is not a single text to judge by. Give a file with some.")
    return TextSurvey(digests([*data, *validation]), config, files, found, others, given)


@dataclass(frozen=True)
class PreparedTexts:
    """Texts as ids, with the numbers of their labels."""

    survey: TextSurvey
    tokenizer: Tokenizer
    training: TextStore
    training_labels: Numbers
    validation: TextStore
    validation_labels: Numbers
    notes: tuple[str, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels."""
        return self.survey.labels

    @property
    def vocabulary(self) -> int:
        """How many ids there are."""
        return self.tokenizer.size

    @property
    def tokens(self) -> int:
        """How many are learned from."""
        return len(self.training.stream)

    @property
    def longest(self) -> int:
        """Ids of the longest text."""
        return int(lengths(self.training).max())


def prepare_texts(survey: TextSurvey, config: TokenizerConfig, place: Path,
                  tokenizer: Tokenizer | None = None) -> PreparedTexts:
    """Train the tokenizer, or read the one that was trained before, and encode all texts."""
    data, settings = list(survey.files.values()), {"held": survey.config.held, "given": survey.given is not None}
    learned, notes = ~survey.held, list[str]()
    judged = survey.held if survey.held.any() else learned
    if tokenizer is None:
        trained = stored_one(place, partial(_texts, survey.inputs, learned), config, data=data, settings=settings)
        tokenizer, notes = trained.tokenizer, [*trained.notes]
    key = stores.store_key(data, tokenizer.sha256, settings)
    of_judged = (partial(_texts, survey.inputs, judged) if survey.given is None
                 else partial(_texts, survey.validation, np.ones(survey.given.count, np.bool_)))
    stored = []
    for name, texts in (("ids", partial(_texts, survey.inputs, learned)), ("held", of_judged)):
        opened = stores.open_or_make_texts(place / name, key, partial(_encoded, tokenizer, texts),
                                           vocabulary=tokenizer.size)
        stored.append(opened.store)
        notes += opened.notes
    numbers = survey.found.numbers
    return PreparedTexts(survey, tokenizer, stored[0], numbers[learned], stored[1],
                         numbers[judged] if survey.given is None else survey.given.numbers, tuple(notes))


def _kept(inputs: Sequence[Input], empty: list[str], counted: Counting = iter) -> Iterator[LabelledText]:
    """The texts, but for those without anything to read, which are noted."""
    for one in counted(one for input in inputs for one in labelled_texts(input)):
        if is_blank(one.text):
            empty.append(str(one.where))
        else:
            yield one


def _texts(inputs: Sequence[Input], chosen: Held) -> Iterator[str]:
    return compress((one.text for one in _kept(inputs, [])), chosen)


def _encoded(tokenizer: Tokenizer, texts: Callable[[], Iterable[str]]) -> Iterator[list[int]]:
    for block in blocks(texts(), BLOCK):
        yield from tokenizer.encode_many(block)


def _look(inputs: Sequence[Input], counted: Counting, known: tuple[str, ...] | None) -> Found:
    hashes, names, empty, distinct, characters, longest = array("Q"), list[str](), list[str](), set[str](), 0, 0
    for one in _kept(inputs, empty, counted):
        if known is not None and one.label not in known:
            raise DataError(f'{one.where}: The label "{shown(one.label)}" is not in the training data, so it cannot be '
                            f"learned. Mend it, or leave the line out.")
        hashes.append(seen.number(one.text))
        names.append(one.label)
        distinct.update(one.text)
        characters, longest = characters + len(one.text), max(longest, len(one.text))
    labels, numbers = numbered(names, known)
    return Found(labels, numbers, np.array(hashes, np.uint64), characters, frozenset(distinct), longest, tuple(empty))
