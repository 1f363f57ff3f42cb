"""Several runs of each model as one table: means, and how far apart the seeds are.

    summary(setting, results, about)      plain values: what `--json` prints, `results.json` holds and the page shows

It knows numbers. It does not know how they were measured, nor how they are shown.
"""

import math
from collections.abc import Callable, Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from regard._version import __version__
from regard.comparison.measures import Measured
from regard.comparison.runs import Results
from regard.comparison.setting import Setting

VERSION = 1
FEWEST = 5
"""Pairs of a length, below which its score says nothing."""
SCORES = ("bleu", "chrf", "loss", "tokens_per_second", "seconds")
Table = dict[str, Any]


class Spread(NamedTuple):
    """One number over several seeds."""

    mean: float
    low: float
    high: float
    deviation: float | None
    """The standard deviation; None where there is one seed."""

    @staticmethod
    def of(values: Sequence[float]) -> "Spread":
        """Of at least one value."""
        return Spread(fmean(values), min(values), max(values), stdev(values) if len(values) > 1 else None)


def summary(setting: Setting, results: Results, about: Table) -> Table:
    """All that a comparison found.

    Args:
        about: what is said of the data and of the machine.
    """
    return {"kind": "road", "version": VERSION, "regard": __version__, **about,
            "budget": {**setting.budget.plain(), "said": setting.budget.said()}, "seeds": setting.seeds,
            "beams": setting.beams, "quick": setting.small,
            "models": [_model(step.name, setting.recipe(step), step.about, results[step.name])
                       for step in setting.steps]}


def _model(name: str, recipe: str, about: str, runs: Sequence[Measured]) -> Table:
    first = runs[0]
    return {"name": name, "recipe": recipe, "about": about, "parameters": first.parameters, "steps": first.steps,
            "tokens": first.tokens, "memory": first.memory,
            "peak": max((run.peak for run in runs if run.peak is not None), default=None),
            **{score: _spread(runs, lambda run, score=score: getattr(run, score)) for score in SCORES},  # type: ignore[misc]
            "by_length": _by_length(runs),
            "curve": first.curve,
            "flow": {"last": _means([run.flow.last for run in runs]), "all": _means([run.flow.all for run in runs]),
                     "sentences": first.flow.sentences, "tokens": first.flow.tokens},
            "translation": first.translation, "attends": first.attention is not None, "signatures": first.signatures}


def _spread(runs: Sequence[Measured], number: Callable[[Measured], float]) -> Table:
    return Spread.of([number(run) for run in runs])._asdict()


def _by_length(runs: Sequence[Measured]) -> list[Table]:
    """The buckets, which are the same in all runs: the test is."""
    return [{"least": one["least"], "most": one["most"], "pairs": one["pairs"],
             **{score: Spread.of([run.by_length[place][score] for run in runs])._asdict()
                for score in ("bleu", "chrf")}}
            for place, one in enumerate(runs[0].by_length)]


def _means(rows: Sequence[Sequence[float]]) -> list[float]:
    return [fmean(column) for column in zip(*rows, strict=True)]


def bucket_name(bucket: Table) -> str:
    """How the lengths of a bucket are written."""
    if bucket["most"] is None:
        return f"{bucket['least']}+"
    return f"{max(1, bucket['least'])}-{bucket['most']}"


def telling(buckets: Sequence[Table]) -> list[Table]:
    """The buckets with enough pairs; all of them where none has."""
    return [one for one in buckets if one["pairs"] >= FEWEST] or [*buckets]


def kept_on_long(model: Table) -> float | None:
    """The BLEU of the longest sentences as a share of that of the shortest; None where there are no two such buckets.

    Buckets of very few pairs do not count.
    """
    buckets = [one for one in model["by_length"] if one["pairs"] >= FEWEST]
    if len(buckets) < 2:
        return None
    short, long = buckets[0]["bleu"]["mean"], buckets[-1]["bleu"]["mean"]
    return long / short if short > 0 and math.isfinite(long) else None
