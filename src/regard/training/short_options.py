"""Short options of a training, and the config keys that each of them sets.

    epochs        training.epochs                       steps       training.schedule.max_steps
    lr            training.schedule.learning_rate       seed        training.seed
    batch_tokens  training.batches.max_tokens           vocab_size  tokenizer.vocab_size
    time          training.max_time                     columns     data.columns
    observed      model.observed_steps                  predicted   model.predicted_steps
    futures       model.num_futures                     frame_step  data.frame_step
    layers, width, dropout                              every key of the model that this means

`regard train` and `regard.train` use this one table. Options of the first two columns are expanded at once
(`expand_direct`); the others depend on the chosen recipe, or on the windows of a language model, and are expanded when
these are known (`expand_dependent`):

    layers        the layers of each stack: of encoder and decoder, or of the only one
    width         model.width. Attention keeps the width of its heads as far as the new width allows, and a feed-forward
                  layer its ratio to the width
    dropout       dropout of embeddings, sublayers and the classifier. Inside attention and feed-forward layers it is
                  lowered to this value where it is higher
    batch_tokens  for a language model: training.windows.batch_size, as many windows as these tokens fill

A key that is set by `--set` too is an error that names both. This module reads tables, and does not import torch.
"""

import keyword
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from regard import checks
from regard.config import Config, integer, number, probability, read_config
from regard.toml import ConfigError, document_of, format_value
from regard.training.defaults import lookup

DIRECT_KEYS = {
    "epochs": "training.epochs", "steps": "training.schedule.max_steps", "lr": "training.schedule.learning_rate",
    "seed": "training.seed", "batch_tokens": "training.batches.max_tokens", "vocab_size": "tokenizer.vocab_size",
    "time": "training.max_time", "zero_shot": "data.zero_shot", "mix_share": "data.mix_share",
    "blend": "training.blend", "blend_share": "training.blend_share",
    "observed": "model.observed_steps", "predicted": "model.predicted_steps", "futures": "model.num_futures",
    "columns": "data.columns", "frame_step": "data.frame_step",
}
"""Options that set one key, whatever the model is. For a language model `batch_tokens` is not one of them."""
TRACK_OPTIONS = ("observed", "predicted", "futures", "columns", "frame_step")
"""Options that have an effect on tracks only."""
STACKS = {"seq2seq": (), "tracks": (), "encoder-decoder": ("encoder", "decoder")}
"""The tables of a model's stacks by its kind; ("stack",) for all other kinds."""
DROPOUT_KEYS = {
    "seq2seq": ("dropout",), "encoder-decoder": ("embedding.dropout", "encoder.dropout", "decoder.dropout"),
    "classifier": ("dropout", "embedding.dropout", "stack.dropout"),
    "tagger": ("dropout", "embedding.dropout", "stack.dropout"), "vision": ("dropout", "stack.dropout"),
    "tracks": ("dropout",),
}
"""The dropout of embeddings, sublayers and classifiers by the kind of the model."""
OTHER_DROPOUT_KEYS = ("embedding.dropout", "stack.dropout")
MIN_VOCABULARY = 262
"""5 special ids, 256 bytes, and one more."""
MAX_WIDTH = 2**20
"""Far above any model; the divisors of the width are listed."""


@dataclass(frozen=True, kw_only=True)
class ShortOptions(Config):
    """The short options of a training; None if not given."""

    epochs: float | None = number(None, above=0)
    """Passes over the training data."""
    steps: int | None = integer(None, minimum=1)
    """Optimizer steps."""
    batch_tokens: int | None = integer(None, minimum=1)
    """Tokens of a batch."""
    lr: float | None = number(None, above=0.0)
    """The highest learning rate."""
    time: float | None = number(None, above=0)
    """The time limit in seconds; also text such as 90s, 30m, 2h or 1h30m."""
    seed: int | None = integer(None, minimum=0)
    """The random seed."""
    vocab_size: int | None = integer(None, minimum=MIN_VOCABULARY)
    """The size of the vocabulary."""
    layers: int | None = integer(None, minimum=1)
    """The layers of each stack."""
    width: int | None = integer(None, minimum=1, maximum=MAX_WIDTH)
    """The width of the model."""
    dropout: float | None = probability(None)
    """The dropout of the model."""
    mix_share: float | None = probability(None)
    """The share of general data in the batches, if a model is fine-tuned."""
    zero_shot: bool | None = None
    """Whether a model for several languages also learns to restore sentences, for directions without data."""
    blend: bool | None = None
    """Whether the weights are interpolated with those of the start model at the end."""
    blend_share: float | None = number(None, minimum=0.0, maximum=1.0)
    """The share of the new weights in that interpolation."""
    observed: int | None = integer(None, minimum=2)
    """The observed steps of tracks."""
    predicted: int | None = integer(None, minimum=1)
    """The predicted steps of tracks."""
    futures: int | None = integer(None, minimum=1)
    """The futures of each agent."""
    columns: str | None = None
    """The columns of files of tracks."""
    frame_step: float | None = number(None, above=0)
    """The difference between two frames of tracks."""


