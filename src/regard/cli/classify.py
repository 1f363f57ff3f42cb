"""`regard classify`: label texts, or images in files, folders and IDX files.

A line of the result is the label, its probability and the input, separated by tabs. The model decides whether the
inputs are texts or images.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from regard.cli.options import (
    AUTO_DEVICE,
    DeviceOption,
    JsonOption,
    ModelArgument,
    open_task,
    process_each,
    text_blocks,
    text_label,
    with_examples,
)
from regard.cli.output import fail, write_json, write_line

if TYPE_CHECKING:
    from regard.data.images import ImageShape, PixelArray
    from regard.data.sources.text import DataError
    from regard.tasks.classifier import Classifier, Label

IMAGE_BLOCK = 256
"""Images that are in memory at a time."""


@with_examples("""
    regard classify model "What a lovely film!"
    regard classify model < reviews.txt | cut -f 1   # one label per line
    regard classify model photos/ scan.png           # with an image classifier
""")
def classify(
    model: ModelArgument,
    inputs: Annotated[list[str] | None, typer.Argument(
        metavar="INPUT", show_default=False,
        help="Texts. Without any, or with -, the lines of standard input. For an image classifier: image files, "
        "folders of images, or IDX files.")] = None,
    as_json: JsonOption = False,
    device: DeviceOption = AUTO_DEVICE,
) -> None:
    """Classify texts or images.

    Prints a line for each input: label, probability and input, separated by tabs; with --json the probabilities of all
    labels. An input that cannot be classified gives an empty label and an error on stderr, and the exit code is 1.
    """
    from regard.models.vision import VisionConfig
    from regard.tasks.classifier import Classifier

    task = open_task(model, device, "Classifier")
    assert isinstance(task, Classifier)
    if isinstance(task.config, VisionConfig):
        if not inputs or "-" in inputs:
            fail(f"{model}: This model classifies images. Give image files, or folders of images.")
        _classify_images(task, inputs, as_json)
        return
    for text, found in process_each(text_blocks(inputs), task.classify, text_label):
        _write_labels(text, found, as_json)


class ImageInput(NamedTuple):
    """An image to be read: a file, or one image of an IDX file."""

    name: str
    read: "Callable[[ImageShape], PixelArray]"
    """Reads its bytes (C, H, W) in a given shape."""


def find_images(paths: Iterable[Path]) -> Iterator[ImageInput]:
    """All images of these files and folders, those of a folder by name.

    A path that cannot be read is a DataError before the first image. A bad file inside a folder is an image whose
    reading fails.
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
        raise DataError(f"{path}: An IDX file of images has 3 dimensions (images, height, width), but this one has "
                        f"{array.ndim}. Give the file of the images, not that of the labels.")
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
    from regard.tasks.documents import split_blocks

    config = task.config
    shape = ImageShape(config.image_height, config.image_width, config.channels)  # type: ignore[union-attr]

    def work(some: list[ImageInput]) -> "list[list[Label]]":
        import torch

        return task.classify(torch.stack([torch.tensor(image.read(shape)) for image in some]))

    try:
        blocks = split_blocks(find_images(map(Path, inputs)), IMAGE_BLOCK)
        for image, found in process_each(blocks, work, lambda number, image: f"image {number}"):
            _write_labels(image.name, found, as_json)
    except DataError as error:  # a path that cannot be read
        fail(str(error))


def _write_labels(given: str, found: "Sequence[Label] | None", as_json: bool) -> None:
    if as_json:
        write_json({"input": given, "labels": [label._asdict() for label in found or ()]})
    else:
        best = "\t" if found is None else f"{found[0].name}\t{found[0].probability:.4f}"
        write_line(f"{best}\t{given}")
