"""Training a translation model: from files of sentence pairs to batches, a loss, and BLEU and chrF.

    TranslationTask(prepared, config, settings)  batches, loss and validation
    TranslationSetup()                           defaults that depend on the data, and the way from files to the task

Which pairs are trained on and which are held out is decided in `regard.training.tasks.sentence_pairs`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from regard import config as configs
from regard.data.batches.batch import Batch, BoundaryIds, ShiftedCollator, pad_sequences
from regard.data.batches.feed import BatchConfig, PlanFeed
from regard.data.store import Ragged
from regard.data.tokenizer.training import TokenizerConfig
from regard.models.build import ModelConfig
from regard.tasks.evaluation import TokenLoss, corpus_scores, translation_loss
from regard.tasks.load import make_task
from regard.tasks.task import Task
from regard.tasks.translator import Translation, Translator
from regard.tokens import AnyTokens, PackedTokens, Tokens
from regard.toml import TomlDocument
from regard.training import defaults
from regard.training.config import DataConfig, TrainingConfig
from regard.training.defaults import Default, DeviceProperties, lookup
from regard.training.logging import ValidationExample
from regard.training.loss import Loss, rdrop_loss, token_loss
from regard.training.tasks.common import FeatureObjective, file_digests, in_blocks
from regard.training.tasks.interface import (
    TrainingRequest,
    TrainingTask,
    ValidationResult,
    held_out_reasons,
    short_sample,
    validation_fraction_default,
)
from regard.training.tasks.sentence_pairs import (
    PreparedTranslation,
    TranslationSurvey,
    prepare_pairs,
    split_pairs,
    survey_pairs,
    translation_feed,
    with_back_translations,
)

VALIDATION_ROWS = 64
"""Pairs of a validation batch."""


class TranslationObjective(FeatureObjective):
    """The loss of an encoder-decoder on sentence pairs; with R-Drop both passes run as one batch of twice the size."""

    def forward(self, batch: Batch) -> Loss:
        """The sums over the labels."""
        assert batch.source is not None
        features: Callable[..., torch.Tensor] = self.model.features  # type: ignore[assignment]
        output: nn.Linear = self.model.output  # type: ignore[assignment]
        if not self.rdrop or not self.training:
            return token_loss(features(batch.source, batch.inputs), output, batch.labels, self.label_smoothing)
        states = features(repeat_tokens(batch.source), repeat_tokens(batch.inputs))
        states = states.reshape(2, *batch.labels.shape, states.shape[-1])
        return rdrop_loss(states, output, batch.labels, self.label_smoothing, self.rdrop)


def repeat_tokens(tokens: AnyTokens) -> AnyTokens:
    """All sequences twice, one copy after the other."""
    if isinstance(tokens, PackedTokens):
        return PackedTokens(tokens.ids.repeat(1, 2), tokens.lengths.repeat(2))
    lengths = None if tokens.lengths is None else tokens.lengths.repeat(2)
    return Tokens(tokens.ids.repeat(2, 1), lengths, tokens.side)


class TranslationTask(TrainingTask):
    """Training of an encoder-decoder on sentence pairs, validated by greedy translation."""

    name = "translation"
    prepared: PreparedTranslation

    def __init__(self, prepared: PreparedTranslation, model_config: ModelConfig, settings: TrainingConfig,
                 record: dict[str, Any] | None = None) -> None:
        super().__init__(prepared, model_config, settings, record)
        pairs = prepared.survey.validation_pairs(settings.validation.max_examples)
        self.sources, self.targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
        self.validation_parts = [pair.part for pair in pairs]
        self.validation_count = len(pairs)

    def feed(self, rank: int, processes: int) -> PlanFeed:
        """The batches of this process."""
        settings = self.settings
        return translation_feed(self.prepared, settings.batches, settings.seed, settings.subword_sampling, rank,
                                processes)

    def objective(self, model: nn.Module) -> TranslationObjective:
        """The model with its loss."""
        return TranslationObjective(model, self.settings.label_smoothing, self.settings.rdrop)

    def wrap(self, model: nn.Module) -> Task:
        """A Translator."""
        tokenizer = self.prepared.tokenizer
        return make_task(model, self.model_config, tokenizer.target.special, tokenizer=tokenizer, record=self.record)

    def validation_batches(self) -> list[Batch]:
        """The validation pairs, the shortest targets first."""
        sides = list[list[int]](), self.prepared.tokenizer.encode_targets(self.targets)
        for part, numbers in self._by_part(range(len(self.sources))):
            tokenizer = self.prepared.part_tokenizer(part)
            sides[0].extend(tokenizer.encode_sources([self.sources[number] for number in numbers]))
        collate = ShiftedCollator(lambda numbers, epoch: tuple(_ragged([side[n] for n in numbers]) for side in sides),
                                  BoundaryIds.of(self.prepared.tokenizer.target.special), pad_sequences)
        order = sorted(range(len(self.sources)), key=lambda number: len(sides[1][number]))
        return [collate(np.array(block, np.int64), 0) for block in in_blocks(order, VALIDATION_ROWS)]

    def _by_part(self, numbers: Iterable[int]) -> Iterator[tuple[int, list[int]]]:
        """Consecutive validation pairs of the same part."""
        return ((part, list(group)) for part, group in groupby(numbers, key=self.validation_parts.__getitem__))

    def _part_translator(self, task: Translator, part: int) -> Translator:
        """The translator with the control tokens of a part."""
        return task.with_controls(*self.prepared.survey.parts[part].controls)

    def finalize(self, task: Task) -> None:
        """Choose the attention that alignments are read from, if the model has any."""
        assert isinstance(task, Translator)
        if task.attends:
            part, numbers = max(self._by_part(range(len(self.sources))), key=lambda group: len(group[1]))
            pairs = [(self.sources[number], self.targets[number]) for number in numbers]
            task.aligned_by = self._part_translator(task, part).choose_alignment(pairs)

    def sample_input(self) -> str | None:
        """A short source."""
        return short_sample(self.sources)

    def try_validation(self, task: Task, examples: int) -> float:
        """Translate some sources. An untrained model would not stop: translations are as long as the mean target."""
        assert isinstance(task, Translator)
        if not self.sources:
            return 0.0
        numbers = range(0, len(self.sources), max(1, len(self.sources) // examples))
        self._loss(task, numbers)
        ids = self.prepared.tokenizer.encode_targets([self.targets[number] for number in numbers])
        self._translate(task, numbers, 1 + sum(map(len, ids)) // len(ids))
        return len(numbers) / len(self.sources)

    def _loss(self, task: Translator, numbers: Iterable[int]) -> float:
        """The mean loss of validation pairs."""
        losses = [translation_loss(self._part_translator(task, part), ((self.sources[number], self.targets[number])
                                                                       for number in some))
                  for part, some in self._by_part(numbers)]
        return TokenLoss(math.fsum(one.nll for one in losses), sum(one.tokens for one in losses)).mean

    def _translate(self, task: Translator, numbers: Iterable[int], max_length: int | None = None) -> list[str]:
        """Greedy translations of validation sources."""
        found: list[Translation] = []
        for part, some in self._by_part(numbers):
            found += self._part_translator(task, part).translate(
                [self.sources[number] for number in some], beams=1, length_penalty="none", max_length=max_length)
        return [one.text for one in found]

    def validate(self, task: Task) -> ValidationResult:
        """Loss, BLEU and chrF of greedy translations."""
        assert isinstance(task, Translator)
        everything = range(len(self.sources))
        loss = self._loss(task, everything)
        if not math.isfinite(loss):  # such a model cannot translate
            return ValidationResult({"loss": loss, "bleu": math.nan, "chrf": math.nan})
        outputs = self._translate(task, everything)
        scores = corpus_scores(outputs, self.targets)
        examples = tuple(map(ValidationExample, self.sources, self.targets, outputs))
        return ValidationResult({"loss": loss, "bleu": scores.bleu, "chrf": scores.chrf},
                                examples[:self.settings.validation.samples_shown])


def _ragged(rows: list[list[int]]) -> Ragged:
    return Ragged(np.array([one for row in rows for one in row], np.int64), np.array([len(row) for row in rows]))


class TranslationSetup:
    """From files of sentence pairs to a `TranslationTask`; see `TaskSetup` for the methods."""

    recipes: tuple[str, ...] = (defaults.TRANSLATION_RECIPE,)
    model_kinds: tuple[str, ...] = ("encoder-decoder", "seq2seq")
    data_dependent: Mapping[str, Any] = {"tokenizer.kind": "unigram", "model.source_vocab_size": 1000,
                                         "model.target_vocab_size": 1000}
    scores: tuple[str, ...] = ("loss", "bleu", "chrf")
    unused: Mapping[str, Any] = {"training.windows": None, "training.masking": None, "training.random_shift": 0}

    def survey(self, request: TrainingRequest, config: DataConfig) -> TranslationSurvey:
        survey = survey_pairs(request.data, request.validation, config, source=request.source, target=request.target,
                              format=request.format, progress=request.progress, reverse=request.reversed)
        if request.back_translated is not None:
            return with_back_translations(survey, request.back_translated)
        if request.distilled is not None:
            if request.distilled.languages is not None:
                survey.parts[0].pairs.log.languages[request.data[0]] = request.distilled.languages
            return replace(survey, distilled=True, files=file_digests((*request.distilled.files, *request.data)))
        return survey

    def data_defaults(self, survey: TranslationSurvey, requested: Mapping[str, Any]) -> list[Default]:
        count, given, splittable = survey.kept, survey.validation_given, survey.splittable
        fraction = 0.0 if given else defaults.translation_validation_fraction(splittable)
        split = validation_fraction_default(given, fraction, *held_out_reasons(fraction, splittable, "pair"))
        languages = [] if survey.languages is None else [
            Default(f"data.{side}_lang", code, "from the names or contents of the data files")
            for side, code in survey.languages._asdict().items()]
        return [split, *languages, *defaults.translation_tokenizer(
            count, requested.get("tokenizer", {}), distilled=survey.distilled)]

    def prepare(self, survey: TranslationSurvey, document: TomlDocument, place: Path) -> PreparedTranslation:
        survey = split_pairs(survey, configs.read_config(DataConfig, document, ("data",)))
        sampled = bool(document.tables.get("training", {}).get("subword_sampling", 0.0))
        tokenizer = configs.read_config(TokenizerConfig, document, ("tokenizer",))
        return prepare_pairs(survey, tokenizer, place, sampled=sampled)

    def recipe_default(self, prepared: PreparedTranslation, device: DeviceProperties, requested: str | None) -> Default:
        if prepared.survey.distilled and requested is None:
            return defaults.STUDENT_DEFAULT
        return defaults.translation_recipe(len(prepared.store), device, requested)

    def training_defaults(self, prepared: PreparedTranslation, tables: Mapping[str, Any],
                          device: DeviceProperties) -> list[Default]:
        pairs, kind = len(prepared.store), tables["model"]["kind"]
        mixers = [lookup(tables, f"model.{side}.mixer.kind") for side in ("encoder", "decoder")]
        tokens = sum(len(side.ids) for side in prepared.store.sides) + 2 * pairs
        reason = "size of the tokenizer"
        return [Default("model.source_vocab_size", prepared.tokenizer.source.size, reason),
                Default("model.target_vocab_size", prepared.tokenizer.target.size, reason),
                *([] if prepared.tokenizer.joint or kind != "encoder-decoder" else
                  [Default("model.share_embeddings", False, "each side has its own tokenizer")]),
                *defaults.translation_model(pairs, tables["model"], distilled=prepared.survey.distilled),
                *defaults.translation_training(pairs, tokens, mixers, device, tables.get("training", {}))]

    def steps_per_epoch(self, prepared: PreparedTranslation, document: TomlDocument) -> int:
        batches = configs.read_config(BatchConfig, document, ("training", "batches"))
        return translation_feed(prepared, batches, seed=1).steps

    def build(self, prepared: PreparedTranslation, model_config: ModelConfig, settings: TrainingConfig,
              record: dict[str, Any]) -> TranslationTask:
        return TranslationTask(prepared, model_config, settings, record)
