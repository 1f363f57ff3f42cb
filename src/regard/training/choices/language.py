"""How to learn to go on with a text, from its length and the device.

A text of a few million characters is read character by character: words are met too rarely there. It is read many times
over, so dropout is high; a long text is read a few times by a larger model. Recurrent models read on from window to
window, others read windows in any order. The figures behind these choices are in `benchmarks/RESULTS.md`.

It knows numbers of characters and tokens. It does not know the text.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from regard.training.choices.choice import Choice, Device, grade, length, sized, value

RECIPE = "gpt"
CHARACTERS = 5_000_000
"""Texts shorter than this are read character by character."""
SIZES = ((50_000_000, "small"), (2_000_000_000, "base"))
SMALLER = {"small": "tiny", "base": "small", "big": "base"}


def tokenizer(characters: int, asked: Mapping[str, Any]) -> Iterator[Choice]:
    """The choices that are made before the text is cut."""
    few = characters < CHARACTERS
    kind = value(asked, "kind", "characters" if few else "unigram")
    reason = "too few to meet words often" if few else "enough to meet words often"
    yield Choice("tokenizer.kind", kind, f"{characters:,} characters: {reason}")
    if kind in ("unigram", "bpe"):
        size = grade(characters, ((5_000_000, 2000), (50_000_000, 8000), (500_000_000, 16_000)), 32_000)
        yield Choice("tokenizer.vocabulary", size, "subwords must be met often enough to be learned")
        yield Choice("tokenizer.normalisation", "nfc", "line breaks belong to the text")


def recipe(tokens: int, device: Device, asked: str | None) -> Choice:
    """The recipe of the model."""
    size = grade(tokens, SIZES, "big")
    if not device.fast:
        return Choice("recipe", sized(asked or RECIPE, SMALLER[size]), f"{tokens:,} tokens, on a CPU")
    return Choice("recipe", sized(asked or RECIPE, size), f"{tokens:,} tokens, on a GPU")


def model(tokens: int, table: Mapping[str, Any]) -> Iterator[Choice]:
    """What the recipe leaves open."""
    if tokens >= 20_000_000:
        return
    reason = f"{tokens:,} tokens are read many times: the model must not learn them by heart"
    recurrent = value(table, "stack.mixer.kind") == "recurrence"
    for part in ("embedding", "stack"):
        yield Choice(f"model.{part}.dropout", 0.4 if recurrent else 0.2, reason)
    if value(table, "stack.mixer.kind") == "attention":
        yield Choice("model.stack.mixer.dropout", 0.2, reason)
        yield Choice("model.stack.feed_forward.dropout", 0.2, reason)


def training(tokens: int, table: Mapping[str, Any], device: Device, asked: Mapping[str, Any]) -> Iterator[Choice]:
    """How the model is trained.

    Args:
        table: [model], as the recipe or somebody has it.
        asked: the table [training] as far as somebody has set it.
    """
    recurrent = value(table, "stack.mixer.kind") in ("recurrence", "lstmn")
    if device.fast:
        yield Choice("training.precision", "bfloat16" if device.lowered else "float32", "what the device is fast in")
    room = value(table, "embedding.positions.count", 10**9)
    window = value(asked, "windows.length", min(room, 128 if recurrent else 256, max(8, tokens // 64)))
    yield Choice("training.windows.length", window, "how far back a step learns" if recurrent else
                 "how far back the model can look")
    rows = value(asked, "windows.rows", max(1, min(64 if device.fast else 16, tokens // (4 * window))))
    yield Choice("training.windows.rows", rows, "windows of a batch")
    carried = value(table, "stack.mixer.kind") == "recurrence" and value(table, "embedding.positions") is None
    yield Choice("training.windows.order", "continuous" if carried else "shuffled",
                 "what was read is remembered from window to window" if carried else "each window stands for itself")
    epochs, steps = length(asked, _epochs(tokens, device, recurrent), tokens / (window * rows), device,
                           "so often the text is read, unless the loss stops falling before")
    yield from epochs
    average = 0.99 if steps < 20_000 else 0.999
    yield Choice("training.average", average, "the mean over steps is better than any of them")
    yield Choice("training.schedule.shape", "cosine", "slowly down to nothing, which settles the model")
    yield Choice("training.schedule.peak", 2e-3 if recurrent else 1e-3, "as high as such a model bears")
    yield Choice("training.schedule.warmup", max(0, min(100, steps // 10)), "the first steps are the wildest")
    yield Choice("training.optimiser.second", 0.99, "few tokens a step: the second moment must remember longer")
    yield Choice("training.optimiser.decay", 0.1, "weights that nothing asks for fade")
    every = value(asked, "validation.every", max(1, steps // 20))
    yield Choice("training.validation.every", every, "about 20 times in all")
    yield Choice("training.validation.score", "loss", "what a language model is judged by")
    yield Choice("training.validation.patience", 5, "without a lower loss for so long there will be none")
    yield Choice("training.checkpoints.every", every, "with every validation")
    yield Choice("training.report", 50 if device.fast else 10, "a line of metrics every few seconds")


def _epochs(tokens: int, device: Device, recurrent: bool) -> int:
    if not device.fast:
        return grade(tokens, ((2_000_000, 6), (20_000_000, 3)), 1)
    return grade(tokens, ((2_000_000, 60), (20_000_000, 20), (200_000_000, 6)), 2)
