"""Typed configuration: frozen dataclasses that are read from TOML tables and written back, strictly.

    @dataclass(frozen=True, kw_only=True)
    class FeedForwardConfig(Config):
        ffn_width: int = integer(minimum=1, old="inner")   # required: it has no default; it was called "inner"
        activation: str = choice(ACTIVATIONS, "relu")      # one of the names of a table
        dropout: float = probability(0.0)                  # at least 0 and below 1
        window: int | None = integer(None, minimum=1)      # None if the key is absent
        bias: bool = True                                  # only its type is checked

    document = regard.toml.read_document("train.toml")
    read_config(FeedForwardConfig, document, ("model", "feed_forward"))

A field may have these types:

    int, float, bool, str          a value; a `FieldRule` in the field's metadata may restrict it further
    tuple[X, ...]                  an array; the rule applies to every element
    a dataclass                    a table
    A | B                          a table whose key `kind` selects the dataclass by its `kind: ClassVar[str]`
    X | None                       the key may be absent, which is how TOML expresses None

A config made in Python is checked like one read from a file, and all problems are reported at once.

A field that was renamed keeps its old key as an alias (`old="inner"`). Files with old keys are read under the new
names, with one notice a file; a file with both names of a key is refused. Only new keys are written.

A component owns its config; this module knows none of them.
"""

import dataclasses
import math
import operator
import types
import typing
import warnings
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
    dotted_key,
    fits_64_bits,
    format_value,
    is_encodable,
    quote,
)

ConfigT = TypeVar("ConfigT")
TYPE_NAMES = {int: "a whole number", float: "a finite number", bool: "true or false", str: "text"}
RULE_KEY, OLD_KEY = "regard.config.rule", "regard.config.old"
"""Where a field keeps its rule and its old name in its metadata."""
NOTICE_KEYS = 4
"""How many old keys a notice names."""
_LIMITS: dict[str, Callable[[Any, Any], bool]] = {
    "at least": operator.ge, "above": operator.gt, "at most": operator.le, "below": operator.lt,
}


@dataclass(frozen=True)
class FieldRule:
    """The values that a field may have beyond its type, as a phrase and as a test; `names` if only these are valid."""

    scalar: type
    expected: str
    holds: Callable[[Any], bool]
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class OldName:
    """The name that a key had before, and its old values if these were different too."""

    key: str
    values: Mapping[Any, Any] | None = None
    """{old value: new value}; any other value is kept, so that it is refused under its own name."""

    def current(self, value: Any) -> Any:
        """The value that an old one has now."""
        known = self.values is not None and isinstance(value, str | bool) and value in self.values
        return self.values[value] if self.values is not None and known else value


