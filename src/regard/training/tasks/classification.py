"""Training a classifier of texts or images: batches, a loss, and an accuracy.

    survey_labelled(data, validation, config)      statistics of the files, of either kind
    prepare_labelled(survey, tokenizer, place)     texts as ids, or images as bytes, on disk
    classification_task(prepared, ...)             a TextClassificationTask or an ImageClassificationTask

The data is one of three: a folder with one folder of images for each class; two IDX files, of images and of labels,
recognised by their first bytes; or TSV, a text, a tab and a label on each line. Without validation data, some examples
are held out by a hash; of every label at least one example stays in the training data.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from regard import checks, config
from regard.data import images as idx
from regard.data.batches.batch import (
    LAYOUTS,
    FittedLabelledCollator,
    ImageCollator,
    LabelledBatch,
    LabelledTextCollator,
    StoredReader,
    batch_by_length,
    pad_sequences,
)
from regard.data.batches.feed import (
    BatchConfig,
    LabelledBatchMaker,
    PlanFeed,
    WindowPlan,
    labelled_feed,
    plan_from_config,
)
from regard.data.images import ImageShape
from regard.data.sources.text import DataError
from regard.data.tokenizer.training import TokenizerConfig
from regard.models.build import ModelConfig
from regard.models.classification import ClassifierConfig
from regard.models.vision import VisionConfig
from regard.special_tokens import SpecialTokens
from regard.tasks.classifier import Classifier
from regard.tasks.load import make_task
from regard.tasks.task import Task
from regard.toml import TomlDocument
from regard.training import defaults as choices
from regard.training.config import DataConfig, TrainingConfig
from regard.training.defaults import Default, DeviceProperties, lookup
from regard.training.logging import ValidationExample
from regard.training.tasks import common
from regard.training.tasks.common import (
    Counting,
    FeatureObjective,
    MetricSums,
    evaluation_mode,
    max_positions,
    model_inputs,
    refuse_sampling,
    text_lengths,
    truncate_reader,
    truncate_shapes,
    truncation_note,
)
from regard.training.tasks.interface import Objective, TrainingRequest, ValidationResult, validation_fraction_default
from regard.training.tasks.labelled_data import (
    IdxImageSource,
    ImageFolderSource,
    ImageSource,
    ImageSurvey,
    PreparedImages,
    PreparedTexts,
    TextSurvey,
    prepare_images,
    prepare_texts,
    survey_images,
    survey_texts,
)

LabelledSurvey = TextSurvey | ImageSurvey
PreparedLabelled = PreparedTexts | PreparedImages


def survey_labelled(data: Sequence[str], validation: Sequence[str], config: DataConfig, *, counted: Counting = iter) -> LabelledSurvey:
    """Look at all of the data once.

    Args:
        counted: passes on what is read, and may count it to show that something happens.
    """
    images = _image_source(data)
    others = _image_source(validation) if validation else None
    if images is None:
        if others is not None:
            raise DataError(f"{', '.join(validation)}: These are images, but the training data is text. Give both "
                            "alike.")
        return survey_texts(data, validation, config, counted)
    if validation and others is None:
        raise DataError(f"{', '.join(validation)}: This is text, but the training data is images. Give both alike.")
    return survey_images(images, others, config, counted)


def configure_labelled(survey: LabelledSurvey, config: DataConfig) -> LabelledSurvey:
    """The survey with another config."""
    return replace(survey, config=config)


def labelled_validation_fraction(survey: LabelledSurvey) -> float:
    """How much of the data is best held out."""
    given = survey.given if isinstance(survey, TextSurvey) else survey.validation
    return 0.0 if given is not None else common.default_validation_fraction(survey.count)


def prepare_labelled(survey: LabelledSurvey, config: TokenizerConfig | None, place: Path, *, shape: ImageShape | None = None) -> PreparedLabelled:
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


def classification_task(prepared: PreparedLabelled, made_from: ModelConfig, settings: TrainingConfig, record: dict[str, Any] | None = None, *,
         shift: int = 0) -> "ClassificationTask":
    """The work that fits the data.

    Args:
        shift: by how many pixels images may be moved each way while they are learned from.
    """
    if isinstance(prepared, PreparedTexts):
        return TextClassificationTask(prepared, made_from, settings, record)
    return ImageClassificationTask(prepared, made_from, settings, record, shift)


def text_feed(prepared: PreparedTexts, config: BatchConfig, seed: int, room: int | None = None, rank: int = 0,
              processes: int = 1) -> PlanFeed:
    """The batches of all texts, of which the first `room` ids are read."""
    rows = LabelledTextCollator(truncate_reader(StoredReader(prepared.training), room), prepared.training_labels, LAYOUTS[config.layout],
                    prepared.tokenizer.special.padding or 0)
    plan = plan_from_config(prepared.training, config, seed=seed, extra=(0,), longest=room)
    known = plan.shapes if config.layout == "packed" else truncate_shapes(plan.shapes, room)  # of packed batches: as read
    maker: LabelledBatchMaker = FittedLabelledCollator(rows, known) if config.shapes == "few" else rows
    return labelled_feed(plan, maker, rank=rank, processes=processes, largest=plan.largest())


def image_feed(prepared: PreparedImages, config: BatchConfig, seed: int, tokens: int, shift: int = 0, rank: int = 0,
               processes: int = 1) -> PlanFeed:
    """The batches of all images, each of which makes so many tokens."""
    rows = ImageCollator(prepared.training, prepared.training_labels, prepared.shape, shift, seed)
    plan = WindowPlan(len(prepared.training), config.batch_size or max(1, config.max_tokens // tokens), seed)
    return labelled_feed(plan, rows, rank=rank, processes=processes)


class ClassificationTask(ABC):
    """The work of a classifier."""

    notes: tuple[str, ...] = ()

    def __init__(self, prepared: PreparedLabelled, made_from: ModelConfig, settings: TrainingConfig,
                 record: dict[str, Any] | None) -> None:
        found = getattr(made_from, "num_labels", None)
        if found is not None and found != len(prepared.labels):
            raise checks.wrong("model.num_labels", f"{len(prepared.labels)}, as many as the data has", found)
        refuse_sampling(settings)
        self.labels, self.made_from, self.settings, self.record = prepared.labels, made_from, settings, record

    @abstractmethod
    def feed(self, rank: int, processes: int) -> PlanFeed:
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
        return FeatureObjective(model, self.settings.label_smoothing, self.settings.rdrop)

    def complete(self, task: Task) -> None:
        """There is nothing to choose."""

    def validate(self, task: Task) -> ValidationResult:
        """Loss and accuracy, and what the model makes of some examples."""
        assert isinstance(task, Classifier)
        model, sums, found = task.model, MetricSums(task.device), dict[int, ValidationExample]()
        with evaluation_mode(model):
            for batch in self.judged():
                batch, numbers = batch.to(task.device), batch.numbers
                features = model.features(model_inputs(batch.inputs))  # type: ignore[operator]
                sums.judge(features, model.output, batch.labels)  # type: ignore[arg-type]
                wanted = np.flatnonzero(numbers < self.settings.validation.samples_shown)
                if len(wanted):
                    made = model.output(features).argmax(-1).tolist()  # type: ignore[operator]
                    for row in wanted.tolist():
                        found[int(numbers[row])] = ValidationExample(self.shown(int(numbers[row])),
                                                           self.labels[int(batch.labels[row])], self.labels[made[row]])
        return ValidationResult({"loss": sums.loss, "accuracy": sums.accuracy}, tuple(found[number] for number in sorted(found)))


class TextClassificationTask(ClassificationTask):
    """The work of a classifier of texts."""

    def __init__(self, prepared: PreparedTexts, made_from: ModelConfig, settings: TrainingConfig,
                 record: dict[str, Any] | None = None) -> None:
        if not isinstance(made_from, ClassifierConfig):
            raise checks.wrong("model.kind", f'"{ClassifierConfig.kind}", for texts', f'"{made_from.kind}"')
        super().__init__(prepared, made_from, settings, record)
        self.prepared, self.room = prepared, max_positions(made_from)
        self.notes = truncation_note(prepared.training, self.room)

    def feed(self, rank: int, processes: int) -> PlanFeed:
        """The batches of one of so many processes."""
        return text_feed(self.prepared, self.settings.batches, self.settings.seed, self.room, rank, processes)

    def task(self, model: nn.Module) -> Task:
        """A classifier."""
        tokenizer = self.prepared.tokenizer
        return make_task(model, self.made_from, tokenizer.special, tokenizer=tokenizer, labels=self.labels,
                       record=self.record)

    def judged(self) -> list[LabelledBatch]:
        """The texts to judge by in padded rows, the shortest first."""
        store = self.prepared.validation
        long = text_lengths(store)[:self.settings.validation.max_examples]
        rows = LabelledTextCollator(truncate_reader(StoredReader(store), self.room), self.prepared.validation_labels, pad_sequences)
        long = long if self.room is None else np.minimum(long, self.room)
        return [rows(numbers, 0) for numbers in batch_by_length(long, self.settings.batches.max_tokens)]

    def shown(self, number: int) -> str:
        """The text."""
        return self.prepared.tokenizer.decode(self.prepared.validation[number].tolist())


class ImageClassificationTask(ClassificationTask):
    """The work of a classifier of images."""

    def __init__(self, prepared: PreparedImages, made_from: ModelConfig, settings: TrainingConfig,
                 record: dict[str, Any] | None = None, shift: int = 0) -> None:
        if not isinstance(made_from, VisionConfig):
            raise checks.wrong("model.kind", f'"{VisionConfig.kind}", for images', f'"{made_from.kind}"')
        super().__init__(prepared, made_from, settings, record)
        own = ImageShape(made_from.image_height, made_from.image_width, made_from.channels)
        if own != prepared.shape:
            raise checks.wrong("model.image_height, image_width, channels", f"those of the images, {prepared.shape}", own)
        self.prepared, self.tokens, self.shift = prepared, made_from.tokens, shift

    def feed(self, rank: int, processes: int) -> PlanFeed:
        """The batches of one of so many processes."""
        return image_feed(self.prepared, self.settings.batches, self.settings.seed, self.tokens, self.shift, rank,
                          processes)

    def task(self, model: nn.Module) -> Task:
        """A classifier."""
        return make_task(model, self.made_from, SpecialTokens(), labels=self.labels, record=self.record)

    def judged(self) -> list[LabelledBatch]:
        """The images to judge by as they are, in their order."""
        count = min(len(self.prepared.validation), self.settings.validation.max_examples)
        rows = ImageCollator(self.prepared.validation, self.prepared.validation_labels, self.prepared.shape)
        return [rows(numbers, 0) for numbers in batch_by_length(np.full(count, self.tokens), self.settings.batches.max_tokens)]

    def shown(self, number: int) -> str:
        """What the image is called."""
        return self.prepared.shown[number]


def _image_source(paths: Sequence[str]) -> ImageSource | None:
    """The images of these paths; None where they are text."""
    if len(paths) == 1 and os.path.isdir(paths[0]):
        return ImageFolderSource(paths[0])
    return IdxImageSource(paths) if any(idx.is_idx(path) for path in paths) else None


# ---- classification: The plan of classifiers: labelled texts, or labelled images; which, the data tells.
#
# It only puts together what `works.classification` does and what `choices.classification` says.


class ClassificationSetup:
    """From labelled examples to a classifier."""

    recipes: tuple[str, ...] = (choices.IMAGE_CLASSIFIER_RECIPE, choices.TEXT_CLASSIFIER_RECIPE)
    kinds: tuple[str, ...] = ("classifier", "vision")
    open: Mapping[str, Any] = {"model.num_labels": 2, "model.vocab_size": 1000}
    scores: tuple[str, ...] = ("loss", "accuracy")
    unused: Mapping[str, Any] = {"training.windows": None, "training.masking": None, "data.joint_tokenizer": True}

    def survey(self, request: TrainingRequest, config: DataConfig) -> LabelledSurvey:
        """What is in the files."""
        return survey_labelled(request.data, request.validation, config, counted=request.counted)

    def before(self, survey: LabelledSurvey, asked: Mapping[str, Any]) -> list[Default]:
        """The choices about data and tokenizer."""
        given = survey.given if isinstance(survey, TextSurvey) else survey.validation
        share, count = labelled_validation_fraction(survey), survey.count
        chosen = validation_fraction_default(given is not None, share, f"about {share * count:,.0f} examples to judge by",
                      f"{count} examples are too few: the model is judged by what it has learned")
        if isinstance(survey, ImageSurvey):
            return [chosen]
        return [chosen, *choices.classification_tokenizer(count, asked.get("tokenizer", {}))]

    def prepare(self, survey: LabelledSurvey, document: TomlDocument, place: Path) -> PreparedLabelled:
        """Texts as ids, or images as bytes."""
        survey = configure_labelled(survey, config.read_config(DataConfig, document, ("data",)))
        if isinstance(survey, TextSurvey):
            return prepare_labelled(survey, config.read_config(TokenizerConfig, document, ("tokenizer",)), place)
        asked, shape = document.tables.get("model", {}), survey.shape
        if not {"image_height", "image_width", "patch_size"} & set(asked):
            shape = ImageShape(*choices.image_sides(shape.height, shape.width), shape.channels)
        shape = ImageShape(lookup(asked, "image_height", shape.height), lookup(asked, "image_width", shape.width),
                           lookup(asked, "channels", shape.channels))
        return prepare_labelled(survey, None, place, shape=shape)

    def named(self, prepared: PreparedLabelled, device: DeviceProperties, asked: str | None) -> Default:
        """The recipe of the model."""
        count = len(prepared.training)
        if isinstance(prepared, PreparedTexts):
            return choices.text_classifier_recipe(count, device, asked)
        return choices.image_classifier_recipe(count, min(prepared.shape.height, prepared.shape.width), device, asked)

    def after(self, prepared: PreparedLabelled, tables: Mapping[str, Any], device: DeviceProperties) -> list[Default]:
        """The choices about model and training."""
        asked, count = tables.get("training", {}), len(prepared.training)
        labels = Default("model.num_labels", len(prepared.labels), "as many as the data has")
        if isinstance(prepared, PreparedTexts):
            return [labels, Default("model.vocab_size", prepared.vocabulary, "the size of the tokenizer"),
                    *choices.classification_training(count, prepared.tokens, device, None, asked)]
        like = prepared.shape[:2] == prepared.survey.shape[:2]
        reason = "as the images are" if like else "as the images are they would be cut into too many patches, or badly"
        model = [labels, *choices.image_classifier_model(count, *prepared.shape, device, tables.get("recipe"), reason)]
        patch = lookup(tables, "model.patch_size", next(choice.value for choice in model if choice.key == "model.patch_size"))
        height, breadth, _ = prepared.shape
        tokens = count * ((height // patch) * (breadth // patch) + 1)
        return [*model, *choices.classification_training(count, tokens, device, min(height, breadth), asked)]

    def steps(self, prepared: PreparedLabelled, document: TomlDocument) -> int:
        """How many batches an epoch has."""
        batches = config.read_config(BatchConfig, document, ("training", "batches"))
        if isinstance(prepared, PreparedTexts):
            return text_feed(prepared, batches, seed=1).steps
        return image_feed(prepared, batches, 1, config.read_config(VisionConfig, document, ("model",)).tokens).steps

    def work(self, prepared: PreparedLabelled, made_from: ModelConfig, settings: TrainingConfig,
             record: dict[str, Any]) -> ClassificationTask:
        """What the loop is given."""
        return classification_task(prepared, made_from, settings, record, shift=settings.random_shift)
