"""`regard compare`: several models trained and tested alike, two trained models on one test set, or memory tasks.

A folder with a config.toml is a model; anything else is data. `regard.comparison` trains, tests and compares; this
module reads the arguments and prints the results. torch is imported inside the functions.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from regard.checks import join_names
from regard.cli.options import (
    AUTO_DEVICE,
    DATA_PANEL,
    MODEL_PANEL,
    OUTPUT_PANEL,
    TRAINING_PANEL,
    DeviceOption,
    FormatOption,
    JsonReportOption,
    QuietOption,
    SourceOption,
    TargetOption,
    ToOption,
    beam_option,
    check_to_option,
    choose_device,
    choose_target,
    complete_names,
    expand_options,
    open_task,
    with_examples,
)
from regard.cli.output import fail, say, say_note, say_notes, write_json, write_line
from regard.terminal import Terminal, escape_unprintable

if TYPE_CHECKING:
    from rich.console import Console

    from regard.comparison.memory import MemoryResult
    from regard.comparison.pairwise import NamedTranslator
    from regard.comparison.runs import RunReporter
    from regard.comparison.settings import ComparisonSettings, RoadStep
    from regard.inspection.trace_format import MeasuredHeads

Several = list[str] | None
ResultTable = Mapping[str, Any]
DEFAULT_FOLDER = "comparison"
"""The default output folder of a comparison of trainings."""
DEFAULT_BEAM_SIZE = 5
"""The default beam size for models that are already trained."""
SHOWN_SENTENCES = 3
"""Sentences that are printed from each end of the list."""
SENTENCE_PAGES = "sentences"
"""The folder of the pages that rows of the comparison link to."""
MIN_WIDTH, MEMORY_PANEL = 40, "Memory tasks"
TASKS = ("copy", "recall", "adding", "label")


@dataclass(frozen=True)
class MemoryOptions:
    """Options of a comparison on a memory task."""

    task: Annotated[str | None, typer.Option(
        "--task", metavar="NAME", rich_help_panel=MEMORY_PANEL, show_default=False,
        autocompletion=complete_names(*TASKS),
        help="Train recurrence, convolution, self-attention and RWKV on a synthetic memory task: copy, recall or "
        "adding; or label: on DATA with a label for every token (TSV, CoNLL, JSONL).")] = None
    mixers: Annotated[str | None, typer.Option(
        "--mixers", metavar="NAME,...", rich_help_panel=MEMORY_PANEL,
        show_default="rnn,lstm,gru,convolution,attention,rwkv7",
        help="With --task: rnn, lstm, gru, mut1, mut2, mut3, convolution, attention, rwkv4, rwkv7.")] = None
    lengths: Annotated[str | None, typer.Option(
        "--lengths", metavar="N,...", rich_help_panel=MEMORY_PANEL, show_default="depends on the task",
        help="With --task: sequence lengths, such as 16,64.")] = None
    long: Annotated[bool, typer.Option(
        "--long", rich_help_panel=MEMORY_PANEL,
        help="With --task: sequences up to 1,024 and longer trainings, for a GPU.")] = False


@dataclass(frozen=True)
class ComparisonOptions:
    """Options of all comparisons, of which each kind uses some; None if not given."""

    test: Annotated[Several, typer.Option(
        "--test", metavar="FILE", rich_help_panel=DATA_PANEL, show_default="a part of DATA",
        help="Test pairs; repeat for each file.")] = None
    validation: Annotated[Several, typer.Option(
        "--validation", metavar="FILE", rich_help_panel=DATA_PANEL, show_default="a part of DATA",
        help="Validation pairs; repeat for each file.")] = None
    source: SourceOption = None
    target: TargetOption = None
    format: FormatOption = None
    road: Annotated[bool, typer.Option(
        "--road", rich_help_panel=MODEL_PANEL,
        help="Train five models, the road from the recurrent network to the Transformer: RNN encoder-decoder, the same "
        "with attention, attention alone, convolution, Transformer.")] = False
    models: Annotated[str | None, typer.Option(
        "--models", metavar="NAME,...", rich_help_panel=MODEL_PANEL, show_default=False,
        help="Train these recipes, such as seq2seq,transformer-small.")] = None
    budget: Annotated[str | None, typer.Option(
        "--budget", metavar="KIND:N", rich_help_panel=TRAINING_PANEL,
        show_default="the tokens that `regard train` would choose",
        help="The budget of each model: tokens:2M, minutes:3, parameters:1M, or tokens:2M,parameters:1M.")] = None
    seeds: Annotated[int, typer.Option(
        "--seeds", metavar="N", min=1, rich_help_panel=TRAINING_PANEL,
        help="Train each model with N different seeds.")] = 1
    quick: Annotated[bool, typer.Option(
        "--quick", rich_help_panel=TRAINING_PANEL, help="Small models and a small budget: minutes on a CPU.")] = False
    set: Annotated[Several, typer.Option(
        "--set", metavar="KEY=VALUE", rich_help_panel=TRAINING_PANEL, show_default=False,
        help="Set a config key of all models, as for `regard train`; repeat for each key.")] = None
    to: ToOption = None
    beam: Annotated[int | None, beam_option(
        f"1 after training, {DEFAULT_BEAM_SIZE} for trained models", help="Beam size of the test.")] = None
    device: DeviceOption = AUTO_DEVICE
    output: Annotated[str | None, typer.Option(
        "-o", "--output", metavar="FOLDER", rich_help_panel=OUTPUT_PANEL,
        show_default=f"{DEFAULT_FOLDER} if models are trained, else none",
        help="Folder for models, results.json and page.html.")] = None
    as_json: JsonReportOption = False
    quiet: QuietOption = False

    def reading(self) -> dict[str, Any]:
        """How the files are read."""
        return {"source": self.source, "target": self.target, "format": self.format}

    def files(self, data: Sequence[str]) -> dict[str, Any]:
        """The data of a comparison of trainings."""
        return {"data": tuple(data), "validation": tuple(self.validation or ()), "test": tuple(self.test or ()),
                **self.reading()}

    def folder(self) -> Path:
        """The output folder of a comparison of trainings."""
        return Path(self.output or DEFAULT_FOLDER)


@with_examples("""
    regard compare model-a model-b test.tsv         # two trained translators
    regard compare pairs.tsv --road --quick         # train all five, in minutes
    regard compare pairs.tsv --models seq2seq,transformer --seeds 3
    regard compare --task copy --mixers lstm,attention --lengths 16,64
    regard compare labelled.tsv --task label --quick
