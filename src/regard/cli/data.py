"""`regard data`: check a corpus before training on it; and sentences for a first try.

The commands read their arguments, call `regard.data.doctor`, and print its report. Control characters in texts are
written out (`\\x1b`); texts are never read as markup. The doctor is imported inside the functions: the help answers at
once, and torch is not needed at all.
"""

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.options import (
    DATA_PANEL,
    OUTPUT_PANEL,
    ColumnsOption,
    ExamplesGroup,
    FormatOption,
    FrameStepOption,
    JsonReportOption,
    PanelCommand,
    QuietOption,
    SourceOption,
    TargetOption,
    complete_names,
    expand_options,
    with_examples,
)
from regard.cli.output import fail, say_notes, show_count
from regard.terminal import Terminal, align_columns, escape_unprintable

if TYPE_CHECKING:
    from regard.data.doctor import DoctorReport, SkippedEntries
    from regard.data.filters import FilterConfig
    from regard.data.sources.formats import PairCorpus
    from regard.training.estimate import TrainingEstimate

Several = list[str] | None
CHECKED_TASKS = ("seq2seq", "label", "tracks")
DEFAULT_OBSERVED, DEFAULT_PREDICTED = 8, 12
"""Default numbers of observed and predicted steps of tracks."""
RULES = ("empty", "too_long", "ratio", "copy", "duplicate", "replacement", "mojibake", "control", "line_breaks",
         "decomposed", "outer_spaces", "repeated_source")
"""`regard.data.filters.RULE_NAMES`, which is not imported for the help; the first five skip pairs by default."""

