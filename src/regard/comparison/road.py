"""The road from the recurrent network to the Transformer on one data set: train, measure, summarise, draw the page.

    data or phrasebook -> splits -> steps of each model -> training runs -> measurements -> results.json, page.html
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

import torch

from regard._version import __version__
from regard.comparison import splits
from regard.comparison.measures import ModelMeasures, measure_model, shown_sentence
from regard.comparison.pages import ResultTable, road_page
from regard.comparison.runs import (
    PAGE_FILE,
    RESULTS_FILE,
    RunMeasures,
    RunReporter,
    claim_folder,
    run_comparison,
    thread_number,
)
from regard.comparison.settings import ComparisonSettings
from regard.comparison.splits import DataFiles, SplitFiles

SUMMARY_VERSION = 1
RunResults = dict[str, list[ModelMeasures]]
SUMMARIZED_SCORES = ("bleu", "chrf", "loss", "tokens_per_second", "seconds")


class SeedSpread(NamedTuple):
    """A measurement over several seeds."""

    mean: float
    low: float
    high: float
    deviation: float | None
    """The standard deviation; None for a single seed."""

    @staticmethod
    def of(values: Sequence[float]) -> "SeedSpread":
        """The spread of at least one value."""
        return SeedSpread(fmean(values), min(values), max(values), stdev(values) if len(values) > 1 else None)


def summarize_runs(setting: ComparisonSettings, results: RunResults, about: ResultTable) -> ResultTable:
    """The results of a comparison over all seeds.

    Args:
        about: the data and the machine.
    """
    return {"kind": "road", "version": SUMMARY_VERSION, "regard": __version__, **about,
            "budget": {**setting.budget.to_json(), "said": setting.budget.describe()}, "seeds": setting.seeds,
            "beams": setting.beams, "quick": setting.small,
            "models": [_summarize_model(step.name, setting.recipe(step), step.about, results[step.name])
                       for step in setting.steps]}


def _summarize_model(name: str, recipe: str, about: str, runs: Sequence[ModelMeasures]) -> ResultTable:
    first = runs[0]
    return {"name": name, "recipe": recipe, "about": about, "parameters": first.parameters, "steps": first.steps,
            "tokens": first.tokens, "memory": first.memory,
            "peak": max((run.peak for run in runs if run.peak is not None), default=None),
            **{score: _spread_of(runs, lambda run, score=score: getattr(run, score))  # type: ignore[misc]
               for score in SUMMARIZED_SCORES},
            "by_length": _spread_by_length(runs),
            "curve": first.curve,
            "flow": {"last": _column_means([run.flow.last for run in runs]),
                     "all": _column_means([run.flow.all for run in runs]),
                     "sentences": first.flow.sentences, "tokens": first.flow.tokens},
            "translation": first.translation, "attends": first.attention is not None, "signatures": first.signatures}


def _spread_of(runs: Sequence[ModelMeasures], number: Callable[[ModelMeasures], float]) -> ResultTable:
    return SeedSpread.of([number(run) for run in runs])._asdict()


def _spread_by_length(runs: Sequence[ModelMeasures]) -> list[ResultTable]:
    """The scores by length; all runs have the same buckets, because they share the test set."""
    return [{"least": one["least"], "most": one["most"], "pairs": one["pairs"],
             **{score: SeedSpread.of([run.by_length[place][score] for run in runs])._asdict()
                for score in ("bleu", "chrf")}}
            for place, one in enumerate(runs[0].by_length)]


def _column_means(rows: Sequence[Sequence[float]]) -> list[float]:
    return [fmean(column) for column in zip(*rows, strict=True)]


PHRASEBOOK = "the phrasebook"


@dataclass(frozen=True)
class ComparisonData(DataFiles):
    """The sentence pairs of a comparison; by default the phrasebook."""

    def identity(self) -> ResultTable:
        """The sha256 of every file, and how they are read; or what the phrasebook is asked for."""
        if not self.data:
            return {PHRASEBOOK: {"drawn": splits.PHRASEBOOK_DRAWS, "clauses": splits.PHRASEBOOK_CLAUSES,
                                 "words": splits.PHRASEBOOK_WORDS}}
        return super().identity()

    def written(self, folder: Path, note: Callable[[str], None] = lambda text: None) -> SplitFiles:
        """Write the three split files into this folder; `note` is called with what to tell about the data."""
        if not self.data:
            return splits.split_phrasebook(folder)
        return splits.split_data(self.data, folder, validation=self.validation, test=self.test, source=self.source,
                                 target=self.target, format=self.format, note=note)

    def name(self) -> str:
        """The name of the data in the report."""
        return ", ".join(Path(path).name for path in self.data) or PHRASEBOOK


def compare_road(setting: ComparisonSettings, data: ComparisonData, folder: Path, reporter: RunReporter) -> ResultTable:
    """Run or continue a comparison; its results are returned, and stored in the folder with an HTML page."""
    place = claim_folder(folder, {"data": data.identity(), **setting.identity()})
    files = SplitFiles.at(place.data)
    if not all(path.exists() for path in files):
        with place.removed_on_error():
            files = data.written(place.data, reporter.note)
    tested = splits.read_pairs(files.test)
    results = run_comparison(setting, place, files, reporter, RunMeasures(
        lambda model, device, peak: measure_model(model, tested, beams=setting.beams, device=device, peak=peak),
        ModelMeasures.to_json, ModelMeasures.from_json))
    found = summarize_runs(setting, results, _describe_setup(setting, data, files, results))
    place.write(RESULTS_FILE, json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    maps = {name: runs[0].attention for name, runs in results.items()}
    place.write(PAGE_FILE, road_page(found, maps))
    return found


def _describe_setup(setting: ComparisonSettings, data: ComparisonData, files: SplitFiles,
                    results: RunResults) -> ResultTable:
    """What all models share: the data, the machine, and the shown sentence."""
    tokenizers = {run.tokenizer for runs in results.values() for run in runs}
    assert len(tokenizers) == 1, "the same pairs and settings make the same tokenizer"
    tested = splits.read_pairs(files.test)
    source, reference = tested[shown_sentence(tested)]
    counts = {name: len(splits.read_pairs(path)) for name, path in zip(splits.SPLIT_NAMES, files, strict=True)}
    device = "cuda" if setting.device == "auto" and torch.cuda.is_available() else setting.device
    return {"data": {"name": data.name(), **counts, "sha256": files.digests(), "tokenizer": tokenizers.pop()},
            "machine": {"device": torch.cuda.get_device_name() if device.startswith("cuda") else "CPU",
                        "threads": thread_number(setting)},
            "sentence": {"source": source, "reference": reference}}
