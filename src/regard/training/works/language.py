"""Learning to go on with a text: from plain files to windows, a loss, and a score.

    survey(data, validation, config)       what is in the files
    prepare(survey, tokenizer, place)      a tokenizer, trained once, and the text as ids on disk
    Completion(prepared, config, settings) the work

The files are one continuous text, as `continuous` tells. Where no validation text is given, its last part is held out.
Models with positions read windows in a shuffled order, which begin elsewhere in every epoch; recurrent ones, where the
windows are continuous, go on from each to the next with what they remember (`carrying`), and are judged in the same
way. It does not know the loop.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from regard import checks
from regard.data import store as stores
from regard.data.batches.batch import Batch
from regard.data.batches.buckets import Numbers
from regard.data.batches.feed import Feed
from regard.data.batches.windows import MovingWindows, Streams, WindowConfig, WindowPlan, Windows
from regard.data.pair import DataError
from regard.data.sources.inputs import Input
from regard.data.store import TextStore
from regard.data.tokenizer.contract import Tokenizer
from regard.data.tokenizer.settings import TokenizerConfig
from regard.models.build import ModelConfig
from regard.models.language import LanguageConfig
from regard.tasks.completing import Completer
from regard.tasks.loading import fitting
from regard.tasks.task import Task
from regard.training.settings import DataConfig, TrainingConfig
from regard.training.work import Example, Feeding, Objective, Verdict
from regard.training.works import continuous
from regard.training.works.carrying import CarriedObjective, ContinuousFeed, Window, carries, filled
from regard.training.works.continuous import BREAK, END, Pieces
from regard.training.works.files import digests, inputs
from regard.training.works.judging import Sums, evaluating
from regard.training.works.objectives import ReadingObjective
from regard.training.works.room import positions, refuse_sampling
from regard.training.works.tokenizers import stored_one

SHARE, FEWEST = 0.1, 200
"""How much of a text is held out, and how many characters it must have for that."""
STREAM = 16
"""Windows that each row of a judged text has at least, so that its beginning, where nothing is remembered, costs
little."""
SHOWN = 60
"""Tokens of a prompt that is shown, and of what follows it."""


@dataclass(frozen=True)
class Survey:
    """What is in the files."""

    files: dict[str, str]
    """The sha256 of every file by its name."""
    config: DataConfig
    inputs: tuple[Input, ...]
    validation: tuple[Input, ...]
    """Empty where none is given."""
    characters: int
    """Of all files to learn from, what is held out of them among it."""
    distinct: frozenset[str]
    """The different characters of these."""
    lines: int
    """How many line ends there are."""
    longest: int
    """Characters of the longest line."""

    @property
    def learned(self) -> int:
        """How many characters are learned from: those before the part that is held out."""
        return self.characters if self.validation else int(self.characters * (1 - self.config.held))

    def training(self) -> Pieces:
        """The text to learn from."""
        return continuous.part(continuous.pieces(self.inputs), 0, self.learned)

    def judged(self) -> Pieces:
        """The text to judge by: what is given, what is held out, or else what is learned from."""
        if self.validation:
            return continuous.pieces(self.validation)
        first = self.learned if self.learned < self.characters else 0
        return continuous.part(continuous.pieces(self.inputs), first, self.characters)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should know of the data."""
        learned = {input.path for input in self.inputs}
        return tuple(f"{input.name} is learned from, and judged by: the scores will tell nothing of other texts."
                     for input in self.validation if input.path in learned)