""")
@expand_options
def compare(
    given: Annotated[Several, typer.Argument(
        metavar="[MODEL MODEL] [DATA]...", show_default=False,
        help="Two model folders and sentence pairs to test them on; or sentence pairs to train on (TSV, JSONL, PO, "
        "TMX, or pairs of plain files), by default those of `regard data phrasebook`.")] = None,
    *,
    options: ComparisonOptions,
    memory: MemoryOptions,
) -> None:
    """Compare two trained translators, or train several models on the same data and compare them.

    `regard compare MODEL MODEL DATA` tests two trained translators: scores, significance by paired bootstrap, and the
    sentences that differ most. `regard compare DATA --road` trains several models on the same data with the same budget
    and tests them on the same pairs: scores over seeds and by length, parameters, speed, memory, and gradients;
    FOLDER/page.html also shows learning curves and attention. The same call resumes an interrupted comparison. `regard
    compare --task copy` compares layers on a memory task, and `regard compare DATA --task label` the three taggers on
    data with a label for every token. Exit code 1: a training failed; 2: the call or the data was
    wrong; 130: interrupted.
    """
    if memory.task is not None and memory.task not in TASKS:
        fail(f"--task must be one of {', '.join(TASKS)}, but is {memory.task} instead.")
    if memory.task == "label":
        _refuse([*_given(options, "road", "beam", "to"), *_given(memory, "mixers", "lengths", "long")],
                "with --task label")
        _compare_taggers(given or (), options)
    elif memory.task is not None:
        others = _given(options, "road", "models", "budget", "quick", "test", "validation", "set", "beam", "source",
                        "target", "format", "to")
        _refuse(["DATA", *others] if given else others, "with --task, whose sequences are random")
        compare_memory(memory.task, mixers=memory.mixers, lengths=memory.lengths, seeds=options.seeds,
                       output=options.output, scale="long" if memory.long else "quick", as_json=options.as_json,
                       device=options.device, quiet=options.quiet)
    else:
        _refuse(_given(memory, "mixers", "lengths", "long"), "without --task")
        folders = [path for path in given or () if _is_model_folder(path)]
        data = [path for path in given or () if not _is_model_folder(path)]
        if folders:
            _compare_models(folders, data, options)
        else:
            _compare_trainings(data, options)


def _given(group: ComparisonOptions | MemoryOptions, *names: str) -> list[str]:
    """Those of these options that have another value than their default."""
    defaults = {field.name: field.default for field in fields(group)}
    return [f"--{name}" for name in names if getattr(group, name) != defaults[name]]


def _refuse(names: list[str], why: str) -> None:
    """Refuse options that have no effect here, if there are any."""
    if names:
        one = len(names) == 1
        fail(f"{join_names(names)} {'has' if one else 'have'} no effect {why}. Leave {'it' if one else 'them'} out.")


def _say_nothing(message: str) -> None:
    """Drop a message about progress."""


def _is_model_folder(path: str) -> bool:
    return (Path(path) / "config.toml").is_file()


def _split_names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _compare_trainings(data: Sequence[str], options: ComparisonOptions) -> None:
    """Train the models of the road, or those of --models, on sentence pairs."""
    from regard.comparison import road
    from regard.comparison.runs import RunReporter
    from regard.comparison.settings import ROAD, ComparisonSettings, road_steps

    _refuse(_given(options, "to"), "without trained models")
    if options.road == (options.models is not None):
        fail("Give --road or --models, not both." if options.road else "Choose what to compare: two model folders and "
             "test data; or data and --road or --models NAME,... to train models on it.")
    if not data and (options.validation or options.test):
        fail("--test and --validation need DATA: the phrasebook has its own test and validation pairs.")
    names = ROAD if options.models is None else _split_names(options.models)

    def run(settings: ComparisonSettings, reporter: RunReporter) -> ResultTable:
        return road.compare_road(settings, road.ComparisonData(**options.files(data)), options.folder(), reporter)

    _run_trainings(lambda: road_steps(names), run, lambda found: draw_road(found, sys.stdout), options,
                   beams=options.beam or 1)


def _run_trainings(steps: "Callable[[], tuple[RoadStep, ...]]",
                   run: "Callable[[ComparisonSettings, RunReporter], ResultTable]",
                   draw: Callable[[ResultTable], None], options: ComparisonOptions, **settings: Any) -> None:
    """Run a comparison of trainings, and print its results.

    Args:
        steps: the models; a ValueError names one that does not fit.
        run: trains and tests them.
        draw: prints the results.
        settings: the other arguments of `ComparisonSettings`.
    """
    from regard import toml
    from regard.comparison import runs
    from regard.comparison.settings import ComparisonBudget, ComparisonSettings
    from regard.training.loop import TrainingError
    from regard.training.progress import BriefLogger, progress_logger

    reporter = runs.RunReporter(_say_nothing if options.quiet else say,
                                lambda: [] if options.quiet else [BriefLogger(progress_logger(sys.stderr))])
    try:
        changes = dict(toml.parse_override(text) for text in options.set or ())
        budget = ComparisonBudget() if options.budget is None else ComparisonBudget.read(options.budget)
        make = ComparisonSettings.quick if options.quick else ComparisonSettings
        found = run(make(steps(), seeds=options.seeds, device=options.device, changes=changes, budget=budget,
                         **settings), reporter)
    except runs.InterruptedTraining as error:
        fail(str(error), 130)
    except TrainingError as error:
        fail(str(error), 1)
    except ValueError as error:
        fail(str(error))
    if options.as_json:
        write_json(found)
    else:
        draw(found)
        write_line(str(options.folder() / runs.PAGE_FILE))


def _compare_taggers(data: Sequence[str], options: ComparisonOptions) -> None:
    """Train taggers on sequences with a label for every token."""
    from regard.comparison.runs import RunReporter
    from regard.comparison.settings import TAGGERS, ComparisonSettings, road_steps
    from regard.comparison.taggers import LabelledData, compare_taggers, describe_setting, label_rows, score_rows
    from regard.training.tasks.labelling import TokenLabelSetup

    if not data:
        fail("--task label needs DATA: sequences with a label for every token.")
    names = TAGGERS if options.models is None else _split_names(options.models)

    def run(settings: ComparisonSettings, reporter: RunReporter) -> ResultTable:
        return compare_taggers(settings, LabelledData(**options.files(data)), options.folder(), reporter)

    def draw(found: ResultTable) -> None:
        console = _make_console(sys.stdout)
        console.print(escape_unprintable(describe_setting(found)), markup=False, highlight=False)
        for head, rows in (score_rows(found), label_rows(found)):
            _print_table(console, head, rows)

    _run_trainings(lambda: road_steps(names, TokenLabelSetup.model_kinds), run, draw, options, task="label")


def _compare_models(folders: Sequence[str], data: Sequence[str], options: ComparisonOptions) -> None:
    """Test two trained translators on sentence pairs."""
    from regard.comparison import pairwise, runs
    from regard.comparison.pages import pair_page
    from regard.data.sources import formats
    from regard.tasks.heads import stored_heads

    missing = [path for path in data if path != "-" and not os.path.exists(path)]
    if missing:
        fail(f"{missing[0]}: No such model folder or data file.")
    _refuse(_given(options, "road", "models", "budget", "quick", "test", "validation", "set", "seeds"),
            "with trained models, which are only tested")
    if len(folders) != 2:
        fail(f"Give two model folders, not {len(folders)}: {', '.join(folders)}.")
    if not data:
        fail("Give sentence pairs after the two model folders, to test the models on.")
    folder = None if options.output is None else Path(options.output)
    if folder is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        fail(f"{folder}: The folder exists already. Choose another one, or remove it.")
    try:
        corpus = formats.read_pairs(data, **options.reading())
        pairs = [(pair.source, pair.target) for pair in corpus]
        say_notes(corpus.log.notes)
        told = {*corpus.log.languages.values()}
        opened = [open_task(name, options.device, "Translator") for name in folders]
        check_to_option(folders[0], options.to, *opened)
        tasks = [choose_target(task, options.to, told) for task in opened]
        first, second = zip(_model_names(folders), tasks, strict=True)
        beams = options.beam or DEFAULT_BEAM_SIZE
        found = pairwise.compare_models(first, second, pairs, beams=beams)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            saved = runs.ComparisonFolder(folder)
            results = json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
            saved.write(runs.RESULTS_FILE, results)
            heads = [stored_heads(name, say_note) for name in folders]
            links = _write_sentence_pages(folder, found, (first, second), heads, beams)
            saved.write(runs.PAGE_FILE, pair_page(found, links))
    except ValueError as error:
        fail(str(error))
    if options.as_json:
        write_json(found)
    else:
        draw_pair(found, sys.stdout)
        if folder is not None:
            write_line(str(folder / runs.PAGE_FILE))


def _write_sentence_pages(folder: Path, found: dict[str, Any], models: "Sequence[NamedTranslator]",
                          heads: "Sequence[MeasuredHeads | None]", beam: int) -> dict[int, str]:
    """Write a page of both models for each sentence that is linked, and return their addresses by its number."""
    from regard.comparison.pages import linked_sentences
    from regard.inspection.page.document import page_html
    from regard.storage.filesystem import write_file
    from regard.tasks.traces import INFLUENCE_LIMIT, trace_translation

    if not all(task.attends for _, task in models):
        return {}
    pages = dict[int, str]()
    for one in linked_sentences(found):
        try:
            traces = [trace_translation(task, one["source"], beams=beam, name=name, influence_limit=INFLUENCE_LIMIT)
                      for name, task in models]
        except ValueError:  # a blank source, or a model that generates nothing for it
            continue
        traces = [replace(trace, heads=measured) for trace, measured in zip(traces, heads, strict=True)]
        (folder / SENTENCE_PAGES).mkdir(exist_ok=True)
        pages[one["number"]] = f"{SENTENCE_PAGES}/{one['number'] + 1}.html"
        write_file(folder / pages[one["number"]], page_html(traces).encode())
    return pages


def _model_names(folders: Sequence[str]) -> list[str]:
    """The names of the folders, or their paths if the names are equal."""
    names = [Path(folder).resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else list(folders)


# Memory tasks

def compare_memory(task: str, *, mixers: str | None = None, lengths: str | None = None, seeds: int = 1,
                   steps: int | None = None, parameters: int | None = None, rows: int | None = None,
                   scale: str = "quick", as_json: bool = False, output: str | None = None,
                   device: str = AUTO_DEVICE, quiet: bool = False) -> None:
    """Train every mixer at every length, and print the results.

    A table or a JSON object goes to stdout, and a line for each finished training to stderr.

    Args:
        task: "copy", "recall" or "adding".
        mixers, lengths: names and numbers, separated by commas; by default those of `regard.comparison.memory`.
        steps, parameters, rows: the budget of each training; by default that of the scale.
        scale: "quick" for two cores, "long" for a GPU and lengths up to 1,024.
        output: a new folder for the table, the results as JSON, and the figure.
        quiet: print no lines about finished trainings.
    """
    from regard import checks
    from regard.comparison import memory

    try:
        default = checks.pick("scale", scale, memory.SCALES).budget
        budget = {name: value for name, value in (("steps", steps), ("parameters", parameters), ("rows", rows))
                  if value is not None}
        _check_output(output)
        results = memory.run(task, memory.DEFAULT_MIXERS if mixers is None else _split_names(mixers),
                             None if lengths is None else _split_numbers("lengths", lengths),
                             replace(default, **budget), seeds, choose_device(device), scale,
                             on_result=None if quiet else _report_training)
    except ValueError as error:
        fail(str(error))
    if output is not None:
        _write_memory_results(results, output)
    if as_json:
        write_json(memory.results_table(results))
    else:
        Terminal.of(sys.stdout).beside([memory.result_lines(results)])


def _report_training(result: "MemoryResult") -> None:
    accuracy = "" if result.accuracy is None else f", accuracy {result.accuracy:.3f}"
    say(f"{result.task} {result.length}, {result.mixer}, seed {result.seed}: loss {result.loss:.5f} (baseline without "
        f"memory: {result.chance:.5f}){accuracy}, {result.steps:,} steps, {result.seconds:.1f} s")


def _split_numbers(argument: str, text: str) -> tuple[int, ...]:
    from regard import checks

    numbers = []
    for part in text.split(","):
        if not part.strip().isdecimal() or not part.strip().isascii():
            raise checks.wrong(argument, "whole numbers separated by commas, such as 64,256", repr(text))
        numbers.append(int(part))
    return tuple(numbers)


def _check_output(output: str | None) -> None:
    """Refuse an output that cannot be written, before the work begins."""
    from regard.inspection.pictures import canvas

    if output is None:
        return
    if os.path.lexists(output):
        fail(f"{output}: The folder exists already. Choose another name, or remove it.")
    if not os.path.isdir(os.path.dirname(os.path.abspath(output))):
        fail(f"{output}: Its parent folder does not exist. Create it first.")
    canvas.load_matplotlib()


def _write_memory_results(results: Sequence["MemoryResult"], output: str) -> None:
    from regard.comparison import memory
    from regard.storage.filesystem import write_file

    folder = Path(output)
    folder.mkdir()
    text = "\n".join(memory.result_lines(results)) + "\n"
    write_file(folder / f"{results[0].task}.txt", text.encode())
    table = json.dumps(memory.results_table(results), indent=1, ensure_ascii=False) + "\n"
    write_file(folder / f"{results[0].task}.json", table.encode())
    memory.save_figures(results, folder)


# Tables on stdout

def draw_road(found: ResultTable, out: TextIO) -> None:
    """Print the tables of trained models."""
    from regard.comparison.pages import bucket_name, format_bytes, format_spread, long_sentence_ratio

    console, models = _make_console(out), found["models"]
    seeds = f"{found['seeds']} seed{'' if found['seeds'] == 1 else 's'}"
    console.print(f"Every model: {found['budget']['said']}; trained on {found['data']['train']:,} pairs of "
                  f"{escape_unprintable(found['data']['name'])}, tested on {found['data']['test']:,} others; {seeds}.",
                  markup=False, highlight=False)
    rows = []
    for model in models:
        ratio = long_sentence_ratio(model)
        rows.append([model["name"], format_spread(model["bleu"]), format_spread(model["chrf"]),
                     "" if ratio is None else f"{ratio:.0%}", f"{model['parameters']:,}",
                     format_spread(model["tokens_per_second"], 0), format_bytes(model["memory"])])
    head = ["model", "BLEU", "chrF", "long/short BLEU", "parameters", "tokens/s", "memory per step"]
    _print_table(console, head, rows)
    names = [bucket_name(bucket) for bucket in models[0]["by_length"]]
    _print_table(console, ["BLEU by source words", *names],
                 [[model["name"], *(format_spread(bucket["bleu"]) for bucket in model["by_length"])]
                  for model in models])
    places = [0, 4, 9]
    _print_table(console, ["gradient by source position", "first tenth", "middle", "last tenth"],
                 [[model["name"], *(f"{model['flow']['all'][place]:.2f}" for place in places)] for model in models])


def draw_pair(found: ResultTable, out: TextIO) -> None:
    """Print the tables of two trained models."""
    from regard.comparison.pages import bucket_name, describe_difference

    console, models = _make_console(out), found["models"]
    _print_table(console, ["model", "BLEU", "chrF", "loss", "parameters"],
                 [[model["name"], f"{model['bleu']:.2f}", f"{model['chrf']:.2f}", f"{model['loss']:.3f}",
                   f"{model['parameters']:,}"] for model in models])
    for score in ("bleu", "chrf"):
        one = found["difference"][score]
        verdict = escape_unprintable(describe_difference(dict(found), score))
        console.print(f"{verdict} 95% confidence interval of the difference: {one['low']:+.2f} to {one['high']:+.2f}.",
                      markup=False, highlight=False)
    names = [bucket_name(bucket) for bucket in models[0]["by_length"]]
    _print_table(console, ["BLEU by source words", *names],
                 [[model["name"], *(f"{bucket['bleu']:.1f}" for bucket in model["by_length"])] for model in models])
    sentences = [one for one in found["sentences"] if one["difference"]]
    shown = sentences
    if len(sentences) > 2 * SHOWN_SENTENCES:
        shown = [*sentences[:SHOWN_SENTENCES], *sentences[-SHOWN_SENTENCES:]]
    if shown:
        console.print("\nSentences that differ most (the number is the sentence's chrF)", markup=False, highlight=False)
    for one in shown:
        console.print()
        for label, text in (("source", one["source"]), ("reference", one["reference"]),
                            (f"{models[0]['name']} {one['first_chrf']:.0f}", one["first"]),
                            (f"{models[1]['name']} {one['second_chrf']:.0f}", one["second"])):
            console.print(f"{escape_unprintable(label)}: {escape_unprintable(text)}", markup=False, highlight=False)
    if not sentences:
        console.print("Every sentence has the same chrF with both models.", markup=False, highlight=False)


def _make_console(out: TextIO) -> "Console":
    from rich.console import Console

    # In a file or a pipe a table has all its columns, however long its lines become.
    width = max(MIN_WIDTH, shutil.get_terminal_size().columns) if out.isatty() else 120
    return Console(file=out, width=width, markup=False, highlight=False, emoji=False, soft_wrap=False)


def _print_table(console: "Console", head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, pad_edge=False)
    for place, name in enumerate(head):
        table.add_column(Text(escape_unprintable(name)), justify="left" if place == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(escape_unprintable(cell)) for cell in row))
    console.print(table)
