"""`regard data`: check a corpus before training on it; and sentences for a first try.

The commands read their arguments, call `regard.data.doctor`, and print its report. Control characters in texts are
written out (`\\x1b`); texts are never read as markup. The doctor is imported inside the functions: the help answers at
once, and torch is not needed at all.
"""

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.options import FormatOption, JsonReportOption, RenamedOptionsCommand, SourceOption, TargetOption
from regard.cli.terminal import Terminal, escape_unprintable, fail, show_count

if TYPE_CHECKING:
    from regard.data.doctor import DoctorReport
    from regard.data.filters import FilterConfig
    from regard.training.estimate import TrainingEstimate

Several = list[str] | None

app = typer.Typer(
    help="Check data before training on it.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def data() -> None:
    """Check data before training on it."""


@app.command(cls=RenamedOptionsCommand)
def check(
    data: Annotated[list[str], typer.Argument(metavar="DATA", help="Files of sentence pairs (TSV, JSONL, PO, TMX), or "
                    "pairs of plain files: sources, then targets. Each may be compressed by gzip; - is standard "
                    "input.")],
    validation: Annotated[Several, typer.Option(metavar="FILE", help="Validation data, to find what of it is in DATA "
                          "too; repeat for each file.")] = None,
    source: SourceOption = None,
    target: TargetOption = None,
    format: FormatOption = None,
    max_words: Annotated[int | None, typer.Option("--max-words", metavar="N", min=1, help="Maximum number of words of "
                         "a text.")] = None,
    max_characters: Annotated[int | None, typer.Option("--max-characters", metavar="N", min=1, help="Maximum number of "
                              "characters of a text.")] = None,
    max_length_ratio: Annotated[float | None, typer.Option("--max-length-ratio", metavar="R", min=1, help="Maximum "
                                "ratio of the lengths of the two sides.")] = None,
    drop: Annotated[Several, typer.Option(metavar="RULE", help="Also drop what this rule finds; repeat for "
                    "each.")] = None,
    keep: Annotated[Several, typer.Option(metavar="RULE", help="Do not drop what this rule finds; repeat for "
                    "each.")] = None,
    as_json: JsonReportOption = False,
) -> None:
    """Check sentence pairs before training on them.

    Prints how many pairs are kept, which are skipped and why, with line numbers; lengths and words; suspicious
    encodings; the overlap of validation and training data; the lines to look at first; and an estimate of the time and
    memory of a training with the defaults of `regard train`. Exit code 2 means that the data cannot be read, or that no
    pair is left to train on.
    """
    from regard.data import doctor
    from regard.data.sources import formats
    from regard.data.sources.text import DataError
    from regard.toml import ConfigError

    skipped = doctor.SkippedEntries()
    try:
        filters = _make_filters(max_words, max_characters, max_length_ratio, drop or (), keep or ())
        if "-" in data and "-" in (validation or ()):
            raise DataError("standard input: It can be read only once, but DATA and --validation both name it. Save it "
                            "to a file first.")
        try:
            pairs = formats.read_pairs(data, source=source, target=target, format=format, skipped=skipped)
            validation_pairs = None if not validation else formats.read_pairs(
                validation, source=source, target=target, format=format, skipped=skipped)
        except ValueError as error:  # a wrong argument
            raise DataError(str(error)) from error
        found = doctor.check_corpus(show_count(pairs, "pairs", sys.stderr), filters, validation=validation_pairs,
                                    skipped=skipped)
    except (DataError, ConfigError) as error:
        fail(str(error))
    estimates = _estimate_training(found)
    if as_json:
        tables = {**found.tables(), "estimate": {name: asdict(each) for name, each in estimates.items()} or None}
        sys.stdout.write(json.dumps(tables, indent=2) + "\n")
    else:
        terminal = Terminal.of(sys.stdout)
        draw_report(found, terminal)
        _draw_estimates(estimates, terminal)
    if not found.kept:
        fail(" ".join(found.warnings()) + " There is nothing to train on.")


@app.command(cls=RenamedOptionsCommand)
def phrasebook(
    count: Annotated[int, typer.Option("-n", metavar="N", min=1, help="Number of pairs.")] = 10_000,
    split: Annotated[str, typer.Option(metavar="NAME", help="train, validation or test; the last two have word "
                     "combinations that train does not have.")] = "train",
    seed: Annotated[int, typer.Option(metavar="N", help="Random seed.")] = 0,
    max_words: Annotated[int | None, typer.Option("--max-words", metavar="N", min=1, help="Maximum number of words of "
                         "a sentence.")] = None,
    align: Annotated[bool, typer.Option("--align", help="Write the word alignment in a third column: 0-0 1-2 "
                     "...")] = False,
) -> None:
    """Write English sentences and their French translations to standard output, as TSV.

    They come from a grammar that is part of regard, for a first try without your own data.
    """
    from regard.data import phrasebook as book

    out = sys.stdout.buffer  # UTF-8 and LF on every system
    try:
        for pair in book.pairs(count, seed=seed, split=split, max_words=max_words):
            links = "\t" + " ".join(f"{i}-{j}" for i, j in pair.alignment) if align else ""
            out.write(f"{pair.source}\t{pair.target}{links}\n".encode())
    except ValueError as error:  # there may be fewer pairs than asked for, which is known only at the end
        out.flush()
        fail(str(error))
    out.flush()


def draw_report(report: "DoctorReport", terminal: Terminal) -> None:
    """Print the report as tables and lists."""
    from regard.data.filters import RULES

    tables = report.tables()
    sentences = {rule.name: rule.sentence for rule in RULES}
    sentences["script"] = "another script than nearly all texts of its side"
    terminal.heading("Pairs")
    total = tables["pairs"]["read"]
    _draw_columns(terminal, [[name, f"{count:,}", _percent(count, total)] for name, count in tables["pairs"].items()])
    for key, title in (("left_out", "Not read"), ("dropped", "Dropped"), ("noticed", "Kept with a notice")):
        rows = {name: entry for name, entry in tables[key].items() if entry["count"]}
        if rows:
            terminal.heading(title)
        for name, entry in rows.items():
            about = f"{name}: {sentences[name]}" if name in sentences else name
            terminal.text(escape_unprintable(f"{entry['count']:,}  {about}"), "  ")
            terminal.text(escape_unprintable(_format_places(entry["first"], entry["count"])), "      ")
    if report.kept:
        _draw_sizes(tables, terminal)
    overlap = tables["overlap"]
    if overlap is not None:
        terminal.heading("Validation pairs that are in the training data")
        whole = overlap["validation"]
        names = {"exact": "exactly", "folded": "but for case and spaces", "sources": "the source alone"}
        found = [[name, f"{overlap[key]:,}", _percent(overlap[key], whole)] for key, name in names.items()]
        _draw_columns(terminal, [["validation pairs", f"{whole:,}", ""], *found])
        for both in overlap["first"]:
            terminal.text(escape_unprintable(f"{both['validation']} = {both['training']}"), "  ")
    if tables["look_at"]:
        terminal.heading("Lines to look at first")
    for finding in tables["look_at"]:
        terminal.text(escape_unprintable(f"{finding['where']}  {finding['rule']}: {finding['what']}"), "  ")
        for side in ("source", "target"):
            terminal.text(escape_unprintable(finding[side].strip(" ")) or "(empty)", "      ")
    if tables["warnings"]:
        terminal.heading("Warnings")
    for warning in tables["warnings"]:
        terminal.text(escape_unprintable(warning), "  ")


def _estimate_training(report: "DoctorReport") -> "dict[str, TrainingEstimate]":
    """The estimates for this machine's cores ("cpu") and for a GPU ("gpu"); none if no pair is kept.

    Looking for a GPU on this machine would take longer than reading most files.
    """
    from regard.training.defaults import DeviceProperties, translation_validation_fraction
    from regard.training.estimate import H200, estimate_training

    if not report.kept:
        return {}
    tables = report.tables()
    characters = tables["source"]["characters"], tables["target"]["characters"]
    # With validation data of its own, a training holds nothing out.
    held_out = 0.0 if report.overlap is not None else translation_validation_fraction(report.kept)
    here = DeviceProperties("cpu", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), has_bfloat16=False)
    return {"cpu": estimate_training(report.kept, characters, here, _core_count(), held=held_out),
            "gpu": estimate_training(report.kept, characters, H200, held=held_out)}


