"""What may stand under a key, told by the type annotations of dataclasses, and how it is read.

    int, float, bool, str          a value; a `Rule` in the field's metadata may ask for more than the type
    tuple[X, ...]                  an array; the rule holds for every element
    a dataclass                    a table
    A | B                          a table that says which dataclass it is: kind = "...", their `kind: ClassVar[str]`
    X | None                       the key may be absent, which is the only way in which TOML says None

A value that is read is what the dataclass keeps; otherwise a problem joins the list, and reading goes on, so that all
problems are found at once. This file words problems; it does not know which document they are in, nor any config.
"""

import dataclasses
import math
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass
from typing import Any

from regard import checks
from regard.toml.document import ConfigError, Problem
from regard.toml.lines import KeyPath
from regard.toml.writing import encodable, fits, quoted, shown

NOUNS = {int: "a whole number", float: "a finite number", bool: "true or false", str: "text"}
RULE = "regard.toml.schema.rule"
"""Where a field keeps its rule in its metadata."""


@dataclass(frozen=True)
class Rule:
    """What a field asks for beyond its type, in words and as a test; `names` where only these are good."""

    scalar: type
    expected: str
    holds: Callable[[Any], bool]
    names: tuple[str, ...] = ()


class Reader(ABC):
    """How a value is read."""

    expected: str

    @abstractmethod
    def read(self, value: Any, path: KeyPath, found: list[Problem]) -> Any:
        """The value to keep; or None, and a problem more."""


class Scalar(Reader):
    """A value that has no parts."""

    def __init__(self, scalar: type, rule: Rule | None) -> None:
        self.scalar, self.names = scalar, () if rule is None else rule.names
        self.expected = NOUNS[scalar] if rule is None else rule.expected
        self.holds = (lambda value: True) if rule is None else rule.holds

    def read(self, value: Any, path: KeyPath, found: list[Problem]) -> Any:
        kept = _exact(self.scalar, value)
        if kept is not None and self.holds(kept):
            return kept
        found.append(instead(path, self.expected, value, self.names))
        return None


class Array(Reader):
    """Any number of values of one type."""

    def __init__(self, element: Reader) -> None:
        self.element, self.expected = element, f"an array, each element {element.expected}"

    def read(self, value: Any, path: KeyPath, found: list[Problem]) -> Any:
        if isinstance(value, list | tuple):
            return tuple(self.element.read(part, (*path, index), found) for index, part in enumerate(value))
        found.append(instead(path, self.expected, value))
        return None


class Table(Reader):
    """A table of one dataclass, or of several that `kind` tells apart."""

    def __init__(self, classes: tuple[type, ...]) -> None:
        self.classes = classes
        self.kinds = {name: cls for cls in classes if (name := kind(cls)) is not None}
        self.expected = f"a table whose kind is {one_of(self.kinds)}" if len(classes) > 1 else "a table"

    def read(self, value: Any, path: KeyPath, found: list[Problem]) -> Any:
        if type(value) in self.classes:
            return value
        if not isinstance(value, Mapping):
            found.append(instead(path, self.expected, value))
            return None
        cls = self._class(value, (*path, "kind"), found)
        if cls is None:
            return None
        already = len(found)
        table = {key: part for key, part in value.items() if key != "kind" or not self.kinds}
        values = read_keys(slots(cls), table, path, found)
        if len(found) > already:
            return None
        try:
            return cls(**values)
        except ConfigError as error:  # the dataclass found fault with values that are each good
            found += [problem._replace(path=(*path, *problem.path)) for problem in error.found]
            return None

    def _class(self, table: Mapping[str, Any], path: KeyPath, found: list[Problem]) -> type | None:
        if not self.kinds or ("kind" not in table and len(self.classes) == 1):
            return self.classes[0]
        name, expected = table.get("kind"), one_of(self.kinds)
        if isinstance(name, str) and name in self.kinds:
            return self.kinds[name]
        absent = Problem(path, "missing key ", f": expected {expected}")
        found.append(instead(path, expected, name, self.kinds) if "kind" in table else absent)
        return None


@dataclass(frozen=True)
class Slot:
    """What may stand under a key, and whether it must."""

    reader: Reader
    optional: bool
    """It may be None."""
    required: bool = True
    """It has no default."""

    def read(self, value: Any, path: KeyPath, found: list[Problem]) -> Any:
        """The value to keep; or None, and where that is none of its values, a problem more."""
        return None if value is None and self.optional else self.reader.read(value, path, found)

    def missing(self, path: KeyPath) -> Problem:
        """The problem that nothing stands there."""
        expected = self.reader.expected
        if isinstance(self.reader, Table):
            return Problem(path, "missing table ", f": expected {expected}" if len(self.reader.classes) > 1 else "")
        return Problem(path, "missing key ", f": expected {expected}")


