"""Defaults of a training that depend on the amount of data and the device, each with its reason.

    Default("training.batches.max_tokens", 12000, "a GPU is idle below that")

For each task there is one function for the tokenizer, the recipe (model size), the model and the training. The less
data there is, the more a model must be regularised: dropout, R-Drop, label smoothing, small vocabularies. The more
there is, the larger a model it fills. On a CPU everything is smaller: what takes minutes on a GPU would take days. The
measurements behind these numbers are in `benchmarks/RESULTS.md`.

A user sees the defaults before the first step, and may set any of them otherwise. The functions see counts and sizes,
never the data; this module does not import torch.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from regard.models import catalog


class Default(NamedTuple):
    """A key, its value, and the reason for it."""

    key: str
    value: Any
    reason: str


@dataclass(frozen=True)
class DeviceProperties:
    """What a training runs on."""

    kind: str
    """ "cpu" or "cuda" """
    memory: int
    """Bytes."""
    lowered: bool
    """Whether it has bfloat16 in its matrix units."""
    count: int = 1
    """How many of them there are, each with a process and batches of its own."""

    @property
    def fast(self) -> bool:
        """Whether it is made for large batches."""
        return self.kind == "cuda"


def recipe_with_size(recipe: str, size: str) -> str:
    """The recipe of a name in a size, where the name says none and there is such a size."""
    if recipe in catalog.recipe_names() and size != catalog.BASE_SIZE and size in catalog.recipe_sizes(recipe):
        return f"{recipe}-{size}"
    return recipe


def by_threshold(value: float, steps: Iterable[tuple[float, Any]], last: Any) -> Any:
    """The entry of the first step that the value is below, or the last one."""
    return next((entry for limit, entry in steps if value < limit), last)


def training_length(asked: Mapping[str, Any], epochs: float, batches: float, device: DeviceProperties,
           reason: str) -> tuple[list[Default], int]:
    """How long a training is: the choice of epochs, where no steps are set, and about how many steps it has.

    Args:
        asked: the table [training] as far as somebody has set it.
        epochs: so many, where nobody has set them.
        batches: of an epoch, about; it has one at least.
    """
    steps = lookup(asked, "schedule.max_steps")
    if steps is not None:
        return [], steps
    epochs = lookup(asked, "epochs", epochs)
    many = lookup(asked, "gradient_accumulation", 1) * device.count
    return [Default("training.epochs", epochs, reason)], max(1, math.ceil(epochs * max(1.0, batches) / many))


def validation_score(asked: Mapping[str, Any], name: str, reason: str) -> Default:
    """What tells the better model: the score of this name, where a process has a whole model to judge."""
    if lookup(asked, "parallelism", "ddp") == "fsdp":
        name, reason = "loss", "no process has the whole model"
    return Default("training.validation.metric", name, reason)


def lookup(tables: Mapping[str, Any], key: str, otherwise: Any = None) -> Any:
    """What tables have at a dotted key, or something else where they have nothing."""
    found: Any = tables
    for part in key.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return otherwise
        found = found[part]
    return found


# ---- translation: How to learn to translate, from the number of pairs and the device.
#
# The less there is to learn from, the more a model must be kept from learning it by heart: dropout, two passes that must
# agree (R-Drop), label smoothing, few and therefore frequent subwords. The more there is, the larger a model it fills.
# On a CPU everything is smaller: what takes minutes on a GPU would take days. The figures behind these choices are in
# `benchmarks/RESULTS.md`.
#
# It knows numbers of pairs and tokens. It does not know the pairs.

TRANSLATION_RECIPE = "transformer"
SUBWORD_TOKENIZERS = ("unigram", "bpe")
"""The tokenizers whose vocabulary is a matter of choice."""
TRANSLATION_SIZES = ((400_000, "small"), (20_000_000, "base"))
"""Below so many pairs, on a GPU."""
CPU_SIZES = {"small": "tiny", "base": "small", "big": "base"}
"""On a CPU."""
FEW_PAIRS = 1_000_000
"""Pairs: below, a model must be kept from learning them by heart."""
MIN_SPLIT_PAIRS = 20
"""Pairs, below which none is held out."""


def translation_validation_fraction(pairs: int) -> float:
    """How much of so many pairs is held out, where no validation data is given: 4 %, but not more than 2,000 pairs, and
    none of very few. All choices but those of the tokenizer are made for the pairs that are left."""
    return 0.0 if pairs < MIN_SPLIT_PAIRS else min(0.04, 2000 / pairs)


def translation_tokenizer(pairs: int, asked: Mapping[str, Any]) -> Iterator[Default]:
    """The choices that are made before the texts are cut.

    Args:
        asked: the table [tokenizer] as far as somebody has set it.
    """
    size = by_threshold(pairs, ((2_000, 1000), (10_000, 4000), (100_000, 8000), (1_000_000, 16_000)), 32_000)
    yield Default("tokenizer.kind", "unigram", "subwords of any script; rare characters as bytes")
    if lookup(asked, "kind", "unigram") in SUBWORD_TOKENIZERS:
        yield Default("tokenizer.vocab_size", size, f"{pairs:,} pairs: subwords must be met often enough to be learned")
    yield Default("data.joint_tokenizer", True, "names and numbers are written alike on both sides")


def translation_recipe(pairs: int, device: DeviceProperties, asked: str | None) -> Default:
    """The recipe of the model."""
    size = by_threshold(pairs, TRANSLATION_SIZES, "big")
    if not device.fast:
        size = CPU_SIZES[size]
        return Default("recipe", recipe_with_size(asked or TRANSLATION_RECIPE, size), f"{pairs:,} pairs, on a CPU")
    return Default("recipe", recipe_with_size(asked or TRANSLATION_RECIPE, size), f"{pairs:,} pairs, on a GPU")


def translation_model(pairs: int, table: Mapping[str, Any]) -> Iterator[Default]:
    """Dropout, and where the norms are, which are matters of the data more than of the recipe.

    Args:
        table: [model], as the recipe or somebody has it. What it is without gets no dropout.
    """
    dropout = by_threshold(pairs, ((100_000, 0.3), (1_000_000, 0.2)), 0.1)
    reason = f"{pairs:,} pairs: {'few, so the model must not learn them by heart' if pairs < FEW_PAIRS else 'many'}"
    if table["kind"] == "seq2seq":
        yield Default("model.dropout", dropout, reason)
        return
    for part in ("embedding", "encoder", "decoder"):
        yield Default(f"model.{part}.dropout", dropout, reason)
    for side in ("encoder", "decoder") if pairs < FEW_PAIRS else ():
        if lookup(table, f"{side}.norm_position") == "post":
            yield Default(f"model.{side}.norm_position", "pre", "from few pairs post-norm may never learn where to look")
    inside = [f"{side}.{part}" for side in ("encoder", "decoder") for part in ("feed_forward", "cross", "mixer")]
    for part in inside if dropout > 0.1 else ():
        if lookup(table, part) is not None and lookup(table, f"{part}.kind", "attention") == "attention":
            yield Default(f"model.{part}.dropout", 0.1, "some dropout inside the layers too")


def translation_training(pairs: int, tokens: int, mixers: Collection[str], device: DeviceProperties,
             asked: Mapping[str, Any]) -> Iterator[Default]:
    """How the model is trained.

    Args:
        tokens: of all pairs, both sides.
        mixers: the kinds of those in the blocks of the model, where it has blocks.
        asked: the table [training] as far as somebody has set it, from which other choices follow.
    """
    few = pairs < FEW_PAIRS
    precision = lookup(asked, "precision", "bfloat16" if device.fast and device.lowered else "float32")
    if device.fast:
        yield Default("training.precision", precision, "what the device is fast in")
    batch = lookup(asked, "batches.max_tokens", _translation_batch(pairs, device))
    yield Default("training.batches.max_tokens", batch, "source and target together; more smooths the gradient, less is "
                                                   "more steps for few pairs")
    if set(mixers) == {"attention"} and (precision != "float32" or not device.fast):  # it has no kernel for others
        yield Default("training.batches.layout", "packed", "nothing is computed for padding")
    if device.fast:
        yield Default("training.batches.shapes", "few", "a step of a known shape is replayed as one CUDA graph")
    yield Default("training.label_smoothing", 0.1, "a translation is one of several good ones")
    if few and (device.fast or pairs < 20_000) and lookup(asked, "rdrop", 1.0):
        yield Default("training.rdrop", 5.0, "R-Drop: two passes must agree, which counts most for few pairs")
    yield Default("training.ema_decay", 0.998 if few else 0.9995, "the mean over steps is better than any of them")
    epochs, steps = training_length(asked, _translation_epochs(pairs, device), tokens / batch, device,
                           "so often all pairs are seen, unless the score stops rising before")
    yield from epochs
    yield Default("training.schedule.shape", "linear", "constant, then down to nothing, which settles the model")
    yield Default("training.schedule.learning_rate", 1e-3 if few else 7e-4, "as high as such a model bears")
    yield Default("training.schedule.warmup_steps", max(1, min(1500 if few else 4000, steps // 5)), "the first steps know "
                                                                                            "little")
    yield Default("training.schedule.constant_fraction", 0.5, "half of the steps at the peak")
    yield Default("training.optimizer.weight_decay", 0.01, "weights that nothing asks for fade")
    every = lookup(asked, "validation.every", max(1, steps // 16))
    yield Default("training.validation.every", every, "about 16 times in all")
    yield validation_score(asked, "chrf", "the score that judges short texts and rich endings best")
    yield Default("training.validation.patience", 6, "without a better score for so long there will be none")
    yield Default("training.checkpoints.every", every, "with every validation")
    yield Default("training.log_every", 50 if device.fast else 10, "a line of metrics every few seconds")


def _translation_batch(pairs: int, device: DeviceProperties) -> int:
    if not device.fast:
        return by_threshold(pairs, ((5_000, 2000), (200_000, 4000)), 8000)
    return by_threshold(pairs, ((10_000, 6000), (100_000, 12_000), (1_000_000, 24_000)), 50_000)


def _translation_epochs(pairs: int, device: DeviceProperties) -> int:
    if not device.fast:
        return by_threshold(pairs, ((5_000, 60), (50_000, 30), (300_000, 12), (2_000_000, 5)), 2)
    return by_threshold(pairs, ((60_000, 200), (300_000, 40), (2_000_000, 20), (20_000_000, 10)), 3)


# ---- language: How to learn to go on with a text, from its length and the device.
#
# A text of a few million characters is read character by character: words are met too rarely there. It is read many times
# over, so dropout is high; a long text is read a few times by a larger model. Recurrent models read on from window to
# window, others read windows in any order. The figures behind these choices are in `benchmarks/RESULTS.md`.
#
# It knows numbers of characters and tokens. It does not know the text.

LANGUAGE_RECIPE = "gpt"
FEW_CHARACTERS = 5_000_000
"""Texts shorter than this are read character by character."""
LANGUAGE_SIZES = ((50_000_000, "small"), (2_000_000_000, "base"))
LANGUAGE_CPU_SIZES = {"small": "tiny", "base": "small", "big": "base"}


def language_tokenizer(characters: int, asked: Mapping[str, Any]) -> Iterator[Default]:
    """The choices that are made before the text is cut."""
    few = characters < FEW_CHARACTERS
    kind = lookup(asked, "kind", "characters" if few else "unigram")
    reason = "too few to meet words often" if few else "enough to meet words often"
    yield Default("tokenizer.kind", kind, f"{characters:,} characters: {reason}")
    if kind in ("unigram", "bpe"):
        size = by_threshold(characters, ((5_000_000, 2000), (50_000_000, 8000), (500_000_000, 16_000)), 32_000)
        yield Default("tokenizer.vocab_size", size, "subwords must be met often enough to be learned")
        yield Default("tokenizer.normalization", "nfc", "line breaks belong to the text")


def language_recipe(tokens: int, device: DeviceProperties, asked: str | None) -> Default:
    """The recipe of the model."""
    size = by_threshold(tokens, LANGUAGE_SIZES, "big")
    if not device.fast:
        return Default("recipe", recipe_with_size(asked or LANGUAGE_RECIPE, LANGUAGE_CPU_SIZES[size]), f"{tokens:,} tokens, on a CPU")
    return Default("recipe", recipe_with_size(asked or LANGUAGE_RECIPE, size), f"{tokens:,} tokens, on a GPU")


def language_model(tokens: int, table: Mapping[str, Any]) -> Iterator[Default]:
    """What the recipe leaves open."""
    if tokens >= 20_000_000:
        return
    reason = f"{tokens:,} tokens are read many times: the model must not learn them by heart"
    recurrent = lookup(table, "stack.mixer.kind") == "recurrence"
    for part in ("embedding", "stack"):
        yield Default(f"model.{part}.dropout", 0.4 if recurrent else 0.2, reason)
    if lookup(table, "stack.mixer.kind") == "attention":
        yield Default("model.stack.mixer.dropout", 0.2, reason)
        yield Default("model.stack.feed_forward.dropout", 0.2, reason)


def language_training(tokens: int, table: Mapping[str, Any], device: DeviceProperties, asked: Mapping[str, Any]) -> Iterator[Default]:
    """How the model is trained.

    Args:
        table: [model], as the recipe or somebody has it.
        asked: the table [training] as far as somebody has set it.
    """
    recurrent = lookup(table, "stack.mixer.kind") in ("recurrence", "lstmn")
    if device.fast:
        yield Default("training.precision", "bfloat16" if device.lowered else "float32", "what the device is fast in")
    room = lookup(table, "embedding.positions.max_positions", 10**9)
    window = lookup(asked, "windows.length", min(room, 128 if recurrent else 256, max(8, tokens // 64)))
    yield Default("training.windows.length", window, "how far back a step learns" if recurrent else
                 "how far back the model can look")
    rows = lookup(asked, "windows.batch_size", max(1, min(64 if device.fast else 16, tokens // (4 * window))))
    yield Default("training.windows.batch_size", rows, "windows of a batch")
    carried = lookup(table, "stack.mixer.kind") == "recurrence" and lookup(table, "embedding.positions") is None
    yield Default("training.windows.order", "continuous" if carried else "shuffled",
                 "what was read is remembered from window to window" if carried else "each window stands for itself")
    epochs, steps = training_length(asked, _language_epochs(tokens, device, recurrent), tokens / (window * rows), device,
                           "so often the text is read, unless the loss stops falling before")
    yield from epochs
    average = 0.99 if steps < 20_000 else 0.999
    yield Default("training.ema_decay", average, "the mean over steps is better than any of them")
    yield Default("training.schedule.shape", "cosine", "slowly down to nothing, which settles the model")
    yield Default("training.schedule.learning_rate", 2e-3 if recurrent else 1e-3, "as high as such a model bears")
    yield Default("training.schedule.warmup_steps", max(0, min(100, steps // 10)), "the first steps are the wildest")
    yield Default("training.optimizer.beta2", 0.99, "few tokens a step: the second moment must remember longer")
    yield Default("training.optimizer.weight_decay", 0.1, "weights that nothing asks for fade")
    every = lookup(asked, "validation.every", max(1, steps // 20))
    yield Default("training.validation.every", every, "about 20 times in all")
    yield Default("training.validation.metric", "loss", "what a language model is judged by")
    yield Default("training.validation.patience", 5, "without a lower loss for so long there will be none")
    yield Default("training.checkpoints.every", every, "with every validation")
    yield Default("training.log_every", 50 if device.fast else 10, "a line of metrics every few seconds")


def _language_epochs(tokens: int, device: DeviceProperties, recurrent: bool) -> int:
    if not device.fast:
        return by_threshold(tokens, ((2_000_000, 6), (20_000_000, 3)), 1)
    return by_threshold(tokens, ((2_000_000, 60), (20_000_000, 20), (200_000_000, 6)), 2)


# ---- masked: How to learn to fill in what is hidden, from the number of texts and the device.
#
# Every epoch hides other words, so texts can be read often before they are known by heart. It knows numbers of texts and
# tokens. It does not know the texts.

MASKED_RECIPE = "bert"
MASKED_SIZES = ((5_000_000, "small"), (100_000_000, "base"))
MASKED_CPU_SIZES = {"small": "tiny", "base": "small", "big": "base"}


def masked_tokenizer(texts: int, asked: Mapping[str, Any]) -> Iterator[Default]:
    """The choices that are made before the texts are cut."""
    yield Default("tokenizer.kind", "unigram", "subwords of any script; rare characters as bytes")
    if lookup(asked, "kind", "unigram") in ("unigram", "bpe"):
        size = by_threshold(texts, ((10_000, 2000), (50_000, 4000), (500_000, 8000)), 16_000)
        yield Default("tokenizer.vocab_size", size, f"{texts:,} texts: subwords must be met often enough to be learned")


def masked_recipe(texts: int, device: DeviceProperties, asked: str | None) -> Default:
    """The recipe of the model."""
    size = by_threshold(texts, MASKED_SIZES, "big")
    size = size if device.fast else MASKED_CPU_SIZES[size]
    return Default("recipe", recipe_with_size(asked or MASKED_RECIPE, size), f"{texts:,} texts, on a {'GPU' if device.fast else 'CPU'}")


def masked_training(texts: int, tokens: int, device: DeviceProperties, asked: Mapping[str, Any]) -> Iterator[Default]:
    """How the model is trained.

    Args:
        tokens: of all texts.
        asked: the table [training] as far as somebody has set it.
    """
    if device.fast:
        yield Default("training.precision", "bfloat16" if device.lowered else "float32", "what the device is fast in")
        if lookup(asked, "batches.layout", "padded") == "padded":
            yield Default("training.batches.shapes", "few", "a step of a known shape is replayed as one CUDA graph")
    yield Default("training.masking.mlm_probability", 0.15, "enough to learn from, and enough left to learn it by")
    large = 16_000 if device.fast else 4000
    batch = lookup(asked, "batches.max_tokens", by_threshold(texts, ((10_000, 2000), (100_000, 4000)), large))
    yield Default("training.batches.max_tokens", batch, "only one of seven tokens is learned from")
    often = by_threshold(texts, ((10_000, 60), (500_000, 40 if device.fast else 8)), 3)
    epochs, steps = training_length(asked, often, tokens / batch, device, "every time other words are hidden")
    yield from epochs
    yield Default("training.ema_decay", 0.995, "the mean over steps is better than any of them")
    yield Default("training.schedule.shape", "linear", "down to nothing, which settles the model")
    yield Default("training.schedule.learning_rate", 5e-4, "as high as such a model bears")
    yield Default("training.schedule.warmup_steps", max(1, min(1000, steps // 10)), "post-norm needs a slow start")
    yield Default("training.optimizer.weight_decay", 0.01, "weights that nothing asks for fade")
    every = lookup(asked, "validation.every", max(1, steps // 12))
    yield Default("training.validation.every", every, "about 12 times in all")
    yield Default("training.validation.metric", "loss", "of the hidden words")
    yield Default("training.validation.patience", 5, "without a lower loss for so long there will be none")
    yield Default("training.checkpoints.every", every, "with every validation")
    yield Default("training.log_every", 50 if device.fast else 10, "a line of metrics every few seconds")


# ---- classification: How to learn to name what something is, from the number of examples, their size and the device.
#
# Images are cut into some 50 patches or more, and moved by a pixel or two each time they are seen, where they are
# large enough for that. Images that would make too many patches are read smaller. It knows numbers and sizes. It does not
# know the examples.

TEXT_CLASSIFIER_RECIPE, IMAGE_CLASSIFIER_RECIPE = "classifier", "vit"
MIN_PATCHES = 49
"""Of an image, at least, where its sides allow for it."""
MAX_PATCHES = 1024
"""Of an image: each looks at all others."""
MAX_PATCH_SIDE = 16
"""Pixels of a patch's side."""
MIN_SHIFTED_SIDE = 20
"""Pixels of an image's side, from which on it may be moved: in smaller ones a pixel is too much."""


