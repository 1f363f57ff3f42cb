"""Degenerate translations: named with their share, and not where the references are like that themselves."""

import re

import pytest
import texting
from hypothesis import given
from hypothesis import strategies as st

from regard.data import phrasebook
from regard.tasks.degenerate import MIN_EXCESS, MIN_TEXTS, find_degenerate, is_repeated
from regard.tasks.evaluation import evaluate_translator

PAIRS = [*phrasebook.pairs(100, seed=4)]
SOURCES, REFERENCES = [pair.source for pair in PAIRS], [pair.target for pair in PAIRS]


def kinds(hypotheses, sources=SOURCES, references=REFERENCES):
    return {found.kind: found for found in find_degenerate(sources, hypotheses, references)}


def with_some(count, texts, others=REFERENCES):
    """The first `count` texts of one list, then those of the other."""
    return [*texts[:count], *others[count:]]


def test_good_translations_are_not_degenerate():
    assert find_degenerate(SOURCES, REFERENCES, REFERENCES) == ()
    assert find_degenerate([], [], []) == ()


@pytest.mark.parametrize(("kind", "texts"), [
    ("copies", [text.upper().replace(" ", "  ") for text in SOURCES]), ("empty", ["", " ", "\u200b", "\u00a0"] * 25),
    ("repeated", [f"{'le chat ' * 4}{number}" for number in range(100)])])
def test_the_share_is_told(kind, texts):
    found = kinds(with_some(92, texts))
    assert list(found) == [kind]
    one = found[kind]
    assert (one.share, one.reference_share) == (0.92, 0.0)
    assert re.findall(r"\d+%", one.sentence) == ["92%", "0%"]
    assert one.sentence.count(".") == 1
    assert list(kinds(with_some(20, texts))) == [kind]
    assert kinds(with_some(19, texts)) == {}


def test_few_different_translations():
    found = kinds([("Oui.", "Non.", "Je ne sais pas.")[number % 3] for number in range(100)])
    assert list(found) == ["constant"]
    assert found["constant"].share == pytest.approx(0.97)
    assert {"100", "3"} <= {*re.findall(r"\d+", found["constant"].sentence)}
    distinct = len({*REFERENCES})
    assert str(distinct) in found["constant"].sentence
    assert "same" in kinds(["Oui."] * 100)["constant"].sentence
    assert kinds([REFERENCES[number // 2] for number in range(100)]) == {}  # half of them are different
    assert list(kinds([REFERENCES[number // 5] for number in range(100)])) == ["constant"]
    assert kinds(["Oui."] * 100, ["Yes."] * 100) == {}  # one source has one translation


def test_without_references_their_shares_are_0():
    (found,) = find_degenerate(SOURCES, with_some(92, SOURCES))
    assert (found.kind, found.share, found.reference_share) == ("copies", 0.92, 0.0)
    assert re.findall(r"\d+%", found.sentence) == ["92%"]
    assert "reference" not in found.sentence
    (found,) = find_degenerate(SOURCES, ["Oui."] * 100)
    assert found.kind == "constant"
    assert "reference" not in found.sentence
    assert find_degenerate(SOURCES, REFERENCES) == ()


def test_data_that_is_like_that_itself():
    """Copying is right where references are copies, and a label is right where references are labels."""
    copied = with_some(80, SOURCES)
    assert kinds(copied, references=copied) == {}
    assert kinds(with_some(83, SOURCES), references=copied) == {}
    assert list(kinds(SOURCES, references=copied)) == ["copies"]
    labels = [("good", "bad")[number % 2] for number in range(100)]
    assert kinds(labels, references=labels[::-1]) == {}
    assert list(kinds(["good"] * 100, references=[("good", "bad")[number % 2] for number in range(100)])) == []
    laughing = ["ha ha ha ha ha"] * 100
    assert kinds(laughing, references=laughing) == {}


@pytest.mark.parametrize("kind", MIN_EXCESS)
def test_a_few_prove_nothing(kind):
    count = MIN_TEXTS - 1
    made = {"empty": [""] * 9, "copies": [f"s {number}" for number in range(9)], "constant": ["t"] * 9,
            "repeated": [f"{'no ' * 9}{number}" for number in range(9)]}[kind]
    for total, expected in ((count, False), (count + 2, True)):
        some = [[f"{letter} {number}" for number in range(total)] for letter in "sr"]
        assert (kind in kinds(made[:total], *some)) is expected


@pytest.mark.parametrize(("text", "repeated"), [
    ("the the the the", True), ("the the the", False), ("a b a b a b a b", True), ("a b c d " * 4, True),
    ("a b c d e " * 4, False), ("well the the the the", True), ("one two three four five the the the the", False),
    ("one two three four the the the the", True), ("", False), ("word", False), ("哈哈哈哈", True), ("你好" * 4, True),
    ("abababab", True), ("......", True), ("le chat dort sur le chat", False)])
def test_what_a_repetition_is(text, repeated):
    assert is_repeated(text) is repeated


@given(st.lists(st.sampled_from("ab"), max_size=14))
def test_repetitions_are_those_of_a_loop(words):
    """Some n-gram of 1 to 4 words, `times` times from `start` on, with a beginning of the next one."""
    expected = False
    for length in range(1, 5):
        for start in range(len(words)):
            end = start
            while end < len(words) and words[end] == words[start + (end - start) % length]:
                end += 1
            expected |= end - start >= 4 * length and 2 * (end - start) >= len(words)
    assert is_repeated(" ".join(words)) is (expected if len(words) > 1 else False)


def test_an_evaluation_says_so():
    """An untrained model writes the same nonsense for every source."""
    task, pairs = texting.translator(), texting.pairs()[:40]
    found = evaluate_translator(task, pairs, beams=1)
    sources, targets = zip(*pairs, strict=True)
    assert found.degenerate == find_degenerate(sources, found.hypotheses, targets)
    good = find_degenerate(sources, targets, targets)
    assert good == ()
