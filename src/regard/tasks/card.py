"""The README of a model's folder: what the model is, how good, what it was made from, and how to use it.

It names files of data and their sha256. It shows no sentence of them, and no path of a machine. What a task can do is
told by the table below; it does not know models.
"""

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any, NamedTuple

from regard._version import __version__
from regard.models.build import ModelConfig
from regard.toml.writing import escaped

FOLDER = "path/to/this/folder"


class Use(NamedTuple):
    """How a task is used: in a shell, and in Python with text (or images) and with ids alone."""

    what: str
    command: str
    call: str
    with_ids: str


USES = {
    "Translator": Use("translates", f'regard translate {FOLDER} "..."', '.translate("...").text',
                      ".translate_ids([[5, 6, 7]])"),
    "Completer": Use("goes on with a text", f'regard complete {FOLDER} "..."', '.complete("...").text',
                     ".complete_ids([[5, 6, 7]], limit=20)"),
    "Filler": Use("fills in what is left out", f'regard fill {FOLDER} "... ___ ..."', '.fill("... ___ ...").text',
                  ".fill_ids([[5, 6, 7]])"),
    "Classifier": Use("gives labels", f"regard classify {FOLDER} ...", '.classify("...")', ".label_ids([[5, 6, 7]])"),
    "Embedder": Use("gives a vector for a text", "", '.embed("...")', ".embed_ids([[5, 6, 7]])"),
}
TAGS = Use("gives labels to tokens", "", ".label_ids([[5, 6, 7]])", ".label_ids([[5, 6, 7]])")
IMAGES = Use("gives labels to images", f"regard classify {FOLDER} image.png", ".classify(images)", "")


def card(task: str, config: ModelConfig, *, reads_text: bool, labels: tuple[str, ...] | None,
         record: Mapping[str, Any]) -> str:
    """The text of the file.

    Args:
        task: the name of the class.
        reads_text: whether there is a tokenizer.
        record: "recipe", "scores" and "data.files" of it are shown.
    """
    return "\n".join(_lines(task, config, reads_text, labels, record)) + "\n"


def _lines(task: str, config: ModelConfig, reads_text: bool, labels: tuple[str, ...] | None,
           record: Mapping[str, Any]) -> Iterator[str]:
    images = config.kind == "vision"
    use = IMAGES if images else TAGS if config.kind == "tagger" else USES[task]
    recipe = record.get("recipe")
    yield f"# A model that {use.what}"
    yield ""
    yield f"- kind: `{config.kind}`" + (f", recipe {_code(recipe)}" if isinstance(recipe, str) else "")
    yield f"- {config.parameters():,} parameters"
    if labels is not None:
        yield f"- labels: {', '.join(map(_code, labels))}"
    yield f"- saved by regard {__version__}"
    yield from _table("Scores", ("score", "value"), _leaves(record.get("scores", {})))
    yield from _table("Data", ("file", "sha256"), _files(record.get("data", {}).get("files", ())))
    yield from ("", "## Use", "")
    if use.command and (reads_text or images):
        yield from ("```", use.command, "```", "")
    yield from ("```python", "import regard", "", f'task = regard.load("{FOLDER}")')
    yield from (f"task{use.call if reads_text or images else use.with_ids}", "```")


def _table(title: str, head: tuple[str, str], cells: Iterator[tuple[str, str]]) -> Iterator[str]:
    rows = list(cells)
    if rows:
        yield from ("", f"## {title}", "", f"| {head[0]} | {head[1]} |", "|---|---|")
        yield from (f"| {name} | {value} |" for name, value in rows)


def _leaves(tables: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Name and value of everything that is no table, the names of the tables in front."""
    for key, value in tables.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{key} ")
        else:
            shown = f"{value:.4g}" if isinstance(value, float) else str(value)
            yield _code(above + key), _code(shown)


def _files(files: Any) -> Iterator[tuple[str, str]]:
    """Name and sha256 of files, given as a table, or as an array of "name sha256"."""
    pairs = files.items() if isinstance(files, Mapping) else (str(each).rpartition(" ")[::2] for each in files)
    for name, digest in pairs:
        yield _code(PurePath(name).name), _code(str(digest))


def _code(text: str) -> str:
    """A text in a cell of a table, in which nothing is markup."""
    shown = escaped(text).replace("`", "'").replace("|", "\\|")
    return f"`{shown or ' '}`"
