"""Images: files, folders of classes, IDX, and scaling."""

import gzip
import io
import os
import random
import re
import struct
import sys
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from regard.data import images
from regard.data.images import ImageShape, read_image, read_image_shape, read_pixels, resize_image, scale_pixels
from regard.data.sources.text import DataError

Image = pytest.importorskip("PIL.Image")
COLOURS = np.random.default_rng(0).integers(0, 256, (6, 4, 3), dtype=np.uint8)


def saved(path, array, mode=None, **options):
    image = Image.fromarray(array)
    (image if mode is None else image.convert(mode)).save(path, **options)
    return path


@pytest.mark.parametrize("ending", ["png", "bmp", "ppm", "tiff"])
def test_an_image_of_its_own_shape_comes_as_it_is(tmp_path, ending):
    path = saved(tmp_path / f"a.{ending}", COLOURS)
    assert read_image_shape(path) == ImageShape(6, 4, 3)
    assert np.array_equal(read_pixels(path, ImageShape(6, 4, 3)), COLOURS.transpose(2, 0, 1))


def test_what_a_model_reads_is_scaled(tmp_path):
    path = saved(tmp_path / "a.png", COLOURS)
    made = read_image(path, 6, 4, 3)
    torch.testing.assert_close(made, torch.from_numpy(COLOURS).permute(2, 0, 1).float() / 127.5 - 1)


def test_grey_becomes_colours_and_colours_grey(tmp_path):
    grey = saved(tmp_path / "grey.png", COLOURS[:, :, 0])
    assert read_image_shape(grey) == ImageShape(6, 4, 1)
    assert np.array_equal(read_pixels(grey, ImageShape(6, 4, 3)), np.repeat(COLOURS[None, :, :, 0], 3, axis=0))
    made = read_pixels(saved(tmp_path / "a.png", COLOURS), ImageShape(6, 4, 1))
    assert np.abs(made[0] - COLOURS @ [0.299, 0.587, 0.114]).max() <= 1  # ITU-R 601


def test_sixteen_bits_keep_their_order(tmp_path):
    deep = np.arange(0, 65536, 2731, dtype=np.uint16).reshape(4, 6)
    path = tmp_path / "deep.png"
    Image.fromarray(deep).save(path)
    assert read_image_shape(path) == ImageShape(4, 6, 1)
    assert np.abs(read_pixels(path, ImageShape(4, 6, 1))[0].astype(float) - deep / 257).max() <= 1


def test_what_is_transparent_lies_on_white(tmp_path):
    clear = np.concatenate([COLOURS, np.zeros((6, 4, 1), np.uint8)], axis=2)
    clear[0, 0, 3] = 255
    made = read_pixels(saved(tmp_path / "a.png", clear), ImageShape(6, 4, 3))
    assert np.array_equal(made[:, 0, 0], COLOURS[0, 0])
    assert (made.reshape(3, -1)[:, 1:] == 255).all()


def test_a_turned_camera(tmp_path):
    path, exif = tmp_path / "a.png", Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter, clockwise
    saved(path, COLOURS, exif=exif)
    assert read_image_shape(path) == ImageShape(4, 6, 3)
    assert np.array_equal(read_pixels(path, ImageShape(4, 6, 3)), np.rot90(COLOURS, -1).transpose(2, 0, 1))


def test_a_smaller_image_is_made_of_means(tmp_path):
    flat = np.repeat(np.repeat(COLOURS[:, :, 0], 2, axis=0), 2, axis=1).astype(float)
    chess = np.indices((16, 16)).sum(0) % 2 * 255
    half = read_pixels(saved(tmp_path / "chess.png", chess.astype(np.uint8)), ImageShape(4, 4, 1))
    assert (np.abs(half.astype(float) - 127.5) < 20).all()  # and not all black, as every fourth pixel would be
    assert read_pixels(saved(tmp_path / "flat.png", flat.astype(np.uint8)), ImageShape(3, 5, 1)).shape == (1, 3, 5)


