"""`regard look`: show the attention of a model as a page in the browser, a map in the terminal, or a file.

    regard look MODEL TEXT                      a model on a text
    regard look MODEL TEXT --with OTHER         two models on one text
    regard look trace.safetensors [OTHER]       saved traces

`regard.tasks.traces` makes the traces. An output file must be new. The address of a served page is printed on stdout.
"""

import os
import sys
import threading
import webbrowser
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli import options
from regard.cli import terminal as models
from regard.cli.terminal import Terminal, escape_unprintable

if TYPE_CHECKING:
    from regard.inspection.page.server import WhatIfRequest
    from regard.inspection.trace import Trace
    from regard.tasks.task import Task


LOOK_TASKS = ("Translator", "Completer", "Filler", "Classifier", "Embedder")
DEFAULT_BEAMS = {"Translator": 5, "Completer": 1}
"""How many beginnings are followed, where nothing else is said; other tasks write nothing."""


def look(
    what: Annotated[str, typer.Argument(metavar="MODEL|TRACE", help="The folder of a model, or the file of a trace.",
                                        show_default=False)],
    given: Annotated[str | None, typer.Argument(metavar="TEXT|IMAGE|TRACE", help="For a model a text (- for standard "
                     "input), or an image where it reads these; for a trace another one beside it.",
                     show_default=False)] = None,
    other: Annotated[str | None, typer.Option("--with", metavar="MODEL", help="A second model, on the same text.",
                                              show_default=False)] = None,
    target: Annotated[str | None, typer.Option("--target", metavar="TEXT", help="A translation of yours, in place of "
                      "the one that the model finds.", show_default=False)] = None,
    beam: Annotated[int | None, typer.Option("--beam", metavar="N", min=1, max=64, help="How many beginnings are "
                    "followed side by side; 5 for a translation.", show_default=False)] = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=0, help="How many tokens a language model "
                     "writes behind the text; without it none.", show_default=False)] = None,
    output: Annotated[str | None, typer.Option("-o", "--output", metavar="FILE", help="A new file: .html, a page that "
                      "needs nothing else; .png, .svg or .pdf, a picture; .safetensors, a trace. With - the terminal.",
                      show_default=False)] = None,
    view: Annotated[str | None, typer.Option("--view", metavar="NAME", help="Of a picture: map, heads, entropy or "
                    "patches.", show_default=False)] = None,
    terminal: Annotated[bool, typer.Option("--terminal", help="A map here, in place of the page.")] = False,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
    port: Annotated[int, typer.Option("--port", metavar="N", min=0, max=65535, help="Of the page on this machine; 0 "
                    "for any that is free.")] = 0,
    device: options.DeviceOption = options.AUTO_DEVICE,
) -> None:
    """See where a model looks.

    Without -o the page is served to this machine alone, until you press Ctrl-C, and opens in the browser. There you can
    also ask "what if": change a word, force a beginning, choose another result.
    """
    try:
        check_output(output, view)
        if _is_model(what):
            traces, what_if = _trace_models(what, other, given, target, beam, limit, device)
        else:
            if (other, target, beam, limit) != (None, None, None, None):
                models.fail("--with, --target, --beam and --limit are for models. Two traces are shown side by side "
                            "where both are named.")
            traces, what_if = [_load_trace(name) for name in (what, given) if name is not None], None
        if not all(trace.attentions for trace in traces):
            models.fail("There is nothing to see: this trace has no attention in it.")
        if terminal or output == "-":
            print_maps(traces)
        elif output is not None:
            write_traces(traces, output, file=None if _is_model(what) else what, view=view)
        else:
            serve_page(traces, what_if, port, browser)
    except ValueError as error:
        models.fail(str(error))
    except OSError as error:
        if isinstance(error, BrokenPipeError) or not error.filename:
            raise  # of stdout: `regard.cli.main` knows what to do
        models.fail(f"{escape_unprintable(str(error.filename))}: {error.strerror}", 1)


def _is_model(name: str) -> bool:
    """Whether this is the folder of a model, and no file."""
    if os.path.isdir(name):
        return True
    if not os.path.lexists(name):
        models.fail(f"{escape_unprintable(name)}: there is neither a model nor a trace of this name.")
    return False


def _load_trace(name: str) -> "Trace":
    from regard.inspection.trace import Trace

    if not os.path.lexists(name):
        models.fail(f"{escape_unprintable(name)}: there is no trace of this name. A text is for a model: give its folder first.")
    return Trace.load(name)