def classification_tokenizer(texts: int, asked: Mapping[str, Any]) -> Iterator[Default]:
    """The choices that are made before texts are cut."""
    yield Default("tokenizer.kind", "unigram", "subwords of any script; rare characters as bytes")
    if lookup(asked, "kind", "unigram") in ("unigram", "bpe"):
        size = by_threshold(texts, ((2_000, 1000), (20_000, 4000)), 8000)
        yield Default("tokenizer.vocab_size", size, f"{texts:,} texts: subwords must be met often enough to be learned")


def text_classifier_recipe(texts: int, device: DeviceProperties, asked: str | None) -> Default:
    """The recipe of a model of texts."""
    size = "small" if device.fast and texts >= 10_000 else "tiny"
    return Default("recipe", recipe_with_size(asked or TEXT_CLASSIFIER_RECIPE, size), f"{texts:,} texts, on a {'GPU' if device.fast else 'CPU'}")


def image_classifier_recipe(images: int, side: int, device: DeviceProperties, asked: str | None) -> Default:
    """The recipe of a model of images."""
    size = "tiny" if side < 64 else "small" if images < 1_000_000 or not device.fast else "base"
    return Default("recipe", recipe_with_size(asked or IMAGE_CLASSIFIER_RECIPE, size), f"{images:,} images of {side} pixels")


