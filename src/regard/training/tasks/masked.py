"""Training a masked language model: from files of texts, one a line, to batches, a loss, and an accuracy.

    survey_sentences(data, validation, config)       statistics of the files, with the data filters applied
    prepare_sentences(survey, tokenizer, place)      a tokenizer, trained once, and all texts as ids on disk
    MaskedTask(prepared, config, settings)           batches, loss and validation

Without validation data, some texts are held out by a hash. Training texts are masked differently in every epoch,
validation texts always in the same way.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from regard import checks
from regard import config as configs
from regard.checks import plural
from regard.data.batches.batch import (
    LAYOUTS,
    Batch,
    MaskedCollator,
    MaskingConfig,
    StoredReader,
    batch_by_length,
    pad_sequences,
)
from regard.data.batches.feed import BatchConfig, PlanFeed
from regard.data.batches.plan import ExampleNumbers
from regard.data.filters import FilterConfig, HashSet, hash_texts, is_blank
from regard.data.sources.text import DataError, InputFile, read_lines
from regard.data.tokenizer.training import TokenizerConfig
from regard.models.build import ModelConfig
from regard.models.language import MaskedModel, MaskedModelConfig
from regard.tasks.filler import BLANK_TEXT, Filler
from regard.tasks.load import make_task
from regard.tasks.task import Task
from regard.toml import TomlDocument
from regard.training import defaults
from regard.training.config import DataConfig, TrainingConfig
from regard.training.defaults import Default, DeviceProperties
from regard.training.logging import ValidationExample
from regard.training.starting_point import StartModel
from regard.training.tasks.common import (
    FeatureTask,
    Hashes,
    MetricSums,
    PreparedTexts,
    SplitMask,
    default_validation_fraction,
    evaluation_mode,
    file_digests,
    max_positions,
    open_inputs,
    overlap_warnings,
    prepare_texts,
    read_summary,
    select_validation,
    store_feed,
    text_lengths,
    truncate_reader,
    truncation_note,
)
from regard.training.tasks.interface import (
    LABEL_KEYS,
    PAIR_KEYS,
    TRACK_KEYS,
    ProgressHook,
    TaskSetup,
    TrainingRequest,
    ValidationResult,
    held_out_reasons,
    short_sample,
    validation_fraction_default,
)
from regard.training.tasks.start_checks import start_encoding, text_notes

MAX_MASKING_SEEDS = 10_000
"""Seeds that are tried until one masks a token of the validation texts."""


@dataclass(frozen=True)
class FilteredLines:
    """The lines of files that the filters keep."""

    inputs: tuple[InputFile, ...]
    filters: FilterConfig

    def __iter__(self) -> Iterator[str]:
        return self.read(Counter(), iter)

    def read(self, dropped: Counter[str], progress: ProgressHook) -> Iterator[str]:
        """The lines; those that are dropped are counted by their reason."""
        seen = HashSet()
        for text in progress(line for file in self.inputs for line in read_lines(file)):
            reason = self._drop_reason(text, seen)
            if reason is None:
                yield text
            else:
                dropped[reason] += 1

    def _drop_reason(self, text: str, seen: HashSet) -> str | None:
        filters = self.filters
        if is_blank(text):  # regardless of the filters: there is nothing to learn from it
            return "empty"
        if "too_long" in filters.drop and (len(text) > filters.max_characters
                                           or len(text.split()) > filters.max_words):
            return "too_long"
        if "duplicate" in filters.drop and not seen.add(hash_texts(text)):
            return "duplicate"
        return None


@dataclass(frozen=True)
class TextStatistics:
    """Hashes of the texts that the filters keep, and the number of dropped ones by reason."""

    hashes: Hashes
    dropped: dict[str, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """The number of texts that are kept."""
        return len(self.hashes)


def read_statistics(texts: FilteredLines, progress: ProgressHook = iter) -> TextStatistics:
    """Read all texts once."""
    dropped, hashes = Counter[str](), array("Q")
    hashes.extend(hash_texts(text) for text in texts.read(dropped, progress))
    return TextStatistics(np.frombuffer(hashes, np.uint64) if hashes else np.zeros(0, np.uint64), dict(dropped))


@dataclass(frozen=True)
class MaskedSurvey:
    """Statistics of the files, and the texts in them."""

    files: dict[str, str]
    """The sha256 of every file by its name."""
    config: DataConfig
    texts: FilteredLines
    statistics: TextStatistics
    validation: FilteredLines | None
    validation_statistics: TextStatistics | None
    notes: tuple[str, ...] = ()
    """What the user should know about how the texts fit the model that is fine-tuned."""

    @cached_property
    def held_out(self) -> SplitMask:
        """For each text whether it is held out."""
        fraction = 0.0 if self.validation is not None else self.config.validation_fraction
        return select_validation(self.statistics.hashes, fraction)

    def training_texts(self) -> Iterator[str]:
        """The training texts, in their order."""
        return compress(self.texts, ~self.held_out)

    def validation_texts(self) -> Iterable[str]:
        """The validation files, the texts that are held out, or else the training texts."""
        if self.validation is not None:
            return self.validation
        return compress(self.texts, self.held_out) if self.held_out.any() else self.texts

    @property
    def counts(self) -> dict[str, int]:
        """The number of texts, with those that are held out."""
        return {"texts": self.statistics.count}

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was read, and what the user should know about it."""
        dropped = self.statistics.dropped
        total = sum(dropped.values())
        notes = [read_summary(plural(total + self.statistics.count, "text"), (file.path for file in self.texts.inputs),
                              "", total, _describe_dropped(dropped))]
        if self.validation is not None and self.validation_statistics is not None:
            notes.append(read_summary(plural(self.validation_statistics.count, "validation text"),
                                      (file.path for file in self.validation.inputs)))
            notes += overlap_warnings(self.validation_statistics.hashes, self.statistics.hashes, "texts")
        return (*notes, *self.notes)


