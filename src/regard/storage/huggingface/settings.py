"""What a config.json says, read strictly: a key that may change the model and is not understood is refused by name.

A family declares its keys as a dataclass with the defaults of `transformers`, which leaves out of the file what is as
it would be anyway. All that is wrong is told at once. Keys that say how the file came to be, how a model is searched
or how it was initialised change nothing in it, and are passed over.

It knows keys and values. It does not know our models, nor tensors.
"""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from regard import checks
from regard.config import Config, plain, whole
from regard.models.special import SpecialConfig
from regard.toml import schema
from regard.toml.document import Document, Problem

ACTIVATIONS = {
    "relu": "relu", "gelu": "gelu", "silu": "silu", "gelu_new": "gelu_tanh", "swish": "silu", "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh", "gelu_python_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
}
"""Their names of activations, and ours; of several for one, the first is written."""

# Handled elsewhere, or without effect on what the model computes.
HARMLESS = frozenset((
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
# Tables and lists that must be empty.
REFUSED = {
    "quantization_config": "quantised weights are not read; get the weights that were not quantised",
    "compression_config": "compressed weights are not read; get the weights that were not compressed",
    "auto_map": "a model with code of its own is not read",
    "pruned_heads": "a model with pruned heads is not read",
    "adapters": "adapters are not read; merge them into the weights first",
}
IDS = {"pad_token_id": "padding", "unk_token_id": "unknown", "mask_token_id": "mask", "cls_token_id": "first",
       "sep_token_id": "separator"}
"""Their keys of special ids, and our names; start and end are apart."""

Some = TypeVar("Some", bound="Settings")


def only(value: Any, why: str) -> Any:
    """A field that must have this one value."""
    rule = schema.Rule(type(value), f"{json.dumps(value)} ({why})", lambda given: given == value)
    return dataclasses.field(default=value, metadata={schema.RULE: rule})


@dataclass(frozen=True, kw_only=True)
class Settings(Config):
    """The keys that all families share."""

    harmless: ClassVar[frozenset[str]] = frozenset()
    default_ids: ClassVar[Mapping[str, int]] = {}
    """The special ids that hold where the file does not name them."""
    start_key: ClassVar[str] = "bos_token_id"
    repeated: ClassVar[Mapping[str, int]] = {"eos_token_id": 1}
    """Lists for which a single number may stand: so many of it."""
    emptied: ClassVar[tuple[str, ...]] = ()
    """Keys of how a text is written whose default would hold if they were not there; nothing is asked for."""

    pad_token_id: int | None = whole(None, least=0)
    unk_token_id: int | None = whole(None, least=0)
    mask_token_id: int | None = whole(None, least=0)
    cls_token_id: int | None = whole(None, least=0)
    sep_token_id: int | None = whole(None, least=0)
    bos_token_id: int | None = whole(None, least=0)
    eos_token_id: tuple[int, ...] = whole((), least=0)
    is_encoder_decoder: bool = only(False, "a model of this family has no source to look at")
    is_decoder: bool = only(False, "a decoder of this family with a source to look at is not read")
    add_cross_attention: bool = only(False, "attention to a source is not read in this family")
    tie_encoder_decoder: bool = only(False, "an encoder and a decoder that share their layers are not read")

    @property
    def ids(self) -> int | None:
        """How many ids there are; None where there is no vocabulary."""
        return None

    def special(self) -> SpecialConfig:
        """The special ids."""
        return SpecialConfig(start=getattr(self, self.start_key), end=self.eos_token_id,
                             **{ours: getattr(self, theirs) for theirs, ours in IDS.items()})

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """What is wrong between keys: key, and why."""
        for key in (*IDS, self.start_key, "eos_token_id") if self.ids is not None else ():
            value = getattr(self, key)
            for one in value if isinstance(value, tuple) else () if value is None else (value,):
                if self.ids is not None and one >= self.ids:
                    yield key, f"{one} is no id of the {self.ids} that the model has"


def special_keys(cls: type[Settings], special: SpecialConfig) -> dict[str, Any]:
    """The special ids as arguments of these settings."""
    return {cls.start_key: special.start, "eos_token_id": special.end,
            **{theirs: getattr(special, ours) for theirs, ours in IDS.items()}}


def read(cls: type[Some], raw: Mapping[str, Any], name: str, ignore: Iterable[str] = ()) -> Some:
    """The settings in a config.json called `name`; a ConfigError says all that is wrong with it.

    Args:
        ignore: keys that are taken as null, whatever they say.
    """
    values: dict[str, Any] = {**raw, **dict.fromkeys(ignore)}
    found = [Problem((key,), "", f": {why}") for key, why in REFUSED.items() if values.pop(key, None)]
    for key, default in cls.default_ids.items():
        # A small model whose file does not name them has no such ids, rather than ids outside its vocabulary.
        if key not in values and default < _count(values.get("vocab_size"), default + 1):
            values[key] = default
    for key, times in cls.repeated.items():
        if type(values.get(key)) is int:
            values[key] = [values[key]] * times
    known, kept = schema.slots(cls), dict[str, Any]()
    for key, value in values.items():
        if value is None or key in HARMLESS or key in cls.harmless:
            continue
        if key in known:
            kept[key] = value
        else:
            hint = checks.nearest(key, known)
            found.append(Problem((key,), "unknown key ", f"; {hint[0].lower()}{hint[1:]}" if hint else
                                 "; it may change the model, and can be passed over with `ignore` if it does not"))
    settings = schema.slot(cls, cls.__name__).read(kept, (), found)
    if found:
        raise Document(raw, name).error(found)
    return settings


def written(settings: Settings) -> dict[str, Any]:
    """The settings as a config.json has them: special ids named even where there is none, so that no default holds."""
    named = ("pad_token_id", "bos_token_id", settings.start_key, *settings.emptied)
    table = {**dict.fromkeys(named), **plain(settings)}
    for key, times in settings.repeated.items():
        if len(table[key]) == times and len({*table[key]}) == 1:
            table[key] = table[key][0]
    return {key: None if value == [] else value for key, value in table.items()}


def labels(raw: Mapping[str, Any], name: str) -> tuple[int, tuple[str, ...]]:
    """How many labels there are, and their names where they have any; 2 where nothing is said, as in `transformers`."""
    named = raw.get("id2label")
    if named is None:
        count = raw.get("num_labels")
        if count is not None and _count(count, 0) < 1:
            raise checks.wrong(f"{name}: num_labels", "a number of labels, at least 1", repr(count)[:80])
        return _count(count, 2), ()
    if not isinstance(named, Mapping) or {*named} != {*map(str, range(len(named)))} or not named:
        expected = 'a table of names, {"0": ..., "1": ...}, with none left out'
        raise checks.wrong(f"{name}: id2label", expected, repr(named)[:80])
    names = [named[str(index)] for index in range(len(named))]
    if not all(isinstance(one, str) for one in names):
        raise checks.wrong(f"{name}: id2label", "a table of names that are text", repr(named)[:80])
    return len(names), () if names == unnamed(len(names)) else tuple(names)


def unnamed(count: int) -> list[str]:
    """What `transformers` calls labels without a name."""
    return [f"LABEL_{index}" for index in range(count)]


def activation(ours: str) -> str:
    """Their name of one of our activations."""
    return next(theirs for theirs, own in ACTIVATIONS.items() if own == ours)


def _count(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise
