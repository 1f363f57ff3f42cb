"""`regard look`: show the attention of a model as a page in the browser, a map in the terminal, or a file.

    regard look MODEL TEXT                      a model on a text
    regard look MODEL TEXT --with OTHER         two models on one text
    regard look trace.safetensors [OTHER]       saved traces
    regard look MODEL --heads DATA              what each head does, over many sentences

`regard.tasks.traces` makes the traces, `regard.tasks.heads` measures the heads. An output file must be new. The address
of a served page is printed on stdout.
"""

import math
import os
import sys
import threading
import webbrowser
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    JsonReportOption,
    ToOption,
    announce_terminal_input,
    beam_option,
    check_to_option,
    choose_target,
    complete_names,
    expand_options,
    is_file_name,
    open_task,
    with_examples,
)
from regard.cli.output import ProgressMeter, fail, say, say_note, say_notes, write_json, write_line
from regard.terminal import Terminal, escape_unprintable

if TYPE_CHECKING:
    from regard.inspection.page.server import WhatIfRequest
    from regard.inspection.trace import Trace
    from regard.inspection.trace_format import TracedPredictions, TraceSide
    from regard.tasks.completer import Completer
    from regard.tasks.heads import HeadReport
    from regard.tasks.influence import Influence
    from regard.tasks.labeller import Labeller
    from regard.tasks.task import Task
    from regard.tasks.translator import Translator

LOOK_TASKS = ("Translator", "Completer", "Filler", "Classifier", "Labeller", "Embedder")
DEFAULT_BEAMS = {"Translator": 5, "Completer": 1}
"""Default beam sizes; other tasks generate no text."""
PAGE_ENDINGS, PICTURE_ENDINGS, TRACE_ENDINGS = (".html", ".htm"), (".png", ".svg", ".pdf"), (".safetensors",)
MAX_MAP_WORDS = 60
"""Rows and columns of a map in the terminal."""
MAX_SHOWN_PIXELS = 800
"""Height and width of an image in a picture."""
MAX_INFLUENCE_WORDS = 256
"""The number of input words up to which the influence is computed unasked; the page computes that of longer texts on
request."""
MAX_WINDOW_CHARACTERS = 16_384
"""More characters than a window of a language model holds."""
LARGE_MAP = 4000 ** 2
"""With more weights in one head, writing a file takes a noticeable time."""


@dataclass(frozen=True)
class SearchOptions:
    """Which results of a model are shown; None if not given."""

    other: Annotated[str | None, typer.Option(
        "--with", metavar="MODEL", rich_help_panel=MODEL_PANEL, show_default=False,
        help="A second model, shown on the same text.")] = None
    target: Annotated[str | None, typer.Option(
        "--target", metavar="TEXT", rich_help_panel=SEARCH_PANEL, show_default=False,
        help="Show the attention for this translation instead of the model's own (forced decoding).")] = None
    to: ToOption = None
    beam: Annotated[int | None, beam_option("5 for a translator, 1 for a language model", max=64)] = None
    max_length: Annotated[int | None, typer.Option(
        "--max-length", metavar="N", min=0, rich_help_panel=CONSTRAINTS_PANEL, show_default="0",
        help="Number of tokens that a language model generates after the text.")] = None
    influence: Annotated[bool | None, typer.Option(
        "--influence/--no-influence", rich_help_panel=OUTPUT_PANEL, show_default="for at most 256 words",
        help="Compute what each word of the input changes if it is left out. In a text of more than 64 words, groups "
        "of neighbours are left out; on the page a click on a group computes its words.")] = None


@dataclass(frozen=True)
class SceneOptions:
    """What is shown of a scene of tracks; None if not given."""

    frame: Annotated[float | None, typer.Option(
        "--frame", metavar="X", rich_help_panel=DATA_PANEL, show_default="the last whose future is in the file",
        help="Last frame of tracks that is observed.")] = None
    columns: ColumnsOption = None
    joint: Annotated[bool, typer.Option(
        "--joint", rich_help_panel=OUTPUT_PANEL, help="Show futures of the whole scene of tracks.")] = False


