"""Images with labels: the shape they share, which are held out, and bytes that keep their labels."""

import numpy as np
import pytest

from regard.data.images import ImageShape
from regard.data.sources.text import DataError
from regard.training.config import DataConfig
from regard.training.tasks.labelled_data import prepare_images, survey_images

CHANCE = np.random.default_rng(0)


class Drawn:
    """A source in memory: the first byte of an image is its number."""

    notes = ()

    def __init__(self, labels, shapes=((4, 4, 1),), name="drawn", first=0):
        self.labels, self.name, self.first = labels, name, first
        self.label_names = tuple(sorted(set(labels)))
        self._shapes = [ImageShape(*shape) for shape in shapes]

    @property
    def hashes(self):
        numbers = np.arange(self.first, self.first + len(self.labels)).astype(np.uint64)
        return numbers * np.uint64(7919) % np.uint64(1009)

    def files(self):
        return {self.name: str(self.first)}

    def shapes(self, counted):
        return list(counted(self._shapes))

    def pixels(self, shape, numbers):
        for number in numbers:
            yield np.full((shape.channels, shape.height, shape.width), number, np.uint8)

    def title(self, number):
        return f"{self.name} {number}"


def test_what_is_in_the_files():
    survey = survey_images(Drawn(["b", "a"] * 20), None, DataConfig(validation_fraction=0.25))
    assert survey.source.label_names == ("a", "b")
    assert survey.numbers.tolist() == [1, 0] * 20
    assert (survey.count, survey.shape, survey.distinct_shapes, survey.warnings) == (40, ImageShape(4, 4, 1), 1, ())
    assert survey.held_out.sum() == 10


def test_images_of_several_shapes():
    survey = survey_images(Drawn(["a", "b"], [(4, 9, 1), (6, 5, 3), (5, 7, 1)]), None, DataConfig())
    assert survey.shape == ImageShape(5, 7, 3)
    assert survey.distinct_shapes == 3
    assert "3 different shapes" in survey.warnings[0]


def test_bytes_keep_their_labels(tmp_path):
    labels = [str(number % 4) for number in range(40)]
    prepared = prepare_images(survey_images(Drawn(labels), None, DataConfig(validation_fraction=0.25)), tmp_path, ImageShape(2, 3, 3))
    assert prepared.shape == ImageShape(2, 3, 3)
    found = []
    for store, numbers in ((prepared.training, prepared.training_labels),
                           (prepared.validation, prepared.validation_labels)):
        images = store.stream.reshape(-1, 18)
        assert (images == images[:, :1]).all()
        assert [prepared.labels[number] for number in numbers] == [labels[first] for first in images[:, 0]]
        found += images[:, 0].tolist()
    assert sorted(found) == list(range(40))
    assert prepared.titles == tuple(f"drawn {number}" for number in prepared.validation.stream.reshape(-1, 18)[:, 0])


def test_validation_that_is_given(tmp_path):
    given = Drawn(["b", "a", "b"], name="given", first=39)
    survey = survey_images(Drawn(["a", "b"] * 20), given, DataConfig(validation_fraction=0.5))
    assert survey.warnings == ("1 of 3 validation images are in the training data too.",)
    assert survey.files == {"drawn": "0", "given": "39"}
    prepared = prepare_images(survey, tmp_path)
    assert len(prepared.training) == 40
    assert prepared.validation_labels.tolist() == [1, 0, 1]
    assert prepared.titles[1] == "given 1"


def test_with_nothing_held_out_it_is_judged_by_what_it_learned(tmp_path):
    prepared = prepare_images(survey_images(Drawn(["a", "b"]), None, DataConfig()), tmp_path)
    assert prepared.training_labels.tolist() == prepared.validation_labels.tolist() == [0, 1]


def test_what_cannot_be_learned():
    with pytest.raises(DataError, match='drawn: All examples have the same label, "a"'):
        survey_images(Drawn(["a", "a"]), None, DataConfig())
    with pytest.raises(DataError, match='given: given 1 has the label "c", which is not in the training data'):
        survey_images(Drawn(["a", "b"]), Drawn(["a", "c"], name="given"), DataConfig())