def _describe_dropped(dropped: Mapping[str, int]) -> str:
    names = {"empty": ("empty", "empty"), "too_long": ("too long", "too long"),
             "duplicate": ("duplicate", "duplicates")}
    return ", ".join(plural(count, *names[reason]) for reason, count in dropped.items())


def survey_sentences(data: Sequence[str], validation: Sequence[str], config: DataConfig, *,
                     progress: ProgressHook = iter) -> MaskedSurvey:
    """Read all files once."""
    texts = FilteredLines(open_inputs(data), config.filters)
    other = FilteredLines(open_inputs(validation), config.filters) if validation else None
    statistics, others = read_statistics(texts, progress), None if other is None else read_statistics(other)
    for names, found, role in ((data, statistics, "training"), (validation, others, "validation")):
        if found is not None and not found.count:
            raise DataError(f"{', '.join(names)}: No {role} texts found: every line is empty or skipped.")
    return MaskedSurvey(file_digests([*data, *validation]), config, texts, statistics, other, others)


def prepare_sentences(survey: MaskedSurvey, config: TokenizerConfig | None, place: Path,
                      start: StartModel | None = None) -> PreparedTexts:
    """Train the tokenizer, or take that of the start model, and write all texts as ids into this folder."""
    settings = {"filters": configs.to_tables(survey.config.filters), "held": survey.config.validation_fraction,
                "given": survey.validation is not None}
    return prepare_texts(place, config, survey.training_texts, survey.validation_texts,
                         data=list(survey.files.values()), settings=settings, **start_encoding(start))


def masked_feed(prepared: PreparedTexts, config: BatchConfig, masking: MaskingConfig, seed: int,
                longest: int | None = None, rank: int = 0, processes: int = 1) -> PlanFeed:
    """The batches of all training texts, truncated to `longest` ids."""
    special = prepared.tokenizer.special
    collate = MaskedCollator(truncate_reader(StoredReader(prepared.training), longest), special, prepared.vocabulary,
                             masking, LAYOUTS[config.layout], seed)
    return store_feed(prepared.training, config, collate, special.padding or 0, seed, longest, rank, processes)


