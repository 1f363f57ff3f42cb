"""How long a translation training would take, and how much memory any training, estimated before anything is trained.

    tokens    = characters / characters per token                                    of each side
    steps     = epochs · tokens / tokens per batch; an epoch has at least one
    seconds   = epochs · Σ tokens · (6 · parameters used by each + attention) · passes / FLOP per second
    memory    = 20 bytes per parameter + activations of a batch + a constant of the process
    activations = Σ over layers of  tokens · (6 D per attention + 2 D + 1 to 4 F of the feed-forward layer)
                  + 2 or 3 numbers per attention weight where the weights are kept + 3 D per token + a chunk of logits

6 · parameters: two operations per parameter forward, four backward. Model and settings are the defaults of
`regard train` (`regard.training.defaults`) for the pairs that are not held out. Batches are assumed to be full, so that
there are somewhat more steps in reality. The speeds were measured; other machines differ by a factor of two or three.
Validation is not included, and early stopping may end a training sooner. The estimate is arithmetic on the tables of a
recipe: torch is not imported, the texts are not read, and nothing is measured on this machine.

Legend: D width of the model, F width of the feed-forward layer.
"""

import math
from collections.abc import Mapping, Sequence
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
SUBLAYER, EMBEDDING = 2, 3
"""Numbers that are kept for the backward pass, per feature of a token: by a feed-forward layer besides its hidden
features; by embedding, last norm and loss."""
TRACK_HEAD = 6
"""Numbers that a forecaster keeps for each future of an agent, in widths."""
MIXERS = {"attention": 6, "convolution": 3, "lstmn": 8, "rwkv4": 28, "rwkv7": 54}
"""The same for a mixer, with its norm, dropout and residual sum. Measured were 6.5 to 8, 4.7, 12, 28 and 54."""
GPU_MIXERS = {"rwkv4": 11}
"""The same on a GPU, where it differs: our own kernel keeps its inputs, its result and the states between chunks. What
autograd keeps was measured, 11.3, with the kernel interpreted on a CPU."""
CELLS = {"rnn": 2, "lstm": 7, "gru": 5, "mut1": 5, "mut2": 5, "mut3": 5}
"""The same for a recurrent layer, by cell. Measured were 2.9, 8.5, and 6.7 to 8.8."""
LSTM_WORKSPACE = 8
"""More of the same for an LSTM that reads rows without padding, by torch's own kernel. Measured were 9.8."""
EXACT_MAX_NUMBERS = 1 << 25
"""As in `regard.attention.backends`: larger matrices of weights are not kept."""
MIN_CHUNK = 256
"""As in `regard.training.loss`: the tokens whose logits are held at once, at least."""
ALLOCATOR_FACTOR = {"cpu": 1, "cuda": 2}
"""What is taken for activations, compared to what they need; on a GPU assumed, not measured: blocks of the allocator
that are free for the moment, and those of CUDA graphs."""
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
    per_second = (GPU_FLOPS if device.is_gpu else
                  by_threshold(model["width"], CORE_FLOPS, MAX_CORE_FLOPS) * min(cores, MAX_CORES))
    factor = RDROP_FACTOR[device.kind] if passes == 2 else 1.0
    count = vocabulary * model["width"] + sum(stack_parameters(model, name) for name in ("encoder", "decoder"))
    memory = (PROCESS_BYTES[device.kind] + BYTES_PER_PARAMETER * count
              + ALLOCATOR_FACTOR[device.kind]
              * activation_bytes({**model, "target_vocab_size": vocabulary}, min(batch, tokens) / tokens * pairs,
                                 [side / pairs for side in sides], passes=passes, on_gpu=device.is_gpu,
                                 bfloat16=device.has_bfloat16))
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


