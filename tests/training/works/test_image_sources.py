"""Two sources of images behind one interface: folders and IDX files."""

import numpy as np
import pytest

from regard.data.images import ImageShape
from regard.training.tasks.labelled_data import IdxImageSource, ImageFolderSource

IMAGES = np.random.default_rng(0).integers(0, 256, (4, 5, 6), dtype=np.uint8)
LABELS = ["10", "2", "10", "2"]


def idx_files(folder, images=IMAGES, labels=LABELS):
    folder.mkdir(exist_ok=True)
    values = np.array([int(label) for label in labels], np.uint8)
    paths = []
    for name, array in (("images", images), ("labels", values)):
        sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
        (folder / name).write_bytes(bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes())
        paths.append(str(folder / name))
    return paths


def image_folder(folder, images=IMAGES, labels=LABELS):
    image = pytest.importorskip("PIL.Image")
    for number, (array, label) in enumerate(zip(images, labels, strict=True)):
        (folder / label).mkdir(parents=True, exist_ok=True)
        image.fromarray(array).save(folder / label / f"{number}.png")
    return str(folder)


def pixels(source, shape, numbers):
    return np.stack(list(source.pixels(shape, np.array(numbers))))


def test_idx_files(tmp_path):
    source = IdxImageSource(idx_files(tmp_path))
    assert list(source.labels) == LABELS
    assert source.label_names == ("2", "10")  # in the order of numbers
    assert source.shapes(iter) == [ImageShape(5, 6, 1)]
    assert np.array_equal(pixels(source, ImageShape(5, 6, 1), [3, 0])[:, 0], IMAGES[[3, 0]])
    assert source.title(3) == "image 3"
    assert list(source.files()) == ["images", "labels"]
    assert len(set(source.hashes.tolist())) == 4


def test_a_folder(tmp_path):
    source = ImageFolderSource(image_folder(tmp_path / "set"))
    assert list(source.labels) == ["10", "10", "2", "2"]
    assert source.label_names == ("10", "2")
    assert source.shapes(iter) == [ImageShape(5, 6, 1)] * 4
    assert np.array_equal(pixels(source, ImageShape(5, 6, 1), [0, 1, 2, 3])[:, 0], IMAGES[[0, 2, 1, 3]])
    assert source.title(2) == "2/1.png"
    assert pixels(source, ImageShape(4, 4, 3), [1]).shape == (1, 3, 4, 4)


def test_the_digest_of_a_folder_is_of_names_and_contents(tmp_path):
    first = ImageFolderSource(image_folder(tmp_path / "set")).files()
    assert ImageFolderSource(image_folder(tmp_path / "again" / "set")).files() == first
    moved = ImageFolderSource(image_folder(tmp_path / "moved" / "set", labels=["11", "2", "11", "2"])).files()
    changed = ImageFolderSource(image_folder(tmp_path / "changed" / "set", images=IMAGES[::-1])).files()
    assert list(first) == list(moved) == ["set"]
    assert len({first["set"], moved["set"], changed["set"]}) == 3


def test_equal_images_have_equal_hashes(tmp_path):
    images = IMAGES[[0, 1, 0, 2]]
    of_idx = IdxImageSource(idx_files(tmp_path / "idx", images)).hashes
    assert of_idx[0] == of_idx[2] != of_idx[1]
    of_folder = ImageFolderSource(image_folder(tmp_path / "set", images, ["a", "b", "c", "d"])).hashes
    assert of_folder[0] == of_folder[2] != of_folder[1]
