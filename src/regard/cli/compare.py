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

from regard.cli.options import (
    AUTO_DEVICE,
    DeviceOption,
    FormatOption,
    JsonReportOption,
    SourceOption,
    TargetOption,
    choose_device,
    open_task,
)
from regard.cli.terminal import Terminal, escape_unprintable, fail, say, write_json, write_line

if TYPE_CHECKING:
    from rich.console import Console

    from regard.comparison.memory import MemoryResult

Several = list[str] | None
ResultTable = Mapping[str, Any]
DEFAULT_FOLDER = "comparison"
"""The default output folder of a comparison of trainings."""
DEFAULT_BEAM_SIZE = 5
"""The default beam size for models that are already trained."""
SHOWN_SENTENCES = 3
"""Sentences that are printed from each end of the list."""
MIN_WIDTH = 40


def compare(
    given: Annotated[Several, typer.Argument(metavar="[MODEL MODEL] [DATA]...", help="Sentence pairs to train on (TSV, "
                     "JSONL, PO, TMX, or pairs of plain files); by default those of the phrasebook. Or two model "
                     "folders, and sentence pairs to test them on.", show_default=False)] = None,
    road: Annotated[bool, typer.Option("--road", help="Train every step of the road: one context vector, attention, "
                    "attention alone, convolution, Transformer.")] = False,
    task: Annotated[str | None, typer.Option("--task", metavar="NAME", help="Train recurrence, convolution and "
                    "self-attention on a memory task: copy, recall or adding. No data is read.",
                    show_default=False)] = None,
    mixers: Annotated[str | None, typer.Option("--mixers", metavar="NAME,...", help="With --task: rnn, lstm, gru, "
                      "mut1, mut2, mut3, convolution, attention.", show_default=False)] = None,
    lengths: Annotated[str | None, typer.Option("--lengths", metavar="N,...", help="With --task: lengths of sequences; "
                       "with --long up to 1024 by default.", show_default=False)] = None,
    long: Annotated[bool, typer.Option("--long", help="With --task: long sequences and trainings, for a GPU.")] = False,
    recipes: Annotated[str | None, typer.Option("--models", metavar="NAME,...", help="Train these recipes, separated "
                       "by commas, such as seq2seq,transformer-small.", show_default=False)] = None,
    output: Annotated[str | None, typer.Option("-o", "--output", metavar="FOLDER", help=f"Folder for models and "
                      f"results; {DEFAULT_FOLDER} by default for trainings.", show_default=False)] = None,
    budget: Annotated[str | None, typer.Option(metavar="KIND:AMOUNT", help="Budget of each training: tokens:2M, "
                      "minutes:3 or parameters:1M, or tokens and parameters separated by a comma.",
                      show_default="as many tokens as `regard train` would take")] = None,
    seeds: Annotated[int, typer.Option(metavar="N", min=1, help="Number of trainings of each model.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="Small models and a small budget: minutes on a CPU.")] = False,
    test: Annotated[Several, typer.Option(metavar="FILE", help="Test pairs; repeat for each file. By default a part of "
                    "DATA.", show_default=False)] = None,
    validation: Annotated[Several, typer.Option(metavar="FILE", help="Validation pairs; repeat for each file. By "
                          "default a part of DATA.", show_default=False)] = None,
    changes: Annotated[Several, typer.Option("--set", metavar="KEY=VALUE", help="Set a key of the config of all "
                       "models, as for `regard train`; repeat for each.", show_default=False)] = None,
    beam: Annotated[int | None, typer.Option("--beam", metavar="N", min=1, help="Beam size of the test.",
                    show_default=f"1 for trainings, {DEFAULT_BEAM_SIZE} for models")] = None,
    source: SourceOption = None,
    target: TargetOption = None,
    format: FormatOption = None,
    as_json: JsonReportOption = False,
    device: DeviceOption = AUTO_DEVICE,
) -> None:
    """Compare translation models: trained on the same data with the same budget, or already trained.

    `regard compare DATA --road` trains each model, tests all on the same pairs, and prints scores with their spread
    over seeds, also by length, curves, parameters, speed, memory and gradient flow; FOLDER/page.html shows all of it
    with the attention of each model, FOLDER/results.json has the numbers. The same call resumes: what is finished is
    not done again. `regard compare MODEL MODEL DATA` compares two trained translators: scores, paired bootstrap, and
    sentences side by side. `regard compare --task copy` compares mixers on a memory task. Exit code 1 means that a
    training failed, 2 that the call or the data was wrong, 130 that it was interrupted.
    """
    if task is not None:
        others = {"DATA": given, "--road": road, "--models": recipes, "--budget": budget, "--quick": quick,
                  "--test": test, "--validation": validation, "--set": changes, "--beam": beam, "--source": source,
                  "--target": target, "--format": format}
        _refuse_given(others, "not for --task, whose sequences are random")
        compare_memory(task, mixers=mixers, lengths=lengths, seeds=seeds, scale="long" if long else "quick",
                       as_json=as_json, output=output, device=device)
        return
    _refuse_given({"--mixers": mixers, "--lengths": lengths, "--long": long}, "only for --task")
    folders = [path for path in given or () if _is_model_folder(path)]
    data = [path for path in given or () if not _is_model_folder(path)]
    reading = {"source": source, "target": target, "format": format}
    if folders:
        training = {"--road": road, "--models": recipes, "--budget": budget, "--quick": quick, "--test": test,
                    "--validation": validation, "--set": changes, "--seeds": seeds != 1}
        _refuse_given(training, "only for trainings, and trained models are given")
        _compare_models(folders, data, output, beam or DEFAULT_BEAM_SIZE, device, as_json, reading)
        return
    if road == (recipes is not None):
        fail("Give --road or --models, not both." if road else "Choose what to compare: --road for every step of it, "
             "--models NAME,... for some recipes, or the folders of two trained models.")
    names = None if recipes is None else _split_names(recipes)
    files = {"data": tuple(data), "validation": tuple(validation or ()), "test": tuple(test or ()), **reading}
    if not data and (files["validation"] or files["test"]):
        fail("--test and --validation need DATA: the phrasebook has its own.")
    _compare_trainings(names, files, {"seeds": seeds, "beams": beam or 1, "device": device}, quick, budget,
                       changes or (), Path(output or DEFAULT_FOLDER), as_json)


def _refuse_given(options: dict[str, Any], why: str) -> None:
    names = [name for name, value in options.items() if value]
    if names:
        fail(f"{', '.join(names)}: {why}.")


def _is_model_folder(path: str) -> bool:
    return (Path(path) / "config.toml").is_file()


def _split_names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _compare_trainings(names: Sequence[str] | None, files: dict[str, Any], options: dict[str, Any], quick: bool,
                       budget: str | None, changes: Sequence[str], folder: Path, as_json: bool) -> None:
    from regard import toml
    from regard.cli.progress import BriefLogger, progress_logger
    from regard.comparison import road, runs
    from regard.comparison.settings import ROAD, ComparisonBudget, ComparisonSettings, road_steps
    from regard.training.loop import TrainingError

    reporter = runs.RunReporter(say, lambda: [BriefLogger(progress_logger(sys.stderr))])
    try:
        options["changes"] = dict(toml.parse_override(text) for text in changes)
        options["budget"] = ComparisonBudget() if budget is None else ComparisonBudget.read(budget)
        make = ComparisonSettings.quick if quick else ComparisonSettings
        settings = make(road_steps(ROAD if names is None else names), **options)
        found = road.compare_road(settings, road.ComparisonData(**files), folder, reporter)
    except runs.InterruptedTraining as error:
        fail(str(error), 130)
    except TrainingError as error:
        fail(str(error), 1)
    except ValueError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename or folder}: {error.strerror}", 1)
    if as_json:
        write_json(found)
    else:
        draw_road(found, sys.stdout)
        write_line(str(folder / runs.PAGE_FILE))


def _compare_models(folders: Sequence[str], data: Sequence[str], output: str | None, beam: int, device: str,
                    as_json: bool, reading: dict[str, Any]) -> None:
    from regard.comparison import pairwise, runs
    from regard.comparison.pages import pair_page
    from regard.data.sources import formats

    if len(folders) != 2:
        fail(f"Two models are compared, but {len(folders)} {'is' if len(folders) == 1 else 'are'} given: "
             f"{', '.join(folders)}.")
    if not data:
        fail("Give sentence pairs to test the models on, after the two folders.")
    folder = None if output is None else Path(output)
    if folder is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        fail(f"{output}: It exists already. Choose another folder.")
    try:
        pairs = [(pair.source, pair.target) for pair in formats.read_pairs(data, **reading)]
        tasks = [open_task(name, device, "Translator") for name in folders]
        first, second = zip(_model_names(folders), tasks, strict=True)
        found = pairwise.compare_models(first, second, pairs, beams=beam)  # type: ignore[arg-type]
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            saved = runs.ComparisonFolder(folder)
            results = json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
            saved.write(runs.RESULTS_FILE, results)
            saved.write(runs.PAGE_FILE, pair_page(found))
    except ValueError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename or output}: {error.strerror}", 1)
    if as_json:
        write_json(found)
    else:
        draw_pair(found, sys.stdout)
        if folder is not None:
            write_line(str(folder / runs.PAGE_FILE))


