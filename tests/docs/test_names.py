"""The page of names: every option and every config key that it gives for regard exists."""

import dataclasses
import re
import typing

import pytest
import typer.main
from paged import DOCS

import regard
from regard.cli import main
from regard.data.tokenizer.training import UnigramConfig
from regard.training.config import DataConfig, TrainingConfig

PAGE = (DOCS / "names.md").read_text(encoding="utf-8")
TABLES = {"training": TrainingConfig, "data": DataConfig, "tokenizer": UnigramConfig}
KEY = re.compile(r"`((?:training|data|tokenizer|model)(?:\.\w+)+)`")
OPTION = re.compile(r"`(--[\w-]+)")


def own_cells():
    """The cells of the tables that have regard's names: the first column, in the table of commands the second."""
    for section in PAGE.split("\n## ")[1:]:
        rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")]
        if section.startswith(("Data", "Training", "Model", "Search")):
            yield from (row[0] for row in rows[1:])


def options(command):
    """All names of the options of a command and its subcommands."""
    for parameter in command.params:
        yield from (*parameter.opts, *parameter.secondary_opts)
    for sub in getattr(command, "commands", {}).values():
        yield from options(sub)


def has_key(kind, path):
    """Whether a config class has a dotted key."""
    name, _, rest = path.partition(".")
    if name not in {field.name for field in dataclasses.fields(kind)} | {"kind"}:
        return False
    if not rest:
        return True
    hint = typing.get_type_hints(kind)[name]
    return any(dataclasses.is_dataclass(one) and has_key(one, rest) for one in (hint, *typing.get_args(hint)))


def test_the_tables_have_rows():
    assert len(list(own_cells())) > 50


def test_every_option_exists():
    known = set(options(typer.main.get_command(main.app)))
    named = {option for cell in own_cells() for option in OPTION.findall(cell)}
    assert len(named) > 25
    assert named <= known, named - known


@pytest.mark.parametrize("key", sorted({key for cell in own_cells() for key in KEY.findall(cell)}))
def test_every_key_exists(key):
    table, _, path = key.partition(".")
    if table == "model":
        regard.build("transformer-tiny", source_vocab_size=100, target_vocab_size=100, **{path: model_value(path)})
    else:
        assert has_key(TABLES[table], path)


def model_value(path):
    """A value that a Transformer takes for this key; an unknown key is an error of `regard.build`."""
    values = {"dropout": 0.2, "norm_position": "pre", "activation_checkpointing": True, "share_embeddings": True,
              "tie_word_embeddings": True, "heads": 2}
    return values.get(path.rpartition(".")[2], 64)