def survey(data: Sequence[str], validation: Sequence[str], config: DataConfig, *,
           counted: Callable[[Iterable[Any]], Iterable[Any]] = iter) -> Survey:
    """Read all of the text once.

    Args:
        counted: passes the lines on, and may count them to show that something happens.
    """
    files, given = inputs(data), inputs(validation)
    characters, lines, longest, distinct = 0, 0, 0, set[str]()
    for piece in counted(continuous.pieces(files)):
        if piece is not END:
            line = piece.removeprefix(BREAK)
            characters, lines, longest = characters + len(piece), lines + (line != piece), max(longest, len(line))
            distinct.update(piece)
    if len(distinct) < 2:
        names = ", ".join(input.name for input in files)
        raise DataError(f"{names}: There is no text to learn from in it. Give a file with some.")
    for _ in continuous.pieces(given):
        pass  # what is wrong with it is told now, and not after the tokenizer was trained
    return Survey(digests([*data, *validation]), config, files, given, characters, frozenset(distinct), lines, longest)


def configured(survey: Survey, config: DataConfig) -> Survey:
    """The survey with another config."""
    return replace(survey, config=config)


def held_share(survey: Survey) -> float:
    """How much of the text is best held out."""
    return 0.0 if survey.validation or survey.characters < FEWEST else SHARE


@dataclass(frozen=True)
class Prepared:
    """The text as ids."""

    survey: Survey
    tokenizer: Tokenizer
    training: TextStore
    validation: TextStore
    notes: tuple[str, ...]

    @property
    def vocabulary(self) -> int:
        """How many ids there are."""
        return self.tokenizer.size

    @property
    def tokens(self) -> int:
        """How many are learned from."""
        return len(self.training.stream)


def prepare(survey: Survey, config: TokenizerConfig, place: Path, *, tokenizer: Tokenizer | None = None) -> Prepared:
    """Train the tokenizer, or read the one that was trained before, and encode the text.

    Args:
        place: a folder for tokenizer and ids, to be found again.
        tokenizer: one that is there already, in the place of a new one.
    """
    data, settings = list(survey.files.values()), {"held": survey.config.held, "given": len(survey.validation)}
    notes: list[str] = []
    if tokenizer is None:
        continuous.check_normalisation(config)
        trained = stored_one(place, lambda: (piece for piece in survey.training() if piece is not END), config,
                             data=data, settings=settings)
        tokenizer, notes = trained.tokenizer, [*trained.notes]
    key = stores.store_key(data, tokenizer.sha256, settings)
    stored = []
    for name, role, text in (("ids", "learn from", survey.training), ("held", "judge by", survey.judged)):
        make = partial(_encoded, tokenizer, text)
        opened = stores.open_or_make_texts(place / name, key, make, vocabulary=tokenizer.size)
        if len(opened.store.stream) < 2:
            raise DataError(f"{', '.join(survey.files)}: There are not two tokens of text to {role}. Give more text.")
        stored.append(opened.store)
        notes += opened.notes
    training, validation = stored
    return Prepared(survey, tokenizer, training, validation, tuple(notes))


def _encoded(tokenizer: Tokenizer, text: Callable[[], Pieces]) -> Iterator[list[int]]:
    return continuous.encoded(tokenizer, text())


@dataclass(frozen=True)
class FilledWindows:
    """Makes batches of windows that are all equally long."""

    windows: Windows | MovingWindows

    def __call__(self, numbers: Numbers, epoch: int) -> Batch:
        """The batch of these numbers."""
        return filled(self.windows(numbers, epoch), self.windows.length, self.windows.padding)


def feed(prepared: Prepared, config: WindowConfig, seed: int, rank: int = 0, processes: int = 1) -> Feeding:
    """The windows of the text: each with the one before, or shuffled."""
    padding = prepared.tokenizer.special.padding or 0
    if config.order == "continuous":
        return ContinuousFeed(Streams(prepared.training, length=config.length, rows=config.rows, padding=padding,
                                      rank=rank, processes=processes))
    windows = MovingWindows(prepared.training, config.length, seed, padding)
    return Feed(WindowPlan(windows.count, config.rows, seed), FilledWindows(windows), rank=rank, processes=processes)


