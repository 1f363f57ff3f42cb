"""`regard look`: where a model looks, on a page in the browser, in the terminal, or in a file.

    regard look MODEL TEXT                      what the model makes of a text
    regard look MODEL TEXT --with OTHER         two models on one text
    regard look trace.safetensors [OTHER]       what was looked at before, or elsewhere

It finds out what is asked for, and hands it to `regard.tasks.looking` for traces and to `regard.cli.looked` to show.
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli import looked, models
from regard.cli.data import escaped

if TYPE_CHECKING:
    from regard.inspection.page.questions import Question
    from regard.inspection.trace.trace import Trace
    from regard.tasks.task import Task

TASKS = ("Translator", "Completer", "Filler", "Classifier", "Embedder")
BEAMS = {"Translator": 5, "Completer": 1}
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
    device: models.Device = models.AUTO,
) -> None:
    """See where a model looks.

    Without -o the page is served to this machine alone, until you press Ctrl-C, and opens in the browser. There you can
    also ask "what if": change a word, force a beginning, choose another result.
    """
    try:
        looked.check_output(output, view)
        if _is_model(what):
            traces, what_if = _of_models(what, other, given, target, beam, limit, device)
        else:
            if (other, target, beam, limit) != (None, None, None, None):
                models.fail("--with, --target, --beam and --limit are for models. Two traces are shown side by side "
                            "where both are named.")
            traces, what_if = [_loaded(name) for name in (what, given) if name is not None], None
        if not all(trace.attentions for trace in traces):
            models.fail("There is nothing to see: this trace has no attention in it.")
        if terminal or output == "-":
            looked.print_maps(traces)
        elif output is not None:
            looked.write(traces, output, file=None if _is_model(what) else what, view=view)
        else:
            looked.serve(traces, what_if, port, browser)
    except ValueError as error:
        models.fail(str(error))
    except OSError as error:
        if isinstance(error, BrokenPipeError) or not error.filename:
            raise  # of stdout: `regard.cli.main` knows what to do
        models.fail(f"{escaped(str(error.filename))}: {error.strerror}", 1)


def _is_model(name: str) -> bool:
    """Whether this is the folder of a model, and no file."""
    if os.path.isdir(name):
        return True
    if not os.path.lexists(name):
        models.fail(f"{escaped(name)}: there is neither a model nor a trace of this name.")
    return False


def _loaded(name: str) -> "Trace":
    from regard.inspection.trace.trace import Trace

    if not os.path.lexists(name):
        models.fail(f"{escaped(name)}: there is no trace of this name. A text is for a model: give its folder first.")
    return Trace.load(name)


def _of_models(what: str, other: str | None, given: str | None, target: str | None, beam: int | None,
               limit: int | None, device: str) -> "tuple[list[Trace], Callable[[Question], Trace] | None]":
    """The traces of one model or two, and who answers "what if"."""
    if given is None:
        models.fail(f"{escaped(what)}: Give a text to look at: regard look {escaped(what)} TEXT")
    names = [what] if other is None else [what, other]
    tasks = [models.opened(name, device, *TASKS) for name in names]
    for name, task in zip(names, tasks, strict=True):
        _check_options(name, task, target, beam, limit)
    if any(_reads_images(task) for task in tasks):
        if not all(map(_reads_images, tasks)):
            models.fail("One model reads images, and the other text: they cannot be shown on one input.")
        return [_image(task, given, name) for task, name in zip(tasks, names, strict=True)], None
    text = _text(given)
    asks = [partial(_trace, task, _name(name), beam, limit) for task, name in zip(tasks, names, strict=True)]
    found = [ask(text, target=target) for ask in asks]
    return found, lambda question: asks[question.trace](question.text, prefix=question.prefix, choice=question.choice,
                                                        beams=question.beams)


def _check_options(name: str, task: "Task", target: str | None, beam: int | None, limit: int | None) -> None:
    kind = type(task).__name__
    for option, value, kinds in (("--target", target, ("Translator",)), ("--beam", beam, ("Translator", "Completer")),
                                 ("--limit", limit, ("Completer",))):
        if value is not None and kind not in kinds:
            models.fail(f"{escaped(name)}: {option} is for a {' or a '.join(kinds)}, and this is a {kind}.")
    if target is not None and beam is not None:
        models.fail("With --target nothing is searched: leave --beam out.")


def _trace(task: "Task", name: str, beam: int | None, limit: int | None, text: str, *, target: str | None = None,
           prefix: str = "", choice: int = 0, beams: int | None = None) -> "Trace":
    """What a model makes of a text."""
    from regard.tasks import looking
    from regard.tasks.completing import Completer
    from regard.tasks.reading import Classifier, Embedder, Filler
    from regard.tasks.translating import Translator

    beams = beams or beam or BEAMS.get(type(task).__name__, 1)
    if isinstance(task, Translator):
        if target is not None:
            return looking.forced(task, text, target, name=name)
        return looking.translated(task, text, beams=max(beams, choice + 1), choice=choice, prefix=prefix, name=name)
    if isinstance(task, Completer):
        return looking.completed(task, text + prefix, limit=limit or 0, beams=beams, name=name)
    assert isinstance(task, Filler | Classifier | Embedder)
    return looking.read(task, text, name=name)


def _image(task: "Task", given: str, name: str) -> "Trace":
    import torch

    from regard.data.images.reading import Shape, pixels
    from regard.data.images.scaling import scaled
    from regard.models.vision import VisionConfig
    from regard.tasks import looking
    from regard.tasks.reading import Classifier

    assert isinstance(task, Classifier)
    config = task.config
    assert isinstance(config, VisionConfig)
    bytes_ = pixels(given, Shape(config.height, config.breadth, config.channels))
    image = scaled(torch.tensor(bytes_)).to(task.device)
    best = task.classify(image.unsqueeze(0))[0][0]
    title = f"{Path(given).name}: {best.name}, {100 * best.probability:.1f}%"
    return looking.seen_image(task, image, title=title, name=_name(name))


def _reads_images(task: "Task") -> bool:
    from regard.models.vision import VisionConfig

    return isinstance(task.config, VisionConfig)


def _text(given: str) -> str:
    """The text of the call, or all of standard input without its last end of line."""
    if given != "-":
        return given
    from regard.data.sources.inputs import STANDARD_INPUT, Input
    from regard.data.sources.lines import chunks

    return "".join(text for _, text in chunks(Input(STANDARD_INPUT))).removesuffix("\n").removesuffix("\r")


def _name(folder: str) -> str:
    """What people call a model: the name of its folder."""
    return Path(os.path.abspath(folder)).name