@dataclass(frozen=True)
class HeadOptions:
    """The measurement of all heads; None if not given."""

    heads: Annotated[list[str] | None, typer.Option(
        "--heads", metavar="DATA", rich_help_panel=DATA_PANEL, show_default=False,
        help="Instead of one text, measure what each head does on test data as for regard evaluate: the places that it "
        "attends to, and the rise of the loss without it. Prints a table, and stores it in the model folder. Repeat "
        "for several files.")] = None
    sentences: Annotated[int | None, typer.Option(
        "--sentences", metavar="N", min=1, rich_help_panel=DATA_PANEL, show_default="200",
        help="Number of sentences of --heads, the first ones of the data.")] = None
    as_json: JsonReportOption = False


@dataclass(frozen=True)
class DisplayOptions:
    """Where the attention is shown."""

    output: Annotated[str | None, typer.Option(
        "-o", "--output", metavar="FILE", rich_help_panel=OUTPUT_PANEL, show_default=False,
        help="Write a new file: .html (a page that works offline), .png, .svg or .pdf (a picture), or .safetensors (a "
        "trace). - prints to the terminal.")] = None
    view: Annotated[str | None, typer.Option(
        "--view", metavar="NAME", rich_help_panel=OUTPUT_PANEL, show_default="map, or patches for an image",
        autocompletion=complete_names("map", "heads", "entropy", "patches"),
        help="Kind of picture: map (one attention map), heads (all heads), entropy (of every head), or patches "
        "(over an image).")] = None
    terminal: Annotated[bool, typer.Option(
        "--terminal", rich_help_panel=OUTPUT_PANEL, help="Print one attention map in the terminal.")] = False
    browser: Annotated[bool, typer.Option(
        "--browser/--no-browser", rich_help_panel=OUTPUT_PANEL, help="Open the page in the browser.")] = True
    port: Annotated[int, typer.Option(
        "--port", metavar="N", min=0, max=65535, rich_help_panel=OUTPUT_PANEL,
        help="Port of the page; 0 chooses a free one.")] = 0

    @property
    def printed(self) -> bool:
        """Whether the attention is printed in the terminal."""
        return self.terminal or self.output == "-"


@with_examples("""
    regard look model "The black cat sleeps."              # in the browser
    regard look model "The black cat sleeps." -o cat.png   # or .html, .svg, .pdf
    regard look model "The black cat sleeps." --with other-model
    regard look model tracks.csv                           # agents from above
    regard look model --heads test.tsv                     # what each head does
""")
@expand_options
def look(
    subject: Annotated[str, typer.Argument(
        metavar="MODEL|TRACE", show_default=False, help="Folder of a trained model, or a trace file.")],
    given: Annotated[str | None, typer.Argument(
        metavar="TEXT|IMAGE|TRACKS|TRACE", show_default=False,
        help="For a model: a text (- for standard input), an image file, or a file of tracks. For a trace: a second "
        "trace to show beside it.")] = None,
    *,
    display: DisplayOptions,
    search: SearchOptions,
    scene: SceneOptions,
    heads: HeadOptions,
    device: DeviceOption = AUTO_DEVICE,
) -> None:
    """Show what a model attends to.

    Opens a page in the browser, served to this machine only until you press Ctrl-C. On the page you can explore all
    layers and heads, and try "what if": change a word, set a prefix, choose another result. With --terminal or -o the
    attention is printed or written to a file instead. --heads measures all heads over many sentences.
    """
    try:
        if heads.heads:
            unwanted = (replace(search, to=None), scene, display)
            if given is not None or unwanted != (SearchOptions(), SceneOptions(), DisplayOptions()):
                fail("With --heads only --sentences, --to, --device and --json have an effect. Leave out the others.")
            _look_at_heads(subject, heads, search.to, device)
            return
        if heads != HeadOptions():
            fail("--json and --sentences are for --heads. Leave them out, or add --heads DATA.")
        _check_output(display.output, display.view)
        if _is_model(subject) and _forecasts(subject):
            if search != SearchOptions() or display.view is not None:
                fail("--with, --target, --to, --beam, --max-length, --view and --influence have no effect on a "
                     "forecaster of tracks. Leave them out.")
            _look_at_tracks(subject, given, scene, device, display)
            return
        if scene != SceneOptions():
            fail("--frame, --columns and --joint are for a forecaster of tracks. Leave them out.")
        _look_at_traces(subject, given, search, device, display)
    except ValueError as error:
        fail(str(error))


