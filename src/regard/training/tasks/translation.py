"""Training a translation model: from files of sentence pairs to batches, a loss, and BLEU and chrF.

    TranslationTask(prepared, config, settings)  batches, loss and validation
    TranslationSetup()                           defaults that depend on the data, and the way from files to the task

Which pairs are trained on and which are held out is decided in `regard.training.tasks.sentence_pairs`.
"""

import math
import operator
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from regard import config as configs
from regard.data.batches.batch import Batch, BoundaryIds, ShiftedCollator, pad_sequences
from regard.data.batches.feed import BatchConfig, PlanFeed
from regard.data.filters import filter_pairs
from regard.data.languages import target_controls
from regard.data.sources.formats import PairCorpus
from regard.data.sources.text import DataError
from regard.data.store import Ragged
from regard.data.tokenizer.interface import PairTokenizer
from regard.data.tokenizer.training import TokenizerConfig
from regard.models.build import ModelConfig
from regard.recurrence.cells import Cell
from regard.recurrence.lstmn import LSTMN
from regard.tasks.evaluation import (
    TokenLoss,
    TranslationStatistics,
    score_details,
    translation_loss,
    translation_statistics,
)
from regard.tasks.load import make_task
from regard.tasks.task import Task
from regard.tasks.translator import Translation, Translator
from regard.tokens import AnyTokens, PackedTokens, Tokens
from regard.toml import TomlDocument
from regard.training import defaults
from regard.training.config import GENERAL, DataConfig, TrainingConfig, part_score
from regard.training.defaults import MAX_GENERAL_EXAMPLES, Default, DeviceProperties, lookup
from regard.training.logging import ValidationExample
from regard.training.loss import Loss, SoftTargets, rdrop_loss, token_loss
from regard.training.starting_point import StartModel, tokenizer_defaults
from regard.training.tasks.common import FeatureObjective, in_blocks
from regard.training.tasks.directions import requested_directions
from regard.training.tasks.interface import (
    LABEL_KEYS,
    TRACK_KEYS,
    TaskSetup,
    TrainingRequest,
    TrainingTask,
    ValidationResult,
    held_out_reasons,
    short_sample,
    validation_fraction_default,
)
from regard.training.tasks.sentence_pairs import (
    DEFAULT_TEMPERATURE,
    MIXED,
    PreparedTranslation,
    TranslationSurvey,
    mix_pairs,
    mixed_rates,
    prepare_pairs,
    split_pairs,
    survey_directions,
    survey_pairs,
    translation_feed,
    with_back_translations,
    with_written_file,
)
from regard.training.tasks.start_checks import (
    OTHER_FILES_REMEDY,
    check_characters,
    check_direction,
    check_languages,
    check_positions,
    direction_controls,
)

VALIDATION_ROWS = 64
"""Pairs of a validation batch."""


