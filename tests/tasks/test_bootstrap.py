"""Confidence intervals: those of whole test sets that are drawn and scored one by one."""

import json
import time

import numpy as np
import pytest
import sacrebleu
import texting
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from regard.data import phrasebook
from regard.tasks import bootstrap
from regard.tasks.bootstrap import ConfidenceInterval, SentenceStatistics, draw_counts, percentile_interval
from regard.tasks.evaluation import (
    bleu,
    chrf,
    corpus_scores,
    evaluate_translator,
    score_details,
    translation_statistics,
)

REFERENCES = [pair.target for pair in phrasebook.pairs(30, seed=3)]
HYPOTHESES = [" ".join(text.split()[:-2]) if number % 3 == 0 else text.replace("e", "a") if number % 3 == 1 else text
              for number, text in enumerate(REFERENCES)]
METRICS = {"BLEU": lambda: BLEU(force=True), "chrF": CHRF}
SETS = {
    "usual": (HYPOTHESES, REFERENCES),
    "empty hypotheses": ([""] * 6, REFERENCES[:6]),
    "some are empty": (["", *HYPOTHESES[1:5], " "], REFERENCES[:6]),
    "nothing is right": (["zzz"] * 6, REFERENCES[:6]),
    "single words": (["un", "deux", "trois"], ["un", "trois", "trois"]),
    "empty references": (["un", "deux"], ["", ""]),
}


@pytest.mark.parametrize("texts", SETS.values(), ids=SETS)
@pytest.mark.parametrize("make", METRICS.values(), ids=METRICS)
def test_every_draw_is_scored_as_sacrebleu_scores_it(make, texts):
    """A loop that draws the texts themselves and calls corpus_score gives the same numbers, bit for bit."""
    hypotheses, references = texts
    statistics = SentenceStatistics.of(make(), hypotheses, references)
    assert statistics.score == make().corpus_score(hypotheses, [references]).score
    chosen = np.random.default_rng(7).integers(len(references), size=(40, len(references)))
    expected = [make().corpus_score([hypotheses[at] for at in row], [[references[at] for at in row]]).score
                for row in chosen]
    assert statistics.resampled_scores(40, 7).tolist() == expected
    assert statistics.interval(40, 7) == pytest.approx(np.percentile(expected, [2.5, 97.5]))


@pytest.mark.parametrize("make", METRICS.values(), ids=METRICS)
def test_beside_the_bootstrap_of_sacrebleu(make):
    """sacrebleu tells the mean of the draws and half the distance of two of them. Its seed gives the same draws.

    Its sums are in float32.
    """
    theirs = make().corpus_score(HYPOTHESES, [REFERENCES], n_bootstrap=1000)
    drawn = np.sort(SentenceStatistics.of(make(), HYPOTHESES, REFERENCES).resampled_scores(1000, 12345))
    assert theirs._mean == pytest.approx(drawn.mean(), abs=1e-3)
    assert theirs._ci == pytest.approx((drawn[974] - drawn[25]) / 2, abs=1e-3)
    # Another seed and percentiles between draws change little: less than a tenth of the width.
    low, high = SentenceStatistics.of(make(), HYPOTHESES, REFERENCES).interval()
    assert (high - low) / 2 == pytest.approx(theirs._ci, rel=0.1)
    assert (high + low) / 2 == pytest.approx(theirs._mean, abs=0.2 * float(theirs._ci))


def test_scores_have_intervals_where_they_are_asked_for():
    plain, found = corpus_scores(HYPOTHESES, REFERENCES), corpus_scores(HYPOTHESES, REFERENCES, draws=1000)
    assert (plain.bleu_interval, plain.chrf_interval) == (None, None)
    assert found[:4] == plain[:4]
    assert found.bleu == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES], force=True).score == bleu(*SETS["usual"]).value
    assert found.chrf == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score == chrf(*SETS["usual"]).value
    for score, (low, high) in ((found.bleu, found.bleu_interval), (found.chrf, found.chrf_interval)):
        assert low < score < high
    assert corpus_scores(HYPOTHESES, REFERENCES, draws=1000) == found
    options = {"lowercase": True, "tokenize": "char"}
    other = corpus_scores([text.upper() for text in HYPOTHESES], REFERENCES, draws=50, **options)
    assert other == corpus_scores(HYPOTHESES, [text.upper() for text in REFERENCES], draws=50, **options)


def test_one_sentence_has_no_interval_and_equal_ones_have_an_empty_one():
    one = corpus_scores(HYPOTHESES[:1], REFERENCES[:1], draws=100)
    assert (one.bleu_interval, one.chrf_interval) == (None, None)
    same = corpus_scores(HYPOTHESES[:1] * 5, REFERENCES[:1] * 5, draws=100)
    assert same.chrf_interval == (same.chrf, same.chrf)
    nothing = corpus_scores([""] * 5, REFERENCES[:5], draws=100)
    assert nothing.bleu_interval == nothing.chrf_interval == (0.0, 0.0)
    right = corpus_scores(REFERENCES, REFERENCES, draws=100)
    assert right.chrf_interval == (100.0, 100.0)
    assert right.bleu_interval == pytest.approx((100.0, 100.0))


def test_draws_in_parts_are_the_draws_at_once(monkeypatch):
    (whole,) = draw_counts(11, 9, 5)
    monkeypatch.setattr(bootstrap, "MAX_COUNTS", 25)
    parts = [*draw_counts(11, 9, 5)]
    assert [len(part) for part in parts] == [2, 2, 2, 2, 1]
    assert np.array_equal(np.concatenate(parts), whole)
    assert (whole.sum(1) == 11).all()


def test_an_interval_encloses_its_fraction():
    assert percentile_interval(np.arange(1001.0)) == pytest.approx((25.0, 975.0))
    assert percentile_interval(np.arange(101.0), 0.5) == pytest.approx((25.0, 75.0))


@pytest.mark.thorough
def test_two_thousand_sentences_take_little_time():
    """Less than half a second as a rule; the limit leaves room for a busy machine."""
    texts = [HYPOTHESES[number % 30] for number in range(2000)], [REFERENCES[number % 30] for number in range(2000)]
    statistics = translation_statistics(*texts)
    start = time.process_time()
    statistics.scores(1000)
    assert time.process_time() - start < 2


def test_an_evaluation_has_intervals():
    task, pairs = texting.translator(), texting.pairs()[:6]
    found = evaluate_translator(task, pairs, beams=1)
    targets = [target for _, target in pairs]
    assert found.scores == corpus_scores(found.hypotheses, targets, draws=1000)
    assert isinstance(found.scores.chrf_interval, ConfidenceInterval)


def test_details_are_plain_values():
    statistics = translation_statistics(HYPOTHESES, REFERENCES)
    found = score_details({"": statistics}, REFERENCES, HYPOTHESES, REFERENCES)
    scores = statistics.scores(1000)
    assert found == {"bleu_interval": [*scores.bleu_interval], "chrf_interval": [*scores.chrf_interval]}
    assert json.loads(json.dumps(found)) == found
    copied = score_details({"": translation_statistics(["a"] * 9, ["b"] * 9)}, ["a"] * 9, ["a"] * 9, ["b"] * 9)
    assert ["100%" in sentence for sentence in copied["degenerate"]] == [True]
    assert score_details({"": translation_statistics(["a"], ["b"])}, ["c"], ["a"], ["b"]) == {}
