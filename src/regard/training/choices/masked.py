"""How to learn to fill in what is hidden, from the number of texts and the device.

Every epoch hides other words, so texts can be read often before they are known by heart. It knows numbers of texts and
tokens. It does not know the texts.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from regard.training.choices.choice import Choice, Device, grade, length, sized, value

RECIPE = "bert"
SIZES = ((5_000_000, "small"), (100_000_000, "base"))
SMALLER = {"small": "tiny", "base": "small", "big": "base"}


def tokenizer(texts: int, asked: Mapping[str, Any]) -> Iterator[Choice]:
    """The choices that are made before the texts are cut."""
    yield Choice("tokenizer.kind", "unigram", "subwords of any script; rare characters as bytes")
    if value(asked, "kind", "unigram") in ("unigram", "bpe"):
        size = grade(texts, ((10_000, 2000), (50_000, 4000), (500_000, 8000)), 16_000)
        yield Choice("tokenizer.vocabulary", size, f"{texts:,} texts: subwords must be met often enough to be learned")


def recipe(texts: int, device: Device, asked: str | None) -> Choice:
    """The recipe of the model."""
    size = grade(texts, SIZES, "big")
    size = size if device.fast else SMALLER[size]
    return Choice("recipe", sized(asked or RECIPE, size), f"{texts:,} texts, on a {'GPU' if device.fast else 'CPU'}")


def training(texts: int, tokens: int, device: Device, asked: Mapping[str, Any]) -> Iterator[Choice]:
    """How the model is trained.

    Args:
        tokens: of all texts.
        asked: the table [training] as far as somebody has set it.
    """
    if device.fast:
        yield Choice("training.precision", "bfloat16" if device.lowered else "float32", "what the device is fast in")
        if value(asked, "batches.layout", "padded") == "padded":
            yield Choice("training.batches.shapes", "few", "a step of a known shape is replayed as one CUDA graph")
    yield Choice("training.masking.share", 0.15, "enough to learn from, and enough left to learn it by")
    large = 16_000 if device.fast else 4000
    batch = value(asked, "batches.tokens", grade(texts, ((10_000, 2000), (100_000, 4000)), large))
    yield Choice("training.batches.tokens", batch, "only one of seven tokens is learned from")
    often = grade(texts, ((10_000, 60), (500_000, 40 if device.fast else 8)), 3)
    epochs, steps = length(asked, often, tokens / batch, device, "every time other words are hidden")
    yield from epochs
    yield Choice("training.average", 0.995, "the mean over steps is better than any of them")
    yield Choice("training.schedule.shape", "linear", "down to nothing, which settles the model")
    yield Choice("training.schedule.peak", 5e-4, "as high as such a model bears")
    yield Choice("training.schedule.warmup", max(1, min(1000, steps // 10)), "post-norm needs a slow start")
    yield Choice("training.optimiser.decay", 0.01, "weights that nothing asks for fade")
    every = value(asked, "validation.every", max(1, steps // 12))
    yield Choice("training.validation.every", every, "about 12 times in all")
    yield Choice("training.validation.score", "loss", "of the hidden words")
    yield Choice("training.validation.patience", 5, "without a lower loss for so long there will be none")
    yield Choice("training.checkpoints.every", every, "with every validation")
    yield Choice("training.report", 50 if device.fast else 10, "a line of metrics every few seconds")
