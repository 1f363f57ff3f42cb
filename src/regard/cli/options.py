"""Arguments that several commands share, what they stand for (a model, a device, a search), and the layout of help.

    --beam, --nbest, --length-penalty, --num-beam-groups, --diversity-penalty     beam search
    --sample, --temperature, --top-k, --top-p, --min-p, --seed                    sampling
    --max-length, --min-length, --no-repeat-ngram-size                            both

A group of options is a dataclass, whose fields `expand_options` turns into the parameters of a command. An option that
has no effect beside another is refused. torch is imported inside the functions.

Every command is a `PanelCommand`. Its help has the sections `PANELS`, in this order: give each option one of them as
its `rich_help_panel`. The help ends with examples, lines of at most 76 characters that `with_examples` attaches and
that are printed as they are:

    @with_examples('''
        regard fill model "The ___ sleeps."       # the five best words for each blank
        regard fill model < texts.txt             # the lines of a file
    ''')
    def fill(...) -> None: ...

With `expand_options`, `with_examples` is the outer decorator. Tests run or parse every example.

Names of options that other programs use work as well (`OPTION_ALIASES`), and so do underscores (`--beam_size`). Old
names of options work with a notice (`RENAMED_OPTIONS`).
"""

import inspect
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from regard.checks import join_names, plural
from regard.cli.output import fail, say

if TYPE_CHECKING:
    from regard.data.languages import LanguagePair
    from regard.tasks.search import Beam, Sampling
    from regard.tasks.task import Task
    from regard.tasks.translator import Translator, TranslatorMixin

RENAMED_OPTIONS = {
    "--limit": "--max-length", "--least": "--min-length", "--no-repeat": "--no-repeat-ngram-size",
    "--coverage": "--coverage-penalty", "--groups": "--num-beam-groups", "--diversity": "--diversity-penalty",
    "--count": "--top-k", "--track": "--tensorboard", "--ways": "--mixers", "--longest": "--max-words",
    "--longest-words": "--max-words", "--longest-characters": "--max-characters", "--ratio": "--max-length-ratio",
}
OPTION_ALIASES = {
    "--num-beams": "--beam", "--num-return-sequences": "--nbest", "--do-sample": "--sample", "--sampling": "--sample",
    "--lenpen": "--length-penalty", "--alpha": "--length-penalty", "--max-new-tokens": "--max-length",
    "--min-new-tokens": "--min-length", "--max-len": "--max-length", "--min-len": "--min-length",
    "--valid": "--validation", "--dev": "--validation", "--src": "--source", "--tgt": "--target",
    "--output-dir": "--output", "--save-dir": "--output", "--arch": "--recipe", "--learning-rate": "--lr",
    "--max-steps": "--steps", "--max-epochs": "--epochs", "--num-train-epochs": "--epochs",
}
"""Names that Hugging Face, fairseq and OpenNMT use; they are not listed in the help."""
TASK_COMMANDS = {"Translator": "translate", "Completer": "complete", "Filler": "fill", "Classifier": "classify",
                 "Labeller": "label", "Forecaster": "predict"}
"""The command for each task class."""
TASK_NOUNS = {"Translator": "a translator", "Completer": "a language model", "Filler": "a masked language model",
              "Classifier": "a classifier", "Labeller": "a labeller", "Embedder": "an encoder without a head",
              "Forecaster": "a forecaster of tracks"}
"""How messages call the task classes."""
FILE_ENDINGS = (".txt", ".tsv", ".jsonl", ".po", ".pot", ".tmx", ".gz")
"""A single word with such an ending is a file name, even if the file is missing."""
AUTO_DEVICE = "auto"
MAX_BEAMS = 10_000
"""Beams, samples or results of a text, at most: the memory of a search grows with them."""
BLOCK_SIZE = 2000
"""Texts that are processed together at most."""
DATA_PANEL, MODEL_PANEL, TRAINING_PANEL = "Data", "Model", "Training"
SEARCH_PANEL, SAMPLING_PANEL, CONSTRAINTS_PANEL = "Search", "Sampling", "Constraints"
NETWORK_PANEL, LIMITS_PANEL = "Network", "Limits"
ENGINE_PANEL, OUTPUT_PANEL, SYNTHETIC_PANEL = "Engine", "Output", "Synthetic data"
PANELS = ("Arguments", DATA_PANEL, MODEL_PANEL, TRAINING_PANEL, SYNTHETIC_PANEL, SEARCH_PANEL, SAMPLING_PANEL,
          CONSTRAINTS_PANEL, NETWORK_PANEL, LIMITS_PANEL, ENGINE_PANEL, OUTPUT_PANEL)
