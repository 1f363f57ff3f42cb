"""Defaults of a training that depend on the amount of data and the device, each with its reason.

    Default("training.schedule.learning_rate", 1e-3, "largest stable rate for this model size")

For each task there is one function for the tokenizer, the recipe (model size), the model and the training. The less
data there is, the more a model must be regularized: dropout, R-Drop, label smoothing, small vocabularies. The more
there is, the larger a model it fills. On a CPU everything is smaller: what takes minutes on a GPU would take days. The
measurements behind these numbers are in `benchmarks/RESULTS.md`.

A user sees the defaults before the first step, and may set any of them otherwise. The functions see counts and sizes,
never the data; this module does not import torch.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from regard import checks
from regard.models import catalog

SUBWORD_TOKENIZERS = ("unigram", "bpe")
"""The tokenizers with a vocabulary size."""
CPU_SIZES = {"small": "tiny", "base": "small", "big": "base"}
"""The size of a recipe on a CPU instead of a GPU."""
TRANSLATION_RECIPE = "transformer"
TRANSLATION_SIZES = ((400_000, "small"), (20_000_000, "base"))
"""Sizes below this many pairs, on a GPU."""
FEW_PAIRS = 1_000_000
"""With fewer pairs a model overfits without regularization."""
MIN_SPLIT_PAIRS = 20
"""With fewer pairs there is no validation split."""
STUDENT_RECIPE = "transformer-student"
"""The recipe of a student: a deep encoder, which runs once a sentence, and a shallow decoder."""
SOURCES_OF_STUDENT = 900_000
"""With fewer sources for a teacher, new ones are sampled by default, on a GPU: a student that learns from few of them
stays far below its teacher, which has seen most of them in its own training."""
MODELLED_SHARE, MIN_MODELLED_SOURCES, MODELLING_DEVICES = 0.5, 10_000, ("cuda",)
"""The share of new sources that a language model writes, from this many given ones on, and where it is trained; an
n-gram model writes the others."""
FEW_DIRECTION_PAIRS, DIRECTION_EPOCHS = 300_000, 90
"""A model of several directions with fewer pairs in all is trained for at least this many epochs on a GPU."""
MANY_DISTILLED, STUDENT_EPOCHS = 100_000, ((500_000, 60), (1_000_000, 25))
"""From this many translations of a teacher on, a student does not overfit; it is trained for as many epochs on a GPU,
below each number of translations."""
STUDENT_WIDTH, STUDENT_RATE = 144, 2e-3
"""The learning rate of a student up to this width that learns from many translations. One of width 160 was measured
with half of it."""
TEACHER_SHARE = 0.0
"""The default share of the teacher's probabilities in the loss of a student."""
LANGUAGE_RECIPE = "llama"
"""Its rotary positions have no largest one: completions and attention maps may be longer than the training windows."""
LANGUAGE_SIZES = ((50_000_000, "small"), (2_000_000_000, "base"))
"""Sizes below this many tokens, on a GPU."""
FEW_CHARACTERS = 5_000_000
"""Shorter texts are tokenized into characters: most words occur too rarely."""
MASKED_RECIPE = "bert"
MASKED_SIZES = ((5_000_000, "small"), (100_000_000, "base"))
"""Sizes below this many texts, on a GPU."""
TRACKS_RECIPE = "tracks"
TRACKS_BATCH_AGENTS, TRACKS_STEPS = 256, 4000
TEXT_CLASSIFIER_RECIPE, IMAGE_CLASSIFIER_RECIPE = "classifier", "vit"
TAGGER_RECIPE, CPU_TAGGER_RECIPE = "tagger", "tagger-conv"
"""On a GPU and on a CPU: after some minutes on a CPU convolutions alone were best, see docs/log.md."""
TAGGER_SIZES = ((100_000, "tiny"), (5_000_000, "small"))
"""Sizes below this many tokens, on a GPU."""
MIN_PATCHES, MAX_PATCHES = 49, 1024
"""Patches of an image, if its sides allow for them; attention is quadratic in their number."""
MAX_PATCH_SIDE = 16
"""Pixels."""
MIN_SHIFTED_SIDE = 20
"""Pixels of the shorter side of an image; in smaller ones a shift of one pixel is too much."""
FINETUNING_RATE = 0.04
"""The learning rate of fine-tuning times the width of the model: 5e-5 for BERT, 3e-4 for the smallest recipes."""
MIN_SCORED_EXAMPLES = 100
"""With fewer validation examples, a fine-tuned model is chosen by its loss: other scores depend on few of them."""
TRANSLATOR_RATE, TRANSLATOR_WIDTH = 1e-3, 256
"""The highest learning rate for fine-tuning a translator, up to this width; beyond, it falls with the square of it."""
TAGGER_RATE, TAGGER_WIDTH, LARGE_WIDTH = 5e-4, 384, 512
"""The highest learning rate for fine-tuning a tagger, up to this width, at which 2e-4 was worse and 1e-3 no better;
beyond, it falls with the square of the width. Models wider than LARGE_WIDTH are taken for large pretrained ones, and
are fine-tuned for few epochs."""
FINETUNING_MIX_SHARE, MIXED_LENGTH = 0.75, 2
"""The share of general data, and how much longer fine-tuning may take with it."""
MAX_GENERAL_EXAMPLES, GENERAL_FRACTION = 500, 0.1
"""General data that is held out for validation, at most."""
REPLACED_BY_FINETUNING = ("training.epochs", "training.schedule.", "training.optimizer.weight_decay",
                          "training.ema_decay", "training.validation.", "training.checkpoints.",
                          "training.batches.max_tokens", "training.log_every")