def test_images_in_memory():
    grey = COLOURS[:, :, 0]
    assert np.array_equal(resize_image(grey, ImageShape(6, 4, 1)), grey[None])
    assert resize_image(grey, ImageShape(8, 8, 3)).shape == (3, 8, 8)


def test_a_shape_that_no_image_has(tmp_path):
    path = saved(tmp_path / "a.png", COLOURS)
    with pytest.raises(ValueError, match=r'`channels` must be one of "1", "3", but is "2"'):
        read_pixels(path, ImageShape(6, 4, 2))


@pytest.mark.parametrize("use", [read_image_shape, lambda path: read_pixels(path, ImageShape(2, 2, 3))])
def test_no_images(tmp_path, use):
    (tmp_path / "notes.png").write_text("This is no image.")
    (tmp_path / "empty.png").write_bytes(b"")
    for name, message in (("notes.png", "This is not an image"), ("empty.png", "This is not an image"),
                          ("none.png", "There is no such file"), (".", "This is a folder")):
        with pytest.raises(DataError, match=message):
            use(tmp_path / name)


def test_numbers_of_any_size_are_refused(tmp_path):
    Image.fromarray(np.zeros((3, 3), np.float32)).save(tmp_path / "a.tiff")
    with pytest.raises(DataError, match=r"a.tiff: .*no defined white"):
        read_pixels(tmp_path / "a.tiff", ImageShape(3, 3, 1))


@pytest.mark.parametrize("format", ["PNG", "JPEG", "GIF", "BMP"])
def test_a_damaged_file_is_named_or_still_an_image(tmp_path, format):
    chance, buffer, refused = random.Random(0), io.BytesIO(), []
    Image.fromarray(COLOURS).save(buffer, format)
    for _ in range(40):
        data = bytearray(buffer.getvalue())
        if chance.random() < 0.5:
            del data[chance.randrange(len(data)):]
        else:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path = tmp_path / "damaged.img"
        path.write_bytes(data)
        try:
            assert read_pixels(path, ImageShape(2, 2, 3)).shape == (3, 2, 2)
        except DataError as error:
            refused.append(str(error))
    assert len(refused) > 4
    assert all("damaged.img: " in message for message in refused)


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"


@pytest.mark.parametrize("use", [read_image_shape, lambda path: read_pixels(path, ImageShape(2, 2, 3))])
def test_an_eps_file_never_starts_ghostscript(tmp_path, monkeypatch, use):
    mark, program = tmp_path / "started", tmp_path / "bin" / "gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch '{mark}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)  # which is where Pillow remembers the program
    path = tmp_path / "x.png"
    path.write_bytes(EPS)
    with pytest.raises((OSError, SyntaxError)), Image.open(path) as image:
        image.load()
    assert mark.exists(), "Pillow itself starts the program"
    mark.unlink()
    with pytest.raises(DataError, match=r"x\.png: .*PNG, JPEG"):
        use(path)
    assert not mark.exists()


@pytest.mark.parametrize("format", ["PCX", "TGA", "ICO", "SGI"])
def test_a_format_that_is_not_documented_is_refused(tmp_path, format):
    path = saved(tmp_path / "x.png", COLOURS, format=format)
    with pytest.raises(DataError, match=r"x\.png: "):
        read_image_shape(path)


def test_the_documented_formats_are_read(tmp_path):
    for format in images.IMAGE_FORMATS:
        path = saved(tmp_path / "a.img", COLOURS, format=format)
        assert read_pixels(path, ImageShape(6, 4, 3)).shape == (3, 6, 4), format


