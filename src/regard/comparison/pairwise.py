"""Two translation models on the same test set: scores, paired bootstrap, and every sentence.

    compare_models(("a", first), ("b", second), pairs)      plain values, as JSON has them
    paired_bootstrap(first, second, references)             differences of BLEU and chrF with range and p-value

The paired bootstrap (Koehn 2004) draws the test set a thousand times with replacement, the same sentences for both
systems, and scores each draw as a whole (`regard.tasks.bootstrap`). `low` and `high` enclose 95 % of the differences.
`p` is how often a difference as large as the real one would be drawn if there were none: drawn differences minus their
mean, two-sided, with one added to both counts so that it is never 0.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from regard._version import __version__
from regard.tasks import evaluation
from regard.tasks.bootstrap import BOOTSTRAP_DRAWS, BOOTSTRAP_SEED, SentenceStatistics, percentile_interval
from regard.tasks.evaluation import TranslationEvaluation, check_counts
from regard.tasks.translator import Translator


class ScoreDifference(NamedTuple):
    """The score of the second system minus that of the first, in points."""

    first: float
    second: float
    difference: float
    """The difference on the test set itself."""
    low: float
    high: float
    p: float


class ScoreDifferences(NamedTuple):
    """The differences of both metrics."""

    bleu: ScoreDifference
    chrf: ScoreDifference


def paired_bootstrap(first: Sequence[str], second: Sequence[str], references: Sequence[str], *,
                     draws: int = BOOTSTRAP_DRAWS,
                     seed: int = BOOTSTRAP_SEED) -> ScoreDifferences:
    """Compare the hypotheses of two systems for the same references."""
    check_counts(first=first, second=second, references=references)
    return ScoreDifferences(*(_score_difference(SentenceStatistics.of(metric, first, references),
                                                SentenceStatistics.of(metric, second, references), draws, seed)
                              for metric in (BLEU(force=True), CHRF())))


def sentence_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
    """The chrF of each sentence; BLEU is not meant for single sentences."""
    check_counts(hypotheses=hypotheses, references=references)
    metric = CHRF()
    return [float(metric.sentence_score(made, [wanted]).score)
            for made, wanted in zip(hypotheses, references, strict=True)]


def _score_difference(first: SentenceStatistics, second: SentenceStatistics, draws: int, seed: int) -> ScoreDifference:
    real = second.score - first.score
    apart = second.resampled_scores(draws, seed) - first.resampled_scores(draws, seed)  # of the same sentences
    as_large = int((np.abs(apart - apart.mean()) >= abs(real)).sum())
    return ScoreDifference(first.score, second.score, real, *percentile_interval(apart), (as_large + 1) / (draws + 1))


PAIRWISE_VERSION = 1
Table = dict[str, Any]
NamedTranslator = tuple[str, Translator]


def compare_models(first: NamedTranslator, second: NamedTranslator, pairs: Sequence[tuple[str, str]], *, beams: int = 5,
                   draws: int = BOOTSTRAP_DRAWS) -> Table:
    """Both models on these pairs (source, target); differences are those of the second to the first.

    The sentences begin with those where the second is better than the first by most, and end with the opposite.
    """
    found = [evaluation.evaluate_translator(task, pairs, beams=beams) for _, task in (first, second)]
    references = [pair[1] for pair in pairs]
    made = [one.hypotheses for one in found]
    apart = paired_bootstrap(made[0], made[1], references, draws=draws)
    each = [sentence_chrf(hypotheses, references) for hypotheses in made]
    sentences: list[Table] = [{"number": number, "source": source, "reference": target, "first": made[0][number],
                               "second": made[1][number], "first_chrf": each[0][number], "second_chrf": each[1][number],
                               "difference": each[1][number] - each[0][number]}
                              for number, (source, target) in enumerate(pairs)]
    sentences.sort(key=lambda sentence: -sentence["difference"])
    return {"kind": "models", "version": PAIRWISE_VERSION, "regard": __version__, "pairs": len(pairs), "beams": beams,
            "draws": draws,
            "models": [_model_table(name, task, one) for (name, task), one in zip((first, second), found, strict=True)],
            "difference": {score: one._asdict() for score, one in apart._asdict().items()},
            "same": sum(one == other for one, other in zip(*made, strict=True)), "sentences": sentences}


def _model_table(name: str, task: Translator, found: TranslationEvaluation) -> Table:
    return {"name": name, "parameters": task.config.parameters(), "bleu": found.scores.bleu, "chrf": found.scores.chrf,
            "bleu_interval": found.scores.bleu_interval, "chrf_interval": found.scores.chrf_interval,
            "loss": found.loss.mean, "cut": found.cut,
            "by_length": [bucket._asdict() for bucket in found.by_length],
            "signatures": {"bleu": found.scores.bleu_signature, "chrf": found.scores.chrf_signature}}