def _look_at_traces(subject: str, given: str | None, search: SearchOptions, device: str,
                    display: DisplayOptions) -> None:
    """Show the attention of models on a text or an image, or that of trace files."""
    folder, what_if = _is_model(subject), None
    if folder:
        traces, what_if = _trace_models(subject, given, search, device)
    elif search != SearchOptions():
        fail("--with, --target, --to, --beam, --max-length and --influence need a model folder, not a trace. To show "
             "two traces side by side, give both files.")
    else:
        traces = [_load_trace(name) for name in (subject, given) if name is not None]
    if not all(trace.attentions for trace in traces):
        fail("There is no attention to show: the model or trace has no attention layer.")
    if display.printed:
        _print_maps(traces)
    elif display.output is not None:
        image = given if folder and traces[0].sides.get("image") is not None else None
        _write_traces(traces, display.output, file=None if folder else subject, view=display.view, image=image)
    else:
        _serve_page(traces, what_if, display.port, display.browser)


def _forecasts(folder: str) -> bool:
    """Whether the model in a folder forecasts tracks; False where that cannot be read, which is reported later."""
    from regard.tasks.info import read_info

    try:
        return read_info(folder).kind == "tracks"
    except (OSError, ValueError):
        return False


def _look_at_tracks(folder: str, given: str | None, scene: SceneOptions, device: str, display: DisplayOptions) -> None:
    """Show a scene from above: as a page, a picture, or a table in the terminal."""
    import tempfile

    from regard.data.tracks.reading import read_tracks
    from regard.inspection.scene.view import looks_table, scene_html, scene_picture
    from regard.storage.filesystem import write_file
    from regard.tasks.forecaster import Forecaster

    if given is None:
        fail(f"{escape_unprintable(folder)}: Give a file of tracks: regard look {escape_unprintable(folder)} TRACKS")
    output = display.output
    ending = "" if output is None or display.printed else Path(output).suffix.lower()
    if ending in TRACE_ENDINGS:
        fail(f"{escape_unprintable(str(output))}: There are no traces of tracks. Use .html, .png, .svg or .pdf.")
    task = open_task(folder, device, "Forecaster")
    assert isinstance(task, Forecaster)
    scenes = read_tracks([given], scene.columns)
    if len(scenes) > 1:
        fail(f"{escape_unprintable(given)}: The file has {len(scenes)} scenes. Give one scene at a time.")
    window = task.latest_known(scenes[0]) if scene.frame is None else task.scene_window(scenes[0], scene.frame)
    title = f"{_model_name(folder)}: {Path(given).name}, frame {window.frame:g}"
    view = task.view(window, joint=scene.joint, title=title)
    if display.printed:
        out = Terminal.of(sys.stdout)
        out.heading(f"Attention between agents (frame {window.frame:g})")
        rows = [tuple(map(escape_unprintable, row)) for row in looks_table(view)]
        _print_table([("agent", "attends to", "weight"), *rows], out)
        return
    if ending in PICTURE_ENDINGS:
        from regard.inspection.pictures.canvas import render_figure

        write_file(Path(str(output)), render_figure(scene_picture(view), ending.removeprefix(".")), overwrite=False)
        return
    path = Path(output) if output is not None else Path(tempfile.mkdtemp(prefix="regard-")) / "scene.html"
    write_file(path, scene_html(view).encode(), overwrite=False)
    if output is None:
        write_line(str(path))
        if display.browser:
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


