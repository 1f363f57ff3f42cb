"""The catalog of recipes: configs of models by name, such as "transformer", or with a size "transformer-tiny".

A recipe is a TOML file in the folder `recipes`. Its tables are those of a model's config; [sizes.NAME] has what differs
in that size, and without a size the recipe is as written, which is "base". Whoever reads a table checks it: this module
knows only names and files, and imports no torch.
"""

from functools import cache
from importlib import resources

from regard import checks
from regard.toml import TomlDocument, flatten_tables, override, parse_document

BASE_SIZE = "base"


@cache
def recipe_names() -> tuple[str, ...]:
    """The names of all recipes, without sizes."""
    files = resources.files(__package__).joinpath("recipes").iterdir()
    return tuple(sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml")))


def recipe_sizes(name: str) -> tuple[str, ...]:
    """The sizes of a recipe in the order of its file, and "base"."""
    return (*_read_recipe(name).tables.get("sizes", {}), BASE_SIZE)


def find_recipe(name: str) -> TomlDocument:
    """The tables of a recipe, changed by those of its size; an unknown name is a ValueError."""
    recipe, size = _split_name(name)
    document = _read_recipe(recipe)
    tables = {key: table for key, table in document.tables.items() if key != "sizes"}
    different = document.tables.get("sizes", {}).get(size, {})
    return override(TomlDocument(tables, document.name, document.lines), dict(flatten_tables(different)))


def _split_name(name: str) -> tuple[str, str]:
    """The recipe and the size of a name. Some recipes have a dash in their own name."""
    recipe, _, size = name.rpartition("-")
    if name in recipe_names():
        return name, BASE_SIZE
    if recipe in recipe_names() and size in recipe_sizes(recipe):
        return recipe, size
    every = [*recipe_names(), *(f"{known}-{each}" for known in recipe_names() for each in recipe_sizes(known))]
    if recipe in recipe_names():
        expected = f"{recipe} in one of its sizes, {', '.join(recipe_sizes(recipe))}"
    else:
        expected = f"one of {', '.join(recipe_names())}, or a TOML file"
    raise checks.wrong("recipe", expected, f'"{name}"', checks.nearest(name, every))


@cache
def _read_recipe(name: str) -> TomlDocument:
    text = resources.files(__package__).joinpath("recipes", f"{name}.toml").read_text(encoding="utf-8")
    return parse_document(text, f"{name}.toml")
