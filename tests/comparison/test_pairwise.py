"""Two trained models on one test: the scores of each, the difference, and sentences in its order."""

import json

import pytest
import texting

from regard.comparison.pairwise import compared
from regard.tasks.evaluation import translated

PAIRS = texting.pairs()[:8]


def test_each_model_is_scored_as_by_itself_and_sentences_are_sorted():
    first, second = texting.translator(), texting.translator(pair=texting.separate)
    found = compared(("a", first), ("b", second), PAIRS, beams=1, draws=20)
    json.dumps(found, allow_nan=False)
    for told, task in zip(found["models"], (first, second), strict=True):
        want = translated(task, PAIRS, beams=1)
        assert (told["bleu"], told["chrf"], told["loss"]) == pytest.approx((*want.scores[:2], want.loss.mean))
    assert found["difference"]["chrf"]["difference"] == pytest.approx(found["models"][1]["chrf"] -
                                                                      found["models"][0]["chrf"])
    apart = [sentence["difference"] for sentence in found["sentences"]]
    assert apart == sorted(apart, reverse=True)
    assert sorted(sentence["number"] for sentence in found["sentences"]) == list(range(8))
    assert all((one["source"], one["reference"]) == PAIRS[one["number"]] for one in found["sentences"])


def test_a_model_and_itself_are_the_same():
    task = texting.translator()
    found = compared(("a", task), ("a again", task), PAIRS, beams=1, draws=20)
    assert found["same"] == 8
    assert {sentence["difference"] for sentence in found["sentences"]} == {0.0}
    assert found["difference"]["bleu"]["p"] == 1.0
