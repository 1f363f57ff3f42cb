"""Images with labels, from their source to bytes on disk, all in one shape.

    survey_images(source, validation, config)     what is in the files
    prepare_images(survey, place, shape)          all images in one shape, as bytes

It does not know where images come from (`image_sources`), nor what is learned from them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from regard.data import store as stores
from regard.data.images.reading import Shape
from regard.data.pair import DataError
from regard.data.sources.inputs import shown
from regard.data.store import TextStore
from regard.training.settings import DataConfig
from regard.training.works.files import named
from regard.training.works.image_sources import Source
from regard.training.works.labels import Numbers, check_classes, numbered
from regard.training.works.sentences import Counting
from regard.training.works.splitting import Held, held_out

VALUES = 256
"""What a byte may be."""


@dataclass(frozen=True)
class ImageSurvey:
    """What is in the files."""

    files: dict[str, str]
    """The sha256 of every file, or of all files of a folder, by its name."""
    config: DataConfig
    source: Source
    numbers: Numbers
    """Of the label of each image."""
    validation: Source | None
    shape: Shape
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
    def held(self) -> Held:
        """For each image whether it is held out."""
        return held_out(self.source.hashes, 0.0 if self.validation is not None else self.config.held, self.numbers)

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


def survey_images(source: Source, validation: Source | None, config: DataConfig,
                  counted: Counting = iter) -> ImageSurvey:
    """Look at all images once."""
    check_classes(source.name, source.names)
    for number, label in enumerate(() if validation is None else validation.labels):
        if validation is not None and label not in source.names:
            raise DataError(f'{validation.name}: {validation.shown(number)} has the label "{shown(label)}", which is '
                            "not in the training data, so it cannot be learned. Mend it, or leave it out.")
    found = source.shapes(counted)
    files = [item for one in (source, validation) if one is not None for item in one.files().items()]
    return ImageSurvey(named(files), config, source, numbered(source.labels, source.names)[1], validation,
                       _common(found), len(set(found)))


@dataclass(frozen=True)
class PreparedImages:
    """Images as bytes of one shape, with the numbers of their labels."""

    survey: ImageSurvey
    shape: Shape
    training: TextStore
    training_labels: Numbers
    validation: TextStore
    validation_labels: Numbers
    shown: tuple[str, ...]
    """What the images are called that the model is judged by."""
    notes: tuple[str, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels."""
        return self.survey.labels


def prepare_images(survey: ImageSurvey, place: Path, shape: Shape | None = None) -> PreparedImages:
    """Read all images in one shape, that of the survey where no other is asked for."""
    shape = survey.shape if shape is None else shape
    key = stores.store_key(list(survey.files.values()), "", {"shape": list(shape), "held": survey.config.held,
                                                             "given": survey.validation is not None})
    learned = ~survey.held
    judged = survey.held if survey.held.any() else learned
    if survey.validation is not None:
        judged = np.ones(len(survey.validation.labels), np.bool_)
    other = survey.source if survey.validation is None else survey.validation
    stored, notes = [], list[str]()
    for name, source, chosen in (("pixels", survey.source, learned), ("held", other, judged)):
        opened = stores.open_or_make_texts(place / name, key, partial(_pixels, source, shape, chosen),
                                           vocabulary=VALUES)
        stored.append(opened.store)
        notes += opened.notes
    numbers = numbered(other.labels, survey.labels)[1]
    names = tuple(other.shown(int(number)) for number in np.flatnonzero(judged))
    return PreparedImages(survey, shape, stored[0], survey.numbers[learned], stored[1], numbers[judged], names,
                          tuple(notes))


def _pixels(source: Source, shape: Shape, chosen: Held) -> Iterator[bytes]:
    return (image.tobytes() for image in source.pixels(shape, np.flatnonzero(chosen)))


def _common(shapes: list[Shape]) -> Shape:
    """The shape of all, or the median of each size; in colours if any image is."""
    height, breadth = (int(np.median([shape[way] for shape in shapes])) for way in (0, 1))
    return Shape(height, breadth, max(shape.channels for shape in shapes))
