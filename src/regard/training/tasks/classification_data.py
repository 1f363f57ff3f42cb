"""Labelled texts and images on their way from files to ids or bytes on disk, for classification.

    survey_texts(data, validation, config)             statistics of TSV files, a text, a tab and a label on each line,
                                                       or of JSONL files with the keys "text" and "label"
    prepare_labelled_texts(survey, tokenizer, place)   a tokenizer, trained once, and all texts as ids
    survey_images(source, validation, config)          statistics of a folder with one folder a class, or of IDX files
    prepare_images(survey, place, shape)               all images as bytes of one shape

Lines without text are skipped and reported. Images of a folder are read one by one; IDX files are read whole. Labels
are numbered in sorted order, from 0.
"""

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import compress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from regard.checks import plural
from regard.data import images
from regard.data import store as stores
from regard.data.filters import hash_texts, is_blank
from regard.data.images import ImageShape
from regard.data.sources.formats import read_labelled_texts
from regard.data.sources.text import DataError, InputFile, LabelledText, ReadLog, printable
from regard.data.sources.token_labels import UNITS, split_tokens
from regard.data.store import TextStore
from regard.data.tokenizer.training import TokenizerConfig
from regard.training.config import DataConfig
from regard.training.tasks.common import (
    Hashes,
    PreparedTexts,
    SplitMask,
    file_digests,
    hash_bytes,
    name_digests,
    open_inputs,
    overlap_warnings,
    prepare_texts,
    read_summary,
    select_validation,
)
from regard.training.tasks.interface import ProgressHook

LabelIds = NDArray[np.int64]
BYTE_VALUES = 256


def number_labels(names: Sequence[str], known: tuple[str, ...] | None = None) -> tuple[tuple[str, ...], LabelIds]:
    """The distinct labels, or the known ones, and the number of each given label."""
    labels = tuple(sorted(set(names))) if known is None else known
    number = {name: index for index, name in enumerate(labels)}
    return labels, np.array([number[name] for name in names], np.int64)


def check_classes(where: str, labels: Sequence[str]) -> None:
    """Refuse data with fewer than two labels."""
    if not labels:
        raise DataError(f"{where}: There are no labelled examples in this data.")
    if len(labels) == 1:
        raise DataError(f'{where}: All examples have the same label, "{printable(labels[0])}". Give data with at least '
                        "two labels.")


@dataclass(frozen=True)
class LabelledTextStatistics:
    """Labels and hashes of labelled texts."""

    labels: tuple[str, ...]
    """The distinct labels, sorted."""
    numbers: LabelIds
    """The label number of each text."""
    hashes: Hashes
    empty: tuple[str, ...]
    """File and line of each line that is skipped because it has no text."""

    @property
    def count(self) -> int:
        """The number of texts."""
        return len(self.numbers)


