"""Images: single files, folders with one folder per class, IDX files, and scaling to model inputs.

    read_image(path, height, width, channels)    float32 (C, H, W) as a model reads it, the same as in training
    read_pixels(path, shape)                     the same as bytes, 0 to 255
    read_image_folder(path)                      animals/cat/1.png, animals/dog/7.jpg: files and their labels
    read_idx_images([images, labels])            the IDX files of MNIST and its relatives, plain or gzip

An image is rotated as its EXIF orientation says, composed onto white where it is transparent, converted to grey or RGB,
and resized bilinearly. Only the formats of `IMAGE_FORMATS` are opened, recognised by content: Pillow knows more, and
runs other programs for some of them (Ghostscript for EPS). The size in the header is checked before pixels are decoded.
IDX files are recognised by their first bytes (00 00, type, dimensions), whatever their names. Reading image files needs
Pillow, the extra `images`. This module knows no models.

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
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard import allocation, checks
from regard.data.sources.text import DataError, InputFile, printable, read_head

if TYPE_CHECKING:
    from torch import Tensor

PixelArray = NDArray[np.uint8]
Result = TypeVar("Result")
IMAGE_FORMATS = {"PNG": "PNG", "JPEG": "JPEG", "GIF": "GIF", "BMP": "BMP", "TIFF": "TIFF", "WEBP": "WebP",
                 "PPM": "PPM"}
"""Pillow's names of the formats that are read, and the usual ones."""
MAX_PIXELS = 100_000_000
"""Pixels of an image, at most: a small file can announce billions. 100 million pixels take 0.4 GB when decoded."""
PILLOW_MODES = {"1": "L", "3": "RGB"}
"""Pillow's mode for each number of channels."""
GREY_MODES = {"1", "L", "LA", "La"}
GREY16_MODES = {"I;16", "I;16L", "I;16B"}
"""Grey of 16 bits, which Pillow would clip at 255."""
UNSCALED_MODES = {"I", "F"}
"""Pixels without a defined white."""
ORIENTATION, ROTATED = 0x0112, {5, 6, 7, 8}
"""The EXIF tag of the orientation, and its values that exchange height and width."""
WHITE = (255, 255, 255, 255)
PILLOW_ERRORS = (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error)
"""What Pillow raises for damaged files, besides its own errors."""
IDX_START = b"\0\0"
IDX_TYPES = {0x08: "bytes", 0x09: "signed bytes", 0x0B: "16-bit integers", 0x0C: "32-bit integers",
             0x0D: "32-bit floats", 0x0E: "64-bit floats"}
IDX_BYTES = 0x08
IDX_MAX_DIMENSIONS = 4
IDX_HEADER, IDX_SIZE = 4, 4
"""Bytes of the header before the sizes, and bytes of each size."""


class ImageShape(NamedTuple):
    """Height, width and channels of an image."""

    height: int
    width: int
    channels: int
    """1 for grey, 3 for RGB."""

    @property
    def size(self) -> int:
        """The number of values of an image."""
        return self.height * self.width * self.channels

    def __str__(self) -> str:
        return f"{self.height} × {self.width} pixels, {'grey' if self.channels == 1 else 'in colours'}"


def read_image(path: str | os.PathLike[str], height: int, width: int, channels: int) -> "Tensor":
    """An image as a model of this shape reads it: float32 (C, H, W), scaled as in training."""
    import torch

    return scale_pixels(torch.from_numpy(read_pixels(path, ImageShape(height, width, channels))))


def scale_pixels(pixels: "Tensor") -> "Tensor":
    """Bytes of any shape as float32 from -1 to 1: x = byte / 127.5 - 1. The rule is the same for all data."""
    import torch

    if pixels.dtype != torch.uint8:
        raise checks.wrong("pixels", "bytes (torch.uint8)", f"of {pixels.dtype}",
                           "Numbers that are scaled already go into a model as they are.")
    return pixels.to(torch.float32) / 127.5 - 1.0


def read_pixels(path: str | os.PathLike[str], shape: ImageShape) -> PixelArray:
    """The bytes (C, H, W) of an image file, resized to a shape."""
    return _with_image(path, lambda image: _resize(image, shape))


def read_image_shape(path: str | os.PathLike[str]) -> ImageShape:
    """The shape of an image file. Its pixels are not decoded."""
    return _with_image(path, _shape_of)


