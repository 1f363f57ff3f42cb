"""Training a tagger, which gives every token a label: batches, a loss, an accuracy and an F1.

    TokenLabelTask(prepared, config, settings)       batches, loss and validation
    TokenLabelSetup                                  from files to the task

`token_label_data` reads the data: TSV, CoNLL or JSONL. Without validation data, some sequences are held out by a hash.
F1 is that of spans for labels of an IOB scheme (conlleval's rule), and the mean over the labels for others.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from regard import checks
from regard import config as configs
from regard.data.batches.batch import (
    LAYOUTS,
    Batch,
    StoredReader,
    TokenLabelCollator,
    batch_by_length,
    pad_sequences,
)
from regard.data.batches.feed import BatchConfig, PlanFeed
from regard.data.sources.text import DataError
from regard.data.sources.token_labels import join_tokens
from regard.data.tokenizer.training import TokenizerConfig
from regard.data.tokenizer.units import TokenEncoder
from regard.models.build import ModelConfig
from regard.models.classification import Tagger, TaggerConfig
from regard.tasks.label_scores import LabelScores
from regard.tasks.labeller import Labeller
from regard.tasks.load import make_task
from regard.tasks.task import Task
from regard.tokens import IGNORED_LABEL
from regard.toml import TomlDocument
from regard.training import defaults
from regard.training.config import DataConfig, TrainingConfig
from regard.training.defaults import Default, DeviceProperties
from regard.training.logging import ValidationExample
from regard.training.starting_point import StartModel
from regard.training.tasks.common import (
    LabelledTask,
    MetricSums,
    default_validation_fraction,
    evaluation_mode,
    store_feed,
    text_lengths,
)
from regard.training.tasks.interface import (
    PAIR_KEYS,
    TRACK_KEYS,
    TaskSetup,
    TrainingRequest,
    ValidationResult,
    held_out_reasons,
    short_sample,
    validation_fraction_default,
)
from regard.training.tasks.start_checks import new_labels_note, text_notes
from regard.training.tasks.token_label_data import (
    PreparedTokenLabels,
    TokenLabelSurvey,
    prepare_sequences,
    survey_sequences,
)


def token_label_feed(prepared: PreparedTokenLabels, config: BatchConfig, seed: int, token_dropout: float = 0.0,
                     rank: int = 0, processes: int = 1) -> PlanFeed:
    """The batches of all training sequences."""
    special = prepared.tokenizer.special
    collate = TokenLabelCollator(StoredReader(prepared.training), StoredReader(prepared.training_labels), special,
                                 LAYOUTS[config.layout], token_dropout, seed)
    return store_feed(prepared.training, config, collate, special.padding or 0, seed, rank=rank, processes=processes)


class TokenLabelTask(LabelledTask):
    """Training of a tagger, validated by its loss, accuracy and F1."""

    name = "token classification"
    prepared: PreparedTokenLabels

    def __init__(self, prepared: PreparedTokenLabels, model_config: ModelConfig, settings: TrainingConfig,
                 record: dict[str, Any] | None = None) -> None:
        if not isinstance(model_config, TaggerConfig):
            raise checks.wrong("model.kind", f'"{TaggerConfig.kind}", for labels of tokens', f'"{model_config.kind}"')
        super().__init__(prepared, model_config, settings, record)

    def feed(self, rank: int, processes: int) -> PlanFeed:
        """The batches of this process."""
        settings = self.settings
        return token_label_feed(self.prepared, settings.batches, settings.seed, settings.token_dropout, rank, processes)

    def wrap(self, model: nn.Module) -> Task:
        """A Labeller."""
        tokenizer = self.prepared.tokenizer
        return make_task(model, self.model_config, tokenizer.special, tokenizer=tokenizer, labels=self.labels,
                         record=self.record)

    def validation_batches(self) -> list[Batch]:
        """The validation sequences in padded rows, the shortest first."""
        prepared = self.prepared
        lengths = text_lengths(prepared.validation)[:self.settings.validation.max_examples]
        collate = TokenLabelCollator(StoredReader(prepared.validation), StoredReader(prepared.validation_labels),
                                     prepared.tokenizer.special, pad_sequences)
        return [collate(numbers, 0) for numbers in batch_by_length(lengths, self.settings.batches.max_tokens)]

    def sample_input(self) -> str | None:
        """A short text."""
        return short_sample(self._text(number) for number in range(len(self.prepared.validation)))

    def validate(self, task: Task) -> ValidationResult:
        """Loss, accuracy and F1, and predictions for the first sequences."""
        assert isinstance(task, Labeller)
        model, sums = task.model, MetricSums(task.device)
        assert isinstance(model, Tagger)
        scores, examples = LabelScores(self.labels), dict[int, ValidationExample]()
        with evaluation_mode(model):
            for batch in self.validation_batches():
                batch, numbers = batch.to(task.device), batch.numbers
                features = model.features(batch.inputs)
                sums.evaluate(features, model.output, batch.labels)
                predicted = model.output(features).argmax(-1)
                for number, row, expected in zip(numbers.tolist(), *(part.cpu().numpy() for part in
                                                                     (predicted, batch.labels)), strict=True):
                    counted = expected != IGNORED_LABEL
                    scores.add(expected[counted], row[counted])
                    if number < self.settings.validation.samples_shown:
                        examples[number] = ValidationExample(self._text(number), self._joined(expected[counted]),
                                                             self._joined(row[counted]))
        return ValidationResult({"loss": sums.loss, "accuracy": sums.accuracy, "f1": scores.f1},
                                tuple(examples[number] for number in sorted(examples)))

    def _text(self, number: int) -> str:
        return self.prepared.tokenizer.decode(self.prepared.validation[number].tolist())

    def _joined(self, labels: np.ndarray) -> str:
        names = [self.labels[label] for label in labels.tolist()]
        return join_tokens(names, "character" if max(map(len, self.labels)) == 1 else "word")


def fit_survey(start: StartModel, survey: TokenLabelSurvey, request: TrainingRequest) -> TokenLabelSurvey:
    """The survey of data for fine-tuning: checked against the start model, with its labels if it knows all of these."""
    try:
        TokenEncoder(start.tokenizer, survey.unit)  # refuses subwords for characters
    except ValueError as error:
        raise DataError(f"{', '.join(request.data)} has a label for every {survey.unit}, which {start.name} cannot "
                        f"read: {error}") from error
    note = new_labels_note(start, survey.statistics.labels)
    if start.labels and note is None:
        survey = replace(survey, statistics=replace(survey.statistics, labels=start.labels))
    notes = text_notes(start, (sequence.text(survey.unit) for sequence in survey.sequences), request.data)
    return replace(survey, notes=notes if note is None else (note, *notes))


class TokenLabelSetup(TaskSetup):
    """From labelled sequences to a `TokenLabelTask`; see `TaskSetup` for the methods."""

    recipes: tuple[str, ...] = (defaults.TAGGER_RECIPE, defaults.CPU_TAGGER_RECIPE)
    model_kinds: tuple[str, ...] = ("tagger",)
    data_dependent: Mapping[str, Any] = {"tokenizer.kind": "characters", "model.num_labels": 2,
                                         "model.vocab_size": 1000}
    scores: tuple[str, ...] = ("loss", "accuracy", "f1")
    unused: Mapping[str, Any] = {"training.windows": None, "training.masking": None, "training.random_shift": 0,
                                 **PAIR_KEYS, **TRACK_KEYS}

    def survey(self, request: TrainingRequest, config: DataConfig) -> TokenLabelSurvey:
        survey = survey_sequences(request, config)
        return survey if self.start is None else fit_survey(self.start, survey, request)

    def data_defaults(self, survey: TokenLabelSurvey, requested: Mapping[str, Any]) -> list[Default]:
        given = survey.validation is not None
        fraction = 0.0 if given else default_validation_fraction(survey.count)
        found = [validation_fraction_default(given, fraction, *held_out_reasons(fraction, survey.count, "sequence")),
                 Default("data.label_unit", survey.unit, f"every {survey.unit} has a label in the data")]
        if survey.unit == "word":
            split = survey.statistics.split_punctuation
            found.append(Default("data.split_punctuation", split, "punctuation marks are words of their own in the data"
                                 if split else "punctuation marks are parts of words in the data"))
        if self.start is not None:
            return [*found, *self.start.data_defaults()]
        return [*found, *defaults.labelling_tokenizer(survey.count, survey.unit, requested.get("tokenizer", {}))]

    def prepare(self, survey: TokenLabelSurvey, document: TomlDocument, place: Path) -> PreparedTokenLabels:
        survey = replace(survey, config=configs.read_config(DataConfig, document, ("data",)))
        tokenizer = None if self.start is not None else configs.read_config(TokenizerConfig, document, ("tokenizer",))
        return prepare_sequences(survey, tokenizer, place, self.start)

    def recipe_default(self, prepared: PreparedTokenLabels, device: DeviceProperties, requested: str | None) -> Default:
        return defaults.tagger_recipe(prepared.tokens, device, requested)

    def training_defaults(self, prepared: PreparedTokenLabels, tables: Mapping[str, Any],
                          device: DeviceProperties) -> list[Default]:
        requested, count = tables.get("training", {}), len(prepared.training)
        labels = Default("model.num_labels", len(prepared.labels), "number of labels in the data")
        scheme = LabelScores(prepared.labels).has_spans
        training = defaults.labelling_training(count, prepared.tokens, scheme, device, requested)
        if self.start is not None:
            width = tables["model"]["width"]
            data = defaults.FinetuningData(count, prepared.tokens, width, len(prepared.validation), "sequence",
                                           **defaults.labelling_finetuning(count, prepared.tokens, width, device))
            return [labels, *defaults.tagger_model(prepared.tokens, tables["model"]),
                    *defaults.finetuning_training(training, data, device, requested)]
        return [labels, Default("model.vocab_size", prepared.vocabulary, "size of the tokenizer"),
                *defaults.tagger_model(prepared.tokens, tables.get("model", {})), *training]

    def steps_per_epoch(self, prepared: PreparedTokenLabels, document: TomlDocument) -> int:
        return token_label_feed(prepared, configs.read_config(BatchConfig, document, ("training", "batches")), 1).steps

    def build(self, prepared: PreparedTokenLabels, model_config: ModelConfig, settings: TrainingConfig,
              record: dict[str, Any]) -> TokenLabelTask:
        return TokenLabelTask(prepared, model_config, settings, record)
