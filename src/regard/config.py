"""Typed configuration: frozen dataclasses that are read from TOML tables and written back, strictly.

    @dataclass(frozen=True, kw_only=True)
    class FeedForwardConfig(Config):
        inner: int = integer(least=1)                    # required: it has no default
        activation: str = choice(ACTIVATIONS, "relu")    # one of the names of a table
        dropout: float = probability(0.0)                # at least 0 and below 1
        window: int | None = integer(None, least=1)      # None if the key is absent
        bias: bool = True                                # only its type is checked

    document = regard.toml.read_document("train.toml")
    read_config(FeedForwardConfig, document, ("model", "feed_forward"))

A field may have these types:

    int, float, bool, str          a value; a `FieldRule` in the field's metadata may restrict it further
    tuple[X, ...]                  an array; the rule applies to every element
    a dataclass                    a table
    A | B                          a table whose key `kind` selects the dataclass by its `kind: ClassVar[str]`
    X | None                       the key may be absent, which is how TOML expresses None

A config made in Python is checked like one read from a file, and all problems are reported at once. A component owns
its config; this module knows none of them.
"""

import dataclasses
import math
import operator
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass
from typing import Any, TypeVar

from regard import checks, toml
from regard.toml import (
    ConfigError,
    ConfigProblem,
    KeyPath,
    TomlDocument,
    fits_64_bits,
    format_value,
    is_encodable,
    quote,
)

TYPE_NAMES = {int: "a whole number", float: "a finite number", bool: "true or false", str: "text"}
RULE_KEY = "regard.config.rule"
"""Where a field keeps its rule in its metadata."""


@dataclass(frozen=True)
class FieldRule:
    """What a field asks for beyond its type, in words and as a test; `names` where only these are good."""

    scalar: type
    expected: str
    holds: Callable[[Any], bool]
    names: tuple[str, ...] = ()


class ValueReader(ABC):
    """How a value is read."""

    expected: str

    @abstractmethod
    def read(self, value: Any, path: KeyPath, found: list[ConfigProblem]) -> Any:
        """The value to keep; or None, and a problem more."""


class ScalarReader(ValueReader):
    """A value that has no parts."""

    def __init__(self, scalar: type, rule: FieldRule | None) -> None:
        self.scalar, self.names = scalar, () if rule is None else rule.names
        self.expected = TYPE_NAMES[scalar] if rule is None else rule.expected
        self.holds = (lambda value: True) if rule is None else rule.holds

    def read(self, value: Any, path: KeyPath, found: list[ConfigProblem]) -> Any:
        kept = _convert_exactly(self.scalar, value)
        if kept is not None and self.holds(kept):
            return kept
        found.append(value_problem(path, self.expected, value, self.names))
        return None


class ArrayReader(ValueReader):
    """Any number of values of one type."""

    def __init__(self, element: ValueReader) -> None:
        self.element, self.expected = element, f"an array, each element {element.expected}"

    def read(self, value: Any, path: KeyPath, found: list[ConfigProblem]) -> Any:
        if isinstance(value, list | tuple):
            return tuple(self.element.read(part, (*path, index), found) for index, part in enumerate(value))
        found.append(value_problem(path, self.expected, value))
        return None


