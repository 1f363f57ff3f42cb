"""Learning to tell classes apart: from texts or images with labels to batches, a loss, and a score.

    survey(data, validation, config)              what is in the files, of whichever kind they are
    prepare(survey, tokenizer, place)             texts as ids, or images as bytes, on disk
    work(prepared, config, settings)              a TextClassification or an ImageClassification

The data is one of three: a folder with a folder of images for each class; two IDX files, of images and of labels, told
by their first bytes; or TSV, a text, a tab and a label on each line. Where no validation data is given some of it is
held out, chosen by a hash, so that equal examples are all on one side; of every label something is left to learn from.
It does not know the loop.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from regard import checks
from regard.data.batches.batch import LAYOUTS, Stored, padded
from regard.data.batches.config import BatchConfig, plan_of
from regard.data.batches.feed import Feed
from regard.data.batches.labelled import (
    FittedRows,
    ImageRows,
    LabelledBatch,
    Maker,
    TextRows,
    in_order,
    labelled_feed,
)
from regard.data.batches.windows import WindowPlan
from regard.data.images import idx
from regard.data.images.reading import Shape
from regard.data.pair import DataError
from regard.data.tokenizer.settings import TokenizerConfig
from regard.models.build import ModelConfig
from regard.models.labels import ClassifierConfig
from regard.models.special import SpecialConfig
from regard.models.vision import VisionConfig
from regard.tasks.loading import fitting
from regard.tasks.reading import Classifier
from regard.tasks.task import Task
from regard.training.settings import DataConfig, TrainingConfig
from regard.training.work import Example, Objective, Verdict
from regard.training.works import splitting
from regard.training.works.image_sources import FolderSource, IdxSource, Source
from regard.training.works.judging import Sums, evaluating
from regard.training.works.labelled_images import ImageSurvey, PreparedImages, prepare_images, survey_images
from regard.training.works.labelled_texts import PreparedTexts, TextSurvey, prepare_texts, survey_texts
from regard.training.works.objectives import ReadingObjective, as_read
from regard.training.works.room import cut_note, lengths, positions, refuse_sampling, shapes, shortened
from regard.training.works.sentences import Counting

Survey = TextSurvey | ImageSurvey
Prepared = PreparedTexts | PreparedImages


def survey(data: Sequence[str], validation: Sequence[str], config: DataConfig, *, counted: Counting = iter) -> Survey:
    """Look at all of the data once.

    Args:
        counted: passes on what is read, and may count it to show that something happens.
    """
    images = _images(data)
    others = _images(validation) if validation else None
    if images is None:
        if others is not None:
            raise DataError(f"{', '.join(validation)}: These are images, but the training data is text. Give both "
                            "alike.")
        return survey_texts(data, validation, config, counted)
    if validation and others is None:
        raise DataError(f"{', '.join(validation)}: This is text, but the training data is images. Give both alike.")
    return survey_images(images, others, config, counted)


def configured(survey: Survey, config: DataConfig) -> Survey:
    """The survey with another config."""
    return replace(survey, config=config)


def held_share(survey: Survey) -> float:
    """How much of the data is best held out."""
    given = survey.given if isinstance(survey, TextSurvey) else survey.validation
    return 0.0 if given is not None else splitting.held_share(survey.count)


def prepare(survey: Survey, config: TokenizerConfig | None, place: Path, *, shape: Shape | None = None) -> Prepared:
    """Texts as ids, with a tokenizer that is trained once; or images as bytes.

    Args:
        config: of the tokenizer, for texts.
        place: a folder for what is made, to be found again.
        shape: of images, where they shall have another than the survey says.
    """
    if isinstance(survey, ImageSurvey):
        return prepare_images(survey, place, shape)
    if config is None:
        raise checks.wrong("tokenizer", "given, to cut texts", None)
    return prepare_texts(survey, config, place)


def work(prepared: Prepared, made_from: ModelConfig, settings: TrainingConfig, record: dict[str, Any] | None = None, *,
         shift: int = 0) -> "Classification":
    """The work that fits the data.

    Args:
        shift: by how many pixels images may be moved each way while they are learned from.
    """
    if isinstance(prepared, PreparedTexts):
        return TextClassification(prepared, made_from, settings, record)
    return ImageClassification(prepared, made_from, settings, record, shift)


def text_feed(prepared: PreparedTexts, config: BatchConfig, seed: int, room: int | None = None, rank: int = 0,
              processes: int = 1) -> Feed:
    """The batches of all texts, of which the first `room` ids are read."""
    rows = TextRows(shortened(Stored(prepared.training), room), prepared.training_labels, LAYOUTS[config.layout],
                    prepared.tokenizer.special.padding or 0)
    plan = plan_of(prepared.training, config, seed=seed, extra=(0,), longest=room)
    known = plan.shapes if config.layout == "packed" else shapes(plan.shapes, room)  # of packed batches: as read
    maker: Maker = FittedRows(rows, known) if config.shapes == "few" else rows
    return labelled_feed(plan, maker, rank=rank, processes=processes, largest=plan.largest())


def image_feed(prepared: PreparedImages, config: BatchConfig, seed: int, tokens: int, shift: int = 0, rank: int = 0,
               processes: int = 1) -> Feed:
    """The batches of all images, each of which makes so many tokens."""
    rows = ImageRows(prepared.training, prepared.training_labels, prepared.shape, shift, seed)
    plan = WindowPlan(len(prepared.training), config.rows or max(1, config.tokens // tokens), seed)
    return labelled_feed(plan, rows, rank=rank, processes=processes)


class Classification(ABC):
    """The work of a classifier."""

    notes: tuple[str, ...] = ()

    def __init__(self, prepared: Prepared, made_from: ModelConfig, settings: TrainingConfig,
                 record: dict[str, Any] | None) -> None:
        found = getattr(made_from, "labels", None)
        if found is not None and found != len(prepared.labels):
            raise checks.wrong("model.labels", f"{len(prepared.labels)}, as many as the data has", found)
        refuse_sampling(settings)
        self.labels, self.made_from, self.settings, self.record = prepared.labels, made_from, settings, record

    @abstractmethod
    def feed(self, rank: int, processes: int) -> Feed:
        """The batches of one of so many processes."""

    @abstractmethod
    def task(self, model: nn.Module) -> Task:
        """A classifier."""

    @abstractmethod
    def judged(self) -> list[LabelledBatch]:
        """What the model is judged by, in batches."""

    @abstractmethod
    def shown(self, number: int) -> str:
        """How an example that the model is judged by is shown."""

    def objective(self, model: nn.Module) -> Objective:
        """The loss of a model."""
        return ReadingObjective(model, self.settings.smoothing, self.settings.consistency)

    def complete(self, task: Task) -> None:
        """There is nothing to choose."""

    def validate(self, task: Task) -> Verdict:
        """Loss and accuracy, and what the model makes of some examples."""
        assert isinstance(task, Classifier)
        model, sums, found = task.model, Sums(task.device), dict[int, Example]()
        with evaluating(model):
            for batch in self.judged():
                batch, numbers = batch.to(task.device), batch.numbers
                features = model.features(as_read(batch.inputs))  # type: ignore[operator]
                sums.judge(features, model.output, batch.labels)  # type: ignore[arg-type]
                wanted = np.flatnonzero(numbers < self.settings.validation.shown)
                if len(wanted):
                    made = model.output(features).argmax(-1).tolist()  # type: ignore[operator]
                    for row in wanted.tolist():
                        found[int(numbers[row])] = Example(self.shown(int(numbers[row])),
                                                           self.labels[int(batch.labels[row])], self.labels[made[row]])
        return Verdict({"loss": sums.loss, "accuracy": sums.accuracy}, tuple(found[number] for number in sorted(found)))


class TextClassification(Classification):
    """The work of a classifier of texts."""

    def __init__(self, prepared: PreparedTexts, made_from: ModelConfig, settings: TrainingConfig,
                 record: dict[str, Any] | None = None) -> None:
        if not isinstance(made_from, ClassifierConfig):
            raise checks.wrong("model.kind", f'"{ClassifierConfig.kind}", for texts', f'"{made_from.kind}"')
        super().__init__(prepared, made_from, settings, record)
        self.prepared, self.room = prepared, positions(made_from)
        self.notes = cut_note(prepared.training, self.room)

    def feed(self, rank: int, processes: int) -> Feed:
        """The batches of one of so many processes."""
        return text_feed(self.prepared, self.settings.batches, self.settings.seed, self.room, rank, processes)

    def task(self, model: nn.Module) -> Task:
        """A classifier."""
        tokenizer = self.prepared.tokenizer
        return fitting(model, self.made_from, tokenizer.special, tokenizer=tokenizer, labels=self.labels,
                       record=self.record)

    def judged(self) -> list[LabelledBatch]:
        """The texts to judge by in padded rows, the shortest first."""
        store = self.prepared.validation
        long = lengths(store)[:self.settings.validation.most]
        rows = TextRows(shortened(Stored(store), self.room), self.prepared.validation_labels, padded)
        long = long if self.room is None else np.minimum(long, self.room)
        return [rows(numbers, 0) for numbers in in_order(long, self.settings.batches.tokens)]

    def shown(self, number: int) -> str:
        """The text."""
        return self.prepared.tokenizer.decode(self.prepared.validation[number].tolist())


class ImageClassification(Classification):
    """The work of a classifier of images."""

    def __init__(self, prepared: PreparedImages, made_from: ModelConfig, settings: TrainingConfig,
                 record: dict[str, Any] | None = None, shift: int = 0) -> None:
        if not isinstance(made_from, VisionConfig):
            raise checks.wrong("model.kind", f'"{VisionConfig.kind}", for images', f'"{made_from.kind}"')
        super().__init__(prepared, made_from, settings, record)
        own = Shape(made_from.height, made_from.breadth, made_from.channels)
        if own != prepared.shape:
            raise checks.wrong("model.height, breadth, channels", f"those of the images, {prepared.shape}", own)
        self.prepared, self.tokens, self.shift = prepared, made_from.tokens, shift

    def feed(self, rank: int, processes: int) -> Feed:
        """The batches of one of so many processes."""
        return image_feed(self.prepared, self.settings.batches, self.settings.seed, self.tokens, self.shift, rank,
                          processes)

    def task(self, model: nn.Module) -> Task:
        """A classifier."""
        return fitting(model, self.made_from, SpecialConfig(), labels=self.labels, record=self.record)

    def judged(self) -> list[LabelledBatch]:
        """The images to judge by as they are, in their order."""
        count = min(len(self.prepared.validation), self.settings.validation.most)
        rows = ImageRows(self.prepared.validation, self.prepared.validation_labels, self.prepared.shape)
        return [rows(numbers, 0) for numbers in in_order(np.full(count, self.tokens), self.settings.batches.tokens)]

    def shown(self, number: int) -> str:
        """What the image is called."""
        return self.prepared.shown[number]


def _images(paths: Sequence[str]) -> Source | None:
    """The images of these paths; None where they are text."""
    if len(paths) == 1 and os.path.isdir(paths[0]):
        return FolderSource(paths[0])
    return IdxSource(paths) if any(idx.is_idx(path) for path in paths) else None
