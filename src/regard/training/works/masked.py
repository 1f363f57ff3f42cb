"""Learning to say what is hidden: from files of texts, one a line, to batches, a loss, and a score.

    survey(data, validation, config)       what is in the files
    prepare(survey, tokenizer, place)      a tokenizer, trained once, and all texts as ids on disk
    Filling(prepared, config, settings)    the work

Where no validation data is given some texts are held out, chosen by a hash, so that equal texts are all on one side.
Texts are masked otherwise in every epoch; those that the model is judged by always in one way. It does not know the
loop.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from regard import checks
from regard import config as configs
from regard.data import store as stores
from regard.data.batches.batch import LAYOUTS, Batch, Stored, padded
from regard.data.batches.buckets import Numbers
from regard.data.batches.config import BatchConfig, plan_of
from regard.data.batches.feed import Feed, Maker
from regard.data.batches.labelled import in_order
from regard.data.batches.masking import Masked, MaskingConfig
from regard.data.batches.shapes import Fitted
from regard.data.pair import DataError
from regard.data.store import TextStore
from regard.data.tokenizer.contract import Tokenizer
from regard.data.tokenizer.settings import TokenizerConfig
from regard.models.build import ModelConfig
from regard.models.masked import MaskedConfig, MaskedModel
from regard.tasks.blanks import SHOWN
from regard.tasks.loading import fitting
from regard.tasks.reading import Filler
from regard.tasks.task import Task
from regard.training.settings import DataConfig, TrainingConfig
from regard.training.work import Example, Objective, Verdict
from regard.training.works import splitting
from regard.training.works.files import blocks, digests, inputs
from regard.training.works.judging import Sums, evaluating
from regard.training.works.objectives import ReadingObjective
from regard.training.works.room import cut_note, lengths, positions, refuse_sampling, shapes, shortened
from regard.training.works.sentences import Counting, Found, Texts, look
from regard.training.works.splitting import Held
from regard.training.works.tokenizers import stored_one

BLOCK = 1024
"""Texts that are encoded in one go."""
SEEDS = 10_000
"""Ways to mask that are tried until one hides something to judge by."""


@dataclass(frozen=True)
class Survey:
    """What is in the files."""

    files: dict[str, str]
    """The sha256 of every file by its name."""
    config: DataConfig
    texts: Texts
    found: Found
    validation: Texts | None
    given: Found | None
    """What was met in the validation data."""

    @cached_property
    def held(self) -> Held:
        """For each text whether it is held out."""
        return splitting.held_out(self.found.hashes, 0.0 if self.validation is not None else self.config.held)

    def training(self) -> Iterator[str]:
        """The texts to learn from, in their order."""
        return compress(self.texts, ~self.held)

    def judged(self) -> Iterable[str]:
        """The texts to judge by: those given, those held out, or else those that are learned from."""
        if self.validation is not None:
            return self.validation
        return compress(self.texts, self.held) if self.held.any() else self.texts

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should know of the data."""
        told = []
        if self.found.dropped:
            reasons = ", ".join(f"{name} {many:,}" for name, many in self.found.dropped.items())
            total = sum(self.found.dropped.values())
            told.append(f"{total:,} of {total + self.found.count:,} texts are left out: {reasons}.")
        if self.given is not None:
            both = int(np.isin(self.given.hashes, self.found.hashes).sum())
            if both:
                told.append(f"{both:,} of {self.given.count:,} validation texts are in the training data too.")
        return tuple(told)


def survey(data: Sequence[str], validation: Sequence[str], config: DataConfig, *, counted: Counting = iter) -> Survey:
    """Read all texts once.

    Args:
        counted: passes the lines on, and may count them to show that something happens.
    """
    texts = Texts(inputs(data), config.filters)
    others = Texts(inputs(validation), config.filters) if validation else None
    found, given = look(texts, counted), None if others is None else look(others, iter)
    for names, one, role in ((data, found, "learn from"), (validation, given, "judge by")):
        if one is not None and not one.count:
            raise DataError(f"{', '.join(names)}: There is not a single text to {role} in it. Give a file with some.")
    return Survey(digests([*data, *validation]), config, texts, found, others, given)


def configured(survey: Survey, config: DataConfig) -> Survey:
    """The survey with another config, of the same filters."""
    return replace(survey, config=config)


def held_share(survey: Survey) -> float:
    """How much of the texts is best held out."""
    return 0.0 if survey.validation is not None else splitting.held_share(survey.found.count)


@dataclass(frozen=True)
class Prepared:
    """Texts as ids."""

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

    @property
    def longest(self) -> int:
        """Ids of the longest text."""
        return int(lengths(self.training).max())


def prepare(survey: Survey, config: TokenizerConfig, place: Path, *, tokenizer: Tokenizer | None = None) -> Prepared:
    """Train the tokenizer, or read the one that was trained before, and encode all texts.

    Args:
        place: a folder for tokenizer and ids, to be found again.
        tokenizer: one that is there already, in the place of a new one.
    """
    data = list(survey.files.values())
    settings = {"filters": configs.plain(survey.config.filters), "held": survey.config.held,
                "given": survey.validation is not None}
    notes: list[str] = []
    if tokenizer is None:
        trained = stored_one(place, survey.training, config, data=data, settings=settings)
        tokenizer, notes = trained.tokenizer, [*trained.notes]
    key = stores.store_key(data, tokenizer.sha256, settings)
    stored = []
    for name, texts in (("ids", survey.training), ("held", survey.judged)):
        opened = stores.open_or_make_texts(place / name, key, partial(_encoded, tokenizer, texts),
                                           vocabulary=tokenizer.size)
        stored.append(opened.store)
        notes += opened.notes
    training, validation = stored
    return Prepared(survey, tokenizer, training, validation, tuple(notes))


