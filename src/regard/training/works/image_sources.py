"""Where images with labels come from: a folder with a folder for each class, or two IDX files.

Of a folder the images are read one by one, and never all of them at once; IDX files are read whole. It does not know
what the images are for.
"""

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from regard.data import store as stores
from regard.data.images import folders, idx, reading
from regard.data.images.reading import Shape
from regard.data.sources.inputs import shown
from regard.training.works.files import digests, inputs, named
from regard.training.works.labels import Numbers
from regard.training.works.sentences import Counting
from regard.training.works.splitting import Hashes, hashed


class Source(Protocol):
    """Images of one set."""

    name: str
    labels: Sequence[str]
    """Of each image."""
    names: tuple[str, ...]
    """The different labels, sorted."""
    notes: tuple[str, ...]
    """What was not read."""

    @property
    def hashes(self) -> Hashes:
        """Of each image; equal ones have equal hashes."""

    def files(self) -> dict[str, str]:
        """The sha256 of all by their names."""

    def shapes(self, counted: Counting) -> list[Shape]:
        """What the images are by themselves, each of the shapes that there are at least once."""

    def pixels(self, shape: Shape, numbers: Numbers) -> Iterator[NDArray[np.uint8]]:
        """These images in this shape, (C, H, W) each."""

    def shown(self, number: int) -> str:
        """What an image is called."""


class FolderSource:
    """A folder with a folder of images for each class."""

    def __init__(self, path: str) -> None:
        self.path, self.folder = path, folders.read(path)
        self.name, self.notes = self.folder.name, self.folder.notes
        self.labels: Sequence[str] = self.folder.labels
        self.names = tuple(sorted(set(self.labels)))

    @cached_property
    def digests(self) -> list[str]:
        """The sha256 of each file."""
        return [stores.file_digest(file) for file in self.folder.files]

    @property
    def hashes(self) -> Hashes:
        """Of each file."""
        return np.array([int(digest[:16], 16) for digest in self.digests], np.uint64)

    def files(self) -> dict[str, str]:
        """One sha256 of all files with their names."""
        whole = hashlib.sha256()
        for file, digest in zip(self.folder.files, self.digests, strict=True):
            whole.update(f"{'/'.join(file.parts[-2:])}\n{digest}\n".encode("utf-8", "surrogateescape"))
        return named([(self.path, whole.hexdigest())])

    def shapes(self, counted: Counting) -> list[Shape]:
        """What the images are by themselves."""
        return [reading.natural(file) for file in counted(self.folder.files)]

    def pixels(self, shape: Shape, numbers: Numbers) -> Iterator[NDArray[np.uint8]]:
        """These images in this shape."""
        return (reading.pixels(self.folder.files[number], shape) for number in numbers)

    def shown(self, number: int) -> str:
        """The names of its folder and of itself."""
        return shown("/".join(self.folder.files[number].parts[-2:]))


class IdxSource:
    """Two IDX files, of images and of labels."""

    notes: tuple[str, ...] = ()

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths, self.name = paths, ", ".join(input.name for input in inputs(paths))
        self.images, values = idx.read_images(paths)
        self.labels: Sequence[str] = [str(value) for value in values.tolist()]
        self.names = tuple(str(value) for value in np.unique(values).tolist())

    @property
    def hashes(self) -> Hashes:
        """Of the bytes of each image."""
        return np.array([hashed(image.tobytes()) for image in self.images], np.uint64)

    def files(self) -> dict[str, str]:
        """The sha256 of both files."""
        return digests(self.paths)

    def shapes(self, counted: Counting) -> list[Shape]:
        """What the images are by themselves: all alike, and grey."""
        _, height, breadth = self.images.shape
        return [Shape(height, breadth, 1)]

    def pixels(self, shape: Shape, numbers: Numbers) -> Iterator[NDArray[np.uint8]]:
        """These images in this shape."""
        return (reading.resized(self.images[number], shape) for number in numbers)

    def shown(self, number: int) -> str:
        """Its number, from 0."""
        return f"image {number}"