@dataclass(frozen=True)
class Config:
    """Base class of all configs: values are checked on construction, and a ConfigError lists all problems."""

    def __post_init__(self) -> None:
        found: list[ConfigProblem] = []
        for key, spec in key_specs(type(self)).items():  # values become exact: 1 becomes 1.0, a list a tuple
            object.__setattr__(self, key, spec.read(getattr(self, key), (key,), found))
        if not found:
            found = [ConfigProblem(_key_path(key), "", f": {sentence}") for key, sentence in self.conflicts()]
        if found:
            raise TomlDocument({}, type(self).__name__).error(found)

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Problems between fields that are valid by themselves: a key, such as "encoder.width", and the problem."""
        return iter(())


# Fields. Each takes `old`, the key that the field had before.

def integer(default: Any = MISSING, *, minimum: int | None = None, maximum: int | None = None,
            old: str | None = None) -> Any:
    """A field that is an integer within limits."""
    return _config_field(default, _number_rule(int, TYPE_NAMES[int], minimum, None, maximum, None), old)


def number(default: Any = MISSING, *, minimum: float | None = None, above: float | None = None,
           maximum: float | None = None, below: float | None = None, old: str | None = None) -> Any:
    """A field that is a finite number within limits."""
    return _config_field(default, _number_rule(float, TYPE_NAMES[float], minimum, above, maximum, below), old)


def probability(default: Any = MISSING, *, old: str | None = None) -> Any:
    """A field that is a probability, at least 0 and below 1."""
    return _config_field(default, _number_rule(float, "a probability", 0, None, None, 1), old)


def choice(names: Iterable[str], default: Any = MISSING, *, old: str | None = None,
           old_values: Mapping[Any, Any] | None = None) -> Any:
    """A field that is one of these names, such as the keys of a table."""
    valid = tuple(names)
    return _config_field(default, FieldRule(str, one_of(valid), valid.__contains__, valid), old, old_values)


def text(default: Any = MISSING, *, minimum: int = 0, old: str | None = None) -> Any:
    """A field that is text with a minimum number of characters."""
    expected = f"text of at least {checks.plural(minimum, 'character')}" if minimum else TYPE_NAMES[str]
    return _config_field(default, FieldRule(str, expected, lambda value: len(value) >= minimum), old)


def renamed(default: Any = MISSING, *, old: str, old_values: Mapping[Any, Any] | None = None) -> Any:
    """A field without a rule (true or false, or a table) that had another name before."""
    return _config_field(default, None, old, old_values)


# Reading and writing.

@typing.overload
def read_config(kind: type[ConfigT], document: TomlDocument, at: tuple[str, ...] = ()) -> ConfigT: ...
@typing.overload
def read_config(kind: types.UnionType, document: TomlDocument, at: tuple[str, ...] = ()) -> Any: ...
def read_config(kind: Any, document: TomlDocument, at: tuple[str, ...] = ()) -> Any:
    """The config in the table at this path; a ConfigError lists all problems.

    Args:
        kind: its class; or several, A | B, one of which the table's `kind` selects; with | None it may be absent.
    """
    spec = type_spec(kind, "read_config")
    document = _with_current_keys(document, at, spec)
    value: Any = document.tables
    for depth, key in enumerate(at):
        if not isinstance(value, Mapping):
            raise document.error([value_problem(at[:depth], "a table", value)])
        if key not in value:
            if spec.optional:
                return None
            raise document.error([spec.missing(at[:depth + 1])])
        value = value[key]
    found: list[ConfigProblem] = []
    config = spec.read(value, at, found)
    if found:
        raise document.error(found)
    return config


def read_configs(kinds: Mapping[str, Any], document: TomlDocument) -> dict[str, Any]:
    """The configs of a whole document, which has no other keys at its top: {"model": A | B, "decoding": C | None}."""
    return read_specs({key: type_spec(kind, key) for key, kind in kinds.items()}, document)


def read_specs(specs: Mapping[str, "KeySpec"], document: TomlDocument) -> dict[str, Any]:
    """The values of a whole document, which has no other keys at its top."""
    document = _with_current_keys(document, (), *specs.items())
    found: list[ConfigProblem] = []
    values = read_keys(specs, document.tables, (), found)
    if found:
        raise document.error(found)
    return values


def with_current_keys(document: TomlDocument, kinds: Any) -> TomlDocument:
    """A document, complete or not, with old keys under their new names; a notice says which.

    Args:
        kinds: the classes of the tables at the top of the document, as in `read_configs`; or the class of the whole.
    """
    if not isinstance(kinds, Mapping):
        return _with_current_keys(document, (), type_spec(kinds, document.name))
    return _with_current_keys(document, (), *((key, type_spec(kind, key)) for key, kind in kinds.items()))


def current_overrides(changes: Mapping[str, Any], kinds: Any, name: str = "config") -> dict[str, Any]:
    """The changes {"training.smoothing": 0.1} under the new names of their keys; a notice says which are old."""
    current: dict[str, Any] = {}
    for key, value in changes.items():
        before = toml.override(toml.document_of({}, name), {key: value})
        after = with_current_keys(before, kinds)
        current[key if after is before else dotted_key(*after.changes)] = (
            value if after is before else _value_at(after.tables, *after.changes))
    return current


def to_tables(value: Any) -> Any:
    """Configs as tables and lists of plain values: with defaults, without None, `kind` first."""
    if isinstance(value, Config):
        cls, kind = type(value), config_kind(type(value))
        own = {field.name: getattr(value, field.name) for field in dataclasses.fields(cls)}
        return to_tables(own if kind is None else {"kind": kind, **own})
    if isinstance(value, Mapping):
        return {key: to_tables(part) for key, part in value.items() if part is not None}
    return [to_tables(part) for part in value] if isinstance(value, list | tuple) else value


def to_toml(tables: Mapping[str, Any], comments: Mapping[str, str] | None = None) -> str:
    """TOML of {"model": a config, "seed": 1, ...}, from which `read_config` gives equal configs.

    Args:
        comments: by dotted key, a comment that is written after the value.
    """
    return toml.dumps(to_tables(tables), comments)


# How values are read: a reader for every type. It returns the value to keep, or adds a problem and returns None.

class ValueReader(ABC):
    """Reads values of one type."""

    expected: str

    @abstractmethod
    def read(self, value: Any, path: KeyPath, found: list[ConfigProblem]) -> Any:
        """The value to keep; or None, and a problem is added to `found`."""


class ScalarReader(ValueReader):
    """Reads a number, true or false, or text."""

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
    """Reads an array of values of one type."""

    def __init__(self, element: ValueReader) -> None:
        self.element, self.expected = element, f"an array, each element {element.expected}"

    def read(self, value: Any, path: KeyPath, found: list[ConfigProblem]) -> Any:
        if isinstance(value, list | tuple):
            return tuple(self.element.read(part, (*path, index), found) for index, part in enumerate(value))
        found.append(value_problem(path, self.expected, value))
        return None


class TableReader(ValueReader):
    """Reads a table as one dataclass, or as one of several that the key `kind` selects."""

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
        before = len(found)
        table = {key: part for key, part in value.items() if key != "kind" or not self.kinds}
        values = read_keys(key_specs(cls), table, path, found)
        if len(found) > before:
            return None
        try:
            return cls(**values)
        except ConfigError as error:  # conflicts between values that are valid by themselves
            found += [problem._replace(path=(*path, *problem.path)) for problem in error.found]
            return None

    def possible_classes(self, table: Mapping[str, Any]) -> tuple[type, ...]:
        """The dataclasses that a table, complete or not, may be."""
        kind = table.get("kind")
        return (self.kinds[kind],) if isinstance(kind, str) and kind in self.kinds else self.classes

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
    """What a key may contain, and whether it must be present."""

    reader: ValueReader
    optional: bool
    """It may be None."""
    required: bool = True
    """It has no default."""
    old: OldName | None = None

    def read(self, value: Any, path: KeyPath, found: list[ConfigProblem]) -> Any:
        """The value to keep; or None, and unless None is valid, a problem is added to `found`."""
        return None if value is None and self.optional else self.reader.read(value, path, found)

    def missing(self, path: KeyPath) -> ConfigProblem:
        """The problem that the key is missing."""
        expected = self.reader.expected
        if isinstance(self.reader, TableReader):
            several = len(self.reader.classes) > 1
            return ConfigProblem(path, "missing table ", f": expected {expected}" if several else "")
        return ConfigProblem(path, "missing key ", f": expected {expected}")


_KEY_SPECS: dict[type, Mapping[str, KeySpec]] = {}
"""What `key_specs` found for each dataclass."""


def read_keys(known: Mapping[str, KeySpec], table: Mapping[str, Any], path: KeyPath,
              found: list[ConfigProblem]) -> dict[str, Any]:
    """The values of the keys of a table, without defaults. Missing and unknown keys are problems."""
    for key in table:
        if key not in known:
            sort = "table" if isinstance(table[key], Mapping) else "key"
            valid = f"; expected {one_of(known)}" if known else "; there are no keys here"
            found.append(ConfigProblem((*path, str(key)), f"unknown {sort} ", _suggestion(str(key), known) or valid))
    values = {}
    for key, spec in known.items():
        if key in table:
            values[key] = spec.read(table[key], (*path, key), found)
        elif spec.optional:
            values[key] = None
        elif spec.required:
            found.append(spec.missing((*path, key)))
    return values


def key_specs(cls: type) -> Mapping[str, KeySpec]:
    """What the keys of a dataclass may contain; a TypeError if a field has none of the types above."""
    if cls in _KEY_SPECS:
        return _KEY_SPECS[cls]
    hints, known = typing.get_type_hints(cls), dict[str, KeySpec]()
    for field in dataclasses.fields(cls):
        where = f"{cls.__name__}.{field.name}"
        has_default = field.default is not MISSING or field.default_factory is not MISSING
        spec = type_spec(hints[field.name], where, field.metadata.get(RULE_KEY))
        if spec.optional and has_default and field.default is not None:
            raise TypeError(f"{where} may be None, so its default must be None: TOML has no null")
        known[field.name] = dataclasses.replace(spec, required=not has_default, old=field.metadata.get(OLD_KEY))
    _KEY_SPECS[cls] = known
    return known


def type_spec(annotation: Any, where: str, rule: FieldRule | None = None) -> KeySpec:
    """What a key of this type may contain; `where` names it in the error if the type is none of those above."""
    options = _union_members(annotation)
    some = tuple(option for option in options if option is not types.NoneType)
    return KeySpec(_value_reader(some, rule, where), optional=len(some) < len(options))


def config_kind(cls: type) -> str | None:
    """The kind of a dataclass that has one, as a ClassVar and not as a field."""
    return None if any(field.name == "kind" for field in dataclasses.fields(cls)) else getattr(cls, "kind", None)


def value_problem(path: KeyPath, expected: str, value: object, names: Iterable[str] = ()) -> ConfigProblem:
    """The problem that another value was expected; the nearest of the names is suggested."""
    near = _suggestion(value, names) if isinstance(value, str) else ""
    return ConfigProblem(path, "", f": expected {expected}, but got {format_value(value)}{near}")


def one_of(names: Iterable[str]) -> str:
    """The names to choose from, as a phrase."""
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
    required = "" if rule is None else f" that is {rule.expected}"
    raise TypeError(f"{where}: a config field cannot have the type {' | '.join(map(str, options))}{required}")


def _union_members(annotation: Any) -> tuple[Any, ...]:
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if union else (annotation,)


def _convert_exactly(scalar: type, value: Any) -> Any:
    """The value as exactly this type; None if it is not one."""
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


def _number_rule(scalar: type, noun: str, *limits: float | None) -> FieldRule:
    """The rule of a number; the limits are in the order of _LIMITS."""
    given = [(word, limit) for word, limit in zip(_LIMITS, limits, strict=True) if limit is not None]
    words = " and ".join(f"{word} {limit}" for word, limit in given)
    return FieldRule(scalar, f"{noun}, {words}" if words else noun,
                     lambda value: all(_LIMITS[word](value, limit) for word, limit in given))


def _config_field(default: Any, rule: FieldRule | None, old: str | None,
                  old_values: Mapping[Any, Any] | None = None) -> Any:
    metadata: dict[str, Any] = {} if rule is None else {RULE_KEY: rule}
    if old is not None:
        metadata[OLD_KEY] = OldName(old, old_values)
    return dataclasses.field(default=default, metadata=metadata)


def _key_path(key: str) -> tuple[str | int, ...]:
    return tuple(int(part) if part.isdecimal() else part for part in key.split("."))


# Old keys. A document is brought up to date as a whole, so that everything after that knows only the new names.

class _KeyUpdate:
    """Replaces the old keys of tables by the new ones, and remembers which they were."""

    def __init__(self, document: TomlDocument) -> None:
        self.document = document
        self.new_paths: dict[KeyPath, KeyPath] = {}
        self.found: list[ConfigProblem] = []

    def update(self, reader: ValueReader, value: Any, path: KeyPath, new_path: KeyPath) -> Any:
        """The value at this path, which is `new_path` in the updated document."""
        if isinstance(reader, ArrayReader) and isinstance(value, list | tuple):
            return [self.update(reader.element, part, (*path, index), (*new_path, index))
                    for index, part in enumerate(value)]
        if not isinstance(reader, TableReader) or not isinstance(value, Mapping):
            return value
        known: dict[str, KeySpec] = {}
        for cls in reader.possible_classes(value):
            known = {**key_specs(cls), **known}
        renamed_keys: dict[str, str] = {spec.old.key: key for key, spec in known.items() if spec.old is not None}
        table: dict[str, Any] = {}
        key: str
        for key, part in value.items():
            name = key if key in known else renamed_keys.get(key, key)
            if name != key:
                self.new_paths[(*path, key)] = (*new_path, name)
                part = known[name].old.current(part)  # type: ignore[union-attr]
                if name in value:
                    self.found.append(self._both(path, key, name))
                    continue
            inner = known[name].reader if name in known else None
            table[name] = part if inner is None else self.update(inner, part, (*path, key), (*new_path, name))
        return table

    def _both(self, path: KeyPath, key: str, name: str) -> ConfigProblem:
        line = self.document.line((*path, name))
        return ConfigProblem((*path, key), "", f": this is the old name of {quote(name)}, which is set too"
                             f"{'' if line is None else f', in line {line}'}; remove one of them")

    def current(self, path: KeyPath) -> KeyPath:
        """The path in the updated document."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.new_paths:
                return (*self.new_paths[path[:length]], *path[length:])
        return path

    def notice(self) -> str:
        """A line that names the old keys."""
        names = [f"{dotted_key(path)} is now {dotted_key(new)}" for path, new in self.new_paths.items()]
        more = f" and {len(names) - NOTICE_KEYS} more" if len(names) > NOTICE_KEYS else ""
        count = checks.plural(len(names), "key")
        return f"{self.document.name}: {count} renamed: {', '.join(names[:NOTICE_KEYS])}{more}."


