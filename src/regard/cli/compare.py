"""`regard compare`: several models trained and tested alike, two trained models on one test set, or memory tasks.

A folder with a config.toml is a model; anything else is data. `regard.comparison` trains, tests and compares; this
module reads the arguments and prints the results. torch is imported inside the functions.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from regard.cli import options, terminal
from regard.cli import options as models
from regard.cli.terminal import Terminal, escape_unprintable

if TYPE_CHECKING:
    from rich.console import Console

    from regard.comparison.memory import MemoryResult


Several = list[str] | None
DEFAULT_FOLDER = "comparison"
"""Where a comparison goes when nobody says."""
DEFAULT_BEAM_SIZE = 5
"""Of the search, for models that are there already."""


def compare(
    given: Annotated[Several, typer.Argument(metavar="[MODEL MODEL] [DATA]...", help="Pairs to learn from (TSV, JSONL, "
                     "PO, TMX, or plain files in twos); without any, those of the embedded phrasebook. Or the folders "
                     "of two trained models, and pairs to test them on.", show_default=False)] = None,
    road: Annotated[bool, typer.Option("--road", help="Train every step of the road: one context vector, attention, "
                    "attention alone, convolution, Transformer.")] = False,
    task: Annotated[str | None, typer.Option("--task", metavar="NAME", help="Train recurrence, convolution and "
                    "self-attention on a task of memory alone: copy, recall or adding. No data is read.",
                    show_default=False)] = None,
    ways: Annotated[str | None, typer.Option("--ways", metavar="NAME,...", help="With --task: rnn, lstm, gru, mut1, "
                    "mut2, mut3, convolution, attention.", show_default=False)] = None,
    lengths: Annotated[str | None, typer.Option("--lengths", metavar="N,...", help="With --task: of sequences; with "
                       "--long up to 1024 where nothing is said.", show_default=False)] = None,
    long: Annotated[bool, typer.Option("--long", help="With --task: long sequences and trainings, for a GPU.")] = False,
    recipes: Annotated[str | None, typer.Option("--models", metavar="NAME,...", help="Train these recipes, with commas "
                       "between them, such as seq2seq,transformer-small.", show_default=False)] = None,
    output: Annotated[str | None, typer.Option("-o", "--output", metavar="FOLDER", help=f"Where models and results go; "
                      f"{DEFAULT_FOLDER} where trainings are compared and nothing is said.", show_default=False)] = None,
    budget: Annotated[str | None, typer.Option(metavar="KIND:AMOUNT", help="What each training is given: tokens:2M, "
                      "minutes:3 or parameters:1M, or tokens and parameters with a comma between.",
                      show_default="as many tokens as `regard train` would take")] = None,
    seeds: Annotated[int, typer.Option(metavar="N", min=1, help="How often each model is trained.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="Small models and a small budget: minutes on a CPU.")] = False,
    test: Annotated[Several, typer.Option(metavar="FILE", help="Pairs to test on, once for each file. Some of DATA "
                    "where there are none.", show_default=False)] = None,
    validation: Annotated[Several, typer.Option(metavar="FILE", help="Pairs to judge by while training, once for each "
                          "file. Some of DATA where there are none.", show_default=False)] = None,
    changes: Annotated[Several, typer.Option("--set", metavar="KEY=VALUE", help="Set one key of the config of all "
                       "models, as for `regard train`; once for each.", show_default=False)] = None,
    beam: Annotated[int | None, typer.Option("--beam", metavar="N", min=1, help="Of the search by which models are "
                    "tested.", show_default=f"1 for trainings, {DEFAULT_BEAM_SIZE} for models")] = None,
    source: Annotated[str | None, typer.Option(metavar="NAME", help="The source's column (TSV, from 1), key (JSONL) "
                      "or language (TMX).", show_default=False)] = None,
    target: Annotated[str | None, typer.Option(metavar="NAME", help="The target's column, key or language.",
                      show_default=False)] = None,
    format: Annotated[str | None, typer.Option(metavar="NAME", help="plain, tsv, jsonl, po or tmx, whatever the names "
                      "of the files say.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")] = False,
    device: models.DeviceOption = models.AUTO_DEVICE,
) -> None:
    """Compare ways to translate: trained on the same data with the same budget, or trained already.

    `regard compare DATA --road` trains each model, tests all on the same pairs, and tells scores with their spread over
    seeds, also by length, curves, parameters, speed, memory and gradient flow; FOLDER/page.html shows it in one file
    with what each model looks at, FOLDER/results.json holds it. Asked again for the same it goes on: what is finished
    is not done again. `regard compare MODEL MODEL DATA` compares two trained translators: scores, paired bootstrap, and
    sentences side by side. `regard compare --task copy` compares ways to remember. Exit code 1 means that a training
    failed, 2 that the call or the data was wrong, 130 that it was interrupted.
    """
    if task is not None:
        others = {"DATA": given, "--road": road, "--models": recipes, "--budget": budget, "--quick": quick,
                  "--test": test, "--validation": validation, "--set": changes, "--beam": beam, "--source": source,
                  "--target": target, "--format": format}
        _refuse_given(others, "a task of memory takes none: its sequences are made by chance")
        compare_memory(task, ways=ways, lengths=lengths, seeds=seeds, scale="long" if long else "quick",
                                      as_json=as_json, output=output, device=device)
        return
    _refuse_given({"--ways": ways, "--lengths": lengths, "--long": long}, "this goes with --task")
    folders = [path for path in given or () if is_model_folder(path)]
    data = [path for path in given or () if not is_model_folder(path)]
    reading = {"source": source, "target": target, "format": format}
    if folders:
        training = {"--road": road, "--models": recipes, "--budget": budget, "--quick": quick, "--test": test,
                    "--validation": validation, "--set": changes, "--seeds": seeds != 1}
        _compare_models(folders, data, output, beam or DEFAULT_BEAM_SIZE, device, as_json, reading,
                 [name for name, value in training.items() if value])
        return
    if road == (recipes is not None):
        terminal.fail("Say what to compare: --road for every step of it, --models NAME,... for some recipes, or the "
                    "folders of two trained models." if not road else "Give --road or --models, not both.")
    names = None if recipes is None else [name.strip() for name in recipes.split(",") if name.strip()]
    about = {"data": tuple(data), "validation": tuple(validation or ()), "test": tuple(test or ()), **reading}
    if not data and (about["validation"] or about["test"]):
        terminal.fail("--test and --validation go with DATA: the phrasebook has its own.")
    _compare_trainings(names, about, {"seeds": seeds, "beams": beam or 1, "device": device}, quick, budget, changes or (),
               Path(output or DEFAULT_FOLDER), as_json)


def _refuse_given(options: dict[str, Any], why: str) -> None:
    named = [name for name, value in options.items() if value]
    if named:
        terminal.fail(f"{', '.join(named)}: {why}.")


def is_model_folder(path: str) -> bool:
    """Whether a path is the folder of a model."""
    return (Path(path) / "config.toml").is_file()


def _compare_trainings(names: Sequence[str] | None, about: dict[str, Any], options: dict[str, Any], quick: bool,
               budget: str | None, changes: Sequence[str], folder: Path, as_json: bool) -> None:
    from regard import toml
    from regard.cli import progress as compared
    from regard.cli.progress import progress_logger
    from regard.comparison import road as report
    from regard.comparison import runs
    from regard.comparison import runs as place
    from regard.comparison.settings import ROAD, ComparisonBudget, ComparisonSettings, road_steps
    from regard.training.loop import TrainingError

    told = runs.RunReporter(terminal.say, lambda: [compared.BriefLogger(progress_logger(sys.stderr))])
    try:
        options["changes"] = dict(toml.parse_override(text) for text in changes)
        options["budget"] = ComparisonBudget() if budget is None else ComparisonBudget.read(budget)
        make = ComparisonSettings.quick if quick else ComparisonSettings
        setting = make(road_steps(ROAD if names is None else names), **options)
        found = report.compare_road(setting, report.ComparisonData(**about), folder, told)
    except runs.InterruptedTraining as error:
        terminal.fail(str(error), 130)
    except TrainingError as error:
        terminal.fail(str(error), 1)
    except ValueError as error:
        terminal.fail(str(error))
    except OSError as error:
        terminal.fail(f"{error.filename or folder}: {error.strerror}", 1)
    if as_json:
        terminal.write_json(found)
    else:
        draw_road(found, sys.stdout)
        terminal.write_line(str(folder / place.PAGE_FILE))


def _compare_models(folders: Sequence[str], data: Sequence[str], output: str | None, beam: int, device: str, as_json: bool,
             reading: dict[str, Any], training: Sequence[str]) -> None:
    from regard.comparison import pairwise
    from regard.comparison import runs as place
    from regard.comparison.pages import pair_page
    from regard.data.sources import formats

    if len(folders) != 2:
        terminal.fail(f"Two models are compared, but {len(folders)} {'is' if len(folders) == 1 else 'are'} given: "
                    f"{', '.join(folders)}.")
    if training:
        terminal.fail(f"{', '.join(training)}: This is for trainings, and trained models are given.")
    if not data:
        terminal.fail("Give pairs to test the models on, behind the two folders.")
    written = None if output is None else Path(output)
    if written is not None and written.exists() and (not written.is_dir() or any(written.iterdir())):
        terminal.fail(f"{output}: There is something already. Choose another folder.")
    try:
        pairs = [(pair.source, pair.target) for pair in formats.read_pairs(data, **reading)]
        tasks = [models.open_task(folder, device, "Translator") for folder in folders]
        first, second = zip(_model_names(folders), tasks, strict=True)
        found = pairwise.compare_models(first, second, pairs, beams=beam)  # type: ignore[arg-type]
        if written is not None:
            written.mkdir(parents=True, exist_ok=True)
            kept = place.ComparisonFolder(written)
            kept.write(place.RESULTS_FILE, dump_json(found))
            kept.write(place.PAGE_FILE, pair_page(found))
    except ValueError as error:
        terminal.fail(str(error))
    except OSError as error:
        terminal.fail(f"{error.filename or output}: {error.strerror}", 1)
    if as_json:
        terminal.write_json(found)
    else:
        draw_pair(found, sys.stdout)
        if written is not None:
            terminal.write_line(str(written / place.PAGE_FILE))


def _model_names(folders: Sequence[str]) -> list[str]:
    """What the models are called: the names of their folders, or the paths where these are the same."""
    names = [Path(folder).resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else list(folders)


# ---- compare_memory: `regard compare --task`: recurrence, convolution and self-attention on a task of memory alone.
#
# Nothing is read: the sequences are made by chance. A table goes to stdout (or one JSON object), a line for each training
# to stderr when it ends, and into the folder of -o the table as text, all results as JSON, and the picture. How the ways
# are trained and judged is the business of `regard.comparison.memory`.


def compare_memory(task: str, *, ways: str | None = None, lengths: str | None = None, seeds: int = 1,
                   steps: int | None = None, parameters: int | None = None, rows: int | None = None,
                   scale: str = "quick", as_json: bool = False, output: str | None = None,
                   device: str = options.AUTO_DEVICE) -> None:
    """Train every way at every length, and show what came of it.

    Args:
        task: "copy", "recall" or "adding".
        ways, lengths: names and numbers with commas between them; the usual ones where not given.
        steps, parameters, rows: of each training; those of the scale where not given.
        scale: "quick" for two cores, "long" for a GPU and lengths to 1,024.
        output: a folder for the table, the results and the picture. It must not be there yet.
    """

    from regard import checks
    from regard.comparison import memory
    from regard.comparison.memory import SCALES

    try:
        usual = checks.pick("scale", scale, SCALES).budget
        asked = {name: value for name, value in (("steps", steps), ("parameters", parameters), ("rows", rows))
                 if value is not None}
        _check_output(output)
        results = memory.run(task, memory.DEFAULT_MIXERS if ways is None else _split_names(ways),
                             None if lengths is None else _split_numbers("lengths", lengths), replace(usual, **asked),
                             seeds, _check_device(device), scale, done=_report_training)
    except ValueError as error:
        terminal.fail(str(error))
    if output is not None:
        _write_memory_results(results, output)
    if as_json:
        terminal.write_json(memory.results_table(results))
    else:
        Terminal.of(sys.stdout).beside([memory.result_lines(results)])


def _report_training(result: "MemoryResult") -> None:
    accuracy = "" if result.accuracy is None else f", accuracy {result.accuracy:.3f}"
    terminal.say(f"{result.task} {result.length}, {result.way}, seed {result.seed}: loss {result.loss:.5f} (without "
               f"memory {result.chance:.5f}){accuracy}, {result.steps} steps, {result.seconds:.1f} s")


def _split_names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _split_numbers(argument: str, text: str) -> tuple[int, ...]:
    from regard import checks

    found = []
    for part in text.split(","):
        if not part.strip().isdecimal() or not part.strip().isascii():
            raise checks.wrong(argument, "whole numbers with commas between them, such as 64,256", repr(text))
        found.append(int(part))
    return tuple(found)


def _check_device(name: str) -> str:
    """A device that is there; torch's own message names neither the option nor what to do."""
    import torch

    from regard import checks

    chosen = options.choose_device(name)
    try:
        kind = torch.device(chosen).type
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda"):
        raise checks.wrong("device", "cpu, cuda or auto", repr(name))
    if kind == "cuda" and not torch.cuda.is_available():
        raise checks.wrong("device", "one that is there", f"{name!r}, and this machine has no GPU that torch can use",
                           "Leave it out, or choose cpu.")
    return chosen