def resize_image(image: PixelArray, shape: ImageShape) -> PixelArray:
    """A grey image (H, W) in another shape: (C, H, W)."""
    if (*image.shape, 1) == shape:
        return image[None]
    return _resize(import_pillow().fromarray(image), shape)


def import_pillow() -> ModuleType:
    """Pillow's module `Image`; a ValueError if Pillow is not installed."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ValueError("Reading images needs Pillow: pip install 'regard[images]'.") from error
    return Image


def _with_image(path: str | os.PathLike[str], use: Callable[[Any], Result]) -> Result:
    """Open an image and apply `use`. Pillow's many errors become one that names the file."""
    module, input = import_pillow(), _open_input(path)
    try:
        with warnings.catch_warnings(), open(input.path, "rb") as file:
            warnings.simplefilter("ignore")  # about metadata and sizes: the latter are checked here
            with module.open(file, formats=[*IMAGE_FORMATS]) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise _too_many_pixels(input.name, f"{image.height:,} × {image.width:,}")
                return use(image)
    except module.UnidentifiedImageError as error:
        raise DataError(f"{input.name}: This is not an image in a supported format "
                        f"({', '.join(IMAGE_FORMATS.values())}). Remove it, or convert it to PNG.") from error
    except DataError:
        raise
    except module.DecompressionBombError as error:
        raise _too_many_pixels(input.name, f"more than {2 * module.MAX_IMAGE_PIXELS:,}") from error
    except PILLOW_ERRORS as error:
        raise DataError(f"{input.name}: The image cannot be read ({error}). Download it again, or remove it.") \
            from error


def _open_input(path: str | os.PathLike[str]) -> InputFile:
    """An input file; a DataError for a pipe or a device, since the beginning is read twice."""
    input = InputFile(path)
    if input.single_pass:
        raise DataError(f"{input.name}: The input is read twice, but a pipe can be read only once. Save it to a file "
                        "first.")
    return input


def _too_many_pixels(name: str, size: str) -> DataError:
    return DataError(f"{name}: The image has {size} pixels, but at most {MAX_PIXELS:,} are read. Make it smaller, or "
                     "remove it.")


def _shape_of(image: Any) -> ImageShape:
    height, width = image.height, image.width
    if image.getexif().get(ORIENTATION) in ROTATED:
        height, width = width, height
    return ImageShape(height, width, 1 if image.mode in GREY_MODES | GREY16_MODES else 3)