class MaskedTask(FeatureTask):
    """Training of a masked language model, validated on tokens that are always masked in the same way."""

    name = "masked language model"
    prepared: PreparedTexts

    def __init__(self, prepared: PreparedTexts, model_config: ModelConfig, settings: TrainingConfig,
                 record: dict[str, Any] | None = None) -> None:
        if not isinstance(model_config, MaskedModelConfig):
            raise checks.wrong("model.kind", f'"{MaskedModelConfig.kind}", for a masked language model',
                               f'"{model_config.kind}"')
        if settings.masking is None or not settings.masking.mlm_probability:
            raise checks.wrong("training.masking.mlm_probability", "above 0, so that there are tokens to predict",
                               "missing" if settings.masking is None else settings.masking.mlm_probability)
        super().__init__(prepared, model_config, settings, record)
        self.masking, self.longest = settings.masking, max_positions(model_config)
        self.notes = truncation_note(prepared.training, self.longest)
        self.numbers = np.arange(min(len(prepared.validation), settings.validation.max_examples))
        self.validation_count = len(self.numbers)
        self.validation_collator = self._validation_collator()

    def feed(self, rank: int, processes: int) -> PlanFeed:
        """The batches of this process."""
        settings = self.settings
        return masked_feed(self.prepared, settings.batches, self.masking, settings.seed, self.longest, rank, processes)

    def wrap(self, model: nn.Module) -> Task:
        """A Filler."""
        tokenizer = self.prepared.tokenizer
        return make_task(model, self.model_config, tokenizer.special, tokenizer=tokenizer, record=self.record)

    def validation_batches(self) -> list[Batch]:
        """The validation texts, always masked in the same way."""
        return [self.validation_collator(numbers, 0) for numbers in self._validation_numbers()]

    def sample_input(self) -> str | None:
        """A short text with a blank in the place of one word."""
        tokenizer = self.prepared.tokenizer
        rows = (self.prepared.validation[int(number)][:self.longest].tolist() for number in self.numbers)
        found = ((tokenizer.decode(ids), tokenizer.decoded_words(ids)) for ids in rows)
        middles = ((text, words[len(words) // 2]) for text, words in found if words)
        return short_sample(f"{text[:word.start]}{BLANK_TEXT}{text[word.end:]}" for text, word in middles)

    def validate(self, task: Task) -> ValidationResult:
        """Loss and accuracy of the masked tokens, and predictions of some masked words."""
        model, sums = task.model, MetricSums(task.device)
        assert isinstance(task, Filler)
        assert isinstance(model, MaskedModel)
        with evaluation_mode(model):
            for batch in self.validation_batches():
                batch = batch.to(task.device)
                sums.evaluate(model.features(batch.inputs), model.output, batch.labels)
            return ValidationResult({"loss": sums.loss, "accuracy": sums.accuracy}, tuple(self._examples(task)))

    def _validation_numbers(self) -> Iterator[ExampleNumbers]:
        """The numbers of the validation texts of each batch."""
        lengths = text_lengths(self.prepared.validation, self.longest)[self.numbers]
        return batch_by_length(lengths, self.settings.batches.max_tokens)

    def _validation_collator(self) -> MaskedCollator:
        """Masks the validation texts, by the first seed that masks any token."""
        read, tokenizer = truncate_reader(StoredReader(self.prepared.validation), self.longest), self.prepared.tokenizer
        for seed in range(MAX_MASKING_SEEDS):
            collator = MaskedCollator(read, tokenizer.special, tokenizer.size, self.masking, pad_sequences, seed)
            if any(collator(numbers, 0).tokens for numbers in self._validation_numbers()):
                return collator
        raise checks.wrong("training.masking.mlm_probability", "large enough to mask a token of the validation texts",
                           self.masking.mlm_probability)

    def _examples(self, task: Filler) -> Iterator[ValidationExample]:
        """Texts with one word masked, that word, and the prediction."""
        tokenizer, mask = self.prepared.tokenizer, task.mask_id()
        for number in self.numbers[:self.settings.validation.samples_shown]:
            ids = self.prepared.validation[int(number)][:self.longest].tolist()
            words = tokenizer.decoded_words(ids)
            if not words:
                continue
            word, text = words[len(words) // 2], tokenizer.decode(ids)
            inside = slice(word.first_token, word.last_token + 1)
            masked = [*ids[:inside.start], *[mask] * (inside.stop - inside.start), *ids[inside.stop:]]
            (found,) = task.fill_ids([masked], top_k=1)
            yield ValidationExample(f"{text[:word.start]}{BLANK_TEXT}{text[word.end:]}", text[word.start:word.end],
                                    tokenizer.decode([guesses[0].id for guesses in found]).strip())


class MaskedSetup(TaskSetup):
    """From files of texts to a `MaskedTask`; see `TaskSetup` for the methods."""

    recipes: tuple[str, ...] = (defaults.MASKED_RECIPE,)
    model_kinds: tuple[str, ...] = ("masked",)
    data_dependent: Mapping[str, Any] = {"tokenizer.kind": "unigram", "model.vocab_size": 1000}
    scores: tuple[str, ...] = ("loss", "accuracy")
    unused: Mapping[str, Any] = {"training.windows": None, "training.random_shift": 0, **PAIR_KEYS, **LABEL_KEYS,
                                 **TRACK_KEYS}

    def survey(self, request: TrainingRequest, config: DataConfig) -> MaskedSurvey:
        survey = survey_sentences(request.data, request.validation, config, progress=request.progress)
        return survey if self.start is None else replace(survey, notes=text_notes(self.start, survey.texts,
                                                                                  request.data))

    def data_defaults(self, survey: MaskedSurvey, requested: Mapping[str, Any]) -> list[Default]:
        count, given = survey.statistics.count, survey.validation is not None
        fraction = 0.0 if given else default_validation_fraction(count)
        return [validation_fraction_default(given, fraction, *held_out_reasons(fraction, count, "text")),
                *(defaults.masked_tokenizer(count, requested.get("tokenizer", {})) if self.start is None else
                  self.start.data_defaults())]

    def prepare(self, survey: MaskedSurvey, document: TomlDocument, place: Path) -> PreparedTexts:
        survey = replace(survey, config=configs.read_config(DataConfig, document, ("data",)))
        tokenizer = None if self.start is not None else configs.read_config(TokenizerConfig, document, ("tokenizer",))
        return prepare_sentences(survey, tokenizer, place, self.start)

    def recipe_default(self, prepared: PreparedTexts, device: DeviceProperties, requested: str | None) -> Default:
        return defaults.masked_recipe(len(prepared.training), device, requested)

    def training_defaults(self, prepared: PreparedTexts, tables: Mapping[str, Any],
                          device: DeviceProperties) -> list[Default]:
        requested, count = tables.get("training", {}), len(prepared.training)
        training = defaults.masked_training(count, prepared.tokens, device, requested)
        if self.start is not None:
            data = defaults.FinetuningData(count, prepared.tokens, tables["model"]["width"], len(prepared.validation),
                                           "text")
            return [*defaults.finetuning_training(training, data, device, requested)]
        return [Default("model.vocab_size", prepared.vocabulary, "size of the tokenizer"), *training]

    def steps_per_epoch(self, prepared: PreparedTexts, document: TomlDocument) -> int:
        batches = configs.read_config(BatchConfig, document, ("training", "batches"))
        return masked_feed(prepared, batches, MaskingConfig(), seed=1).steps

    def build(self, prepared: PreparedTexts, model_config: ModelConfig, settings: TrainingConfig,
              record: dict[str, Any]) -> MaskedTask:
        return MaskedTask(prepared, model_config, settings, record)