def _check_output(output: str | None) -> None:
    """Before any work: what is written must have a place, and nothing is written over."""
    from regard.inspection.pictures import canvas

    if output is None:
        return
    if os.path.lexists(output):
        terminal.fail(f"{output}: It is there already, and is not written over. Choose another name.")
    if not os.path.isdir(os.path.dirname(os.path.abspath(output))):
        terminal.fail(f"{output}: There is no folder to make it in. Make that first.")
    canvas.load_matplotlib()


def _write_memory_results(results: Sequence["MemoryResult"], output: str) -> None:
    from regard.comparison import memory
    from regard.comparison import memory as report

    folder = Path(output)
    try:
        folder.mkdir()
        text = "\n".join(memory.result_lines(results)) + "\n"
        (folder / f"{results[0].task}.txt").write_text(text, encoding="utf-8")
        written = json.dumps(memory.results_table(results), indent=1, ensure_ascii=False) + "\n"
        (folder / f"{results[0].task}.json").write_text(written, encoding="utf-8")
        report.save_figures(results, folder)
    except OSError as error:
        terminal.fail(f"{error.filename or output}: {error.strerror}", 1)


# ---- compared: How `regard compare` shows what it found: tables on stdout, and on stderr how each training goes, in few words.
#
# Texts of the user are never read as markup. It knows the tables of `regard.comparison`, and does not compute anything.

