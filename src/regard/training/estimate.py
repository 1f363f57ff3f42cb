"""How long a translation training would take, and how much memory, estimated before anything is trained.

    tokens    = characters / characters per token                                    of each side
    steps     = epochs · tokens / tokens per batch; an epoch has at least one
    seconds   = epochs · Σ tokens · (6 · parameters used by each + attention) · passes / FLOP per second
    memory    = 20 bytes per parameter + activations of a batch + a constant of the process

6 · parameters: two operations per parameter forward, four backward. Model and settings are the defaults of
`regard train` (`regard.training.defaults`) for the pairs that are not held out. Batches are assumed to be full, so that
there are somewhat more steps in reality. The speeds were measured; other machines differ by a factor of two or three.
Validation is not included, and early stopping may end a training sooner. The estimate is arithmetic on the tables of a
recipe: torch is not imported, the texts are not read, and nothing is measured on this machine.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from regard import checks
from regard.models import catalog
from regard.training import defaults
from regard.training.defaults import DeviceProperties, by_threshold, lookup

CHARACTERS_PER_TOKEN = ((2000, 2.7), (6000, 3.8), (12_000, 4.3), (24_000, 4.4))
"""For vocabularies below these sizes; MAX_CHARACTERS_PER_TOKEN above. Measured on captions (2.8, 4.1, 4.6, 4.9) and on
everyday sentences (3.8 with 16,000) in English, German and French; scripts with shorter words have fewer."""
MAX_CHARACTERS_PER_TOKEN = 4.6
CORE_FLOPS = ((192, 3.5e10),)
"""FLOP per second of one core in float32, for models below this width; MAX_CORE_FLOPS above. One core of an AMD EPYC
reached 4.1e10 with the size "tiny" and 6.2e10 with "small"; several cores together are somewhat slower each."""
MAX_CORE_FLOPS = 5e10
MAX_CORES = 8
"""Assumed, not measured: small matrices gain nothing from more cores."""
GPU_FLOPS = 3.2e13
"""FLOP per second of an H200 in bfloat16 with CUDA graphs: 550,000 target tokens per second with 9.6 million
parameters. Wider models reach more."""
RDROP_FACTOR = {"cpu": 2.1, "cuda": 1.72}
"""Time of a step with R-Drop compared to one without; 550,000 and 320,000 target tokens per second on the H200."""
BYTES_PER_PARAMETER = 20
"""Parameter, gradient, two moments and EMA, in float32."""
ACTIVATIONS_PER_FEATURE = 20
"""Numbers that a block keeps for the backward pass, per feature of a token, without the feed-forward layer."""
PROCESS_BYTES = {"cpu": 450 << 20, "cuda": 600 << 20}
"""Libraries, a chunk of logits, buffers."""
H200 = DeviceProperties("cuda", 141 * 10**9, has_bfloat16=True)
"""The GPU that was measured."""


@dataclass(frozen=True)
class TrainingEstimate:
    """Size and cost of a training."""

    recipe: str
    vocabulary: int
    parameters: int
    tokens: int
    """Of all training pairs, source and target."""
    epochs: float
    steps: int
    seconds: float
    memory: int
    """Bytes: of the process on a CPU, or on the GPU."""


def estimate_training(pairs: int, characters: tuple[int, int], device: DeviceProperties, cores: int = 1, *,
                      held: float = 0.0) -> TrainingEstimate:
    """Estimate the training of a translation model.

    Args:
        characters: of all sources, and of all targets.
        cores: the number that a training on a CPU would use.
        held: the fraction of the pairs that is held out for validation.
    """
    if pairs < 1 or cores < 1 or min(characters) < 1:
        raise checks.wrong("pairs, characters, cores", "at least 1", f"{pairs}, {characters}, {cores}")
    tokenizer = {default.key: default.value for default in defaults.translation_tokenizer(pairs, {})}
    vocabulary = tokenizer["tokenizer.vocab_size"]
    per_token = by_threshold(vocabulary, CHARACTERS_PER_TOKEN, MAX_CHARACTERS_PER_TOKEN)
    pairs -= round(held * pairs)  # all other defaults are for the training pairs
    sides = tuple(math.ceil((1 - held) * count / per_token) + pairs for count in characters)  # with an end token each
    recipe = defaults.translation_recipe(pairs, device, None).value
    model = catalog.find_recipe(recipe).tables["model"]
    tokens = sum(sides) + pairs  # with a start token for each target
    training = {default.key: default.value
                for default in defaults.translation_training(pairs, tokens, {"attention"}, device, {})}
    epochs, batch = training["training.epochs"], training["training.batches.max_tokens"]
    passes = 2 if training.get("training.rdrop") else 1
    operations = sum(side * _flops_per_token(model, vocabulary, name, side / pairs)
                     for name, side in zip(("encoder", "decoder"), sides, strict=True))
    per_second = (GPU_FLOPS if device.fast else
                  by_threshold(model["width"], CORE_FLOPS, MAX_CORE_FLOPS) * min(cores, MAX_CORES))
    factor = RDROP_FACTOR[device.kind] if passes == 2 else 1.0
    count = vocabulary * model["width"] + sum(stack_parameters(model, name) for name in ("encoder", "decoder"))
    memory = (PROCESS_BYTES[device.kind] + BYTES_PER_PARAMETER * count
              + _activation_bytes(model, min(batch, tokens) * passes, device))
    return TrainingEstimate(recipe, vocabulary, count, tokens, epochs, math.ceil(epochs * max(1.0, tokens / batch)),
                            epochs * operations * factor / per_second, memory)


def stack_parameters(model: Mapping[str, Any], side: str) -> int:
    """The parameters of the blocks of one side ("encoder" or "decoder") of a recipe's Transformer."""
    width, inner = model["width"], lookup(model, f"{side}.feed_forward.ffn_width")
    attentions = 2 if side == "decoder" else 1
    attention = 4 * (width * width + width) + 2 * width  # with its norm
    feed_forward = 2 * width * inner + inner + width + 2 * width
    return model[side]["layers"] * (attentions * attention + feed_forward)


def _flops_per_token(model: Mapping[str, Any], vocabulary: int, side: str, length: float) -> float:
    """FLOP of a token, forward and backward, in a text of this length."""
    parameters = stack_parameters(model, side) + (vocabulary * model["width"] if side == "decoder" else 0)
    attentions = 2 if side == "decoder" else 1
    return 6.0 * parameters + 12.0 * attentions * model[side]["layers"] * model["width"] * length


def _activation_bytes(model: Mapping[str, Any], tokens: int, device: DeviceProperties) -> int:
    """Bytes that the backward pass of a batch needs, half of whose tokens are on each side."""
    numbers = 0.0
    for side, factor in (("encoder", 1.0), ("decoder", 1.6)):
        inner = lookup(model, f"{side}.feed_forward.ffn_width")
        numbers += 0.5 * model[side]["layers"] * (factor * ACTIVATIONS_PER_FEATURE * model["width"] + 3 * inner)
    return round(tokens * numbers * (2 if device.has_bfloat16 else 4))
