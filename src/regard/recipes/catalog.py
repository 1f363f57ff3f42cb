"""The recipes by name: "transformer", or with a size, "transformer-tiny".

A recipe is a TOML file beside this one. Its tables are what they are in the config of a model; [sizes.NAME] has what is
different in that size, and without a size the recipe is as written, which is "base". Whoever owns a table checks it:
this file knows only names and files.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any

from regard import checks
from regard.toml.document import Document, changed, parse

AS_WRITTEN = "base"


@cache
def names() -> tuple[str, ...]:
    """All recipes, without sizes."""
    files = resources.files(__package__).iterdir()
    return tuple(sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml")))


def sizes(name: str) -> tuple[str, ...]:
    """The sizes of a recipe, as they stand in its file, and "base"."""
    return (*_read(name).tables.get("sizes", {}), AS_WRITTEN)


def find(name: str) -> Document:
    """The tables of a recipe, with those of its size in the place of others; an unknown name is a ValueError."""
    recipe, size = _parted(name)
    document = _read(recipe)
    tables = {key: table for key, table in document.tables.items() if key != "sizes"}
    different = document.tables.get("sizes", {}).get(size, {})
    return changed(Document(tables, document.name, document.lines), dict(_leaves(different)))


def _parted(name: str) -> tuple[str, str]:
    """Recipe and size of a name. Some recipes have a dash in their own name."""
    recipe, _, size = name.rpartition("-")
    if name in names():
        return name, AS_WRITTEN
    if recipe in names() and size in sizes(recipe):
        return recipe, size
    every = [*names(), *(f"{known}-{each}" for known in names() for each in sizes(known))]
    expected = f"a recipe, one of {', '.join(names())}"
    if recipe in names():
        expected = f'a recipe: "{recipe}" has the sizes {", ".join(sizes(recipe))}'
    raise checks.wrong("recipe", expected, f'"{name}"', checks.nearest(name, every))


@cache
def _read(name: str) -> Document:
    text = resources.files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return parse(text, f"{name}.toml")


def _leaves(tables: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted path and value of everything that is no table."""
    for key, value in tables.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