def _model_names(folders: Sequence[str]) -> list[str]:
    """The names of the folders, or their paths if the names are equal."""
    names = [Path(folder).resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else list(folders)


# Memory tasks

def compare_memory(task: str, *, mixers: str | None = None, lengths: str | None = None, seeds: int = 1,
                   steps: int | None = None, parameters: int | None = None, rows: int | None = None,
                   scale: str = "quick", as_json: bool = False, output: str | None = None,
                   device: str = AUTO_DEVICE) -> None:
    """Train every mixer at every length, and print the results.

    A table or a JSON object goes to stdout, and a line for each finished training to stderr.

    Args:
        task: "copy", "recall" or "adding".
        mixers, lengths: names and numbers, separated by commas; by default those of `regard.comparison.memory`.
        steps, parameters, rows: the budget of each training; by default that of the scale.
        scale: "quick" for two cores, "long" for a GPU and lengths up to 1,024.
        output: a new folder for the table, the results as JSON, and the figure.
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
                             replace(default, **budget), seeds, _check_device(device), scale,
                             on_result=_report_training)
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
    say(f"{result.task} {result.length}, {result.way}, seed {result.seed}: loss {result.loss:.5f} (without memory "
        f"{result.chance:.5f}){accuracy}, {result.steps} steps, {result.seconds:.1f} s")


def _split_numbers(argument: str, text: str) -> tuple[int, ...]:
    from regard import checks

    numbers = []
    for part in text.split(","):
        if not part.strip().isdecimal() or not part.strip().isascii():
            raise checks.wrong(argument, "whole numbers separated by commas, such as 64,256", repr(text))
        numbers.append(int(part))
    return tuple(numbers)


def _check_device(name: str) -> str:
    """An available device; torch's own message names neither the option nor a remedy."""
    import torch

    from regard import checks

    chosen = choose_device(name)
    try:
        kind = torch.device(chosen).type
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda"):
        raise checks.wrong("device", "cpu, cuda or auto", repr(name))
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"The device {name!r} is not available: torch finds no GPU. Leave out --device, or choose "
                         "cpu.")
    return chosen