def _trace_models(folder: str, given: str | None, search: SearchOptions,
                  device: str) -> "tuple[list[Trace], Callable[[WhatIfRequest], Trace] | None]":
    """The traces of one or two models, and the function that answers "what if"."""
    if given is None:
        fail(f"{escape_unprintable(folder)}: Give a text (or an image): regard look {escape_unprintable(folder)} TEXT")
    from regard.tasks.heads import stored_heads
    from regard.tasks.translator import Translator

    names = [folder] if search.other is None else [folder, search.other]
    tasks = [open_task(name, device, *LOOK_TASKS) for name in names]
    for name, task in zip(names, tasks, strict=True):
        _check_task_options(name, task, search)
    check_to_option(folder, search.to, *tasks)
    tasks = [task.into(search.to) if isinstance(task, Translator) else task for task in tasks]
    limit = _influence_limit(search.influence)
    if any(_reads_images(task) for task in tasks):
        if not all(map(_reads_images, tasks)):
            fail("One model takes images and the other text. Give two models with the same kind of input.")
        return [replace(_trace_image_file(task, given, name, limit), heads=stored_heads(name, say_note))
                for task, name in zip(tasks, names, strict=True)], None
    if given != "-" and (is_file_name(given) or given.endswith(".safetensors")):
        fail(f"{escape_unprintable(given)}: This model takes a text, not a file. Give the text itself, or read it from "
             f"standard input: regard look {escape_unprintable(folder)} - < {escape_unprintable(given)}")
    text, measured = _read_text(given), [stored_heads(name, say_note) for name in names]
    tracers = [partial(_trace_text, task, _model_name(name), search.beam, search.max_length, limit)
               for task, name in zip(tasks, names, strict=True)]
    traces = [tracer(text, target=search.target) for tracer in tracers]

    def what_if(request: "WhatIfRequest") -> "Trace":
        trace = tracers[request.trace](request.text, prefix=request.prefix, choice=request.choice, beams=request.beams)
        return replace(trace, heads=measured[request.trace])

    return [replace(trace, heads=one) for trace, one in zip(traces, measured, strict=True)], what_if


def _influence_limit(influence: bool | None) -> int:
    """The number of words up to which the influence of each is computed."""
    if influence is None:
        return MAX_INFLUENCE_WORDS
    return sys.maxsize if influence else 0


def _check_task_options(name: str, task: "Task", search: SearchOptions) -> None:
    """Refuse options that have no effect on this model."""
    kind = type(task).__name__
    for option, value, kinds in (("--target", search.target, ("Translator",)), ("--to", search.to, ("Translator",)),
                                 ("--beam", search.beam, ("Translator", "Completer")),
                                 ("--max-length", search.max_length, ("Completer",))):
        if value is not None and kind not in kinds:
            needed = " or ".join(TASK_NOUNS[one] for one in kinds)
            fail(f"{escape_unprintable(name)}: {option} needs {needed}, but this model is {TASK_NOUNS[kind]}.")
    if search.target is not None and search.beam is not None:
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
    title = f"{Path(path).name}: {best.name}, {100 * best.probability:.1f} %"
    return trace_image(task, image, title=title, name=_model_name(name), influence_limit=limit)


def _shown_pixels(path: str) -> Any:
    """The pixels (C, H, W) of an image file in its own proportions and colours, at most MAX_SHOWN_PIXELS high and wide.
    """
    from regard.data.images import ImageShape, read_image_shape, read_pixels

    height, width, channels = read_image_shape(path)
    share = min(1.0, MAX_SHOWN_PIXELS / max(height, width))
    return read_pixels(path, ImageShape(max(1, round(share * height)), max(1, round(share * width)), channels))


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


