"""IDX files, in which MNIST and its kin come: an array of bytes behind a header that says its shape.

    00 00, the type of the numbers, how many dimensions, the size of each (4 bytes, the highest first), the numbers

They are recognised by these first bytes, whatever they are called, plain or gzip; no text begins so. Images have three
dimensions (images, height, breadth), their labels one. A header that does not fit what follows it is refused with the
file's name. It does not know what the labels mean.
"""

import os
from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data.pair import DataError
from regard.data.sources.inputs import Input, with_head

Bytes = NDArray[np.uint8]
START = b"\0\0"
TYPES = {0x08: "bytes", 0x09: "signed bytes", 0x0B: "16-bit integers", 0x0C: "32-bit integers", 0x0D: "32-bit floats",
         0x0E: "64-bit floats"}
BYTES = 0x08
MOST = 4
"""Dimensions; a file that says more is none of ours."""
SIZE = 4
"""Bytes of each dimension in the header."""
ROLES = {3: "images", 1: "labels"}
"""What a file of so many dimensions holds."""


class Images(NamedTuple):
    """Images and their labels, of two files."""

    images: Bytes
    """(images, height, breadth)"""
    labels: Bytes
    """(images,)"""


def is_idx(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as IDX does; a DataError where it cannot be read."""
    return _is_header(_head(Input(path).blocks())[0])


def read(path: str | os.PathLike[str]) -> Bytes:
    """The array of a file."""
    input = Input(path)
    head, blocks = _head(input.blocks())
    if not _is_header(head):
        raise DataError(f"{input.name}: This is no IDX file: it begins with {head[:4].hex(' ') or 'nothing'}, not with "
                        "00 00 08. Give a file of images or labels as MNIST has them.")
    if head[2] != BYTES:
        raise DataError(f"{input.name}: This IDX file holds {TYPES[head[2]]}, but only bytes are read. Convert it to "
                        "numbers from 0 to 255.")
    start = len(START) + 2 + SIZE * head[3]
    while len(head) < start:
        block = next(blocks, b"")
        if not block:
            raise DataError(f"{input.name}: It ends inside its header. Fetch it again.")
        head += block
    shape = tuple(int.from_bytes(head[at:at + SIZE], "big") for at in range(len(START) + 2, start, SIZE))
    content, wanted = bytearray(head[start:]), prod(shape)
    while len(content) <= wanted and (block := next(blocks, b"")):
        content += block
    if len(content) != wanted:
        got = f"there are {len(content):,}" if len(content) < wanted else "there are more"
        raise DataError(f"{input.name}: Its header announces {' × '.join(map(str, shape))} = {wanted:,} bytes, but "
                        f"{got}. Fetch it again.")
    return np.frombuffer(content, np.uint8).reshape(shape)


def read_images(paths: Sequence[str | os.PathLike[str]]) -> Images:
    """The images and labels of two files, in either order."""
    names = [Input(path).name for path in paths]
    arrays = {ROLES.get(array.ndim, ""): (name, array) for name, array in zip(names, map(read, paths), strict=True)}
    if len(paths) != len(ROLES) or set(arrays) != set(ROLES.values()):
        found = "; ".join(f"{name} has the shape {array.shape}" for name, array in arrays.values())
        raise DataError(f"{', '.join(names)}: Images come in two IDX files, one of three dimensions (images, height, "
                        f"breadth) and one of their labels, but {found}. Give one of each.")
    (of_images, images), (of_labels, labels) = arrays["images"], arrays["labels"]
    if len(images) != len(labels):
        raise DataError(f"{of_images} has {len(images):,} images, but {of_labels} has {len(labels):,} labels. Label n "
                        "must belong to image n: give two files of one set.")
    if not images.size:
        raise DataError(f"{of_images}: There is not a single image in it. Give a file with some.")
    return Images(images, labels)


def _head(blocks: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """The first bytes, at least four where there are so many, and the blocks behind them."""
    head, rest = with_head(blocks, [START + bytes(2)])
    while len(head) < len(START) + 2 and (block := next(rest, b"")):
        head += block
    return head, rest


def _is_header(head: bytes) -> bool:
    return len(head) >= len(START) + 2 and head.startswith(START) and head[2] in TYPES and 1 <= head[3] <= MOST