app = typer.Typer(
    cls=ExamplesGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
@with_examples("""
    regard data check pairs.tsv
    regard data phrasebook -n 1000 > pairs.tsv
    regard data check --help                      # options and more examples
""")
def data() -> None:
    """Check data before training, or write example data."""


@dataclass(frozen=True)
class FilterOptions:
    """Options of the filters of sentence pairs; None if not given."""

    max_words: Annotated[int | None, typer.Option(
        "--max-words", metavar="N", min=1, rich_help_panel=DATA_PANEL, show_default="256",
        help="Maximum number of words of a text.")] = None
    max_characters: Annotated[int | None, typer.Option(
        "--max-characters", metavar="N", min=1, rich_help_panel=DATA_PANEL, show_default="2000",
        help="Maximum number of characters of a text.")] = None
    max_length_ratio: Annotated[float | None, typer.Option(
        "--max-length-ratio", metavar="X", min=1, rich_help_panel=DATA_PANEL, show_default="6",
        help="Maximum ratio of the lengths of source and target.")] = None
    drop: Annotated[Several, typer.Option(
        metavar="RULE", rich_help_panel=DATA_PANEL, show_default=False, autocompletion=complete_names(*RULES[5:]),
        help=f"Also skip the pairs that this rule finds: {', '.join(RULES[5:])}; repeat for each rule.")] = None
    keep: Annotated[Several, typer.Option(
        metavar="RULE", rich_help_panel=DATA_PANEL, show_default=False, autocompletion=complete_names(*RULES[:5]),
        help=f"Keep the pairs that this rule finds: {', '.join(RULES[:5])}; repeat for each rule.")] = None


@dataclass(frozen=True)
class WindowOptions:
    """Windows of tracks, and how their files are read; None if not given."""

    observed: Annotated[int | None, typer.Option(
        "--observed", metavar="N", min=2, rich_help_panel=DATA_PANEL, show_default="8",
        help="Observed steps of tracks.")] = None
    predicted: Annotated[int | None, typer.Option(
        "--predicted", metavar="N", min=1, rich_help_panel=DATA_PANEL, show_default="12",
        help="Predicted steps of tracks.")] = None
    columns: ColumnsOption = None
    frame_step: FrameStepOption = None


@dataclass(frozen=True)
class FileOptions:
    """The files that DATA is compared with, and how all files are read; None if not given."""

    validation: Annotated[Several, typer.Option(
        "--validation", metavar="FILE", rich_help_panel=DATA_PANEL,
        help="Validation data, to find its duplicates and near-duplicates in DATA; repeat for each file.")] = None
    test: Annotated[Several, typer.Option(
        "--test", metavar="FILE", rich_help_panel=DATA_PANEL,
        help="Test data, likewise; repeat for each file.")] = None
    source: SourceOption = None
    target: TargetOption = None
    format: FormatOption = None

    def reading(self) -> dict[str, Any]:
        """How the files are read."""
        return {"source": self.source, "target": self.target, "format": self.format}


@app.command(cls=PanelCommand)
@with_examples("""
    regard data check pairs.tsv
    regard data check train.en train.fr        # sources and targets
    regard data check pairs.tsv --validation valid.tsv --test test.tsv
    regard data check labelled.tsv --task label --test test.tsv
    regard data check tracks.csv               # frame, agent, x, y
""")
@expand_options
def check(
    data: Annotated[list[str], typer.Argument(
        metavar="DATA", help="Sentence pairs (TSV, JSONL, PO, TMX, or pairs of plain files: sources, then targets), "
        "also compressed with gzip. With --task label: sequences with a label for every token (TSV, CoNLL, JSONL). "
        "With --task tracks: CSV or TSV with frame, agent, x and y. - is standard input.")],
    *,
    task: Annotated[str | None, typer.Option(
        "--task", metavar="NAME", rich_help_panel=DATA_PANEL, show_default="seq2seq, or tracks by the header of DATA",
        autocompletion=complete_names(*CHECKED_TASKS),
        help=f"What the data is for: {', '.join(CHECKED_TASKS)}.")] = None,
    files: FileOptions,
    filters: FilterOptions,
    tracks: WindowOptions,
    as_json: JsonReportOption = False,
    quiet: QuietOption = False,
) -> None:
    """Check sentence pairs, sequences with labels, or tracks, before training on them.

    Prints how many pairs are kept, and which are skipped and why, with line numbers; lengths and vocabulary; suspicious
    encodings; which validation and test pairs are in the training data, or nearly (character 5-grams with a Jaccard
    similarity of 0.8 or more); the lines to look at first; and how long a training with the defaults of `regard train`
    would take. With --task label: how the files are read, lengths, labels, duplicates, I- without B-, and what
    validation and test data share with the training data. Of tracks: the frame step, gaps, jumps, how many agents
    stand, agents per frame, and the number of windows. Exit code 2: the data cannot be read, or nothing is left.
    """
    if task not in (None, *CHECKED_TASKS):
        fail(f"--task must be one of {', '.join(CHECKED_TASKS)}, but is {task} instead.")
    if task is None:
        task = "tracks" if _are_tracks(data, tracks.columns) else "seq2seq"
    if task == "tracks":
        _refuse_options((files, filters), "sentence pairs or labels", "tracks")
        _check_tracks(data, tracks, as_json)
    elif task == "label":
        _refuse_options((filters,), "sentence pairs", "--task label")
        _refuse_options((tracks,), "tracks", "--task label")
        _check_labels(data, files, as_json)
    else:
        _refuse_options((tracks,), "tracks", "sentence pairs")
        _check_pairs(data, files, filters, as_json, quiet)


def _refuse_options(groups: Iterable[object], wanted: str, own: str) -> None:
    """Refuse the given options of groups that have no effect on this data."""
    names = [f"--{field.name.replace('_', '-')}" for group in groups for field in fields(group)  # type: ignore[arg-type]
             if getattr(group, field.name) is not None]
    if names:
        what = "This option is" if len(names) == 1 else "These options are"
        fail(f"{', '.join(names)}: {what} for {wanted}. Leave {'it' if len(names) == 1 else 'them'} out with {own}.")


def _check_pairs(data: Sequence[str], files: FileOptions, filters: FilterOptions, as_json: bool, quiet: bool) -> None:
    """Check sentence pairs, and estimate the time of a training."""
    from regard.data import doctor
    from regard.data.sources.text import DataError
    from regard.toml import ConfigError

    skipped = doctor.SkippedEntries()
    try:
        rules = _make_filters(filters)
        pairs, validation, test = _open_pairs(data, files, skipped)
        found = doctor.check_corpus(pairs if quiet else show_count(pairs, "pairs", sys.stderr), rules,
                                    validation=validation, test=test, near_duplicates=True, skipped=skipped)
    except (DataError, ConfigError) as error:
        fail(str(error))
    say_notes([note for each in (pairs, validation, test) if each is not None for note in each.log.notes])
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


def _open_pairs(data: Sequence[str], files: FileOptions,
                skipped: "SkippedEntries") -> "tuple[PairCorpus, PairCorpus | None, PairCorpus | None]":
    """The pairs of DATA, of --validation and of --test; a DataError if a file cannot be read so."""
    from regard.data.sources import formats
    from regard.data.sources.text import DataError

    named = [name for name, paths in (("DATA", data), ("--validation", files.validation), ("--test", files.test))
             if "-" in (paths or ())]
    if len(named) > 1:
        raise DataError(f"standard input: {' and '.join(named)} name it, but it can be read only once. Save it to a "
                        "file first.")
    try:
        pairs = formats.read_pairs(data, skipped=skipped, **files.reading())
        validation, test = (formats.read_pairs(paths, skipped=skipped, **files.reading()) if paths else None
                            for paths in (files.validation, files.test))
    except ValueError as error:  # a wrong argument
        raise DataError(str(error)) from error
    return pairs, validation, test


@app.command(cls=PanelCommand)
@with_examples("""
    regard data phrasebook -n 20000 > pairs.tsv
    regard data phrasebook -n 500 --split test > test.tsv
    regard data phrasebook -n 5 --align
""")
def phrasebook(
    count: Annotated[int, typer.Option(
        "-n", metavar="N", min=1, rich_help_panel=OUTPUT_PANEL, help="Number of pairs.")] = 10_000,
    split: Annotated[str, typer.Option(
        metavar="NAME", rich_help_panel=OUTPUT_PANEL, autocompletion=complete_names("train", "validation", "test"),
        help="train, validation or test. The last two have word combinations that do not occur in train.")] = "train",
    seed: Annotated[int, typer.Option(metavar="N", rich_help_panel=OUTPUT_PANEL, help="Random seed.")] = 0,
    max_words: Annotated[int | None, typer.Option(
        "--max-words", metavar="N", min=1, rich_help_panel=OUTPUT_PANEL, show_default="no limit",
        help="Maximum number of words of a sentence.")] = None,
    align: Annotated[bool, typer.Option(
        "--align", rich_help_panel=OUTPUT_PANEL, help="Add a third column: the word alignment (0-0 1-2 ...).")] = False,
) -> None:
    """Write example sentence pairs, English to French, as TSV to standard output.

    The sentences come from a small grammar that is part of regard, so you can try everything without data of your own.
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


@app.command(cls=PanelCommand)
@with_examples("""
    regard data tracks > tracks.csv
    regard data tracks --scenes 8 --frames 500 --agents 16 > tracks.csv
""")
def tracks(
    scenes: Annotated[int, typer.Option(
        "--scenes", metavar="N", min=1, rich_help_panel=OUTPUT_PANEL, help="Number of scenes.")] = 1,
    frames: Annotated[int, typer.Option(
        "--frames", metavar="N", min=1, rich_help_panel=OUTPUT_PANEL, help="Frames of a scene, 0.4 s apart.")] = 400,
    agents: Annotated[int, typer.Option(
        "--agents", metavar="N", min=1, rich_help_panel=OUTPUT_PANEL,
        help="Approximate number of people in a scene at a time.")] = 12,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, rich_help_panel=OUTPUT_PANEL,
                                      help="Random seed.")] = 0,
) -> None:
    """Write synthetic tracks of people as CSV to standard output: frame, agent, x, y (metres), kind.

    The people walk to a goal, avoid each other, walk in groups, and stand, so you can try everything without data of
    your own. Several scenes have a column `scene`.
    """
    from regard.data.tracks.synthetic import simulate

    out = sys.stdout.buffer  # UTF-8 and LF on every system
    out.write(f"{'scene,' if scenes > 1 else ''}frame,agent,x,y,kind\n".encode())
    for scene in range(scenes):
        name = f"{scene}," if scenes > 1 else ""
        for row in simulate(steps=frames, agents=agents, seed=seed * 1_000_003 + scene):
            out.write(f"{name}{row.frame},{row.agent},{row.x:g},{row.y:g},{row.kind}\n".encode())
    out.flush()


def _are_tracks(data: Sequence[str], columns: str | None) -> bool:
    """Whether the files begin with the header of tracks, or their columns are named."""
    from regard.data.tracks.reading import looks_like_tracks

    return columns is not None or all(path != "-" and looks_like_tracks(path) for path in data)


def _check_tracks(data: Sequence[str], options: WindowOptions, as_json: bool) -> None:
    """Check tracks of agents."""
    from regard.data.sources.text import ReadLog
    from regard.data.tracks.checking import check_tracks
    from regard.data.tracks.reading import read_tracks

    log = ReadLog()
    observed, predicted = options.observed or DEFAULT_OBSERVED, options.predicted or DEFAULT_PREDICTED
    try:
        found = check_tracks(read_tracks(data, options.columns, log), observed, predicted, options.frame_step)
    except ValueError as error:
        fail(str(error))
    say_notes(log.notes)
    if as_json:
        sys.stdout.write(json.dumps(found.tables, indent=2) + "\n")
    else:
        draw_tracks_report(found.tables, Terminal.of(sys.stdout))
    if not found.windows:
        fail(f"No agent is there for {observed + predicted} steps in a row ({observed} observed and {predicted} "
             "predicted). There is nothing to train on.")


def draw_tracks_report(tables: dict[str, Any], terminal: Terminal) -> None:
    """Print the report on tracks."""
    terminal.heading("Scenes")
    rows = [["", "rows", "frames", "step", "agents", "per frame", "windows", "complete"]]
    for scene in tables["scenes"]:
        around = f"{scene['per_frame']['mean']:.1f} (max {scene['per_frame']['max']})"
        rows.append([escape_unprintable(os.path.basename(scene["name"])), f"{scene['rows']:,}", f"{scene['frames']:,}",
                     f"{scene['step']:g}", f"{scene['agents']:,}", around, f"{scene['windows']:,}",
                     f"{scene['complete']:,}"])
    _draw_columns(terminal, rows)
    terminal.heading("Steps")
    lines = [["", *(one if one == "max" else f"{one}%" for one in tables["speed"])]]
    lines.append(["distance", *(f"{value:.3g}" for value in tables["speed"].values())])
    _draw_columns(terminal, lines)
    terminal.text(f"{100 * tables['standing']:.1f}% of the steps are shorter than a quarter of the usual one: agents "
                  "that stand.", "  ")
    for key, title in (("gaps", "Agents that are missing for some steps and come back"),
                       ("jumps", "Steps far longer than all others"), ("off_grid", "Rows between two steps"),
                       ("unsorted", "Scenes whose frames are not in order")):
        if tables[key]["count"]:
            terminal.heading(title)
            terminal.text(escape_unprintable(f"{tables[key]['count']:,}: "
                                             + _format_places(tables[key]["first"], tables[key]["count"])), "  ")
    windows = tables["windows"]
    terminal.heading("Windows")
    terminal.text(f"{windows['windows']:,} windows of {windows['observed']} observed and {windows['predicted']} "
                  f"predicted steps, with {windows['agents']:,} complete agents; {windows['pairs']:,} have at least "
                  "two.", "  ")
    if tables["warnings"]:
        terminal.heading("Warnings")
    for warning in tables["warnings"]:
        terminal.text(escape_unprintable(warning), "  ")


def draw_report(report: "DoctorReport", terminal: Terminal) -> None:
    """Print the report as tables and lists."""
    from regard.data.filters import RULES

    tables = report.tables()
    sentences = {rule.name: rule.sentence for rule in RULES}
    sentences["script"] = "another script than nearly all texts of this side"
    terminal.heading("Pairs")
    total = tables["pairs"]["read"]
    _draw_columns(terminal, [[name.replace("dropped", "skipped"), f"{count:,}", _percent(count, total)]
                             for name, count in tables["pairs"].items()])
    for key, title in (("left_out", "Not read"), ("dropped", "Skipped"), ("noticed", "Kept, but suspicious")):
        rows = {name: entry for name, entry in tables[key].items() if entry["count"]}
        if rows:
            terminal.heading(title)
        for name, entry in rows.items():
            about = f"{name}: {sentences[name]}" if name in sentences else name
            terminal.text(escape_unprintable(f"{entry['count']:,}  {about}"), "  ")
            terminal.text(escape_unprintable(_format_places(entry["first"], entry["count"])), "      ")
    if report.kept:
        _draw_sizes(tables, terminal)
    for name, key in (("validation", "overlap"), ("test", "test_overlap")):
        if tables[key] is not None:
            _draw_overlap(name, tables[key], (tables["near_duplicates"] or {}).get(name), terminal)
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


def _check_labels(data: Sequence[str], options: FileOptions, as_json: bool) -> None:
    """Check sequences with a label for every token."""
    from regard.data.label_report import check_labels
    from regard.data.sources.text import InputFile, ReadLog
    from regard.data.sources.token_labels import LabelledFile

    log, reading = ReadLog(), options.reading()
    try:
        files = [LabelledFile(InputFile(data[0]), log=log, **reading)]
        unit = files[0].layout.unit
        files += [LabelledFile(InputFile(path), unit=unit, log=log, **reading) for path in data[1:]]
        others = [[LabelledFile(InputFile(path), unit=unit, log=log, **reading) for path in paths]
                  for paths in (options.validation or (), options.test or ())]
        found = check_labels(files, validation=others[0], test=others[1]).tables()
    except ValueError as error:
        fail(str(error))
    say_notes(log.notes)
    if as_json:
        sys.stdout.write(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    else:
        draw_label_report(found, unit, Terminal.of(sys.stdout))
    if not found["sequences"]:
        fail(f"{', '.join(data)}: There are no labelled sequences. There is nothing to train on.")


def draw_label_report(found: dict[str, Any], unit: str, terminal: Terminal) -> None:
    """Print the report on sequences with labels."""
    for file in found["files"]:
        terminal.text(escape_unprintable(file))
    terminal.heading("Sequences")
    rows = [["sequences", f"{found['sequences']:,}"], [f"{unit}s", f"{found['tokens']:,}"],
            [f"distinct {unit}s", f"{found['distinct_tokens']:,}"]]
    names = {"empty": "skipped, without tokens", "duplicates": "duplicates",
             "conflicts": "duplicates with other labels", "irregular_spans": "with I- instead of B-"}
    for key, name in names.items():
        if found[key] is not None and found[key]["count"]:
            rows.append([name, f"{found[key]['count']:,} ({_format_places(found[key]['first'], found[key]['count'])})"])
    terminal.table({name: escape_unprintable(value) for name, value in rows})
    terminal.heading(f"Lengths in {unit}s (percentiles)")
    _draw_columns(terminal, [["", *("max" if name == "100%" else name for name in found["length"])],
                             ["length", *(f"{value:,}" for value in found["length"].values())]])
    terminal.heading("Labels")
    _draw_columns(terminal, [["label", f"{unit}s", "share"],
                             *([escape_unprintable(label), f"{one['tokens']:,}", f"{100 * one['share']:.2f}%"]
                               for label, one in found["labels"].items())])
    if found["spans"]:
        terminal.heading("Spans")
        _draw_columns(terminal, [["type", "spans"], *([escape_unprintable(name) or "(none)", f"{count:,}"]
                                                      for name, count in found["spans"].items())])
    for name, one in found["overlap"].items():
        terminal.heading(f"{name.capitalize()} data")
        facts = {"sequences": f"{one['sequences']:,}",
                 "also in the training data": f"{one['in_training']:,}"
                 + (f" ({_format_places(one['first'], one['in_training'])})" if one["first"] else ""),
                 f"{unit}s that training does not have": f"{one['unknown_tokens']:,} of {one['tokens']:,}"}
        if one["unknown_labels"]:
            facts["labels that training does not have"] = ", ".join(
                f"{label} ({count:,})" for label, count in one["unknown_labels"].items())
        terminal.table({key: escape_unprintable(value) for key, value in facts.items()})


def _draw_overlap(name: str, overlap: dict[str, Any], near: dict[str, Any] | None, terminal: Terminal) -> None:
    """Print which validation or test pairs are in the training data, and which nearly are."""
    whole = overlap[name]
    terminal.heading(f"{name.capitalize()} pairs that are also in the training data")
    names = {"exact": "identical", "folded": "same except case and spaces", "sources": "same source"}
    found = [[text, f"{overlap[key]:,}", _percent(overlap[key], whole)] for key, text in names.items()]
    _draw_columns(terminal, [[f"{name} pairs", f"{whole:,}", ""], *found])
    for both in overlap["first"]:
        terminal.text(escape_unprintable(f"{both[name]} = {both['training']}"), "  ")
    if near is None or not whole:
        return
    terminal.heading(f"{name.capitalize()} pairs with near-duplicates in the training data")
    names = {"source": "similar source", "target": "similar target", "either": "similar source or target",
             "both": "both similar to one training pair"}
    _draw_columns(terminal, [[text, f"{near[key]:,}", _percent(near[key], whole)] for key, text in names.items()])
    terminal.text("Similar: at least 0.8 of the character 5-grams of both texts are common (Jaccard); equal texts are "
                  "included.", "  ")
    for both in near["first"]:
        where = f"{both[name]} ~ {both['training']}  {both['side']}, {both['similarity']:.2f}"
        terminal.text(escape_unprintable(where), "  ")
        for text in (both["text"], both["training_text"]):
            terminal.text(escape_unprintable(text.strip(" ")), "      ")


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
    rows = [["", "time", "memory", "parameters", "steps"]]
    for name, each in estimates.items():
        rows.append([places[name], format_duration(each.seconds), f"{each.memory / 2**30:.1f} GiB",
                     f"{each.parameters / 1e6:.1f} million", f"{each.steps:,}"])
    terminal.heading("Estimated training with the defaults of regard train")
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
        terminal.text(f"Correlation of source and target lengths: {tables['agreement']:.2f}", "  ")


def _draw_columns(terminal: Terminal, rows: Sequence[Sequence[str]]) -> None:
    """Print rows of cells in columns; if the width is too small, each cell on its own line."""
    lines = [f"  {line}" for line in align_columns(rows)]
    if max(map(len, lines)) <= terminal.width:
        terminal.beside([lines])
        return
    head = rows[0] if not rows[0][0] else [""] * len(rows[0])
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


def _make_filters(options: FilterOptions) -> "FilterConfig":
    from regard import checks
    from regard.data.filters import RULE_NAMES, FilterConfig
    from regard.data.sources.text import DataError

    drop, keep = options.drop or (), options.keep or ()
    for option, names in (("--drop", drop), ("--keep", keep)):
        for name in names:
            try:
                checks.pick(option, name, dict.fromkeys(RULE_NAMES))
            except ValueError as error:
                raise DataError(str(error)) from error
    limits = {name: getattr(options, name) for name in ("max_words", "max_characters", "max_length_ratio")}
    given: dict[str, Any] = {key: value for key, value in limits.items() if value is not None}
    chosen = {*FilterConfig.drop, *drop} - {*keep}
    return FilterConfig(drop=tuple(name for name in RULE_NAMES if name in chosen), **given)
