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

from regard.cli import options, terminal

if TYPE_CHECKING:
    from regard.data.images import ImageShape, PixelArray
    from regard.data.sources.text import DataError
    from regard.tasks.classifier import Classifier, Label


IMAGE_BLOCK = 256
"""Images that are held in memory."""


def classify(
    model: options.ModelArgument,
    inputs: Annotated[list[str] | None, typer.Argument(metavar="INPUT", help="Texts; or for a model of images, files, "
                      "folders of them, or IDX files. Without any, the lines of standard input, as texts.",
                      show_default=False)] = None,
    as_json: options.JsonOption = False,
    device: options.DeviceOption = options.AUTO_DEVICE,
) -> None:
    """Give labels to texts or images.

    A line for each: label, probability and input, separated by tabs.
    """
    from regard.models.vision import VisionConfig
    from regard.tasks.classifier import Classifier

    task = options.open_task(model, device, "Classifier")
    assert isinstance(task, Classifier)
    if isinstance(task.config, VisionConfig):
        if not inputs or "-" in inputs:
            terminal.fail("A model of images reads files. Name some, or folders of them.")
        _classify_images(task, inputs, as_json)
        return
    for text, found in options.process_each(options.text_blocks(inputs), task.classify, options.text_label):
        _write_labels(text, found, as_json)


class ImageInput(NamedTuple):
    """An image to be read: a file, or one of several in an IDX file."""

    name: str
    read: "Callable[[ImageShape], PixelArray]"
    """Its bytes (C, H, W) in a shape."""


def find_images(paths: Iterable[Path]) -> Iterator[ImageInput]:
    """All images of these files and folders, those of a folder by their names.

    A path that cannot be read is a DataError before the first image is given. What cannot be read inside a folder is
    an image that says so when it is read.
    """
    return chain.from_iterable([_images_of(path) for path in paths])


def _images_of(path: Path) -> Iterable[ImageInput]:
    """The images of a file, or of a folder."""
    from regard.data import images
    from regard.data.sources.text import DataError

    if os.path.isdir(path):
        return _images_in_folder(images.list_folder(path))
    if not images.is_idx(path):
        return [ImageInput(str(path), partial(images.read_pixels, path))]
    array = images.read_idx(path)
    if array.ndim != 3:
        raise DataError(f"{path}: Images have three dimensions (images, height, breadth), but this file has "
                        f"{array.ndim}. Give the file of the images.")
    return (ImageInput(f"{path}[{index}]", partial(images.resize_image, image)) for index, image in enumerate(array))


def _images_in_folder(paths: Iterable[Path]) -> Iterator[ImageInput]:
    from regard.data.sources.text import DataError

    for path in paths:
        try:
            found = _images_of(path)
        except DataError as error:
            found = [ImageInput(str(path), partial(_raise_error, error))]
        yield from found


def _raise_error(error: "DataError", shape: "ImageShape") -> "PixelArray":
    raise error


def _classify_images(task: "Classifier", inputs: Sequence[str], as_json: bool) -> None:
    from regard.data.images import ImageShape
    from regard.data.sources.text import DataError

    config = task.config
    shape = ImageShape(config.image_height, config.image_width, config.channels)  # type: ignore[union-attr]

    def work(some: list[ImageInput]) -> "list[list[Label]]":
        import torch

        return task.classify(torch.stack([torch.tensor(picture.read(shape)) for picture in some]))

    try:
        for picture, found in options.process_each(_image_blocks(find_images(map(Path, inputs))), work, _image_label):
            _write_labels(picture.name, found, as_json)
    except DataError as error:  # a path that cannot be read
        terminal.fail(str(error))


def _image_blocks(found: Iterable[ImageInput]) -> Iterator[list[ImageInput]]:
    block: list[ImageInput] = []
    for picture in found:
        block.append(picture)
        if len(block) == IMAGE_BLOCK:
            yield block
            block = []
    if block:
        yield block


def _image_label(number: int, picture: ImageInput) -> str:
    return f"image {number}"


def _write_labels(given: str, found: "Sequence[Label] | None", as_json: bool) -> None:
    if as_json:
        terminal.write_json({"input": given, "labels": [label._asdict() for label in found or ()]})
    else:
        best = "\t" if found is None else f"{found[0].name}\t{found[0].probability:.4f}"
        terminal.write_line(f"{best}\t{given}")
