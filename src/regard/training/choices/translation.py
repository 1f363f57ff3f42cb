"""How to learn to translate, from the number of pairs and the device.

The less there is to learn from, the more a model must be kept from learning it by heart: dropout, two passes that must
agree (R-Drop), label smoothing, few and therefore frequent subwords. The more there is, the larger a model it fills.
On a CPU everything is smaller: what takes minutes on a GPU would take days. The figures behind these choices are in
`benchmarks/RESULTS.md`.

It knows numbers of pairs and tokens. It does not know the pairs.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from regard.training.choices.choice import Choice, Device, grade, length, score, sized, value

RECIPE = "transformer"
SUBWORDS = ("unigram", "bpe")
"""The tokenizers whose vocabulary is a matter of choice."""
SIZES = ((400_000, "small"), (20_000_000, "base"))
"""Below so many pairs, on a GPU."""
SMALLER = {"small": "tiny", "base": "small", "big": "base"}
"""On a CPU."""
FEW = 1_000_000
"""Pairs: below, a model must be kept from learning them by heart."""
FEWEST = 20
"""Pairs, below which none is held out."""


def held_share(pairs: int) -> float:
    """How much of so many pairs is held out, where no validation data is given: 4 %, but not more than 2,000 pairs, and
    none of very few. All choices but those of the tokenizer are made for the pairs that are left."""
    return 0.0 if pairs < FEWEST else min(0.04, 2000 / pairs)


def tokenizer(pairs: int, asked: Mapping[str, Any]) -> Iterator[Choice]:
    """The choices that are made before the texts are cut.

    Args:
        asked: the table [tokenizer] as far as somebody has set it.
    """
    size = grade(pairs, ((2_000, 1000), (10_000, 4000), (100_000, 8000), (1_000_000, 16_000)), 32_000)
    yield Choice("tokenizer.kind", "unigram", "subwords of any script; rare characters as bytes")
    if value(asked, "kind", "unigram") in SUBWORDS:
        yield Choice("tokenizer.vocabulary", size, f"{pairs:,} pairs: subwords must be met often enough to be learned")
    yield Choice("data.joint", True, "names and numbers are written alike on both sides")


def recipe(pairs: int, device: Device, asked: str | None) -> Choice:
    """The recipe of the model."""
    size = grade(pairs, SIZES, "big")
    if not device.fast:
        size = SMALLER[size]
        return Choice("recipe", sized(asked or RECIPE, size), f"{pairs:,} pairs, on a CPU")
    return Choice("recipe", sized(asked or RECIPE, size), f"{pairs:,} pairs, on a GPU")


def model(pairs: int, table: Mapping[str, Any]) -> Iterator[Choice]:
    """Dropout, and where the norms are, which are matters of the data more than of the recipe.

    Args:
        table: [model], as the recipe or somebody has it. What it is without gets no dropout.
    """
    dropout = grade(pairs, ((100_000, 0.3), (1_000_000, 0.2)), 0.1)
    reason = f"{pairs:,} pairs: {'few, so the model must not learn them by heart' if pairs < FEW else 'many'}"
    if table["kind"] == "seq2seq":
        yield Choice("model.dropout", dropout, reason)
        return
    for part in ("embedding", "encoder", "decoder"):
        yield Choice(f"model.{part}.dropout", dropout, reason)
    for side in ("encoder", "decoder") if pairs < FEW else ():
        if value(table, f"{side}.order") == "post":
            yield Choice(f"model.{side}.order", "pre", "from few pairs post-norm may never learn where to look")
    inside = [f"{side}.{part}" for side in ("encoder", "decoder") for part in ("feed_forward", "cross", "mixer")]
    for part in inside if dropout > 0.1 else ():
        if value(table, part) is not None and value(table, f"{part}.kind", "attention") == "attention":
            yield Choice(f"model.{part}.dropout", 0.1, "some dropout inside the layers too")


def training(pairs: int, tokens: int, mixers: Collection[str], device: Device,
             asked: Mapping[str, Any]) -> Iterator[Choice]:
    """How the model is trained.

    Args:
        tokens: of all pairs, both sides.
        mixers: the kinds of those in the blocks of the model, where it has blocks.
        asked: the table [training] as far as somebody has set it, from which other choices follow.
    """
    few = pairs < FEW
    precision = value(asked, "precision", "bfloat16" if device.fast and device.lowered else "float32")
    if device.fast:
        yield Choice("training.precision", precision, "what the device is fast in")
    batch = value(asked, "batches.tokens", _batch(pairs, device))
    yield Choice("training.batches.tokens", batch, "source and target together; more smooths the gradient, less is "
                                                   "more steps for few pairs")
    if set(mixers) == {"attention"} and (precision != "float32" or not device.fast):  # it has no kernel for others
        yield Choice("training.batches.layout", "packed", "nothing is computed for padding")
    if device.fast:
        yield Choice("training.batches.shapes", "few", "a step of a known shape is replayed as one CUDA graph")
    yield Choice("training.smoothing", 0.1, "a translation is one of several good ones")
    if few and (device.fast or pairs < 20_000) and value(asked, "consistency", 1.0):
        yield Choice("training.consistency", 5.0, "R-Drop: two passes must agree, which counts most for few pairs")
    yield Choice("training.average", 0.998 if few else 0.9995, "the mean over steps is better than any of them")
    epochs, steps = length(asked, _epochs(pairs, device), tokens / batch, device,
                           "so often all pairs are seen, unless the score stops rising before")
    yield from epochs
    yield Choice("training.schedule.shape", "linear", "constant, then down to nothing, which settles the model")
    yield Choice("training.schedule.peak", 1e-3 if few else 7e-4, "as high as such a model bears")
    yield Choice("training.schedule.warmup", max(1, min(1500 if few else 4000, steps // 5)), "the first steps know "
                                                                                            "little")
    yield Choice("training.schedule.hold", 0.5, "half of the steps at the peak")
    yield Choice("training.optimiser.decay", 0.01, "weights that nothing asks for fade")
    every = value(asked, "validation.every", max(1, steps // 16))
    yield Choice("training.validation.every", every, "about 16 times in all")
    yield score(asked, "chrf", "the score that judges short texts and rich endings best")
    yield Choice("training.validation.patience", 6, "without a better score for so long there will be none")
    yield Choice("training.checkpoints.every", every, "with every validation")
    yield Choice("training.report", 50 if device.fast else 10, "a line of metrics every few seconds")


def _batch(pairs: int, device: Device) -> int:
    if not device.fast:
        return grade(pairs, ((5_000, 2000), (200_000, 4000)), 8000)
    return grade(pairs, ((10_000, 6000), (100_000, 12_000), (1_000_000, 24_000)), 50_000)


def _epochs(pairs: int, device: Device) -> int:
    if not device.fast:
        return grade(pairs, ((5_000, 60), (50_000, 30), (300_000, 12), (2_000_000, 5)), 2)
    return grade(pairs, ((60_000, 200), (300_000, 40), (2_000_000, 20), (20_000_000, 10)), 3)
