"""Paired bootstrap: could the difference between two translators on a test be an accident of its sentences?

    paired(first, second, references)      Difference(mean=1.8, low=0.6, high=3.1, p=0.004) of BLEU and of chrF

The test is drawn again a thousand times, with as many sentences, some of them more than once, the same ones for both
systems; each time both are scored, on the whole of what was drawn (Koehn 2004). `low` and `high` hold 95 of 100
differences. `p` is how often, were there no difference, one as large as that of the real test would be drawn: the drawn
differences less their mean, both ends counted, and one added to both numbers, so that it is never 0.

BLEU and chrF are computed from sums of counts of sentences, so a thousand tests cost little more than one. It knows
texts alone.

Legend: S sentences, K counts of a sentence, R draws.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from regard.tasks.scores import check_counts

DRAWS, SEED = 1000, 1
INNER = 0.95
"""The share of differences that lies between low and high."""


class Difference(NamedTuple):
    """Of the second to the first, in points of the score."""

    first: float
    second: float
    difference: float
    """As it is on the whole test."""
    low: float
    high: float
    p: float


class Compared(NamedTuple):
    """Both scores."""

    bleu: Difference
    chrf: Difference


def paired(first: Sequence[str], second: Sequence[str], references: Sequence[str], *, draws: int = DRAWS,
           seed: int = SEED) -> Compared:
    """Both systems' hypotheses against the same references."""
    check_counts(first=first, second=second, references=references)
    chosen_RS = np.random.default_rng(seed).integers(len(references), size=(draws, len(references)))
    return Compared(*(_difference(metric, first, second, references, chosen_RS)
                      for metric in (BLEU(force=True), CHRF())))


def sentence_scores(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
    """The chrF of each sentence by itself; BLEU is not made for single sentences."""
    check_counts(hypotheses=hypotheses, references=references)
    metric = CHRF()
    return [float(metric.sentence_score(made, [wanted]).score)
            for made, wanted in zip(hypotheses, references, strict=True)]


def _difference(metric: "BLEU | CHRF", first: Sequence[str], second: Sequence[str], references: Sequence[str],
                chosen_RS: NDArray[np.int64]) -> Difference:
    counts = [_counts(metric, made, references) for made in (first, second)]
    whole = [_score(metric, counts_SK.sum(0)) for counts_SK in counts]
    drawn = np.array([[_score(metric, counts_SK[row].sum(0)) for row in chosen_RS] for counts_SK in counts])
    apart, real = drawn[1] - drawn[0], whole[1] - whole[0]
    edge = (1 - INNER) / 2
    low, high = np.quantile(apart, [edge, 1 - edge])
    as_large = int((np.abs(apart - apart.mean()) >= abs(real)).sum())
    return Difference(whole[0], whole[1], real, float(low), float(high), (as_large + 1) / (len(chosen_RS) + 1))


def _counts(metric: Any, hypotheses: Sequence[str], references: Sequence[str]) -> NDArray[np.int64]:
    """What each sentence adds to the sums that a score is made of, (S, K)."""
    return np.array(metric._extract_corpus_statistics([*hypotheses], [[*references]]))


def _score(metric: Any, sums_K: NDArray[np.int64]) -> float:
    return float(metric._compute_score_from_stats([int(value) for value in sums_K]).score)
