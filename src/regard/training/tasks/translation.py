"""Training a translation model: from files of sentence pairs to batches, a loss, and BLEU and chrF.

    survey_pairs(data, validation, config)       statistics of the files, with the data filters applied
    prepare_pairs(survey, tokenizer, place)      a tokenizer, trained once, and all pairs as ids on disk
    TranslationTask(prepared, config, settings)  batches, loss and validation

Without validation data, pairs whose source has a small hash are held out, so that all pairs with the same source are on
the same side of the split, in any order.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from regard import config as configs
from regard.checks import plural
from regard.data import doctor
from regard.data import store as stores
from regard.data.batches.batch import Batch, BoundaryIds, SamplingReader, SequenceReader, ShiftedCollator, pad_sequences
from regard.data.batches.feed import BatchConfig, PlanFeed, batch_feed
from regard.data.doctor import DoctorReport
from regard.data.filters import filter_pairs
from regard.data.languages import LanguagePair
from regard.data.sources import formats
from regard.data.sources.text import DataError, SentencePair
from regard.data.store import PairStore, Ragged
from regard.data.tokenizer.interface import PairTokenizer
from regard.data.tokenizer.training import TokenizerConfig
from regard.models.build import ModelConfig
from regard.tasks.evaluation import score_details, translation_loss, translation_statistics
from regard.tasks.load import make_task
from regard.tasks.task import Task
from regard.tasks.translator import Translator
from regard.tokens import AnyTokens, PackedTokens, Tokens
from regard.toml import TomlDocument
from regard.training import defaults
from regard.training.config import DataConfig, TrainingConfig
from regard.training.defaults import Default, DeviceProperties, lookup
from regard.training.logging import ValidationExample
from regard.training.loss import Loss, rdrop_loss, token_loss
from regard.training.tasks.common import (
    FeatureObjective,
    file_digests,
    hash_bytes,
    in_blocks,
    load_or_train_pair_tokenizer,
    open_inputs,
    read_summary,
)
from regard.training.tasks.interface import (
    ProgressHook,
    TrainingRequest,
    TrainingTask,
    ValidationResult,
    held_out_reasons,
    short_sample,
    validation_fraction_default,
)

VALIDATION_ROWS = 64
"""Pairs of a validation batch."""
MIN_HASHED_SPLIT = 500
"""Validation pairs from which on a hash threshold alone makes a split of about the right size."""


@dataclass(frozen=True)
class TranslationSurvey:
    """Statistics of the files, and the pairs in them."""

    pairs: formats.PairCorpus
    validation: formats.PairCorpus | None
    report: DoctorReport
    config: DataConfig
    files: dict[str, str]
    """The sha256 of every file by its name, without its folder."""
    read_options: dict[str, str | None]
    """Source, target and format that the files are read with."""
    threshold: int = 0
    """Sources with a hash below this are held out. With 0 none is: without validation data the model is then validated
    on the training data."""

    @property
    def languages(self) -> LanguagePair | None:
        """The languages that the files tell; None if they tell none, or different ones."""
        found = {*self.pairs.log.languages.values()}
        return found.pop() if len(found) == 1 else None

    @property
    def counts(self) -> dict[str, int]:
        """The number of pairs, with those that are held out."""
        return {"pairs": self.report.kept}

    @property
    def warnings(self) -> list[str]:
        """What was read, and what the user should know about it."""
        report, dropped, found = self.report, self.report.dropped, self.languages
        source = self.config.source_lang or (found and found.source)
        target = self.config.target_lang or (found and found.target)
        notes = [read_summary(plural(report.read, "pair"), self.pairs.files,
                              f"{source}-{target}" if source and target else "", dropped.total,
                              dropped.describe(report.filters))]
        if report.skipped.counts:
            notes.append(f"Not read: {report.skipped.describe()}.")
        if self.validation is not None and report.overlap is not None:
            notes.append(read_summary(plural(report.overlap.pairs, "validation pair"), self.validation.files))
        return [*notes, *self.pairs.log.notes, *([] if self.validation is None else self.validation.log.notes),
                *self._language_notes(), *report.warnings()]

    def _language_notes(self) -> Iterator[str]:
        """Contradictions between the languages of files, or with those that the user has set."""
        told, chosen = self.pairs.log.languages, (self.config.source_lang, self.config.target_lang)
        for name, pair in told.items():
            if any(code is not None and code != own for code, own in zip(chosen, pair, strict=True)):
                using = LanguagePair(chosen[0] or pair.source, chosen[1] or pair.target)
                yield f"{name} looks like {pair}; using {using}, as you have set it."
        if len({*told.values()}) > 1 and None in chosen:
            files = ", ".join(f"{name} ({pair})" for name, pair in told.items())
            yield f"The files tell different languages: {files}. Set them with --languages, for example en-fr."

    def training_pairs(self) -> Iterator[SentencePair]:
        """The training pairs, in their order."""
        threshold = self.threshold
        return (pair for pair in self.kept_pairs() if threshold == 0 or _hash_source(pair) >= threshold)

    def validation_pairs(self, limit: int) -> list[SentencePair]:
        """The first validation pairs, at most `limit`."""
        if self.validation is not None:
            return list(islice(filter_pairs(self.validation, self.config.filters), limit))
        threshold = self.threshold
        held_out = (pair for pair in self.kept_pairs() if threshold == 0 or _hash_source(pair) < threshold)
        return list(islice(held_out, limit))

    def kept_pairs(self) -> Iterator[SentencePair]:
        """The pairs of the training files that the filters keep."""
        return filter_pairs(self.pairs, self.config.filters)


def _hash_source(pair: SentencePair) -> int:
    return hash_bytes(pair.source.encode())


def survey_pairs(data: Sequence[str], validation: Sequence[str], config: DataConfig, *, source: str | None = None,
                 target: str | None = None, format: str | None = None, progress: ProgressHook = iter
                 ) -> TranslationSurvey:
    """Read all pairs once."""
    open_inputs((*data, *validation))
    skipped = doctor.SkippedEntries()
    pairs = formats.read_pairs(data, source=source, target=target, format=format, skipped=skipped)
    other = formats.read_pairs(validation, source=source, target=target, format=format) if validation else None
    report = doctor.check_corpus(progress(pairs), config.filters, validation=other, skipped=skipped)
    if not report.kept:
        raise DataError(f"{', '.join(data)}: " + " ".join(report.warnings()) + " There is nothing to train on.")
    if report.overlap is not None and not report.overlap.pairs:
        raise DataError(f"{', '.join(validation)}: The filters keep none of these pairs, so there is no validation "
                        "data.")
    options = {"source": source, "target": target, "format": format}
    return TranslationSurvey(pairs, other, report, config, file_digests((*data, *validation)), options)


def split_pairs(survey: TranslationSurvey, config: DataConfig) -> TranslationSurvey:
    """The survey with the validation split of the config. Its filters stay those it was made with."""
    survey = replace(survey, config=replace(config, filters=survey.config.filters))
    if survey.validation is not None or not config.validation_fraction:
        return survey
    if config.validation_fraction * survey.report.kept >= MIN_HASHED_SPLIT:
        return replace(survey, threshold=round(config.validation_fraction * 2**64))
    # A threshold for few pairs could hold out none of them, or all: the distinct sources are counted.
    distinct = sorted({_hash_source(pair) for pair in survey.kept_pairs()})
    count = min(len(distinct) - 1, max(1, round(config.validation_fraction * len(distinct))))
    return replace(survey, threshold=distinct[count] if count else 0)


@dataclass(frozen=True)
class PreparedTranslation:
    """Sentence pairs as ids."""

    survey: TranslationSurvey
    tokenizer: PairTokenizer
    store: PairStore
    texts: PairStore | None
    """The texts as bytes, for subword sampling."""
    notes: tuple[str, ...]


def prepare_pairs(survey: TranslationSurvey, config: TokenizerConfig, place: Path, *,
                  sampled: bool = False) -> PreparedTranslation:
    """Train the tokenizer, or load the one trained before, and write all pairs as ids.

    Args:
        place: the folder for tokenizer and ids.
        sampled: whether to store the texts too, for subword sampling.
    """
    data = list(survey.files.values())
    held = None if survey.validation is not None else survey.config.validation_fraction
    settings = {"filters": configs.to_tables(survey.config.filters), "held": held, "end": True,
                "files": len(survey.pairs.files), **survey.read_options}  # the files after these are validation data
    sides = (lambda: (pair.source for pair in survey.training_pairs()),
             lambda: (pair.target for pair in survey.training_pairs()))
    trained = load_or_train_pair_tokenizer(place, sides, config, joint=survey.config.joint_tokenizer, data=data,
                                           settings=settings)
    tokenizer = trained.tokenizer
    key = stores.store_key(data, tokenizer.sha256, settings)
    opened = stores.open_or_make_pairs(place / "ids", key, lambda: _encode_pairs(survey, tokenizer),
                                       vocabularies=(tokenizer.source.size, tokenizer.target.size))
    texts = None
    if sampled:
        texts = stores.open_or_make_pairs(place / "texts", key, lambda: _encode_bytes(survey),
                                          vocabularies=(256, 256)).store
    return PreparedTranslation(survey, tokenizer, opened.store, texts, (*trained.notes, *opened.notes))


def _encode_pairs(survey: TranslationSurvey, tokenizer: PairTokenizer) -> Iterator[tuple[list[int], list[int]]]:
    for block in in_blocks(survey.training_pairs()):
        yield from zip(tokenizer.encode_sources([pair.source for pair in block]),
                       tokenizer.encode_targets([pair.target for pair in block]), strict=True)


def _encode_bytes(survey: TranslationSurvey) -> Iterator[tuple[list[int], list[int]]]:
    return ((list(pair.source.encode()), list(pair.target.encode())) for pair in survey.training_pairs())


def translation_feed(prepared: PreparedTranslation, config: BatchConfig, seed: int, sampling: float = 0.0,
                     rank: int = 0, processes: int = 1) -> PlanFeed:
    """The batches of all training pairs."""
    read: SequenceReader | None = None
    if sampling:
        assert prepared.texts is not None, "prepared with sampled=True"
        read = SamplingReader(prepared.texts, _samplers(prepared.tokenizer, sampling), seed)
    return batch_feed(prepared.store, prepared.tokenizer.target.special, config, seed=seed, rank=rank,
                      processes=processes, read=read)


def _samplers(tokenizer: PairTokenizer, alpha: float) -> tuple[Callable[[str, int], Sequence[int]], ...]:
    end = list(tokenizer.source.special.end[:1])
    return (lambda text, seed: tokenizer.source.sample(text, alpha=alpha, seed=seed) + end,
            lambda text, seed: tokenizer.target.sample(text, alpha=alpha, seed=seed))


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
        tokenizer = self.prepared.tokenizer
        sides = tokenizer.encode_sources(self.sources), tokenizer.encode_targets(self.targets)
        collate = ShiftedCollator(lambda numbers, epoch: tuple(_ragged([side[n] for n in numbers]) for side in sides),
                                  BoundaryIds.of(tokenizer.target.special), pad_sequences)
        order = sorted(range(len(self.sources)), key=lambda number: len(sides[1][number]))
        return [collate(np.array(block, np.int64), 0) for block in in_blocks(order, VALIDATION_ROWS)]

    def finalize(self, task: Task) -> None:
        """Choose the attention that alignments are read from, if the model has any."""
        assert isinstance(task, Translator)
        if task.attends:
            task.aligned_by = task.choose_alignment([*zip(self.sources, self.targets, strict=True)])

    def sample_input(self) -> str | None:
        """A short source."""
        return short_sample(self.sources)

    def try_validation(self, task: Task, examples: int) -> float:
        """Translate some sources. An untrained model would not stop: translations are as long as the mean target."""
        assert isinstance(task, Translator)
        stride = max(1, len(self.sources) // examples)
        sources, targets = self.sources[::stride], self.targets[::stride]
        if not sources:
            return 0.0
        translation_loss(task, zip(sources, targets, strict=True))
        ids = self.prepared.tokenizer.encode_targets(targets)
        task.translate(sources, beams=1, length_penalty="none", max_length=1 + sum(map(len, ids)) // len(ids))
        return len(sources) / len(self.sources)

    def validate(self, task: Task) -> ValidationResult:
        """Loss, BLEU and chrF of greedy translations."""
        assert isinstance(task, Translator)
        loss = translation_loss(task, zip(self.sources, self.targets, strict=True)).mean
        if not math.isfinite(loss):  # such a model cannot translate
            return ValidationResult({"loss": loss, "bleu": math.nan, "chrf": math.nan})
        outputs = [found.text for found in task.translate(self.sources, beams=1, length_penalty="none")]
        statistics = translation_statistics(outputs, self.targets)
        scores = statistics.scores()
        examples = tuple(map(ValidationExample, self.sources, self.targets, outputs))
        return ValidationResult({"loss": loss, "bleu": scores.bleu, "chrf": scores.chrf},
                                examples[:self.settings.validation.samples_shown],
                                lambda: score_details(statistics, self.sources, outputs, self.targets))


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
        return survey_pairs(request.data, request.validation, config, source=request.source, target=request.target,
                            format=request.format, progress=request.progress)

    def data_defaults(self, survey: TranslationSurvey, requested: Mapping[str, Any]) -> list[Default]:
        count, given = survey.report.kept, survey.validation is not None
        fraction = 0.0 if given else defaults.translation_validation_fraction(count)
        split = validation_fraction_default(given, fraction, *held_out_reasons(fraction, count, "pair"))
        languages = [] if survey.languages is None else [
            Default(f"data.{side}_lang", code, "from the names or contents of the data files")
            for side, code in survey.languages._asdict().items()]
        return [split, *languages, *defaults.translation_tokenizer(count, requested.get("tokenizer", {}))]

    def prepare(self, survey: TranslationSurvey, document: TomlDocument, place: Path) -> PreparedTranslation:
        survey = split_pairs(survey, configs.read_config(DataConfig, document, ("data",)))
        sampled = bool(document.tables.get("training", {}).get("subword_sampling", 0.0))
        tokenizer = configs.read_config(TokenizerConfig, document, ("tokenizer",))
        return prepare_pairs(survey, tokenizer, place, sampled=sampled)

    def recipe_default(self, prepared: PreparedTranslation, device: DeviceProperties, requested: str | None) -> Default:
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
                *defaults.translation_model(pairs, tables["model"]),
                *defaults.translation_training(pairs, tokens, mixers, device, tables.get("training", {}))]

    def steps_per_epoch(self, prepared: PreparedTranslation, document: TomlDocument) -> int:
        batches = configs.read_config(BatchConfig, document, ("training", "batches"))
        return translation_feed(prepared, batches, seed=1).steps

    def build(self, prepared: PreparedTranslation, model_config: ModelConfig, settings: TrainingConfig,
              record: dict[str, Any]) -> TranslationTask:
        return TranslationTask(prepared, model_config, settings, record)