"""Sections of every command's help, in this order; other sections follow, and "Options" is the last."""
EXAMPLES_ATTRIBUTE, NO_BREAK_SPACE, NO_BREAK_HYPHEN = "examples", "\xa0", "\u2011"
SAMPLING_HINT = "--sample replaces beam search. Leave one of them out."
GivenT = TypeVar("GivenT")
DoneT = TypeVar("DoneT")
CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def complete_names(*names: str) -> Callable[[str], list[str]]:
    """The shell completion of an option with these values: `typer.Option(autocompletion=complete_names(...))`."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


def _cuda_name(device: str) -> str:
    """The device as torch calls it: "gpu" and "gpu:1" are "cuda" and "cuda:1"."""
    kind, colon, number = device.partition(":")
    return f"cuda{colon}{number}" if kind == "gpu" else device


ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="Folder of a trained model.", show_default=False)]
TextsArgument = Annotated[list[str] | None, typer.Argument(
    metavar="TEXT", help="Texts. Without any, or with -, the lines of standard input.", show_default=False)]
DeviceOption = Annotated[str, typer.Option(
    "--device", metavar="NAME", rich_help_panel=ENGINE_PANEL, callback=_cuda_name,
    autocompletion=complete_names(AUTO_DEVICE, "cpu", "cuda"),
    help="cpu, cuda (or gpu), cuda:1, or auto: a GPU if there is one.")]
BatchTokensOption = Annotated[int | None, typer.Option(
    "--batch-tokens", metavar="N", min=1, rich_help_panel=ENGINE_PANEL,
    show_default="4096 with torch, up to 24576 for small models on a CPU",
    help="Source tokens per batch, padding included; a smaller number needs less memory.")]
JsonOption = Annotated[bool, typer.Option(
    "--json", rich_help_panel=OUTPUT_PANEL, help="Print a JSON object on each line.")]
ColumnsOption = Annotated[str | None, typer.Option(
    "--columns", metavar="NAMES", rich_help_panel=DATA_PANEL, show_default="found by the header",
    help="Columns of a file of tracks, in its order: frame,agent,x,y (also scene, kind, and - for one to skip).")]
FrameStepOption = Annotated[float | None, typer.Option(
    "--frame-step", metavar="X", rich_help_panel=DATA_PANEL, show_default="the most common one",
    help="Difference between two frames of tracks; frames between are left out.")]
FrameOption = Annotated[float | None, typer.Option(
    "--frame", metavar="X", rich_help_panel=DATA_PANEL, show_default="the last of the file",
    help="Last frame of the tracks that is observed.")]
JsonReportOption = Annotated[bool, typer.Option(
    "--json", rich_help_panel=OUTPUT_PANEL, help="Print one JSON object instead of text.")]
QuietOption = Annotated[bool, typer.Option(
    "-q", "--quiet", rich_help_panel=OUTPUT_PANEL, help="Do not show progress. Errors are still printed.")]
SourceOption = Annotated[str | None, typer.Option(
    "--source", metavar="NAME", rich_help_panel=DATA_PANEL, show_default=False,
    help="Source column (TSV: its number from 1, or its name in the header line), key (JSONL) or language (TMX).")]
TargetOption = Annotated[str | None, typer.Option(
    "--target", metavar="NAME", rich_help_panel=DATA_PANEL, show_default=False,
    help="Target column, key or language.")]
FormatOption = Annotated[str | None, typer.Option(
    "--format", metavar="NAME", rich_help_panel=DATA_PANEL, show_default="from the file name",
    autocompletion=complete_names("plain", "tsv", "jsonl", "po", "tmx", "conll"),
    help="File format: plain, tsv, jsonl, po or tmx; for labels of tokens tsv, conll or jsonl.")]

ToOption = Annotated[str | None, typer.Option(
    "--to", metavar="LANGUAGE", rich_help_panel=SEARCH_PANEL, show_default=False,
    help="Target language of a model for several languages, such as fr. The source language need not be given.")]


def beam_option(default: str, **options: Any) -> Any:
    """The option --beam, whose help shows this default."""
    return typer.Option("-b", "--beam", "--beam-size", metavar="N", min=1, show_default=default, **{
        "max": MAX_BEAMS, "rich_help_panel": SEARCH_PANEL, "help": "Beam size; 1 is greedy search.", **options})


@dataclass(frozen=True)
class BeamOptions:
    """Options of beam search; None if not given."""

    beam: Annotated[int | None, beam_option("1")] = None
    length_penalty: Annotated[str | None, typer.Option(
        "--length-penalty", metavar="NAME", rich_help_panel=SEARCH_PANEL,
        show_default="mean, or none for greedy search",
        help="How the length of a text enters its score: none, mean (log-probability per token), or a number, the "
        "alpha of Wu et al. 2016.")] = None
    num_beam_groups: Annotated[int | None, typer.Option(
        "--num-beam-groups", metavar="N", min=1, rich_help_panel=SEARCH_PANEL, show_default="1",
        help="Number of groups of diverse beam search; it must divide the beam size.")] = None
    diversity_penalty: Annotated[float | None, typer.Option(
        "--diversity-penalty", metavar="X", min=0, rich_help_panel=SEARCH_PANEL, show_default="0.5",
        help="Diverse beam search: penalty for a token that an earlier group has chosen at the same step.")] = None


@dataclass(frozen=True)
class SamplingOptions:
    """Options of sampling; None if not given."""

    sample: Annotated[bool, typer.Option(
        "--sample", rich_help_panel=SAMPLING_PANEL,
        help="Sample from the model's distribution instead of beam search.")] = False
    temperature: Annotated[float | None, typer.Option(
        "--temperature", metavar="X", rich_help_panel=SAMPLING_PANEL, show_default="1",
        help="Softmax temperature: below 1 for more probable texts, above 1 for more varied ones.")] = None
    top_k: Annotated[int | None, typer.Option(
        "--top-k", metavar="N", min=1, rich_help_panel=SAMPLING_PANEL, show_default="off",
        help="Sample from the N most probable tokens.")] = None
    top_p: Annotated[float | None, typer.Option(
        "--top-p", metavar="P", rich_help_panel=SAMPLING_PANEL, show_default="off",
        help="Nucleus sampling: sample from the most probable tokens whose probabilities add up to P.")] = None
    min_p: Annotated[float | None, typer.Option(
        "--min-p", metavar="P", rich_help_panel=SAMPLING_PANEL, show_default="off",
        help="Sample from tokens with at least P times the probability of the most probable one.")] = None
    seed: Annotated[int | None, typer.Option(
        "--seed", metavar="N", min=0, rich_help_panel=SAMPLING_PANEL, show_default="0",
        help="Random seed; the same seed gives the same texts.")] = None


@dataclass(frozen=True)
class LengthOptions:
    """Constraints on the generated text."""

    max_length: Annotated[int | None, typer.Option(
        "--max-length", metavar="N", min=0, rich_help_panel=CONSTRAINTS_PANEL, show_default="2 x source length + 20",
        help="Maximum number of generated tokens.")] = None
    min_length: Annotated[int, typer.Option(
        "--min-length", metavar="N", min=0, rich_help_panel=CONSTRAINTS_PANEL,
        help="Minimum number of generated tokens.")] = 0
    no_repeat_ngram_size: Annotated[int | None, typer.Option(
        "--no-repeat-ngram-size", metavar="N", min=1, rich_help_panel=CONSTRAINTS_PANEL, show_default="off",
        help="Generate no n-gram of N tokens twice.")] = None

    def arguments(self) -> dict[str, Any]:
        """The arguments of a `DecodingStrategy`."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def make_beam(given: BeamOptions, lengths: LengthOptions, nbest: int, default: int, **more: Any) -> "Beam":
    """The beam search of these options; `default` is the default beam size."""
    from regard.tasks.search import Beam

    count = default if given.beam is None else given.beam
    if nbest > count:
        fail(f"--nbest {nbest} needs --beam {nbest} or more; the beam size is {count}.")
    if given.diversity_penalty is not None and (given.num_beam_groups or 1) == 1:
        fail("--diversity-penalty needs --num-beam-groups, with at least 2 groups.")
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


