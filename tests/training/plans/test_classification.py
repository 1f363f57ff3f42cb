"""The plan of classifiers: in which size images are read, and what is told of it."""

import struct
from pathlib import Path

import numpy as np
import pytest
from planned import CPU, plain

from regard.training.config import DataConfig
from regard.training.tasks.classification import ClassificationSetup
from regard.training.tasks.interface import TrainingRequest


@pytest.fixture
def request_of(tmp_path):
    """A request to learn from grey images of a shape."""

    def make(height, breadth, count=4):
        images = np.arange(count * height * breadth, dtype=np.int64).astype(np.uint8)
        (tmp_path / "images").write_bytes(struct.pack(">IIII", 0x803, count, height, breadth) + images.tobytes())
        (tmp_path / "labels").write_bytes(struct.pack(">II", 0x801, count) + bytes(n % 2 for n in range(count)))
        return TrainingRequest("classify", (str(tmp_path / "images"), str(tmp_path / "labels")), Path("model"))

    return make


@pytest.mark.parametrize(("natural", "model", "read", "told"), [
    ((28, 28), {}, (28, 28), "the size of the images"),
    ((97, 97), {}, (96, 96), "too many patches"),
    ((97, 97), {"patch_size": 97}, (97, 97), "the size of the images"),
    ((97, 97), {"image_height": 12, "image_width": 8}, (12, 8), ""),
])
def test_images_are_read_as_they_are_unless_they_are_cut_badly(request_of, tmp_path, natural, model, read, told):
    plan = ClassificationSetup()
    survey = plan.survey(request_of(*natural), DataConfig())
    prepared = plan.prepare(survey, plain({"data": {}, "model": model}), tmp_path / "data")
    assert prepared.shape == (*read, 1)
    assert {len(prepared.training[number]) for number in range(4)} == {read[0] * read[1]}
    found = {choice.key: choice for choice in plan.training_defaults(prepared, {"model": model}, CPU)}
    assert (found["model.image_height"].value, found["model.image_width"].value) == read
    assert told in found["model.image_height"].reason