def activation_bytes(model: Mapping[str, Any], rows: float, lengths: Sequence[float], *, passes: int = 1,
                     on_gpu: bool = False, bfloat16: bool = False) -> int:
    """The bytes that forward and backward pass of a batch hold besides parameters and gradients, of any kind of model.

    It counts only what a layer has to keep, so it is rather too low: 0.5 to 1 times what was measured on a CPU. What a
    single operation holds for a moment is not counted, nor are masks and biases of scores.

    Args:
        model: the [model] table of a recipe or config.
        rows: the sequences of the batch.
        lengths: their mean length on each side, padding included: source and target, or one; for images the patches.
        passes: 2 for R-Drop.
        on_gpu: no attention weights are kept there, and our own kernels run.
    """
    rows *= passes
    kind, width, n = model["kind"], model["width"], lengths[-1]
    numbers = EMBEDDING * width * rows * sum(lengths)
    if kind == "seq2seq":
        numbers += rows * sum(lengths) * model.get("layers", 1) * CELLS[model.get("cell", "gru")] * width
        if lookup(model, "attention.score") == "additive":  # one step after another, so that all are kept
            numbers += rows * lengths[0] * n * width
    elif kind == "encoder-decoder":
        numbers += _stack_numbers(model["encoder"], width, rows, lengths[0], on_gpu=on_gpu)
        numbers += _stack_numbers(model["decoder"], width, rows, n, on_gpu=on_gpu, source=lengths[0])
    elif kind == "tracks":  # each layer projects all tokens of an agent and its neighbours three times
        numbers += 3 * model["layers"] * width * rows * n + 2 * TRACK_HEAD * model["num_futures"] * width * rows
    else:
        for name in ("front", "stack"):
            if name in model:
                numbers += _stack_numbers(model[name], width, rows, n, on_gpu=on_gpu, padded=kind != "language")
    vocabulary = 0 if "num_labels" in model else model.get("target_vocab_size", model.get("vocab_size", 0))
    numbers += min(rows * n, MIN_CHUNK) * vocabulary
    return round(numbers * (2 if bfloat16 else 4))


def _stack_numbers(stack: Mapping[str, Any], width: int, rows: float, n: float, *, on_gpu: bool,
                   source: float | None = None, padded: bool = True) -> float:
    """The numbers that a stack keeps of rows of n tokens; with cross-attention to a source of this length."""
    mixer, cross = stack["mixer"], stack.get("cross")
    feed_forward, channel_mix = stack.get("feed_forward"), stack.get("channel_mix")
    if mixer["kind"] == "recurrence":
        cell = mixer.get("cell", "lstm")
        workspace = LSTM_WORKSPACE if cell == "lstm" and not (padded or on_gpu) else 0
        per_token = mixer.get("layers", 1) * (CELLS[cell] + workspace) * width
    else:
        per_token = (MIXERS | GPU_MIXERS if on_gpu else MIXERS)[mixer["kind"]] * width
    weights = 0.0
    if mixer["kind"] == "attention":
        weights += _kept_weights(mixer, width, rows * n * n, on_gpu=on_gpu)
    elif mixer["kind"] == "lstmn" and mixer.get("score", "additive") == "additive":  # each token with those before it
        weights += rows * n * n / 2 * mixer.get("attention_width", width)
    if cross is not None and source is not None:
        per_token += MIXERS["attention"] * width
        weights += _kept_weights(cross, width, rows * n * source, on_gpu=on_gpu)
    if feed_forward is not None:
        hidden = 1 if feed_forward.get("activation", "relu") == "relu" else 2  # ReLU needs only its own output
        per_token += SUBLAYER * width + (hidden + 2 * feed_forward.get("gated", False)) * feed_forward["ffn_width"]
    if channel_mix is not None:  # the hidden features and their squares
        per_token += (SUBLAYER + 3 * channel_mix.get("gated", False)) * width + 2 * channel_mix["ffn_width"]
    block = rows * n * per_token + weights
    if stack.get("activation_checkpointing", False):
        return stack["layers"] * rows * n * width + block
    return stack["layers"] * block


def _kept_weights(attention: Mapping[str, Any], width: int, pairs: float, *, on_gpu: bool) -> float:
    """The numbers that the weights of all heads take for these query-key pairs, where they are kept."""
    backend, heads = attention.get("backend"), attention.get("heads", 8)
    if on_gpu or backend == "tiled":
        return 0.0
    softmax = attention.get("normalize", "softmax") == "softmax"
    if attention.get("score", "scaled_dot") == "additive":
        pairs *= attention.get("head_width", width // heads)
    elif softmax and backend != "exact":  # torch's fused kernel keeps them for dropout only
        return 3 * heads * pairs if attention.get("dropout", 0.0) else 0.0
    return 2 * heads * pairs if heads * pairs <= EXACT_MAX_NUMBERS or backend == "exact" else 0.0

