"""How `regard compare` shows what it found: tables on stdout, and on stderr how each training goes, in few words.

Texts of the user are never read as markup. It knows the tables of `regard.comparison`, and does not compute anything.
"""

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO

from regard.cli.data import escaped
from regard.training.reports import Event, Judged, Logger, Started, Stored

if TYPE_CHECKING:
    from rich.console import Console

Found = Mapping[str, Any]
SHOWN = 3
"""Sentences of each end of the list that the terminal shows."""
NARROWEST = 40


class Brief:
    """A logger that passes on how a training goes, without what is the same in every one of a comparison."""

    def __init__(self, inner: Logger) -> None:
        self.inner, self.name = inner, inner.name

    def __call__(self, event: Event, /) -> None:
        if isinstance(event, Stored):
            return
        if isinstance(event, Started):
            event = replace(event, choices=())
        if isinstance(event, Judged):
            event = replace(event, examples=())
        self.inner(event)

    def close(self) -> None:
        """Close the one that it passes on to."""
        self.inner.close()


def draw_road(found: Found, out: TextIO) -> None:
    """The tables of trained steps."""
    from regard.comparison.page import size, spread
    from regard.comparison.summary import bucket_name, kept_on_long

    console, models = _console(out), found["models"]
    console.print(f"The same for all: {found['budget']['said']}; {found['data']['train']:,} pairs of "
                  f"{escaped(found['data']['name'])}; tested on {found['data']['test']:,} others; seeds: "
                  f"{found['seeds']}.", markup=False, highlight=False)
    rows = []
    for model in models:
        kept = kept_on_long(model)
        rows.append([model["name"], spread(model["bleu"]), spread(model["chrf"]), "" if kept is None else f"{kept:.0%}",
                     f"{model['parameters']:,}", spread(model["tokens_per_second"], 0), size(model["memory"])])
    _table(console, ["model", "BLEU", "chrF", "kept on long", "parameters", "tokens/s", "step memory"], rows)
    names = [bucket_name(bucket) for bucket in models[0]["by_length"]]
    _table(console, ["BLEU by words", *names],
           [[model["name"], *(spread(bucket["bleu"]) for bucket in model["by_length"])] for model in models])
    places = [0, 4, 9]
    _table(console, ["gradient to the source", "first tenth", "middle", "last tenth"],
           [[model["name"], *(f"{model['flow']['all'][place]:.2f}" for place in places)] for model in models])


def draw_pair(found: Found, out: TextIO) -> None:
    """The tables of two trained models."""
    from regard.comparison.pair_page import verdict
    from regard.comparison.summary import bucket_name

    console, models = _console(out), found["models"]
    _table(console, ["model", "BLEU", "chrF", "loss", "parameters"],
           [[model["name"], f"{model['bleu']:.2f}", f"{model['chrf']:.2f}", f"{model['loss']:.3f}",
             f"{model['parameters']:,}"] for model in models])
    for score in ("bleu", "chrf"):
        one = found["difference"][score]
        console.print(f"{escaped(verdict(dict(found), score))} 95 of 100: {one['low']:+.2f} to {one['high']:+.2f}.",
                      markup=False, highlight=False)
    names = [bucket_name(bucket) for bucket in models[0]["by_length"]]
    _table(console, ["BLEU by words", *names],
           [[model["name"], *(f"{bucket['bleu']:.1f}" for bucket in model["by_length"])] for model in models])
    sentences = [one for one in found["sentences"] if one["difference"]]
    shown = sentences if len(sentences) <= 2 * SHOWN else [*sentences[:SHOWN], *sentences[-SHOWN:]]
    for one in shown:
        console.print()
        for label, text in (("source", one["source"]), ("reference", one["reference"]),
                            (f"{models[0]['name']} {one['first_chrf']:.0f}", one["first"]),
                            (f"{models[1]['name']} {one['second_chrf']:.0f}", one["second"])):
            console.print(f"{escaped(label)}: {escaped(text)}", markup=False, highlight=False)
    if not sentences:
        console.print("Every sentence has the same score in both.", markup=False, highlight=False)


def dumps(found: Found) -> str:
    """A table as the text of a file."""
    return json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _console(out: TextIO) -> "Console":
    from rich.console import Console

    # Where stdout is no terminal a table has all its columns, however long its lines become.
    width = max(NARROWEST, shutil.get_terminal_size().columns) if out.isatty() else 120
    return Console(file=out, width=width, markup=False, highlight=False, emoji=False, soft_wrap=False)


def _table(console: "Console", head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, pad_edge=False)
    for place, name in enumerate(head):
        table.add_column(Text(escaped(name)), justify="left" if place == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(escaped(cell)) for cell in row))
    console.print(table)