"""Defaults of a training from scratch that fine-tuning chooses itself."""


class Default(NamedTuple):
    """A key of the config, its default value, and the reason for it."""

    key: str
    value: Any
    reason: str


STUDENT_DEFAULT = Default("recipe", STUDENT_RECIPE, "a deep encoder and a decoder of one layer, to translate fast")


@dataclass(frozen=True)
class DeviceProperties:
    """The device of a training."""

    kind: str
    """ "cpu" or "cuda" """
    memory: int
    """Bytes."""
    has_bfloat16: bool
    """Whether it has bfloat16 in its matrix units."""
    count: int = 1
    """The number of such devices, each with a process and batches of its own."""

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU, which is made for large batches."""
        return self.kind == "cuda"


def lookup(tables: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """The value of a dotted key, or the default if it is not set."""
    found: Any = tables
    for part in key.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return default
        found = found[part]
    return found


def by_threshold(value: float, thresholds: Iterable[tuple[float, Any]], last: Any) -> Any:
    """The entry of the first threshold that the value is below, or the last one."""
    return next((entry for limit, entry in thresholds if value < limit), last)


def recipe_with_size(recipe: str, size: str) -> str:
    """The name of a recipe with this size, unless it has a size already or does not come in this one."""
    if recipe in catalog.recipe_names() and size != catalog.BASE_SIZE and size in catalog.recipe_sizes(recipe):
        return f"{recipe}-{size}"
    return recipe


def training_length(requested: Mapping[str, Any], epochs: float, batches: float, device: DeviceProperties,
                    reason: str) -> tuple[list[Default], int]:
    """The default number of epochs, unless steps are set, and about how many steps the training has.

    Args:
        requested: the settings of [training] that the user has set.
        epochs: their number by default.
        batches: about how many an epoch has.
    """
    steps = lookup(requested, "schedule.max_steps")
    if steps is not None:
        return [], steps
    epochs = lookup(requested, "epochs", epochs)
    per_step = lookup(requested, "gradient_accumulation", 1) * device.count
    return [Default("training.epochs", epochs, reason)], max(1, math.ceil(epochs * max(1.0, batches) / per_step))


def _recipe(recipe: str, size: str, amount: str, device: DeviceProperties) -> Default:
    return Default("recipe", recipe_with_size(recipe, size),
                   f"model size for {amount} on a {'GPU' if device.is_gpu else 'CPU'}")


def _subwords(requested: Mapping[str, Any], size: int, amount: str) -> Iterator[Default]:
    """A subword tokenizer, and its vocabulary size unless the user has set a tokenizer without one."""
    yield Default("tokenizer.kind", "unigram", "subwords work for every script; rare characters are split into bytes")
    if lookup(requested, "kind", "unigram") in SUBWORD_TOKENIZERS:
        yield Default("tokenizer.vocab_size", size, f"each subword occurs often enough in {amount} to be learned")


def _precision(device: DeviceProperties) -> Iterator[Default]:
    if device.is_gpu:
        yield Default("training.precision", "bfloat16" if device.has_bfloat16 else "float32",
                      "fastest on this GPU" if device.has_bfloat16 else "this GPU has no fast bfloat16")


def _few_shapes() -> Default:
    return Default("training.batches.shapes", "few", "each batch shape is captured as a CUDA graph")


def _ema(decay: float) -> Default:
    return Default("training.ema_decay", decay, "averaged weights usually score higher than those of a single step")


def _schedule(shape: str, reason: str, rate: float, warmup: int, decay: float) -> Iterator[Default]:
    yield Default("training.schedule.shape", shape, reason)
    yield Default("training.schedule.learning_rate", rate, "largest stable rate for this model size")
    yield Default("training.schedule.warmup_steps", warmup, f"linear warm-up over {checks.plural(warmup, 'step')}")
    yield Default("training.optimizer.weight_decay", decay, "regularizes the weight matrices")


def _validation(requested: Mapping[str, Any], steps: int, times: int, metric: str, reason: str, patience: int | None,
                device: DeviceProperties) -> Iterator[Default]:
    """Validation and checkpoints about `times` times in all, by a metric that all processes can compute."""
    every = lookup(requested, "validation.every", max(1, steps // times))
    if metric != "loss" and lookup(requested, "parallelism", "ddp") == "fsdp":
        metric, reason = "loss", "the only score that FSDP can compute: no process has the whole model"
    yield Default("training.validation.every", every,
                  f"about {checks.plural(max(1, steps // every), 'validation')} in all")
    yield Default("training.validation.metric", metric, reason)
    if patience is not None:
        yield Default("training.validation.patience", patience,
                      f"early stopping after {patience} validations without a better score")
    yield Default("training.checkpoints.every", every, "one checkpoint with each validation")
    yield Default("training.log_every", 50 if device.is_gpu else 10, "a log line every few seconds")


def translation_validation_fraction(pairs: int) -> float:
    """The fraction of the pairs that is held out: 4 %, at most 2,000 pairs, and none of very few.

    All defaults except those of the tokenizer are for the pairs that are left.
    """
    return 0.0 if pairs < MIN_SPLIT_PAIRS else min(0.04, 2000 / pairs)


def translation_tokenizer(pairs: int, requested: Mapping[str, Any], *, distilled: bool = False) -> Iterator[Default]:
    """Defaults of the tokenizer, given the settings of [tokenizer] that the user has set.

    Args:
        distilled: whether the targets are translations of a teacher. The model is small then, and its output layer
            takes much of its time: the vocabulary is smaller.
    """
    size = by_threshold(pairs, ((2_000, 1000), (10_000, 4000), (100_000, 8000), (1_000_000, 16_000)), 32_000)
    if distilled:
        size = by_threshold(pairs, ((2_000, 1000), (1_000_000, 2000)), 8000)
    yield from _subwords(requested, size, checks.plural(pairs, "pair"))
    yield Default("data.joint_tokenizer", True, "names and numbers are the same in both languages")


def sampled_sources(sources: int, device_kind: str) -> int:
    """How many new sources are sampled for a teacher; none on a CPU, where translating them would take hours."""
    return max(0, SOURCES_OF_STUDENT - sources) if device_kind == "cuda" else 0


def language_model_sources(sources: int, sampled: int, device_kind: str) -> int:
    """How many of the sampled sources a language model writes: none on a CPU, which would train it for long."""
    enough = sources >= MIN_MODELLED_SOURCES and device_kind in MODELLING_DEVICES
    return int(MODELLED_SHARE * sampled) if enough else 0


def translation_recipe(pairs: int, device: DeviceProperties, requested: str | None, *,
                       directions: bool = False) -> Default:
    """The recipe of the model.

    Args:
        directions: whether the model has several directions, for which a Transformer is wider.
    """
    size = by_threshold(pairs, TRANSLATION_SIZES, "big")
    if directions and device.is_gpu and size == "small" and requested in (None, TRANSLATION_RECIPE):
        return _recipe(TRANSLATION_RECIPE, "medium", f"{checks.plural(pairs, 'pair')} of several directions", device)
    return _recipe(requested or TRANSLATION_RECIPE, size if device.is_gpu else CPU_SIZES[size],
                   checks.plural(pairs, "pair"), device)


def translation_model(pairs: int, table: Mapping[str, Any], *, distilled: bool = False) -> Iterator[Default]:
    """Dropout and the position of the norms, which depend on the data more than on the recipe.

    Args:
        pairs: of the largest direction, for a model of several languages: directions often share their sentences.
        table: [model], from the recipe or the user. Parts that it does not have get no dropout.
        distilled: whether the targets are translations of a teacher.
    """
    dropout = by_threshold(pairs, ((100_000, 0.3), (1_000_000, 0.2)), 0.1)
    reason = f"the less data, the more dropout: {checks.plural(pairs, 'pair')}"
    if distilled:
        dropout, reason = 0.1, "translations of a teacher are regular, and a small model needs all its width for them"
    if table["kind"] == "seq2seq":
        yield Default("model.dropout", dropout, reason)
        return
    for part in ("embedding", "encoder", "decoder"):
        yield Default(f"model.{part}.dropout", dropout, reason)
    for side in ("encoder", "decoder") if pairs < FEW_PAIRS else ():
        if lookup(table, f"{side}.norm_position") == "post":
            yield Default(f"model.{side}.norm_position", "pre", "post-norm may not learn to attend with few pairs")
    inside = [f"{side}.{part}" for side in ("encoder", "decoder") for part in ("feed_forward", "cross", "mixer")]
    for part in inside if dropout > 0.1 else ():
        if lookup(table, part) is not None and lookup(table, f"{part}.kind", "attention") == "attention":
            yield Default(f"model.{part}.dropout", 0.1, "a little dropout inside attention and feed-forward layers too")


def translation_training(pairs: int, tokens: int, mixers: Collection[str], device: DeviceProperties,
                         requested: Mapping[str, Any], *, distilled: bool = False, directions: bool = False,
                         width: int | None = None) -> Iterator[Default]:
    """Defaults of [training].

    Args:
        tokens: of all pairs, source and target.
        mixers: the kinds of mixers in the blocks of the model, if it has blocks.
        requested: the settings of [training] that the user has set, on which others depend.
        distilled: whether the targets are translations of a teacher. With many of them a small model does not overfit:
            it needs no R-Drop, and a longer training.
        directions: whether the model has several directions, which takes longer to learn.
        width: of the model; None for one that is not narrow.
    """
    few, many_distilled = pairs < FEW_PAIRS, distilled and pairs >= MANY_DISTILLED
    precision = lookup(requested, "precision", "bfloat16" if device.is_gpu and device.has_bfloat16 else "float32")
    yield from _precision(device)
    batch = lookup(requested, "batches.max_tokens", _translation_batch(pairs, device))
    yield Default("training.batches.max_tokens", batch, "tokens of source and target; small data needs small "
                                                        "batches for enough steps")
    if set(mixers) == {"attention"} and (precision != "float32" or not device.is_gpu):  # others have no kernel for it
        yield Default("training.batches.layout", "packed", "packed batches compute nothing for padding")
    if device.is_gpu:
        yield _few_shapes()
    yield Default("training.label_smoothing", 0.1, "a sentence has more than one good translation")
    if few and not many_distilled and (device.is_gpu or pairs < 20_000) and lookup(requested, "rdrop", 1.0):
        yield Default("training.rdrop", 5.0, "R-Drop helps most with few pairs")
    yield _ema(0.998 if few else 0.9995)
    often = _translation_epochs(pairs, device)
    if many_distilled and few and device.is_gpu:
        often = by_threshold(pairs, STUDENT_EPOCHS, often)
    if directions and device.is_gpu and pairs < FEW_DIRECTION_PAIRS:
        often = max(often, DIRECTION_EPOCHS)
    epochs, steps = training_length(requested, often, tokens / batch, device,
                                    "upper limit; early stopping may end the training sooner")
    yield from epochs
    rate = 1e-3 if few else 7e-4
    if many_distilled and width is not None and width <= STUDENT_WIDTH:
        rate = STUDENT_RATE
    yield from _schedule("linear", "constant, then linear decay to 0", rate,
                         max(1, min(1500 if few else 4000, steps // 5)), 0.01)
    yield Default("training.schedule.constant_fraction", 0.5, "half of all steps run at the full learning rate")
    yield from _validation(requested, steps, 16, "chrf", "suits short texts and languages with many word forms", 6,
                           device)


def _translation_batch(pairs: int, device: DeviceProperties) -> int:
    if not device.is_gpu:
        return by_threshold(pairs, ((5_000, 2000), (200_000, 4000)), 8000)
    return by_threshold(pairs, ((10_000, 6000), (100_000, 12_000), (1_000_000, 24_000)), 50_000)


def _translation_epochs(pairs: int, device: DeviceProperties) -> int:
    if not device.is_gpu:
        return by_threshold(pairs, ((5_000, 60), (50_000, 30), (300_000, 12), (2_000_000, 5)), 2)
    return by_threshold(pairs, ((60_000, 200), (300_000, 40), (2_000_000, 20), (20_000_000, 10)), 3)


def language_tokenizer(characters: int, requested: Mapping[str, Any]) -> Iterator[Default]:
    """Defaults of the tokenizer, given the settings of [tokenizer] that the user has set."""
    few = characters < FEW_CHARACTERS and "vocab_size" not in requested  # which is the number of subwords
    kind = lookup(requested, "kind", "characters" if few else "unigram")
    yield Default("tokenizer.kind", kind,
                  f"most words occur {'too rarely' if few else 'often enough'} in {characters:,} characters")
    if kind in SUBWORD_TOKENIZERS:
        size = by_threshold(characters, ((5_000_000, 2000), (50_000_000, 8000), (500_000_000, 16_000)), 32_000)
        yield Default("tokenizer.vocab_size", size,
                      f"each subword occurs often enough in {characters:,} characters to be learned")
        yield Default("tokenizer.normalization", "nfc", "keeps line breaks, which belong to the text")


def language_recipe(tokens: int, device: DeviceProperties, requested: str | None) -> Default:
    """The recipe of the model."""
    size = by_threshold(tokens, LANGUAGE_SIZES, "big")
    return _recipe(requested or LANGUAGE_RECIPE, size if device.is_gpu else CPU_SIZES[size],
                   checks.plural(tokens, "token"), device)


def language_model(tokens: int, table: Mapping[str, Any]) -> Iterator[Default]:
    """Dropout, which is high for a text that is read many times."""
    if tokens >= 20_000_000:
        return
    reason = f"the model sees the {tokens:,} tokens many times and could overfit"
    recurrent = lookup(table, "stack.mixer.kind") == "recurrence"
    for part in ("embedding", "stack"):
        yield Default(f"model.{part}.dropout", 0.4 if recurrent else 0.2, reason)
    if lookup(table, "stack.mixer.kind") == "attention":
        yield Default("model.stack.mixer.dropout", 0.2, reason)
        yield Default("model.stack.feed_forward.dropout", 0.2, reason)


def language_training(tokens: int, table: Mapping[str, Any], device: DeviceProperties,
                      requested: Mapping[str, Any]) -> Iterator[Default]:
    """Defaults of [training].

    Args:
        table: [model], from the recipe or the user.
        requested: the settings of [training] that the user has set.
    """
    recurrent = lookup(table, "stack.mixer.kind") in ("recurrence", "lstmn")
    yield from _precision(device)
    positions = lookup(table, "embedding.positions.max_positions", 10**9)
    window = lookup(requested, "windows.length", min(positions, 128 if recurrent else 256, max(8, tokens // 64)))
    yield Default("training.windows.length", window,
                  "truncated back-propagation through this many tokens" if recurrent else
                  "context length: how many tokens back the model can attend")
    rows = lookup(requested, "windows.batch_size", max(1, min(64 if device.is_gpu else 16, tokens // (4 * window))))
    yield Default("training.windows.batch_size", rows, f"{rows * window:,} tokens per batch")
    carried = lookup(table, "stack.mixer.kind") == "recurrence" and lookup(table, "embedding.positions") is None
    yield Default("training.windows.order", "continuous" if carried else "shuffled",
                  "the state is carried from window to window" if carried else "windows are independent of each other")
    epochs, steps = training_length(requested, _language_epochs(tokens, device), tokens / (window * rows), device,
                                    "upper limit; early stopping may end the training sooner")
    yield from epochs
    yield _ema(0.99 if steps < 20_000 else 0.999)
    yield from _schedule("cosine", "cosine decay to 0", 2e-3 if recurrent else 1e-3, max(0, min(100, steps // 10)), 0.1)
    yield Default("training.optimizer.beta2", 0.99, "averages the noisy gradients of small batches longer")
    yield from _validation(requested, steps, 20, "loss", "cross-entropy, the score of a language model", 5, device)


def _language_epochs(tokens: int, device: DeviceProperties) -> int:
    if not device.is_gpu:
        return by_threshold(tokens, ((2_000_000, 6), (20_000_000, 3)), 1)
    return by_threshold(tokens, ((2_000_000, 60), (20_000_000, 20), (200_000_000, 6)), 2)


def masked_tokenizer(texts: int, requested: Mapping[str, Any]) -> Iterator[Default]:
    """Defaults of the tokenizer, given the settings of [tokenizer] that the user has set."""
    size = by_threshold(texts, ((10_000, 2000), (50_000, 4000), (500_000, 8000)), 16_000)
    return _subwords(requested, size, checks.plural(texts, "text"))


def masked_recipe(texts: int, device: DeviceProperties, requested: str | None) -> Default:
    """The recipe of the model."""
    size = by_threshold(texts, MASKED_SIZES, "big")
    return _recipe(requested or MASKED_RECIPE, size if device.is_gpu else CPU_SIZES[size],
                   checks.plural(texts, "text"), device)


def masked_training(texts: int, tokens: int, device: DeviceProperties,
                    requested: Mapping[str, Any]) -> Iterator[Default]:
    """Defaults of [training].

    Args:
        tokens: of all texts.
        requested: the settings of [training] that the user has set.
    """
    yield from _precision(device)
    if device.is_gpu and lookup(requested, "batches.layout", "padded") == "padded":
        yield _few_shapes()
    yield Default("training.masking.mlm_probability", 0.15, "as BERT: enough tokens to predict, enough context")
    large = 16_000 if device.is_gpu else 4000
    batch = lookup(requested, "batches.max_tokens", by_threshold(texts, ((10_000, 2000), (100_000, 4000)), large))
    yield Default("training.batches.max_tokens", batch, "many tokens, because only the masked ones are predicted")
    often = by_threshold(texts, ((10_000, 60), (500_000, 40 if device.is_gpu else 8)), 3)
    epochs, steps = training_length(requested, often, tokens / batch, device,
                                    "upper limit; each epoch masks other tokens, and early stopping may end it sooner")
    yield from epochs
    yield _ema(0.995)
    yield from _schedule("linear", "linear decay to 0", 5e-4, max(1, min(1000, steps // 10)), 0.01)
    yield from _validation(requested, steps, 12, "loss", "cross-entropy of the masked tokens", 5, device)


def classification_tokenizer(texts: int, requested: Mapping[str, Any]) -> Iterator[Default]:
    """Defaults of the tokenizer, given the settings of [tokenizer] that the user has set."""
    size = by_threshold(texts, ((2_000, 1000), (20_000, 4000)), 8000)
    return _subwords(requested, size, checks.plural(texts, "text"))


def text_classifier_recipe(texts: int, device: DeviceProperties, requested: str | None) -> Default:
    """The recipe of a text classifier."""
    size = "small" if device.is_gpu and texts >= 10_000 else "tiny"
    return _recipe(requested or TEXT_CLASSIFIER_RECIPE, size, checks.plural(texts, "text"), device)


def image_classifier_recipe(images: int, side: int, device: DeviceProperties, requested: str | None) -> Default:
    """The recipe of an image classifier, for images of this shorter side."""
    size = "tiny" if side < 64 else "small" if images < 1_000_000 or not device.is_gpu else "base"
    return Default("recipe", recipe_with_size(requested or IMAGE_CLASSIFIER_RECIPE, size),
                   f"model size for {images:,} images of {side} pixels")


def image_sides(height: int, width: int) -> tuple[int, int]:
    """The size that images are read in: their own, unless it makes too many patches.

    Larger images are scaled down, about in proportion, to sides that the largest patch divides.
    """
    patch = _patch_side(height, width)
    if (height // patch) * (width // patch) <= MAX_PATCHES:
        return height, width
    scale = min(1.0, MAX_PATCH_SIDE * math.sqrt(MAX_PATCHES / (height * width)))
    rows, columns = (min(MAX_PATCHES, max(1, int(side * scale) // MAX_PATCH_SIDE)) for side in (height, width))
    return rows * MAX_PATCH_SIDE, columns * MAX_PATCH_SIDE


def _patch_side(height: int, width: int) -> int:
    """The side of the largest patch that divides the image, and makes enough of them."""
    return max(side for side in range(1, MAX_PATCH_SIDE + 1)
               if height % side == width % side == 0
               and (side == 1 or (height // side) * (width // side) >= MIN_PATCHES))


def image_classifier_model(images: int, height: int, width: int, channels: int, device: DeviceProperties,
                           requested: str | None, reason: str = "size of the images") -> Iterator[Default]:
    """Image size, patch size, and the size of the model unless the user has named a recipe with a size.

    Args:
        requested: the recipe that the user has named.
        reason: why images are read in this size.
    """
    yield from (Default(f"model.{key}", size, reason) for key, size in
                (("image_height", height), ("image_width", width), ("channels", channels)))
    patch = _patch_side(height, width)
    count = (height // patch) * (width // patch)
    yield Default("model.patch_size", patch, f"{count} patches of {patch} × {patch} pixels")
    if requested in (None, IMAGE_CLASSIFIER_RECIPE) and device.is_gpu and images >= 20_000 and min(height, width) < 64:
        yield Default("model.width", 128, f"{images:,} images are enough for more than the smallest model")
        yield Default("model.stack.layers", 6, f"{images:,} images are enough for more than the smallest model")
        yield Default("model.stack.feed_forward.ffn_width", 256, "twice the width of the model")


def classification_training(examples: int, tokens: int, device: DeviceProperties, side: int | None,
                            requested: Mapping[str, Any]) -> Iterator[Default]:
    """Defaults of [training].

    Args:
        tokens: of all examples.
        side: pixels of the shorter side of images; None for texts.
        requested: the settings of [training] that the user has set.
    """
    yield from _precision(device)
    if device.is_gpu and side is None and lookup(requested, "batches.layout", "padded") == "padded":
        yield _few_shapes()
    each = max(1, round(tokens / max(1, examples)))
    rows = by_threshold(examples, ((2_000, 32), (20_000, 64)), 256 if device.is_gpu else 128)
    batch = lookup(requested, "batches.max_tokens", rows * each)
    yield Default("training.batches.max_tokens", batch,
                  f"about {checks.plural(max(1, batch // each), 'example')} per batch")
    yield Default("training.label_smoothing", 0.1, "keeps wrong labels from doing much harm")
    if side is not None and side >= MIN_SHIFTED_SIDE:
        yield Default("training.random_shift", max(1, side // 14), "augmentation: a shifted image keeps its label")
    often = by_threshold(examples, ((2_000, 60), (20_000, 30)), 30 if device.is_gpu else 8)
    epochs, steps = training_length(requested, often, tokens / batch, device, "enough to converge on this data")
    yield from epochs
    yield _ema(0.99 if steps < 3000 else 0.998)
    yield from _schedule("cosine", "cosine decay to 0", 1e-3, max(1, steps // 20), 0.05)
    yield from _validation(requested, steps, 15, "accuracy", "the usual score of a classifier", None, device)
    yield Default("training.validation.max_examples", 10_000, "validating an example takes little time")


def labelling_tokenizer(sequences: int, unit: str, requested: Mapping[str, Any]) -> Iterator[Default]:
    """Defaults of the tokenizer of a tagger, given the settings of [tokenizer] that the user has set."""
    if unit == "character":
        yield Default("tokenizer.kind", "characters", "every character has a label")
        return
    yield from classification_tokenizer(sequences, requested)


def tagger_recipe(tokens: int, device: DeviceProperties, requested: str | None) -> Default:
    """The recipe of a tagger."""
    size = by_threshold(tokens, TAGGER_SIZES, "base")
    recipe = requested or (TAGGER_RECIPE if device.is_gpu else CPU_TAGGER_RECIPE)
    return _recipe(recipe, size if device.is_gpu else "tiny", checks.plural(tokens, "token"), device)


def tagger_model(tokens: int, table: Mapping[str, Any]) -> Iterator[Default]:
    """Dropout of a tagger, which is high for data that is read many times."""
    if tokens >= 20_000_000:
        return
    reason = f"the model sees the {tokens:,} tokens many times and could overfit"
    dropout = 0.5 if lookup(table, "stack.mixer.kind") == "recurrence" else 0.2
    yield Default("model.dropout", dropout, reason)
    yield Default("model.stack.dropout", dropout, reason)
    yield Default("model.embedding.dropout", 0.1, reason)
    if lookup(table, "front") is not None:
        yield Default("model.front.dropout", 0.2, reason)
    if lookup(table, "stack.mixer.kind") == "attention":
        yield Default("model.stack.mixer.dropout", 0.1, reason)
    if lookup(table, "stack.feed_forward") is not None:
        yield Default("model.stack.feed_forward.dropout", 0.1, reason)


def labelling_training(sequences: int, tokens: int, spans: bool, device: DeviceProperties,
                       requested: Mapping[str, Any]) -> Iterator[Default]:
    """Defaults of [training] for a tagger.

    Args:
        tokens: of all sequences.
        spans: whether the labels are those of an IOB scheme.
        requested: the settings of [training] that the user has set.
    """
    yield from _precision(device)
    if device.is_gpu and lookup(requested, "batches.layout", "padded") == "padded":
        yield _few_shapes()
    each = max(1, round(tokens / max(1, sequences)))
    rows = by_threshold(sequences, ((2_000, 16), (20_000, 32)), 64)
    batch = lookup(requested, "batches.max_tokens", max(1000, min(16_000, rows * each)))
    yield Default("training.batches.max_tokens", batch,
                  f"about {checks.plural(max(1, batch // each), 'sequence')} per batch")
    yield Default("training.label_smoothing", 0.1, "keeps wrong labels from doing much harm")
    yield Default("training.token_dropout", 0.05, "teaches the model to label tokens that it does not know")
    epochs, steps = training_length(requested, _labelling_epochs(tokens, device), tokens / batch, device,
                                    "upper limit; early stopping may end the training sooner")
    yield from epochs
    yield _ema(0.99 if steps < 3000 else 0.998)
    yield from _schedule("cosine", "cosine decay to 0", 1e-3, max(1, min(500, steps // 20)), 0.05)
    metric = ("f1", "the F1 of spans, the usual score for an IOB scheme") if spans else (
        "accuracy", "the fraction of tokens whose label is correct")
    yield from _validation(requested, steps, 20, *metric, 6, device)
    yield Default("training.validation.max_examples", 10_000, "validating a sequence takes little time")


def _labelling_epochs(tokens: int, device: DeviceProperties) -> int:
    return by_threshold(tokens, ((200_000, 40), (5_000_000, 30 if device.is_gpu else 12)), 10 if device.is_gpu else 3)


# Tracks

def tracks_recipe(windows: int, device: DeviceProperties, requested: str | None) -> Default:
    """The recipe of a forecaster: a smaller one for few windows."""
    size = by_threshold(windows, ((300, "tiny"),), catalog.BASE_SIZE)
    return _recipe(requested or TRACKS_RECIPE, size, checks.plural(windows, "window"), device)


def tracks_training(windows: int, agents: int, device: DeviceProperties,
                    requested: Mapping[str, Any]) -> Iterator[Default]:
    """Defaults of [training] for a forecaster of tracks.

    Args:
        agents: the agents of all windows that are predicted.
    """
    each = max(1.0, agents / max(1, windows))
    rows = lookup(requested, "batches.batch_size", max(1, min(windows, round(TRACKS_BATCH_AGENTS / each))))
    yield Default("training.batches.batch_size", rows,
                  f"windows per batch, about {checks.plural(round(rows * each), 'agent')}")
    if device.kind == "cuda":
        yield _few_shapes()
    often = min(200.0, max(10.0, TRACKS_STEPS * rows / max(1, windows)))
    epochs, steps = training_length(requested, float(f"{often:.3g}"), windows / rows, device,
                                    f"about {TRACKS_STEPS:,} steps, enough to converge")
    yield from epochs
    yield _ema(0.99 if steps < 1000 else 0.998)
    yield from _schedule("cosine", "cosine decay to 0", 1e-3, max(1, min(200, steps // 20)), 0.01)
    yield from _validation(requested, steps, 20, "forecast_error", "the mean of minADE, minFDE, JADE and JFDE", None,
                           device)
    yield Default("training.validation.max_examples", 10_000, "validating a window takes little time")


# Fine-tuning a model that exists already

def finetuning_validation_fraction(examples: int) -> float:
    """The fraction of new examples that is held out: a larger one of few examples, which would tell too little."""
    if examples < MIN_SPLIT_PAIRS:
        return 0.0
    return min(by_threshold(examples, ((500, 0.15), (2_000, 0.1)), 0.05), 2000 / examples)


def finetuning_mix_share() -> Default:
    """The share of general data in the batches."""
    return Default("data.mix_share", FINETUNING_MIX_SHARE,
                   "three of four pairs are general data, so that the model does not forget it")


def finetuning_dropout(pairs: int) -> tuple[float, str]:
    """Dropout of a translation model that is fine-tuned, and the reason for it."""
    return (by_threshold(pairs, ((1_000, 0.3), (20_000, 0.2)), 0.1),
            f"the less data, the more dropout: {checks.plural(pairs, 'new pair')}")


@dataclass(frozen=True)
class FinetuningData:
    """What the defaults of fine-tuning depend on."""

    examples: int
    """New training examples."""
    tokens: float
    """Tokens of an epoch, general data that is mixed in included."""
    width: int
    """The width of the model."""
    validated: int
    """New examples that validation uses."""
    noun: str = "example"
    epochs: float | None = None
    """At most this many; None for the few epochs that large pretrained models need."""
    rate: float | None = None
    """The learning rate; None for the low one of large pretrained models."""


def translation_finetuning(pairs: int, drawn: float, width: int, device: DeviceProperties) -> dict[str, float]:
    """Epochs and learning rate to fine-tune a translator: as long as a new one, at up to its rate.

    Few epochs at a low rate, which suit large pretrained models, leave translators of this size far below what they can
    learn; early stopping ends a training that gains nothing more.

    Args:
        pairs: new training pairs.
        drawn: pairs of an epoch, general data that is mixed in included.
    """
    epochs = _translation_epochs(pairs, device) * min(1.0, MIXED_LENGTH * pairs / drawn)
    scale = by_threshold(pairs, ((300, 0.3), (10_000, 0.5)), 1.0)
    rate = scale * TRANSLATOR_RATE * min(1.0, TRANSLATOR_WIDTH / width) ** 2
    return {"epochs": max(1.0, round(epochs)), "rate": float(f"{rate:.2g}")}


def labelling_finetuning(sequences: int, tokens: int, width: int, device: DeviceProperties) -> dict[str, float]:
    """Epochs and learning rate to fine-tune a model of up to LARGE_WIDTH to a tagger: as long as a new one, at half its
    rate. Empty for wider models, which need few epochs.

    Args:
        sequences: new training sequences.
        tokens: of all of them.
    """
    if width > LARGE_WIDTH or sequences < 1_000:
        return {}
    rate = TAGGER_RATE * min(1.0, TAGGER_WIDTH / width) ** 2
    return {"epochs": _labelling_epochs(tokens, device), "rate": float(f"{rate:.2g}")}


def finetuning_training(scratch: Iterable[Default], data: FinetuningData, device: DeviceProperties,
                        requested: Mapping[str, Any], *, fixed_batch: bool = False) -> Iterator[Default]:
    """Defaults of [training] for fine-tuning.

    The wider the model is, the lower is the learning rate; the fewer examples there are, the smaller are rate and
    batches. The start model counts as the first validation, so that the result is never worse.

    Args:
        scratch: the defaults of a new model of this task, of which those that do not change are kept.
        requested: the settings of [training] that the user has set.
        fixed_batch: whether the batch is that of a new model.
    """
    found = {default.key: default for default in scratch}
    batch = _batch_tokens(found, requested)
    if not fixed_batch and "windows.length" not in requested and "training.windows.length" not in found:
        few = by_threshold(data.examples, ((1_000, 1000), (10_000, 2000)), batch)
        many = by_threshold(data.examples, ((1_000, 2000), (10_000, 6000)), batch)
        batch = lookup(requested, "batches.max_tokens", min(batch, many if device.is_gpu else few))
    yield from (default for key, default in found.items() if not key.startswith(REPLACED_BY_FINETUNING))
    if "training.batches.max_tokens" in found:
        yield Default("training.batches.max_tokens", batch, "small batches, for enough steps with little data")
    epochs = data.epochs or by_threshold(data.examples, ((300, 40), (2_000, 30), (20_000, 20), (200_000, 8)), 3)
    amount = checks.plural(data.examples, f"new {data.noun}")
    length, steps = training_length(requested, epochs, data.tokens / batch, device,
                                    f"upper limit for {amount}; early stopping may end the training sooner")
    yield from length
    yield _ema(0.99 if steps < 2000 else 0.998)
    scale = by_threshold(data.examples, ((1_000, 1.0), (10_000, 1.5)), 2.0)
    rate = data.rate or float(f"{scale * FINETUNING_RATE / data.width:.2g}")
    warmup = max(1, min(500, steps // 10))
    yield Default("training.schedule.shape", "linear", "linear decay to 0")
    yield Default("training.schedule.learning_rate", rate,
                  f"the fewer examples and the wider the model, the lower: {amount}, width {data.width}")
    yield Default("training.schedule.warmup_steps", warmup, f"linear warm-up over {checks.plural(warmup, 'step')}")
    yield Default("training.optimizer.weight_decay", 0.01, "regularizes the weight matrices")
    metric = found["training.validation.metric"]
    reason = metric.reason
    if metric.value != "loss" and data.validated < MIN_SCORED_EXAMPLES:
        metric = metric._replace(value="loss")
        reason = f"{checks.plural(data.validated, data.noun)} are too few to tell two models apart by another score"
    yield from _validation(requested, steps, 16, metric.value, reason, 5, device)
    if "training.validation.max_examples" in found:
        yield found["training.validation.max_examples"]


def _batch_tokens(found: Mapping[str, Default], requested: Mapping[str, Any]) -> int:
    """The tokens of a batch, of sequences or of windows."""
    values = {key: lookup(requested, key.removeprefix("training."), default.value) for key, default in found.items()}
    if "training.windows.length" in values:
        return int(values["training.windows.length"] * values["training.windows.batch_size"])
    return int(values["training.batches.max_tokens"])