def image_sides(height: int, breadth: int) -> tuple[int, int]:
    """How high and how broad images are read that are so large by themselves: as they are, where that makes not too
    many patches; otherwise with sides near theirs, or in about their proportion, that the largest patch divides."""
    patch = _patch_side(height, breadth)
    if (height // patch) * (breadth // patch) <= MAX_PATCHES:
        return height, breadth
    smaller = min(1.0, MAX_PATCH_SIDE * math.sqrt(MAX_PATCHES / (height * breadth)))
    tall, broad = (min(MAX_PATCHES, max(1, int(side * smaller) // MAX_PATCH_SIDE)) for side in (height, breadth))
    return tall * MAX_PATCH_SIDE, broad * MAX_PATCH_SIDE


def image_classifier_model(images: int, height: int, breadth: int, channels: int, device: DeviceProperties, asked: str | None,
                reason: str = "as the images are") -> Iterator[Default]:
    """What the recipe leaves open.

    Args:
        asked: the recipe, as somebody has named it. One with a size stays as large as it is.
        reason: why images are read in this size.
    """
    yield from (Default(f"model.{key}", size, reason) for key, size in
                (("image_height", height), ("image_width", breadth), ("channels", channels)))
    patch = _patch_side(height, breadth)
    yield Default("model.patch_size", patch, f"{(height // patch) * (breadth // patch)} patches of {patch} pixels a side")
    if asked in (None, IMAGE_CLASSIFIER_RECIPE) and device.fast and images >= 20_000 and min(height, breadth) < 64:
        yield Default("model.width", 128, f"{images:,} images fill more than the smallest model")
        yield Default("model.stack.layers", 6, f"{images:,} images fill more than the smallest model")
        yield Default("model.stack.feed_forward.ffn_width", 256, "twice the width")


def _patch_side(height: int, breadth: int) -> int:
    """The side of the largest patch that fits, and makes enough of them."""
    return max(side for side in range(1, MAX_PATCH_SIDE + 1)
               if height % side == breadth % side == 0
               and (side == 1 or (height // side) * (breadth // side) >= MIN_PATCHES))


def classification_training(examples: int, tokens: int, device: DeviceProperties, side: int | None,
             asked: Mapping[str, Any]) -> Iterator[Default]:
    """How the model is trained.

    Args:
        tokens: of all examples.
        side: pixels of the shorter side of images; None for texts.
        asked: the table [training] as far as somebody has set it.
    """
    if device.fast:
        yield Default("training.precision", "bfloat16" if device.lowered else "float32", "what the device is fast in")
        if side is None and lookup(asked, "batches.layout", "padded") == "padded":
            yield Default("training.batches.shapes", "few", "a step of a known shape is replayed as one CUDA graph")
    each = max(1, round(tokens / max(1, examples)))
    rows = by_threshold(examples, ((2_000, 32), (20_000, 64)), 256 if device.fast else 128)
    batch = lookup(asked, "batches.max_tokens", rows * each)
    yield Default("training.batches.max_tokens", batch, f"about {max(1, batch // each)} examples")
    yield Default("training.label_smoothing", 0.1, "labels are not always right")
    if side is not None and side >= MIN_SHIFTED_SIDE:
        yield Default("training.random_shift", max(1, side // 14), "an image moved a little is still the same")
    often = by_threshold(examples, ((2_000, 60), (20_000, 30)), 30 if device.fast else 8)
    epochs, steps = training_length(asked, often, tokens / batch, device,
                           "so often all examples are seen")
    yield from epochs
    yield Default("training.ema_decay", 0.99 if steps < 3000 else 0.998, "the mean over steps is better than any of them")
    yield Default("training.schedule.shape", "cosine", "slowly down, which settles the model")
    yield Default("training.schedule.learning_rate", 1e-3, "as high as such a model bears")
    yield Default("training.schedule.warmup_steps", max(1, steps // 20), "the first steps are the wildest")
    yield Default("training.optimizer.weight_decay", 0.05, "weights that nothing asks for fade")
    every = lookup(asked, "validation.every", max(1, steps // 15))
    yield Default("training.validation.every", every, "about 15 times in all")
    yield validation_score(asked, "accuracy", "what a classifier is judged by")
    yield Default("training.validation.max_examples", 10_000, "each takes little time")
    yield Default("training.checkpoints.every", every, "with every validation")
    yield Default("training.log_every", 50 if device.fast else 10, "a line of metrics every few seconds")
