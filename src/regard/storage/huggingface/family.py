"""What a family of architectures is: its keys, its tensors, and how its config becomes one of ours and back.

A family says how a config of ours is told with its keys. Whether that fits is not a matter of lists: its keys are read
back, and whatever differs from the config has no place in the family. Dropout is not compared: it is how a model was
trained, not what it computes, and no family has a place for all of ours. Nor are the backend and the checkpointing of
activations, which are how it is run.

This file knows no family.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from torch import Tensor

from regard import checks
from regard.attention.layer import AttentionConfig
from regard.attention.mixing import SelfAttentionConfig
from regard.blocks.feed_forward import FeedForwardConfig
from regard.blocks.stack import StackConfig
from regard.config import Config, plain
from regard.models.build import ModelConfig
from regard.models.embedding import EmbeddingConfig
from regard.models.masked import MaskedConfig
from regard.models.special import SpecialConfig
from regard.models.vision import VisionConfig
from regard.storage.huggingface.mapping import Rule, Unused
from regard.storage.huggingface.settings import Settings

Own = TypeVar("Own", bound=Settings)
UNCOMPARED = {"dropout", "backend", "checkpoint"}


class Asked(NamedTuple):
    """What is known of a model beside its keys."""

    kind: str
    """Which of our kinds it becomes."""
    labels: int
    names: Collection[str]
    """The tensors there are, by the names of the family's table."""


@dataclass(frozen=True)
class Made:
    """What is told with a family's keys, beside the config."""

    special: SpecialConfig
    longest: int | None
    """How many positions the model was trained with, where its own have no end."""


class Family(ABC, Generic[Own]):
    """A `model_type`, and the architectures of it that have a counterpart here."""

    name: ClassVar[str]
    base: ClassVar[str]
    """What the names of its tensors begin with, but for heads; files of a bare base model leave it out."""
    architectures: ClassVar[Mapping[str, str]]
    """Their classes, and our kinds; of several for one kind, the first is written."""
    bare: ClassVar[frozenset[str]] = frozenset()
    """Those that are the base alone."""
    unused: ClassVar[tuple[Unused, ...]] = ()
    settings: type[Own]

    @abstractmethod
    def config(self, settings: Own, asked: Asked) -> ModelConfig:
        """Our config of what these keys say."""

    @abstractmethod
    def told(self, config: ModelConfig, made: Made) -> Own:
        """The keys that come nearest to this config."""

    @abstractmethod
    def rules(self, config: ModelConfig) -> Iterable[Rule]:
        """Which tensors are which in a model of this config."""

    def guess(self, names: Collection[str]) -> str | None:
        """The architecture of a file that does not say it, by its tensors; None where they do not tell."""
        return next(iter(self.architectures))

    def longest(self, settings: Own) -> int | None:
        """How many positions the model was trained with, where our own have no end."""
        return None

    def derived(self, settings: Own) -> dict[str, Tensor]:
        """Tensors of theirs that are not read, as they follow from the keys, but that a file should have."""
        return {}

    def spelling(self, names: Collection[str]) -> Callable[[str], str]:
        """How a file with these tensors spells the names of the table."""
        if any(name.startswith(self.base) for name in names):
            return str
        return lambda name: name.removeprefix(self.base)


def attention(stack: StackConfig, family: str) -> SelfAttentionConfig:
    """The self-attention of a stack that has it."""
    if not isinstance(stack.mixer, SelfAttentionConfig):
        raise checks.wrong("config", f"one that fits {family}, with self-attention", f"with {stack.mixer.kind}")
    return stack.mixer


def feed_forward(stack: StackConfig, family: str) -> FeedForwardConfig:
    """The feed-forward part of a stack that has one."""
    if stack.feed_forward is None:
        raise checks.wrong("config", f"one that fits {family}, with a feed-forward part", "without")
    return stack.feed_forward


def check_fits(config: ModelConfig, nearest: ModelConfig, family: str) -> None:
    """Refuse a config that differs from the nearest one that the family can hold, with all differences."""
    own, other = (_flat(plain(_canonical(one, one))) for one in (config, nearest))
    differing = [key for key in {**own, **other} if own.get(key) != other.get(key)]
    if differing:
        lines = "\n  ".join(f"{key} is {_shown(own, key)}, where {family} has {_shown(other, key)}"
                            for key in differing)
        raise checks.wrong("config", f"one that fits {family}", "not", f"These have no place in it:\n  {lines}")


def _canonical(part: Any, whole: ModelConfig) -> Any:
    """The config in the one form that has the same meaning: what is as it would be anyway is not said."""
    if not isinstance(part, Config):
        return part
    names = [field.name for field in fields(part)]
    part = replace(part, **{name: _canonical(getattr(part, name), whole) for name in names})
    width = whole.width
    if isinstance(part, AttentionConfig):
        return replace(part, key_heads=None if part.key_heads == part.heads else part.key_heads,
                       head_width=None if part.head_width == width // part.heads else part.head_width)
    if isinstance(part, EmbeddingConfig) and part.norm is None:
        return replace(part, epsilon=EmbeddingConfig().epsilon)
    if isinstance(part, MaskedConfig) and part.head_width == width:
        return replace(part, head_width=None)
    return replace(part, positions=part.places) if isinstance(part, VisionConfig) else part


def _flat(tables: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{above}{key}.")
        elif key not in UNCOMPARED:
            flat[f"{above}{key}"] = value
    return flat


def _shown(flat: Mapping[str, Any], key: str) -> str:
    return json.dumps(flat[key]) if key in flat else "nothing"
