"""Three ways to label tokens on one data set: recurrence, convolution and self-attention, trained and tested alike.

    compare_taggers(settings, LabelledData(("labelled.tsv",)), folder, reporter)

The data is split by a hash of its sequences into training, validation and test sequences, three JSONL files that all
models share. Each model is tested by `regard.tasks.evaluation.evaluate_labeller`. The folder is that of any comparison
(`regard.comparison.runs`): the same request resumes it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from regard._version import __version__
from regard.checks import plural
from regard.comparison.measures import progress_lines
from regard.comparison.pages import Html, ResultTable, format_spread, html_page, html_paragraph, html_table, html_text
from regard.comparison.road import SeedSpread
from regard.comparison.runs import PAGE_FILE, RESULTS_FILE, RunMeasures, RunReporter, claim_folder, run_comparison
from regard.comparison.settings import ComparisonSettings
from regard.comparison.splits import MIN_TRAINING_PAIRS, SPLIT_NAMES, DataFiles, SplitFiles, hold_out, write_splits
from regard.data.sources.text import DataError, ReadLog
from regard.data.sources.token_labels import LabelledFile, LabelledSequence
from regard.tasks.evaluation import evaluate_labeller
from regard.tasks.labeller import Labeller
from regard.tasks.load import load
from regard.training.tasks.common import open_inputs

SUMMARY_VERSION = 1
SUMMARIZED = ("accuracy", "f1", "loss", "tokens_per_second", "seconds")


@dataclass(frozen=True)
class LabelledData(DataFiles):
    """The labelled sequences of a comparison of taggers."""

    def written(self, folder: Path, note: Callable[[str], None]) -> SplitFiles:
        """Write the three split files into this folder; `note` is called with what to tell about the data."""
        log, unit = ReadLog(), None
        parts = dict[str, list[LabelledSequence]]()
        for name, paths in (("data", self.data), ("validation", self.validation), ("test", self.test)):
            parts[name] = []
            for input in open_inputs(paths):
                file = LabelledFile(input, unit=unit, format=self.format, source=self.source, target=self.target,
                                    log=log)
                unit = unit or file.layout.unit
                parts[name] += file
        assert unit is not None
        for text in log.notes:
            note(text)
        given = {name: parts[name] for name in SPLIT_NAMES[1:] if parts[name]}
        tested = {one.tokens for one in given.get("test", ())}
        distinct = {one.tokens: one for one in reversed(parts["data"]) if one.tokens not in tested}
        found = hold_out([*reversed(distinct.values())], [name for name in SPLIT_NAMES[1:] if name not in given],
                         lambda one: "\t".join(one.tokens), "sequence")
        if len(found["train"]) < MIN_TRAINING_PAIRS:
            raise DataError(f"{', '.join(self.data)}: A comparison needs at least {MIN_TRAINING_PAIRS:,} training "
                            f"sequences, but only {plural(len(found['train']), 'sequence')} remain after splitting.")
        return write_splits(folder, {name: map(_json_line, [*found.get(name, []), *given.get(name, [])])
                                     for name in SPLIT_NAMES})


def _json_line(sequence: LabelledSequence) -> str:
    return json.dumps({"tokens": sequence.tokens, "labels": sequence.labels}, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class TaggerMeasures:
    """The measurements of one model. Losses are in nats per token."""

    accuracy: float
    f1: float
    """Of spans for an IOB scheme, else the mean over the labels."""
    loss: float
    parameters: int
    steps: int
    tokens: int
    """Tokens seen in training."""
    seconds: float
    tokens_per_second: float
    labels: tuple[dict[str, Any], ...]
    """Precision, recall and F1 of each label."""
    peak: int | None
    """Peak GPU memory in training, in bytes; None on a CPU."""

    @staticmethod
    def from_json(table: dict[str, Any]) -> "TaggerMeasures":
        """The inverse of `asdict`."""
        return TaggerMeasures(**{**table, "labels": tuple(table["labels"])})


def measure_tagger(folder: Path, tested: Sequence[LabelledSequence], device: str, peak: int | None) -> TaggerMeasures:
    """Load a trained model and measure it on the test sequences."""
    task = load(folder, device=device)
    assert isinstance(task, Labeller)
    found, lines = evaluate_labeller(task, [(one.tokens, one.labels) for one in tested]), progress_lines(folder)
    scores = found.scores
    return TaggerMeasures(
        scores.accuracy, scores.f1, found.loss, task.config.parameters(), max(line["step"] for line in lines),
        max(line["tokens"] for line in lines), max(line["seconds"] for line in lines),
        float(median(line["tokens_per_second"] for line in lines)),
        tuple(one._asdict() for one in scores.by_label()), peak)


def compare_taggers(setting: ComparisonSettings, data: LabelledData, folder: Path,
                    reporter: RunReporter) -> ResultTable:
    """Run or continue a comparison; its results are returned, and stored in the folder with an HTML page."""
    open_inputs((*data.data, *data.validation, *data.test))
    place = claim_folder(folder, {"data": data.identity(), **setting.identity()})
    files = SplitFiles.at(place.data)
    if not all(path.exists() for path in files):
        with place.removed_on_error():
            files = data.written(place.data, reporter.note)
    splits = {name: [*LabelledFile(open_inputs([str(path)])[0])]
              for name, path in zip(SPLIT_NAMES, files, strict=True)}
    results = run_comparison(setting, place, files, reporter, RunMeasures(
        lambda model, device, peak: measure_tagger(model, splits["test"], device, peak), asdict,
        TaggerMeasures.from_json))
    found = {"kind": "taggers", "version": SUMMARY_VERSION, "regard": __version__,
             "data": {"name": ", ".join(Path(path).name for path in data.data), "sha256": files.digests(),
                      **{name: len(some) for name, some in splits.items()}},
             "budget": {**setting.budget.to_json(), "said": setting.budget.describe()}, "seeds": setting.seeds,
             "quick": setting.small,
             "models": [_summarize(step.name, setting.recipe(step), step.about, results[step.name])
                        for step in setting.steps]}
    place.write(RESULTS_FILE, json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    place.write(PAGE_FILE, taggers_page(found))
    return found


def _summarize(name: str, recipe: str, about: str, results: Sequence[TaggerMeasures]) -> ResultTable:
    first = results[0]
    return {"name": name, "recipe": recipe, "about": about, "parameters": first.parameters, "steps": first.steps,
            "tokens": first.tokens,
            **{score: SeedSpread.of([getattr(one, score) for one in results])._asdict() for score in SUMMARIZED},
            "peak": max((one.peak for one in results if one.peak is not None), default=None), "labels": first.labels}


def describe_setting(found: Mapping[str, Any]) -> str:
    """What all models share, in one sentence."""
    budget = found["budget"]["said"].replace("target tokens", "tokens")
    return (f"Every model: {budget}; trained on {found['data']['train']:,} sequences of "
            f"{found['data']['name']}, tested on {found['data']['test']:,} others; {plural(found['seeds'], 'seed')}.")


def score_rows(found: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The table of scores: its head and its rows."""
    def percent(spread: ResultTable) -> str:
        scaled = {key: None if value is None else 100 * value for key, value in spread.items()}
        return format_spread(scaled, 2)

    rows = [[model["name"], percent(model["accuracy"]), percent(model["f1"]), format_spread(model["loss"], 4),
             f"{model['parameters']:,}", f"{model['steps']:,}", format_spread(model["tokens_per_second"], 0)]
            for model in found["models"]]
    return ["model", "accuracy", "F1", "loss", "parameters", "steps", "tokens/s"], rows


def label_rows(found: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The F1 of every label by every model, with the first seed."""
    names = [one["label"] for one in found["models"][0]["labels"]]
    rows = [[model["name"], *(f"{100 * one['f1']:.1f}" for one in model["labels"])] for model in found["models"]]
    return ["F1 by label", *names], rows


def taggers_page(found: ResultTable) -> str:
    """The results as an HTML page."""
    tables = []
    for (head, rows), caption in ((score_rows(found), "Scores on the test sequences"),
                                  (label_rows(found), "F1 of each label, in percent")):
        cells: list[list[Html]] = [[html_text(cell) for cell in row] for row in rows]
        tables.append(html_table(head, cells, caption=caption, numbers=range(1, len(head))))
    about = html_table(["model", "how it mixes tokens"], [[html_text(model["name"]), html_text(model["about"])]
                                                          for model in found["models"]])
    return html_page("Three ways to label tokens", [html_paragraph(describe_setting(found)), tables[0], about,
                                                    tables[1]])
