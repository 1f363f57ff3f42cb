"""Decoding strategies, their results, and the scores of words."""

import copy
import pickle
import subprocess
import sys
from dataclasses import asdict

import pytest
import texting
import torch
from refusals import assert_named

from regard.decoding.scoring import CoveragePenalty
from regard.tasks.search import GREEDY, Beam, Sampling, ScoredWord, scored_words
from regard.tasks.translator import Translation

WRONG = [
    (Beam, {"beams": 0}, ["`beams`", "at least 1"]),
    (Beam, {"beams": 2, "nbest": 3}, ["`nbest`", "at most the 2 beams", "3"]),
    (Beam, {"beams": 4, "num_beam_groups": 3}, ["`num_beam_groups`", "divides the 4 beams"]),
    (Beam, {"diversity_penalty": -1.0}, ["`diversity_penalty`", "-1.0"]),
    (Beam, {"diversity_penalty": float("nan")}, ["`diversity_penalty`", "nan"]),
    (Beam, {"length_penalty": "long"}, ["`length_penalty`", '"none", "mean"', '"long"']),
    (Beam, {"coverage_penalty": "all"}, ["`coverage_penalty`", "a number β"]),
    (Beam, {"max_length": -1}, ["`max_length`", "at least 0"]),
    (Beam, {"max_length": 4, "min_length": 5}, ["`min_length`", "at most max_length, 4"]),
    (Beam, {"no_repeat_ngram_size": 0}, ["`no_repeat_ngram_size`", "at least 1"]),
    (Sampling, {"num_samples": 0}, ["`num_samples`", "at least 1"]),
    (Sampling, {"seed": -1}, ["`seed`", "at least 0"]),
    (Sampling, {"temperature": 0}, ["`temperature`", "above 0", "greedy search"]),
    (Sampling, {"top_k": 0}, ["`top_k`", "at least 1"]),
    (Sampling, {"top_p": 1.5}, ["`top_p`", "a probability"]),
    (Sampling, {"min_p": 0}, ["`min_p`", "a probability"]),
]


@pytest.mark.parametrize(("kind", "options", "parts"), WRONG)
def test_a_wrong_value_is_refused_when_it_is_made(kind, options, parts):
    assert_named(lambda: kind(**options), parts)


@pytest.mark.thorough
def test_it_is_refused_without_assertions_too():
    code = "from regard.tasks.search import Sampling; Sampling(top_p=2)"
    done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True, check=False)
    assert "ValueError: `top_p` must be a probability" in done.stderr


def test_seeds_follow_from_the_seed_and_the_ids():
    rows = [[1, 2], [12], [1, 2], []]
    first, second, third, fourth = Sampling(seed=3).seeds(rows)
    assert first == third
    assert len({first, second, fourth}) == 3
    assert Sampling(seed=3).seeds(rows[1:2]) == [second]
    assert Sampling(seed=4).seeds(rows[:1]) != [first]


def test_a_table_has_all_that_is_asked():
    assert GREEDY.table() == {
        "search": "beam", "max_length": None, "min_length": 0, "no_repeat_ngram_size": None, "beams": 1, "nbest": 1,
        "length_penalty": "none", "coverage_penalty": None, "num_beam_groups": 1, "diversity_penalty": 0.5}
    assert Sampling(seed=3, top_p=0.5).table() == {
        "search": "sampling", "max_length": None, "min_length": 0, "no_repeat_ngram_size": None, "num_samples": 1,
        "temperature": 1.0, "top_k": None, "top_p": 0.5, "min_p": None, "seed": 3}
    table = Beam(coverage_penalty=CoveragePenalty(0.2, 1)).table()
    assert table["coverage_penalty"] == "CoveragePenalty(weight=0.2, layer=1)"


TEXTS = ["the big dog sleeps.", "", "Emma sees a cat."]


def test_an_alignment_is_that_of_the_translator():
    task = texting.translator()
    found = task.translate(TEXTS, beams=3, nbest=2, max_length=6)
    for text, best in zip(TEXTS, found, strict=True):
        for one in (best, *best.alternatives):
            (want,) = task.align([text], [one])
            assert (one.alignment.source, one.alignment.target) == (want.source, want.target)
            torch.testing.assert_close(one.alignment.weights, want.weights)
            assert one.alignment is one.alignment  # found once
    assert found[0].alignment.source == ("the", "big", "dog", "sleeps", ".")
    assert found[1].alignment.target == ()


def test_samples_and_their_alternatives_have_one_too():
    one = texting.translator().sample(TEXTS[0], num_samples=2, max_length=4)
    assert one.alternatives[0].alignment.source == one.alignment.source


def test_an_alignment_that_nobody_can_find_is_an_error():
    with pytest.raises(ValueError, match=r"translator\.align"):
        Translation("un", 0.0, (5,), False).alignment  # noqa: B018


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_leaves_the_model_behind(copied):
    one = texting.translator().translate(TEXTS[0], max_length=4)
    assert copied(one) == one
    assert copied(one).look is None
    assert copied(one).words == one.words
    known = one.alignment.pharaoh()
    assert copied(one).alignment.pharaoh() == known  # what was found is kept
    assert asdict(one)["text"] == one.text


def test_results_without_probabilities_have_no_scored_words():
    with pytest.raises(ValueError, match="no log-probabilities"):
        Translation("un", 0.0, (5,), False).words  # noqa: B018
    assert Translation("", 0.0, (), False).words == ()


def test_a_word_is_as_probable_as_its_tokens_together():
    tokenizer = texting.tokenizer(1)
    text = "le gros chien dort."
    ids = tokenizer.encode(text)
    scores = [-0.5 * (place + 1) for place in range(len(ids) + 1)]  # one more: the end
    words = scored_words(tokenizer, ids, scores)
    assert [word.text for word in words] == ["le", "gros", "chien", "dort", "."]
    assert [text[word.start:word.end] for word in words] == [word.text for word in words]
    assert sum(word.score for word in words) == pytest.approx(sum(scores[:-1]))
    first = len(tokenizer.encode("le"))
    assert words[0] == ScoredWord("le", 0, 2, pytest.approx(sum(scores[:first])))


@pytest.mark.parametrize("beams", [1, 3])
def test_the_words_of_a_translation_add_up_to_its_score(beams):
    found = texting.translator(pair=texting.separate).translate("the big dog", beams=beams, nbest=beams, max_length=6,
                                                                length_penalty="none")
    for one in (found, *found.alternatives):
        end = one.log_probabilities[len(one.ids):]
        assert len(end) == (not one.cut)
        assert sum(word.score for word in one.words) + sum(end) == pytest.approx(one.score, abs=1e-4)
        assert [one.text[word.start:word.end] for word in one.words] == [word.text for word in one.words]


def test_without_log_probabilities_there_are_no_words():
    assert Translation("", 0.0, (), False).words == ()
    with pytest.raises(ValueError, match="no log-probabilities"):
        _ = Translation("le", 0.0, (5,), False).words