class Completion:
    """The work of a language model."""

    notes: tuple[str, ...] = ()

    def __init__(self, prepared: Prepared, made_from: ModelConfig, settings: TrainingConfig,
                 record: dict[str, Any] | None = None) -> None:
        if not isinstance(made_from, LanguageConfig):
            raise checks.wrong("model.kind", f'"{LanguageConfig.kind}", to go on with a text', f'"{made_from.kind}"')
        if settings.windows is None:
            raise checks.wrong("training.windows", "given, to cut a continuous text", None)
        room = positions(made_from)
        if room is not None and settings.windows.length > room:
            raise checks.wrong("training.windows.length", f"at most {room}, the positions that the model knows",
                               settings.windows.length)
        refuse_sampling(settings)
        self.prepared, self.made_from, self.settings, self.record = prepared, made_from, settings, record
        self.windows, self.room = settings.windows, room
        self.carried = self.windows.order == "continuous" and carries(made_from)
        if self.carried and settings.consistency:
            raise checks.wrong("training.consistency", "0 where a state is carried on: two passes would leave two",
                               settings.consistency)

    def feed(self, rank: int, processes: int) -> Feeding:
        """The windows of one of so many processes."""
        return feed(self.prepared, self.windows, self.settings.seed, rank, processes)

    def objective(self, model: nn.Module) -> Objective:
        """The loss of a model."""
        if self.carried:
            return CarriedObjective(model, self.settings.smoothing)
        return WindowObjective(model, self.settings.smoothing, self.settings.consistency)

    def task(self, model: nn.Module) -> Task:
        """A completer."""
        tokenizer = self.prepared.tokenizer
        return fitting(model, self.made_from, tokenizer.special, tokenizer=tokenizer, record=self.record)

    def judged(self) -> Sequence[Batch | Window]:
        """The text to judge by, every id of it once, in windows that each go on after the one before where the model
        does."""
        text, length, most = self.prepared.validation, self.windows.length, self.settings.validation.most
        if self.carried:
            rows = max(1, min(self.windows.rows, len(text.stream) // (STREAM * length)))
            feed = ContinuousFeed(Streams(text, length=length, rows=rows))
            return [feed.at(step) for step in range(min(feed.steps, -(-most // rows)))]
        windows = FilledWindows(Windows(text, length))
        last = min(windows.windows.count, most)
        return [windows(np.arange(first, min(first + self.windows.rows, last)), 0)
                for first in range(0, last, self.windows.rows)]

    def complete(self, task: Task) -> None:
        """There is nothing to choose."""

    def validate(self, task: Task) -> Verdict:
        """The loss of the text to judge by, and how the model goes on with some of it."""
        assert isinstance(task, Completer)
        sums, objective = Sums(task.device), self.objective(task.model)
        with evaluating(objective):
            for batch in self.judged():
                sums.add(objective(batch.to(task.device)))
            return Verdict({"loss": sums.loss}, tuple(self._examples(task)))

    def _examples(self, task: Completer) -> Iterator[Example]:
        """Prompts at equal distances, what follows them, and what the model makes of them."""
        ids, decode = self.prepared.validation.stream, self.prepared.tokenizer.decode
        count = min(SHOWN, (len(ids) if self.room is None else min(self.room, len(ids))) // 2)
        many = self.settings.validation.shown if count else 0
        places = [number * (len(ids) - 2 * count) // many for number in range(many)]
        prompts = [ids[place:place + count].tolist() for place in places]
        for place, prompt, made in zip(places, prompts, task.complete_ids(prompts, limit=count) if many else [],
                                       strict=True):
            yield Example(decode(prompt), decode(ids[place + count:place + 2 * count].tolist()), decode(made[0].ids))


class WindowObjective(ReadingObjective):
    """The loss of a window that is read by itself, wherever it comes from."""

    def forward(self, batch: Batch | Window) -> Any:
        """The sums over the labels."""
        return super().forward(batch.batch if isinstance(batch, Window) else batch)