def _trace_models(what: str, other: str | None, given: str | None, target: str | None, beam: int | None,
               limit: int | None, device: str) -> "tuple[list[Trace], Callable[[WhatIfRequest], Trace] | None]":
    """The traces of one model or two, and who answers "what if"."""
    if given is None:
        models.fail(f"{escape_unprintable(what)}: Give a text to look at: regard look {escape_unprintable(what)} TEXT")
    names = [what] if other is None else [what, other]
    tasks = [options.open_task(name, device, *LOOK_TASKS) for name in names]
    for name, task in zip(names, tasks, strict=True):
        _check_options(name, task, target, beam, limit)
    if any(_reads_images(task) for task in tasks):
        if not all(map(_reads_images, tasks)):
            models.fail("One model reads images, and the other text: they cannot be shown on one input.")
        return [_trace_image_file(task, given, name) for task, name in zip(tasks, names, strict=True)], None
    text = _read_text(given)
    asks = [partial(_trace_text, task, _model_name(name), beam, limit) for task, name in zip(tasks, names, strict=True)]
    found = [ask(text, target=target) for ask in asks]
    return found, lambda question: asks[question.trace](question.text, prefix=question.prefix, choice=question.choice,
                                                        beams=question.beams)


def _check_options(name: str, task: "Task", target: str | None, beam: int | None, limit: int | None) -> None:
    kind = type(task).__name__
    for option, value, kinds in (("--target", target, ("Translator",)), ("--beam", beam, ("Translator", "Completer")),
                                 ("--limit", limit, ("Completer",))):
        if value is not None and kind not in kinds:
            models.fail(f"{escape_unprintable(name)}: {option} is for a {' or a '.join(kinds)}, and this is a {kind}.")
    if target is not None and beam is not None:
        models.fail("With --target nothing is searched: leave --beam out.")


def _trace_text(task: "Task", name: str, beam: int | None, limit: int | None, text: str, *, target: str | None = None,
           prefix: str = "", choice: int = 0, beams: int | None = None) -> "Trace":
    """What a model makes of a text."""
    from regard.tasks import traces as looking
    from regard.tasks.classifier import Classifier, Embedder
    from regard.tasks.completer import Completer
    from regard.tasks.filler import Filler
    from regard.tasks.translator import Translator

    beams = beams or beam or DEFAULT_BEAMS.get(type(task).__name__, 1)
    if isinstance(task, Translator):
        if target is not None:
            return looking.trace_forced(task, text, target, name=name)
        return looking.trace_translation(task, text, beams=max(beams, choice + 1), choice=choice, prefix=prefix, name=name)
    if isinstance(task, Completer):
        return looking.trace_completion(task, text + prefix, limit=limit or 0, beams=beams, name=name)
    assert isinstance(task, Filler | Classifier | Embedder)
    return looking.trace_input(task, text, name=name)


def _trace_image_file(task: "Task", given: str, name: str) -> "Trace":
    import torch

    from regard.data.images import ImageShape, read_pixels, scale_pixels
    from regard.models.vision import VisionConfig
    from regard.tasks import traces as looking
    from regard.tasks.classifier import Classifier

    assert isinstance(task, Classifier)
    config = task.config
    assert isinstance(config, VisionConfig)
    bytes_ = read_pixels(given, ImageShape(config.image_height, config.image_width, config.channels))
    image = scale_pixels(torch.tensor(bytes_)).to(task.device)
    best = task.classify(image.unsqueeze(0))[0][0]
    title = f"{Path(given).name}: {best.name}, {100 * best.probability:.1f}%"
    return looking.trace_image(task, image, title=title, name=_model_name(name))


def _reads_images(task: "Task") -> bool:
    from regard.models.vision import VisionConfig

    return isinstance(task.config, VisionConfig)


def _read_text(given: str) -> str:
    """The text of the call, or all of standard input without its last end of line."""
    if given != "-":
        return given
    from regard.data.sources.text import STANDARD_INPUT, InputFile, decode_chunks

    return "".join(text for text in decode_chunks(InputFile(STANDARD_INPUT))).removesuffix("\n").removesuffix("\r")


def _model_name(folder: str) -> str:
    """What people call a model: the name of its folder."""
    return Path(os.path.abspath(folder)).name


# ---- looked: How `regard look` shows traces: served as a page, written to a file, or as a map in the terminal.
#
# A file is new: nothing is written over. What is served says its address on stdout, which nobody else is told. It does
# not know how traces come about.

PAGE_ENDINGS, PICTURE_ENDINGS, TRACE_ENDINGS = (".html", ".htm"), (".png", ".svg", ".pdf"), (".safetensors",)
MAX_MAP_WORDS = 60
"""Words of a row or a column that a map in the terminal has."""
LARGE_MAP = 4000 ** 2
"""Weights of a head beyond which a file is not made at once."""