@dataclass(frozen=True)
class TextSurvey:
    """Statistics of TSV files, and the texts in them."""

    files: dict[str, str]
    """The sha256 of every file by its name."""
    config: DataConfig
    inputs: tuple[InputFile, ...]
    statistics: LabelledTextStatistics
    validation: tuple[InputFile, ...]
    validation_statistics: LabelledTextStatistics | None
    """With the labels of the training data; None without validation files."""
    log: ReadLog = field(default_factory=ReadLog)
    """Notes about how the files were read."""
    notes: tuple[str, ...] = ()
    """What the user should know about how the texts fit the model that is fine-tuned."""

    @property
    def counts(self) -> dict[str, int]:
        """The number of texts, with those that are held out."""
        return {"texts": self.count}

    @property
    def count(self) -> int:
        """The number of texts in the training files, with those that are held out."""
        return self.statistics.count

    @property
    def has_validation(self) -> bool:
        """Whether validation files are given."""
        return self.validation_statistics is not None

    @cached_property
    def held_out(self) -> SplitMask:
        """For each text whether it is held out."""
        fraction = 0.0 if self.has_validation else self.config.validation_fraction
        return select_validation(self.statistics.hashes, fraction, self.statistics.numbers)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was read, and what the user should know about it."""
        training, validation = self.statistics, self.validation_statistics
        notes = [_text_summary(training, self.inputs, "text", f" with {plural(len(training.labels), 'label')}")]
        if validation is not None:
            notes.append(_text_summary(validation, self.validation, "validation text"))
            notes += overlap_warnings(validation.hashes, training.hashes, "texts")
        return (*notes, *self.log.notes, *self.notes)


def _text_summary(found: LabelledTextStatistics, inputs: Sequence[InputFile], noun: str, labels: str = "") -> str:
    empty = found.empty
    return read_summary(plural(found.count + len(empty), noun) + labels, (file.path for file in inputs), "", len(empty),
                        f"{len(empty):,} without text (first: {empty[0]})" if empty else "")


def survey_texts(data: Sequence[str], validation: Sequence[str], config: DataConfig,
                 progress: ProgressHook = iter) -> TextSurvey:
    """Read all files once."""
    inputs, others = open_inputs(data), open_inputs(validation)
    log = ReadLog()
    statistics = _text_statistics(inputs, progress, None, log)
    check_classes(", ".join(file.name for file in inputs), statistics.labels)
    other = _text_statistics(others, iter, statistics.labels, log) if others else None
    if other is not None and not other.count:
        raise DataError(f"{', '.join(validation)}: No validation texts found: every line is without text.")
    return TextSurvey(file_digests([*data, *validation]), config, inputs, statistics, others, other, log)


def _text_statistics(inputs: Sequence[InputFile], progress: ProgressHook, known: tuple[str, ...] | None,
                     log: ReadLog) -> LabelledTextStatistics:
    hashes, names, empty = array("Q"), list[str](), list[str]()
    aligned = Counter[str]()
    for example in _nonblank_texts(inputs, empty, progress, log):
        aligned.update(unit for unit in UNITS if len(split_tokens(example.text, unit))
                       == len(split_tokens(example.label, unit)) > 1)
        if known is not None and example.label not in known:
            raise DataError(f'{example.location}: The label "{printable(example.label)}" is not in the training data, '
                            "so it cannot be learned. Correct it, or remove the line.")
        hashes.append(hash_texts(example.text))
        names.append(example.label)
    for unit in UNITS:
        if names and aligned[unit] == len(names):
            log.note(f"Every label has as many {unit}s as its text. It is taken as the label of the whole text; for a "
                     f"label for every {unit}, use --task label.")
    labels, numbers = number_labels(names, known)
    return LabelledTextStatistics(labels, numbers, np.array(hashes, np.uint64), tuple(empty))


def _nonblank_texts(inputs: Sequence[InputFile], empty: list[str], progress: ProgressHook = iter,
                    log: ReadLog | None = None) -> Iterator[LabelledText]:
    """The texts with at least one visible character; the places of others are added to `empty`."""
    for example in progress(example for file in inputs for example in read_labelled_texts(file, log)):
        if is_blank(example.text):
            empty.append(str(example.location))
        else:
            yield example


@dataclass(frozen=True)
class PreparedLabelledTexts(PreparedTexts):
    """Training and validation texts as ids, with their label numbers."""

    labels: tuple[str, ...]
    training_labels: LabelIds
    validation_labels: LabelIds


def with_known_labels(statistics: LabelledTextStatistics, known: tuple[str, ...]) -> LabelledTextStatistics:
    """The statistics with the labels of a model that knows all of them, numbered as there."""
    numbers = np.array([known.index(name) for name in statistics.labels], np.int64)
    return replace(statistics, labels=known, numbers=numbers[statistics.numbers])


def prepare_labelled_texts(survey: TextSurvey, config: TokenizerConfig | None, place: Path,
                           **encoding: Any) -> PreparedLabelledTexts:
    """Train the tokenizer, or load the one trained before, and write all texts as ids into this folder.

    Args:
        encoding: the tokenizer of a model that is fine-tuned, and how it encodes texts; see `prepare_texts`.
    """
    training, statistics = ~survey.held_out, survey.statistics
    inputs, validation, numbers = survey.inputs, survey.held_out if survey.held_out.any() else training, None
    if survey.validation_statistics is not None:
        inputs, numbers = survey.validation, survey.validation_statistics.numbers
        validation = np.ones(len(numbers), np.bool_)
    prepared = prepare_texts(place, config, partial(_selected_texts, survey.inputs, training),
                             partial(_selected_texts, inputs, validation), data=list(survey.files.values()),
                             settings={"held": survey.config.validation_fraction, "given": survey.has_validation},
                             **encoding)
    return PreparedLabelledTexts(prepared.tokenizer, prepared.training, prepared.validation, prepared.notes,
                                 statistics.labels, statistics.numbers[training],
                                 statistics.numbers[validation] if numbers is None else numbers)


def _selected_texts(inputs: Sequence[InputFile], selected: SplitMask) -> Iterator[str]:
    return compress((example.text for example in _nonblank_texts(inputs, [])), selected)


class ImageSource(Protocol):
    """Labelled images of one data set."""

    name: str
    labels: Sequence[str]
    """The label of each image."""
    label_names: tuple[str, ...]
    """The distinct labels, sorted."""
    notes: tuple[str, ...]
    """Files that were not read."""

    @property
    def hashes(self) -> Hashes:
        """A hash of each image; equal images have equal hashes."""

    def files(self) -> dict[str, str]:
        """The sha256 of the files by name."""

    def shapes(self, progress: ProgressHook) -> list[ImageShape]:
        """The shapes of the images as they are stored, each distinct shape at least once."""

    def pixels(self, shape: ImageShape, numbers: LabelIds) -> Iterator[NDArray[np.uint8]]:
        """These images in this shape, (C, H, W) each."""

    def title(self, number: int) -> str:
        """The name of an image for the user."""


class ImageFolderSource:
    """A folder with a folder of images for each class."""

    def __init__(self, path: str) -> None:
        self.path, self.folder = path, images.read_image_folder(path)
        self.name, self.notes = self.folder.name, self.folder.notes
        self.labels: Sequence[str] = self.folder.labels
        self.label_names = tuple(sorted(set(self.labels)))

    @cached_property
    def digests(self) -> list[str]:
        """The sha256 of each file."""
        return [stores.file_digest(file) for file in self.folder.files]

    @property
    def hashes(self) -> Hashes:
        """The first 64 bits of each digest."""
        return np.array([int(digest[:16], 16) for digest in self.digests], np.uint64)

    def files(self) -> dict[str, str]:
        """One sha256 of the names and digests of all files."""
        total = hashlib.sha256()
        for file, digest in zip(self.folder.files, self.digests, strict=True):
            total.update(f"{'/'.join(file.parts[-2:])}\n{digest}\n".encode("utf-8", "surrogateescape"))
        return name_digests([(self.path, total.hexdigest())])

    def shapes(self, progress: ProgressHook) -> list[ImageShape]:
        """The shape of each image."""
        return [images.read_image_shape(file) for file in progress(self.folder.files)]

    def pixels(self, shape: ImageShape, numbers: LabelIds) -> Iterator[NDArray[np.uint8]]:
        """These images in this shape."""
        return (images.read_pixels(self.folder.files[number], shape) for number in numbers)

    def title(self, number: int) -> str:
        """The names of its folder and of its file."""
        return printable("/".join(self.folder.files[number].parts[-2:]))


class IdxImageSource:
    """Two IDX files, of images and of labels."""

    notes: tuple[str, ...] = ()

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths, self.name = paths, ", ".join(file.name for file in open_inputs(paths))
        self.images, values = images.read_idx_images(paths)
        self.labels: Sequence[str] = [str(value) for value in values.tolist()]
        self.label_names = tuple(str(value) for value in np.unique(values).tolist())

    @property
    def hashes(self) -> Hashes:
        """A hash of the bytes of each image."""
        return np.array([hash_bytes(image.tobytes()) for image in self.images], np.uint64)

    def files(self) -> dict[str, str]:
        """The sha256 of both files."""
        return file_digests(self.paths)

    def shapes(self, progress: ProgressHook) -> list[ImageShape]:
        """The one shape of all images, with one channel."""
        _, height, width = self.images.shape
        return [ImageShape(height, width, 1)]

    def pixels(self, shape: ImageShape, numbers: LabelIds) -> Iterator[NDArray[np.uint8]]:
        """These images in this shape."""
        return (images.resize_image(self.images[number], shape) for number in numbers)

    def title(self, number: int) -> str:
        """Its number, from 0."""
        return f"image {number}"


@dataclass(frozen=True)
class ImageSurvey:
    """Statistics of labelled images, and where they are read from."""

    files: dict[str, str]
    """The sha256 of every file, or of all files of a folder, by its name."""
    config: DataConfig
    source: ImageSource
    numbers: LabelIds
    """The label number of each image."""
    validation: ImageSource | None
    shape: ImageShape
    """The shape of the images if they all have one, or else the median of their heights and widths."""
    distinct_shapes: int
    notes: tuple[str, ...] = ()
    """What the user should know about how the images fit the model that is fine-tuned."""

    @property
    def counts(self) -> dict[str, int]:
        """The number of images, with those that are held out."""
        return {"images": self.count}

    @property
    def count(self) -> int:
        """The number of images in the training data, with those that are held out."""
        return len(self.numbers)

    @property
    def has_validation(self) -> bool:
        """Whether validation images are given."""
        return self.validation is not None

    @cached_property
    def held_out(self) -> SplitMask:
        """For each image whether it is held out."""
        fraction = 0.0 if self.has_validation else self.config.validation_fraction
        return select_validation(self.source.hashes, fraction, self.numbers)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was read, and what the user should know about it."""
        classes = plural(len(self.source.label_names), "class", "classes")
        warnings = [read_summary(f"{plural(self.count, 'image')} of {classes}", [self.source.name]), *self.source.notes]
        if self.validation is not None:
            count = plural(len(self.validation.labels), "validation image")
            warnings += [read_summary(count, [self.validation.name]), *self.validation.notes]
        if self.distinct_shapes > 1:
            warnings.append(f"The images have {self.distinct_shapes:,} different shapes: all are resized to one.")
        if self.validation is not None:
            warnings += overlap_warnings(self.validation.hashes, self.source.hashes, "images")
        return (*warnings, *self.notes)


