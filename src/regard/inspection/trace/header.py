"""The header of a trace as JSON, read strictly and written.

A key that is missing or unknown, or a value of another type, is a problem with the path of the key; all are told at
once. Keys that begin with `x-` are somebody's own. It knows the parts of a trace and no tensors: what an attention's
tensors must be follows from its `Entry`.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regard.attention.normalize import NAMES as NORMALIZERS
from regard.attention.score import NAMES as SCORES
from regard.data.tokenizer.words import Word
from regard.inspection.trace.parts import Attention, Pointer, Search, Side, Written
from regard.toml import schema
from regard.toml.document import Document, Problem
from regard.toml.lines import KeyPath
from regard.toml.schema import Reader, Slot

OWN = "x-"
"""What keys begin with that regard neither reads nor complains of."""
WITH_PARAMETERS = ("additive", "bilinear")
CAUSAL, TENSOR = "causal", "tensor"
Mask = str | tuple[int | None, int | None] | None
"""Of an attention: "causal", "tensor", keys to the left and to the right, or None."""


@dataclass(frozen=True)
class Entry:
    """What the header says of an attention."""

    name: str
    queries: str
    keys: str
    heads: int
    layer: int | None = None
    kind: str | None = None
    score: str | None = None
    normalize: str | None = None
    mask: Mask = None


@dataclass(frozen=True)
class Header:
    """All that the header says."""

    sides: Mapping[str, Side]
    attentions: tuple[Entry, ...]
    title: str = ""
    model: str = ""
    written: Written | None = None
    alignment: Pointer | None = None
    search: Search | None = None


def dumps(sides: Mapping[str, Side], attentions: Sequence[Attention], facts: Sequence[Mapping[str, Any]],
          **rest: Any) -> str:
    """The JSON of a header. `facts` has score, normalize and mask of each attention, where it has them."""
    table: dict[str, Any] = {"title": rest["title"], "model": rest["model"]}
    table["sides"] = {name: _side_table(side) for name, side in sides.items()}
    table["attentions"] = [
        {"name": one.name, "layer": one.layer, "kind": one.kind, "queries": one.queries, "keys": one.keys,
         "heads": one.heads, **fact} for one, fact in zip(attentions, facts, strict=True)]
    for key in ("written", "alignment", "search"):
        table[key] = None if rest[key] is None else dataclasses.asdict(rest[key])
    return json.dumps(_without_none(table), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def loads(text: str, name: str) -> Header:
    """The header in a JSON text of the file `name`; a ValueError tells all that is wrong."""
    try:
        table = json.loads(text, parse_constant=_no_number, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ValueError(f'{name}: the metadata "trace" must be a JSON object, but {reason}') from None
    if not isinstance(table, dict):
        raise ValueError(f'{name}: the metadata "trace" must be a JSON object, but is {table!r:.60}')
    found: list[Problem] = []
    values = schema.read_keys(_TOP, _without_own(table), (), found)
    if found:
        raise ValueError(str(Document({}, name).error(found)))
    return Header(**values)


class _Sides(Reader):
    """Sides by any names."""

    expected = "an object with a side for each name"

    def read(self, value: Any, path: KeyPath, found: list[Problem]) -> dict[str, Side]:
        if not isinstance(value, Mapping):
            found.append(schema.instead(path, self.expected, value))
            return {}
        return {name: self._side(one, (*path, name), found) for name, one in value.items()}

    def _side(self, value: Any, path: KeyPath, found: list[Problem]) -> Side:
        if not isinstance(value, Mapping):
            found.append(schema.instead(path, "an object with tokens", value))
            return Side(())
        read = schema.read_keys(_SIDE, value, path, found)
        words = tuple(Word(one.start, one.end, one.first, one.last) for one in read.pop("words", None) or () if one)
        grid = read.pop("grid", None)
        if grid is not None and len(grid) != 2:
            found.append(schema.instead((*path, "grid"), "two whole numbers, rows and columns", list(grid)))
            grid = None
        return Side(read.pop("tokens", None) or (), words=words, grid=grid, lead=read.pop("lead", 0) or 0, **read)


class _Mask(Reader):
    """A mask by name, or a window."""

    expected = '"causal", "tensor" or {"left": a number or null, "right": a number or null}'

    def read(self, value: Any, path: KeyPath, found: list[Problem]) -> Mask:
        if value in (CAUSAL, TENSOR):
            return str(value)
        if isinstance(value, Mapping) and set(value) == {"left", "right"} and all(
                part is None or (type(part) is int and part >= 0) for part in value.values()):
            return value["left"], value["right"]
        found.append(schema.instead(path, self.expected, value))
        return None


class _Named(Reader):
    """One of some names."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names, self.expected = tuple(names), schema.one_of(names)

    def read(self, value: Any, path: KeyPath, found: list[Problem]) -> str | None:
        if isinstance(value, str) and value in self.names:
            return value
        found.append(schema.instead(path, self.expected, value, self.names))
        return None


