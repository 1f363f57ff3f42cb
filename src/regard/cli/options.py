"""Arguments that several commands share, and what they stand for: a model, texts, a device, a search.

    --beam, --nbest, --length-penalty, --num-beam-groups, --diversity-penalty     beam search
    --sample, --temperature, --top-k, --top-p, --min-p, --seed                    sampling
    --max-length, --min-length, --no-repeat-ngram-size                            both

A group of options is a dataclass, whose fields `expand_options` turns into the parameters of a command. An option that
has no effect beside another is refused. Old names of options still work, with a notice (`RENAMED_OPTIONS`). torch is
imported inside the functions.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand

from regard.cli.terminal import fail, say

if TYPE_CHECKING:
    from regard.tasks.search import Beam, Sampling
    from regard.tasks.task import Task

RENAMED_OPTIONS = {
    "--limit": "--max-length", "--least": "--min-length", "--no-repeat": "--no-repeat-ngram-size",
    "--coverage": "--coverage-penalty", "--groups": "--num-beam-groups", "--diversity": "--diversity-penalty",
    "--count": "--top-k", "--track": "--tensorboard", "--ways": "--mixers", "--longest": "--max-words",
    "--longest-words": "--max-words", "--longest-characters": "--max-characters", "--ratio": "--max-length-ratio",
}
TASK_COMMANDS = {"Translator": "translate", "Completer": "complete", "Filler": "fill", "Classifier": "classify"}
"""The command for each task class."""
AUTO_DEVICE = "auto"
BLOCK_SIZE = 2000
"""Texts that are processed together at most."""
BEAM_PANEL, SAMPLING_PANEL, CONSTRAINTS_PANEL, ENGINE_PANEL = "Beam search", "Sampling", "Constraints", "Engine"
SAMPLING_HINT = "--sample chooses sampling instead of beam search."
GivenT = TypeVar("GivenT")
DoneT = TypeVar("DoneT")

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="Model folder.", show_default=False)]
TextsArgument = Annotated[list[str] | None, typer.Argument(
    metavar="TEXT", help="Texts; without any, or with -, the lines of standard input.", show_default=False)]
DeviceOption = Annotated[str, typer.Option(
    "--device", metavar="NAME", help="cpu, cuda, or auto: a GPU if there is one.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Write a JSON object on each line.")]
JsonReportOption = Annotated[bool, typer.Option("--json", help="Write one JSON object instead of text.")]
SourceOption = Annotated[str | None, typer.Option(
    "--source", metavar="NAME", help="Column (TSV, from 1), key (JSONL) or language (TMX) of the source.",
    show_default=False)]
TargetOption = Annotated[str | None, typer.Option(
    "--target", metavar="NAME", help="Column, key or language of the target.", show_default=False)]
FormatOption = Annotated[str | None, typer.Option(
    "--format", metavar="NAME", help="plain, tsv, jsonl, po or tmx; by default from the file name.",
    show_default=False)]


@dataclass(frozen=True)
class BeamOptions:
    """Options of beam search; None if not given."""

    beam: Annotated[int | None, typer.Option(
        "--beam", metavar="N", min=1, show_default=False, rich_help_panel=BEAM_PANEL,
        help="Beam size; 1 is greedy search.")] = None
    length_penalty: Annotated[str | None, typer.Option(
        "--length-penalty", metavar="NAME", rich_help_panel=BEAM_PANEL, show_default=False,
        help="none (default for one beam), mean (default for several), or a number: the alpha of Wu et al. "
        "2016.")] = None
    num_beam_groups: Annotated[int | None, typer.Option(
        "--num-beam-groups", metavar="N", min=1, rich_help_panel=BEAM_PANEL, show_default=False,
        help="Groups of diverse beam search.")] = None
    diversity_penalty: Annotated[float | None, typer.Option(
        "--diversity-penalty", metavar="NUMBER", min=0, rich_help_panel=BEAM_PANEL, show_default=False,
        help="Penalty for a token that an earlier group has used; 0.5 by default.")] = None


@dataclass(frozen=True)
class SamplingOptions:
    """Options of sampling; None if not given."""

    sample: Annotated[bool, typer.Option(
        "--sample", rich_help_panel=SAMPLING_PANEL,
        help="Sample instead of searching for the most probable text. The same seed gives the same text.")] = False
    temperature: Annotated[float | None, typer.Option(
        "--temperature", metavar="NUMBER", rich_help_panel=SAMPLING_PANEL, show_default=False,
        help="Below 1, probable tokens are drawn more often; above 1, less often.")] = None
    top_k: Annotated[int | None, typer.Option(
        "--top-k", metavar="N", min=1, rich_help_panel=SAMPLING_PANEL, show_default=False,
        help="Sample from the N most probable tokens.")] = None
    top_p: Annotated[float | None, typer.Option(
        "--top-p", metavar="P", rich_help_panel=SAMPLING_PANEL, show_default=False,
        help="Sample from the most probable tokens whose probabilities add up to P.")] = None
    min_p: Annotated[float | None, typer.Option(
        "--min-p", metavar="P", rich_help_panel=SAMPLING_PANEL, show_default=False,
        help="Sample from tokens with at least P times the probability of the first.")] = None
    seed: Annotated[int | None, typer.Option(
        "--seed", metavar="N", min=0, rich_help_panel=SAMPLING_PANEL, show_default=False,
        help="Random seed; 0 by default.")] = None


@dataclass(frozen=True)
class LengthOptions:
    """Constraints on the generated text."""

    max_length: Annotated[int | None, typer.Option(
        "--max-length", metavar="N", min=0, rich_help_panel=CONSTRAINTS_PANEL, show_default=False,
        help="Maximum number of tokens.")] = None
    min_length: Annotated[int, typer.Option(
        "--min-length", metavar="N", min=0, rich_help_panel=CONSTRAINTS_PANEL, show_default=False,
        help="Minimum number of tokens.")] = 0
    no_repeat_ngram_size: Annotated[int | None, typer.Option(
        "--no-repeat-ngram-size", metavar="N", min=1, rich_help_panel=CONSTRAINTS_PANEL, show_default=False,
        help="No n-gram of N tokens appears twice.")] = None

    def arguments(self) -> dict[str, Any]:
        """The arguments of a `DecodingStrategy`."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def make_beam(given: BeamOptions, lengths: LengthOptions, nbest: int, default: int, **more: Any) -> "Beam":
    """The beam search of these options; `default` is the default beam size."""
    from regard.tasks.search import Beam

    count = default if given.beam is None else given.beam
    if nbest > count:
        fail(f"--nbest must be at most --beam, {count}, but is {nbest} instead.")
    if given.diversity_penalty is not None and (given.num_beam_groups or 1) == 1:
        fail("--diversity-penalty needs --num-beam-groups.")
    options = {"num_beam_groups": given.num_beam_groups, "diversity_penalty": given.diversity_penalty}
    return Beam(beams=count, nbest=nbest, length_penalty=_parse_length_penalty(given.length_penalty, count),
                **lengths.arguments(), **_given_options(options), **more)