class ExpandedKey(NamedTuple):
    """A config key that a short option sets."""

    key: str
    value: Any
    option: str
    """The option as the user wrote it: "--width 256"."""
    reason: str
    """Why an option for something else changes this key; empty for the keys that the option is for."""


class OptionSpelling(NamedTuple):
    """How options are written where they were given: "--batch-tokens 4096", or "batch_tokens=4096" in Python."""

    prefix: str = "--"

    def name(self, option: str) -> str:
        """The option without its value."""
        if self.prefix == "--":
            return f"--{option.replace('_', '-')}"
        return f"{self.prefix}{option}{'_' * keyword.iskeyword(option)}"

    def given(self, option: str, value: Any) -> str:
        """The option with its value."""
        shown = value if isinstance(value, str) else format_value(value)
        return f"{self.name(option)}{' ' if self.prefix == '--' else '='}{shown}"


COMMAND_LINE = OptionSpelling()


def read_short_options(options: Mapping[str, Any], spelling: OptionSpelling = COMMAND_LINE) -> dict[str, Any]:
    """The options that are given, with checked values; a ConfigError names every option with a wrong one."""
    given = {name: value for name, value in options.items() if value is not None}
    if isinstance(given.get("time"), str):
        from regard.training.timing import parse_duration  # imports torch

        try:
            given["time"] = parse_duration(given["time"])
        except ValueError as error:
            raise ConfigError([str(error).replace("`time`", spelling.name("time"))]) from None
    try:
        read_config(ShortOptions, document_of(given))
    except ConfigError as error:
        unknown = [problem for problem in error.found if problem.before]
        if unknown:
            raise
        lines = [f"{spelling.name(str(problem.path[0]))}{problem.after}" for problem in error.found]
        raise ConfigError(lines) from None
    if "epochs" in given and "steps" in given:
        raise ConfigError([f"{spelling.given('epochs', given['epochs'])} and {spelling.given('steps', given['steps'])} "
                           "both set the length of the training: give one of them"])
    return given


def expand_direct(options: Mapping[str, Any], task: str,
                  spelling: OptionSpelling = COMMAND_LINE) -> list[ExpandedKey]:
    """The keys of the options that depend on nothing else."""
    given = read_short_options(options, spelling)
    unused = [spelling.given(name, options[name]) for name in TRACK_OPTIONS if name in given and task != "tracks"]
    if unused:
        tracks, other = (spelling.given("task", name) for name in ("tracks", task))
        raise ConfigError([f"{one} has an effect with {tracks} only, not with {other}. Leave it out."
                           for one in unused])
    return [ExpandedKey(DIRECT_KEYS[name], value, spelling.given(name, options[name]), "")
            for name, value in given.items()
            if name in DIRECT_KEYS and not (name == "batch_tokens" and task == "language")]


def expand_dependent(options: Mapping[str, Any], tables: Mapping[str, Any], task: str, requested: Mapping[str, Any],
                     spelling: OptionSpelling = COMMAND_LINE) -> list[ExpandedKey]:
    """The keys of the options that depend on the model, or on the windows of a language model.

    Args:
        tables: the config as far as it is known, with the [model] of the recipe.
        requested: the tables that the user has set. Their values stay where an option is for another key.
    """
    given = read_short_options(options, spelling)
    model = tables.get("model", {})
    expanded = list[ExpandedKey]()
    for name, expand in (("layers", _expand_layers), ("width", _expand_width), ("dropout", _expand_dropout)):
        if name in given and "kind" in model:
            for key, value, reason in expand(model, given[name]):
                key = f"model.{key}"
                if not reason or lookup(requested, key) is None:
                    expanded.append(ExpandedKey(key, value, spelling.given(name, given[name]), reason))
    length = lookup(tables, "training.windows.length")
    if task == "language" and "batch_tokens" in given and length is not None:
        expanded.append(_expand_windows(given["batch_tokens"], length, spelling))
    return expanded


