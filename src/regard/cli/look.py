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

from regard.cli.options import (
    AUTO_DEVICE,
    CONSTRAINTS_PANEL,
    DATA_PANEL,
    MODEL_PANEL,
    OUTPUT_PANEL,
    SEARCH_PANEL,
    TASK_NOUNS,
    ColumnsOption,
    DeviceOption,
    ToOption,
    announce_terminal_input,
    beam_option,
    complete_names,
    open_task,
    with_examples,
)
from regard.cli.output import fail, say, write_line
from regard.terminal import Terminal, escape_unprintable

if TYPE_CHECKING:
    from regard.inspection.page.server import WhatIfRequest
    from regard.inspection.trace import Trace
    from regard.tasks.influence import Influence
    from regard.tasks.task import Task

LOOK_TASKS = ("Translator", "Completer", "Filler", "Classifier", "Labeller", "Embedder")
DEFAULT_BEAMS = {"Translator": 5, "Completer": 1}
"""Default beam sizes; other tasks generate no text."""
PAGE_ENDINGS, PICTURE_ENDINGS, TRACE_ENDINGS = (".html", ".htm"), (".png", ".svg", ".pdf"), (".safetensors",)
MAX_MAP_WORDS = 60
"""Rows and columns of a map in the terminal."""
LARGE_MAP = 4000 ** 2
"""With more weights in one head, writing a file takes a noticeable time."""


@with_examples("""
    regard look model "The black cat sleeps."              # in the browser
    regard look model "The black cat sleeps." -o cat.png   # or .html, .svg, .pdf
    regard look model "The black cat sleeps." --with other-model
    regard look trace.safetensors                          # saved from Python
    regard look model tracks.csv                           # agents from above
""")
def look(
    subject: Annotated[str, typer.Argument(
        metavar="MODEL|TRACE", show_default=False, help="Folder of a trained model, or a trace file.")],
    given: Annotated[str | None, typer.Argument(
        metavar="TEXT|IMAGE|TRACKS|TRACE", show_default=False,
        help="For a model: a text (- for standard input), an image file, or a file of tracks. For a trace: a second "
        "trace to show beside it.")] = None,
    other: Annotated[str | None, typer.Option(
        "--with", metavar="MODEL", rich_help_panel=MODEL_PANEL, show_default=False,
        help="A second model, shown on the same text.")] = None,
    target: Annotated[str | None, typer.Option(
        "--target", metavar="TEXT", rich_help_panel=SEARCH_PANEL, show_default=False,
        help="Show the attention for this translation instead of the model's own (forced decoding).")] = None,
    to: ToOption = None,
    beam: Annotated[int | None, beam_option("5 for a translator, 1 for a language model", max=64)] = None,
    max_length: Annotated[int | None, typer.Option(
        "--max-length", metavar="N", min=0, rich_help_panel=CONSTRAINTS_PANEL, show_default="0",
        help="Number of tokens that a language model generates after the text.")] = None,
    frame: Annotated[float | None, typer.Option(
        "--frame", metavar="X", rich_help_panel=DATA_PANEL, show_default="the last whose future is in the file",
        help="Last frame of tracks that is observed.")] = None,
    columns: ColumnsOption = None,
    joint: Annotated[bool, typer.Option(
        "--joint", rich_help_panel=OUTPUT_PANEL, help="Show futures of the whole scene of tracks.")] = False,
    device: DeviceOption = AUTO_DEVICE,
    output: Annotated[str | None, typer.Option(
        "-o", "--output", metavar="FILE", rich_help_panel=OUTPUT_PANEL, show_default=False,
        help="Write a new file: .html (a page that works offline), .png, .svg or .pdf (a picture), or .safetensors (a "
        "trace). - prints to the terminal.")] = None,
    view: Annotated[str | None, typer.Option(
        "--view", metavar="NAME", rich_help_panel=OUTPUT_PANEL, show_default="map, or patches for an image",
        autocompletion=complete_names("map", "heads", "entropy", "patches"),
        help="Kind of picture: map (one attention map), heads (all heads), entropy (of every head), or patches "
        "(over an image).")] = None,
    influence: Annotated[bool | None, typer.Option(
        "--influence/--no-influence", rich_help_panel=OUTPUT_PANEL, show_default="for at most 64 words",
        help="Compute what each word of the input changes if it is left out. In a long text, groups of neighbouring "
        "words are left out.")] = None,
    terminal: Annotated[bool, typer.Option(
        "--terminal", rich_help_panel=OUTPUT_PANEL, help="Print one attention map in the terminal.")] = False,
    browser: Annotated[bool, typer.Option(
        "--browser/--no-browser", rich_help_panel=OUTPUT_PANEL, help="Open the page in the browser.")] = True,
    port: Annotated[int, typer.Option(
        "--port", metavar="N", min=0, max=65535, rich_help_panel=OUTPUT_PANEL,
        help="Port of the page; 0 chooses a free one.")] = 0,
) -> None:
    """Show what a model attends to.

    Opens a page in the browser, served to this machine only until you press Ctrl-C. On the page you can explore all
    layers and heads, and try "what if": change a word, set a prefix, choose another result. With --terminal or -o the
    attention is printed or written to a file instead.
    """
    try:
        _check_output(output, view)
        if _is_model(subject) and _forecasts(subject):
            if (other, target, beam, max_length, to, view, influence) != (None,) * 7:
                fail("--with, --target, --to, --beam, --max-length, --view and --influence have no effect on a "
                     "forecaster of tracks. Leave them out.")
            _look_at_tracks(subject, given, frame, columns, joint, device, output, terminal or output == "-", browser)
            return
        if (frame, columns, joint) != (None, None, False):
            fail("--frame, --columns and --joint are for a forecaster of tracks. Leave them out.")
        if _is_model(subject):
            traces, what_if = _trace_models(subject, other, given, target, beam, max_length, device, to, influence)
        else:
            if (other, target, beam, max_length, to, influence) != (None,) * 6:
                fail("--with, --target, --to, --beam, --max-length and --influence need a model folder, not a trace. "
                     "To show two traces side by side, give both files.")
            traces, what_if = [_load_trace(name) for name in (subject, given) if name is not None], None
        if not all(trace.attentions for trace in traces):
            fail("There is no attention to show: the model or trace has no attention layer.")
        if terminal or output == "-":
            _print_maps(traces)
        elif output is not None:
            _write_traces(traces, output, file=None if _is_model(subject) else subject, view=view)
        else:
            _serve_page(traces, what_if, port, browser)
    except ValueError as error:
        fail(str(error))


