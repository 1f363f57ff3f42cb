"""The paired bootstrap against one that scores every drawn test from its texts."""

import numpy as np
import pytest
import sacrebleu

from regard.comparison.pairwise import paired_bootstrap, sentence_chrf
from regard.data import phrasebook

REFERENCES = [pair.target for pair in phrasebook.pairs(25, seed=5)]
GOOD = [text if number % 4 else text.replace("e", "a") for number, text in enumerate(REFERENCES)]
BAD = [" ".join(text.split()[:-2]) if number % 2 else text for number, text in enumerate(REFERENCES)]


def by_force(first, second, references, draws, seed, score):
    """The same from texts."""
    chosen = np.random.default_rng(seed).integers(len(references), size=(draws, len(references)))
    apart = []
    for row in chosen:
        one, other = ([made[number] for number in row] for made in (first, second))
        wanted = [[references[number] for number in row]]
        apart.append(score(other, wanted).score - score(one, wanted).score)
    real = score(second, [references]).score - score(first, [references]).score
    apart = np.array(apart)
    return real, *np.quantile(apart, [0.025, 0.975]), (sum(np.abs(apart - apart.mean()) >= abs(real)) + 1) / (draws + 1)


@pytest.mark.parametrize(("name", "score"), [("bleu", sacrebleu.corpus_bleu), ("chrf", sacrebleu.corpus_chrf)])
def test_it_is_the_bootstrap_of_whole_tests(name, score):
    found = getattr(paired_bootstrap(BAD, GOOD, REFERENCES, draws=60, seed=7), name)
    want = by_force(BAD, GOOD, REFERENCES, 60, 7, score)
    assert (found.difference, found.low, found.high, found.p) == pytest.approx(want, abs=1e-9)
    assert found.second - found.first == pytest.approx(found.difference)


def test_a_model_does_not_differ_from_itself():
    found = paired_bootstrap(GOOD, GOOD, REFERENCES, draws=50)
    assert found.bleu[2:] == (0.0, 0.0, 0.0, 1.0)
    assert found.chrf.p == 1.0


def test_a_large_difference_is_no_chance_and_a_small_one_may_be():
    assert paired_bootstrap(["rien"] * 25, REFERENCES, REFERENCES, draws=200).bleu.p < 0.01
    almost = [REFERENCES[0].replace("e", "a", 1), *REFERENCES[1:]]
    assert paired_bootstrap(almost, REFERENCES, REFERENCES, draws=200).bleu.p > 0.05


def test_it_is_the_same_every_time_and_other_seeds_draw_otherwise():
    assert paired_bootstrap(BAD, GOOD, REFERENCES, draws=30) == paired_bootstrap(BAD, GOOD, REFERENCES, draws=30)
    assert paired_bootstrap(BAD, GOOD, REFERENCES, draws=30) != paired_bootstrap(BAD, GOOD, REFERENCES, draws=30, seed=2)


def test_as_many_sentences_are_needed_on_each_side():
    with pytest.raises(ValueError, match="25"):
        paired_bootstrap(BAD[:-1], GOOD, REFERENCES)


def test_scores_of_sentences_are_those_of_sacrebleu():
    assert sentence_chrf(GOOD[:3], REFERENCES[:3]) == [
        pytest.approx(sacrebleu.sentence_chrf(made, [wanted]).score)
        for made, wanted in zip(GOOD[:3], REFERENCES[:3], strict=True)]
