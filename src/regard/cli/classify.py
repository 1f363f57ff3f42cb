"""`regard classify`: labels of texts, or of images in files, folders and IDX files.

A line of the result is the label, its probability and what it belongs to, tab-separated. Whether texts or images are
meant follows from the model.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from regard.cli import models

if TYPE_CHECKING:
    from regard.data.images.reading import Bytes, Shape
    from regard.data.pair import DataError
    from regard.tasks.reading import Classifier, Label

TOGETHER = 256
"""Images that are held in memory."""


def classify(
    model: models.Model,
    inputs: Annotated[list[str] | None, typer.Argument(metavar="INPUT", help="Texts; or for a model of images, files, "
                      "folders of them, or IDX files. Without any, the lines of standard input, as texts.",
                      show_default=False)] = None,
    as_json: models.Json = False,
    device: models.Device = models.AUTO,
) -> None:
    """Give labels to texts or images.

    A line for each: label, probability and input, separated by tabs.
    """
    from regard.models.vision import VisionConfig
    from regard.tasks.reading import Classifier

    task = models.opened(model, device, "Classifier")
    assert isinstance(task, Classifier)
    if isinstance(task.config, VisionConfig):
        if not inputs or "-" in inputs:
            models.fail("A model of images reads files. Name some, or folders of them.")
        _images(task, inputs, as_json)
        return
    for text, found in models.each(models.blocks(inputs), task.classify, models.numbered):
        _write(text, found, as_json)


class Picture(NamedTuple):
    """An image to be read: a file, or one of several in an IDX file."""

    name: str
    read: "Callable[[Shape], Bytes]"
    """Its bytes (C, H, W) in a shape."""


def pictures(paths: Iterable[Path]) -> Iterator[Picture]:
    """All images of these files and folders, those of a folder by their names.

    A path that cannot be read is a DataError before the first image is given. What cannot be read inside a folder is
    an image that says so when it is read.
    """
    return chain.from_iterable([_pictures(path) for path in paths])


def _pictures(path: Path) -> Iterable[Picture]:
    """The images of a file, or of a folder."""
    from regard.data.images import folders, idx, reading
    from regard.data.pair import DataError

    if os.path.isdir(path):
        return _inside(folders.entries(path))
    if not idx.is_idx(path):
        return [Picture(str(path), partial(reading.pixels, path))]
    array = idx.read(path)
    if array.ndim != 3:
        raise DataError(f"{path}: Images have three dimensions (images, height, breadth), but this file has "
                        f"{array.ndim}. Give the file of the images.")
    return (Picture(f"{path}[{index}]", partial(reading.resized, image)) for index, image in enumerate(array))


def _inside(paths: Iterable[Path]) -> Iterator[Picture]:
    from regard.data.pair import DataError

    for path in paths:
        try:
            found = _pictures(path)
        except DataError as error:
            found = [Picture(str(path), partial(_refuse, error))]
        yield from found


def _refuse(error: "DataError", shape: "Shape") -> "Bytes":
    raise error


def _images(task: "Classifier", inputs: Sequence[str], as_json: bool) -> None:
    from regard.data.images.reading import Shape
    from regard.data.pair import DataError

    config = task.config
    shape = Shape(config.height, config.breadth, config.channels)  # type: ignore[union-attr]

    def work(some: list[Picture]) -> "list[list[Label]]":
        import torch

        return task.classify(torch.stack([torch.tensor(picture.read(shape)) for picture in some]))

    try:
        for picture, found in models.each(_blocks(pictures(map(Path, inputs))), work, _numbered):
            _write(picture.name, found, as_json)
    except DataError as error:  # a path that cannot be read
        models.fail(str(error))


def _blocks(found: Iterable[Picture]) -> Iterator[list[Picture]]:
    block: list[Picture] = []
    for picture in found:
        block.append(picture)
        if len(block) == TOGETHER:
            yield block
            block = []
    if block:
        yield block


def _numbered(number: int, picture: Picture) -> str:
    return f"image {number}"


def _write(given: str, found: "Sequence[Label] | None", as_json: bool) -> None:
    if as_json:
        models.write_json({"input": given, "labels": [label._asdict() for label in found or ()]})
    else:
        best = "\t" if found is None else f"{found[0].name}\t{found[0].probability:.4f}"
        models.write(f"{best}\t{given}")