def _encoded(tokenizer: Tokenizer, texts: Callable[[], Iterable[str]]) -> Iterator[list[int]]:
    for block in blocks(texts(), BLOCK):
        yield from tokenizer.encode_many(block)


def feed(prepared: Prepared, config: BatchConfig, masking: MaskingConfig, seed: int, room: int | None = None,
         rank: int = 0, processes: int = 1) -> Feed:
    """The batches of all texts, of which the first `room` ids are read."""
    special = prepared.tokenizer.special
    maker: Maker = Masked(shortened(Stored(prepared.training), room), special, prepared.vocabulary, masking,
                          LAYOUTS[config.layout], seed)
    plan = plan_of(prepared.training, config, seed=seed, extra=(0,), longest=room)
    if config.shapes == "few":  # those of packed batches are not of single texts, and count what is read
        known = plan.shapes if config.layout == "packed" else shapes(plan.shapes, room)
        maker = Fitted(maker, known, special.padding or 0)
    return Feed(plan, maker, rank=rank, processes=processes, largest=plan.largest())


class Filling:
    """The work of a masked model."""

    def __init__(self, prepared: Prepared, made_from: ModelConfig, settings: TrainingConfig,
                 record: dict[str, Any] | None = None) -> None:
        if not isinstance(made_from, MaskedConfig):
            raise checks.wrong("model.kind", f'"{MaskedConfig.kind}", to say what is hidden', f'"{made_from.kind}"')
        if settings.masking is None or not settings.masking.share:
            got = None if settings.masking is None else "one that hides nothing"
            raise checks.wrong("training.masking", "given, to hide some tokens", got)
        refuse_sampling(settings)
        self.prepared, self.made_from, self.settings, self.record = prepared, made_from, settings, record
        self.masking, self.room = settings.masking, positions(made_from)
        self.notes = cut_note(prepared.training, self.room)
        self.numbers = np.arange(min(len(prepared.validation), settings.validation.most))
        self.hidden = self._hidden()

    def feed(self, rank: int, processes: int) -> Feed:
        """The batches of one of so many processes."""
        return feed(self.prepared, self.settings.batches, self.masking, self.settings.seed, self.room, rank, processes)

    def objective(self, model: nn.Module) -> Objective:
        """The loss of a model."""
        return ReadingObjective(model, self.settings.smoothing, self.settings.consistency)

    def task(self, model: nn.Module) -> Task:
        """A filler."""
        tokenizer = self.prepared.tokenizer
        return fitting(model, self.made_from, tokenizer.special, tokenizer=tokenizer, record=self.record)

    def judged(self) -> list[Batch]:
        """The texts to judge by, always masked in the same way."""
        return [self.hidden(numbers, 0) for numbers in self._batches()]

    def complete(self, task: Task) -> None:
        """There is nothing to choose."""

    def validate(self, task: Task) -> Verdict:
        """Loss and accuracy of hidden tokens, always the same ones, and what the model puts in some places."""
        model, sums = task.model, Sums(task.device)
        assert isinstance(task, Filler)
        assert isinstance(model, MaskedModel)
        with evaluating(model):
            for batch in self.judged():
                batch = batch.to(task.device)
                sums.judge(model.features(batch.inputs), model.output, batch.labels)
            return Verdict({"loss": sums.loss, "accuracy": sums.accuracy}, tuple(self._examples(task)))

    def _batches(self) -> Iterator[Numbers]:
        """The numbers of the texts to judge by, some at a time."""
        long = lengths(self.prepared.validation)[self.numbers]
        return in_order(long if self.room is None else np.minimum(long, self.room), self.settings.batches.tokens)

    def _hidden(self) -> Masked:
        """How the texts to judge by are masked: by the first seed that hides anything at all."""
        read, tokenizer = shortened(Stored(self.prepared.validation), self.room), self.prepared.tokenizer
        ways = (Masked(read, tokenizer.special, tokenizer.size, self.masking, padded, seed) for seed in range(SEEDS))
        found = next((way for way in ways if any(way(numbers, 0).tokens for numbers in self._batches())), None)
        if found is None:
            raise checks.wrong("training.masking.share", "large enough to hide a token of the texts to judge by",
                               self.masking.share)
        return found

    def _examples(self, task: Filler) -> Iterator[Example]:
        """Texts with one word hidden, that word, and what the model puts in its place."""
        tokenizer, mask = self.prepared.tokenizer, task.mask()
        for number in self.numbers[:self.settings.validation.shown]:
            ids = self.prepared.validation[int(number)][:self.room].tolist()
            words = tokenizer.decoded_words(ids)
            if not words:
                continue
            word, text = words[len(words) // 2], tokenizer.decode(ids)
            inside = slice(word.first_token, word.last_token + 1)
            blanks = [*ids[:inside.start], *[mask] * (inside.stop - inside.start), *ids[inside.stop:]]
            (found,) = task.fill_ids([blanks], count=1)
            yield Example(f"{text[:word.start]}{SHOWN}{text[word.end:]}", text[word.start:word.end],
                          tokenizer.decode([guesses[0].id for guesses in found]).strip())