def png_of(height, width):
    """A PNG whose header announces a size that its data does not have."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(struct.pack(">I", len(data)) + name + data
                                            + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks)


@pytest.mark.parametrize("use", [read_image_shape, lambda path: read_pixels(path, ImageShape(2, 2, 3))])
@pytest.mark.parametrize("size", [(12_000, 10_000), (100_000, 100_000)])
def test_a_size_is_refused_before_the_pixels_are_decoded(tmp_path, monkeypatch, use, size):
    path = tmp_path / "large.png"
    path.write_bytes(png_of(*size))
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda image: pytest.fail("pixels are decoded"))
    with pytest.raises(DataError, match=r"large\.png: .*100,000,000"):
        use(path)


@pytest.mark.parametrize("use", [read_image_shape, images.is_idx])
def test_a_pipe_is_refused_and_does_not_wait(tmp_path, use):
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(DataError, match=r"pipe\.png: "):
        use(tmp_path / "pipe.png")


def test_without_pillow(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ValueError, match=r"pip install 'regard\[images\]'"):
        images.import_pillow()


def made(root, *paths):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"")
    return root


def test_labels_are_the_names_of_the_folders(tmp_path):
    made(tmp_path, "dog/b.png", "dog/a.png", "cat/2.jpg", ".git/x", "dog/.DS_Store", "README.md")
    found = images.read_image_folder(tmp_path)
    assert [f"{file.parent.name}/{file.name}" for file in found.files] == ["cat/2.jpg", "dog/a.png", "dog/b.png"]
    assert found.labels == ("cat", "dog", "dog")
    assert found.notes == (f"{tmp_path}: Skipped 1 file beside the class folders.",)
    assert images.read_image_folder(made(tmp_path / "other", "a/1.png")).notes == ()


def test_what_is_no_folder_of_classes(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty: No class folders"):
        images.read_image_folder(tmp_path / "empty")
    with pytest.raises(DataError, match="none: The folder cannot be read: No such file"):
        images.read_image_folder(tmp_path / "none")
    (tmp_path / "set" / "cat").mkdir(parents=True)
    with pytest.raises(DataError, match="set/cat: No images found"):
        images.read_image_folder(tmp_path / "set")
    made(tmp_path, "deep/cat/inner/1.png")
    with pytest.raises(DataError, match="deep/cat/inner: This is not a file"):
        images.read_image_folder(tmp_path / "deep")


def test_a_name_that_is_no_text(tmp_path):
    try:
        os.mkdir(os.fsencode(tmp_path) + b"/cat\xff")
    except OSError:
        pytest.skip("this file system takes only text")
    with pytest.raises(DataError, match=r"cat\\xff: The name of a class must be text"):
        images.read_image_folder(tmp_path)


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
    (packed(IMAGES)[:9], "ends inside its header"),
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
    ({"one": IMAGES[:0], "other": np.zeros(0, np.uint8)}, "one: No images"),
])
def test_files_that_do_not_belong_together(tmp_path, files, message):
    with pytest.raises(DataError, match=re.compile(message, re.DOTALL)):
        images.read_idx_images(written(tmp_path, **files))


def test_all_bytes():
    made = scale_pixels(torch.arange(256).to(torch.uint8))
    assert made.dtype == torch.float32
    assert (float(made[0]), float(made[-1])) == (-1.0, 1.0)
    torch.testing.assert_close(made.double(), torch.linspace(-1, 1, 256, dtype=torch.float64), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_what_is_scaled_already_is_refused(dtype):
    with pytest.raises(ValueError, match="`pixels` must be bytes"):
        scale_pixels(torch.zeros(3, dtype=dtype))


def test_an_idx_file_that_unpacks_to_more_than_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("regard.allocation.available_memory", lambda: 4_000_000)
    path = tmp_path / "bomb.idx.gz"
    path.write_bytes(gzip.compress(bytes([0, 0, 8, 1]) + (10**8).to_bytes(4, "big") + bytes(10**8)))
    with pytest.raises(DataError, match=r"bomb\.idx\.gz: .*1\.9 MiB"):
        images.read_idx(path)