def _write_traces(traces: "Sequence[Trace]", output: str, *, file: str | None, view: str | None,
                  image: str | None = None) -> None:
    """Write a page, a picture or a trace, by the ending of the name.

    Args:
        file: the trace file that is shown, if it is one.
        view: the kind of picture.
        image: the image file that the model read, if it reads images.
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
        from regard.inspection.pictures.maps import trace_picture, trace_views

        shown = trace_views(traces[0])[0] if view is None else view
        pixels = _shown_pixels(image) if image is not None and shown == "patches" else None
        picture = render_figure(trace_picture(traces[0], shown, image=pixels), ending.removeprefix("."))
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
        if trace.predictions is not None:
            _print_predictions(trace.predictions, trace.sides[trace.predictions.side], terminal)
        if trace.influence is not None:
            _print_influence(trace, terminal)


def _print_predictions(found: "TracedPredictions", side: "TraceSide", terminal: Terminal) -> None:
    """Print how probable each word was, which tokens were most probable in its place, and which come next."""
    units = [((side.text or "")[word.start:word.end], word.first_token, word.last_token) for word in side.words] or [
        (token, place, place) for place, token in enumerate(side.tokens)]
    rows = [("word", "probability", "surprisal", "most probable")]
    for name, first, last in units[:MAX_MAP_WORDS]:
        likely, own = _likely_tokens(found, first), found.log_probabilities[first]
        total = sum(log or 0.0 for log in found.log_probabilities[first:last + 1])
        percent = f"{100 * math.exp(total):.1f} %" if total > math.log(0.001) else "<0.1 %"
        numbers = ("", "") if own is None else (percent, f"{-total:.2f} nats")
        if own is not None or likely:
            rows.append((escape_unprintable(name), *numbers, likely))
    following = _likely_tokens(found, len(side.tokens))
    rows += [("(next)", "", "", following)] if following else []
    terminal.heading("Predictions (of a word from those before it, of a blank, or of a label)")
    _print_table(rows, terminal)


def _likely_tokens(found: "TracedPredictions", place: int) -> str:
    """The three most probable tokens at a place, in one line."""
    if place >= len(found.candidates):
        return ""
    pairs = zip(found.candidates[place][:3], found.candidate_log_probabilities[place], strict=False)
    return ", ".join(f"{escape_unprintable(token.replace('▁', ' ').strip() or token)} {100 * math.exp(log):.0f} %"
                     for token, log in pairs if log > math.log(0.01))


def _print_table(rows: Sequence[tuple[str, ...]], terminal: Terminal) -> None:
    """Print rows of cells, all columns aligned to the left."""
    terminal.columns(rows, left=range(len(rows[0])))


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
        filled = trace.predictions is not None and all(one is None for one in trace.predictions.log_probabilities)
        _print_words_without_effect(found, "blanks" if filled else trace.influence.rows, terminal)
    strongest = [(target, found.words[number], float(found.values[row, number]))
                 for row, (target, number) in enumerate(zip(found.targets, found.strongest(), strict=True))
                 if number is not None][:MAX_MAP_WORDS]
    if strongest:
        rows = [(escape_unprintable(target), escape_unprintable(word), f"{value:.1f} nats")
                for target, word, value in strongest]
        _print_table([("output", "depends most on", "it adds"), *rows], terminal)


def _print_words_without_effect(found: "Influence", rows: str, terminal: Terminal) -> None:
    """Print a line of the words that change nothing; `rows` is the side of the output, or "blanks"."""
    from regard.tasks.influence import MIN_EFFECT

    without = [escape_unprintable(word) for word in found.without_effect]
    if not without:
        terminal.text("Every word has an effect.")
        return
    changed = {"labels": "every other label", "label": "the label", "text": "every later word",
               "blanks": "what fills every blank"}
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


def _look_at_heads(folder: str, options: HeadOptions, to: str | None, device: str) -> None:
    """Measure the heads of a model, print them, and store them in its folder."""
    from regard.storage.filesystem import FolderError
    from regard.tasks.heads import DEFAULT_SENTENCES, measure_heads
    from regard.tasks.translator import Translator

    if not _is_model(folder):
        fail(f"{escape_unprintable(folder)}: --heads needs a model folder, not a trace.")
    task = open_task(folder, device, *LOOK_TASKS[:-1])
    if to is not None and not isinstance(task, Translator):
        fail(f"{escape_unprintable(folder)}: --to needs a translator, but this model is "
             f"{TASK_NOUNS[type(task).__name__]}.")
    check_to_option(folder, to, task)
    files, count = options.heads or (), options.sentences or DEFAULT_SENTENCES
    task, data = _read_examples(task, files, count, to)
    if not any(len(one) for one in data):
        fail(f"{escape_unprintable(', '.join(files))}: There is nothing to read in this data.")
    meter = ProgressMeter(sys.stderr)

    def progress(done: int, total: int) -> None:
        meter.total = total
        meter.show(done)

    found = measure_heads(task, data, sentences=count, name=", ".join(Path(file).name for file in files),
                          progress=progress)
    meter.clear()
    if options.as_json:
        write_json(found.table())
    else:
        _draw_heads(found, Terminal.of(sys.stdout))
    try:
        say(f"Stored in {found.save(folder)}")
    except (FolderError, OSError) as error:  # a folder that is read-only, or was not saved by regard
        say_note(f"The heads are not stored with the model: {error}")


def _read_examples(task: "Task", files: Sequence[str], count: int, to: str | None) -> "tuple[Task, Any]":
    """The task, for a translator that of the target language, and the first examples of the data in its form."""
    from regard.data.sources import formats
    from regard.data.sources.text import InputFile, ReadLog
    from regard.models.vision import VisionConfig
    from regard.tasks.completer import Completer
    from regard.tasks.filler import Filler
    from regard.tasks.labeller import Labeller
    from regard.tasks.translator import Translator

    if isinstance(task, Translator):
        return _read_pairs(task, files, count, to)
    if isinstance(task, Completer):
        return task, _read_running_text(task, files, count)
    if isinstance(task, Filler):
        lines = formats.read_texts(files, format="plain")
        return task, [*islice((line.text for line in lines if line.text.strip()), count)]
    if isinstance(task, Labeller):
        return task, _read_labelled_tokens(task, files, count)
    if isinstance(task.config, VisionConfig):
        from regard.cli.evaluate import read_images

        return task, read_images(task, files)  # type: ignore[arg-type]
    log = ReadLog()
    read = (example for path in files for example in formats.read_labelled_texts(InputFile(path), log))
    examples = [(example.text, example.label) for example in islice(read, count)]
    say_notes(log.notes)
    return task, examples


def _read_pairs(task: "Translator", files: Sequence[str], count: int, to: str | None) -> "tuple[Translator, Any]":
    """Sentence pairs, with the word alignments of a TSV file that has them in its third column."""
    from regard.data.sources import formats, tsv
    from regard.data.sources.text import STANDARD_INPUT, InputFile

    pairs = formats.read_pairs(files)
    some = [*islice(pairs, count)]
    linked = len(files) == 1 and files[0] != STANDARD_INPUT and formats.format_of(files[0], None) == "tsv"
    links = [*islice(tsv.read_alignments(InputFile(files[0])), count + 1)] if linked else []
    say_notes([] if any(links) else pairs.log.notes)
    examples: list[Any] = [(pair.source, pair.target) for pair in some]
    if any(links):
        examples = [(pair.source, pair.target, links[pair.location.line - 1]) for pair in some]
    return choose_target(task, to, {*pairs.log.languages.values()}), examples


def _read_running_text(task: "Completer", files: Sequence[str], count: int) -> list[str]:
    """The text of each file, as much of it as `count` windows need."""
    from regard.data.sources.text import InputFile
    from regard.training.tasks import language

    texts, needed = list[str](), count * MAX_WINDOW_CHARACTERS
    for path in files:
        text = ""
        for piece in language.read_pieces([InputFile(path)]):
            text += piece or ""
            if len(text) > needed:
                break
        texts.append(text)
    return texts


def _read_labelled_tokens(task: "Labeller", files: Sequence[str], count: int) -> list[Any]:
    """Sequences of tokens with their labels."""
    from regard.data.sources.text import InputFile, ReadLog
    from regard.data.sources.token_labels import LabelledFile

    log = ReadLog()
    read = (one for path in files for one in LabelledFile(InputFile(path), unit=task.unit, log=log))
    found = [(one.tokens, one.labels) for one in islice(read, count)]
    say_notes(log.notes)
    return found


def _draw_heads(found: "HeadReport", terminal: Terminal) -> None:
    """A row for each head, the most costly first."""
    from regard.checks import plural
    from regard.inspection.heads import ROLE_NAMES, strongest_role

    skipped = f"; skipped {plural(found.skipped, 'sentence')} that are too long" if found.skipped else ""
    terminal.heading(f"Attention heads ({plural(found.sentences, 'sentence')} of {escape_unprintable(found.data)}, "
                     f"loss {found.loss:.4f} nats{skipped})")
    cells = [["attention", "head", "cost", "+-", "role", "weight", "even"]]
    for one in found.ranked():
        role = one.role or strongest_role(one.roles, found.even[one.attention])
        shown = ["", "", ""] if role is None else [
            ROLE_NAMES[role] if one.role else f"({ROLE_NAMES[role]})", f"{one.roles[role]:.2f}",
            f"{found.even[one.attention][role]:.2f}"]
        cells.append([one.attention, str(one.head), f"{one.cost:+.4f}", f"{one.cost_error:.4f}", *shown])
    terminal.columns(cells, left=(0, 4))
    terminal.text("cost: rise of the loss in nats when the output of the head is zero; +-: its standard error over the "
                  "sentences. weight: mean attention weight on the places of the role; even: the same for a head that "
                  "attends to all tokens alike. In brackets: the strongest role of a head that has less than half of "
                  "its weight there, or less than twice even. --json prints the scores of all roles.")
