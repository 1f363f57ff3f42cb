"""A folder with a folder of images for each class: animals/cat/1.png, animals/dog/7.jpg.

The names of the inner folders are the labels, sorted. All that lies in them is an image, or an error that names it;
only names that begin with a dot are passed over, and what lies beside the inner folders, which is told. It does not
open the images.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from regard.data.pair import DataError
from regard.data.sources.inputs import shown


@dataclass(frozen=True)
class Folder:
    """The images of a folder."""

    name: str
    """Its path, as it is shown."""
    files: tuple[Path, ...]
    """By class, and inside by name."""
    labels: tuple[str, ...]
    """The class of each."""
    notes: tuple[str, ...] = ()
    """What was not read."""


def read(path: str | os.PathLike[str]) -> Folder:
    """All images of a folder of classes."""
    place, name = Path(path), shown(os.fspath(path))
    inside = entries(place)
    classes = [entry for entry in inside if entry.is_dir()]
    if not classes:
        raise DataError(f"{name}: There are no folders in it. Images are read from a folder for each class: "
                        f"{name}/cat/1.png, {name}/dog/1.png.")
    files, labels = list[Path](), list[str]()
    for one in classes:
        _check_label(one)
        images = entries(one)
        if not images:
            raise DataError(f"{shown(str(one))}: There is no image in this class. Remove the folder, or put some in.")
        for image in images:
            if not image.is_file():
                raise DataError(f"{shown(str(image))}: This is no file. The folder of a class holds images alone.")
        files += images
        labels += [one.name] * len(images)
    beside = len(inside) - len(classes)
    notes = (f"{name}: {beside:,} beside the folders of the classes {'is' if beside == 1 else 'are'} not read",)
    return Folder(name, tuple(files), tuple(labels), notes if beside else ())


def entries(place: Path) -> list[Path]:
    """What is in a folder, by its names, but for those that begin with a dot."""
    try:
        return sorted(entry for entry in place.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise DataError(f"{shown(str(place))}: The folder cannot be read: {error.strerror}. Check its name and its "
                        "permissions.") from error


def _check_label(folder: Path) -> None:
    try:
        folder.name.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{shown(str(folder))}: The name of a class must be text. Rename the folder.") from error
