"""How to learn to name what something is, from the number of examples, their size and the device.

Images are cut into some 50 patches or more, and moved by a pixel or two each time they are seen, where they are
large enough for that. Images that would make too many patches are read smaller. It knows numbers and sizes. It does not
know the examples.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from regard.training.choices.choice import Choice, Device, grade, length, score, sized, value

TEXTS, IMAGES = "classifier", "vit"
PATCHES = 49
"""Of an image, at least, where its sides allow for it."""
MOST_PATCHES = 1024
"""Of an image: each looks at all others."""
LARGEST = 16
"""Pixels of a patch's side."""
SHIFTED = 20
"""Pixels of an image's side, from which on it may be moved: in smaller ones a pixel is too much."""


def tokenizer(texts: int, asked: Mapping[str, Any]) -> Iterator[Choice]:
    """The choices that are made before texts are cut."""
    yield Choice("tokenizer.kind", "unigram", "subwords of any script; rare characters as bytes")
    if value(asked, "kind", "unigram") in ("unigram", "bpe"):
        size = grade(texts, ((2_000, 1000), (20_000, 4000)), 8000)
        yield Choice("tokenizer.vocabulary", size, f"{texts:,} texts: subwords must be met often enough to be learned")


def text_recipe(texts: int, device: Device, asked: str | None) -> Choice:
    """The recipe of a model of texts."""
    size = "small" if device.fast and texts >= 10_000 else "tiny"
    return Choice("recipe", sized(asked or TEXTS, size), f"{texts:,} texts, on a {'GPU' if device.fast else 'CPU'}")


def image_recipe(images: int, side: int, device: Device, asked: str | None) -> Choice:
    """The recipe of a model of images."""
    size = "tiny" if side < 64 else "small" if images < 1_000_000 or not device.fast else "base"
    return Choice("recipe", sized(asked or IMAGES, size), f"{images:,} images of {side} pixels")


def image_sides(height: int, breadth: int) -> tuple[int, int]:
    """How high and how broad images are read that are so large by themselves: as they are, where that makes not too
    many patches; otherwise with sides near theirs, or in about their proportion, that the largest patch divides."""
    patch = _patch(height, breadth)
    if (height // patch) * (breadth // patch) <= MOST_PATCHES:
        return height, breadth
    smaller = min(1.0, LARGEST * math.sqrt(MOST_PATCHES / (height * breadth)))
    tall, broad = (min(MOST_PATCHES, max(1, int(side * smaller) // LARGEST)) for side in (height, breadth))
    return tall * LARGEST, broad * LARGEST


def image_model(images: int, height: int, breadth: int, channels: int, device: Device, asked: str | None,
                reason: str = "as the images are") -> Iterator[Choice]:
    """What the recipe leaves open.

    Args:
        asked: the recipe, as somebody has named it. One with a size stays as large as it is.
        reason: why images are read in this size.
    """
    yield from (Choice(f"model.{key}", size, reason) for key, size in
                (("height", height), ("breadth", breadth), ("channels", channels)))
    patch = _patch(height, breadth)
    yield Choice("model.patch", patch, f"{(height // patch) * (breadth // patch)} patches of {patch} pixels a side")
    if asked in (None, IMAGES) and device.fast and images >= 20_000 and min(height, breadth) < 64:
        yield Choice("model.width", 128, f"{images:,} images fill more than the smallest model")
        yield Choice("model.stack.layers", 6, f"{images:,} images fill more than the smallest model")
        yield Choice("model.stack.feed_forward.inner", 256, "twice the width")


def _patch(height: int, breadth: int) -> int:
    """The side of the largest patch that fits, and makes enough of them."""
    return max(side for side in range(1, LARGEST + 1)
               if height % side == breadth % side == 0
               and (side == 1 or (height // side) * (breadth // side) >= PATCHES))


def training(examples: int, tokens: int, device: Device, side: int | None,
             asked: Mapping[str, Any]) -> Iterator[Choice]:
    """How the model is trained.

    Args:
        tokens: of all examples.
        side: pixels of the shorter side of images; None for texts.
        asked: the table [training] as far as somebody has set it.
    """
    if device.fast:
        yield Choice("training.precision", "bfloat16" if device.lowered else "float32", "what the device is fast in")
        if side is None and value(asked, "batches.layout", "padded") == "padded":
            yield Choice("training.batches.shapes", "few", "a step of a known shape is replayed as one CUDA graph")
    each = max(1, round(tokens / max(1, examples)))
    rows = grade(examples, ((2_000, 32), (20_000, 64)), 256 if device.fast else 128)
    batch = value(asked, "batches.tokens", rows * each)
    yield Choice("training.batches.tokens", batch, f"about {max(1, batch // each)} examples")
    yield Choice("training.smoothing", 0.1, "labels are not always right")
    if side is not None and side >= SHIFTED:
        yield Choice("training.shift", max(1, side // 14), "an image moved a little is still the same")
    often = grade(examples, ((2_000, 60), (20_000, 30)), 30 if device.fast else 8)
    epochs, steps = length(asked, often, tokens / batch, device,
                           "so often all examples are seen")
    yield from epochs
    yield Choice("training.average", 0.99 if steps < 3000 else 0.998, "the mean over steps is better than any of them")
    yield Choice("training.schedule.shape", "cosine", "slowly down, which settles the model")
    yield Choice("training.schedule.peak", 1e-3, "as high as such a model bears")
    yield Choice("training.schedule.warmup", max(1, steps // 20), "the first steps are the wildest")
    yield Choice("training.optimiser.decay", 0.05, "weights that nothing asks for fade")
    every = value(asked, "validation.every", max(1, steps // 15))
    yield Choice("training.validation.every", every, "about 15 times in all")
    yield score(asked, "accuracy", "what a classifier is judged by")
    yield Choice("training.validation.most", 10_000, "each takes little time")
    yield Choice("training.checkpoints.every", every, "with every validation")
    yield Choice("training.report", 50 if device.fast else 10, "a line of metrics every few seconds")
