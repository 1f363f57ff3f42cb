"""`regard evaluate`: score a model on data that it was not trained on.

The task of the model decides what the data must be and what is computed. The data is read here;
`regard.tasks.evaluation` computes the scores.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import log
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.checks import plural
from regard.cli.options import (
    AUTO_DEVICE,
    DATA_PANEL,
    ENGINE_PANEL,
    OUTPUT_PANEL,
    TASK_COMMANDS,
    TASK_NOUNS,
    BatchTokensOption,
    ColumnsOption,
    DeviceOption,
    FormatOption,
    FrameStepOption,
    JsonReportOption,
    ModelArgument,
    SourceOption,
    TargetOption,
    ToOption,
    beam_option,
    check_to_option,
    choose_target,
    complete_names,
    expand_options,
    open_task,
    with_examples,
)
from regard.cli.output import fail, say_notes, write_json
from regard.terminal import Terminal, escape_unprintable

if TYPE_CHECKING:
    from torch import Tensor

    from regard.data.directions import DirectionData
    from regard.data.sources.formats import PairCorpus
    from regard.tasks.classifier import Classifier
    from regard.tasks.completer import Completer
    from regard.tasks.evaluation import TokenLoss
    from regard.tasks.filler import Filler
    from regard.tasks.forecaster import Forecaster
    from regard.tasks.label_scores import LabelScores
    from regard.tasks.labeller import Labeller
    from regard.tasks.task import Task
    from regard.tasks.translator import Translator

Table = dict[str, Any]
DEFAULT_BEAM_SIZE, DEFAULT_TOKENIZER = 5, "13a"
SHOWN_LABELS, SHOWN_CHARACTERS = 12, 24
"""Labels that a message lists, and the characters of each."""
OPTION_TASKS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("direction", "to", "beam", "lowercase", "tokenize", "output"), ("Translator",)),
    **dict.fromkeys(("source", "target", "format"), ("Translator", "Labeller")),
    **dict.fromkeys(("columns", "frame_step", "collision_distance"), ("Forecaster",)),
    **dict.fromkeys(("merge", "confusion"), ("Labeller",)),
    "window": ("Completer",),
    "batch_tokens": ("Translator", "Classifier", "Labeller"),
}
"""The classes of tasks that each option is for; it is refused for others."""


@dataclass(frozen=True)
class EvaluationOptions:
    """How the test data is read, what is computed, and what is written; None if not given."""

    direction: Annotated[list[str] | None, typer.Option(
        "--direction", metavar="PAIR:FILE,...", rich_help_panel=DATA_PANEL, show_default=False,
        help="Test data of one direction of a model for several languages, instead of DATA: en-fr:test.en,test.fr. "
        "Repeat for each direction; each gets its own scores.")] = None
    to: ToOption = None
    source: SourceOption = None
    target: TargetOption = None
    format: FormatOption = None
    beam: Annotated[int | None, beam_option(
        f"{DEFAULT_BEAM_SIZE}", help="Beam size of a translator; 1 is greedy search.")] = None
    window: Annotated[int | None, typer.Option(
        "--window", metavar="N", min=1, rich_help_panel=ENGINE_PANEL, show_default="as in training",
        help="Context of a language model, in tokens.")] = None
    columns: ColumnsOption = None
    frame_step: FrameStepOption = None
    collision_distance: Annotated[float | None, typer.Option(
        "--collision-distance", metavar="X", min=0, rich_help_panel=DATA_PANEL, show_default="0.2",
        help="Distance below which two agents of tracks collide, in the units of the data.")] = None
    batch_tokens: BatchTokensOption = None
    lowercase: Annotated[bool, typer.Option(
        "--lowercase", rich_help_panel=OUTPUT_PANEL, help="Compute BLEU and chrF on lowercased texts.")] = False
    tokenize: Annotated[str | None, typer.Option(
        "--tokenize", metavar="NAME", rich_help_panel=OUTPUT_PANEL, show_default=DEFAULT_TOKENIZER,
        autocompletion=complete_names("13a", "intl", "zh", "char", "none"),
        help="sacreBLEU's tokenizer for BLEU: 13a, intl, zh, char, or none for texts that are tokenized "
        "already.")] = None
    merge: Annotated[str | None, typer.Option(
        "--merge", metavar="GROUPS", rich_help_panel=OUTPUT_PANEL, show_default=False,
        help="Labeller: also score groups of labels, such as H=HGI,E=EB,C=* or noun=NOUN+PROPN; * stands for all "
        "others. The probabilities of the labels of a group are added.")] = None
    confusion: Annotated[str | None, typer.Option(
        "--confusion", metavar="FILE", rich_help_panel=OUTPUT_PANEL, show_default=False,
        help="Labeller: draw the confusion matrix into a new file (.png, .svg or .pdf).")] = None
    output: Annotated[str | None, typer.Option(
        "-o", "--output", metavar="FILE", rich_help_panel=OUTPUT_PANEL, show_default=False,
        help="Also write the translations to a new file, one per line.")] = None

    def reading(self) -> Table:
        """How the files of pairs and of labelled sequences are read."""
        return {"source": self.source, "target": self.target, "format": self.format}


@with_examples("""
    regard evaluate model test.tsv                       # BLEU, chrF and loss
    regard evaluate model test.en test.fr -o output.fr   # keep the translations
    regard evaluate language-model test.txt              # perplexity
    regard evaluate labeller test.tsv --merge "H=HGI,E=EB,C=*"
    regard evaluate model --direction en-fr:a.tsv --direction en-de:b.tsv