def choose_device(device: str) -> str:
    """The device of this name; for auto a GPU if there is one. Exits with 2 if torch does not have it."""
    import torch

    if device == AUTO_DEVICE:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(_cuda_name(device))
    except RuntimeError:
        fail(f"--device must be {AUTO_DEVICE}, cpu, cuda or cuda:1, but is {device!r} instead.")
    if chosen.type == "cuda" and not torch.cuda.is_available():
        fail(f"--device {device}: torch finds no GPU on this machine. Leave it out, or use --device cpu.")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        fail(f"--device {device}: torch finds {plural(torch.cuda.device_count(), 'GPU')}, counted from cuda:0.")
    return str(chosen)


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
        needed = " or ".join(TASK_NOUNS[one] for one in wanted)
        fail(f"{folder}: This command needs {needed}, but this model is {TASK_NOUNS[name]}.{command}")
    return task


def check_to_option(name: str, to: str | None, *tasks: "Task | TranslatorMixin") -> None:
    """Refuse --to if none of the tasks is a translator for several languages, and a language that one does not know.

    Args:
        name: the folder of the first task.
    """
    from regard.tasks.translator import TranslatorMixin

    translators = [task for task in tasks if isinstance(task, TranslatorMixin)]
    if to is None or not translators:
        return
    if not any(one.target_languages for one in translators):
        source, target = translators[0].source_lang, translators[0].target_lang
        pair = f", {source}-{target}" if source and target else f", into {target}" if target else ""
        fail(f"{name}: --to chooses a language of a model for several, but this model has one direction{pair}. Leave "
             "--to out; `regard train --direction` trains a model for several languages.")
    try:
        for one in translators:
            one.into(to)
    except ValueError as error:
        fail(str(error).replace("`to`", "--to", 1))


