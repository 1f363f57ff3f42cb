"""Training a translation model: from files of sentence pairs to batches, a loss, and BLEU and chrF.

    survey_pairs(data, validation, config)       statistics of the files, with the data filters applied
    prepare_pairs(survey, tokenizer, place)      a tokenizer, trained once, and all pairs as ids on disk
    TranslationTask(prepared, config, settings)  batches, loss and validation

Without validation data, pairs whose source has a small hash are held out, so that all pairs with the same source are on
the same side of the split, whatever their order.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from regard import config
from regard import config as configs
from regard.data import doctor
from regard.data import store as stores
from regard.data.batches.batch import Batch, BoundaryIds, SamplingReader, SequenceReader, ShiftedCollator, pad_sequences
from regard.data.batches.feed import BatchConfig, PlanFeed, batch_feed
from regard.data.doctor import DoctorReport
from regard.data.filters import filter_pairs
from regard.data.sources import formats
from regard.data.sources.text import DataError, SentencePair
from regard.data.store import PairStore, Ragged
from regard.data.tokenizer.interface import PairTokenizer
from regard.data.tokenizer.training import TokenizerConfig
from regard.models.build import ModelConfig
from regard.tasks.evaluation import corpus_scores, translation_loss
from regard.tasks.load import make_task
from regard.tasks.task import Task
from regard.tasks.translator import Translator
from regard.tokens import AnyTokens, PackedTokens, Tokens
from regard.toml import TomlDocument
from regard.training import defaults as choices
from regard.training.config import DataConfig, TrainingConfig
from regard.training.defaults import Default, DeviceProperties, lookup
from regard.training.logging import ValidationExample
from regard.training.loss import Loss, rdrop_loss, token_loss
from regard.training.tasks import common as paths
from regard.training.tasks.common import load_or_train_pair_tokenizer
from regard.training.tasks.interface import Objective, TrainingRequest, ValidationResult

PAIRS_PER_BLOCK = 1024
"""Pairs that are encoded in one go."""
VALIDATION_ROWS = 64
"""Pairs of a batch to judge by."""
MIN_HASHED_SPLIT = 500
"""Pairs that a share may be left to chance of."""


@dataclass(frozen=True)
class TranslationSurvey:
    """What is in the files."""

    pairs: formats.PairCorpus
    validation: formats.PairCorpus | None
    found: DoctorReport
    config: DataConfig
    files: dict[str, str]
    """The sha256 of every file by its name, without its folder."""
    reading: dict[str, str | None]
    """How the files were asked to be read."""
    limit: int = 0
    """Sources with a hash below this are held out. With 0 none is: the model is judged by what it learns from, where
    no validation data is given."""

    @property
    def warnings(self) -> list[str]:
        """What a person should know of the data."""
        dropped = self.found.dropped
        if not dropped.total:
            return self.found.warnings()
        skipped = f"Skipped {dropped.total:,} of {self.found.read:,} pairs: {dropped.describe(self.found.filters)}."
        return [skipped, *self.found.warnings()]

    def training(self) -> Iterator[SentencePair]:
        """The pairs to learn from, in their order."""
        limit = self.limit
        return (pair for pair in self.kept() if limit == 0 or _hash_source(pair.source) >= limit)

    def judged(self, most: int) -> list[SentencePair]:
        """The pairs to judge by, at most so many."""
        if self.validation is not None:
            return list(islice(filter_pairs(self.validation, self.config.filters), most))
        limit = self.limit
        return list(islice((pair for pair in self.kept() if limit == 0 or _hash_source(pair.source) < limit), most))

    def kept(self) -> Iterator[SentencePair]:
        """All pairs but those that are left out, validation data not among them."""
        return filter_pairs(self.pairs, self.config.filters)


def survey_pairs(data: Sequence[str], validation: Sequence[str], config: DataConfig, *, source: str | None = None,
           target: str | None = None, format: str | None = None,
           counted: Callable[[Iterable[SentencePair]], Iterable[SentencePair]] = iter) -> TranslationSurvey:
    """Read all pairs once.

    Args:
        counted: passes the pairs on, and may count them to show that something happens.
    """
    paths.open_inputs((*data, *validation))
    skipped = doctor.SkippedEntries()
    pairs = formats.read_pairs(data, source=source, target=target, format=format, skipped=skipped)
    held = formats.read_pairs(validation, source=source, target=target, format=format) if validation else None
    found = doctor.check_corpus(counted(pairs), config.filters, validation=held, skipped=skipped)
    if not found.kept:
        raise DataError(f"{', '.join(data)}: " + " ".join(found.warnings()) + " There is nothing to train on.")
    if found.overlap is not None and not found.overlap.pairs:
        raise DataError(f"{', '.join(validation)}: No pair of it is kept: there is nothing to judge by.")
    reading = {"source": source, "target": target, "format": format}
    return TranslationSurvey(pairs, held, found, config, paths.file_digests((*data, *validation)), reading)


@dataclass(frozen=True)
class PreparedTranslation:
    """Pairs as ids."""

    survey: TranslationSurvey
    tokenizer: PairTokenizer
    store: PairStore
    texts: PairStore | None
    """The texts themselves, where they are cut anew in every epoch."""
    notes: tuple[str, ...]


def prepare_pairs(survey: TranslationSurvey, config: TokenizerConfig, place: Path, *, sampled: bool = False,
            tokenizer: PairTokenizer | None = None) -> PreparedTranslation:
    """Train the tokenizer, or read the one that was trained before, and encode all pairs.

    Args:
        place: a folder for tokenizer and ids, to be found again.
        sampled: whether the texts are wanted too.
        tokenizer: one that is there already, in the place of a new one.
    """
    notes: list[str] = []
    if tokenizer is None:
        sides = (lambda: (pair.source for pair in survey.training()),
                 lambda: (pair.target for pair in survey.training()))
        trained = load_or_train_pair_tokenizer(place, sides, config, joint=survey.config.joint_tokenizer, data=list(survey.files.values()),
                              settings=_store_settings(survey))
        tokenizer, notes = trained.tokenizer, [*trained.notes]
    key = stores.store_key(list(survey.files.values()), tokenizer.sha256, _store_settings(survey))
    opened = stores.open_or_make_pairs(place / "ids", key, lambda: _encode_pairs(survey, tokenizer),
                                       vocabularies=(tokenizer.source.size, tokenizer.target.size))
    texts = None
    if sampled:
        texts = stores.open_or_make_pairs(place / "texts", key, lambda: _encode_bytes(survey), vocabularies=(256, 256)).store
    return PreparedTranslation(survey, tokenizer, opened.store, texts, (*notes, *opened.notes))


class TranslationTask:
    """The work of translation."""

    notes: tuple[str, ...] = ()

    def __init__(self, prepared: PreparedTranslation, made_from: ModelConfig, settings: TrainingConfig,
                 record: dict[str, Any] | None = None) -> None:
        self.prepared, self.made_from, self.settings, self.record = prepared, made_from, settings, record
        judged = prepared.survey.judged(settings.validation.max_examples)
        self.sources, self.targets = [pair.source for pair in judged], [pair.target for pair in judged]

    def feed(self, rank: int, processes: int) -> PlanFeed:
        """The batches of one of so many processes."""
        return translation_feed(self.prepared, self.settings.batches, self.settings.seed, self.settings.subword_sampling, rank, processes)

    def objective(self, model: nn.Module) -> Objective:
        """The loss of a model."""
        return TranslationObjective(model, self.settings.label_smoothing, self.settings.rdrop)

    def task(self, model: nn.Module) -> Task:
        """A translator."""
        tokenizer = self.prepared.tokenizer
        return make_task(model, self.made_from, tokenizer.target.special, tokenizer=tokenizer, record=self.record)

    def judged(self) -> list[Batch]:
        """The pairs to judge by, in batches."""
        tokenizer = self.prepared.tokenizer
        sides = tokenizer.encode_sources(self.sources), tokenizer.encode_targets(self.targets)
        make = ShiftedCollator(lambda numbers, epoch: tuple(_ragged([side[n] for n in numbers]) for side in sides),
                       BoundaryIds.of(tokenizer.target.special), pad_sequences)
        order = sorted(range(len(self.sources)), key=lambda number: len(sides[1][number]))
        return [make(np.array(order[first:first + VALIDATION_ROWS], np.int64), 0) for first in range(0, len(order), VALIDATION_ROWS)]

    def complete(self, task: Task) -> None:
        """Choose where it reads which words belong together, if it looks at any."""
        assert isinstance(task, Translator)
        if task.attends:
            task.aligned_by = task.choose_alignment([*zip(self.sources, self.targets, strict=True)])

    def validate(self, task: Task) -> ValidationResult:
        """Loss, BLEU and chrF of greedy translations."""
        assert isinstance(task, Translator)
        loss = translation_loss(task, zip(self.sources, self.targets, strict=True)).mean
        if not math.isfinite(loss):  # nothing can be translated with such a model
            return ValidationResult({"loss": loss, "bleu": math.nan, "chrf": math.nan})
        made = [found.text for found in task.translate(self.sources, beams=1, length_penalty="none")]
        scores = corpus_scores(made, self.targets)
        shown = map(ValidationExample, self.sources, self.targets, made)
        return ValidationResult({"loss": loss, "bleu": scores.bleu, "chrf": scores.chrf},
                       tuple(shown)[:self.settings.validation.samples_shown])


def translation_feed(prepared: PreparedTranslation, config: BatchConfig, seed: int, sampling: float = 0.0, rank: int = 0,
         processes: int = 1) -> PlanFeed:
    """The batches of all pairs."""
    read: SequenceReader | None = None
    if sampling:
        assert prepared.texts is not None, "prepared with sampled=True"
        read = SamplingReader(prepared.texts, _samplers(prepared.tokenizer, sampling), seed)
    return batch_feed(prepared.store, prepared.tokenizer.target.special, config, seed=seed, rank=rank,
                      processes=processes, read=read)


class TranslationObjective(Objective):
    """The loss of an encoder-decoder on pairs; with a consistency, that of two passes which must agree."""

    def __init__(self, model: nn.Module, smoothing: float, consistency: float) -> None:
        super().__init__(model)
        self.smoothing, self.consistency = smoothing, consistency

    def forward(self, batch: Batch) -> Loss:
        """The sums over the labels."""
        assert batch.source is not None
        features: Callable[..., torch.Tensor] = self.model.features  # type: ignore[assignment]
        output: nn.Linear = self.model.output  # type: ignore[assignment]
        if not self.consistency or not self.training:
            return token_loss(features(batch.source, batch.inputs), output, batch.labels, self.smoothing)
        states = features(repeat_tokens(batch.source), repeat_tokens(batch.inputs))
        states = states.reshape(2, *batch.labels.shape, states.shape[-1])
        return rdrop_loss(states, output, batch.labels, self.smoothing, self.consistency)


def repeat_tokens(tokens: AnyTokens) -> AnyTokens:
    """All sequences, and behind them all of them again."""
    if isinstance(tokens, PackedTokens):
        return PackedTokens(tokens.ids.repeat(1, 2), tokens.lengths.repeat(2))
    lengths = None if tokens.lengths is None else tokens.lengths.repeat(2)
    return Tokens(tokens.ids.repeat(2, 1), lengths, tokens.side)


def _store_settings(survey: TranslationSurvey) -> dict[str, Any]:
    """All that the pairs to learn from depend on besides the files."""
    held = None if survey.validation is not None else survey.config.validation_fraction
    return {"filters": configs.to_tables(survey.config.filters), "held": held, "end": True,
            "files": len(survey.pairs.files), **survey.reading}  # behind so many comes validation data


def _encode_pairs(survey: TranslationSurvey, tokenizer: PairTokenizer) -> Iterator[tuple[list[int], list[int]]]:
    for block in _pair_blocks(survey.training()):
        yield from zip(tokenizer.encode_sources([pair.source for pair in block]),
                       tokenizer.encode_targets([pair.target for pair in block]), strict=True)


def _encode_bytes(survey: TranslationSurvey) -> Iterator[tuple[list[int], list[int]]]:
    return ((list(pair.source.encode()), list(pair.target.encode())) for pair in survey.training())


def _samplers(tokenizer: PairTokenizer, alpha: float) -> tuple[Callable[[str, int], Sequence[int]], ...]:
    end = list(tokenizer.source.special.end[:1])
    return (lambda text, seed: tokenizer.source.sample(text, alpha=alpha, seed=seed) + end,
            lambda text, seed: tokenizer.target.sample(text, alpha=alpha, seed=seed))


def _ragged(rows: list[list[int]]) -> Ragged:
    return Ragged(np.array([one for row in rows for one in row], np.int64), np.array([len(row) for row in rows]))


def _pair_blocks(pairs: Iterator[SentencePair]) -> Iterator[list[SentencePair]]:
    block: list[SentencePair] = []
    for pair in pairs:
        block.append(pair)
        if len(block) == PAIRS_PER_BLOCK:
            yield block
            block = []
    if block:
        yield block


def _hash_source(source: str) -> int:
    return int.from_bytes(hashlib.blake2b(source.encode(), digest_size=8).digest(), "big")


def configure_pairs(survey: TranslationSurvey, config: DataConfig) -> TranslationSurvey:
    """The survey, whose files are now read as the config says. Its filters are those it was made with."""
    asked = replace(survey, config=replace(config, filters=survey.config.filters))
    if survey.validation is not None or not config.validation_fraction:
        return asked
    if config.validation_fraction * survey.found.kept >= MIN_HASHED_SPLIT:
        return replace(asked, limit=round(config.validation_fraction * 2**64))
    # Of few pairs a share by chance may be none of them, or all: it is counted.
    different = sorted({_hash_source(pair.source) for pair in asked.kept()})
    count = min(len(different) - 1, max(1, round(config.validation_fraction * len(different))))
    return replace(asked, limit=different[count] if count else 0)


# ---- translation: The plan of translation: pairs, a joint tokenizer, an encoder-decoder.
#
# It only puts together what `works.translation` does and what `choices.translation` says.


class TranslationSetup:
    """From pairs of sentences to a translator."""

    recipes: tuple[str, ...] = (choices.TRANSLATION_RECIPE,)
    kinds: tuple[str, ...] = ("encoder-decoder", "seq2seq")
    open: Mapping[str, Any] = {"tokenizer.kind": "unigram", "model.source_vocab_size": 1000,
                               "model.target_vocab_size": 1000}
    scores: tuple[str, ...] = ("loss", "bleu", "chrf")
    unused: Mapping[str, Any] = {"training.windows": None, "training.masking": None, "training.random_shift": 0}

    def survey(self, request: TrainingRequest, config: DataConfig) -> TranslationSurvey:
        """What is in the files."""
        return survey_pairs(request.data, request.validation, config, source=request.source, target=request.target,
                            format=request.format, counted=request.counted)

    def before(self, survey: TranslationSurvey, asked: Mapping[str, Any]) -> list[Default]:
        """The choices about data and tokenizer."""
        count, given = survey.found.kept, survey.validation is not None
        held = 0.0 if given else choices.translation_validation_fraction(count)
        if given:
            reason = "validation data is given"
        elif held:
            reason = f"about {held * count:,.0f} pairs to judge by, whose sources are not learned from"
        else:
            reason = f"{count} pairs are too few: the model is judged by what it has learned"
        return [Default("data.validation_fraction", held, reason), *choices.translation_tokenizer(count, asked.get("tokenizer", {}))]

    def prepare(self, survey: TranslationSurvey, document: TomlDocument, place: Path) -> PreparedTranslation:
        """The pairs as ids."""
        data = config.read_config(DataConfig, document, ("data",))
        sampled = bool(document.tables.get("training", {}).get("subword_sampling", 0.0))
        kind = config.read_config(TokenizerConfig, document, ("tokenizer",))
        return prepare_pairs(configure_pairs(survey, data), kind, place, sampled=sampled)

    def named(self, prepared: PreparedTranslation, device: DeviceProperties, asked: str | None) -> Default:
        """The recipe of the model."""
        return choices.translation_recipe(len(prepared.store), device, asked)

    def after(self, prepared: PreparedTranslation, tables: Mapping[str, Any], device: DeviceProperties) -> list[Default]:
        """The choices about model and training."""
        pairs, kind = len(prepared.store), tables["model"]["kind"]
        mixers = [lookup(tables, f"model.{side}.mixer.kind") for side in ("encoder", "decoder")]
        tokens = sum(len(side.ids) for side in prepared.store.sides) + 2 * pairs
        reason = "the size of the tokenizer"
        return [Default("model.source_vocab_size", prepared.tokenizer.source.size, reason),
                Default("model.target_vocab_size", prepared.tokenizer.target.size, reason),
                *([] if prepared.tokenizer.joint or kind != "encoder-decoder" else
                  [Default("model.share_embeddings", False, "each side has its own tokenizer")]),
                *choices.translation_model(pairs, tables["model"]),
                *choices.translation_training(pairs, tokens, mixers, device, tables.get("training", {}))]

    def steps(self, prepared: PreparedTranslation, document: TomlDocument) -> int:
        """How many batches an epoch has."""
        batches = config.read_config(BatchConfig, document, ("training", "batches"))
        return translation_feed(prepared, batches, seed=1).steps

    def work(self, prepared: PreparedTranslation, made_from: ModelConfig, settings: TrainingConfig,
             record: dict[str, Any]) -> TranslationTask:
        """What the loop is given."""
        return TranslationTask(prepared, made_from, settings, record)
