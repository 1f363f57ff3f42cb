"""How `regard look` shows traces: served as a page, written to a file, or as a map in the terminal.

A file is new: nothing is written over. What is served says its address on stdout, which nobody else is told. It does
not know how traces come about.
"""

import os
import sys
import threading
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from regard.cli import models
from regard.cli.data import escaped
from regard.cli.terminal import Terminal

if TYPE_CHECKING:
    from regard.inspection.page.questions import Question
    from regard.inspection.trace.trace import Trace

PAGES, PICTURES, TRACES = (".html", ".htm"), (".png", ".svg", ".pdf"), (".safetensors",)
MOST = 60
"""Words of a row or a column that a map in the terminal has."""
LARGE = 4000 ** 2
"""Weights of a head beyond which a file is not made at once."""


def check_output(output: str | None, view: str | None) -> None:
    """Refuse a file that cannot be written, before the work is done."""
    if view is not None:
        from regard import checks
        from regard.inspection.pictures.traces import VIEWS

        checks.pick("--view", view, VIEWS)
        if output is None or Path(output).suffix.lower() not in PICTURES:
            models.fail("--view is for a picture: give -o and a name that ends in .png, .svg or .pdf.")
    if output is None or output == "-":
        return
    path = Path(output)
    if path.suffix.lower() not in (*PAGES, *PICTURES, *TRACES):
        endings = ", ".join((PAGES[0], *PICTURES, *TRACES))
        models.fail(f"{escaped(output)}: -o takes a name that ends in one of {endings}.")
    if os.path.lexists(path):
        models.fail(f"{escaped(output)}: there is something already. Choose another name, or remove it.")
    if not path.parent.is_dir():
        models.fail(f"{escaped(output)}: there is no folder {escaped(str(path.parent))}.")


def write(traces: "Sequence[Trace]", output: str, *, file: str | None, view: str | None) -> None:
    """A page, a picture or a trace, as the name says.

    Args:
        file: the trace that is shown, where it is one.
        view: of a picture.
    """
    ending = Path(output).suffix.lower()
    largest = max((one for trace in traces for one in trace.attentions), key=lambda one: one.rows * one.columns)
    if largest.rows * largest.columns > LARGE:
        models.say(f"Maps of {largest.rows:,} × {largest.columns:,} weights are computed; this takes a while.")
    if ending in PAGES:
        from regard.inspection.page.writing import page

        _write_new(output, page(traces, file=file).encode())
        return
    if len(traces) > 1:
        models.fail(f"{escaped(output)}: A file of this kind holds one trace. A page, .html, shows two.")
    if ending in TRACES:
        traces[0].save(output)
    else:
        _picture(traces[0], output, view)


def print_maps(traces: "Sequence[Trace]") -> None:
    """A map of each trace, of the attention that shows most."""
    from regard.inspection.chosen import chosen
    from regard.inspection.heat import heat_map

    terminal = Terminal.of(sys.stdout)
    for trace in traces:
        found = chosen(trace)
        terminal.heading(escaped(" · ".join(filter(None, (trace.model, found.name)))))
        rows, columns = len(found.rows), len(found.columns)
        if rows > MOST or columns > MOST:
            terminal.text(f"{rows:,} rows and {columns:,} columns are too many to be seen here; these are the first. "
                          "Without --terminal a page shows all.")
        weights = found.weights(MOST)
        terminal.beside([heat_map(weights, found.rows[:MOST], found.columns[:MOST], width=terminal.width,
                                  shades=terminal.shades)])


def serve(traces: "Sequence[Trace]", what_if: "Callable[[Question], Trace] | None", port: int, browser: bool) -> None:
    """A page on this machine, until it is interrupted."""
    from regard.inspection.page.server import PageServer

    try:
        server = PageServer(traces, what_if=what_if, port=port)
    except OSError as error:
        models.fail(f"Port {port} cannot be used: {error.strerror}. Without --port any free one is taken.", 1)
    models.write(server.address)
    sys.stdout.flush()
    models.say("The page is there for this machine alone, until you press Ctrl-C.")
    if browser:
        # Some browsers run in the terminal, and this would wait for their end.
        threading.Thread(target=_open, args=(server.address,), daemon=True).start()
    try:
        server.run(lambda: models.say("\nThe model is still answering. To end without waiting, press Ctrl-C again."))
    except KeyboardInterrupt:
        os._exit(130)  # an end that takes down what the model computes with is a crash
    models.say("")


def _open(address: str) -> None:
    if not webbrowser.open(address):
        models.say("No browser was found: open the address yourself.")


def _picture(trace: "Trace", output: str, view: str | None) -> None:
    from regard.inspection.pictures.saving import rendered
    from regard.inspection.pictures.traces import trace_picture

    _write_new(output, rendered(trace_picture(trace, view), Path(output).suffix.lower().removeprefix(".")))


def _write_new(output: str, data: bytes) -> None:
    """The bytes as a file that was not there; where that fails, it is not there either."""
    with open(output, "xb") as file:
        try:
            file.write(data)
        except (OSError, KeyboardInterrupt):
            os.unlink(output)
            raise
