"""Images from files: turned, laid on white, made grey or coloured, stretched; and every file that is none is named."""

import io
import random
import sys

import numpy as np
import pytest
import torch

from regard.data import images
from regard.data.images import ImageShape, read_image, read_image_shape, read_pixels, resize_image
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
                          ("none.png", "There is no such file"), (".", "This is a directory")):
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


def test_without_pillow(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ValueError, match=r"pip install 'regard\[images\]'"):
        images.import_pillow()