ResultTable = Mapping[str, Any]
SHOWN_SENTENCES = 3
"""Sentences of each end of the list that the terminal shows."""
MIN_WIDTH = 40


def draw_road(found: ResultTable, out: TextIO) -> None:
    """The tables of trained steps."""
    from regard.comparison.pages import bucket_name, format_bytes, format_spread, long_sentence_ratio

    console, models = _console(out), found["models"]
    console.print(f"The same for all: {found['budget']['said']}; {found['data']['train']:,} pairs of "
                  f"{escape_unprintable(found['data']['name'])}; tested on {found['data']['test']:,} others; seeds: "
                  f"{found['seeds']}.", markup=False, highlight=False)
    rows = []
    for model in models:
        kept = long_sentence_ratio(model)
        rows.append([model["name"], format_spread(model["bleu"]), format_spread(model["chrf"]), "" if kept is None else f"{kept:.0%}",
                     f"{model['parameters']:,}", format_spread(model["tokens_per_second"], 0), format_bytes(model["memory"])])
    _print_table(console, ["model", "BLEU", "chrF", "kept on long", "parameters", "tokens/s", "step memory"], rows)
    names = [bucket_name(bucket) for bucket in models[0]["by_length"]]
    _print_table(console, ["BLEU by words", *names],
           [[model["name"], *(format_spread(bucket["bleu"]) for bucket in model["by_length"])] for model in models])
    places = [0, 4, 9]
    _print_table(console, ["gradient to the source", "first tenth", "middle", "last tenth"],
           [[model["name"], *(f"{model['flow']['all'][place]:.2f}" for place in places)] for model in models])


