"""`regard config`: the keys of the config, with type, default and meaning.

It reads the stored reference (`regard.training.config_reference`), so that torch is not imported and the command
answers at once.
"""

import re
import shutil
import textwrap
from collections.abc import Sequence
from statistics import median_low
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.options import DATA_PANEL, JsonReportOption, with_examples
from regard.cli.output import fail, write_json, write_line
from regard.cli.train import TASK_NAMES

if TYPE_CHECKING:
    from regard.training.config_reference import ConfigKey

MIN_WIDTH, MAX_WIDTH = 60, 110
"""Columns of the output, at least and at most."""
KEY_WIDTH = 26
"""Columns of the names of keys; longer ones have a line of their own."""
TABLE_TYPE = "table"
USUAL_VALUES = {
    "learning_rate": "0.001", "max_steps": "20000", "warmup_steps": "1000", "max_tokens": "4096", "max_time": "3600",
    "epochs": "10", "every": "500", "log_every": "50", "ema_decay": "0.999", "vocab_size": "8000", "rdrop": "5",
    "source_vocab_size": "8000", "target_vocab_size": "8000", "max_positions": "1024", "max_length": "1024",
    "original_max_position_embeddings": "4096", "factor": "4", "ffn_width": "1024", "length": "256", "batch_size": "32",
}
"""Examples for keys whose default depends on the data and that no recipe sets, by the last part of the key."""


@with_examples("""
    regard config                              # all keys
    regard config training.optimizer           # one section
    regard config training.optimizer.beta2     # one key
    regard config model --task language        # keys of a language model
    regard config --json > keys.json
""")
def config(
    key: Annotated[str | None, typer.Argument(metavar="KEY", show_default=False, help="A key, such as "
                   "training.schedule.learning_rate, or a section, such as training. Without one, all keys.")] = None,
    task: Annotated[str | None, typer.Option("--task", metavar="NAME", rich_help_panel=DATA_PANEL, show_default=False,
                    help=f"Only keys that have an effect on this task: {', '.join(TASK_NAMES)}.")] = None,
    as_json: JsonReportOption = False,
) -> None:
    """List the config keys of `regard train`, with type, default and meaning.

    Set a key with --set KEY=VALUE, or in a TOML file that you pass as --recipe. The config of a trained model is in
    config.toml in its folder.
    """
    from regard.training.config_reference import read_reference

    if task is not None and task not in TASK_NAMES:
        fail(f"--task must be one of {', '.join(TASK_NAMES)}, but is {task} instead.")
    known = read_reference()
    keys = [one for one in known if task is None or task in one.tasks]
    if key is not None:
        _check_key(key, task, known)
        keys = [one for one in keys if one.key == key or one.key.startswith(f"{key}.")]
        if not keys:
            fail(f"{key} has no effect on --task {task}. Leave out --task to see it.")
    if as_json:
        write_json([vars(one) for one in keys])
    elif key is not None and keys[0].type != TABLE_TYPE:
        for one in keys:
            _write_key(one)
    else:
        _write_sections(keys)


def _check_key(key: str, task: str | None, known: "Sequence[ConfigKey]") -> None:
    """Refuse a key that does not exist, and name the nearest."""
    from regard import checks

    names = dict.fromkeys(one.key for one in known)
    if key in names:
        return
    same_end = [name for name in names if name.split(".")[-1] == key]
    hint = (f"Did you mean {' or '.join(same_end[:4])}?" if same_end else
            checks.nearest(key, names).replace('"', "") or "`regard config` lists all keys.")
    fail(f"There is no config key {key}. {hint}")


def _write_sections(keys: "Sequence[ConfigKey]") -> None:
    """Write keys under the names of their tables."""
    docs = {one.key: one.doc for one in keys if one.type == TABLE_TYPE}
    sections: dict[str, list[ConfigKey]] = {name: [] for name in ("", *docs)}
    for one in keys:
        if one.type != TABLE_TYPE:
            sections[one.key.rpartition(".")[0]].append(one)
    written = False
    for name, members in sections.items():
        if not members:
            continue
        if written:
            write_line("")
        written = True
        if name:
            _write_wrapped(f"[{name}]", docs[name])
        order = [*dict.fromkeys(one.key for one in members)]  # a key of several kinds beside itself
        for one in sorted(members, key=lambda member: order.index(member.key)):
            _write_wrapped(f"  {one.key.rpartition('.')[2]}",
                           f"{one.doc} {_describe_kinds(one)}({_describe_type(one)}) [default: {one.default}]")


def _write_key(one: "ConfigKey") -> None:
    """Write all there is to say about one key."""
    from regard.models import catalog
    from regard.training.defaults import lookup

    write_line(one.key)
    rows = [("", one.doc), ("Type", _describe_type(one)), ("Default", one.default)]
    rows += [(name, ", ".join(kinds)) for name, kinds in one.kinds.items()]
    rows.append(("Tasks", ", ".join(one.tasks) or "none of `regard train`"))
    recipes = {name: catalog.find_recipe(name).tables for recipe in catalog.recipe_names()
               for name in (recipe, *(f"{recipe}-{size}" for size in catalog.recipe_sizes(recipe)[:-1]))}
    values = {name: lookup(tables, one.key) for name, tables in recipes.items() if one.is_of(tables)}
    values = {name: value for name, value in values.items() if value is not None}
    shown = ", ".join(f"{name} {value}" for name, value in values.items())
    rows += [("Recipes", shown)] if shown else []
    for name, text in rows:
        _write_wrapped(f"  {name}" if name else "", text, len("  Default") if name else 0)
    example = _example_value(one, [*values.values()])
    write_line(f"  Set it   --set {one.key}={example}")  # not wrapped, so that it can be copied


def _describe_type(one: "ConfigKey") -> str:
    return one.type.replace('"', "").replace("an array, each element one of", "an array of")


def _describe_kinds(one: "ConfigKey") -> str:
    """Which kinds have this key, as the beginning of a sentence's end."""
    if not one.kinds:
        return ""
    *_, (name, kinds) = one.kinds.items()
    return f"Only if {name} is {' or '.join(kinds)}. "


def _example_value(one: "ConfigKey", recipe_values: Sequence[Any] = ()) -> str:
    """A value that a user might set: the default, that of a recipe, or a usual one."""
    if one.type.startswith("one of"):
        return one.type.removeprefix("one of ").split(",")[0].strip('"')
    by_type = {"true or false": "true", "text": "NAME", "an array": "'[\"empty\"]'"}
    for start, value in by_type.items():
        if one.type.startswith(start):
            return value
    default = re.match(r"[0-9.]+(e-[0-9]+)?(?= for |$)", one.default)  # "0.98 for seq2seq, 0.99 for language"
    if default is not None:
        return default[0]
    numbers = sorted(value for value in recipe_values if isinstance(value, int | float))
    usual = "0.1" if one.type.startswith("a probability") else "1"
    return str(median_low(numbers)) if numbers else USUAL_VALUES.get(one.key.rpartition(".")[2], usual)


def _write_wrapped(head: str, text: str, width: int = KEY_WIDTH) -> None:
    """Write a head and a text beside it; the text goes below a head that is too long."""
    columns = max(MIN_WIDTH, min(MAX_WIDTH, shutil.get_terminal_size().columns))
    indent = width + 2
    lines = textwrap.wrap(text, columns - indent, break_on_hyphens=False) if text else []
    if len(head) > width or not lines:
        write_line(head)
    else:
        write_line(f"{head:<{indent}}{lines.pop(0)}")
    for line in lines:
        write_line(f"{'':{indent}}{line}")