class TableReader(ValueReader):
    """A table of one dataclass, or of several that `kind` tells apart."""

    def __init__(self, classes: tuple[type, ...]) -> None:
        self.classes = classes
        self.kinds = {name: cls for cls in classes if (name := config_kind(cls)) is not None}
        self.expected = f"a table whose kind is {one_of(self.kinds)}" if len(classes) > 1 else "a table"

    def read(self, value: Any, path: KeyPath, found: list[ConfigProblem]) -> Any:
        if type(value) in self.classes:
            return value
        if not isinstance(value, Mapping):
            found.append(value_problem(path, self.expected, value))
            return None
        cls = self._class(value, (*path, "kind"), found)
        if cls is None:
            return None
        already = len(found)
        table = {key: part for key, part in value.items() if key != "kind" or not self.kinds}
        values = read_keys(key_specs(cls), table, path, found)
        if len(found) > already:
            return None
        try:
            return cls(**values)
        except ConfigError as error:  # the dataclass found fault with values that are each good
            found += [problem._replace(path=(*path, *problem.path)) for problem in error.found]
            return None

    def _class(self, table: Mapping[str, Any], path: KeyPath, found: list[ConfigProblem]) -> type | None:
        if not self.kinds or ("kind" not in table and len(self.classes) == 1):
            return self.classes[0]
        name, expected = table.get("kind"), one_of(self.kinds)
        if isinstance(name, str) and name in self.kinds:
            return self.kinds[name]
        absent = ConfigProblem(path, "missing key ", f": expected {expected}")
        found.append(value_problem(path, expected, name, self.kinds) if "kind" in table else absent)
        return None


@dataclass(frozen=True)
class KeySpec:
    """What may stand under a key, and whether it must."""

    reader: ValueReader
    optional: bool
    """It may be None."""
    required: bool = True
    """It has no default."""

    def read(self, value: Any, path: KeyPath, found: list[ConfigProblem]) -> Any:
        """The value to keep; or None, and where that is none of its values, a problem more."""
        return None if value is None and self.optional else self.reader.read(value, path, found)

    def missing(self, path: KeyPath) -> ConfigProblem:
        """The problem that nothing stands there."""
        expected = self.reader.expected
        if isinstance(self.reader, TableReader):
            return ConfigProblem(path, "missing table ", f": expected {expected}" if len(self.reader.classes) > 1 else "")
        return ConfigProblem(path, "missing key ", f": expected {expected}")


def read_keys(known: Mapping[str, KeySpec], table: Mapping[str, Any], path: KeyPath,
              found: list[ConfigProblem]) -> dict[str, Any]:
    """The values of the keys of a table, without defaults. A key that is missing, or not known, is a problem."""
    for key in table:
        if key not in known:
            sort = "table" if isinstance(table[key], Mapping) else "key"
            instead_of_it = f"; expected {one_of(known)}" if known else "; there are no keys here"
            found.append(ConfigProblem((*path, str(key)), f"unknown {sort} ", _suggestion(str(key), known) or instead_of_it))
    values = {}
    for key, slot in known.items():
        if key in table:
            values[key] = slot.read(table[key], (*path, key), found)
        elif slot.optional:
            values[key] = None
        elif slot.required:
            found.append(slot.missing((*path, key)))
    return values


def key_specs(cls: type) -> dict[str, KeySpec]:
    """What may stand under each key of a dataclass; a TypeError where its fields are not of the types above."""
    hints, known = typing.get_type_hints(cls), {}
    for field in dataclasses.fields(cls):
        where = f"{cls.__name__}.{field.name}"
        has_default = field.default is not MISSING or field.default_factory is not MISSING
        one = type_spec(hints[field.name], where, field.metadata.get(RULE_KEY))
        if one.optional and has_default and field.default is not None:
            raise TypeError(f"{where} may be None, so its default must be None: TOML can only leave a key out")
        known[field.name] = dataclasses.replace(one, required=not has_default)
    return known


def type_spec(annotation: Any, where: str, rule: FieldRule | None = None) -> KeySpec:
    """What may stand under a key of this type; `where` names it if the type is none of those above."""
    options = _union_members(annotation)
    some = tuple(option for option in options if option is not types.NoneType)
    return KeySpec(_value_reader(some, rule, where), optional=len(some) < len(options))


def config_kind(cls: type) -> str | None:
    """The kind of a dataclass that has one, as a ClassVar and not as a field."""
    return None if any(field.name == "kind" for field in dataclasses.fields(cls)) else getattr(cls, "kind", None)


def value_problem(path: KeyPath, expected: str, value: object, names: Iterable[str] = ()) -> ConfigProblem:
    """The problem that another value was expected; the nearest of the names is offered."""
    near = _suggestion(value, names) if isinstance(value, str) else ""
    return ConfigProblem(path, "", f": expected {expected}, but got {format_value(value)}{near}")


