"""Training a classifier of texts or images: batches, a loss, and an accuracy.

    survey_labelled(data, validation, config)                    statistics of the files, of either kind
    TextClassificationTask, ImageClassificationTask              batches, loss and validation
    ClassificationSetup                                          recognises the kind of the data

The data is one of three: a folder with one folder of images for each class; two IDX files, of images and of labels,
recognised by their first bytes; or TSV or JSONL, a text and a label on each line (`classification_data` reads them).
Without validation data, some examples are held out by a hash; of every label at least one example stays in the training
data.
"""

import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from regard import checks
from regard import config as configs
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
from regard.data.images import ImageShape, is_idx
from regard.data.sources.formats import read_labelled_texts
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
from regard.training import defaults
from regard.training.config import DataConfig, TrainingConfig
from regard.training.defaults import Default, DeviceProperties, lookup
from regard.training.logging import ValidationExample
from regard.training.starting_point import StartModel
from regard.training.tasks.classification_data import (
    IdxImageSource,
    ImageFolderSource,
    ImageSource,
    ImageSurvey,
    PreparedImages,
    PreparedLabelledTexts,
    TextSurvey,
    number_labels,
    prepare_images,
    prepare_labelled_texts,
    survey_images,
    survey_texts,
    with_known_labels,
)
from regard.training.tasks.common import (
    LabelledTask,
    MetricSums,
    default_validation_fraction,
    evaluation_mode,
    max_positions,
    model_inputs,
    text_lengths,
    truncate_reader,
    truncate_shapes,
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
from regard.training.tasks.start_checks import new_labels_note, start_encoding, text_notes

LabelledSurvey = TextSurvey | ImageSurvey
PreparedLabelled = PreparedLabelledTexts | PreparedImages


def survey_labelled(data: Sequence[str], validation: Sequence[str], config: DataConfig, *,
                    progress: ProgressHook = iter) -> LabelledSurvey:
    """Read all files once, whichever kind they are of."""
    images = _image_source(data)
    others = _image_source(validation) if validation else None
    if images is None:
        if others is not None:
            raise DataError(f"{', '.join(validation)}: These are images, but the training data is text. Give both of "
                            "one kind.")
        return survey_texts(data, validation, config, progress)
    if validation and others is None:
        raise DataError(f"{', '.join(validation)}: This is text, but the training data is images. Give both of one "
                        "kind.")
    return survey_images(images, others, config, progress)


def _image_source(paths: Sequence[str]) -> ImageSource | None:
    """The images of these paths; None if they are texts."""
    if len(paths) == 1 and os.path.isdir(paths[0]):
        return ImageFolderSource(paths[0])
    return IdxImageSource(paths) if any(is_idx(path) for path in paths) else None


def text_feed(prepared: PreparedLabelledTexts, config: BatchConfig, seed: int, longest: int | None = None,
              rank: int = 0, processes: int = 1) -> PlanFeed:
    """The batches of all training texts, truncated to `longest` ids."""
    collate = LabelledTextCollator(truncate_reader(StoredReader(prepared.training), longest), prepared.training_labels,
                                   LAYOUTS[config.layout], prepared.tokenizer.special.padding or 0)
    plan = plan_from_config(prepared.training, config, seed=seed, extra=(0,), longest=longest)
    # Shapes of packed batches count truncated tokens already.
    shapes = plan.shapes if config.layout == "packed" else truncate_shapes(plan.shapes, longest)
    maker: LabelledBatchMaker = FittedLabelledCollator(collate, shapes) if config.shapes == "few" else collate
    return labelled_feed(plan, maker, rank=rank, processes=processes, largest=plan.largest())


def image_feed(prepared: PreparedImages, config: BatchConfig, seed: int, tokens: int, shift: int = 0, rank: int = 0,
               processes: int = 1) -> PlanFeed:
    """The batches of all training images.

    Args:
        tokens: the number of tokens of an image.
        shift: images are shifted randomly by up to this many pixels in each direction.
    """
    collate = ImageCollator(prepared.training, prepared.training_labels, prepared.shape, shift, seed)
    plan = WindowPlan(len(prepared.training), config.batch_size or max(1, config.max_tokens // tokens), seed)
    return labelled_feed(plan, collate, rank=rank, processes=processes)


class ClassificationTask(LabelledTask):
    """Training of a classifier, validated by its loss and accuracy."""

    @abstractmethod
    def title(self, number: int) -> str:
        """A validation example as it is shown to the user."""

    def validate(self, task: Task) -> ValidationResult:
        """Loss and accuracy, and predictions for the first examples."""
        assert isinstance(task, Classifier)
        model, sums, examples = task.model, MetricSums(task.device), dict[int, ValidationExample]()
        with evaluation_mode(model):
            for batch in self.validation_batches():
                batch, numbers = batch.to(task.device), batch.numbers
                features = model.features(model_inputs(batch.inputs))  # type: ignore[operator]
                sums.evaluate(features, model.output, batch.labels)  # type: ignore[arg-type]
                shown = np.flatnonzero(numbers < self.settings.validation.samples_shown)
                if len(shown):
                    predictions = model.output(features).argmax(-1).tolist()  # type: ignore[operator]
                    for row in shown.tolist():
                        number, label = int(numbers[row]), int(batch.labels[row])
                        examples[number] = ValidationExample(self.title(number), self.labels[label],
                                                             self.labels[predictions[row]])
        return ValidationResult({"loss": sums.loss, "accuracy": sums.accuracy},
                                tuple(examples[number] for number in sorted(examples)))


class TextClassificationTask(ClassificationTask):
    """Training of a text classifier."""

    name = "text classification"
    prepared: PreparedLabelledTexts

    def __init__(self, prepared: PreparedLabelledTexts, model_config: ModelConfig, settings: TrainingConfig,
                 record: dict[str, Any] | None = None) -> None:
        if not isinstance(model_config, ClassifierConfig):
            raise checks.wrong("model.kind", f'"{ClassifierConfig.kind}", for texts', f'"{model_config.kind}"')
        super().__init__(prepared, model_config, settings, record)
        self.longest = max_positions(model_config)
        self.notes = truncation_note(prepared.training, self.longest)

    def feed(self, rank: int, processes: int) -> PlanFeed:
        """The batches of this process."""
        return text_feed(self.prepared, self.settings.batches, self.settings.seed, self.longest, rank, processes)

    def wrap(self, model: nn.Module) -> Task:
        """A Classifier."""
        tokenizer = self.prepared.tokenizer
        return make_task(model, self.model_config, tokenizer.special, tokenizer=tokenizer, labels=self.labels,
                         record=self.record)

    def validation_batches(self) -> list[LabelledBatch]:
        """The validation texts in padded rows, the shortest first."""
        store = self.prepared.validation
        lengths = text_lengths(store, self.longest)[:self.settings.validation.max_examples]
        collate = LabelledTextCollator(truncate_reader(StoredReader(store), self.longest),
                                       self.prepared.validation_labels, pad_sequences)
        return [collate(numbers, 0) for numbers in batch_by_length(lengths, self.settings.batches.max_tokens)]

    def sample_input(self) -> str | None:
        """A short text."""
        return short_sample(self.title(number) for number in range(len(self.prepared.validation)))

    def title(self, number: int) -> str:
        """The text."""
        return self.prepared.tokenizer.decode(self.prepared.validation[number].tolist())


class ImageClassificationTask(ClassificationTask):
    """Training of an image classifier."""

    name = "image classification"
    prepared: PreparedImages

    def __init__(self, prepared: PreparedImages, model_config: ModelConfig, settings: TrainingConfig,
                 record: dict[str, Any] | None = None) -> None:
        if not isinstance(model_config, VisionConfig):
            raise checks.wrong("model.kind", f'"{VisionConfig.kind}", for images', f'"{model_config.kind}"')
        super().__init__(prepared, model_config, settings, record)
        shape = ImageShape(model_config.image_height, model_config.image_width, model_config.channels)
        if shape != prepared.shape:
            raise checks.wrong("model.image_height, image_width, channels", f"those of the images, {prepared.shape}",
                               shape)
        self.tokens = model_config.tokens

    def feed(self, rank: int, processes: int) -> PlanFeed:
        """The batches of this process."""
        settings = self.settings
        return image_feed(self.prepared, settings.batches, settings.seed, self.tokens, settings.random_shift, rank,
                          processes)

    def wrap(self, model: nn.Module) -> Task:
        """A Classifier."""
        return make_task(model, self.model_config, SpecialTokens(), labels=self.labels, record=self.record)

    def validation_batches(self) -> list[LabelledBatch]:
        """The validation images without shifts, in their order."""
        count = min(len(self.prepared.validation), self.settings.validation.max_examples)
        collate = ImageCollator(self.prepared.validation, self.prepared.validation_labels, self.prepared.shape)
        batches = batch_by_length(np.full(count, self.tokens), self.settings.batches.max_tokens)
        return [collate(numbers, 0) for numbers in batches]

    def title(self, number: int) -> str:
        """The name of the image."""
        return self.prepared.titles[number]


def fit_survey(start: StartModel, survey: LabelledSurvey, data: Sequence[str]) -> LabelledSurvey:
    """The survey of data for fine-tuning: checked against the start model, with its labels if it knows all of these."""
    images, reads_images = isinstance(survey, ImageSurvey), isinstance(start.config, VisionConfig)
    if images != reads_images:
        raise DataError(f"{', '.join(data)}: This data is {'images' if images else 'text'}, but {start.name} reads "
                        f"{'images' if reads_images else 'text'}.")
    labels = survey.source.label_names if isinstance(survey, ImageSurvey) else survey.statistics.labels
    note = new_labels_note(start, labels)
    known, notes = bool(start.labels) and note is None, [] if note is None else [note]
    if isinstance(survey, ImageSurvey):
        if known:
            survey.source.label_names = start.labels
            survey = replace(survey, numbers=number_labels(survey.source.labels, start.labels)[1])
        return replace(survey, notes=tuple(notes))
    notes += text_notes(start, (example.text for file in survey.inputs for example in read_labelled_texts(file)), data)
    if known:
        other = survey.validation_statistics
        survey = replace(survey, statistics=with_known_labels(survey.statistics, start.labels),
                         validation_statistics=None if other is None else with_known_labels(other, start.labels))
    return replace(survey, notes=tuple(notes))


class ClassificationSetup(TaskSetup):
    """From labelled texts or images to a `ClassificationTask`; see `TaskSetup` for the methods."""

    recipes: tuple[str, ...] = (defaults.IMAGE_CLASSIFIER_RECIPE, defaults.TEXT_CLASSIFIER_RECIPE)
    model_kinds: tuple[str, ...] = ("classifier", "vision")
    data_dependent: Mapping[str, Any] = {"tokenizer.kind": "unigram", "model.num_labels": 2, "model.vocab_size": 1000}
    scores: tuple[str, ...] = ("loss", "accuracy")
    unused: Mapping[str, Any] = {"training.windows": None, "training.masking": None, **PAIR_KEYS, **LABEL_KEYS,
                                 **TRACK_KEYS}

    def survey(self, request: TrainingRequest, config: DataConfig) -> LabelledSurvey:
        survey = survey_labelled(request.data, request.validation, config, progress=request.progress)
        return survey if self.start is None else fit_survey(self.start, survey, request.data)

    def data_defaults(self, survey: LabelledSurvey, requested: Mapping[str, Any]) -> list[Default]:
        count = survey.count
        fraction = 0.0 if survey.has_validation else default_validation_fraction(count)
        split = validation_fraction_default(survey.has_validation, fraction,
                                            *held_out_reasons(fraction, count, "example"))
        if isinstance(survey, ImageSurvey):
            return [split]
        if self.start is not None:
            return [split, *self.start.data_defaults()]
        return [split, *defaults.classification_tokenizer(count, requested.get("tokenizer", {}))]

    def prepare(self, survey: LabelledSurvey, document: TomlDocument, place: Path) -> PreparedLabelled:
        survey = replace(survey, config=configs.read_config(DataConfig, document, ("data",)))
        if isinstance(survey, TextSurvey) and self.start is not None:
            return prepare_labelled_texts(survey, None, place, **start_encoding(self.start))
        if isinstance(survey, TextSurvey):
            return prepare_labelled_texts(survey, configs.read_config(TokenizerConfig, document, ("tokenizer",)), place)
        model, shape = document.tables.get("model", {}), survey.shape
        if not {"image_height", "image_width", "patch_size"} & set(model):
            shape = ImageShape(*defaults.image_sides(shape.height, shape.width), shape.channels)
        shape = ImageShape(lookup(model, "image_height", shape.height), lookup(model, "image_width", shape.width),
                           lookup(model, "channels", shape.channels))
        return prepare_images(survey, place, shape)

    def recipe_default(self, prepared: PreparedLabelled, device: DeviceProperties, requested: str | None) -> Default:
        count = len(prepared.training)
        if isinstance(prepared, PreparedLabelledTexts):
            return defaults.text_classifier_recipe(count, device, requested)
        side = min(prepared.shape.height, prepared.shape.width)
        return defaults.image_classifier_recipe(count, side, device, requested)

    def training_defaults(self, prepared: PreparedLabelled, tables: Mapping[str, Any],
                          device: DeviceProperties) -> list[Default]:
        requested, count = tables.get("training", {}), len(prepared.training)
        labels = Default("model.num_labels", len(prepared.labels), "number of labels in the data")
        if self.start is not None:
            return [labels, *self._finetuning_defaults(prepared, tables, device)]
        if isinstance(prepared, PreparedLabelledTexts):
            return [labels, Default("model.vocab_size", prepared.vocabulary, "size of the tokenizer"),
                    *defaults.classification_training(count, prepared.tokens, device, None, requested)]
        reason = ("size of the images" if prepared.shape[:2] == prepared.original_shape[:2] else
                  "the images are resized: at their own size they would give too many patches, or uneven ones")
        model = [labels, *defaults.image_classifier_model(count, *prepared.shape, device, tables.get("recipe"), reason)]
        values = {default.key: default.value for default in model}
        patch = lookup(tables, "model.patch_size", values["model.patch_size"])
        height, width, _ = prepared.shape
        tokens = count * ((height // patch) * (width // patch) + 1)
        return [*model, *defaults.classification_training(count, tokens, device, min(height, width), requested)]

    def _finetuning_defaults(self, prepared: PreparedLabelled, tables: Mapping[str, Any],
                             device: DeviceProperties) -> Iterator[Default]:
        requested, count, model = tables.get("training", {}), len(prepared.training), tables["model"]
        if isinstance(prepared, PreparedLabelledTexts):
            tokens, side = prepared.tokens, None
        else:
            height, width, _ = prepared.shape
            tokens = count * ((height // model["patch_size"]) * (width // model["patch_size"]) + 1)
            side = min(height, width)
        scratch = defaults.classification_training(count, tokens, device, side, requested)
        data = defaults.FinetuningData(count, tokens, model["width"], len(prepared.validation))
        return defaults.finetuning_training(scratch, data, device, requested, fixed_batch=True)

    def steps_per_epoch(self, prepared: PreparedLabelled, document: TomlDocument) -> int:
        batches = configs.read_config(BatchConfig, document, ("training", "batches"))
        if isinstance(prepared, PreparedLabelledTexts):
            return text_feed(prepared, batches, seed=1).steps
        return image_feed(prepared, batches, 1, configs.read_config(VisionConfig, document, ("model",)).tokens).steps

    def build(self, prepared: PreparedLabelled, model_config: ModelConfig, settings: TrainingConfig,
              record: dict[str, Any]) -> ClassificationTask:
        if isinstance(prepared, PreparedLabelledTexts):
            return TextClassificationTask(prepared, model_config, settings, record)
        return ImageClassificationTask(prepared, model_config, settings, record)
