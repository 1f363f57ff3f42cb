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

from regard.cli.options import AUTO_DEVICE, DeviceOption, open_task
from regard.cli.terminal import Terminal, escape_unprintable, fail, say, write_line

if TYPE_CHECKING:
    from regard.inspection.page.server import WhatIfRequest
    from regard.inspection.trace import Trace
    from regard.tasks.task import Task

LOOK_TASKS = ("Translator", "Completer", "Filler", "Classifier", "Embedder")
DEFAULT_BEAMS = {"Translator": 5, "Completer": 1}
"""Default beam sizes; other tasks generate no text."""
PAGE_ENDINGS, PICTURE_ENDINGS, TRACE_ENDINGS = (".html", ".htm"), (".png", ".svg", ".pdf"), (".safetensors",)
MAX_MAP_WORDS = 60
"""Rows and columns of a map in the terminal."""
LARGE_MAP = 4000 ** 2
"""With more weights in one head, writing a file takes a noticeable time."""


def look(
    subject: Annotated[str, typer.Argument(metavar="MODEL|TRACE", help="Model folder, or trace file.",
                                           show_default=False)],
    given: Annotated[str | None, typer.Argument(metavar="TEXT|IMAGE|TRACE", help="For a model a text (- for standard "
                     "input), or an image if it reads images; for a trace another one to show beside it.",
                     show_default=False)] = None,
    other: Annotated[str | None, typer.Option("--with", metavar="MODEL", help="Second model, on the same text.",
                                              show_default=False)] = None,
    target: Annotated[str | None, typer.Option("--target", metavar="TEXT", help="Your own translation, instead of the "
                      "model's.", show_default=False)] = None,
    beam: Annotated[int | None, typer.Option("--beam", metavar="N", min=1, max=64, help="Beam size; 5 for a "
                    "translator.", show_default=False)] = None,
    max_length: Annotated[int | None, typer.Option("--max-length", metavar="N", min=0, help="Tokens that a language "
                          "model adds to the text; none by default.", show_default=False)] = None,
    output: Annotated[str | None, typer.Option("-o", "--output", metavar="FILE", help="New file: .html, a page that "
                      "needs nothing else; .png, .svg or .pdf, a picture; .safetensors, a trace. - is the terminal.",
                      show_default=False)] = None,
    view: Annotated[str | None, typer.Option("--view", metavar="NAME", help="Kind of picture: map, heads, entropy or "
                    "patches.", show_default=False)] = None,
    terminal: Annotated[bool, typer.Option("--terminal", help="Print a map instead of serving the page.")] = False,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
    port: Annotated[int, typer.Option("--port", metavar="N", min=0, max=65535, help="Port of the page; 0 for any free "
                    "one.")] = 0,
    device: DeviceOption = AUTO_DEVICE,
) -> None:
    """Show the attention of a model.

    Without -o the page is served to this machine only, until you press Ctrl-C, and opens in the browser. There you can
    also try "what if": change a word, set a prefix, choose another result.
    """
    try:
        _check_output(output, view)
        if _is_model(subject):
            traces, what_if = _trace_models(subject, other, given, target, beam, max_length, device)
        else:
            if (other, target, beam, max_length) != (None, None, None, None):
                fail("--with, --target, --beam and --max-length are for models. Name two traces to show them side by "
                     "side.")
            traces, what_if = [_load_trace(name) for name in (subject, given) if name is not None], None
        if not all(trace.attentions for trace in traces):
            fail("There is nothing to see: this trace has no attention in it.")
        if terminal or output == "-":
            _print_maps(traces)
        elif output is not None:
            _write_traces(traces, output, file=None if _is_model(subject) else subject, view=view)
        else:
            _serve_page(traces, what_if, port, browser)
    except ValueError as error:
        fail(str(error))
    except OSError as error:
        if isinstance(error, BrokenPipeError) or not error.filename:
            raise  # an error of stdout, which `regard.cli.main` handles
        fail(f"{escape_unprintable(str(error.filename))}: {error.strerror}", 1)


