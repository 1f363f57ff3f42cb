"""Labelled texts and images on their way from files to ids or bytes on disk, for classification.

    survey_texts(data, validation, config)        statistics of TSV files: a text, a tab and a label on each line
    prepare_texts(survey, tokenizer, place)       a tokenizer, trained once, and all texts as ids
    survey_images(source, validation, config)     statistics of a folder with one folder a class, or of two IDX files
    prepare_images(survey, place, shape)          all images as bytes of one shape

Lines without text are skipped and reported. Images of a folder are read one by one; IDX files are read whole. Labels
are numbered in sorted order, from 0.
"""

import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import compress
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from regard.data import filters, images
from regard.data import store as stores
from regard.data.filters import is_blank
from regard.data.images import ImageShape
from regard.data.sources.text import DataError, InputFile, printable
from regard.data.sources.tsv import LabelledText, read_labelled_texts
from regard.data.store import TextStore
from regard.data.tokenizer.interface import Tokenizer
from regard.data.tokenizer.training import TokenizerConfig
from regard.training.config import DataConfig
from regard.training.tasks.common import (
    Counting,
    Hashes,
    SplitMask,
    file_digests,
    hash_bytes,
    in_blocks,
    load_or_train_tokenizer,
    name_digests,
    open_inputs,
    select_validation,
    text_lengths,
)

LabelIds = NDArray[np.int64]


def number_labels(names: Sequence[str], known: tuple[str, ...] | None = None) -> tuple[tuple[str, ...], LabelIds]:
    """The different names, or those that are known already, and the number of each of the names given."""
    labels = tuple(sorted(set(names))) if known is None else known
    number = {name: index for index, name in enumerate(labels)}
    return labels, np.array([number[name] for name in names], np.int64)


def check_classes(where: str, labels: Sequence[str]) -> None:
    """Refuse data that has nothing to tell apart."""
    if not labels:
        raise DataError(f"{where}: There is nothing to learn from in it. Give some that has labels.")
    if len(labels) == 1:
        raise DataError(f'{where}: All have the same label, "{printable(labels[0])}", so there is nothing to tell apart. '
                        "Give data with at least two labels.")


# ---- labelled_texts: Texts with labels, from TSV files to ids on disk.
#
#     survey_texts(data, validation, config)        what is in the files
#     prepare_texts(survey, tokenizer, place)       a tokenizer, trained once, and all texts as ids
#
# Lines without text are left out, and told. It does not know what is learned from the texts.

TEXTS_PER_BLOCK = 1024
"""Texts that are encoded in one go."""


@dataclass(frozen=True)
class LabelledTextStatistics:
    """What was met in texts with labels."""

    labels: tuple[str, ...]
    """The names, sorted."""
    numbers: LabelIds
    """Of the label of each text."""
    hashes: Hashes
    characters: int
    distinct: frozenset[str]
    """The different characters."""
    longest: int
    """Characters of the longest text."""
    empty: tuple[str, ...]
    """Where texts stand that are left out."""

    @property
    def count(self) -> int:
        """How many texts are kept."""
        return len(self.numbers)