def read_keys(known: Mapping[str, Slot], table: Mapping[str, Any], path: KeyPath,
              found: list[Problem]) -> dict[str, Any]:
    """The values of the keys of a table, without defaults. A key that is missing, or not known, is a problem."""
    for key in table:
        if key not in known:
            sort = "table" if isinstance(table[key], Mapping) else "key"
            instead_of_it = f"; expected {one_of(known)}" if known else "; there are no keys here"
            found.append(Problem((*path, str(key)), f"unknown {sort} ", _near(str(key), known) or instead_of_it))
    values = {}
    for key, slot in known.items():
        if key in table:
            values[key] = slot.read(table[key], (*path, key), found)
        elif slot.optional:
            values[key] = None
        elif slot.required:
            found.append(slot.missing((*path, key)))
    return values


def slots(cls: type) -> dict[str, Slot]:
    """What may stand under each key of a dataclass; a TypeError where its fields are not of the types above."""
    hints, known = typing.get_type_hints(cls), {}
    for field in dataclasses.fields(cls):
        where = f"{cls.__name__}.{field.name}"
        has_default = field.default is not MISSING or field.default_factory is not MISSING
        one = slot(hints[field.name], where, field.metadata.get(RULE))
        if one.optional and has_default and field.default is not None:
            raise TypeError(f"{where} may be None, so its default must be None: TOML can only leave a key out")
        known[field.name] = dataclasses.replace(one, required=not has_default)
    return known


def slot(annotation: Any, where: str, rule: Rule | None = None) -> Slot:
    """What may stand under a key of this type; `where` names it if the type is none of those above."""
    options = _options(annotation)
    some = tuple(option for option in options if option is not types.NoneType)
    return Slot(_reader(some, rule, where), optional=len(some) < len(options))


def kind(cls: type) -> str | None:
    """The kind of a dataclass that has one, as a ClassVar and not as a field."""
    return None if any(field.name == "kind" for field in dataclasses.fields(cls)) else getattr(cls, "kind", None)


def instead(path: KeyPath, expected: str, value: object, names: Iterable[str] = ()) -> Problem:
    """The problem that another value was expected; the nearest of the names is offered."""
    near = _near(value, names) if isinstance(value, str) else ""
    return Problem(path, "", f": expected {expected}, but got {shown(value)}{near}")


def one_of(names: Iterable[str]) -> str:
    """The names, to choose from."""
    valid = [*map(quoted, names)]
    return f"{'one of ' if len(valid) > 1 else ''}{', '.join(valid)}"


def _reader(options: tuple[Any, ...], rule: Rule | None, where: str) -> Reader:
    first = options[0]
    if len(options) == 1 and typing.get_origin(first) is tuple and typing.get_args(first)[1:] == (...,):
        return Array(_reader(_options(typing.get_args(first)[0]), rule, where))
    if len(options) == 1 and first in NOUNS and (rule is None or rule.scalar is first):
        return Scalar(first, rule)
    if rule is None and all(isinstance(option, type) and dataclasses.is_dataclass(option) for option in options):
        kinds = {kind(option) for option in options} - {None}
        if len(options) == 1 or len(kinds) == len(options):
            return Table(options)
    asked = "" if rule is None else f" that is {rule.expected}"
    raise TypeError(f"{where}: no key can be of the type {' | '.join(map(str, options))}{asked}")


def _options(annotation: Any) -> tuple[Any, ...]:
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if union else (annotation,)


def _exact(scalar: type, value: Any) -> Any:
    """The value as exactly this type; None where it is not one."""
    if scalar is str:
        return str.__str__(value) if isinstance(value, str) and encodable(value) else None
    if scalar is bool or isinstance(value, bool):
        return value if scalar is bool and isinstance(value, bool) else None
    if isinstance(value, int):
        return scalar(value) if fits(value) else None
    return float(value) if scalar is float and isinstance(value, float) and math.isfinite(value) else None


def _near(name: str, names: Iterable[str]) -> str:
    """The nearest of the names, as the end of a sentence."""
    hint = checks.nearest(name, names)
    return f"; {hint[0].lower()}{hint[1:]}" if hint else ""
