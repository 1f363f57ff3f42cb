"""Two trained models on one test: the scores of each, the difference, and sentences in its order."""

import json
from dataclasses import replace

import numpy as np
import pytest
import sacrebleu
import texting

from regard.comparison.pairwise import compare_models, paired_bootstrap, sentence_chrf
from regard.data import phrasebook
from regard.tasks.evaluation import evaluate_translator

PAIRS = texting.pairs()[:8]


@pytest.mark.thorough
def test_each_model_is_scored_as_by_itself_and_sentences_are_sorted():
    first, second = texting.translator(), texting.translator(pair=texting.separate)
    found = compare_models(("a", first), ("b", second), PAIRS, beams=1, draws=20)
    json.dumps(found, allow_nan=False)
    for told, task in zip(found["models"], (first, second), strict=True):
        want = evaluate_translator(task, PAIRS, beams=1)
        assert (told["bleu"], told["chrf"], told["loss"]) == pytest.approx((*want.scores[:2], want.loss.mean))
    assert found["difference"]["chrf"]["difference"] == pytest.approx(found["models"][1]["chrf"] -
                                                                      found["models"][0]["chrf"])
    apart = [sentence["difference"] for sentence in found["sentences"]]
    assert apart == sorted(apart, reverse=True)
    assert sorted(sentence["number"] for sentence in found["sentences"]) == list(range(8))
    assert all((one["source"], one["reference"]) == PAIRS[one["number"]] for one in found["sentences"])


def test_a_model_and_itself_are_the_same():
    task = texting.translator()
    found = compare_models(("a", task), ("a again", task), PAIRS, beams=1, draws=20)
    assert found["same"] == 8
    assert {sentence["difference"] for sentence in found["sentences"]} == {0.0}
    assert found["difference"]["bleu"]["p"] == 1.0


def test_the_first_sentences_are_those_where_the_second_is_better(monkeypatch):
    """Models that write what is given here: the first is wrong at 1 and 2, the second at 5."""
    references = [target for _, target in PAIRS]
    made = {"first": [*references], "second": [*references]}
    made["first"][1], made["first"][2], made["second"][5] = "rien", references[2][:-3], "rien"
    real = evaluate_translator(texting.translator(), PAIRS, beams=1)
    tasks = {name: texting.translator() if name == "first" else texting.translator(pair=texting.separate)
             for name in made}

    def fake(task, pairs, *, beams):
        name = next(name for name, one in tasks.items() if one is task)
        return replace(real, hypotheses=tuple(made[name]))

    monkeypatch.setattr("regard.comparison.pairwise.evaluation.evaluate_translator", fake)
    found = compare_models(*((name, tasks[name]) for name in made), PAIRS, beams=1, draws=20)
    order = [sentence["number"] for sentence in found["sentences"]]
    assert (order[:2], order[-1], found["same"]) == ([1, 2], 5, 5)
    first, last = found["sentences"][0], found["sentences"][-1]
    assert (first["first"], first["second"], last["second"]) == ("rien", references[1], "rien")
    assert first["difference"] == pytest.approx(100 - first["first_chrf"])


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
    assert paired_bootstrap(BAD, GOOD, REFERENCES, draws=30) != paired_bootstrap(BAD, GOOD, REFERENCES, draws=30,
                                                                                 seed=2)


def test_as_many_sentences_are_needed_on_each_side():
    with pytest.raises(ValueError, match="25"):
        paired_bootstrap(BAD[:-1], GOOD, REFERENCES)


def test_scores_of_sentences_are_those_of_sacrebleu():
    assert sentence_chrf(GOOD[:3], REFERENCES[:3]) == [
        pytest.approx(sacrebleu.sentence_chrf(made, [wanted]).score)
        for made, wanted in zip(GOOD[:3], REFERENCES[:3], strict=True)]
