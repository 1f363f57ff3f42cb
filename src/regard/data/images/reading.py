"""One image from a file to bytes, of the size and the colours that a model reads, and to the numbers it reads.

    read_image(path, shape)      (C, H, W) of floats, ready for a model: what training saw too
    pixels(path, shape)          the same as bytes, 0 to 255, (C, H, W)
    natural(path)                the shape that the image has by itself

An image is turned as its camera says, laid on white where it is transparent, made grey or RGB, and stretched to the
size asked for, with every pixel the mean of those it is made of. It needs Pillow, the extra `images`. It does not know
models, classes or folders.

Legend: C channels, H height, W breadth.
"""

import os
import struct
import warnings
import zlib
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard import checks
from regard.data.pair import DataError
from regard.data.sources.inputs import Input

if TYPE_CHECKING:
    from torch import Tensor

Bytes = NDArray[np.uint8]
Result = TypeVar("Result")
MODES = {1: "L", 3: "RGB"}
"""How Pillow calls images of so many channels."""
GREY = {"1", "L", "LA", "La"}
WIDE = {"I;16", "I;16L", "I;16B"}
"""Grey of 16 bits, which Pillow would cut off at 255."""
UNKNOWN = {"I", "F"}
"""Numbers of any size: nobody says which is white."""
ORIENTATION, TURNED = 0x0112, {5, 6, 7, 8}
"""Where a camera says how it was held, and the ways in which height and breadth change places."""
WHITE = (255, 255, 255, 255)
BROKEN = (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error)
"""What Pillow raises for files that are damaged, besides its own errors."""


class Shape(NamedTuple):
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

    from regard.data.images.scaling import scaled

    return scaled(torch.from_numpy(pixels(path, Shape(height, breadth, channels))))


def pixels(path: str | os.PathLike[str], shape: Shape) -> Bytes:
    """The bytes of an image, (C, H, W)."""
    return _opened(path, lambda image: _fitted(image, shape))


def natural(path: str | os.PathLike[str]) -> Shape:
    """The shape that an image has by itself. Its pixels are not looked at."""
    return _opened(path, _natural)


def resized(image: Bytes, shape: Shape) -> Bytes:
    """A grey image (H, W) that is in memory already, in another shape: (C, H, W)."""
    if (*image.shape, 1) == shape:
        return image[None]
    return _fitted(pillow().fromarray(image), shape)


def pillow() -> ModuleType:
    """Pillow's module of images; a ValueError where it is not installed."""
    try:
        from PIL import Image
    except ImportError as error:
        raise checks.wrong("images", "read with the package Pillow", "not: it is not installed",
                           "Install it: pip install 'regard[images]'.") from error
    return Image


def _opened(path: str | os.PathLike[str], use: Callable[[Any], Result]) -> Result:
    """What `use` makes of an image. Pillow has as many errors as formats; all of them name the file here."""
    module, input = pillow(), Input(path)
    try:
        with warnings.catch_warnings(), open(input.path, "rb") as file:
            warnings.simplefilter("ignore")  # of metadata, of which only the orientation is looked at
            with module.open(file) as image:
                return use(image)
    except module.UnidentifiedImageError as error:
        raise DataError(f"{input.name}: This is no image, or of a format that is not known. Remove it, or convert it "
                        "to PNG.") from error
    except (*BROKEN, module.DecompressionBombError) as error:
        raise DataError(f"{input.name}: The image cannot be read ({error}). Fetch it again, or remove it.") from error


def _natural(image: Any) -> Shape:
    height, breadth = image.height, image.width
    if image.getexif().get(ORIENTATION) in TURNED:
        height, breadth = breadth, height
    return Shape(height, breadth, 1 if image.mode in GREY | WIDE else 3)


def _fitted(image: Any, shape: Shape) -> Bytes:
    """(C, H, W) of an image of Pillow's."""
    from PIL import Image, ImageOps

    mode = checks.pick("channels", str(shape.channels), {str(count): name for count, name in MODES.items()})
    image = ImageOps.exif_transpose(image)
    if image.mode in UNKNOWN:
        raise ValueError(f"its pixels are numbers of mode {image.mode}, of which nobody says what is white")
    if image.mode in WIDE:
        image = Image.fromarray((np.asarray(image).astype(np.uint32) // 257).astype(np.uint8))
    if image.has_transparency_data:
        above = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", above.size, WHITE), above)
    image = image.convert(mode).resize((shape.breadth, shape.height), Image.Resampling.BILINEAR)
    array = np.asarray(image, np.uint8).reshape(shape.height, shape.breadth, shape.channels)
    return np.ascontiguousarray(array.transpose(2, 0, 1))
