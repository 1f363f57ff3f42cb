"""The calls that translate: each is its search; the texts drawn do not depend on neighbours; mbr scores by chrF."""

import math
from dataclasses import replace

import ending
import pytest
import texting
from asking import by_force, without_attention
from sacrebleu.metrics import CHRF

from regard.tasks.search import Beam, Sampling
from regard.tasks.translator import Translation

TEXTS = ["the big dog sleeps.", "", "Emma sees a cat.", "no", "the big dog sleeps."]


@pytest.fixture(scope="module")
def task():
    return ending.translator()


def ids(found):
    return [[one.ids, *(other.ids for other in one.alternatives)] for one in found]


def test_a_call_is_its_search(task):
    options = {"beams": 4, "nbest": 3, "length_penalty": 0.6, "coverage_penalty": 0.1, "num_beam_groups": 2, "diversity_penalty": 0.7,
               "max_length": 9, "min_length": 2, "no_repeat_ngram_size": 2}
    assert ids(task.translate(TEXTS, **options)) == ids(task.search(TEXTS, Beam(**options)))
    options = {"num_samples": 3, "temperature": 0.9, "top_k": 50, "top_p": 0.95, "min_p": 0.001, "seed": 7, "max_length": 9,
               "min_length": 2, "no_repeat_ngram_size": 2}
    assert ids(task.sample(TEXTS, **options)) == ids(task.search(TEXTS, Sampling(**options)))


@pytest.mark.parametrize("options", [{"min_length": 6}, {"no_repeat_ngram_size": 1}, {"coverage_penalty": 2.0}, {"length_penalty": "none"},
                                     {"num_beam_groups": 4, "diversity_penalty": 9.0}])
def test_every_option_counts(task, options):
    plain = {"beams": 4, "max_length": 9, "nbest": 4}
    assert ids(task.translate(TEXTS, **plain)) != ids(task.translate(TEXTS, **plain, **options))


def test_samples_follow_from_seed_and_text_alone(task):
    together = task.sample(TEXTS, num_samples=4, seed=11, max_length=9)
    assert together[0].ids == together[4].ids
    assert together[1].text == ""
    for text, one in zip(TEXTS, together, strict=True):
        assert ids([task.sample(text, num_samples=4, seed=11, max_length=9)]) == ids([one])
        assert task.sample(text, seed=11, max_length=9).ids == one.ids  # the first does not depend on how many there are
    assert ids(task.sample(TEXTS[::-1], num_samples=4, seed=11, max_length=9)) == ids(together[::-1])
    assert ids(task.sample(TEXTS, num_samples=4, seed=12, max_length=9)) != ids(together)
    assert len({(one.ids, *(other.ids for other in one.alternatives)) for one in together}) == 4


def test_a_sample_has_the_probability_that_the_model_gives_it(task):
    one = task.sample(TEXTS[0], temperature=0.5, top_k=3, seed=2, max_length=9)
    assert one.score == pytest.approx(sum(one.log_probabilities))
    assert one.log_probabilities == pytest.approx(by_force(task, TEXTS[0], one), abs=1e-4)


def test_mbr_takes_the_one_most_like_the_others(task):
    """Against sacrebleu's chrF of every pair."""
    search = Sampling(num_samples=6, seed=1, max_length=9)
    (sampled,) = task.search(TEXTS[:1], search)
    texts = [one.text for one in (sampled, *sampled.alternatives)]
    chrf = CHRF(eps_smoothing=False)
    utilities = {one: sum(chrf.sentence_score(one, [other]).score for other in texts) / 6 for one in texts}
    found = task.mbr(TEXTS[0], search)
    assert found.score == pytest.approx(max(utilities.values()))
    assert utilities[found.text] == pytest.approx(found.score)
    every = [found, *found.alternatives]
    assert sorted(one.text for one in every) == sorted({*texts})
    assert [one.score for one in every] == sorted((one.score for one in every), reverse=True)
    assert found.alternatives[0].alternatives == ()
    assert task.mbr(TEXTS[0], search) == found
    assert task.mbr(TEXTS[:2], search)[0].text == found.text


def test_of_equal_ones_mbr_takes_the_first(task, monkeypatch):
    """chrF does not see white space."""
    first, *others = (Translation(text, 0.0, (number,), False) for number, text in enumerate(["a b", "ab", "a b"]))
    monkeypatch.setattr(type(task), "_search", lambda *given, **more: [replace(first, alternatives=tuple(others))])
    found = task.mbr("no")
    assert [(one.text, one.ids) for one in (found, *found.alternatives)] == [("a b", (0,)), ("ab", (1,))]