def check_output(output: str | None, view: str | None) -> None:
    """Refuse a file that cannot be written, before the work is done."""
    if view is not None:
        from regard import checks
        from regard.inspection.pictures.maps import VIEWS

        checks.pick("--view", view, VIEWS)
        if output is None or Path(output).suffix.lower() not in PICTURE_ENDINGS:
            models.fail("--view is for a picture: give -o and a name that ends in .png, .svg or .pdf.")
    if output is None or output == "-":
        return
    path = Path(output)
    if path.suffix.lower() not in (*PAGE_ENDINGS, *PICTURE_ENDINGS, *TRACE_ENDINGS):
        endings = ", ".join((PAGE_ENDINGS[0], *PICTURE_ENDINGS, *TRACE_ENDINGS))
        models.fail(f"{escape_unprintable(output)}: -o takes a name that ends in one of {endings}.")
    if os.path.lexists(path):
        models.fail(f"{escape_unprintable(output)}: there is something already. Choose another name, or remove it.")
    if not path.parent.is_dir():
        models.fail(f"{escape_unprintable(output)}: there is no folder {escape_unprintable(str(path.parent))}.")


def write_traces(traces: "Sequence[Trace]", output: str, *, file: str | None, view: str | None) -> None:
    """A page, a picture or a trace, as the name says.

    Args:
        file: the trace that is shown, where it is one.
        view: of a picture.
    """
    ending = Path(output).suffix.lower()
    largest = max((one for trace in traces for one in trace.attentions), key=lambda one: one.rows * one.columns)
    if largest.rows * largest.columns > LARGE_MAP:
        models.say(f"Maps of {largest.rows:,} × {largest.columns:,} weights are computed; this takes a while.")
    if ending in PAGE_ENDINGS:
        from regard.inspection.page.document import page_html

        _write_new_file(output, page_html(traces, file=file).encode())
        return
    if len(traces) > 1:
        models.fail(f"{escape_unprintable(output)}: A file of this kind holds one trace. A page, .html, shows two.")
    if ending in TRACE_ENDINGS:
        traces[0].save(output)
    else:
        _write_picture(traces[0], output, view)


def print_maps(traces: "Sequence[Trace]") -> None:
    """A map of each trace, of the attention that shows most."""
    from regard.inspection.heat_map import heat_map
    from regard.inspection.trace import select_map

    terminal = Terminal.of(sys.stdout)
    for trace in traces:
        found = select_map(trace)
        terminal.heading(escape_unprintable(" · ".join(filter(None, (trace.model, found.name)))))
        rows, columns = len(found.rows), len(found.columns)
        if rows > MAX_MAP_WORDS or columns > MAX_MAP_WORDS:
            terminal.text(f"{rows:,} rows and {columns:,} columns are too many to be seen here; these are the first. "
                          "Without --terminal a page shows all.")
        weights = found.weights(MAX_MAP_WORDS)
        terminal.beside([heat_map(weights, found.rows[:MAX_MAP_WORDS], found.columns[:MAX_MAP_WORDS], width=terminal.width,
                                  shades=terminal.shades)])


def serve_page(traces: "Sequence[Trace]", what_if: "Callable[[WhatIfRequest], Trace] | None", port: int, browser: bool) -> None:
    """A page on this machine, until it is interrupted."""
    from regard.inspection.page.server import PageServer

    try:
        server = PageServer(traces, what_if=what_if, port=port)
    except OSError as error:
        models.fail(f"Port {port} cannot be used: {error.strerror}. Without --port any free one is taken.", 1)
    models.write_line(server.address)
    sys.stdout.flush()
    models.say("The page is there for this machine alone, until you press Ctrl-C.")
    if browser:
        # Some browsers run in the terminal, and this would wait for their end.
        threading.Thread(target=_open_browser, args=(server.address,), daemon=True).start()
    try:
        server.run(lambda: models.say("\nThe model is still answering. To end without waiting, press Ctrl-C again."))
    except KeyboardInterrupt:
        os._exit(130)  # an end that takes down what the model computes with is a crash
    models.say("")


def _open_browser(address: str) -> None:
    if not webbrowser.open(address):
        models.say("No browser was found: open the address yourself.")


def _write_picture(trace: "Trace", output: str, view: str | None) -> None:
    from regard.inspection.pictures.canvas import render_figure
    from regard.inspection.pictures.maps import trace_picture

    _write_new_file(output, render_figure(trace_picture(trace, view), Path(output).suffix.lower().removeprefix(".")))


def _write_new_file(output: str, data: bytes) -> None:
    """The bytes as a file that was not there; where that fails, it is not there either."""
    with open(output, "xb") as file:
        try:
            file.write(data)
        except (OSError, KeyboardInterrupt):
            os.unlink(output)
            raise