def check_set_once(expanded: Sequence[ExpandedKey], changes: Mapping[str, Any], changes_name: str = "--set") -> None:
    """Refuse an option for a key that is among the changes too."""
    both = [f"{one.option} and {changes_name} {key}={format_value(value)} set the same key, {one.key}: give one of them"
            for one in expanded if not one.reason for key, value in changes.items()
            if one.key == key or one.key.startswith(f"{key}.")]
    if both:
        raise ConfigError(both)


def _expand_layers(model: Mapping[str, Any], layers: int) -> Iterator[tuple[str, Any, str]]:
    stacks = STACKS.get(model["kind"], ("stack",))  # the layers before them stay as they are
    for key in [f"{stack}.layers" for stack in stacks] or ["layers"]:
        yield key, layers, ""


def _expand_width(model: Mapping[str, Any], width: int) -> Iterator[tuple[str, Any, str]]:
    yield "width", width, ""
    before = model.get("width", width)
    if model["kind"] == "tracks":
        yield from _expand_heads(model, before, width)
        yield "ffn_width", max(1, round(model["ffn_width"] * width / before)), "in proportion to the width"
    for stack in _stacks(model):
        for part in ("mixer", "cross"):
            table = lookup(model, f"{stack}.{part}")
            if table is not None and (part == "cross" or table.get("kind") == "attention"):
                for key, value, reason in _expand_heads(table, before, width):
                    yield f"{stack}.{part}.{key}", value, reason
        if lookup(model, f"{stack}.mixer.kind") == "rwkv7":
            head_width = lookup(model, f"{stack}.mixer.head_width", 64)
            new = _nearest([one for one in range(1, width + 1) if width % one == 0], head_width)
            yield f"{stack}.mixer.head_width", new, f"the divisor of the width that is nearest to {head_width}"
        for part in ("feed_forward", "channel_mix"):
            inner = lookup(model, f"{stack}.{part}.ffn_width")
            if inner is not None:
                reason = f"{inner / before:g} times the width, as in the recipe"
                yield f"{stack}.{part}.ffn_width", max(1, round(inner * width / before)), reason


def _expand_heads(attention: Mapping[str, Any], before: int, width: int) -> Iterator[tuple[str, Any, str]]:
    """The heads of an attention in a model of another width: of the same width if they can be. One head stays one."""
    heads = attention.get("heads", 8)
    if heads == 1:
        return
    wanted = heads * width / before
    if "head_width" in attention:  # then they need not divide the width
        count = max(1, round(wanted))
    else:
        even = lookup(attention, "position.kind") == "rotary"  # which turns pairs of features
        allowed = [one for one in range(1, width + 1) if width % one == 0 and not (even and width // one % 2)] or [1]
        count = _nearest(allowed, wanted)
    head_width, new_width = attention.get("head_width", before // heads), attention.get("head_width", width // count)
    reason = (f"{checks.plural(count, 'head')} of width {new_width}, "
              + ("as in the recipe" if new_width == head_width else f"near the recipe's {head_width}"))
    yield "heads", count, reason
    if "key_heads" in attention:
        divisors = [one for one in range(1, count + 1) if count % one == 0]
        yield "key_heads", _nearest(divisors, attention["key_heads"] * count / heads), "in proportion to the heads"


def _expand_dropout(model: Mapping[str, Any], dropout: float) -> Iterator[tuple[str, Any, str]]:
    front = ("front.dropout",) if "front" in model else ()
    for key in (*DROPOUT_KEYS.get(model["kind"], OTHER_DROPOUT_KEYS), *front):
        yield key, dropout, ""
    for stack in _stacks(model):
        for part in ("mixer", "cross", "feed_forward"):
            if (lookup(model, f"{stack}.{part}.dropout") or 0.0) > dropout:
                yield f"{stack}.{part}.dropout", dropout, "not higher than the dropout of the sublayers"


def _expand_windows(tokens: int, length: int, spelling: OptionSpelling) -> ExpandedKey:
    option = spelling.given("batch_tokens", tokens)
    if tokens < length:
        raise ConfigError([f"{option}: a window alone has {length} tokens. Give at least {length}, or shorten the "
                           f"windows with training.windows.length={tokens}"])
    return ExpandedKey("training.windows.batch_size", tokens // length, option, "")


def _stacks(model: Mapping[str, Any]) -> tuple[str, ...]:
    return (*(("front",) if "front" in model else ()), *STACKS.get(model["kind"], ("stack",)))


def _nearest(numbers: Sequence[int], wanted: float) -> int:
    """The number with the smallest ratio to the wanted one, in either direction."""
    return min(numbers, key=lambda number: abs(math.log(number / wanted)))