def _forecasts(folder: str) -> bool:
    """Whether the model in a folder forecasts tracks; False where that cannot be read, which is reported later."""
    from regard.tasks.info import read_info

    try:
        return read_info(folder).kind == "tracks"
    except (OSError, ValueError):
        return False


def _look_at_tracks(folder: str, given: str | None, frame: float | None, columns: str | None, joint: bool, device: str,
                    output: str | None, terminal: bool, browser: bool) -> None:
    """Show a scene from above: as a page, a picture, or a table in the terminal."""
    import tempfile

    from regard.data.tracks.reading import read_tracks
    from regard.inspection.scene.view import looks_table, scene_html, scene_picture
    from regard.storage.filesystem import write_file
    from regard.tasks.forecaster import Forecaster

    if given is None:
        fail(f"{escape_unprintable(folder)}: Give a file of tracks: regard look {escape_unprintable(folder)} TRACKS")
    ending = "" if output is None or terminal else Path(output).suffix.lower()
    if ending in TRACE_ENDINGS:
        fail(f"{escape_unprintable(str(output))}: There are no traces of tracks. Use .html, .png, .svg or .pdf.")
    task = open_task(folder, device, "Forecaster")
    assert isinstance(task, Forecaster)
    scenes = read_tracks([given], columns)
    if len(scenes) > 1:
        fail(f"{escape_unprintable(given)}: The file has {len(scenes)} scenes. Give one scene at a time.")
    window = task.scene_window(scenes[0], frame) if frame is not None else task.latest_known(scenes[0])
    view = task.view(window, joint=joint, title=f"{_model_name(folder)}: {Path(given).name}, frame {window.frame:g}")
    if terminal:
        out = Terminal.of(sys.stdout)
        out.heading(f"Attention between agents (frame {window.frame:g})")
        rows = [("agent", "attends to", "weight"), *looks_table(view)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        out.beside([["  ".join(escape_unprintable(cell).ljust(width) for cell, width in zip(row, widths, strict=True))
                     for row in rows]])
        return
    if ending in PICTURE_ENDINGS:
        from regard.inspection.pictures.canvas import render_figure

        write_file(Path(str(output)), render_figure(scene_picture(view), ending.removeprefix(".")), overwrite=False)
        return
    path = Path(output) if output is not None else Path(tempfile.mkdtemp(prefix="regard-")) / "scene.html"
    write_file(path, scene_html(view).encode(), overwrite=False)
    if output is None:
        write_line(str(path))
        if browser:
            _open_browser(path.as_uri())


def _check_output(output: str | None, view: str | None) -> None:
    """Refuse a file that cannot be written, before the work begins."""
    if view is not None:
        from regard import checks
        from regard.inspection.pictures.maps import VIEWS

        checks.pick("--view", view, VIEWS)
        if output is None or Path(output).suffix.lower() not in PICTURE_ENDINGS:
            fail("--view is for pictures. Add -o with a name that ends in .png, .svg or .pdf.")
    if output is None or output == "-":
        return
    path = Path(output)
    if path.suffix.lower() not in (*PAGE_ENDINGS, *PICTURE_ENDINGS, *TRACE_ENDINGS):
        endings = ", ".join((PAGE_ENDINGS[0], *PICTURE_ENDINGS, *TRACE_ENDINGS))
        fail(f"{escape_unprintable(output)}: The name must end in one of {endings}.")
    if os.path.lexists(path):
        fail(f"{escape_unprintable(output)}: The file exists already. Choose another name, or remove it.")
    if not path.parent.is_dir():
        fail(f"{escape_unprintable(output)}: The folder {escape_unprintable(str(path.parent))} does not exist. Create "
             "it first.")


def _is_model(name: str) -> bool:
    """Whether this is a folder and not a file."""
    if os.path.isdir(name):
        return True
    if not os.path.lexists(name):
        fail(f"{escape_unprintable(name)}: No such model folder or trace file.")
    return False


def _load_trace(name: str) -> "Trace":
    from regard.inspection.trace import Trace

    if not os.path.lexists(name):
        fail(f"{escape_unprintable(name)}: No such trace file. To look at a text, give a model folder first.")
    return Trace.load(name)


def _trace_models(folder: str, other: str | None, given: str | None, target: str | None, beam: int | None,
                  max_length: int | None, device: str, to: str | None,
                  influence: bool | None) -> "tuple[list[Trace], Callable[[WhatIfRequest], Trace] | None]":
    """The traces of one or two models, and the function that answers "what if"."""
    if given is None:
        fail(f"{escape_unprintable(folder)}: Give a text (or an image): regard look {escape_unprintable(folder)} TEXT")
    from regard.tasks.translator import Translator

    names = [folder] if other is None else [folder, other]
    tasks = [open_task(name, device, *LOOK_TASKS) for name in names]
    for name, task in zip(names, tasks, strict=True):
        _check_task_options(name, task, target, beam, max_length, to)
    tasks = [task.into(to) if isinstance(task, Translator) else task for task in tasks]
    limit = _influence_limit(influence)
    if any(_reads_images(task) for task in tasks):
        if not all(map(_reads_images, tasks)):
            fail("One model takes images and the other text. Give two models with the same kind of input.")
        return [_trace_image_file(task, given, name, limit) for task, name in zip(tasks, names, strict=True)], None
    text = _read_text(given)
    tracers = [partial(_trace_text, task, _model_name(name), beam, max_length, limit)
               for task, name in zip(tasks, names, strict=True)]
    traces = [tracer(text, target=target) for tracer in tracers]
    return traces, lambda request: tracers[request.trace](request.text, prefix=request.prefix, choice=request.choice,
                                                          beams=request.beams)


def _influence_limit(influence: bool | None) -> int:
    """The number of words up to which the influence of each is computed."""
    from regard.tasks.traces import INFLUENCE_LIMIT

    if influence is None:
        return INFLUENCE_LIMIT
    return sys.maxsize if influence else 0


def _check_task_options(name: str, task: "Task", target: str | None, beam: int | None, max_length: int | None,
                        to: str | None = None) -> None:
    kind = type(task).__name__
    for option, value, kinds in (("--target", target, ("Translator",)), ("--to", to, ("Translator",)),
                                 ("--beam", beam, ("Translator", "Completer")),
                                 ("--max-length", max_length, ("Completer",))):
        if value is not None and kind not in kinds:
            needed = " or ".join(TASK_NOUNS[one] for one in kinds)
            fail(f"{escape_unprintable(name)}: {option} needs {needed}, but this model is {TASK_NOUNS[kind]}.")
    if target is not None and beam is not None:
        fail("--beam has no effect with --target: nothing is searched. Leave one of them out.")


def _trace_text(task: "Task", name: str, beam: int | None, max_length: int | None, limit: int, text: str, *,
                target: str | None = None, prefix: str = "", choice: int = 0, beams: int | None = None) -> "Trace":
    """The trace of a model on a text."""
    from regard.tasks import traces
    from regard.tasks.classifier import Classifier, Embedder
    from regard.tasks.completer import Completer
    from regard.tasks.filler import Filler
    from regard.tasks.labeller import Labeller
    from regard.tasks.translator import Translator

    beams = beams or beam or DEFAULT_BEAMS.get(type(task).__name__, 1)
    if isinstance(task, Translator):
        if target is not None:
            return traces.trace_forced(task, text, target, name=name, influence_limit=limit)
        return traces.trace_translation(task, text, beams=max(beams, choice + 1), choice=choice, prefix=prefix,
                                        name=name, influence_limit=limit)
    if isinstance(task, Completer):
        return traces.trace_completion(task, text + prefix, max_length=max_length or 0, beams=beams, name=name,
                                       influence_limit=limit)
    assert isinstance(task, Filler | Classifier | Labeller | Embedder)
    return traces.trace_input(task, text, name=name, influence_limit=limit)


def _trace_image_file(task: "Task", path: str, name: str, limit: int) -> "Trace":
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
    return trace_image(task, image, title=title, name=_model_name(name), influence_limit=limit)


def _reads_images(task: "Task") -> bool:
    from regard.models.vision import VisionConfig

    return isinstance(task.config, VisionConfig)


def _read_text(given: str) -> str:
    """The text of the call, or all of standard input without its last line break."""
    if given != "-":
        return given
    from regard.data.sources.text import (
        MAX_LINE_BYTES,
        STANDARD_INPUT,
        InputFile,
        Location,
        decode_chunks,
        too_long_error,
    )

    announce_terminal_input()
    text = ""
    for chunk in decode_chunks(InputFile(STANDARD_INPUT)):
        text += chunk
        if len(text) > MAX_LINE_BYTES:
            raise too_long_error(Location("standard input", 1), "text", MAX_LINE_BYTES)
    return text.removesuffix("\n").removesuffix("\r")


def _model_name(folder: str) -> str:
    """The name of a model: that of its folder."""
    return Path(os.path.abspath(folder)).name


def _write_traces(traces: "Sequence[Trace]", output: str, *, file: str | None, view: str | None) -> None:
    """Write a page, a picture or a trace, by the ending of the name.

    Args:
        file: the trace file that is shown, if it is one.
        view: the kind of picture.
    """
    from regard.storage.filesystem import write_file

    ending = Path(output).suffix.lower()
    largest = max((one for trace in traces for one in trace.attentions), key=lambda one: one.rows * one.columns)
    if largest.rows * largest.columns > LARGE_MAP:
        say(f"Drawing attention maps of {largest.rows:,} × {largest.columns:,} weights. This takes a while.")
    if ending in PAGE_ENDINGS:
        from regard.inspection.page.document import page_html

        write_file(Path(output), page_html(traces, file=file).encode(), overwrite=False)
        return
    if len(traces) > 1:
        fail(f"{escape_unprintable(output)}: A {ending} file holds one trace. Use .html for two.")
    if ending in TRACE_ENDINGS:
        traces[0].save(output)
    else:
        from regard.inspection.pictures.canvas import render_figure
        from regard.inspection.pictures.maps import trace_picture

        picture = render_figure(trace_picture(traces[0], view), ending.removeprefix("."))
        write_file(Path(output), picture, overwrite=False)


def _print_maps(traces: "Sequence[Trace]") -> None:
    """Print for each trace the most informative attention map."""
    from regard.inspection.heat_map import heat_map
    from regard.inspection.trace import select_map

    terminal = Terminal.of(sys.stdout)
    for trace in traces:
        found = select_map(trace)
        kind = ("rows: output words, columns: input words" if found.attention.queries != found.attention.keys
                else "rows: queries, columns: keys")
        terminal.heading(f"Attention ({kind})")
        terminal.text(escape_unprintable(", ".join(filter(None, (trace.model, found.name)))))
        rows, columns = len(found.rows), len(found.columns)
        if rows > MAX_MAP_WORDS or columns > MAX_MAP_WORDS:
            terminal.text(f"The first {MAX_MAP_WORDS} of {rows:,} rows and {columns:,} columns. The page shows all: "
                          "leave out --terminal.")
        weights = found.weights(MAX_MAP_WORDS)
        terminal.beside([heat_map(weights, found.rows[:MAX_MAP_WORDS], found.columns[:MAX_MAP_WORDS],
                                  width=terminal.width, shades=terminal.shades)])
        if trace.influence is not None:
            _print_influence(trace, terminal)


def _print_influence(trace: "Trace", terminal: Terminal) -> None:
    """Print the words without effect, and for each output word the input word that it depends on most."""
    from regard.tasks.influence import traced_influence

    found = traced_influence(trace)
    assert found is not None
    assert trace.influence is not None
    if bool(found.values.isnan().all()):  # such as a text of one word, after which nothing comes
        return
    if trace.sides[trace.influence.columns].grid is not None:
        terminal.heading("Influence (what changes if a patch is made grey)")
        terminal.text(f"No effect: {len(found.without_effect)} of {len(found.words)} patches.")
    else:
        terminal.heading("Influence (what changes if an input word is left out)")
        _print_words_without_effect(found, trace.influence.rows, terminal)
    strongest = [(target, found.words[number], float(found.values[row, number]))
                 for row, (target, number) in enumerate(zip(found.targets, found.strongest(), strict=True))
                 if number is not None][:MAX_MAP_WORDS]
    if strongest:
        rows = [(escape_unprintable(target), escape_unprintable(word), f"{value:.1f} nats")
                for target, word, value in strongest]
        rows.insert(0, ("output", "depends most on", "it adds"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        terminal.beside([["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
                          for row in rows]])


def _print_words_without_effect(found: "Influence", rows: str, terminal: Terminal) -> None:
    """Print a line of the words that change nothing; `rows` is the side of the output."""
    from regard.tasks.influence import MIN_EFFECT

    without = [escape_unprintable(word) for word in found.without_effect]
    if not without:
        terminal.text("Every word has an effect.")
        return
    changed = {"labels": "every other label", "label": "the label", "text": "every later word"}
    it = "it" if len(without) == 1 else "one of them"
    terminal.text(f"No effect: {', '.join(without)}. Leaving {it} out changes {changed.get(rows, 'every output word')} "
                  f"by less than {MIN_EFFECT:g} nats.")


def _serve_page(traces: "Sequence[Trace]", what_if: "Callable[[WhatIfRequest], Trace] | None", port: int,
                browser: bool) -> None:
    """Serve the page on this machine until Ctrl-C."""
    from regard.inspection.page.server import PageServer

    try:
        server = PageServer(traces, what_if=what_if, port=port)
    except OSError as error:
        fail(f"Port {port} cannot be used: {error.strerror}. Leave out --port to use a free one.", 1)
    write_line(server.address)
    sys.stdout.flush()
    say("Serving the page to this machine only. Press Ctrl-C to stop.")
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
        say("No browser found. Open the address above yourself.")
