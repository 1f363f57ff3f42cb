"""Training a masked language model: from files of texts, one a line, to batches, a loss, and an accuracy.

    survey_sentences(data, validation, config)       statistics of the files, with the data filters applied
    prepare_sentences(survey, tokenizer, place)      a tokenizer, trained once, and all texts as ids on disk
    MaskedTask(prepared, config, settings)           batches, loss and validation

Without validation data, some texts are held out by a hash. Training texts are masked differently in every epoch,
validation texts always in the same way.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from regard import checks, config
from regard import config as configs
from regard.data import filters as seen
from regard.data import store as stores
from regard.data.batches.batch import (
    LAYOUTS,
    Batch,
    FittedCollator,
    MaskedCollator,
    MaskingConfig,
    StoredReader,
    batch_by_length,
    pad_sequences,
)
from regard.data.batches.feed import BatchConfig, BatchMaker, PlanFeed, plan_from_config
from regard.data.batches.plan import ExampleNumbers
from regard.data.filters import FilterConfig, HashSet, is_blank
from regard.data.sources.text import DataError, InputFile, read_lines
from regard.data.store import TextStore
from regard.data.tokenizer.interface import Tokenizer
from regard.data.tokenizer.training import TokenizerConfig
from regard.models.build import ModelConfig
from regard.models.language import MaskedModel, MaskedModelConfig
from regard.tasks.filler import BLANK_TEXT, Filler
from regard.tasks.load import make_task
from regard.tasks.task import Task
from regard.toml import TomlDocument
from regard.training import defaults as choices
from regard.training.config import DataConfig, TrainingConfig
from regard.training.defaults import Default, DeviceProperties
from regard.training.logging import ValidationExample
from regard.training.tasks import common
from regard.training.tasks.common import (
    Counting,
    FeatureObjective,
    Hashes,
    MetricSums,
    SplitMask,
    evaluation_mode,
    file_digests,
    in_blocks,
    load_or_train_tokenizer,
    max_positions,
    open_inputs,
    refuse_sampling,
    text_lengths,
    truncate_reader,
    truncate_shapes,
    truncation_note,
)
from regard.training.tasks.interface import Objective, TrainingRequest, ValidationResult, validation_fraction_default


@dataclass(frozen=True)
class FilteredLines:
    """The lines of files, but for those that are left out."""

    inputs: tuple[InputFile, ...]
    filters: FilterConfig

    def __iter__(self) -> Iterator[str]:
        return self.kept(Counter(), iter)

    def kept(self, dropped: Counter[str], counted: Counting) -> Iterator[str]:
        """The texts; those that are left out are counted."""
        before = HashSet()
        for text in counted(line for input in self.inputs for line in read_lines(input)):
            reason = self._reason(text, before)
            if reason is None:
                yield text
            else:
                dropped[reason] += 1

    def _reason(self, text: str, before: HashSet) -> str | None:
        filters = self.filters
        if is_blank(text):  # there is nothing to learn from it, whatever is asked
            return "empty"
        if "too_long" in filters.drop and (len(text) > filters.max_characters
                                           or len(text.split()) > filters.max_words):
            return "too_long"
        if "duplicate" in filters.drop and not before.add(seen.hash_texts(text)):
            return "duplicate"
        return None


@dataclass(frozen=True)
class TextStatistics:
    """What was met in texts."""

    hashes: Hashes
    """Of each text that is kept."""
    characters: int
    distinct: frozenset[str]
    """The different characters."""
    longest: int
    """Characters of the longest text."""
    dropped: dict[str, int] = field(default_factory=dict)
    """How many texts are left out, by the reason."""

    @property
    def count(self) -> int:
        """How many texts are kept."""
        return len(self.hashes)


def read_statistics(texts: FilteredLines, counted: Counting) -> TextStatistics:
    """Read all texts once."""
    dropped, hashes, distinct, characters, longest = Counter[str](), array("Q"), set[str](), 0, 0
    for text in texts.kept(dropped, counted):
        hashes.append(seen.hash_texts(text))
        distinct.update(text)
        characters, longest = characters + len(text), max(longest, len(text))
    return TextStatistics(np.frombuffer(hashes, np.uint64) if hashes else np.zeros(0, np.uint64), characters,
                 frozenset(distinct), longest, dict(dropped))


# ---- masked: Learning to say what is hidden: from files of texts, one a line, to batches, a loss, and a score.
#
#     survey(data, validation, config)       what is in the files
#     prepare(survey, tokenizer, place)      a tokenizer, trained once, and all texts as ids on disk
#     Filling(prepared, config, settings)    the work
#
# Where no validation data is given some texts are held out, chosen by a hash, so that equal texts are all on one side.
# Texts are masked otherwise in every epoch; those that the model is judged by always in one way. It does not know the
# loop.

SENTENCES_PER_BLOCK = 1024
"""Texts that are encoded in one go."""
MAX_MASKING_SEEDS = 10_000
"""Ways to mask that are tried until one hides something to judge by."""


@dataclass(frozen=True)
class MaskedSurvey:
    """What is in the files."""

    files: dict[str, str]
    """The sha256 of every file by its name."""
    config: DataConfig
    texts: FilteredLines
    found: TextStatistics
    validation: FilteredLines | None
    given: TextStatistics | None
    """What was met in the validation data."""

    @cached_property
    def held(self) -> SplitMask:
        """For each text whether it is held out."""
        return common.select_validation(self.found.hashes, 0.0 if self.validation is not None else self.config.validation_fraction)

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


def survey_sentences(data: Sequence[str], validation: Sequence[str], config: DataConfig, *, counted: Counting = iter) -> MaskedSurvey:
    """Read all texts once.

    Args:
        counted: passes the lines on, and may count them to show that something happens.
    """
    texts = FilteredLines(open_inputs(data), config.filters)
    others = FilteredLines(open_inputs(validation), config.filters) if validation else None
    found, given = read_statistics(texts, counted), None if others is None else read_statistics(others, iter)
    for names, one, role in ((data, found, "learn from"), (validation, given, "judge by")):
        if one is not None and not one.count:
            raise DataError(f"{', '.join(names)}: There is not a single text to {role} in it. Give a file with some.")
    return MaskedSurvey(file_digests([*data, *validation]), config, texts, found, others, given)


def configure_sentences(survey: MaskedSurvey, config: DataConfig) -> MaskedSurvey:
    """The survey with another config, of the same filters."""
    return replace(survey, config=config)


def sentences_validation_fraction(survey: MaskedSurvey) -> float:
    """How much of the texts is best held out."""
    return 0.0 if survey.validation is not None else common.default_validation_fraction(survey.found.count)


@dataclass(frozen=True)
class PreparedMasked:
    """Texts as ids."""

    survey: MaskedSurvey
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
        return int(text_lengths(self.training).max())


def prepare_sentences(survey: MaskedSurvey, config: TokenizerConfig, place: Path, *, tokenizer: Tokenizer | None = None) -> PreparedMasked:
    """Train the tokenizer, or read the one that was trained before, and encode all texts.

    Args:
        place: a folder for tokenizer and ids, to be found again.
        tokenizer: one that is there already, in the place of a new one.
    """
    data = list(survey.files.values())
    settings = {"filters": configs.to_tables(survey.config.filters), "held": survey.config.validation_fraction,
                "given": survey.validation is not None}
    notes: list[str] = []
    if tokenizer is None:
        trained = load_or_train_tokenizer(place, survey.training, config, data=data, settings=settings)
        tokenizer, notes = trained.tokenizer, [*trained.notes]
    key = stores.store_key(data, tokenizer.sha256, settings)
    stored = []
    for name, texts in (("ids", survey.training), ("held", survey.judged)):
        opened = stores.open_or_make_texts(place / name, key, partial(_encode_sentences, tokenizer, texts),
                                           vocabulary=tokenizer.size)
        stored.append(opened.store)
        notes += opened.notes
    training, validation = stored
    return PreparedMasked(survey, tokenizer, training, validation, tuple(notes))


def _encode_sentences(tokenizer: Tokenizer, texts: Callable[[], Iterable[str]]) -> Iterator[list[int]]:
    for block in in_blocks(texts(), SENTENCES_PER_BLOCK):
        yield from tokenizer.encode_batch(block)


def masked_feed(prepared: PreparedMasked, config: BatchConfig, masking: MaskingConfig, seed: int, room: int | None = None,
         rank: int = 0, processes: int = 1) -> PlanFeed:
    """The batches of all texts, of which the first `room` ids are read."""
    special = prepared.tokenizer.special
    maker: BatchMaker = MaskedCollator(truncate_reader(StoredReader(prepared.training), room), special, prepared.vocabulary, masking,
                          LAYOUTS[config.layout], seed)
    plan = plan_from_config(prepared.training, config, seed=seed, extra=(0,), longest=room)
    if config.shapes == "few":  # those of packed batches are not of single texts, and count what is read
        known = plan.shapes if config.layout == "packed" else truncate_shapes(plan.shapes, room)
        maker = FittedCollator(maker, known, special.padding or 0)
    return PlanFeed(plan, maker, rank=rank, processes=processes, largest=plan.largest())


class MaskedTask:
    """The work of a masked model."""

    def __init__(self, prepared: PreparedMasked, made_from: ModelConfig, settings: TrainingConfig,
                 record: dict[str, Any] | None = None) -> None:
        if not isinstance(made_from, MaskedModelConfig):
            raise checks.wrong("model.kind", f'"{MaskedModelConfig.kind}", to say what is hidden', f'"{made_from.kind}"')
        if settings.masking is None or not settings.masking.mlm_probability:
            got = None if settings.masking is None else "one that hides nothing"
            raise checks.wrong("training.masking", "given, to hide some tokens", got)
        refuse_sampling(settings)
        self.prepared, self.made_from, self.settings, self.record = prepared, made_from, settings, record
        self.masking, self.room = settings.masking, max_positions(made_from)
        self.notes = truncation_note(prepared.training, self.room)
        self.numbers = np.arange(min(len(prepared.validation), settings.validation.max_examples))
        self.hidden = self._hidden()

    def feed(self, rank: int, processes: int) -> PlanFeed:
        """The batches of one of so many processes."""
        return masked_feed(self.prepared, self.settings.batches, self.masking, self.settings.seed, self.room, rank, processes)

    def objective(self, model: nn.Module) -> Objective:
        """The loss of a model."""
        return FeatureObjective(model, self.settings.label_smoothing, self.settings.rdrop)

    def task(self, model: nn.Module) -> Task:
        """A filler."""
        tokenizer = self.prepared.tokenizer
        return make_task(model, self.made_from, tokenizer.special, tokenizer=tokenizer, record=self.record)

    def judged(self) -> list[Batch]:
        """The texts to judge by, always masked in the same way."""
        return [self.hidden(numbers, 0) for numbers in self._batches()]

    def complete(self, task: Task) -> None:
        """There is nothing to choose."""

    def validate(self, task: Task) -> ValidationResult:
        """Loss and accuracy of hidden tokens, always the same ones, and what the model puts in some places."""
        model, sums = task.model, MetricSums(task.device)
        assert isinstance(task, Filler)
        assert isinstance(model, MaskedModel)
        with evaluation_mode(model):
            for batch in self.judged():
                batch = batch.to(task.device)
                sums.judge(model.features(batch.inputs), model.output, batch.labels)
            return ValidationResult({"loss": sums.loss, "accuracy": sums.accuracy}, tuple(self._examples(task)))

    def _batches(self) -> Iterator[ExampleNumbers]:
        """The numbers of the texts to judge by, some at a time."""
        long = text_lengths(self.prepared.validation)[self.numbers]
        return batch_by_length(long if self.room is None else np.minimum(long, self.room), self.settings.batches.max_tokens)

    def _hidden(self) -> MaskedCollator:
        """How the texts to judge by are masked: by the first seed that hides anything at all."""
        read, tokenizer = truncate_reader(StoredReader(self.prepared.validation), self.room), self.prepared.tokenizer
        ways = (MaskedCollator(read, tokenizer.special, tokenizer.size, self.masking, pad_sequences, seed) for seed in range(MAX_MASKING_SEEDS))
        found = next((way for way in ways if any(way(numbers, 0).tokens for numbers in self._batches())), None)
        if found is None:
            raise checks.wrong("training.masking.mlm_probability", "large enough to hide a token of the texts to judge by",
                               self.masking.mlm_probability)
        return found

    def _examples(self, task: Filler) -> Iterator[ValidationExample]:
        """Texts with one word hidden, that word, and what the model puts in its place."""
        tokenizer, mask = self.prepared.tokenizer, task.mask_id()
        for number in self.numbers[:self.settings.validation.samples_shown]:
            ids = self.prepared.validation[int(number)][:self.room].tolist()
            words = tokenizer.decoded_words(ids)
            if not words:
                continue
            word, text = words[len(words) // 2], tokenizer.decode(ids)
            inside = slice(word.first_token, word.last_token + 1)
            blanks = [*ids[:inside.start], *[mask] * (inside.stop - inside.start), *ids[inside.stop:]]
            (found,) = task.fill_ids([blanks], top_k=1)
            yield ValidationExample(f"{text[:word.start]}{BLANK_TEXT}{text[word.end:]}", text[word.start:word.end],
                          tokenizer.decode([guesses[0].id for guesses in found]).strip())


# ---- masked: The plan of masked models: texts, one a line, of which some words are hidden.
#
# It only puts together what `works.masked` does and what `choices.masked` says.


class MaskedSetup:
    """From texts to a model that fills in what is hidden."""

    recipes: tuple[str, ...] = (choices.MASKED_RECIPE,)
    kinds: tuple[str, ...] = ("masked",)
    open: Mapping[str, Any] = {"tokenizer.kind": "unigram", "model.vocab_size": 1000}
    scores: tuple[str, ...] = ("loss", "accuracy")
    unused: Mapping[str, Any] = {"training.windows": None, "training.random_shift": 0, "data.joint_tokenizer": True}

    def survey(self, request: TrainingRequest, config: DataConfig) -> MaskedSurvey:
        """What is in the files."""
        return survey_sentences(request.data, request.validation, config, counted=request.counted)

    def before(self, survey: MaskedSurvey, asked: Mapping[str, Any]) -> list[Default]:
        """The choices about data and tokenizer."""
        share, count = sentences_validation_fraction(survey), survey.found.count
        return [validation_fraction_default(survey.given is not None, share, f"about {share * count:,.0f} texts to judge by",
                     f"{count} texts are too few: the model is judged by what it has learned"),
                *choices.masked_tokenizer(count, asked.get("tokenizer", {}))]

    def prepare(self, survey: MaskedSurvey, document: TomlDocument, place: Path) -> PreparedMasked:
        """The texts as ids."""
        survey = configure_sentences(survey, config.read_config(DataConfig, document, ("data",)))
        return prepare_sentences(survey, config.read_config(TokenizerConfig, document, ("tokenizer",)), place)

    def named(self, prepared: PreparedMasked, device: DeviceProperties, asked: str | None) -> Default:
        """The recipe of the model."""
        return choices.masked_recipe(len(prepared.training), device, asked)

    def after(self, prepared: PreparedMasked, tables: Mapping[str, Any], device: DeviceProperties) -> list[Default]:
        """The choices about model and training."""
        return [Default("model.vocab_size", prepared.vocabulary, "the size of the tokenizer"),
                *choices.masked_training(len(prepared.training), prepared.tokens, device, tables.get("training", {}))]

    def steps(self, prepared: PreparedMasked, document: TomlDocument) -> int:
        """How many batches an epoch has."""
        batches = config.read_config(BatchConfig, document, ("training", "batches"))
        return masked_feed(prepared, batches, MaskingConfig(), seed=1).steps

    def work(self, prepared: PreparedMasked, made_from: ModelConfig, settings: TrainingConfig,
             record: dict[str, Any]) -> MaskedTask:
        """What the loop is given."""
        return MaskedTask(prepared, made_from, settings, record)