@dataclass(frozen=True)
class TextSurvey:
    """What is in the files."""

    files: dict[str, str]
    """The sha256 of every file by its name."""
    config: DataConfig
    inputs: tuple[InputFile, ...]
    found: LabelledTextStatistics
    validation: tuple[InputFile, ...]
    given: LabelledTextStatistics | None
    """What was met in the validation data, with the labels of the training data; None where none is given."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels, sorted."""
        return self.found.labels

    @property
    def count(self) -> int:
        """How many texts there are to learn from, those that are held out among them."""
        return self.found.count

    @cached_property
    def held(self) -> SplitMask:
        """For each text whether it is held out."""
        share = 0.0 if self.given is not None else self.config.validation_fraction
        return select_validation(self.found.hashes, share, self.found.numbers)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should know of the data."""
        told = []
        for one in (self.found, self.given):
            if one is not None and one.empty:
                told.append(f"{len(one.empty):,} lines have no text and are left out, the first at {one.empty[0]}.")
        if self.given is not None:
            both = int(np.isin(self.given.hashes, self.found.hashes).sum())
            if both:
                told.append(f"{both:,} of {self.given.count:,} validation texts are in the training data too.")
        return tuple(told)


def survey_texts(data: Sequence[str], validation: Sequence[str], config: DataConfig,
                 counted: Counting = iter) -> TextSurvey:
    """Read all texts once."""
    files, others = open_inputs(data), open_inputs(validation)
    found = _text_statistics(files, counted, None)
    check_classes(", ".join(input.name for input in files), found.labels)
    given = _text_statistics(others, iter, found.labels) if others else None
    if given is not None and not given.count:
        raise DataError(f"{', '.join(validation)}: There is not a single text to judge by. Give a file with some.")
    return TextSurvey(file_digests([*data, *validation]), config, files, found, others, given)


@dataclass(frozen=True)
class PreparedTexts:
    """Texts as ids, with the numbers of their labels."""

    survey: TextSurvey
    tokenizer: Tokenizer
    training: TextStore
    training_labels: LabelIds
    validation: TextStore
    validation_labels: LabelIds
    notes: tuple[str, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels."""
        return self.survey.labels

    @property
    def vocabulary(self) -> int:
        """How many ids there are."""
        return self.tokenizer.size

    @property
    def tokens(self) -> int:
        """How many are learned from."""
        return len(self.training.stream)

    @property
    def longest(self) -> int:
        """Ids of the longest text."""
        return int(text_lengths(self.training).max())


def prepare_texts(survey: TextSurvey, config: TokenizerConfig, place: Path,
                  tokenizer: Tokenizer | None = None) -> PreparedTexts:
    """Train the tokenizer, or read the one that was trained before, and encode all texts."""
    data, settings = list(survey.files.values()), {"held": survey.config.validation_fraction, "given": survey.given is not None}
    learned, notes = ~survey.held, list[str]()
    judged = survey.held if survey.held.any() else learned
    if tokenizer is None:
        trained = load_or_train_tokenizer(place, partial(_selected_texts, survey.inputs, learned), config, data=data, settings=settings)
        tokenizer, notes = trained.tokenizer, [*trained.notes]
    key = stores.store_key(data, tokenizer.sha256, settings)
    of_judged = (partial(_selected_texts, survey.inputs, judged) if survey.given is None
                 else partial(_selected_texts, survey.validation, np.ones(survey.given.count, np.bool_)))
    stored = []
    for name, texts in (("ids", partial(_selected_texts, survey.inputs, learned)), ("held", of_judged)):
        opened = stores.open_or_make_texts(place / name, key, partial(_encode_texts, tokenizer, texts),
                                           vocabulary=tokenizer.size)
        stored.append(opened.store)
        notes += opened.notes
    numbers = survey.found.numbers
    return PreparedTexts(survey, tokenizer, stored[0], numbers[learned], stored[1],
                         numbers[judged] if survey.given is None else survey.given.numbers, tuple(notes))


def _nonblank_texts(inputs: Sequence[InputFile], empty: list[str], counted: Counting = iter) -> Iterator[LabelledText]:
    """The texts, but for those without anything to read, which are noted."""
    for one in counted(one for input in inputs for one in read_labelled_texts(input)):
        if is_blank(one.text):
            empty.append(str(one.location))
        else:
            yield one


def _selected_texts(inputs: Sequence[InputFile], chosen: SplitMask) -> Iterator[str]:
    return compress((one.text for one in _nonblank_texts(inputs, [])), chosen)


def _encode_texts(tokenizer: Tokenizer, texts: Callable[[], Iterable[str]]) -> Iterator[list[int]]:
    for block in in_blocks(texts(), TEXTS_PER_BLOCK):
        yield from tokenizer.encode_batch(block)


def _text_statistics(inputs: Sequence[InputFile], counted: Counting, known: tuple[str, ...] | None) -> LabelledTextStatistics:
    hashes, names, empty, distinct, characters, longest = array("Q"), list[str](), list[str](), set[str](), 0, 0
    for one in _nonblank_texts(inputs, empty, counted):
        if known is not None and one.label not in known:
            raise DataError(f'{one.location}: The label "{printable(one.label)}" is not in the training data, so it cannot be '
                            f"learned. Mend it, or leave the line out.")
        hashes.append(filters.hash_texts(one.text))
        names.append(one.label)
        distinct.update(one.text)
        characters, longest = characters + len(one.text), max(longest, len(one.text))
    labels, numbers = number_labels(names, known)
    return LabelledTextStatistics(labels, numbers, np.array(hashes, np.uint64), characters, frozenset(distinct), longest, tuple(empty))


