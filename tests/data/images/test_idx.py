"""IDX files: what is written comes back, plain or gzip, under any name; what does not fit its header is refused."""

import gzip
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from regard.data import images
from regard.data.sources.text import DataError


def packed(array, kind=0x08):
    """The bytes of an IDX file."""
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, kind, array.ndim]) + sizes + array.tobytes()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("idx")


@given(arrays.arrays(np.uint8, arrays.array_shapes(min_dims=1, max_dims=4, max_side=5)), st.booleans())
def test_what_is_written_comes_back(place, array, squeezed):
    path = place / "anything"
    path.write_bytes(gzip.compress(packed(array)) if squeezed else packed(array))
    assert images.is_idx(path)
    assert np.array_equal(images.read_idx(path), array)


@pytest.mark.parametrize("text", [
    b"", b"\0", b"a text\tlabel\n", b"\0\0\x08", b"\0\0\x07\x01\0\0\0\0", b"\0\0\x08\x00",
])
def test_what_is_no_idx(tmp_path, text):
    path = tmp_path / "images-idx3-ubyte"
    path.write_bytes(text)
    assert not images.is_idx(path)
    with pytest.raises(DataError, match="images-idx3-ubyte: This is not an IDX file"):
        images.read_idx(path)


IMAGES = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)


@pytest.mark.parametrize(("data", "message"), [
    (packed(IMAGES)[:-1], r"header announces 2 × 3 × 4 = 24 bytes, but there are 23\. Download it again"),
    (packed(IMAGES) + b"\0", "24 bytes, but there are more"),
    (packed(IMAGES)[:9], "It ends inside its header"),
    (packed(IMAGES, kind=0x0D), "holds 32-bit floats, but only bytes are supported"),
    (b"\0\0\x08\x03" + b"\xff" * 12 + b"1", "but there are 1"),  # 10^28 bytes are not allocated
])
def test_a_header_that_does_not_fit(tmp_path, data, message):
    path = tmp_path / "some.idx"
    path.write_bytes(data)
    with pytest.raises(DataError, match=f"some.idx: .*{message}"):
        images.read_idx(path)


def test_a_file_that_cannot_be_unpacked_or_read(tmp_path):
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(packed(IMAGES))[:-9])
    with pytest.raises(DataError, match=r"cut.gz: The gzip data ends too early"):
        images.read_idx(cut)
    with pytest.raises(DataError, match="There is no such file"):
        images.is_idx(tmp_path / "none")


def written(folder, **files):
    paths = []
    for name, array in files.items():
        (folder / name).write_bytes(packed(array))
        paths.append(folder / name)
    return paths


def test_images_and_labels_in_either_order(tmp_path):
    labels = np.array([7, 1], np.uint8)
    paths = written(tmp_path, one=IMAGES, other=labels)
    for order in (paths, paths[::-1]):
        found = images.read_idx_images(order)
        assert np.array_equal(found.images, IMAGES)
        assert np.array_equal(found.labels, labels)


@pytest.mark.parametrize(("files", "message"), [
    ({"one": IMAGES}, "Images come in two IDX files"),
    ({"one": IMAGES, "other": IMAGES}, "Images come in two IDX files"),
    ({"one": IMAGES, "other": IMAGES[0]}, r"other has the shape \(3, 4\)"),
    ({"one": IMAGES, "other": np.zeros(2, np.uint8), "third": IMAGES}, "Images come in two IDX files"),
    ({"one": IMAGES, "other": np.zeros(3, np.uint8)}, "one has 2 images, but .*other has 3 labels"),
    ({"one": IMAGES[:0], "other": np.zeros(0, np.uint8)}, "one: There is not a single image"),
])
def test_files_that_do_not_belong_together(tmp_path, files, message):
    with pytest.raises(DataError, match=re.compile(message, re.DOTALL)):
        images.read_idx_images(written(tmp_path, **files))