def _check_output(output: str | None) -> None:
    """Refuse an output that cannot be written, before the work begins."""
    from regard.inspection.pictures import canvas

    if output is None:
        return
    if os.path.lexists(output):
        fail(f"{output}: It exists already, and is not overwritten. Choose another name.")
    if not os.path.isdir(os.path.dirname(os.path.abspath(output))):
        fail(f"{output}: Its parent folder does not exist. Make it first.")
    canvas.load_matplotlib()


def _write_memory_results(results: Sequence["MemoryResult"], output: str) -> None:
    from regard.comparison import memory

    folder = Path(output)
    try:
        folder.mkdir()
        text = "\n".join(memory.result_lines(results)) + "\n"
        (folder / f"{results[0].task}.txt").write_text(text, encoding="utf-8")
        table = json.dumps(memory.results_table(results), indent=1, ensure_ascii=False) + "\n"
        (folder / f"{results[0].task}.json").write_text(table, encoding="utf-8")
        memory.save_figures(results, folder)
    except OSError as error:
        fail(f"{error.filename or output}: {error.strerror}", 1)


# Tables on stdout

def draw_road(found: ResultTable, out: TextIO) -> None:
    """Print the tables of trained models."""
    from regard.comparison.pages import bucket_name, format_bytes, format_spread, long_sentence_ratio

    console, models = _make_console(out), found["models"]
    console.print(f"The same for all: {found['budget']['said']}; {found['data']['train']:,} pairs of "
                  f"{escape_unprintable(found['data']['name'])}; tested on {found['data']['test']:,} others; seeds: "
                  f"{found['seeds']}.", markup=False, highlight=False)
    rows = []
    for model in models:
        ratio = long_sentence_ratio(model)
        rows.append([model["name"], format_spread(model["bleu"]), format_spread(model["chrf"]),
                     "" if ratio is None else f"{ratio:.0%}", f"{model['parameters']:,}",
                     format_spread(model["tokens_per_second"], 0), format_bytes(model["memory"])])
    _print_table(console, ["model", "BLEU", "chrF", "kept on long", "parameters", "tokens/s", "step memory"], rows)
    names = [bucket_name(bucket) for bucket in models[0]["by_length"]]
    _print_table(console, ["BLEU by words", *names],
                 [[model["name"], *(format_spread(bucket["bleu"]) for bucket in model["by_length"])]
                  for model in models])
    places = [0, 4, 9]
    _print_table(console, ["gradient to the source", "first tenth", "middle", "last tenth"],
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
        console.print(f"{verdict} 95 of 100: {one['low']:+.2f} to {one['high']:+.2f}.", markup=False, highlight=False)
    names = [bucket_name(bucket) for bucket in models[0]["by_length"]]
    _print_table(console, ["BLEU by words", *names],
                 [[model["name"], *(f"{bucket['bleu']:.1f}" for bucket in model["by_length"])] for model in models])
    sentences = [one for one in found["sentences"] if one["difference"]]
    shown = sentences
    if len(sentences) > 2 * SHOWN_SENTENCES:
        shown = [*sentences[:SHOWN_SENTENCES], *sentences[-SHOWN_SENTENCES:]]
    for one in shown:
        console.print()
        for label, text in (("source", one["source"]), ("reference", one["reference"]),
                            (f"{models[0]['name']} {one['first_chrf']:.0f}", one["first"]),
                            (f"{models[1]['name']} {one['second_chrf']:.0f}", one["second"])):
            console.print(f"{escape_unprintable(label)}: {escape_unprintable(text)}", markup=False, highlight=False)
    if not sentences:
        console.print("Every sentence has the same score in both.", markup=False, highlight=False)


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
