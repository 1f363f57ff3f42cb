"""Images: single files, folders with one folder per class, IDX files, and scaling to model inputs.

    read_image(path, height, width, channels)    float32 (C, H, W) as a model reads it, the same as in training
    read_pixels(path, shape)                     the same as bytes, 0 to 255
    read_image_folder(path)                      animals/cat/1.png, animals/dog/7.jpg: files and their labels
    read_idx_images([images, labels])            the IDX files of MNIST and its relatives, plain or gzip

An image is rotated as its EXIF orientation says, composed onto white where it is transparent, converted to grey or RGB,
and resized bilinearly. IDX files are recognised by their first bytes (00 00, type, dimensions), whatever their names.
Reading image files needs Pillow, the extra `images`. This module knows no models.

Legend: C channels, H height, W width.
"""

import os
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard import checks
from regard.data.sources.text import DataError, InputFile, printable, read_head

PixelArray = NDArray[np.uint8]
Result = TypeVar("Result")
PILLOW_MODES = {1: "L", 3: "RGB"}
"""How Pillow calls images of so many channels."""
GREY_MODES = {"1", "L", "LA", "La"}
GREY16_MODES = {"I;16", "I;16L", "I;16B"}
"""Grey of 16 bits, which Pillow would cut off at 255."""
UNSCALED_MODES = {"I", "F"}
"""Numbers of any size: nobody says which is white."""
ORIENTATION, ROTATED = 0x0112, {5, 6, 7, 8}
"""Where a camera says how it was held, and the ways in which height and breadth change places."""
WHITE = (255, 255, 255, 255)
PILLOW_ERRORS = (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error)
"""What Pillow raises for files that are damaged, besides its own errors."""


class ImageShape(NamedTuple):
    """Of an image."""

    height: int
    breadth: int
    channels: int
    """1 for grey, 3 for colours."""

    @property
    def numbers(self) -> int:
        """How many an image has."""
        return self.height * self.breadth * self.channels

    def __str__(self) -> str:
        return f"{self.height} × {self.breadth} pixels, {'grey' if self.channels == 1 else 'in colours'}"


def read_image(path: str | os.PathLike[str], height: int, breadth: int, channels: int) -> "Tensor":
    """The image as a model of this shape reads it: float32 (C, H, W), scaled as in training."""
    import torch

    return scale_pixels(torch.from_numpy(read_pixels(path, ImageShape(height, breadth, channels))))


def read_pixels(path: str | os.PathLike[str], shape: ImageShape) -> PixelArray:
    """The bytes of an image, (C, H, W)."""
    return _with_image(path, lambda image: _resize(image, shape))


def read_image_shape(path: str | os.PathLike[str]) -> ImageShape:
    """The shape that an image has by itself. Its pixels are not looked at."""
    return _with_image(path, _shape_of)


def resize_image(image: PixelArray, shape: ImageShape) -> PixelArray:
    """A grey image (H, W) that is in memory already, in another shape: (C, H, W)."""
    if (*image.shape, 1) == shape:
        return image[None]
    return _resize(import_pillow().fromarray(image), shape)


def import_pillow() -> ModuleType:
    """Pillow's module of images; a ValueError where it is not installed."""
    try:
        from PIL import Image
    except ImportError as error:
        raise checks.wrong("images", "read with the package Pillow", "not: it is not installed",
                           "Install it: pip install 'regard[images]'.") from error
    return Image


def _with_image(path: str | os.PathLike[str], use: Callable[[Any], Result]) -> Result:
    """What `use` makes of an image. Pillow has as many errors as formats; all of them name the file here."""
    module, input = import_pillow(), InputFile(path)
    try:
        with warnings.catch_warnings(), open(input.path, "rb") as file:
            warnings.simplefilter("ignore")  # of metadata, of which only the orientation is looked at
            with module.open(file) as image:
                return use(image)
    except module.UnidentifiedImageError as error:
        raise DataError(f"{input.name}: This is no image, or of a format that is not known. Remove it, or convert it "
                        "to PNG.") from error
    except (*PILLOW_ERRORS, module.DecompressionBombError) as error:
        raise DataError(f"{input.name}: The image cannot be read ({error}). Fetch it again, or remove it.") from error