def _resize(image: Any, shape: ImageShape) -> PixelArray:
    """The bytes (C, H, W) of a Pillow image."""
    from PIL import Image, ImageOps

    mode = checks.pick("channels", str(shape.channels), PILLOW_MODES)
    image = ImageOps.exif_transpose(image)
    if image.mode in UNSCALED_MODES:
        raise ValueError(f"pixels of mode {image.mode} have no defined white")
    if image.mode in GREY16_MODES:
        image = Image.fromarray((np.asarray(image).astype(np.uint32) // 257).astype(np.uint8))
    if image.has_transparency_data:
        above = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", above.size, WHITE), above)
    image = image.convert(mode).resize((shape.width, shape.height), Image.Resampling.BILINEAR)
    array = np.asarray(image, np.uint8).reshape(shape.height, shape.width, shape.channels)
    return np.ascontiguousarray(array.transpose(2, 0, 1))


@dataclass(frozen=True)
class ImageFolder:
    """The image files of a folder with one folder per class."""

    name: str
    """Its path, for messages."""
    files: tuple[Path, ...]
    """Sorted by class, then by name."""
    labels: tuple[str, ...]
    """The class of each file."""
    notes: tuple[str, ...] = ()
    """What was skipped."""


def read_image_folder(path: str | os.PathLike[str]) -> ImageFolder:
    """The files of a folder with one folder per class, whose sorted names are the labels. No image is opened.

    Names that begin with a dot are ignored, and files beside the class folders are noted. Anything else inside a class
    folder that is not a file is an error.
    """
    folder, name = Path(path), printable(os.fspath(path))
    entries = list_folder(folder)
    classes = [entry for entry in entries if entry.is_dir()]
    if not classes:
        raise DataError(f"{name}: No class folders found. Images are read from one folder per class: "
                        f"{name}/cat/1.png, {name}/dog/1.png.")
    files, labels = list[Path](), list[str]()
    for label in classes:
        try:
            label.name.encode()
        except UnicodeEncodeError as error:
            raise DataError(f"{printable(str(label))}: The name of a class must be text. Rename the folder.") from error
        images = list_folder(label)
        if not images:
            raise DataError(f"{printable(str(label))}: No images found for this class. Add some, or remove the folder.")
        for image in images:
            if not image.is_file():
                raise DataError(f"{printable(str(image))}: This is not a file. A class folder holds only images.")
        files += images
        labels += [label.name] * len(images)
    others = len(entries) - len(classes)
    notes = (f"{name}: Skipped {checks.plural(others, 'file')} beside the class folders.",)
    return ImageFolder(name, tuple(files), tuple(labels), notes if others else ())


def list_folder(folder: Path) -> list[Path]:
    """The entries of a folder, sorted, without those that begin with a dot."""
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"{printable(str(folder))}: The folder cannot be read: {error.strerror}. Check its name and "
                        "its permissions.") from error


class IdxImages(NamedTuple):
    """Images (images, height, width) and their labels (images,)."""

    images: PixelArray
    labels: PixelArray


def is_idx(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins like IDX; a DataError if it cannot be read."""
    return _is_idx_header(_read_idx_head(_open_input(path).blocks())[0])


def read_idx(path: str | os.PathLike[str]) -> PixelArray:
    """The array of an IDX file: 00 00, the type, the number of dimensions, big-endian sizes, then the bytes."""
    input = InputFile(path)
    head, blocks = _read_idx_head(input.blocks())
    if not _is_idx_header(head):
        raise DataError(f"{input.name}: This is not an IDX file: it begins with {head[:4].hex(' ') or 'nothing'}, not "
                        "with 00 00 08. Name a file of images or labels as MNIST has them.")
    if head[2] != IDX_BYTES:
        raise DataError(f"{input.name}: This IDX file holds {IDX_TYPES[head[2]]}, but only bytes are supported. "
                        "Convert it to numbers from 0 to 255.")
    start = IDX_HEADER + IDX_SIZE * head[3]
    while len(head) < start:
        block = next(blocks, b"")
        if not block:
            raise DataError(f"{input.name}: The file ends inside its header. Download it again.")
        head += block
    shape = tuple(int.from_bytes(head[at:at + IDX_SIZE], "big") for at in range(IDX_HEADER, start, IDX_SIZE))
    content, expected = bytearray(head[start:]), prod(shape)
    room = allocation.available_memory() // 2  # a growing array is copied
    while len(content) <= min(expected, room) and (block := next(blocks, b"")):
        content += block
    if room < len(content) <= expected:
        raise DataError(f"{input.name}: The file unpacks to more than {allocation.format_bytes(room)}, half of the "
                        "free memory. Split it into smaller files.")
    if len(content) != expected:
        got = f"there are {len(content):,}" if len(content) < expected else "there are more"
        raise DataError(f"{input.name}: Its header announces {' × '.join(map(str, shape))} = {expected:,} bytes, but "
                        f"{got}. Download it again.")
    return np.frombuffer(content, np.uint8).reshape(shape)


def read_idx_images(paths: Sequence[str | os.PathLike[str]]) -> IdxImages:
    """The images and labels of two IDX files, in either order."""
    names = [InputFile(path).name for path in paths]
    roles = {3: "images", 1: "labels"}
    arrays = {roles.get(array.ndim, ""): (name, array)
              for name, array in zip(names, map(read_idx, paths), strict=True)}
    if len(paths) != len(roles) or set(arrays) != set(roles.values()):
        found = "; ".join(f"{name} has the shape {array.shape}" for name, array in arrays.values())
        raise DataError(f"{', '.join(names)}: Images come in two IDX files, one of three dimensions (images, height, "
                        f"width) and one of their labels, but {found}. Name one of each.")
    (image_file, images), (label_file, labels) = arrays["images"], arrays["labels"]
    if len(images) != len(labels):
        raise DataError(f"{image_file} has {len(images):,} images, but {label_file} has {len(labels):,} labels. Label "
                        "n must belong to image n: name two files of one set.")
    if not images.size:
        raise DataError(f"{image_file}: No images found.")
    return IdxImages(images, labels)


def _read_idx_head(blocks: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """The first bytes, at least four if there are as many, and the remaining blocks."""
    head, rest = read_head(blocks, [IDX_START + bytes(2)])
    while len(head) < IDX_HEADER and (block := next(rest, b"")):
        head += block
    return head, rest


def _is_idx_header(head: bytes) -> bool:
    return (len(head) >= IDX_HEADER and head.startswith(IDX_START) and head[2] in IDX_TYPES
            and 1 <= head[3] <= IDX_MAX_DIMENSIONS)
