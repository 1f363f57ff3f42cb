"""Arguments that several commands share, and what they stand for: a model, texts, a device, a search.

    --beam, --nbest, --length-penalty, --coverage, --groups, --diversity     beam search
    --sample, --temperature, --top-k, --top-p, --min-p, --seed               sampling
    --max-length, --min-length, --no-repeat                                  both

A group of options is a dataclass, whose fields `expand_options` turns into the parameters of a command. An option that
has no effect beside another is refused. torch is imported inside the functions.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand

from regard.cli import terminal
from regard.cli.terminal import fail, say

if TYPE_CHECKING:
    from regard.tasks.search import Beam, Sampling
    from regard.tasks.task import Task


BEAM_PANEL, SAMPLING_PANEL, CONSTRAINTS_PANEL = "Beam search", "Drawing by chance", "What may be written"
SAMPLING_HINT = "--sample draws; beam search is without it."


@dataclass(frozen=True)
class BeamOptions:
    """How beam search goes; None where nothing was said."""

    beam: Annotated[int | None, typer.Option("--beam", metavar="N", min=1, show_default=False, rich_help_panel=BEAM_PANEL,
                    help="How many beginnings are followed side by side; 1 is the fastest.")] = None
    length_penalty: Annotated[str | None, typer.Option("--length-penalty", metavar="NAME", rich_help_panel=BEAM_PANEL,
                              show_default=False, help="How lengths count: none, as with one beam; mean, as with "
                              "several; or a number, the alpha of Wu et al. 2016.")] = None
    groups: Annotated[int | None, typer.Option("--groups", metavar="N", min=1, rich_help_panel=BEAM_PANEL,
                      show_default=False, help="Part the beams into groups that are to differ.")] = None
    diversity: Annotated[float | None, typer.Option("--diversity", metavar="NUMBER", min=0, rich_help_panel=BEAM_PANEL,
                         show_default=False, help="What a token costs that a group before has taken; 0.5 where "
                         "nothing is said.")] = None


@dataclass(frozen=True)
class SamplingOptions:
    """How is drawn; None where nothing was said."""

    sample: Annotated[bool, typer.Option("--sample", rich_help_panel=SAMPLING_PANEL, help="Draw by chance, instead of looking "
                      "for the most probable. The same seed gives the same.")] = False
    temperature: Annotated[float | None, typer.Option("--temperature", metavar="NUMBER", rich_help_panel=SAMPLING_PANEL,
                           show_default=False, help="Below 1 what is probable is drawn more often, above 1 "
                           "less.")] = None
    top_k: Annotated[int | None, typer.Option("--top-k", metavar="N", min=1, rich_help_panel=SAMPLING_PANEL,
                     show_default=False, help="Only from the N most probable tokens.")] = None
    top_p: Annotated[float | None, typer.Option("--top-p", metavar="P", rich_help_panel=SAMPLING_PANEL, show_default=False,
                     help="Only from the most probable tokens that together have the probability P.")] = None
    min_p: Annotated[float | None, typer.Option("--min-p", metavar="P", rich_help_panel=SAMPLING_PANEL, show_default=False,
                     help="Only tokens that have at least P times the probability of the first.")] = None
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", min=0, rich_help_panel=SAMPLING_PANEL,
                    show_default=False, help="Another seed than 0 gives other texts.")] = None


@dataclass(frozen=True)
class LengthOptions:
    """What may be written, however it is found."""

    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=0, rich_help_panel=CONSTRAINTS_PANEL,
                     show_default=False, help="At most so many tokens.")] = None
    least: Annotated[int, typer.Option("--least", metavar="N", min=0, rich_help_panel=CONSTRAINTS_PANEL, show_default=False,
                     help="At least so many tokens.")] = 0
    no_repeat: Annotated[int | None, typer.Option("--no-repeat", metavar="N", min=1, rich_help_panel=CONSTRAINTS_PANEL,
                         show_default=False, help="No sequence of N tokens twice.")] = None


def make_beam(given: BeamOptions, bounds: LengthOptions, nbest: int, usual: int, **more: Any) -> "Beam":
    """The beam search of these options.

    Args:
        usual: how many beams there are where nothing is said.
    """
    from regard.tasks.search import Beam

    count = usual if given.beam is None else given.beam
    if nbest > count:
        terminal.fail(f"--nbest must be at most --beam, {count}, but is {nbest} instead.")
    if given.diversity is not None and (given.groups or 1) == 1:
        terminal.fail("--diversity is for --groups: give how many there are.")
    options = {"groups": given.groups, "diversity": given.diversity}
    return Beam(beams=count, nbest=nbest, length_penalty=_parse_length_penalty(given.length_penalty, count), limit=bounds.limit,
                least=bounds.least, no_repeat=bounds.no_repeat, **_given_options(options), **more)


def make_sampling(given: SamplingOptions, bounds: LengthOptions, tries: int) -> "Sampling":
    """The sampling of these options."""
    from regard.tasks.search import Sampling

    options = {field.name: getattr(given, field.name) for field in fields(given) if field.name != "sample"}
    return Sampling(tries=tries, limit=bounds.limit, least=bounds.least, no_repeat=bounds.no_repeat, **_given_options(options))


def refuse_options(group: BeamOptions | SamplingOptions, remedy: str, **more: object) -> None:
    """Refuse options of a group, and others, that were given and have no meaning here."""
    given = {field.name: getattr(group, field.name) for field in fields(group)} | more
    names = [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None and value is not False]
    if names:
        terminal.fail(f"{join_names(names)} {'has' if len(names) == 1 else 'have'} no meaning here. {remedy}")


def _parse_length_penalty(name: str | None, count: int) -> str | float:
    if name is None:
        return "mean" if count > 1 else "none"
    try:
        return float(name)
    except ValueError:
        return name


def _given_options(options: dict[str, Any]) -> dict[str, Any]:
    """What was said; the rest is as usual."""
    return {name: value for name, value in options.items() if value is not None}


def join_names(names: list[str]) -> str:
    """Names of options in a sentence."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