def make_sampling(given: SamplingOptions, lengths: LengthOptions, num_samples: int) -> "Sampling":
    """The sampling of these options."""
    from regard.tasks.search import Sampling

    options = {field.name: getattr(given, field.name) for field in fields(given) if field.name != "sample"}
    return Sampling(num_samples=num_samples, **lengths.arguments(), **_given_options(options))


def refuse_options(group: BeamOptions | SamplingOptions, remedy: str, **more: object) -> None:
    """Refuse the given options of a group, and others, which have no effect here."""
    given = {field.name: getattr(group, field.name) for field in fields(group)} | more
    names = [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None and value is not False]
    if names:
        fail(f"{join_names(names)} {'has' if len(names) == 1 else 'have'} no effect here. {remedy}")


def _parse_length_penalty(name: str | None, beams: int) -> str | float:
    if name is None:
        return "mean" if beams > 1 else "none"
    try:
        return float(name)
    except ValueError:
        return name


def _given_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given; the others have their defaults."""
    return {name: value for name, value in options.items() if value is not None}


def join_names(names: list[str]) -> str:
    """Names of options in a sentence."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def choose_device(device: str) -> str:
    """The device of this name; for auto a GPU if there is one."""
    import torch

    if device != AUTO_DEVICE:
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


def open_task(folder: str, device: str, *wanted: str) -> "Task":
    """Load the task in a folder, which must be of one of these classes."""
    from regard.tasks.load import load

    try:
        task = load(folder, device=choose_device(device))
    except ValueError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{folder}: {error.strerror}")
    name = type(task).__name__
    if name not in wanted:
        command = f" Use `regard {TASK_COMMANDS[name]}`." if name in TASK_COMMANDS else ""
        fail(f"{folder}: This command needs a {' or a '.join(wanted)}, but this is a {name}.{command}")
    return task


def text_blocks(texts: Sequence[str] | None) -> Iterator[list[str]]:
    """The texts of the call; or the lines of standard input, in blocks of those that are available."""
    if texts and list(texts) != ["-"]:
        yield list(texts)
        return
    from regard.data.sources.text import STANDARD_INPUT, DataError, InputFile, decode_chunks

    try:
        for text in decode_chunks(InputFile(STANDARD_INPUT)):
            lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
            for first in range(0, len(lines), BLOCK_SIZE):
                yield lines[first:first + BLOCK_SIZE]
    except DataError as error:
        fail(str(error))


def process_each(blocks: Iterable[list[GivenT]], work: Callable[[list[GivenT]], Sequence[DoneT]],
                 label: Callable[[int, GivenT], str]) -> Iterator[tuple[GivenT, DoneT | None]]:
    """Each input with its result, block by block; None for a failed one, which is reported on stderr by its label.

    If one has failed, the command ends with exit code 1 after the last.
    """
    from regard.tasks.task import isolate_errors

    before, failed = 0, False
    for block in blocks:
        for number, (one, done) in enumerate(zip(block, isolate_errors(block, work), strict=True), before + 1):
            if isinstance(done, ValueError):
                failed = True
                say(f"Error: {label(number, one)}: {done}")
            yield one, None if isinstance(done, ValueError) else done
        before += len(block)
        sys.stdout.flush()
    if failed:
        raise typer.Exit(1)


def text_label(number: int, text: object) -> str:
    """The name of a text in a message."""
    return f"text {number}"


class RenamedOptionsCommand(TyperCommand):
    """A command that accepts the old names of its options, with a notice on stderr."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments in which old names are replaced by new ones."""
        known = {name for parameter in self.params for name in parameter.opts}
        options = args.index("--") if "--" in args else len(args)
        renamed = list(args)
        for place, argument in enumerate(args[:options]):
            name, equals, value = argument.partition("=")
            new = RENAMED_OPTIONS.get(name)
            if new in known and name not in known:
                say(f"{name} is now called {new}.")
                renamed[place] = f"{new}{equals}{value}"
        return super().parse_args(ctx, renamed)


class PanelCommand(RenamedOptionsCommand):
    """A command whose help has a section for each panel, as plain text."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, the options without a panel, and then the panels in the order of their first options."""
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
    """A function whose dataclass parameters are replaced by their fields, as options of a command.

        @expand_options
        def complete(model: ModelArgument, sampling: SamplingOptions) -> None: ...
    """
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