def one_of(names: Iterable[str]) -> str:
    """The names, to choose from."""
    valid = [*map(quote, names)]
    return f"{'one of ' if len(valid) > 1 else ''}{', '.join(valid)}"


def _value_reader(options: tuple[Any, ...], rule: FieldRule | None, where: str) -> ValueReader:
    first = options[0]
    if len(options) == 1 and typing.get_origin(first) is tuple and typing.get_args(first)[1:] == (...,):
        return ArrayReader(_value_reader(_union_members(typing.get_args(first)[0]), rule, where))
    if len(options) == 1 and first in TYPE_NAMES and (rule is None or rule.scalar is first):
        return ScalarReader(first, rule)
    if rule is None and all(isinstance(option, type) and dataclasses.is_dataclass(option) for option in options):
        kinds = {config_kind(option) for option in options} - {None}
        if len(options) == 1 or len(kinds) == len(options):
            return TableReader(options)
    asked = "" if rule is None else f" that is {rule.expected}"
    raise TypeError(f"{where}: no key can be of the type {' | '.join(map(str, options))}{asked}")


def _union_members(annotation: Any) -> tuple[Any, ...]:
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if union else (annotation,)


def _convert_exactly(scalar: type, value: Any) -> Any:
    """The value as exactly this type; None where it is not one."""
    if scalar is str:
        return str.__str__(value) if isinstance(value, str) and is_encodable(value) else None
    if scalar is bool or isinstance(value, bool):
        return value if scalar is bool and isinstance(value, bool) else None
    if isinstance(value, int):
        return scalar(value) if fits_64_bits(value) else None
    return float(value) if scalar is float and isinstance(value, float) and math.isfinite(value) else None


def _suggestion(name: str, names: Iterable[str]) -> str:
    """The nearest of the names, as the end of a sentence."""
    hint = checks.nearest(name, names)
    return f"; {hint[0].lower()}{hint[1:]}" if hint else ""


# ---- config: Configuration: from tables to frozen dataclasses and back, strictly.
#
#     @dataclass(frozen=True, kw_only=True)
#     class FeedForwardConfig(Config):
#         inner: int = whole(least=1)                      # required: it has no default
#         activation: str = choice(ACTIVATIONS, "relu")    # one of the names of a table
#         dropout: float = share(0.0)                      # a probability below 1
#         window: int | None = whole(None, least=1)        # None where the key is absent
#         bias: bool = True                                # nothing to check but its type
#
#     document = regard.toml.read_document("train.toml")
#     make(FeedForwardConfig, document, ("model", "feed_forward"))
#
# Which types a field may have is told in `regard.config`. A config that is made in Python is checked as one that is
# read from a file, and all its problems are reported at once. A component owns its config; this file knows none of them.

ConfigT = TypeVar("ConfigT")
_LIMITS: dict[str, Callable[[Any, Any], bool]] = {
    "at least": operator.ge, "above": operator.gt, "at most": operator.le, "below": operator.lt,
}


@dataclass(frozen=True)
class Config:
    """What every config inherits: it is checked when it is made, and a ConfigError says all that is wrong."""

    def __post_init__(self) -> None:
        found: list[ConfigProblem] = []
        for key, slot in key_specs(type(self)).items():  # what is kept is exact: 1 becomes 1.0, a list a tuple
            object.__setattr__(self, key, slot.read(getattr(self, key), (key,), found))
        if not found:
            found = [ConfigProblem(_key_path(key), "", f": {sentence}") for key, sentence in self.conflicts()]
        if found:
            raise TomlDocument({}, type(self).__name__).error(found)

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """What is wrong between fields that are each good: a key, "heads" or "encoder.width", and what it is."""
        return iter(())


def integer(default: Any = MISSING, *, least: int | None = None, most: int | None = None) -> Any:
    """A field that is a whole number within limits."""
    return _ruled_field(_number_rule(int, TYPE_NAMES[int], least, None, most, None), default)


