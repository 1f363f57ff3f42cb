"""Two trained models on one test: the scores of each, the difference, and sentences in its order."""

import json
from dataclasses import replace

import pytest
import texting

from regard.comparison.pairwise import compare_models
from regard.tasks.evaluation import evaluate_translator

PAIRS = texting.pairs()[:8]


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