def _check_output(output: str | None, view: str | None) -> None:
    """Refuse a file that cannot be written, before the work begins."""
    if view is not None:
        from regard import checks
        from regard.inspection.pictures.maps import VIEWS

        checks.pick("--view", view, VIEWS)
        if output is None or Path(output).suffix.lower() not in PICTURE_ENDINGS:
            fail("--view is for a picture: give -o and a name that ends in .png, .svg or .pdf.")
    if output is None or output == "-":
        return
    path = Path(output)
    if path.suffix.lower() not in (*PAGE_ENDINGS, *PICTURE_ENDINGS, *TRACE_ENDINGS):
        endings = ", ".join((PAGE_ENDINGS[0], *PICTURE_ENDINGS, *TRACE_ENDINGS))
        fail(f"{escape_unprintable(output)}: The name must end in one of {endings}.")
    if os.path.lexists(path):
        fail(f"{escape_unprintable(output)}: It exists already. Choose another name, or remove it.")
    if not path.parent.is_dir():
        fail(f"{escape_unprintable(output)}: There is no folder {escape_unprintable(str(path.parent))}.")


def _is_model(name: str) -> bool:
    """Whether this is a folder and not a file."""
    if os.path.isdir(name):
        return True
    if not os.path.lexists(name):
        fail(f"{escape_unprintable(name)}: There is neither a model nor a trace of this name.")
    return False


def _load_trace(name: str) -> "Trace":
    from regard.inspection.trace import Trace

    if not os.path.lexists(name):
        fail(f"{escape_unprintable(name)}: There is no trace of this name. For a text, give the model folder first.")
    return Trace.load(name)


def _trace_models(folder: str, other: str | None, given: str | None, target: str | None, beam: int | None,
                  max_length: int | None,
                  device: str) -> "tuple[list[Trace], Callable[[WhatIfRequest], Trace] | None]":
    """The traces of one or two models, and the function that answers "what if"."""
    if given is None:
        fail(f"{escape_unprintable(folder)}: Give a text: regard look {escape_unprintable(folder)} TEXT")
    names = [folder] if other is None else [folder, other]
    tasks = [open_task(name, device, *LOOK_TASKS) for name in names]
    for name, task in zip(names, tasks, strict=True):
        _check_task_options(name, task, target, beam, max_length)
    if any(_reads_images(task) for task in tasks):
        if not all(map(_reads_images, tasks)):
            fail("One model reads images, and the other reads text: they have no common input.")
        return [_trace_image_file(task, given, name) for task, name in zip(tasks, names, strict=True)], None
    text = _read_text(given)
    tracers = [partial(_trace_text, task, _model_name(name), beam, max_length)
               for task, name in zip(tasks, names, strict=True)]
    traces = [tracer(text, target=target) for tracer in tracers]
    return traces, lambda request: tracers[request.trace](request.text, prefix=request.prefix, choice=request.choice,
                                                          beams=request.beams)


def _check_task_options(name: str, task: "Task", target: str | None, beam: int | None, max_length: int | None) -> None:
    kind = type(task).__name__
    for option, value, kinds in (("--target", target, ("Translator",)), ("--beam", beam, ("Translator", "Completer")),
                                 ("--max-length", max_length, ("Completer",))):
        if value is not None and kind not in kinds:
            fail(f"{escape_unprintable(name)}: {option} is for a {' or a '.join(kinds)}, and this is a {kind}.")
    if target is not None and beam is not None:
        fail("--beam has no effect with --target, which is not searched.")


def _trace_text(task: "Task", name: str, beam: int | None, max_length: int | None, text: str, *,
                target: str | None = None, prefix: str = "", choice: int = 0, beams: int | None = None) -> "Trace":
    """The trace of a model on a text."""
    from regard.tasks import traces
    from regard.tasks.classifier import Classifier, Embedder
    from regard.tasks.completer import Completer
    from regard.tasks.filler import Filler
    from regard.tasks.translator import Translator

    beams = beams or beam or DEFAULT_BEAMS.get(type(task).__name__, 1)
    if isinstance(task, Translator):
        if target is not None:
            return traces.trace_forced(task, text, target, name=name)
        return traces.trace_translation(task, text, beams=max(beams, choice + 1), choice=choice, prefix=prefix,
                                        name=name)
    if isinstance(task, Completer):
        return traces.trace_completion(task, text + prefix, max_length=max_length or 0, beams=beams, name=name)
    assert isinstance(task, Filler | Classifier | Embedder)
    return traces.trace_input(task, text, name=name)


def _trace_image_file(task: "Task", path: str, name: str) -> "Trace":
    import torch

    from regard.data.images import ImageShape, read_pixels, scale_pixels
    from regard.models.vision import VisionConfig
    from regard.tasks.classifier import Classifier
    from regard.tasks.traces import trace_image

    assert isinstance(task, Classifier)
    config = task.config
    assert isinstance(config, VisionConfig)
    pixels = read_pixels(path, ImageShape(config.image_height, config.image_width, config.channels))
    image = scale_pixels(torch.tensor(pixels)).to(task.device)
    best = task.classify(image.unsqueeze(0))[0][0]
    title = f"{Path(path).name}: {best.name}, {100 * best.probability:.1f}%"
    return trace_image(task, image, title=title, name=_model_name(name))