class _Tables(Reader):
    """An array of objects that have these keys."""

    def __init__(self, keys: Mapping[str, Slot], made: Any) -> None:
        self.keys, self.made, self.expected = keys, made, "an array of objects"

    def read(self, value: Any, path: KeyPath, found: list[Problem]) -> tuple[Any, ...]:
        if not isinstance(value, list):
            found.append(schema.instead(path, self.expected, value))
            return ()
        return tuple(self._one(part, (*path, number), found) for number, part in enumerate(value))

    def _one(self, value: Any, path: KeyPath, found: list[Problem]) -> Any:
        if not isinstance(value, Mapping):
            found.append(schema.instead(path, "an object", value))
            return None
        already = len(found)
        read = schema.read_keys(self.keys, value, path, found)
        return None if len(found) > already else self.made(**read)


@dataclass(frozen=True)
class _Word:
    start: int
    end: int
    first: int
    last: int


def _optional(annotation: Any) -> Slot:
    return dataclasses.replace(schema.slot(annotation, "trace"), required=False)


_SIDE = {"tokens": schema.slot(tuple[str, ...], "tokens"), "text": _optional(str | None),
         "words": Slot(_Tables(schema.slots(_Word), _Word), optional=False, required=False),
         "grid": _optional(tuple[int, ...]), "lead": _optional(int)}
_ENTRY = {key: schema.slot(kind, key) for key, kind in (("name", str), ("queries", str), ("keys", str), ("heads", int),
                                                       ("layer", int | None), ("kind", str | None))}
_ENTRY |= {"score": Slot(_Named((*SCORES, *WITH_PARAMETERS)), optional=True),
           "normalize": Slot(_Named(tuple(NORMALIZERS)), optional=True), "mask": Slot(_Mask(), optional=True)}
_TOP = {"title": _optional(str), "model": _optional(str), "sides": Slot(_Sides(), optional=False),
        "attentions": Slot(_Tables(_ENTRY, Entry), optional=False),
        **{key: _optional(kind | None) for key, kind in (("written", Written), ("alignment", Pointer),
                                                         ("search", Search))}}


def _side_table(side: Side) -> dict[str, Any]:
    words = [{"start": word.start, "end": word.end, "first": word.first_token, "last": word.last_token}
             for word in side.words]
    return {"tokens": list(side.tokens), "text": side.text, "words": words or None,
            "grid": None if side.grid is None else list(side.grid), "lead": side.lead or None}


def _without_none(value: Any) -> Any:
    """What is None is left out, but for the sides of a window."""
    if isinstance(value, dict):
        window = set(value) == {"left", "right"}
        return {key: _without_none(part) for key, part in value.items() if part is not None or window}
    return [_without_none(part) for part in value] if isinstance(value, list | tuple) else value


def _without_own(value: Any) -> Any:
    """The same without keys that are somebody's own. Names of sides are no keys."""
    if isinstance(value, list):
        return [_without_own(part) for part in value]
    if not isinstance(value, dict):
        return value
    return {key: {name: _without_own(side) for name, side in part.items()}
            if key == "sides" and isinstance(part, dict) else _without_own(part)
            for key, part in value.items() if not key.startswith(OWN)}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        twice = next(key for at, (key, _) in enumerate(pairs) if key in {other for other, _ in pairs[:at]})
        raise ValueError(f"the key {twice!r:.60} is there twice")
    return table


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")