""")
@expand_options
def evaluate(
    model: ModelArgument,
    data: Annotated[list[str] | None, typer.Argument(
        metavar="DATA", show_default=False,
        help="Test data. Translator: sentence pairs (TSV, JSONL, PO, TMX, or two plain files: sources, then targets). "
        "Language model and masked language model: plain text. Classifier: texts with labels (TSV, JSONL), a folder "
        "with one folder of images per class, or two IDX files. Labeller: sequences with a label for every token (TSV, "
        "CoNLL, JSONL). Forecaster: tracks (CSV, TSV). - is standard input.")] = None,
    *,
    options: EvaluationOptions,
    device: DeviceOption = AUTO_DEVICE,
    as_json: JsonReportOption = False,
) -> None:
    """Score a model on test data.

    Use data that the model was not trained on. A translator gets BLEU and chrF, also by source length, with 95%
    confidence intervals and sacreBLEU signatures, the loss, and a warning if its translations are degenerate: empty,
    copied, all alike or repetitive. A language model gets loss, perplexity and bits per character; a masked language
    model the loss of masked tokens; a classifier accuracy and loss; a labeller accuracy, precision, recall and F1 of
    every label, and of spans for the labels of an IOB scheme (conlleval's rule); a forecaster of tracks its distances,
    beside those of constant velocity, k-means futures and linear regressions.
    """
    _check_new_files(options.output, options.confusion)
    task = open_task(model, device, *TASK_COMMANDS)
    _refuse_options(model, task, options)
    try:
        found = _evaluate_task(task, _check_data(data, options), options)
    except ValueError as error:
        fail(str(error))
    if as_json:
        write_json(found)
    else:
        _draw_table(found, Terminal.of(sys.stdout))


def _check_new_files(*files: str | None) -> None:
    """Refuse an output file that exists, or whose folder does not, before the work begins."""
    for file in files:
        if file is not None and os.path.lexists(file):
            fail(f"{file}: The file exists already. Choose another name, or remove it.")
        if file is not None and not os.path.isdir(os.path.dirname(file) or "."):
            fail(f"{file}: The folder {os.path.dirname(file)} does not exist. Create it first.")


def _refuse_options(model: str, task: "Task", options: EvaluationOptions) -> None:
    """Refuse options that have no effect on this model."""
    own = type(task).__name__
    for field, kinds in OPTION_TASKS.items():
        value = getattr(options, field)
        if value is not None and value is not False and own not in kinds:
            name = "-o" if field == "output" else f"--{field.replace('_', '-')}"
            fail(f"{model}: {name} is for {' or '.join(TASK_NOUNS[kind] for kind in kinds)}, but this model is "
                 f"{TASK_NOUNS[own]}. Leave it out.")
    check_to_option(model, options.to, task)


def _check_data(data: list[str] | None, options: EvaluationOptions) -> list[str]:
    """The files of DATA; none if directions are given instead."""
    if data and options.direction:
        fail(f"{data[0]}: With --direction the data of every direction is named there. Leave out DATA.")
    if not data and not options.direction:
        fail("Give test data after the model: its files, or --direction en-fr:test.en,test.fr for each direction.")
    if options.to is not None and options.direction:
        fail("--to has no effect with --direction, which names the target language. Leave it out.")
    return data or []


def _evaluate_task(task: "Task", data: Sequence[str], options: EvaluationOptions) -> Table:
    """The scores of a model, by the class of its task."""
    from regard.tasks.classifier import Classifier
    from regard.tasks.completer import Completer
    from regard.tasks.filler import Filler
    from regard.tasks.forecaster import Forecaster
    from regard.tasks.labeller import Labeller
    from regard.tasks.translator import Translator

    if isinstance(task, Translator):
        return _evaluate_pairs(task, data, options)
    if isinstance(task, Completer):
        return _evaluate_completer(task, data, options.window)
    if isinstance(task, Filler):
        return _evaluate_filler(task, data)
    if isinstance(task, Labeller):
        return _evaluate_labeller(task, data, options)
    if isinstance(task, Forecaster):
        return _evaluate_forecaster(task, data, options)
    assert isinstance(task, Classifier)
    return _evaluate_classifier(task, data, options.batch_tokens)


def _evaluate_pairs(task: "Translator", data: Sequence[str], options: EvaluationOptions) -> Table:
    """The scores of a translator, on one direction or on several."""
    from regard.data.sources import formats

    directions = _test_directions(task, data, options)
    if directions:
        return _evaluate_directions(task, directions, options)
    return _evaluate_translator(task, formats.read_pairs(data, **options.reading()), options)


def _test_directions(task: "Translator", data: Sequence[str], options: EvaluationOptions) -> "list[DirectionData]":
    """The directions of the test data; none if it has one that need not be named."""
    from regard.data import directions as directed

    if options.direction:
        found = [directed.parse_direction(text) for text in options.direction]
        directed.check_directions(found)
        return found
    if options.source is not None or options.to is not None or not task.target_languages:
        return []
    return directed.named_directions(data, options.format)


def _evaluate_directions(task: "Translator", directions: "Sequence[DirectionData]",
                         options: EvaluationOptions) -> Table:
    """Scores for each direction, and their means."""
    from regard.data.directions import read_direction

    if options.output is not None and len(directions) > 1:
        fail(f"{options.output}: -o writes the translations of one direction, and the test data has "
             f"{', '.join(one.name for one in directions)}. Leave it out, or evaluate them one by one.")
    views = [task.into(one.languages.target) for one in directions]  # an unknown language is refused first
    tables = [{"direction": one.name,
               **_evaluate_translator(view, read_direction(one, one.data, **options.reading()), options)}
              for one, view in zip(directions, views, strict=True)]
    if len(tables) == 1:
        return tables[0]
    means = {key: fmean(table[key] for table in tables) for key in ("bleu", "chrf", "loss")}
    return {"task": "directions", "pairs": sum(table["pairs"] for table in tables), "beam": tables[0]["beam"], **means,
            "directions": tables}


def _evaluate_translator(task: "Translator", pairs: "PairCorpus", options: EvaluationOptions) -> Table:
    from regard.storage.filesystem import write_file
    from regard.tasks.evaluation import evaluate_translator

    given = [(pair.source, pair.target) for pair in pairs]
    say_notes(pairs.log.notes)
    task = choose_target(task, options.to, {*pairs.log.languages.values()})
    beams = options.beam or DEFAULT_BEAM_SIZE
    found = evaluate_translator(task, given, beams=beams, lowercase=options.lowercase,
                                tokenize=options.tokenize or DEFAULT_TOKENIZER, batch_tokens=options.batch_tokens)
    if options.output is not None:
        lines = [text.replace("\r", " ").replace("\n", " ") + "\n" for text in found.hypotheses]
        write_file(Path(options.output), "".join(lines).encode("utf-8", "backslashreplace"), overwrite=False)
    scores = found.scores
    return {"task": "translator", "pairs": len(given), "beam": beams,
            "bleu": scores.bleu, "bleu_interval": scores.bleu_interval, "bleu_signature": scores.bleu_signature,
            "chrf": scores.chrf, "chrf_interval": scores.chrf_interval, "chrf_signature": scores.chrf_signature,
            **_loss_table(found.loss), "cut": found.cut, "by_length": [bucket._asdict() for bucket in found.by_length],
            "degenerate": [each._asdict() for each in found.degenerate]}


def _evaluate_completer(task: "Completer", data: Sequence[str], window: int | None) -> Table:
    from regard.data.sources.text import DataError, InputFile
    from regard.tasks.evaluation import stream_loss
    from regard.training.tasks import language

    pieces = [*language.read_pieces([InputFile(path) for path in data])]
    ids = [id_ for some in language.encode_pieces(task.text_tokenizer(), pieces) for id_ in some]
    if len(ids) < 2:
        raise DataError(f"{', '.join(data)}: The text has fewer than 2 tokens. Give more text.")
    length = window or task.record.get("training", {}).get("windows", {}).get("length")
    loss = stream_loss(task, ids, window=length)
    characters = sum(len(piece) for piece in pieces if piece is not language.FILE_END)
    return {"task": "completer", "characters": characters, **_loss_table(loss),
            "bits_per_character": loss.nll / log(2) / max(1, characters)}


def _evaluate_filler(task: "Filler", data: Sequence[str]) -> Table:
    from regard.data.sources import formats
    from regard.data.sources.text import DataError
    from regard.tasks.evaluation import masked_loss

    texts = [line.text for line in formats.read_texts(data, format="plain")]
    loss = masked_loss(task, texts)
    if not loss.tokens:
        raise DataError(f"{', '.join(data)}: All lines are empty, so there is no token to mask. Give lines with text.")
    return {"task": "filler", "texts": len(texts), **_loss_table(loss)}


def _evaluate_classifier(task: "Classifier", data: Sequence[str], batch_tokens: int | None) -> Table:
    from regard.data.sources.formats import read_labelled_texts
    from regard.data.sources.text import DataError, InputFile, ReadLog
    from regard.models.vision import VisionConfig
    from regard.tasks.evaluation import evaluate_classifier

    if isinstance(task.config, VisionConfig):
        images, labels = read_images(task, data)
        found = evaluate_classifier(task, images, labels)
    else:
        log = ReadLog()
        examples = [example for path in data for example in read_labelled_texts(InputFile(path), log)]
        say_notes(log.notes)
        if not examples:
            raise DataError(f"{', '.join(data)}: The file is empty. Give a TSV with a text and a label on each line.")
        found = evaluate_classifier(task, [example.text for example in examples],
                                    [example.label for example in examples], batch_tokens=batch_tokens)
    return {"task": "classifier", **asdict(found), "accuracy": found.accuracy}


def _evaluate_labeller(task: "Labeller", data: Sequence[str], options: EvaluationOptions) -> Table:
    from regard.data.sources.text import DataError, InputFile, ReadLog
    from regard.data.sources.token_labels import LabelledFile
    from regard.tasks.evaluation import evaluate_labeller
    from regard.tasks.label_scores import parse_merge

    groups = None if options.merge is None else parse_merge(options.merge, "--merge")
    _check_picture(options.confusion)
    log, empty = ReadLog(), list[Any]()
    files = [LabelledFile(InputFile(path), unit=task.unit, log=log, **options.reading()) for path in data]
    try:
        sequences = [(one.tokens, one.labels) for file in files for one in file.read(empty)]
    except DataError as error:
        raise DataError(f"{error}{_unit_hint(task, data, options)}") from error
    say_notes(log.notes)
    if not sequences:
        raise DataError(f"{', '.join(data)}: There are no labelled sequences in this data.")
    names, own = {label for _, labels in sequences for label in labels}, task.label_names()
    if not names & {*own}:
        raise DataError(f"{', '.join(data)}: The model knows none of these labels ({_format_names(sorted(names))}). "
                        f"Its labels are {_format_names(own)}.{_unit_hint(task, data, options)}")
    found = evaluate_labeller(task, sequences, groups=groups, batch_tokens=options.batch_tokens)
    if options.confusion is not None:
        _draw_confusion(found.scores, options.confusion)
    merged = {}
    if groups is not None:
        rows = found.scores.rows
        if unknown := groups.unknown(rows):
            what = "is a label" if len(unknown) == 1 else "are labels"
            say_notes([f"--merge: {', '.join(unknown)} {what} of neither the model nor the data."])
        assert found.merged is not None
        merged["merged"] = _label_table(found.merged)
    return {"task": "labeller", "unit": task.unit, "sequences": found.sequences, "empty": len(empty),
            "loss": found.loss, "unknown_labels": found.scores.unknown, "irregular_spans": found.irregular,
            **_label_table(found.scores), **merged}


def _unit_hint(task: "Labeller", data: Sequence[str], options: EvaluationOptions) -> str:
    """A sentence that explains an error if a file seems to have labels of another unit than the model."""
    from regard.data.sources.text import STANDARD_INPUT, DataError, InputFile
    from regard.data.sources.token_labels import LabelledFile

    for path in data:
        if path == STANDARD_INPUT:  # it cannot be read again
            continue
        try:
            unit = LabelledFile(InputFile(path), **options.reading()).layout.unit
        except DataError:
            continue
        if unit != task.unit:
            return f" {path} seems to have a label for every {unit}, but the model labels {task.unit}s."
    return ""


def _format_names(names: Sequence[str]) -> str:
    """The first labels of a list, each truncated."""
    shown = [name if len(name) <= SHOWN_CHARACTERS else f"{name[:SHOWN_CHARACTERS]}..."
             for name in names[:SHOWN_LABELS]]
    return escape_unprintable(", ".join([*shown, *(["..."] if len(names) > SHOWN_LABELS else [])]))


def _label_table(scores: "LabelScores") -> Table:
    spans = {"span_f1": scores.spans.f1, "span_precision": scores.spans.precision, "span_recall": scores.spans.recall,
             "spans": [one._asdict() for one in scores.by_span()]} if scores.has_spans else {}
    return {"tokens": scores.tokens, "correct": scores.correct, "accuracy": scores.accuracy,
            "macro_f1": scores.macro_f1, **spans, "labels": [one._asdict() for one in scores.by_label()],
            "confusion": scores.confusion}


def _check_picture(file: str | None) -> None:
    """Refuse a name that is not one of a picture, and pictures without matplotlib, before the work begins."""
    from regard.inspection.pictures.canvas import load_matplotlib, picture_format

    if file is not None:
        picture_format(file, "--confusion")
        load_matplotlib()


def _draw_confusion(scores: "LabelScores", file: str) -> None:
    from regard.inspection.pictures.canvas import picture_format, render_figure
    from regard.inspection.pictures.maps import confusion_picture
    from regard.storage.filesystem import write_file

    picture = render_figure(confusion_picture(scores.confusion, scores.rows), picture_format(file))
    write_file(Path(file), picture, overwrite=False)


def read_images(task: "Classifier", data: Sequence[str]) -> "tuple[Tensor, list[str]]":
    """The bytes of all images, and their labels."""
    import torch

    from regard.data import images

    config = task.config
    shape = images.ImageShape(config.image_height, config.image_width, config.channels)  # type: ignore[union-attr]
    if len(data) == 2 and all(Path(path).is_file() for path in data):
        both = images.read_idx_images(data)
        arrays, labels = [images.resize_image(image, shape) for image in both.images], [*map(str, both.labels)]
    else:
        folders = [images.read_image_folder(path) for path in data]
        arrays = [images.read_pixels(file, shape) for folder in folders for file in folder.files]
        labels = [label for folder in folders for label in folder.labels]
    return torch.stack([torch.tensor(array) for array in arrays]), labels


def _evaluate_forecaster(task: "Forecaster", data: Sequence[str], options: EvaluationOptions) -> Table:
    from regard.data.sources.text import ReadLog
    from regard.data.tracks.reading import read_tracks
    from regard.data.tracks.windows import all_windows
    from regard.tasks.forecast_metrics import COLLISION_DISTANCE
    from regard.tasks.forecaster import evaluate_forecaster

    log = ReadLog()
    scenes = read_tracks(data, options.columns, log)
    say_notes(log.notes)
    config, distance = task.config, options.collision_distance
    distance = COLLISION_DISTANCE if distance is None else distance
    windows = all_windows(scenes, config.observed_steps, config.predicted_steps, step=options.frame_step)
    found = evaluate_forecaster(task, [window for some in windows for window in some], distance)
    return {"task": "forecaster", "futures": config.num_futures, "observed": config.observed_steps,
            "predicted": config.predicted_steps, "collision_distance": distance, **found}


def _draw_forecaster(found: Table, terminal: Terminal) -> None:
    """A table of the model and the baselines for each least number of agents."""
    from regard.tasks.forecaster import BASELINES, MIN_AGENTS

    columns = {"ade": "minADE", "fde": "minFDE", "top_ade": "ADE@1", "top_fde": "FDE@1",
               "jade": "JADE", "jfde": "JFDE", "collisions": "collisions"}
    for least in MIN_AGENTS:
        part = found.get(f"agents>={least}")
        if part is None:
            continue
        terminal.heading(f"Windows with at least {plural(least, 'complete agent')}: {part['windows']:,}, "
                         f"{plural(part['agents'], 'agent')}")
        cells = [["", *columns.values()]]
        for name in ("model", *BASELINES):
            cells.append([name, *("" if key not in part[name] else f"{100 * part[name][key]:.1f}%"
                                  if key == "collisions" else f"{part[name][key]:.3f}" for key in columns)])
        terminal.columns(cells)
    terminal.text(f"minADE, minFDE: the best of {plural(found['futures'], 'future')} of each agent. ADE@1, FDE@1: its "
                  "most probable future. JADE, JFDE: the best future of the whole window, one for all of its agents. "
                  "Distances are in the units of the data.")


def _loss_table(loss: "TokenLoss") -> Table:
    return {"loss": loss.mean, "perplexity": loss.perplexity, "tokens": loss.tokens}


def _draw_directions(found: Table, terminal: Terminal) -> None:
    """A row for each direction, and the means, which have no intervals."""
    cells = [["direction", "pairs", "BLEU", "chrF", "loss"]]
    for name, row in [*((one["direction"], one) for one in found["directions"]), ("mean", found)]:
        scores = [_format_score(row[key], row.get(f"{key}_interval")) for key in ("bleu", "chrf")]
        cells.append([name, f"{row['pairs']:,}", *scores, f"{row['loss']:.4f}"])
    terminal.columns(cells)
    first = found["directions"][0]
    terminal.table({**_brackets(found["directions"]), "Search": f"beam size {found['beam']}",
                    "BLEU signature": first["bleu_signature"], "chrF signature": first["chrf_signature"]})
    for one in found["directions"]:
        for each in one["degenerate"]:
            terminal.text(f"Warning: {one['direction']}: {each['sentence']}")


def _draw_table(found: Table, terminal: Terminal) -> None:
    if found["task"] in ("directions", "forecaster"):
        (_draw_directions if found["task"] == "directions" else _draw_forecaster)(found, terminal)
        return
    terminal.table(_result_rows(found))
    if found["task"] == "labeller":
        _draw_labels(found, terminal)
    for each in found.get("degenerate", ()):
        terminal.text(f"Warning: {each['sentence']}")
    buckets = found.get("by_length", ())
    if buckets:
        terminal.heading("By source length")
        cells = [["words", "pairs", "BLEU", "chrF"]]
        for row in buckets:
            words = f"{row['least']}-{row['most']}" if row["most"] is not None else f"{row['least']} or more"
            cells.append([words, f"{row['pairs']:,}", f"{row['bleu']:.2f}", f"{row['chrf']:.2f}"])
        terminal.columns(cells, left=())


def _draw_labels(found: Table, terminal: Terminal) -> None:
    """The scores of each label, of each type of spans, and of groups of labels."""
    tables = [("Labels", found["labels"]), ("Spans (conlleval)", found.get("spans", ())),
              ("Merged labels", found.get("merged", {}).get("labels", ()))]
    for title, rows in tables:
        if not rows:
            continue
        terminal.heading(title)
        cells = [["label", "precision", "recall", "F1", "expected", "predicted"]]
        for row in rows:
            percent = [f"{100 * row[key]:.2f}" for key in ("precision", "recall", "f1")]
            cells.append([escape_unprintable(row["label"]), *percent, f"{row['expected']:,}", f"{row['predicted']:,}"])
        terminal.columns(cells)


def _labeller_rows(found: Table) -> dict[str, str]:
    rows = {"Accuracy": f"{100 * found['accuracy']:.2f}% ({found['correct']:,} of "
                        f"{plural(found['tokens'], found['unit'])})"}
    if "merged" in found:
        merged = found["merged"]
        rows["Accuracy of merged labels"] = f"{100 * merged['accuracy']:.2f}% ({merged['correct']:,})"
    if "span_f1" in found:
        rows["F1 of spans"] = (f"{100 * found['span_f1']:.2f} (precision {100 * found['span_precision']:.2f}, recall "
                               f"{100 * found['span_recall']:.2f})")
    rows |= {"Macro F1": f"{100 * found['macro_f1']:.2f}", "Loss": f"{found['loss']:.4f}",
             "Test data": plural(found["sequences"], "sequence")}
    if found["empty"]:
        rows["Skipped"] = f"{plural(found['empty'], 'sequence')} without tokens"
    if found["unknown_labels"]:
        shown = ", ".join(f"{escape_unprintable(name)} ({count:,})" for name, count in found["unknown_labels"].items())
        rows["Unknown labels"] = f"{shown}: not labels of the model, so their tokens count as wrong"
    if found["irregular_spans"]:
        count = found["irregular_spans"]
        rows["Irregular spans"] = (f"{plural(count, 'span')} {'begins' if count == 1 else 'begin'} with I- instead of "
                                   f"B-; conlleval's rule counts {'it' if count == 1 else 'them'}")
    return rows


def _result_rows(found: Table) -> dict[str, str]:
    """The results by name, in words; losses are in nats."""
    if found["task"] == "labeller":
        return _labeller_rows(found)
    if found["task"] == "classifier":
        return {"Accuracy": f"{100 * found['accuracy']:.2f}% ({found['correct']:,} of {found['examples']:,})",
                "Loss": f"{found['loss']:.4f}"}
    loss = {"Loss": f"{found['loss']:.4f} per token (perplexity {found['perplexity']:,.2f})"}
    if found["task"] == "completer":
        return {**loss, "Bits per character": f"{found['bits_per_character']:.4f}",
                "Test data": f"{plural(found['characters'], 'character')}, {plural(found['tokens'], 'token')}"}
    if found["task"] == "filler":
        return {**loss, "Test data": f"{plural(found['texts'], 'text')}, {plural(found['tokens'], 'masked token')}"}
    cut = f"; {plural(found['cut'], 'translation')} reached the maximum length" if found["cut"] else ""
    return {"BLEU": _format_score(found["bleu"], found["bleu_interval"]),
            "chrF": _format_score(found["chrf"], found["chrf_interval"]), **_brackets([found]), **loss,
            "Test data": f"{plural(found['pairs'], 'pair')}, {plural(found['tokens'], 'target token')}",
            "Search": f"beam size {found['beam']}{cut}",
            "BLEU signature": found["bleu_signature"], "chrF signature": found["chrf_signature"]}


def _brackets(tables: Sequence[Table]) -> dict[str, str]:
    """A row that explains the intervals of these results; none if they have no intervals."""
    from regard.tasks.bootstrap import BOOTSTRAP_DRAWS

    if all(table["bleu_interval"] is None for table in tables):
        return {}
    return {"Brackets": f"95% confidence intervals (bootstrap over the test pairs, {BOOTSTRAP_DRAWS:,} draws)"}


def _format_score(value: float, interval: Sequence[float] | None) -> str:
    return f"{value:.2f}" if interval is None else f"{value:.2f} [{interval[0]:.2f}, {interval[1]:.2f}]"