def survey_images(source: ImageSource, validation: ImageSource | None, config: DataConfig,
                  progress: ProgressHook = iter) -> ImageSurvey:
    """Look at all images once."""
    check_classes(source.name, source.label_names)
    for number, label in enumerate(() if validation is None else validation.labels):
        if validation is not None and label not in source.label_names:
            raise DataError(f'{validation.name}: {validation.title(number)} has the label "{printable(label)}", which '
                            "is not in the training data, so it cannot be learned. Correct it, or remove the image.")
    shapes = source.shapes(progress)
    files = [item for one in (source, validation) if one is not None for item in one.files().items()]
    return ImageSurvey(name_digests(files), config, source, number_labels(source.labels, source.label_names)[1],
                       validation, _common_shape(shapes), len(set(shapes)))


def _common_shape(shapes: list[ImageShape]) -> ImageShape:
    """The shape of all images, or the median of each size; in colour if any image is."""
    height, width = (int(np.median([shape[side] for shape in shapes])) for side in (0, 1))
    return ImageShape(height, width, max(shape.channels for shape in shapes))


@dataclass(frozen=True)
class PreparedImages:
    """Training and validation images as bytes of one shape, with their label numbers."""

    labels: tuple[str, ...]
    original_shape: ImageShape
    shape: ImageShape
    training: TextStore
    training_labels: LabelIds
    validation: TextStore
    validation_labels: LabelIds
    titles: tuple[str, ...]
    """The names of the validation images."""
    notes: tuple[str, ...]