def _reads_images(task: "Task") -> bool:
    from regard.models.vision import VisionConfig

    return isinstance(task.config, VisionConfig)


def _read_text(given: str) -> str:
    """The text of the call, or all of standard input without its last line break."""
    if given != "-":
        return given
    from regard.data.sources.text import STANDARD_INPUT, InputFile, decode_chunks

    return "".join(text for text in decode_chunks(InputFile(STANDARD_INPUT))).removesuffix("\n").removesuffix("\r")


def _model_name(folder: str) -> str:
    """The name of a model: that of its folder."""
    return Path(os.path.abspath(folder)).name


def _write_traces(traces: "Sequence[Trace]", output: str, *, file: str | None, view: str | None) -> None:
    """Write a page, a picture or a trace, by the ending of the name.

    Args:
        file: the trace file that is shown, if it is one.
        view: the kind of picture.
    """
    ending = Path(output).suffix.lower()
    largest = max((one for trace in traces for one in trace.attentions), key=lambda one: one.rows * one.columns)
    if largest.rows * largest.columns > LARGE_MAP:
        say(f"Computing maps of {largest.rows:,} × {largest.columns:,} weights; this takes a while.")
    if ending in PAGE_ENDINGS:
        from regard.inspection.page.document import page_html

        _write_new_file(output, page_html(traces, file=file).encode())
        return
    if len(traces) > 1:
        fail(f"{escape_unprintable(output)}: A file of this kind holds one trace. A page, .html, shows two.")
    if ending in TRACE_ENDINGS:
        traces[0].save(output)
    else:
        from regard.inspection.pictures.canvas import render_figure
        from regard.inspection.pictures.maps import trace_picture

        _write_new_file(output, render_figure(trace_picture(traces[0], view), ending.removeprefix(".")))


def _write_new_file(output: str, data: bytes) -> None:
    """Write a new file; if that fails, no file remains."""
    with open(output, "xb") as file:
        try:
            file.write(data)
        except (OSError, KeyboardInterrupt):
            os.unlink(output)
            raise


def _print_maps(traces: "Sequence[Trace]") -> None:
    """Print for each trace the most informative attention map."""
    from regard.inspection.heat_map import heat_map
    from regard.inspection.trace import select_map

    terminal = Terminal.of(sys.stdout)
    for trace in traces:
        found = select_map(trace)
        terminal.heading(escape_unprintable(" · ".join(filter(None, (trace.model, found.name)))))
        rows, columns = len(found.rows), len(found.columns)
        if rows > MAX_MAP_WORDS or columns > MAX_MAP_WORDS:
            terminal.text(f"The first {MAX_MAP_WORDS} of {rows:,} rows and {columns:,} columns. Without --terminal a "
                          "page shows all.")
        weights = found.weights(MAX_MAP_WORDS)
        terminal.beside([heat_map(weights, found.rows[:MAX_MAP_WORDS], found.columns[:MAX_MAP_WORDS],
                                  width=terminal.width, shades=terminal.shades)])


def _serve_page(traces: "Sequence[Trace]", what_if: "Callable[[WhatIfRequest], Trace] | None", port: int,
                browser: bool) -> None:
    """Serve the page on this machine until Ctrl-C."""
    from regard.inspection.page.server import PageServer

    try:
        server = PageServer(traces, what_if=what_if, port=port)
    except OSError as error:
        fail(f"Port {port} cannot be used: {error.strerror}. Without --port any free one is used.", 1)
    write_line(server.address)
    sys.stdout.flush()
    say("The page is served to this machine only, until you press Ctrl-C.")
    if browser:
        # A browser may run in the terminal, and opening it would wait for its end.
        threading.Thread(target=_open_browser, args=(server.address,), daemon=True).start()
    try:
        server.run(lambda: say("\nThe model is still computing. Press Ctrl-C again to quit without waiting."))
    except KeyboardInterrupt:
        os._exit(130)  # a normal exit would tear down torch under the running computation, and crash
    say("")


def _open_browser(address: str) -> None:
    if not webbrowser.open(address):
        say("No browser was found: open the address yourself.")