def choose_target(task: "Task", to: str | None, told: "Collection[LanguagePair]" = ()) -> "Translator":
    """A translator for the language of --to; without it, a model for several languages takes that of its test data.

    Args:
        told: the languages that the data tells, by file names or header lines.
    """
    from regard.data.languages import find_language
    from regard.tasks.translator import Translator

    assert isinstance(task, Translator)
    targets = [*{pair.target for pair in told}]
    if to is None and len(targets) == 1 and find_language(targets[0], task.target_languages) is not None:
        return task.into(targets[0])
    return task.into(to)


def is_file_name(text: str) -> bool:
    """Whether a text of the call is the name of a file, or looks like the name of a missing one.

    A word that is also the name of a folder is a text, unless it ends as shells complete folders: docs/.
    """
    try:
        exists = os.path.exists(text) and (not os.path.isdir(text) or text.endswith(("/", os.sep)))
    except ValueError:  # a NUL, or half a surrogate pair
        return False
    return exists or (text.lower().endswith(FILE_ENDINGS) and len(text.split()) == 1)


def text_blocks(texts: Sequence[str] | None) -> Iterator[list[str]]:
    """The texts of the call; or the lines of standard input, in blocks of those that are available."""
    if texts and list(texts) != ["-"]:
        yield list(texts)
        return
    from regard.data.sources.text import STANDARD_INPUT, DataError, InputFile, decode_chunks

    announce_terminal_input()
    try:
        for text in decode_chunks(InputFile(STANDARD_INPUT)):
            lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
            for first in range(0, len(lines), BLOCK_SIZE):
                yield lines[first:first + BLOCK_SIZE]
    except DataError as error:
        fail(str(error))


def announce_terminal_input() -> None:
    """Say that the command waits for text, if standard input is a terminal."""
    if sys.stdin is not None and sys.stdin.isatty():
        say("Reading from the terminal. Type your text; Ctrl-D on an empty line ends it.")


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
    """A command that accepts other programs' names of its options, and their old names with a notice on stderr."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments in which aliases and old names are replaced by the names of this command's options."""
        known = {name for parameter in self.params for name in (*parameter.opts, *parameter.secondary_opts)}
        options = args.index("--") if "--" in args else len(args)
        renamed = list(args)
        for place, argument in enumerate(args[:options]):
            name, equals, value = argument.partition("=")
            if name in known or not name.startswith("--"):
                continue
            hyphenated = name.replace("_", "-")
            alias, new = OPTION_ALIASES.get(hyphenated, hyphenated), RENAMED_OPTIONS.get(name)
            if alias in known:
                renamed[place] = f"{alias}{equals}{value}"
            elif new in known:
                say(f"{name} is now called {new}.")
                renamed[place] = f"{new}{equals}{value}"
        return super().parse_args(ctx, renamed)