def test_mbr_of_an_nbest_list_weighs_by_probability(task):
    search = Beam(beams=4, nbest=4, max_length=9)
    (best,) = task.search(TEXTS[:1], search)
    every = [best, *best.alternatives]
    shares = [math.exp(sum(one.log_probabilities)) for one in every]
    chrf = CHRF(eps_smoothing=False)
    want = {one.text: sum(share * chrf.sentence_score(one.text, [other.text]).score
                          for share, other in zip(shares, every, strict=True)) / sum(shares) for one in every}
    found = task.mbr(TEXTS[0], search)
    assert found.score == pytest.approx(max(want.values()))
    assert want[found.text] == pytest.approx(found.score)
    assert len(task.mbr(TEXTS[0]).alternatives) > 1


@pytest.mark.parametrize("drawn", [False, True])
def test_a_prefix_is_how_a_translation_begins(task, drawn):
    """It has its probabilities, and does not count for the score."""
    given, texts = ["le chien", "la", "un gros"], [TEXTS[0], TEXTS[2], TEXTS[3]]
    search = Sampling(num_samples=2, max_length=12) if drawn else Beam(beams=3, nbest=2, max_length=12)
    for text, prefix, one in zip(texts, given, task.search(texts, search, prefix=given), strict=True):
        begun = len(task.tokenizer.target.encode(prefix))
        for each in (one, *one.alternatives):
            assert each.text.startswith(prefix)
            assert len(each.ids) <= 12
            assert each.log_probabilities == pytest.approx(by_force(task, text, each), abs=1e-4)
            behind = each.log_probabilities[begun:]
            assert each.score == pytest.approx(sum(behind) / (1 if drawn else len(behind)), abs=1e-4)
            assert each.words[0].text == prefix.split()[0]
    every = task.search(texts, search, prefix="la")
    assert ids(every) == [ids(task.search([text], search, prefix="la"))[0] for text in texts]
    assert task.translate("", prefix="la").text == ""


@pytest.mark.parametrize("drawn", [False, True])
def test_a_prefix_counts_as_written(task, drawn):
    """For how long a translation is at least, and for what it may not repeat."""
    kind = Sampling if drawn else Beam
    texts, given = [TEXTS[3], TEXTS[0]], ["le chien voit", "la"]
    begun = [len(task.tokenizer.target.encode(prefix)) for prefix in given]
    plain = task.search(texts, kind(max_length=20), prefix=given)
    assert task.search(texts, kind(max_length=20, min_length=min(begun)), prefix=given) == plain
    assert all(18 <= len(one.ids) <= 20 for one in task.search(texts, kind(max_length=20, min_length=18), prefix=given))
    assert any(len(one.ids) < 18 for one in plain)
    for one, count in zip(task.search(texts, kind(min_length=20, no_repeat_ngram_size=1), prefix=given), begun, strict=True):
        behind = one.ids[count:]
        assert len({*behind} - {*one.ids[:count]}) == len(behind) >= 20 - count



def test_at_least_so_many_is_not_held_up_by_a_limit_that_nobody_gave(task):
    assert len(task.translate("no", min_length=70).ids) >= 70


def test_wrong_calls(task):
    for options, message in (({"prefix": ["a"]}, "`prefix` must be one text, or one for each of the 2"),
                             ({"prefix": [1, 2]}, "`prefix` must be a text, or a list of texts"),
                             ({"prefix": "la " * 9, "max_length": 4}, "`prefix` must be at most 4 tokens long"),
                             ({"beams": 2, "nbest": 3}, "`nbest` must be at most the 2 beams"),
                             ({"glossary": 5}, "`entries` must be terms")):
        with pytest.raises(ValueError, match=message):
            task.translate(["the dog", "no"], **options)
    with pytest.raises(ValueError, match="`strategy` must be a Beam, or a Sampling"):
        task.search(["no"], "beam")
    with pytest.raises(ValueError, match="`among` must be a Sampling, or a Beam, but is a int"):
        task.mbr("no", 8)
    short = texting.translator(embedding="learned")  # 12 positions
    for name in ("max_length", "min_length"):
        with pytest.raises(ValueError, match=f"`{name}` must be at most 11, the positions that the model has for it"):
            short.translate("no", **{name: 12})
    with pytest.raises(ValueError, match="`glossary` must be left out"):
        task.mbr("no", glossary={"no": "non"})
    with pytest.raises(ValueError, match="`coverage_penalty` must be None"):
        without_attention().translate("no", coverage_penalty=0.2)