def _draw_estimates(estimates: "Mapping[str, TrainingEstimate]", terminal: Terminal) -> None:
    if not estimates:
        return
    cores = _core_count()
    places = {"cpu": f"{cores} core{'s' if cores > 1 else ''} of this machine", "gpu": "a GPU such as an H200"}
    rows = [["", "about", "memory", "parameters", "steps"]]
    for name, each in estimates.items():
        rows.append([places[name], format_duration(each.seconds), f"{each.memory / 2**30:.1f} GiB",
                     f"{each.parameters / 1e6:.1f} million", f"{each.steps:,}"])
    terminal.heading("Estimate of a training with what regard train would choose")
    _draw_columns(terminal, rows)


def format_duration(seconds: float) -> str:
    """A duration in a suitable unit, with about two digits."""
    for unit, length in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        count = seconds / length
        if count >= 1.95:  # which is printed as 2.0
            return f"{count:.1f} {unit}s" if count < 9.95 else f"{count:,.0f} {unit}s"
    return "1 to 2 minutes" if seconds > 60 else "less than a minute"


def _core_count() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _draw_sizes(tables: dict[str, Any], terminal: Terminal) -> None:
    sides = [tables["source"], tables["target"]]
    terminal.heading("Kept pairs")
    rows = [["", "source", "target"]]
    for key in ("words", "distinct_words", "characters"):
        exact = [key != "distinct_words" or side["distinct_words_exact"] for side in sides]
        cells = [f"{'' if sure else 'about '}{side[key]:,}" for side, sure in zip(sides, exact, strict=True)]
        rows.append([key.replace("_", " "), *cells])
    rows.append(["script", *(", ".join(list(side["scripts"])[:3]) or "-" for side in sides)])
    _draw_columns(terminal, rows)
    terminal.heading("Lengths (percentiles)")
    rows = [["", "5%", "50%", "95%", "99%", "max"]]
    for name, side in zip(("source", "target"), sides, strict=True):
        for unit in ("words", "characters"):
            rows.append([f"{name} {unit}", *(f"{value:,}" for value in side[f"{unit}_per_text"].values())])
    rows.append(["target / source", *(f"{value:.2f}" for value in tables["ratio"].values())])
    _draw_columns(terminal, rows)
    if tables["agreement"] is not None:
        terminal.text(f"The lengths of the two sides correlate with {tables['agreement']:.2f}.", "  ")


