"""How sure a score is: bootstrap resampling of a test set.

    statistics = SentenceStatistics.of(BLEU(), hypotheses, references)
    statistics.score                           the score of the whole test set, that of sacrebleu's corpus_score
    statistics.resampled_scores()              the scores of 1,000 test sets drawn from it
    statistics.interval()                      the 95 % confidence interval

The bootstrap (Koehn 2004) draws as many sentences as the test set has, with replacement, and scores each draw as a
whole. The 2.5th and the 97.5th percentile of these scores are the interval: how much the score depends on which
sentences happen to be in the test set. It says nothing about texts of another kind.

BLEU and chrF depend on sums of integers over the sentences. sacrebleu counts those once for each sentence; a draw only
says how often each sentence counts, so that all sums are one matrix product, and sacrebleu computes the score of each.
The same seed draws the same sentences, which is what makes a comparison of two models paired.

Legend: S sentences, K statistics of a sentence, R draws.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

BOOTSTRAP_DRAWS, BOOTSTRAP_SEED = 1000, 1
CONFIDENCE = 0.95
"""The fraction of resampled scores between the two ends of an interval."""
MIN_SENTENCES = 2
"""A single sentence has no interval: every draw of it is the same."""
MAX_COUNTS = 1 << 22
"""How often each sentence counts in each draw: as many of these numbers are in memory at a time."""


class ConfidenceInterval(NamedTuple):
    """A 95 % confidence interval."""

    low: float
    high: float


@dataclass(frozen=True)
class SentenceStatistics:
    """What a metric of sacrebleu counts in each sentence."""

    metric: Any
    """`BLEU` or `CHRF` of sacrebleu."""
    counts_SK: NDArray[np.int64]

    @classmethod
    def of(cls, metric: Any, hypotheses: Sequence[str], references: Sequence[str]) -> "SentenceStatistics":
        """Count in hypotheses with one reference each."""
        return cls(metric, np.array(metric._extract_corpus_statistics([*hypotheses], [[*references]]), np.int64))

    @property
    def score(self) -> float:
        """The score of all sentences."""
        return self._score(self.counts_SK.sum(0).tolist())

    @property
    def signature(self) -> str:
        """How sacrebleu computes the score."""
        return str(self.metric.get_signature())

    def resampled_scores(self, draws: int = BOOTSTRAP_DRAWS, seed: int = BOOTSTRAP_SEED) -> NDArray[np.float64]:
        """The score of each draw, (R,)."""
        counts_SK = self.counts_SK.astype(np.float64)  # for a fast product; whole numbers up to 2^53 are exact
        sums_RK = np.concatenate([times_RS @ counts_SK for times_RS in draw_counts(len(counts_SK), draws, seed)])
        return np.array([self._score(sums_K) for sums_K in sums_RK.astype(np.int64).tolist()])

    def interval(self, draws: int = BOOTSTRAP_DRAWS, seed: int = BOOTSTRAP_SEED) -> ConfidenceInterval | None:
        """The confidence interval of the score; None for a single sentence."""
        return percentile_interval(self.resampled_scores(draws, seed)) if len(self.counts_SK) >= MIN_SENTENCES else None

    def _score(self, sums_K: list[int]) -> float:
        return float(self.metric._compute_score_from_stats(sums_K).score)


def draw_counts(sentences: int, draws: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """How often each sentence is drawn, in arrays of some draws (R, S)."""
    random, rows = np.random.default_rng(seed), max(1, MAX_COUNTS // sentences)
    for first in range(0, draws, rows):
        count = min(rows, draws - first)
        drawn_RS = random.integers(sentences, size=(count, sentences)) + sentences * np.arange(count)[:, None]
        yield np.bincount(drawn_RS.ravel(), minlength=count * sentences).reshape(count, sentences).astype(np.float64)


def percentile_interval(values_R: NDArray[np.float64], confidence: float = CONFIDENCE) -> ConfidenceInterval:
    """The interval between the percentiles that enclose this fraction of the values."""
    low, high = np.quantile(values_R, [(1 - confidence) / 2, (1 + confidence) / 2])
    return ConfidenceInterval(float(low), float(high))