# ---- image_sources: Where images with labels come from: a folder with a folder for each class, or two IDX files.
#
# Of a folder the images are read one by one, and never all of them at once; IDX files are read whole. It does not know
# what the images are for.


class ImageSource(Protocol):
    """Images of one set."""

    name: str
    labels: Sequence[str]
    """Of each image."""
    names: tuple[str, ...]
    """The different labels, sorted."""
    notes: tuple[str, ...]
    """What was not read."""

    @property
    def hashes(self) -> Hashes:
        """Of each image; equal ones have equal hashes."""

    def files(self) -> dict[str, str]:
        """The sha256 of all by their names."""

    def shapes(self, counted: Counting) -> list[ImageShape]:
        """What the images are by themselves, each of the shapes that there are at least once."""

    def pixels(self, shape: ImageShape, numbers: LabelIds) -> Iterator[NDArray[np.uint8]]:
        """These images in this shape, (C, H, W) each."""

    def shown(self, number: int) -> str:
        """What an image is called."""


class ImageFolderSource:
    """A folder with a folder of images for each class."""

    def __init__(self, path: str) -> None:
        self.path, self.folder = path, images.read_image_folder(path)
        self.name, self.notes = self.folder.name, self.folder.notes
        self.labels: Sequence[str] = self.folder.labels
        self.names = tuple(sorted(set(self.labels)))

    @cached_property
    def digests(self) -> list[str]:
        """The sha256 of each file."""
        return [stores.file_digest(file) for file in self.folder.files]

    @property
    def hashes(self) -> Hashes:
        """Of each file."""
        return np.array([int(digest[:16], 16) for digest in self.digests], np.uint64)

    def files(self) -> dict[str, str]:
        """One sha256 of all files with their names."""
        whole = hashlib.sha256()
        for file, digest in zip(self.folder.files, self.digests, strict=True):
            whole.update(f"{'/'.join(file.parts[-2:])}\n{digest}\n".encode("utf-8", "surrogateescape"))
        return name_digests([(self.path, whole.hexdigest())])

    def shapes(self, counted: Counting) -> list[ImageShape]:
        """What the images are by themselves."""
        return [images.read_image_shape(file) for file in counted(self.folder.files)]

    def pixels(self, shape: ImageShape, numbers: LabelIds) -> Iterator[NDArray[np.uint8]]:
        """These images in this shape."""
        return (images.read_pixels(self.folder.files[number], shape) for number in numbers)

    def shown(self, number: int) -> str:
        """The names of its folder and of itself."""
        return printable("/".join(self.folder.files[number].parts[-2:]))


class IdxImageSource:
    """Two IDX files, of images and of labels."""

    notes: tuple[str, ...] = ()

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths, self.name = paths, ", ".join(input.name for input in open_inputs(paths))
        self.images, values = images.read_idx_images(paths)
        self.labels: Sequence[str] = [str(value) for value in values.tolist()]
        self.names = tuple(str(value) for value in np.unique(values).tolist())

    @property
    def hashes(self) -> Hashes:
        """Of the bytes of each image."""
        return np.array([hash_bytes(image.tobytes()) for image in self.images], np.uint64)

    def files(self) -> dict[str, str]:
        """The sha256 of both files."""
        return file_digests(self.paths)

    def shapes(self, counted: Counting) -> list[ImageShape]:
        """What the images are by themselves: all alike, and grey."""
        _, height, breadth = self.images.shape
        return [ImageShape(height, breadth, 1)]

    def pixels(self, shape: ImageShape, numbers: LabelIds) -> Iterator[NDArray[np.uint8]]:
        """These images in this shape."""
        return (images.resize_image(self.images[number], shape) for number in numbers)

    def shown(self, number: int) -> str:
        """Its number, from 0."""
        return f"image {number}"


# ---- labelled_images: Images with labels, from their source to bytes on disk, all in one shape.
#
#     survey_images(source, validation, config)     what is in the files
#     prepare_images(survey, place, shape)          all images in one shape, as bytes
#
# It does not know where images come from (`image_sources`), nor what is learned from them.

