"""What a family of `transformers` architectures declares: config keys, tensors, and the conversion of configs.

A family has three parts:

    FamilySettings   its keys of config.json, with the defaults of `transformers`, which omits defaults from the file.
                     A key that may change the model and is not known is refused by name; keys about training history,
                     search or initialisation are ignored.
    TensorRule       TensorRule("h.{i}.attn.c_proj.weight", ("blocks.{i}.mixer.layer.output.weight",), TRANSPOSED)
                     {i} is the layer number, * at the end is weight or bias. A rule applies where our model has the
                     tensor, so one table covers optional biases, heads and output layers, in both directions.
    Family           converts settings to our config and back. Whether one of our configs fits is found by a round trip:
                     it is converted to settings and back, and every difference is something the family cannot express.

Dropout, the backend and activation checkpointing are not compared: they do not change what a model computes.
This module knows no particular family.
"""

import dataclasses
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from regard import checks, config
from regard.attention.layer import AttentionConfig, SelfAttentionConfig
from regard.blocks.feed_forward import FeedForwardConfig
from regard.blocks.stack import StackConfig
from regard.config import Config, integer, to_tables
from regard.models.build import ModelConfig
from regard.models.embedding import EmbeddingConfig
from regard.models.language import MaskedModelConfig
from regard.models.vision import VisionConfig
from regard.special_tokens import SpecialTokens
from regard.storage.weights import TensorSpec, storage_key
from regard.toml import ConfigProblem, TomlDocument


class TensorTransform(NamedTuple):
    """How a tensor of the file becomes one or more of ours, and the exact inverse."""

    words: str
    read: Callable[[Tensor], tuple[Tensor, ...]]
    write: Callable[[tuple[Tensor, ...]], Tensor]


def leading_ones(count: int) -> TensorTransform:
    """The tensor in the file has leading dimensions of size 1."""
    ones = (1,) * count
    return TensorTransform(f"{checks.plural(count, 'leading dimension')} of 1 removed",
                           lambda theirs: (theirs.flatten(0, count),),
                           lambda ours: ours[0].reshape(*ones, *ours[0].shape))


def patch_filters(channels: int, patch: int) -> TensorTransform:
    """The file has a convolution over patches, ours is a matrix: channel by channel, row by row."""
    return TensorTransform("each filter as one row", lambda theirs: (theirs.flatten(1),),
                           lambda ours: ours[0].reshape(-1, channels, patch, patch))


IDENTITY = TensorTransform("as it is", lambda theirs: (theirs,), lambda ours: ours[0])
TRANSPOSED = TensorTransform("transposed", lambda theirs: (theirs.t(),), lambda ours: ours[0].t())
THIRDS = TensorTransform("in three parts", lambda theirs: theirs.chunk(3), torch.cat)
TRANSPOSED_THIRDS = TensorTransform("transposed, in three parts", lambda theirs: theirs.t().chunk(3),
                                    lambda ours: torch.cat(ours).t())


class TensorRule(NamedTuple):
    """A tensor of the file, and the one or more of ours that it contains."""

    theirs: str
    ours: tuple[str, ...]
    way: TensorTransform = IDENTITY


class UnusedTensor(NamedTuple):
    """A tensor of the file that our model does not need, and why."""

    theirs: str
    why: str


class TensorMatch(NamedTuple):
    """A rule applied to one model, with full names; of theirs, the first one is written."""

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    way: TensorTransform

    def shape(self, state: Mapping[str, Tensor]) -> tuple[int, ...]:
        """The shape in the file, from our tensors, which may be on the device "meta"."""
        return tuple(self.way.write(tuple(state[name] for name in self.ours)).shape)


class TensorMatches(NamedTuple):
    """All rules applied to one model."""

    found: list[TensorMatch]
    second: dict[str, str]
    """Further names of our shared tensors, with the first name of each."""
    without: list[str]
    """Our tensors without a rule."""


def match_rules(rules: Iterable[TensorRule], state: Mapping[str, Tensor]) -> TensorMatches:
    """Apply the rules to a state dict. A shared tensor of ours is one tensor of theirs, under any of its names."""
    first: dict[object, str] = {}
    kept = {name: first.setdefault(storage_key(tensor), name) for name, tensor in state.items()}
    theirs_of: dict[tuple[str, ...], list[str]] = {}
    ways: dict[tuple[str, ...], TensorTransform] = {}
    for rule in rules:
        for name in state:
            parts = _name_pattern(rule.ours[0]).fullmatch(name)
            if parts is None:
                continue
            ours = tuple(kept[_fill_pattern(pattern, parts)] for pattern in rule.ours)
            theirs_of.setdefault(ours, []).append(_fill_pattern(rule.theirs, parts))
            ways.setdefault(ours, rule.way)
    matched = {name for ours in theirs_of for name in ours}
    return TensorMatches([TensorMatch(tuple(theirs), ours, ways[ours]) for ours, theirs in theirs_of.items()],
                         {name: one for name, one in kept.items() if name != one},
                         [name for name, one in kept.items() if one not in matched])


def is_unused(name: str, unused: Iterable[UnusedTensor]) -> bool:
    """Whether this tensor of the file is known to be unused by our models."""
    return any(_name_pattern(one.theirs).fullmatch(name) for one in unused)


def expected_specs(matches: TensorMatches, state: Mapping[str, Tensor], present: Iterable[str]) -> dict[str,
                                                                                                        TensorSpec]:
    """The tensors that a file must have; of several names for one tensor, one that is `present` is enough."""
    there, entries = set(present), dict[str, TensorSpec]()
    for match in matches.found:
        names = [name for name in match.theirs if name in there] or [match.theirs[0]]
        entries |= {name: TensorSpec(state[match.ours[0]].dtype, match.shape(state)) for name in names}
    return entries


