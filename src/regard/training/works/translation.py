"""Learning to translate: from files of pairs to batches, a loss, and a score.

    survey(data, validation, config)       what is in the files, through the doctor's filters
    prepare(survey, tokenizer, place)      a tokenizer, trained once, and all pairs as ids on disk
    Translation(prepared, config, settings)      the work

Where no validation data is given some pairs are held out: those whose source has a small hash, so that pairs with the
same source are all on one side, whatever their order. It does not know the loop, nor how a model is made.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from regard import config as configs
from regard.data import store as stores
from regard.data.batches.batch import Batch, Ends, Reader, Sampled, Shifted, padded
from regard.data.batches.config import BatchConfig, batch_feed
from regard.data.batches.feed import Feed
from regard.data.doctor import report as doctor
from regard.data.doctor.filters import kept
from regard.data.doctor.report import Report
from regard.data.pair import DataError, Pair
from regard.data.sources import opening
from regard.data.store import PairStore, Ragged
from regard.data.tokenizer.pair import PairTokenizer
from regard.data.tokenizer.settings import TokenizerConfig
from regard.models.build import ModelConfig
from regard.models.contract import AnyTokens, PackedTokens, Tokens
from regard.tasks.loading import fitting
from regard.tasks.losses import mean_loss
from regard.tasks.scores import corpus_scores
from regard.tasks.task import Task
from regard.tasks.translating import Translator
from regard.training.consistency import agreement_loss
from regard.training.loss import Loss, token_loss
from regard.training.settings import DataConfig, TrainingConfig
from regard.training.work import Example, Objective, Verdict
from regard.training.works import files as paths
from regard.training.works.tokenizers import stored_pair

BLOCK = 1024
"""Pairs that are encoded in one go."""
ROWS = 64
"""Pairs of a batch to judge by."""
ENOUGH = 500
"""Pairs that a share may be left to chance of."""


@dataclass(frozen=True)
class Survey:
    """What is in the files."""

    pairs: opening.Pairs
    validation: opening.Pairs | None
    found: Report
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
        left = [f"{name} {count:,}" for name, count in dropped.counts.items() if count]
        told = [f"{dropped.total:,} of {self.found.read:,} pairs are left out: {', '.join(left)}."] if left else []
        return [*told, *self.found.warnings()]

    def training(self) -> Iterator[Pair]:
        """The pairs to learn from, in their order."""
        limit = self.limit
        return (pair for pair in self.kept() if limit == 0 or _hash(pair.source) >= limit)

    def judged(self, most: int) -> list[Pair]:
        """The pairs to judge by, at most so many."""
        if self.validation is not None:
            return list(islice(kept(self.validation, self.config.filters), most))
        limit = self.limit
        return list(islice((pair for pair in self.kept() if limit == 0 or _hash(pair.source) < limit), most))

    def kept(self) -> Iterator[Pair]:
        """All pairs but those that are left out, validation data not among them."""
        return kept(self.pairs, self.config.filters)


def survey(data: Sequence[str], validation: Sequence[str], config: DataConfig, *, source: str | None = None,
           target: str | None = None, format: str | None = None,
           counted: Callable[[Iterable[Pair]], Iterable[Pair]] = iter) -> Survey:
    """Read all pairs once.

    Args:
        counted: passes the pairs on, and may count them to show that something happens.
    """
    paths.inputs((*data, *validation))
    left_out = doctor.LeftOut()
    pairs = opening.pairs(data, source=source, target=target, format=format, left_out=left_out)
    held = opening.pairs(validation, source=source, target=target, format=format) if validation else None
    found = doctor.check(counted(pairs), config.filters, validation=held, left_out=left_out)
    if not found.kept:
        raise DataError(f"{', '.join(data)}: " + " ".join(found.warnings()) + " There is nothing to train on.")
    if found.overlap is not None and not found.overlap.pairs:
        raise DataError(f"{', '.join(validation)}: No pair of it is kept: there is nothing to judge by.")
    reading = {"source": source, "target": target, "format": format}
    return Survey(pairs, held, found, config, paths.digests((*data, *validation)), reading)


@dataclass(frozen=True)
class Prepared:
    """Pairs as ids."""

    survey: Survey
    tokenizer: PairTokenizer
    store: PairStore
    texts: PairStore | None
    """The texts themselves, where they are cut anew in every epoch."""
    notes: tuple[str, ...]


def prepare(survey: Survey, config: TokenizerConfig, place: Path, *, sampled: bool = False,
            tokenizer: PairTokenizer | None = None) -> Prepared:
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
        trained = stored_pair(place, sides, config, joint=survey.config.joint, data=list(survey.files.values()),
                              settings=_settings(survey))
        tokenizer, notes = trained.tokenizer, [*trained.notes]
    key = stores.store_key(list(survey.files.values()), tokenizer.sha256, _settings(survey))
    opened = stores.open_or_make_pairs(place / "ids", key, lambda: _encoded(survey, tokenizer),
                                       vocabularies=(tokenizer.source.size, tokenizer.target.size))
    texts = None
    if sampled:
        texts = stores.open_or_make_pairs(place / "texts", key, lambda: _bytes(survey), vocabularies=(256, 256)).store
    return Prepared(survey, tokenizer, opened.store, texts, (*notes, *opened.notes))


class Translation:
    """The work of translation."""

    notes: tuple[str, ...] = ()

    def __init__(self, prepared: Prepared, made_from: ModelConfig, settings: TrainingConfig,
                 record: dict[str, Any] | None = None) -> None:
        self.prepared, self.made_from, self.settings, self.record = prepared, made_from, settings, record
        judged = prepared.survey.judged(settings.validation.most)
        self.sources, self.targets = [pair.source for pair in judged], [pair.target for pair in judged]

    def feed(self, rank: int, processes: int) -> Feed:
        """The batches of one of so many processes."""
        return feed(self.prepared, self.settings.batches, self.settings.seed, self.settings.sampling, rank, processes)

    def objective(self, model: nn.Module) -> Objective:
        """The loss of a model."""
        return TranslationObjective(model, self.settings.smoothing, self.settings.consistency)

    def task(self, model: nn.Module) -> Task:
        """A translator."""
        tokenizer = self.prepared.tokenizer
        return fitting(model, self.made_from, tokenizer.target.special, tokenizer=tokenizer, record=self.record)

    def judged(self) -> list[Batch]:
        """The pairs to judge by, in batches."""
        tokenizer = self.prepared.tokenizer
        sides = tokenizer.source_ids(self.sources), tokenizer.target_ids(self.targets)
        make = Shifted(lambda numbers, epoch: tuple(_ragged([side[n] for n in numbers]) for side in sides),
                       Ends.of(tokenizer.target.special), padded)
        order = sorted(range(len(self.sources)), key=lambda number: len(sides[1][number]))
        return [make(np.array(order[first:first + ROWS], np.int64), 0) for first in range(0, len(order), ROWS)]

    def complete(self, task: Task) -> None:
        """Choose where it reads which words belong together, if it looks at any."""
        assert isinstance(task, Translator)
        if task.attends:
            task.aligned_by = task.choose_alignment([*zip(self.sources, self.targets, strict=True)])

    def validate(self, task: Task) -> Verdict:
        """Loss, BLEU and chrF of greedy translations."""
        assert isinstance(task, Translator)
        loss = mean_loss(task, list(zip(self.sources, self.targets, strict=True)))
        if not math.isfinite(loss):  # nothing can be translated with such a model
            return Verdict({"loss": loss, "bleu": math.nan, "chrf": math.nan})
        made = [found.text for found in task.translate(self.sources, beams=1, length_penalty="none")]
        scores = corpus_scores(made, self.targets)
        shown = map(Example, self.sources, self.targets, made)
        return Verdict({"loss": loss, "bleu": scores.bleu, "chrf": scores.chrf},
                       tuple(shown)[:self.settings.validation.shown])


def feed(prepared: Prepared, config: BatchConfig, seed: int, sampling: float = 0.0, rank: int = 0,
         processes: int = 1) -> Feed:
    """The batches of all pairs."""
    read: Reader | None = None
    if sampling:
        assert prepared.texts is not None, "prepared with sampled=True"
        read = Sampled(prepared.texts, _samplers(prepared.tokenizer, sampling), seed)
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
        states = features(twice(batch.source), twice(batch.inputs))
        states = states.reshape(2, *batch.labels.shape, states.shape[-1])
        return agreement_loss(states, output, batch.labels, self.smoothing, self.consistency)


def twice(tokens: AnyTokens) -> AnyTokens:
    """All sequences, and behind them all of them again."""
    if isinstance(tokens, PackedTokens):
        return PackedTokens(tokens.ids.repeat(1, 2), tokens.lengths.repeat(2))
    lengths = None if tokens.lengths is None else tokens.lengths.repeat(2)
    return Tokens(tokens.ids.repeat(2, 1), lengths, tokens.side)


def _settings(survey: Survey) -> dict[str, Any]:
    """All that the pairs to learn from depend on besides the files."""
    held = None if survey.validation is not None else survey.config.held
    return {"filters": configs.plain(survey.config.filters), "held": held, "end": True,
            "files": len(survey.pairs.files), **survey.reading}  # behind so many comes validation data


def _encoded(survey: Survey, tokenizer: PairTokenizer) -> Iterator[tuple[list[int], list[int]]]:
    for block in _blocks(survey.training()):
        yield from zip(tokenizer.source_ids([pair.source for pair in block]),
                       tokenizer.target_ids([pair.target for pair in block]), strict=True)


def _bytes(survey: Survey) -> Iterator[tuple[list[int], list[int]]]:
    return ((list(pair.source.encode()), list(pair.target.encode())) for pair in survey.training())


def _samplers(tokenizer: PairTokenizer, alpha: float) -> tuple[Callable[[str, int], Sequence[int]], ...]:
    end = list(tokenizer.source.special.end[:1])
    return (lambda text, seed: tokenizer.source.sample(text, alpha=alpha, seed=seed) + end,
            lambda text, seed: tokenizer.target.sample(text, alpha=alpha, seed=seed))


def _ragged(rows: list[list[int]]) -> Ragged:
    return Ragged(np.array([one for row in rows for one in row], np.int64), np.array([len(row) for row in rows]))


def _blocks(pairs: Iterator[Pair]) -> Iterator[list[Pair]]:
    block: list[Pair] = []
    for pair in pairs:
        block.append(pair)
        if len(block) == BLOCK:
            yield block
            block = []
    if block:
        yield block


def _hash(source: str) -> int:
    return int.from_bytes(hashlib.blake2b(source.encode(), digest_size=8).digest(), "big")


def configured(survey: Survey, config: DataConfig) -> Survey:
    """The survey, whose files are now read as the config says. Its filters are those it was made with."""
    asked = replace(survey, config=replace(config, filters=survey.config.filters))
    if survey.validation is not None or not config.held:
        return asked
    if config.held * survey.found.kept >= ENOUGH:
        return replace(asked, limit=round(config.held * 2**64))
    # Of few pairs a share by chance may be none of them, or all: it is counted.
    different = sorted({_hash(pair.source) for pair in asked.kept()})
    count = min(len(different) - 1, max(1, round(config.held * len(different))))
    return replace(asked, limit=different[count] if count else 0)