def number(default: Any = MISSING, *, least: float | None = None, above: float | None = None,
           most: float | None = None, below: float | None = None) -> Any:
    """A field that is a finite number within limits."""
    return _ruled_field(_number_rule(float, TYPE_NAMES[float], least, above, most, below), default)


def probability(default: Any = MISSING) -> Any:
    """A field that is a probability, at least 0 and below 1."""
    return _ruled_field(_number_rule(float, "a probability", 0, None, None, 1), default)


def choice(names: Iterable[str], default: Any = MISSING) -> Any:
    """A field that is one of these names: the keys of a table, or any others."""
    valid = tuple(names)
    return _ruled_field(FieldRule(str, one_of(valid), valid.__contains__, valid), default)


def text(default: Any = MISSING, *, least: int = 0) -> Any:
    """A field that is text of at least so many characters."""
    expected = f"text, at least {least} characters long" if least else TYPE_NAMES[str]
    return _ruled_field(FieldRule(str, expected, lambda value: len(value) >= least), default)


@typing.overload
def read_config(kind: type[ConfigT], document: TomlDocument, at: tuple[str, ...] = ()) -> ConfigT: ...
@typing.overload
def read_config(kind: types.UnionType, document: TomlDocument, at: tuple[str, ...] = ()) -> Any: ...
def read_config(kind: Any, document: TomlDocument, at: tuple[str, ...] = ()) -> Any:
    """The config in the table at this path. A ConfigError says all that is wrong with it.

    Args:
        kind: its class; or several, A | B, of which the table's `kind` names one; with | None it may be absent.
    """
    slot, value = type_spec(kind, "make"), document.tables
    for depth, key in enumerate(at):
        if not isinstance(value, Mapping):
            raise document.error([value_problem(at[:depth], "a table", value)])
        if key not in value:
            if slot.optional:
                return None
            raise document.error([slot.missing(at[:depth + 1])])
        value = value[key]
    found: list[ConfigProblem] = []
    made = slot.read(value, at, found)
    if found:
        raise document.error(found)
    return made


def read_configs(kinds: Mapping[str, Any], document: TomlDocument) -> dict[str, Any]:
    """The configs of a whole document, which has no other keys at its top: {"model": A | B, "decoding": C | None}."""
    found: list[ConfigProblem] = []
    slots = {key: type_spec(kind, key) for key, kind in kinds.items()}
    made = read_keys(slots, document.tables, (), found)
    if found:
        raise document.error(found)
    return made


def to_tables(value: Any) -> Any:
    """Configs as tables and lists of plain values: defaults too, nothing that is None, `kind` first."""
    if isinstance(value, Config):
        cls, kind = type(value), config_kind(type(value))
        own = {field.name: getattr(value, field.name) for field in dataclasses.fields(cls)}
        return to_tables(own if kind is None else {"kind": kind, **own})
    if isinstance(value, Mapping):
        return {key: to_tables(part) for key, part in value.items() if part is not None}
    return [to_tables(part) for part in value] if isinstance(value, list | tuple) else value


def to_toml(tables: Mapping[str, Any]) -> str:
    """TOML of {"model": a config, "seed": 1, ...}, from which `make` gives equal configs."""
    return toml.dumps(to_tables(tables))


def _number_rule(scalar: type, noun: str, *limits: float | None) -> FieldRule:
    """The rule of a number; the limits in the order of _LIMITS."""
    asked = [(word, limit) for word, limit in zip(_LIMITS, limits, strict=True) if limit is not None]
    words = " and ".join(f"{word} {limit}" for word, limit in asked)
    return FieldRule(scalar, f"{noun}, {words}" if words else noun,
                lambda value: all(_LIMITS[word](value, limit) for word, limit in asked))


def _ruled_field(rule: FieldRule, default: Any) -> Any:
    return dataclasses.field(default=default, metadata={RULE_KEY: rule})


def _key_path(key: str) -> tuple[str | int, ...]:
    return tuple(int(part) if part.isdecimal() else part for part in key.split("."))