class PanelCommand(RenamedOptionsCommand):
    """A command whose help has a section for each panel and ends with examples, as plain text."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The usage line without the braces and types of typer: MODEL [TEXT]..."""
        pieces = [self.options_metavar] if self.options_metavar else []
        for parameter in self.get_params(ctx):
            if parameter.param_type_name == "argument":
                name = _argument_name(parameter)
                several = "..." if parameter.nargs != 1 and not name.endswith("...") else ""
                pieces.append(f"{name}{several}" if parameter.required or "[" in name else f"[{name}]{several}")
        return pieces

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, and then the options by their panels."""
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in PANELS}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            name, text = record
            is_argument = parameter.param_type_name == "argument"
            title = getattr(parameter, "rich_help_panel", None) or ("Arguments" if is_argument else "Options")
            shown = _argument_name(parameter) if is_argument else name
            text = _plain_default(text, is_argument).replace("-", NO_BREAK_HYPHEN)  # en-fr and --option stay whole
            sections.setdefault(title, []).append((shown, text))
        if "Options" in sections:
            sections["Options"] = sections.pop("Options")
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
        formatter.buffer[:] = [part.replace(NO_BREAK_SPACE, " ").replace(NO_BREAK_HYPHEN, "-")
                               for part in formatter.buffer]

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples as they are, without wrapping."""
        write_examples(getattr(self.callback, EXAMPLES_ATTRIBUTE, ""), formatter)


class ExamplesGroup(TyperGroup):
    """A group of commands whose help lists them by sections and ends with the examples of its callback."""

    def command_sections(self) -> dict[str, list[str]]:
        """The names of the commands by section."""
        return {"Commands": [*self.commands]}

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, each with the first sentence of its docstring, and then the options."""
        width = max(map(len, self.commands))
        for title, names in self.command_sections().items():
            rows = [(name.ljust(width), self.commands[name].get_short_help_str(limit=200)) for name in names]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
        records = [parameter.get_help_record(ctx) for parameter in self.get_params(ctx)]
        with formatter.section("Options"):
            formatter.write_dl([record for record in records if record is not None])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples as they are, without wrapping."""
        write_examples(getattr(self.callback, EXAMPLES_ATTRIBUTE, ""), formatter)


def with_examples(examples: str) -> Callable[[CommandT], CommandT]:
    """A decorator that attaches examples to a command: lines of shell, each with a comment where it needs one."""
    def attach(command: CommandT) -> CommandT:
        setattr(command, EXAMPLES_ATTRIBUTE, inspect.cleandoc(examples))
        return command

    return attach


def write_examples(examples: str, formatter: Any) -> None:
    """Write examples as the last section of a help text."""
    if examples:
        formatter.write("\nExamples:\n" + "".join(f"  {line}\n" for line in examples.splitlines()))


def _argument_name(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _plain_default(text: str, is_argument: bool) -> str:
    """A help text with a plain default at its end, "[default: 5]", that is kept on one line if it is short.

    typer also writes ranges ("x>=1"), parentheses around a default in words, and "required" for arguments, of which the
    usage line tells that.
    """
    text, bracket, extra = text.rpartition("  [")
    if not bracket:
        return extra
    parts = [re.sub(r"^default: \((.*)\)$", r"default: \1", part) for part in extra.removesuffix("]").split("; ")]
    parts = [part for part in parts if not re.fullmatch(r"([-\d.]+<=?)?x([<>]=?[-\d.]+)?", part)
             and not (is_argument and part == "required")]
    shown = "; ".join(parts)
    return f"{text}  [{shown.replace(' ', NO_BREAK_SPACE) if len(shown) < 30 else shown}]" if parts else text


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