class Teacher:
    """The model whose probabilities a student learns: it reads the same batches, without dropout and gradients.

    It is not a module: nothing of it is trained, wrapped for several processes, averaged or stored with the student.

    Args:
        share: the share of its probabilities in the loss.
    """

    def __init__(self, model: nn.Module, share: float) -> None:
        self.model, self.share = model.eval().requires_grad_(False), share
        recurrent = any(isinstance(module, Cell | LSTMN) for module in model.modules())
        self.dtype = torch.float32 if recurrent else None  # its states accumulate over many steps
        """The precision of its parameters; None for that of the student's."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "Teacher":
        """The teacher itself: the low-precision copy of a student shares it."""
        return self

    @torch.no_grad()
    def soft_targets(self, batch: Batch, dtype: torch.dtype) -> SoftTargets:
        """Its probabilities for the tokens of a batch.

        Args:
            dtype: that of the student's parameters. Autocast applies to both models.
        """
        features: Callable[..., torch.Tensor] = self.model.features  # type: ignore[assignment]
        output: nn.Linear = self.model.output  # type: ignore[assignment]
        if output.weight.dtype != (self.dtype or dtype):  # the first time; buffers stay: positions need their precision
            for parameter in self.model.parameters():
                parameter.data = parameter.data.to(self.dtype or dtype)
        return SoftTargets(features(batch.source, batch.inputs), output, self.share)


class TranslationObjective(FeatureObjective):
    """The loss of an encoder-decoder on sentence pairs; with R-Drop both passes run as one batch of twice the size.

    Args:
        teacher: the model whose probabilities are learned too; it reads each batch once.
    """

    def __init__(self, model: nn.Module, label_smoothing: float, rdrop: float, teacher: Teacher | None = None) -> None:
        super().__init__(model, label_smoothing, rdrop)
        self.teacher = teacher

    def forward(self, batch: Batch) -> Loss:
        """The sums over the labels."""
        assert batch.source is not None
        features: Callable[..., torch.Tensor] = self.model.features  # type: ignore[assignment]
        output: nn.Linear = self.model.output  # type: ignore[assignment]
        taught = None  # before the student reads the batch, so that only one of them holds activations
        if self.teacher is not None and self.training:
            taught = self.teacher.soft_targets(batch, output.weight.dtype)
        if not self.rdrop or not self.training:
            return token_loss(features(batch.source, batch.inputs), output, batch.labels, self.label_smoothing, taught)
        states = features(repeat_tokens(batch.source), repeat_tokens(batch.inputs))
        states = states.reshape(2, *batch.labels.shape, states.shape[-1])
        return rdrop_loss(states, output, batch.labels, self.label_smoothing, self.rdrop, taught)


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
        self.validation_count, parts = len(pairs), prepared.survey.parts
        counts = (len(prepared.store),) if prepared.rates is None else prepared.rates.counts
        self.training_count = sum(count for part, count in zip(parts, counts, strict=True) if part.validated)
        general = prepared.survey.general_pairs(min(settings.validation.max_examples, MAX_GENERAL_EXAMPLES))
        self.new_count = len(pairs)
        """The validation pairs from this one on are general data, which is scored apart."""
        self.sources += [pair.source for pair in general]
        self.targets += [pair.target for pair in general]
        self.validation_parts += [pair.part for pair in general]
        if prepared.survey.teacher is not None:
            self.frozen_parameters = prepared.survey.teacher.config.parameters()

    def feed(self, rank: int, processes: int) -> PlanFeed:
        """The batches of this process."""
        settings = self.settings
        return translation_feed(self.prepared, settings.batches, settings.seed, settings.subword_sampling, rank,
                                processes)

    def objective(self, model: nn.Module) -> TranslationObjective:
        """The model with its loss."""
        teacher, share = self.prepared.survey.teacher, self.settings.teacher_share
        return TranslationObjective(model, self.settings.label_smoothing, self.settings.rdrop,
                                    None if teacher is None or not share else Teacher(teacher.model, share))

    def wrap(self, model: nn.Module) -> Task:
        """A Translator."""
        tokenizer = self.prepared.tokenizer
        return make_task(model, self.model_config, tokenizer.target.special, tokenizer=tokenizer, record=self.record)

    def validation_batches(self) -> list[Batch]:
        """The validation pairs, the shortest targets first."""
        sides = list[list[int]](), self.prepared.tokenizer.encode_targets(self.targets[:self.new_count])
        for part, numbers in self._by_part(range(self.new_count)):
            tokenizer = self.prepared.part_tokenizer(part)
            sides[0].extend(tokenizer.encode_sources([self.sources[number] for number in numbers]))
        collate = ShiftedCollator(lambda numbers, epoch: tuple(_ragged([side[n] for n in numbers]) for side in sides),
                                  BoundaryIds.of(self.prepared.tokenizer.target.special), pad_sequences)
        order = sorted(range(self.new_count), key=lambda number: len(sides[1][number]))
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
            part, numbers = max(self._by_part(range(self.new_count)), key=lambda group: len(group[1]))
            pairs = [(self.sources[number], self.targets[number]) for number in numbers]
            task.aligned_by = self._part_translator(task, part).choose_alignment(pairs)

    def sample_input(self) -> str | None:
        """A short source."""
        return short_sample(self.sources)

    def sample_options(self) -> tuple[str, ...]:
        """The target language of the sample input."""
        directions, sample = self.prepared.survey.directions, self.sample_input()
        if not directions or sample is None:
            return ()
        part = next(part for part, source in zip(self.validation_parts, self.sources, strict=True)
                    if source.strip().startswith(sample))
        return "--to", directions[part].target

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
        """Loss, BLEU and chrF of greedy translations; those of several directions are means, and each is listed."""
        assert isinstance(task, Translator)
        scores, outputs, statistics = self._scores(task, range(self.new_count))
        general = range(self.new_count, len(self.sources))
        if general:
            scores |= {f"{GENERAL}{name}": value for name, value in self._scores(task, general)[0].items()}
        if not outputs:
            return ValidationResult(scores)
        sources, targets = self.sources[:self.new_count], self.targets[:self.new_count]
        return ValidationResult(scores, self._examples(outputs),
                                lambda: score_details(statistics, sources, outputs, targets))

    def _scores(self, task: Translator,
                numbers: range) -> tuple[dict[str, float], list[str], dict[str, TranslationStatistics]]:
        """The scores of some validation pairs, the translations, and their statistics for `score_details`.

        A model whose loss is not finite cannot translate.
        """
        scores = {"loss": self._loss(task, numbers), "bleu": math.nan, "chrf": math.nan}
        if not math.isfinite(scores["loss"]):
            return scores, [], {}
        outputs, parts = self._translate(task, numbers), dict[str, TranslationStatistics]()
        for part, some in self._by_part(numbers):
            parts[self.prepared.survey.parts[part].name] = translation_statistics(
                [outputs[number - numbers.start] for number in some], [self.targets[number] for number in some])
        found = {name: one.scores() for name, one in parts.items()}
        for metric in ("bleu", "chrf"):  # never over mixed languages: the mean of the parts
            scores[metric] = math.fsum(getattr(one, metric) for one in found.values()) / len(found)
        if len(parts) > 1:
            scores |= {part_score(metric, name): getattr(one, metric) for metric in ("bleu", "chrf")
                       for name, one in found.items()}
        return scores, outputs, {part_score("", name) if len(parts) > 1 else "": one for name, one in parts.items()}

    def _examples(self, outputs: list[str]) -> tuple[ValidationExample, ...]:
        """Examples to show, of every part in turn."""
        groups = [numbers for _, numbers in self._by_part(range(self.new_count))]
        turns = [number for some in zip_longest(*groups) for number in some if number is not None]
        return tuple(ValidationExample(self.sources[number], self.targets[number], outputs[number])
                     for number in turns[:self.settings.validation.samples_shown])


def fit_survey(start: StartModel, survey: TranslationSurvey, request: TrainingRequest) -> TranslationSurvey:
    """The survey of data for fine-tuning: checked against the start model, with the general data of the request."""
    config, first = survey.config, survey.parts[0]
    targets: list[str | None] = [pair.target for pair in survey.directions]
    if len(targets) > 1 and not target_controls(start.pair_tokenizer.source.controls):
        raise DataError(f"{start.name} translates in one direction, so it cannot start a model for several: its "
                        "tokenizer has no control tokens for languages. Give one direction, or train a new model.")
    if not targets:
        targets = [config.target_lang or (survey.languages and survey.languages.target)]
    survey = replace(survey, parts=tuple(
        replace(part, controls=direction_controls(start.pair_tokenizer, target, start.name))
        for part, target in zip(survey.parts, targets, strict=True)))
    notes = _check_files(start, survey, first.pairs, request)
    if request.mix or request.general_validation:
        if survey.directions:
            raise ValueError("General data cannot be mixed into the data of several directions. Give it as further "
                             "files of its directions.")
        survey = mix_pairs(survey, request.mix, request.general_validation, progress=request.progress)
    if not notes:  # else the model does not know the languages of the data, and is taught them
        mixed = [part.pairs for part in survey.parts if part.name == MIXED]
        notes = [note for pairs in (first.validation, *mixed, survey.general) if pairs is not None
                 for note in _check_files(start, survey, pairs, request, OTHER_FILES_REMEDY)]
    for side, tokenizer in (("source", start.pair_tokenizer.source), ("target", start.pair_tokenizer.target)):
        for part in survey.parts:
            texts = (getattr(part.oriented(pair), side) for pair in survey.kept_pairs(part))
            notes += filter(None, [check_characters(tokenizer, texts, _file_names(part.pairs), side)])
    return replace(survey, notes=tuple(notes))


def _check_files(start: StartModel, survey: TranslationSurvey, pairs: PairCorpus, request: TrainingRequest,
                 remedy: str = "") -> list[str]:
    """Compare the languages and the direction of some files with those of the start model; notes for the user."""
    config, told = survey.config, {*pairs.log.languages.values()}
    note = None
    if not survey.directions:
        note = check_languages(start, told.pop() if len(told) == 1 else None, (config.source_lang, config.target_lang),
                               _file_names(pairs), remedy)
    if note is None and not request.resume:
        note = check_direction(start, filter_pairs(pairs, config.filters), survey.parts[0].controls, _file_names(pairs),
                               remedy)
    return [] if note is None else [note]


def _file_names(pairs: PairCorpus) -> str:
    return ", ".join(os.path.basename(path) for path in pairs.files)


def _pair_tokenizer(teacher: Translator) -> PairTokenizer:
    assert isinstance(teacher.tokenizer, PairTokenizer), "checked when it was loaded"
    return teacher.tokenizer


def _ragged(rows: list[list[int]]) -> Ragged:
    return Ragged(np.array([one for row in rows for one in row], np.int64), np.array([len(row) for row in rows]))


class TranslationSetup(TaskSetup):
    """From files of sentence pairs to a `TranslationTask`; see `TaskSetup` for the methods."""

    recipes: tuple[str, ...] = (defaults.TRANSLATION_RECIPE,)
    model_kinds: tuple[str, ...] = ("encoder-decoder", "seq2seq")
    data_dependent: Mapping[str, Any] = {"tokenizer.kind": "unigram", "model.source_vocab_size": 1000,
                                         "model.target_vocab_size": 1000}
    scores: tuple[str, ...] = ("loss", "bleu", "chrf")
    unused: Mapping[str, Any] = {"training.windows": None, "training.masking": None, "training.random_shift": 0,
                                 **LABEL_KEYS, **TRACK_KEYS}

    def survey(self, request: TrainingRequest, config: DataConfig) -> TranslationSurvey:
        directions = requested_directions(request, config)
        if directions:
            survey = survey_directions(directions, config, source=request.source, target=request.target,
                                       format=request.format, progress=request.progress)
        else:
            survey = survey_pairs(request.data, request.validation, config, source=request.source,
                                  target=request.target, format=request.format, progress=request.progress,
                                  reverse=request.reversed)
        if self.start is not None:
            return fit_survey(self.start, survey, request)
        if request.back_translated is not None:
            return with_back_translations(survey, request.back_translated)
        if request.distilled is not None:
            if request.distilled.languages is not None:
                survey.parts[0].pairs.log.languages[request.data[0]] = request.distilled.languages
            return replace(with_written_file(survey, request.distilled), distilled=True,
                           teacher=request.distilled.teacher)
        return survey

    def data_defaults(self, survey: TranslationSurvey, requested: Mapping[str, Any]) -> list[Default]:
        given, splittable = survey.validation_given, survey.splittable
        fraction = 0.0 if given else (defaults.translation_validation_fraction if self.start is None else
                                      defaults.finetuning_validation_fraction)(splittable)
        split = validation_fraction_default(given, fraction, *held_out_reasons(fraction, splittable, "pair"))
        languages = [] if survey.languages is None or len(survey.directions) > 1 else [
            Default(f"data.{side}_lang", code, "from the names or contents of the data files")
            for side, code in survey.languages._asdict().items()]
        directions = [] if not survey.directions else [
            Default("data.directions", [*map(str, survey.directions)], "from the data"),
            Default("data.sampling_temperature", DEFAULT_TEMPERATURE, "more from small directions than their share")]
        if self.start is not None:
            joint = Default("data.joint_tokenizer", self.start.pair_tokenizer.joint, "the tokenizer of the start model")
            known = [] if languages or directions else [
                Default(f"data.{key}", code, "language of the start model") for key in ("source_lang", "target_lang")
                if (code := getattr(self.start.task, key)) is not None]
            mixed = [defaults.finetuning_mix_share()] if len(survey.parts) > 1 and not directions else []
            if not directions and isinstance(self.start.task, Translator) and self.start.task.directions:
                directions = [Default("data.directions", [*map(str, self.start.task.directions)],
                                      "directions of the start model")]
            return [split, *languages, *directions, *known, joint, *mixed, *self.start.data_defaults()]
        if survey.teacher is not None:
            reason = "the tokenizer of the teacher, whose probabilities are learned"
            return [split, *languages, Default("data.joint_tokenizer", _pair_tokenizer(survey.teacher).joint, reason),
                    *tokenizer_defaults(survey.teacher, reason)]
        return [split, *languages, *directions, *defaults.translation_tokenizer(
            survey.kept, requested.get("tokenizer", {}), distilled=survey.distilled)]

    def prepare(self, survey: TranslationSurvey, document: TomlDocument, place: Path) -> PreparedTranslation:
        data = configs.read_config(DataConfig, document, ("data",))
        survey = split_pairs(survey, data)
        sampled = bool(document.tables.get("training", {}).get("subword_sampling", 0.0))
        if self.start is not None:
            if data.mix_share is not None:
                survey = replace(survey, rates=partial(mixed_rates, share=data.mix_share))
            prepared = prepare_pairs(survey, None, place, sampled=sampled, tokenizer=self.start.pair_tokenizer)
            apart = survey.validation_pairs(sys.maxsize) if survey.threshold or survey.validation_given else []
            check_positions(self.start.task, "the start model", prepared.store,
                            [pair[:2] for pair in (*apart, *survey.general_pairs(sys.maxsize))])
            return prepared
        if survey.teacher is not None:
            prepared = prepare_pairs(survey, None, place, sampled=sampled, tokenizer=_pair_tokenizer(survey.teacher))
            check_positions(survey.teacher, "the teacher", prepared.store)
            return prepared
        tokenizer = configs.read_config(TokenizerConfig, document, ("tokenizer",))
        return prepare_pairs(survey, tokenizer, place, sampled=sampled)

    def recipe_default(self, prepared: PreparedTranslation, device: DeviceProperties, requested: str | None) -> Default:
        if prepared.survey.distilled and requested is None:
            return defaults.STUDENT_DEFAULT
        return defaults.translation_recipe(len(prepared.store), device, requested,
                                           directions=bool(prepared.survey.directions))

    def training_defaults(self, prepared: PreparedTranslation, tables: Mapping[str, Any],
                          device: DeviceProperties) -> list[Default]:
        if self.start is not None:
            return self._finetuning_defaults(self.start, prepared, tables, device)
        pairs, kind = len(prepared.store), tables["model"]["kind"]
        several = bool(prepared.survey.directions)
        largest = max(prepared.rates.counts) if several and prepared.rates is not None else pairs
        mixers = [lookup(tables, f"model.{side}.mixer.kind") for side in ("encoder", "decoder")]
        tokens = sum(len(side.ids) for side in prepared.store.sides) + 2 * pairs
        sizes, reason = (prepared.tokenizer.source.size, prepared.tokenizer.target.size), "size of the tokenizer"
        teacher, share = prepared.survey.teacher, list[Default]()
        if teacher is not None:  # an imported model may have more embeddings than its tokenizer has tokens
            taught = configs.to_tables(teacher.config)
            sizes, reason = (taught["source_vocab_size"], taught["target_vocab_size"]), "as the teacher"
            mixers += [lookup(taught, f"{side}.mixer.kind") for side in ("encoder", "decoder")]  # it reads the batches
            share.append(Default("training.teacher_share", defaults.TEACHER_SHARE, "share of the teacher in the loss"))
        return [Default("model.source_vocab_size", sizes[0], reason),
                Default("model.target_vocab_size", sizes[1], reason), *share,
                *([] if prepared.tokenizer.joint or kind != "encoder-decoder" else
                  [Default("model.share_embeddings", False, "each side has its own tokenizer")]),
                *defaults.translation_model(largest, tables["model"], distilled=prepared.survey.distilled),
                *defaults.translation_training(pairs, tokens, mixers, device, tables.get("training", {}),
                                               distilled=prepared.survey.distilled, directions=several,
                                               width=lookup(tables, "model.width"))]

    def _finetuning_defaults(self, start: StartModel, prepared: PreparedTranslation, tables: Mapping[str, Any],
                             device: DeviceProperties) -> list[Default]:
        rates, requested = prepared.rates, tables.get("training", {})
        pairs = len(prepared.store) if rates is None else rates.counts[0]
        drawn = len(prepared.store) if rates is None else sum(map(operator.mul, rates.counts, rates.rates))
        tokens = sum(len(side.ids) for side in prepared.store.sides) + 2 * len(prepared.store)
        mixers = [lookup(tables, f"model.{side}.mixer.kind") for side in ("encoder", "decoder")]
        scratch: Iterable[Default] = defaults.translation_training(pairs, tokens, mixers, device, requested)
        if not lookup(start.task.record, "training.rdrop", 0.0):  # its dropout may be too much for such a model
            scratch = (default for default in scratch if default.key != "training.rdrop")
        validated = len(prepared.survey.validation_pairs(defaults.MIN_SCORED_EXAMPLES))
        width = tables["model"]["width"]
        data = defaults.FinetuningData(pairs, tokens * drawn / len(prepared.store), width, validated, "pair",
                                       **defaults.translation_finetuning(pairs, drawn, width, device))
        return [*start.dropout_defaults(*defaults.finetuning_dropout(pairs)),
                *defaults.finetuning_training(scratch, data, device, requested)]

    def steps_per_epoch(self, prepared: PreparedTranslation, document: TomlDocument) -> int:
        batches = configs.read_config(BatchConfig, document, ("training", "batches"))
        return translation_feed(prepared, batches, seed=1).steps

    def build(self, prepared: PreparedTranslation, model_config: ModelConfig, settings: TrainingConfig,
              record: dict[str, Any]) -> TranslationTask:
        data = {**record["data"], **prepared.survey.record}
        record["data"] = {key: value for key, value in data.items() if value is not None}
        return TranslationTask(prepared, model_config, settings, record)