def prepare_images(survey: ImageSurvey, place: Path, shape: ImageShape | None = None) -> PreparedImages:
    """Write all images into this folder as bytes of one shape, by default that of the survey."""
    shape = survey.shape if shape is None else shape
    settings = {"shape": list(shape), "held": survey.config.validation_fraction, "given": survey.has_validation}
    key = stores.store_key(list(survey.files.values()), "", settings)
    training, other = ~survey.held_out, survey.source
    validation = survey.held_out if survey.held_out.any() else training
    if survey.validation is not None:
        other, validation = survey.validation, np.ones(len(survey.validation.labels), np.bool_)
    opened = [stores.open_or_make_texts(place / name, key, partial(_image_bytes, source, shape, selected),
                                        vocabulary=BYTE_VALUES)
              for name, source, selected in (("pixels", survey.source, training), ("held", other, validation))]
    labels = survey.source.label_names
    return PreparedImages(labels, survey.shape, shape, opened[0].store, survey.numbers[training], opened[1].store,
                          number_labels(other.labels, labels)[1][validation],
                          tuple(other.title(int(number)) for number in np.flatnonzero(validation)),
                          (*opened[0].notes, *opened[1].notes))


def _image_bytes(source: ImageSource, shape: ImageShape, selected: SplitMask) -> Iterator[bytes]:
    return (image.tobytes() for image in source.pixels(shape, np.flatnonzero(selected)))