def _shape_of(image: Any) -> ImageShape:
    height, breadth = image.height, image.width
    if image.getexif().get(ORIENTATION) in ROTATED:
        height, breadth = breadth, height
    return ImageShape(height, breadth, 1 if image.mode in GREY_MODES | GREY16_MODES else 3)


def _resize(image: Any, shape: ImageShape) -> PixelArray:
    """(C, H, W) of an image of Pillow's."""
    from PIL import Image, ImageOps

    mode = checks.pick("channels", str(shape.channels), {str(count): name for count, name in PILLOW_MODES.items()})
    image = ImageOps.exif_transpose(image)
    if image.mode in UNSCALED_MODES:
        raise ValueError(f"its pixels are numbers of mode {image.mode}, of which nobody says what is white")
    if image.mode in GREY16_MODES:
        image = Image.fromarray((np.asarray(image).astype(np.uint32) // 257).astype(np.uint8))
    if image.has_transparency_data:
        above = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", above.size, WHITE), above)
    image = image.convert(mode).resize((shape.breadth, shape.height), Image.Resampling.BILINEAR)
    array = np.asarray(image, np.uint8).reshape(shape.height, shape.breadth, shape.channels)
    return np.ascontiguousarray(array.transpose(2, 0, 1))


# ---- idx: IDX files, in which MNIST and its kin come: an array of bytes behind a header that says its shape.
#
#     00 00, the type of the numbers, how many dimensions, the size of each (4 bytes, the highest first), the numbers
#
# They are recognised by these first bytes, whatever they are called, plain or gzip; no text begins so. Images have three
# dimensions (images, height, breadth), their labels one. A header that does not fit what follows it is refused with the
# file's name. It does not know what the labels mean.

IdxArray = NDArray[np.uint8]
IDX_START = b"\0\0"
IDX_TYPES = {0x08: "bytes", 0x09: "signed bytes", 0x0B: "16-bit integers", 0x0C: "32-bit integers", 0x0D: "32-bit floats",
         0x0E: "64-bit floats"}
IDX_BYTES = 0x08
IDX_MAX_DIMENSIONS = 4
"""Dimensions; a file that says more is none of ours."""
IDX_SIZE_BYTES = 4
"""Bytes of each dimension in the header."""
IDX_ROLES = {3: "images", 1: "labels"}
"""What a file of so many dimensions holds."""


class IdxImages(NamedTuple):
    """Images and their labels, of two files."""

    images: IdxArray
    """(images, height, breadth)"""
    labels: IdxArray
    """(images,)"""


def is_idx(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as IDX does; a DataError where it cannot be read."""
    return _is_idx_header(_read_idx_head(InputFile(path).blocks())[0])


def read_idx(path: str | os.PathLike[str]) -> IdxArray:
    """The array of a file."""
    input = InputFile(path)
    head, blocks = _read_idx_head(input.blocks())
    if not _is_idx_header(head):
        raise DataError(f"{input.name}: This is no IDX file: it begins with {head[:4].hex(' ') or 'nothing'}, not with "
                        "00 00 08. Give a file of images or labels as MNIST has them.")
    if head[2] != IDX_BYTES:
        raise DataError(f"{input.name}: This IDX file holds {IDX_TYPES[head[2]]}, but only bytes are read. Convert it to "
                        "numbers from 0 to 255.")
    start = len(IDX_START) + 2 + IDX_SIZE_BYTES * head[3]
    while len(head) < start:
        block = next(blocks, b"")
        if not block:
            raise DataError(f"{input.name}: It ends inside its header. Fetch it again.")
        head += block
    shape = tuple(int.from_bytes(head[at:at + IDX_SIZE_BYTES], "big") for at in range(len(IDX_START) + 2, start, IDX_SIZE_BYTES))
    content, wanted = bytearray(head[start:]), prod(shape)
    while len(content) <= wanted and (block := next(blocks, b"")):
        content += block
    if len(content) != wanted:
        got = f"there are {len(content):,}" if len(content) < wanted else "there are more"
        raise DataError(f"{input.name}: Its header announces {' × '.join(map(str, shape))} = {wanted:,} bytes, but "
                        f"{got}. Fetch it again.")
    return np.frombuffer(content, np.uint8).reshape(shape)


def read_idx_images(paths: Sequence[str | os.PathLike[str]]) -> IdxImages:
    """The images and labels of two files, in either order."""
    names = [InputFile(path).name for path in paths]
    arrays = {IDX_ROLES.get(array.ndim, ""): (name, array) for name, array in zip(names, map(read_idx, paths), strict=True)}
    if len(paths) != len(IDX_ROLES) or set(arrays) != set(IDX_ROLES.values()):
        found = "; ".join(f"{name} has the shape {array.shape}" for name, array in arrays.values())
        raise DataError(f"{', '.join(names)}: Images come in two IDX files, one of three dimensions (images, height, "
                        f"breadth) and one of their labels, but {found}. Give one of each.")
    (of_images, images), (of_labels, labels) = arrays["images"], arrays["labels"]
    if len(images) != len(labels):
        raise DataError(f"{of_images} has {len(images):,} images, but {of_labels} has {len(labels):,} labels. Label n "
                        "must belong to image n: give two files of one set.")
    if not images.size:
        raise DataError(f"{of_images}: There is not a single image in it. Give a file with some.")
    return IdxImages(images, labels)


def _read_idx_head(blocks: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """The first bytes, at least four where there are so many, and the blocks behind them."""
    head, rest = read_head(blocks, [IDX_START + bytes(2)])
    while len(head) < len(IDX_START) + 2 and (block := next(rest, b"")):
        head += block
    return head, rest


def _is_idx_header(head: bytes) -> bool:
    return len(head) >= len(IDX_START) + 2 and head.startswith(IDX_START) and head[2] in IDX_TYPES and 1 <= head[3] <= IDX_MAX_DIMENSIONS


# ---- folders: A folder with a folder of images for each class: animals/cat/1.png, animals/dog/7.jpg.
#
# The names of the inner folders are the labels, sorted. All that lies in them is an image, or an error that names it;
# only names that begin with a dot are passed over, and what lies beside the inner folders, which is told. It does not
# open the images.


@dataclass(frozen=True)
class ImageFolder:
    """The images of a folder."""

    name: str
    """Its path, as it is shown."""
    files: tuple[Path, ...]
    """By class, and inside by name."""
    labels: tuple[str, ...]
    """The class of each."""
    notes: tuple[str, ...] = ()
    """What was not read."""


def read_image_folder(path: str | os.PathLike[str]) -> ImageFolder:
    """All images of a folder of classes."""
    place, name = Path(path), printable(os.fspath(path))
    inside = list_folder(place)
    classes = [entry for entry in inside if entry.is_dir()]
    if not classes:
        raise DataError(f"{name}: There are no folders in it. Images are read from a folder for each class: "
                        f"{name}/cat/1.png, {name}/dog/1.png.")
    files, labels = list[Path](), list[str]()
    for one in classes:
        _check_label(one)
        images = list_folder(one)
        if not images:
            raise DataError(f"{printable(str(one))}: There is no image in this class. Remove the folder, or put some in.")
        for image in images:
            if not image.is_file():
                raise DataError(f"{printable(str(image))}: This is no file. The folder of a class holds images alone.")
        files += images
        labels += [one.name] * len(images)
    beside = len(inside) - len(classes)
    notes = (f"{name}: {beside:,} beside the folders of the classes {'is' if beside == 1 else 'are'} not read",)
    return ImageFolder(name, tuple(files), tuple(labels), notes if beside else ())


def list_folder(place: Path) -> list[Path]:
    """What is in a folder, by its names, but for those that begin with a dot."""
    try:
        return sorted(entry for entry in place.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"{printable(str(place))}: The folder cannot be read: {error.strerror}. Check its name and its "
                        "permissions.") from error


def _check_label(folder: Path) -> None:
    try:
        folder.name.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{printable(str(folder))}: The name of a class must be text. Rename the folder.") from error


# ---- scaling: From the bytes of images to the numbers that models read. The one rule, in training and in use:
#
#     x = byte / 127.5 - 1      0 becomes -1, 255 becomes 1
#
# It is the same for all data, so nothing of it has to be stored with a model. It does not know files.


def scale_pixels(pixels: Tensor) -> Tensor:
    """Bytes of any shape, as float32 from -1 to 1."""
    if pixels.dtype != torch.uint8:
        raise checks.wrong("pixels", "bytes (torch.uint8)", f"of {pixels.dtype}",
                           "Numbers that are scaled already go into a model as they are.")
    return pixels.to(torch.float32) / 127.5 - 1.0