def to_foreign(matches: TensorMatches, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our tensors in their layout, each under one name."""
    return {match.theirs[0]: match.way.write(tuple(tensors[name] for name in match.ours)).contiguous()
            for match in matches.found}


def _name_pattern(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text).replace(r"\{i\}", r"(?P<i>\d+)").replace(r"\*", "(?P<part>weight|bias)"))


def _fill_pattern(pattern: str, parts: re.Match[str]) -> str:
    for mark, value in (("{i}", parts.groupdict().get("i")), ("*", parts.groupdict().get("part"))):
        pattern = pattern if value is None else pattern.replace(mark, value)
    return pattern


ACTIVATIONS = {
    "relu": "relu", "gelu": "gelu", "silu": "silu", "gelu_new": "gelu_tanh", "swish": "silu", "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh", "gelu_python_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
}
"""Activation names of `transformers`, and ours; of several for one, the first is written."""

# Keys that are handled elsewhere or do not change what the model computes.
IGNORED_KEYS = frozenset((
    "architectures", "model_type", "id2label", "label2id", "num_labels", "_num_labels", "problem_type",
    "finetuning_task", "_name_or_path", "name_or_path", "_commit_hash", "transformers_version", "torch_dtype",
    "dtype", "tokenizer_class", "torchscript", "use_bfloat16", "tf_legacy_loss", "use_cache",
    "gradient_checkpointing", "chunk_size_feed_forward", "initializer_range", "init_std", "output_attentions",
    "output_hidden_states", "output_scores", "output_past", "return_dict", "return_dict_in_generate",
    "attn_implementation", "_attn_implementation", "_attn_implementation_autoset", "task_specific_params", "prefix",
    "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty",
    "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "exponential_decay_length_penalty",
    "suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values",
))
# Keys that must be empty.
REFUSED_KEYS = {
    "quantization_config": "quantised weights are not supported; get the weights in float32, float16 or bfloat16",
    "compression_config": "compressed weights are not supported; get the uncompressed weights",
    "auto_map": "models with custom code are not supported",
    "pruned_heads": "pruned heads are not supported",
    "adapters": "adapters are not supported; merge them into the weights first",
}
SPECIAL_IDS = {"pad_token_id": "padding", "unk_token_id": "unknown", "mask_token_id": "mask", "cls_token_id": "cls",
               "sep_token_id": "separator"}
"""Keys of special ids, and our names; start and end are handled separately."""

AnySettingsT = TypeVar("AnySettingsT", bound="FamilySettings")


def only(value: Any, why: str, *, optional: bool = False) -> Any:
    """A field that must have this one value; an `optional` one may be absent, and is None then."""
    rule = config.FieldRule(type(value), f"{json.dumps(value)} ({why})", lambda given: given == value)
    return dataclasses.field(default=None if optional else value, metadata={config.RULE_KEY: rule})


@dataclass(frozen=True, kw_only=True)
class FamilySettings(Config):
    """The keys that all families share."""

    harmless: ClassVar[frozenset[str]] = frozenset()
    default_ids: ClassVar[Mapping[str, int]] = {}
    """The special ids of a file that does not name them."""
    absent: ClassVar[Mapping[str, Any]] = {}
    """The values of keys that a file does not have, where null means something else."""
    start_key: ClassVar[str] = "bos_token_id"
    repeated: ClassVar[Mapping[str, int]] = {"eos_token_id": 1}
    """Keys of lists that may be given as a single number, with the length of the list."""
    emptied: ClassVar[tuple[str, ...]] = ()
    """Keys that are written as null, because `transformers` has a default for a key that is absent."""

    pad_token_id: int | None = integer(None, minimum=0)
    unk_token_id: int | None = integer(None, minimum=0)
    mask_token_id: int | None = integer(None, minimum=0)
    cls_token_id: int | None = integer(None, minimum=0)
    sep_token_id: int | None = integer(None, minimum=0)
    bos_token_id: int | None = integer(None, minimum=0)
    eos_token_id: tuple[int, ...] = integer((), minimum=0)
    is_encoder_decoder: bool = only(False, "models of this family are not encoder-decoders")
    is_decoder: bool = only(False, "decoders of this family are not supported")
    add_cross_attention: bool = only(False, "cross-attention is not supported in this family")
    tie_encoder_decoder: bool = only(False, "shared layers of encoder and decoder are not supported")

    @property
    def ids(self) -> int | None:
        """The size of the vocabulary; None for a model without one."""
        return None

    def special(self) -> SpecialTokens:
        """The special ids."""
        return SpecialTokens(start=getattr(self, self.start_key), end=self.eos_token_id,
                             **{ours: getattr(self, theirs) for theirs, ours in SPECIAL_IDS.items()})

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Conflicts between keys: the key, and the problem."""
        for key in (*SPECIAL_IDS, self.start_key, "eos_token_id") if self.ids is not None else ():
            value = getattr(self, key)
            for one in value if isinstance(value, tuple) else () if value is None else (value,):
                if self.ids is not None and one >= self.ids:
                    yield key, f"{one} is not below the vocabulary size {self.ids:,}"


def special_keys(cls: type[FamilySettings], special: SpecialTokens) -> dict[str, Any]:
    """The special ids as keyword arguments of these settings."""
    return {cls.start_key: special.start, "eos_token_id": special.end,
            **{theirs: getattr(special, ours) for theirs, ours in SPECIAL_IDS.items()}}


def read_settings(cls: type[AnySettingsT], raw: Mapping[str, Any], name: str,
                  ignore: Iterable[str] = ()) -> AnySettingsT:
    """Read the settings of a config.json called `name`; a ConfigError lists all problems.

    Args:
        ignore: keys to treat as null.
    """
    values: dict[str, Any] = {**raw, **dict.fromkeys(ignore)}
    found = [ConfigProblem((key,), "", f": {why}") for key, why in REFUSED_KEYS.items() if values.pop(key, None)]
    for key, default in cls.default_ids.items():
        # A small model without these keys has no such ids, rather than ids outside its vocabulary.
        if key not in values and default < _int_or_default(values.get("vocab_size"), default + 1):
            values[key] = default
    values = {**cls.absent, **values}
    for key, times in cls.repeated.items():
        if type(values.get(key)) is int:
            values[key] = [values[key]] * times
    known, kept = config.key_specs(cls), dict[str, Any]()
    for key, value in values.items():
        if value is None or key in IGNORED_KEYS or key in cls.harmless:
            continue
        if key in known:
            kept[key] = value
        else:
            hint = checks.nearest(key, known)
            found.append(ConfigProblem((key,), "unknown key ", f"; {hint[0].lower()}{hint[1:]}" if hint else
                                       "; it may change the model; pass it in `ignore` if it does not"))
    settings = config.type_spec(cls, cls.__name__).read(kept, (), found)
    if found:
        raise TomlDocument(raw, name).error(found)
    return settings


def settings_to_json(settings: FamilySettings) -> dict[str, Any]:
    """The settings as JSON; absent special ids are written as null, so that no default applies."""
    named = ("pad_token_id", "bos_token_id", settings.start_key, *settings.emptied)
    table = {**dict.fromkeys(named), **to_tables(settings)}
    for key, times in settings.repeated.items():
        if len(table[key]) == times and len({*table[key]}) == 1:
            table[key] = table[key][0]
    return {key: None if value == [] else value for key, value in table.items()}


def read_labels(raw: Mapping[str, Any], name: str) -> tuple[int, tuple[str, ...]]:
    """The number of labels and their names, if they have any; 2 by default, as in `transformers`."""
    named = raw.get("id2label")
    if named is None:
        count = raw.get("num_labels")
        if count is not None and _int_or_default(count, 0) < 1:
            raise checks.wrong(f"{name}: num_labels", "a number of labels, at least 1", repr(count)[:80])
        return _int_or_default(count, 2), ()
    if not isinstance(named, Mapping) or {*named} != {*map(str, range(len(named)))} or not named:
        expected = 'a table of names, {"0": ..., "1": ...}, with none left out'
        raise checks.wrong(f"{name}: id2label", expected, repr(named)[:80])
    names = [named[str(index)] for index in range(len(named))]
    if not all(isinstance(one, str) for one in names):
        raise checks.wrong(f"{name}: id2label", "a table of names that are text", repr(named)[:80])
    return len(names), () if names == default_labels(len(names)) else tuple(names)


def default_labels(count: int) -> list[str]:
    """The names that `transformers` gives to unnamed labels."""
    return [f"LABEL_{index}" for index in range(count)]


def activation_name(ours: str) -> str:
    """The name in `transformers` of one of our activations."""
    return next(theirs for theirs, own in ACTIVATIONS.items() if own == ours)


def _int_or_default(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


SettingsT = TypeVar("SettingsT", bound=FamilySettings)
UNCOMPARED_KEYS = {"dropout", "backend", "activation_checkpointing"}


class FileFacts(NamedTuple):
    """Facts about a model that are not keys of its config.json."""

    kind: str
    """The kind of our config."""
    labels: int
    names: Collection[str]
    """The tensors of the file, except those that follow from its settings."""


@dataclass(frozen=True)
class ExportFacts:
    """Facts about a model, besides its config, that a family needs to write its keys."""

    special: SpecialTokens
    longest: int | None
    """The number of positions the model was trained with, if its positions are unlimited."""


class Family(ABC, Generic[SettingsT]):
    """A `model_type` of `transformers`, and its architectures that have a counterpart here."""

    name: ClassVar[str]
    base: ClassVar[str]
    """Prefix of its tensor names, except for heads; files of a bare base model omit it."""
    architectures: ClassVar[Mapping[str, str]]
    """Class names of `transformers`, and our kinds; of several for one kind, the first is written."""
    bare: ClassVar[frozenset[str]] = frozenset()
    """Architectures that are the base model alone."""
    unused: ClassVar[tuple[UnusedTensor, ...]] = ()
    compared: ClassVar[tuple[str, ...]] = ()
    """Tensors that follow from the settings in most files: they are compared, and used where they differ."""
    settings: type[SettingsT]

    @abstractmethod
    def config(self, settings: SettingsT, facts: FileFacts) -> ModelConfig:
        """Convert settings to our config."""

    @abstractmethod
    def to_settings(self, config: ModelConfig, facts: ExportFacts) -> SettingsT:
        """The settings that come closest to this config."""

    @abstractmethod
    def rules(self, config: ModelConfig) -> Iterable[TensorRule]:
        """The tensor rules for a model of this config."""

    def follows(self, settings: SettingsT, name: str, tensor: Tensor) -> bool:
        """Whether one of the `compared` tensors follows from the settings; a ValueError if no model can have it.

        By default none does: those of the file are used.
        """
        return False

    def guess(self, names: Collection[str]) -> str | None:
        """Guess the architecture from the tensor names of a file that does not name it; None if that is impossible."""
        return next(iter(self.architectures))

    def longest(self, settings: SettingsT) -> int | None:
        """The number of positions the model was trained with, if ours are unlimited."""
        return None

    def derived(self, settings: SettingsT) -> dict[str, Tensor]:
        """Tensors that follow from the settings and are not read, but that a file should contain."""
        return {}

    def spelling(self, names: Collection[str]) -> Callable[[str], str]:
        """A function from a name in the rules to the spelling of this file."""
        if any(name.startswith(self.base) for name in names):
            return str
        return lambda name: name.removeprefix(self.base)


def self_attention_of(stack: StackConfig, family: str) -> SelfAttentionConfig:
    """The self-attention of a stack; a ValueError if it has another mixer."""
    if not isinstance(stack.mixer, SelfAttentionConfig):
        raise cannot_express(family, [f'it has self-attention, and this model has the mixer "{stack.mixer.kind}"'])
    return stack.mixer


def feed_forward_of(stack: StackConfig, family: str) -> FeedForwardConfig:
    """The feed-forward layer of a stack; a ValueError if it has none."""
    if stack.feed_forward is None:
        raise cannot_express(family, ["every block has a feed-forward layer, and this model has none"])
    return stack.feed_forward


def check_fits(config: ModelConfig, nearest: ModelConfig, family: str) -> None:
    """Refuse a config that differs from the closest one that the family can express, and list all differences."""
    own, other = (_flatten(to_tables(_canonical(one, one))) for one in (config, nearest))
    differing = [key for key in {**own, **other} if own.get(key) != other.get(key)]
    if differing:
        raise cannot_express(family, [f"{key} is {_format_key_value(own, key)}, but must be "
                                      f"{_format_key_value(other, key)}" for key in differing])


def cannot_express(family: str, differences: Sequence[str]) -> ValueError:
    """The error for a model that a family has no form for; the caller raises it."""
    return ValueError("\n  ".join((f"{family} cannot express this model:", *differences)))


def _canonical(part: Any, whole: ModelConfig) -> Any:
    """The config in a canonical form: values that equal the default for this model are left out."""
    if not isinstance(part, Config):
        return part
    names = [field.name for field in fields(part)]
    part = replace(part, **{name: _canonical(getattr(part, name), whole) for name in names})
    width = whole.width
    if isinstance(part, AttentionConfig):
        return replace(part, key_heads=None if part.key_heads == part.heads else part.key_heads,
                       qkv_bias=None if part.qkv_bias == part.bias else part.qkv_bias,
                       head_width=None if part.head_width == width // part.heads else part.head_width)
    if isinstance(part, EmbeddingConfig) and part.norm is None:
        return replace(part, epsilon=EmbeddingConfig().epsilon)
    if isinstance(part, MaskedModelConfig) and part.mlm_width == width:
        return replace(part, mlm_width=None)
    return replace(part, positions=part.position_config) if isinstance(part, VisionConfig) else part


def _flatten(tables: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{above}{key}.")
        elif key not in UNCOMPARED_KEYS:
            flat[f"{above}{key}"] = value
    return flat


def _format_key_value(flat: Mapping[str, Any], key: str) -> str:
    return json.dumps(flat[key]) if key in flat else "absent"
