"""Configuration: from tables to frozen dataclasses and back, strictly.

    @dataclass(frozen=True, kw_only=True)
    class FeedForwardConfig(Config):
        inner: int = whole(least=1)                      # required: it has no default
        activation: str = choice(ACTIVATIONS, "relu")    # one of the names of a table
        dropout: float = share(0.0)                      # a probability below 1
        window: int | None = whole(None, least=1)        # None where the key is absent
        bias: bool = True                                # nothing to check but its type

    document = regard.toml.document.read("train.toml")
    make(FeedForwardConfig, document, ("model", "feed_forward"))

Which types a field may have is told in `regard.toml.schema`. A config that is made in Python is checked as one that is
read from a file, and all its problems are reported at once. A component owns its config; this file knows none of them.
"""

import dataclasses
import operator
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass
from typing import Any, TypeVar

from regard.toml import schema, writing
from regard.toml.document import Document, Problem
from regard.toml.schema import NOUNS, Rule

Made = TypeVar("Made")
_LIMITS: dict[str, Callable[[Any, Any], bool]] = {
    "at least": operator.ge, "above": operator.gt, "at most": operator.le, "below": operator.lt,
}


@dataclass(frozen=True)
class Config:
    """What every config inherits: it is checked when it is made, and a ConfigError says all that is wrong."""

    def __post_init__(self) -> None:
        found: list[Problem] = []
        for key, slot in schema.slots(type(self)).items():  # what is kept is exact: 1 becomes 1.0, a list a tuple
            object.__setattr__(self, key, slot.read(getattr(self, key), (key,), found))
        if not found:
            found = [Problem(_path(key), "", f": {sentence}") for key, sentence in self.conflicts()]
        if found:
            raise Document({}, type(self).__name__).error(found)

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """What is wrong between fields that are each good: a key, "heads" or "encoder.width", and what it is."""
        return iter(())


def whole(default: Any = MISSING, *, least: int | None = None, most: int | None = None) -> Any:
    """A field that is a whole number within limits."""
    return _field(_limited(int, NOUNS[int], least, None, most, None), default)


def number(default: Any = MISSING, *, least: float | None = None, above: float | None = None,
           most: float | None = None, below: float | None = None) -> Any:
    """A field that is a finite number within limits."""
    return _field(_limited(float, NOUNS[float], least, above, most, below), default)


def share(default: Any = MISSING) -> Any:
    """A field that is a probability, at least 0 and below 1."""
    return _field(_limited(float, "a probability", 0, None, None, 1), default)


def choice(names: Iterable[str], default: Any = MISSING) -> Any:
    """A field that is one of these names: the keys of a table, or any others."""
    valid = tuple(names)
    return _field(Rule(str, schema.one_of(valid), valid.__contains__, valid), default)


def text(default: Any = MISSING, *, least: int = 0) -> Any:
    """A field that is text of at least so many characters."""
    expected = f"text, at least {least} characters long" if least else NOUNS[str]
    return _field(Rule(str, expected, lambda value: len(value) >= least), default)


@typing.overload
def make(kind: type[Made], document: Document, at: tuple[str, ...] = ()) -> Made: ...
@typing.overload
def make(kind: types.UnionType, document: Document, at: tuple[str, ...] = ()) -> Any: ...
def make(kind: Any, document: Document, at: tuple[str, ...] = ()) -> Any:
    """The config in the table at this path. A ConfigError says all that is wrong with it.

    Args:
        kind: its class; or several, A | B, of which the table's `kind` names one; with | None it may be absent.
    """
    slot, value = schema.slot(kind, "make"), document.tables
    for depth, key in enumerate(at):
        if not isinstance(value, Mapping):
            raise document.error([schema.instead(at[:depth], "a table", value)])
        if key not in value:
            if slot.optional:
                return None
            raise document.error([slot.missing(at[:depth + 1])])
        value = value[key]
    found: list[Problem] = []
    made = slot.read(value, at, found)
    if found:
        raise document.error(found)
    return made


def make_all(kinds: Mapping[str, Any], document: Document) -> dict[str, Any]:
    """The configs of a whole document, which has no other keys at its top: {"model": A | B, "decoding": C | None}."""
    found: list[Problem] = []
    slots = {key: schema.slot(kind, key) for key, kind in kinds.items()}
    made = schema.read_keys(slots, document.tables, (), found)
    if found:
        raise document.error(found)
    return made


def plain(value: Any) -> Any:
    """Configs as tables and lists of plain values: defaults too, nothing that is None, `kind` first."""
    if isinstance(value, Config):
        cls, kind = type(value), schema.kind(type(value))
        own = {field.name: getattr(value, field.name) for field in dataclasses.fields(cls)}
        return plain(own if kind is None else {"kind": kind, **own})
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items() if part is not None}
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value


def dumps(tables: Mapping[str, Any]) -> str:
    """TOML of {"model": a config, "seed": 1, ...}, from which `make` gives equal configs."""
    return writing.dumps(plain(tables))


def _limited(scalar: type, noun: str, *limits: float | None) -> Rule:
    """The rule of a number; the limits in the order of _LIMITS."""
    asked = [(word, limit) for word, limit in zip(_LIMITS, limits, strict=True) if limit is not None]
    words = " and ".join(f"{word} {limit}" for word, limit in asked)
    return Rule(scalar, f"{noun}, {words}" if words else noun,
                lambda value: all(_LIMITS[word](value, limit) for word, limit in asked))


def _field(rule: Rule, default: Any) -> Any:
    return dataclasses.field(default=default, metadata={schema.RULE: rule})


def _path(key: str) -> tuple[str | int, ...]:
    return tuple(int(part) if part.isdecimal() else part for part in key.split("."))