BYTE_VALUES = 256
"""What a byte may be."""


@dataclass(frozen=True)
class ImageSurvey:
    """What is in the files."""

    files: dict[str, str]
    """The sha256 of every file, or of all files of a folder, by its name."""
    config: DataConfig
    source: ImageSource
    numbers: LabelIds
    """Of the label of each image."""
    validation: ImageSource | None
    shape: ImageShape
    """Of the images, where they all have one; or else the median of their heights and breadths."""
    sizes: int
    """How many shapes there are."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels, sorted."""
        return self.source.names

    @property
    def count(self) -> int:
        """How many images there are to learn from, those that are held out among them."""
        return len(self.numbers)

    @cached_property
    def held(self) -> SplitMask:
        """For each image whether it is held out."""
        return select_validation(self.source.hashes, 0.0 if self.validation is not None else self.config.validation_fraction, self.numbers)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should know of the data."""
        told = [*self.source.notes, *(() if self.validation is None else self.validation.notes)]
        if self.sizes > 1:
            told.append(f"There are images of {self.sizes:,} different shapes: all are stretched to one.")
        if self.validation is not None:
            both = int(np.isin(self.validation.hashes, self.source.hashes).sum())
            if both:
                told.append(f"{both:,} of {len(self.validation.labels):,} validation images are in the training data "
                            "too.")
        return tuple(told)


def survey_images(source: ImageSource, validation: ImageSource | None, config: DataConfig,
                  counted: Counting = iter) -> ImageSurvey:
    """Look at all images once."""
    check_classes(source.name, source.names)
    for number, label in enumerate(() if validation is None else validation.labels):
        if validation is not None and label not in source.names:
            raise DataError(f'{validation.name}: {validation.shown(number)} has the label "{printable(label)}", which is '
                            "not in the training data, so it cannot be learned. Mend it, or leave it out.")
    found = source.shapes(counted)
    files = [item for one in (source, validation) if one is not None for item in one.files().items()]
    return ImageSurvey(name_digests(files), config, source, number_labels(source.labels, source.names)[1], validation,
                       _common_shape(found), len(set(found)))


@dataclass(frozen=True)
class PreparedImages:
    """Images as bytes of one shape, with the numbers of their labels."""

    survey: ImageSurvey
    shape: ImageShape
    training: TextStore
    training_labels: LabelIds
    validation: TextStore
    validation_labels: LabelIds
    shown: tuple[str, ...]
    """What the images are called that the model is judged by."""
    notes: tuple[str, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels."""
        return self.survey.labels


def prepare_images(survey: ImageSurvey, place: Path, shape: ImageShape | None = None) -> PreparedImages:
    """Read all images in one shape, that of the survey where no other is asked for."""
    shape = survey.shape if shape is None else shape
    key = stores.store_key(list(survey.files.values()), "", {"shape": list(shape), "held": survey.config.validation_fraction,
                                                             "given": survey.validation is not None})
    learned = ~survey.held
    judged = survey.held if survey.held.any() else learned
    if survey.validation is not None:
        judged = np.ones(len(survey.validation.labels), np.bool_)
    other = survey.source if survey.validation is None else survey.validation
    stored, notes = [], list[str]()
    for name, source, chosen in (("pixels", survey.source, learned), ("held", other, judged)):
        opened = stores.open_or_make_texts(place / name, key, partial(_image_bytes, source, shape, chosen),
                                           vocabulary=BYTE_VALUES)
        stored.append(opened.store)
        notes += opened.notes
    numbers = number_labels(other.labels, survey.labels)[1]
    names = tuple(other.shown(int(number)) for number in np.flatnonzero(judged))
    return PreparedImages(survey, shape, stored[0], survey.numbers[learned], stored[1], numbers[judged], names,
                          tuple(notes))


def _image_bytes(source: ImageSource, shape: ImageShape, chosen: SplitMask) -> Iterator[bytes]:
    return (image.tobytes() for image in source.pixels(shape, np.flatnonzero(chosen)))


def _common_shape(shapes: list[ImageShape]) -> ImageShape:
    """The shape of all, or the median of each size; in colours if any image is."""
    height, breadth = (int(np.median([shape[way] for shape in shapes])) for way in (0, 1))
    return ImageShape(height, breadth, max(shape.channels for shape in shapes))