def _with_current_keys(document: TomlDocument, at: tuple[str, ...],
                       *specs: "KeySpec | tuple[str, KeySpec]") -> TomlDocument:
    """The document with new keys in the tables at the path `at`: in that table itself, or in those named below it."""
    update = _KeyUpdate(document)
    tables = document.tables
    for one in specs:
        path, spec = ((*at, one[0]), one[1]) if isinstance(one, tuple) else (at, one)
        value = _value_at(document.tables, path)
        if value is not None:
            tables = _replaced(tables, path, update.update(spec.reader, value, path, path))
    if update.found:
        raise document.error(update.found)
    if not update.new_paths:
        return document
    warnings.warn(update.notice(), FutureWarning, stacklevel=3)
    return TomlDocument(tables, document.name, {update.current(path): line for path, line in document.lines.items()},
                        frozenset(map(update.current, document.changes)),
                        {update.current(path): source for path, source in document.sources.items()})


def _value_at(tables: Any, path: KeyPath) -> Any:
    """What the tables have at this path; None if there is nothing."""
    for key in path:
        if not isinstance(tables, Mapping) or key not in tables:
            return None
        tables = tables[key]
    return tables


def _replaced(tables: Mapping[str, Any], path: KeyPath, value: Any) -> Any:
    """The tables with another value at this path."""
    return value if not path else {**tables,
                                   path[0]: _replaced(tables[path[0]], path[1:], value)}  # type: ignore[index]