def _draw_columns(terminal: Terminal, rows: Sequence[Sequence[str]]) -> None:
    """Print rows of cells in columns; if the width is too small, each cell on its own line."""
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    if 2 + sum(widths) + 2 * (len(widths) - 1) <= terminal.width:
        first, *others = widths
        lines = ["  " + row[0].ljust(first) + "".join("  " + cell.rjust(width)
                 for cell, width in zip(row[1:], others, strict=True)) for row in rows]  # fmt: skip
        terminal.beside([lines])
        return
    head = rows[0] if not rows[0][0] else [""] * len(widths)
    for row in rows if head is not rows[0] else rows[1:]:
        terminal.text(row[0])
        for name, cell in zip(head[1:], row[1:], strict=True):
            terminal.text(f"{name} {cell}".strip(), "  ")


def _format_places(first: Sequence[str], count: int) -> str:
    """Lines of files, "a.tsv:3, 7, b.tsv:1, ...", with the name of a file once for consecutive lines."""
    shown, before = [], None
    for place in first:
        file, _, line = place.rpartition(":")
        shown.append(line if file == before else place)
        before = file
    return ", ".join([*shown, "..."] if count > len(first) else shown)


def _percent(count: int, total: int) -> str:
    return f"{100 * count / total:.2f}%" if total else ""


def _make_filters(max_words: int | None, max_characters: int | None, max_length_ratio: float | None,
                  drop: Iterable[str], keep: Iterable[str]) -> "FilterConfig":
    from regard import checks
    from regard.data.filters import RULE_NAMES, FilterConfig
    from regard.data.sources.text import DataError

    for option, names in (("--drop", drop), ("--keep", keep)):
        for name in names:
            try:
                checks.pick(option, name, dict.fromkeys(RULE_NAMES))
            except ValueError as error:
                raise DataError(str(error)) from error
    limits = {"max_words": max_words, "max_characters": max_characters, "max_length_ratio": max_length_ratio}
    given: dict[str, Any] = {key: value for key, value in limits.items() if value is not None}
    chosen = {*FilterConfig.drop, *drop} - {*keep}
    return FilterConfig(drop=tuple(name for name in RULE_NAMES if name in chosen), **given)