# ---- models: What the commands that use a model share: its device, its task, texts from arguments or from standard input, results.
#
# Results go to stdout as UTF-8 with LF, whatever the system prefers; where stdout is a terminal, what it would obey is
# written out. A text that a model cannot take is named on stderr, its line is empty, and the others are done. Torch is
# imported inside the functions. It knows no command by itself.

TASK_COMMANDS = {"Translator": "translate", "Completer": "complete", "Filler": "fill", "Classifier": "classify"}
"""The command that uses a task."""
AUTO_DEVICE = "auto"
BLOCK_SIZE = 2000
"""Texts that are done together, at most."""
ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="The folder of a model.", show_default=False)]
TextsArgument = Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Texts; without any, or with -, the lines of "
                                                   "standard input.", show_default=False)]
DeviceOption = Annotated[str, typer.Option("--device", metavar="NAME", help="cpu, cuda, or auto: a GPU where there is one.")]
JsonOption = Annotated[bool, typer.Option("--json", help="A JSON object on each line.")]
GivenT = TypeVar("GivenT")
DoneT = TypeVar("DoneT")


def choose_device(device: str) -> str:
    """The device of this name; for auto a GPU where there is one."""
    import torch

    if device != AUTO_DEVICE:
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


def open_task(folder: str, device: str, *wanted: str) -> "Task":
    """The task in a folder, which must be one of these by the names of their classes."""
    from regard.tasks.load import load

    try:
        task = load(folder, device=choose_device(device))
    except ValueError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{folder}: {error.strerror}")
    name = type(task).__name__
    if name not in wanted:
        command = f" `regard {TASK_COMMANDS[name]}` uses it." if name in TASK_COMMANDS else ""
        fail(f"{folder}: This command needs a {' or a '.join(wanted)}, but this is a {name}.{command}")
    return task


def text_blocks(texts: Sequence[str] | None) -> Iterator[list[str]]:
    """The texts of the call; or the lines of standard input, as many at a time as are there already."""
    from regard.data.sources.text import STANDARD_INPUT, DataError, InputFile, decode_chunks

    if texts and list(texts) != [STANDARD_INPUT]:
        yield list(texts)
        return
    try:
        for text in decode_chunks(InputFile(STANDARD_INPUT)):
            lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
            for first in range(0, len(lines), BLOCK_SIZE):
                yield lines[first:first + BLOCK_SIZE]
    except DataError as error:
        fail(str(error))


def process_each(given: Iterable[list[GivenT]], work: Callable[[list[GivenT]], Sequence[DoneT]],
         name: Callable[[int, GivenT], str]) -> Iterator[tuple[GivenT, DoneT | None]]:
    """What `work` makes of every one, block by block; None for one that cannot be done, which is named on stderr.

    Where there was one, the command ends with 1 after the last.
    """
    before, failed = 0, False
    for block in given:
        for number, (one, done) in enumerate(zip(block, _isolate_errors(block, work), strict=True), before + 1):
            if isinstance(done, ValueError):
                failed = True
                say(f"Error: {name(number, one)}: {done}")
            yield one, None if isinstance(done, ValueError) else done
        before += len(block)
        sys.stdout.flush()
    if failed:
        raise typer.Exit(1)


def text_label(number: int, text: object) -> str:
    """A text of several, as a message names it."""
    return f"text {number}"


def _isolate_errors(block: list[GivenT], work: Callable[[list[GivenT]], Sequence[DoneT]]) -> Sequence[DoneT | ValueError]:
    """All at once; where that fails, each half by itself, to find out which it is."""
    try:
        return work(block)
    except ValueError as error:
        if len(block) == 1:
            return [error]
    half = len(block) // 2
    return [*_isolate_errors(block[:half], work), *_isolate_errors(block[half:], work)]


# ---- panels: Many options of a command: groups of them as values, and help that shows them by groups.
#
#     @expanded
#     def complete(model: Model, drawn: Drawing) -> None: ...
#
# An argument whose type is a dataclass stands for its fields, each of which is an option; the function is given the
# value. `Panelled` writes the help of a command with a title over the options of each panel, as plain text. It knows no
# option by itself.


class PanelCommand(TyperCommand):
    """A command whose help has a section for each panel."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The arguments, the options without a panel, and then panel by panel in the order of the first of each."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            panel = getattr(parameter, "rich_help_panel", None)
            title = panel or ("Arguments" if parameter.param_type_name == "argument" else "Options")
            if record is not None:
                sections.setdefault(title, []).append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def expand_options(function: Callable[..., None]) -> Callable[..., None]:
    """The function with the fields of its dataclasses as arguments, all of them by name."""
    parameters, groups = list[inspect.Parameter](), dict[str, type]()
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if isinstance(parameter.annotation, type) and is_dataclass(parameter.annotation):
            groups[parameter.name] = parameter.annotation
            hints = get_type_hints(parameter.annotation, include_extras=True)
            parameters += [inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default,
                                             annotation=hints[field.name]) for field in fields(parameter.annotation)]
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    def command(**given: Any) -> None:
        values = {name: group(**{field.name: given.pop(field.name) for field in fields(group)})
                  for name, group in groups.items()}
        function(**given, **values)

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command