def draw_pair(found: ResultTable, out: TextIO) -> None:
    """The tables of two trained models."""
    from regard.comparison.pages import bucket_name, describe_difference

    console, models = _console(out), found["models"]
    _print_table(console, ["model", "BLEU", "chrF", "loss", "parameters"],
           [[model["name"], f"{model['bleu']:.2f}", f"{model['chrf']:.2f}", f"{model['loss']:.3f}",
             f"{model['parameters']:,}"] for model in models])
    for score in ("bleu", "chrf"):
        one = found["difference"][score]
        console.print(f"{escape_unprintable(describe_difference(dict(found), score))} 95 of 100: {one['low']:+.2f} to {one['high']:+.2f}.",
                      markup=False, highlight=False)
    names = [bucket_name(bucket) for bucket in models[0]["by_length"]]
    _print_table(console, ["BLEU by words", *names],
           [[model["name"], *(f"{bucket['bleu']:.1f}" for bucket in model["by_length"])] for model in models])
    sentences = [one for one in found["sentences"] if one["difference"]]
    shown = sentences if len(sentences) <= 2 * SHOWN_SENTENCES else [*sentences[:SHOWN_SENTENCES], *sentences[-SHOWN_SENTENCES:]]
    for one in shown:
        console.print()
        for label, text in (("source", one["source"]), ("reference", one["reference"]),
                            (f"{models[0]['name']} {one['first_chrf']:.0f}", one["first"]),
                            (f"{models[1]['name']} {one['second_chrf']:.0f}", one["second"])):
            console.print(f"{escape_unprintable(label)}: {escape_unprintable(text)}", markup=False, highlight=False)
    if not sentences:
        console.print("Every sentence has the same score in both.", markup=False, highlight=False)


def dump_json(found: ResultTable) -> str:
    """A table as the text of a file."""
    return json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _console(out: TextIO) -> "Console":
    from rich.console import Console

    # Where stdout is no terminal a table has all its columns, however long its lines become.
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
