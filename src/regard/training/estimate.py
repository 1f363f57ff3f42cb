"""How long a training would take, and how much memory, told from the size of the data before anything is trained.

    tokens    = characters / characters of a token                                   of each side
    steps     = epochs · tokens / tokens of a batch, of which an epoch has one at least
    seconds   = epochs · Σ tokens · (6 · parameters that they meet + attention) · passes / operations a second
    memory    = 20 bytes a parameter + what a batch leaves for the backward pass + what a process has anyway

6 · parameters: two operations a parameter forward, four backward. What is trained, and how, are the choices that
`regard train` would make (`regard.training.choices`) for the pairs that are not held out. Batches are taken as full,
so that there are some more of them in truth. The rates were measured; other machines differ by a factor of two or
three. Validation comes on top, and a score that stops rising ends a training sooner. It does arithmetic on the tables
of a recipe: neither torch nor the texts are needed, and nothing is measured on this machine.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from regard import checks
from regard.models import catalog
from regard.training import defaults as choices
from regard.training.defaults import DeviceProperties, by_threshold, lookup

CHARACTERS_PER_TOKEN = ((2000, 2.7), (6000, 3.8), (12_000, 4.3), (24_000, 4.4))
"""Of a token, for vocabularies below so many; MOST_CHARACTERS above. Measured on captions (2.8, 4.1, 4.6, 4.9) and on
everyday sentences (3.8 with 16,000) in English, German and French; scripts with fewer characters a word have fewer."""
MAX_CHARACTERS_PER_TOKEN = 4.6
CORE_FLOPS = ((192, 3.5e10),)
"""Operations a second of one core in float32, for models narrower than so many features; MOST_CORE above. One core of
an AMD EPYC did 4.1e10 with the size "tiny" and 6.2e10 with "small"; of several together each does somewhat less."""
MAX_CORE_FLOPS = 5e10
MAX_CORES = 8
"""Assumed, not measured: small matrices are no faster on more."""
GPU_FLOPS = 3.2e13
"""Operations a second of an H200 in bfloat16, replaying graphs: 550,000 target tokens a second with 9.6 million
parameters. Wider models reach more."""
RDROP_FACTOR = {"cpu": 2.1, "cuda": 1.72}
"""Times of two passes that must agree, for one; on the H200 550,000 and 320,000 target tokens a second."""
BYTES_PER_PARAMETER = 20
"""Bytes a parameter: itself, its gradient, two moments and the mean over steps, in float32."""
ACTIVATIONS_PER_FEATURE = 20
"""Numbers for each feature of a token that a block keeps for the backward pass, but for the feed-forward layer's."""
PROCESS_BYTES = {"cpu": 450 << 20, "cuda": 600 << 20}
"""Bytes that are taken whatever is trained: libraries, logits of some tokens at a time, buffers."""
H200 = DeviceProperties("cuda", 141 * 10**9, lowered=True)
"""The GPU that the rates are of."""


@dataclass(frozen=True)
class TrainingEstimate:
    """What a training would be like."""

    recipe: str
    vocabulary: int
    parameters: int
    tokens: int
    """Of all pairs that are learned from, both sides."""
    epochs: float
    steps: int
    seconds: float
    memory: int
    """Bytes: of the process on a CPU, on the device otherwise."""


def estimate_training(pairs: int, characters: tuple[int, int], device: DeviceProperties, cores: int = 1, *,
             held: float = 0.0) -> TrainingEstimate:
    """What it would take to learn to translate from so many pairs.

    Args:
        characters: of all sources, and of all targets.
        cores: that a training on a CPU would use.
        held: the share of the pairs that is held out, and so not learned from.
    """
    if pairs < 1 or cores < 1 or min(characters) < 1:
        raise checks.wrong("pairs, characters, cores", "at least 1", f"{pairs}, {characters}, {cores}")
    vocabulary = {choice.key: choice.value for choice in choices.translation_tokenizer(pairs, {})}["tokenizer.vocab_size"]
    each = by_threshold(vocabulary, CHARACTERS_PER_TOKEN, MAX_CHARACTERS_PER_TOKEN)
    pairs -= round(held * pairs)  # all that follows is chosen for what is learned from
    sides = tuple(math.ceil((1 - held) * count / each) + pairs for count in characters)  # with the end of each
    recipe = choices.translation_recipe(pairs, device, None).value
    model = catalog.find_recipe(recipe).tables["model"]
    tokens = sum(sides) + pairs  # with the start of each target
    made = {choice.key: choice.value for choice in choices.translation_training(pairs, tokens, {"attention"}, device, {})}
    epochs, batch = made["training.epochs"], made["training.batches.max_tokens"]
    passes = 2 if made.get("training.rdrop") else 1
    operations = sum(side * _flops_per_token(model, vocabulary, name, side / pairs)
                     for name, side in zip(("encoder", "decoder"), sides, strict=True))
    per_second = GPU_FLOPS if device.fast else by_threshold(model["width"], CORE_FLOPS, MAX_CORE_FLOPS) * min(cores, MAX_CORES)
    factor = RDROP_FACTOR[device.kind] if passes == 2 else 1.0
    count = vocabulary * model["width"] + sum(stack_parameters(model, name) for name in ("encoder", "decoder"))
    return TrainingEstimate(recipe, vocabulary, count, tokens, epochs, math.ceil(epochs * max(1.0, tokens / batch)),
                    epochs * operations * factor / per_second,
                    PROCESS_BYTES[device.kind] + BYTES_PER_PARAMETER * count + _activation_bytes(model, min(batch, tokens) * passes, device))


def stack_parameters(model: Mapping[str, Any], side: str) -> int:
    """The parameters of the blocks of a side ("encoder" or "decoder") of a recipe's Transformer."""
    width, inner = model["width"], lookup(model, f"{side}.feed_forward.ffn_width")
    attentions = 2 if side == "decoder" else 1
    attention = 4 * (width * width + width) + 2 * width  # with the norm behind it
    feed_forward = 2 * width * inner + inner + width + 2 * width
    return model[side]["layers"] * (attentions * attention + feed_forward)


def _flops_per_token(model: Mapping[str, Any], vocabulary: int, side: str, length: float) -> float:
    """Of a token on a side, forward and backward, in a text of so many tokens."""
    met = stack_parameters(model, side) + (vocabulary * model["width"] if side == "decoder" else 0)
    looks = 2 if side == "decoder" else 1
    return 6.0 * met + 12.0 * looks * model[side]["layers"] * model["width"] * length


def _activation_bytes(model: Mapping[str, Any], tokens: int, device: DeviceProperties) -> int:
    """Bytes that the backward pass of a batch needs. Half of its tokens are on each side."""
    numbers = 0.0
    for side, more in (("encoder", 1.0), ("decoder", 1.6)):
        inner = lookup(model, f"{side}.feed_forward.ffn_width")
        numbers += 0.5 * model[side]["layers"] * (more * ACTIVATIONS_PER_FEATURE * model["width"] + 3 * inner)
    return round(tokens * numbers * (2 if device.lowered else 4))
