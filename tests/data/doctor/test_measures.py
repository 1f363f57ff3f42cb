"""Lengths, words, scripts and agreement, against literal definitions and other libraries."""

import math
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.doctor import CorpusStatistics, DistinctWords, LengthCorrelation, ScriptTable, compute_percentiles
from regard.data.sources.text import Location, SentencePair


def pairs(texts):
    return [SentencePair(*both, Location("c", line)) for line, both in enumerate(texts, 1)]


@given(st.lists(st.integers(0, 30), min_size=1))
def test_percentiles_are_values_that_enough_do_not_exceed(values):
    found = compute_percentiles(Counter(values))
    ordered = sorted(values)
    for percent in (5, 50, 95, 99):
        assert found[str(percent)] == ordered[max(0, math.ceil(percent * len(values) / 100) - 1)]
        assert found[str(percent)] == np.percentile(values, percent, method="inverted_cdf")
    assert found["max"] == max(values)


def test_percentiles_of_nothing():
    assert compute_percentiles({}) == {}


@given(st.lists(st.lists(st.text("abc", max_size=3), max_size=20), max_size=10))
def test_few_words_are_counted_exactly(blocks):
    words = DistinctWords()
    for block in blocks:
        words.add(block)
    assert words.exact
    assert words.count == len({word for block in blocks for word in block})


@pytest.mark.parametrize("count", [1000, 20_000, 100_000])
def test_many_words_are_estimated(count):
    """1.2 / sqrt(512) is the standard error of sampling; three of them, for one fixed set of words."""
    words = DistinctWords(limit=1024)
    for start in range(0, count, 500):
        words.add([f"word{number}" for number in range(start, start + 500)] * 2)
        words.add(f"word{number}" for number in range(start // 2, start // 2 + 10))
    assert words.exact == (count <= 1024)
    assert words.count == pytest.approx(count, rel=0 if words.exact else 0.16)
    assert len(words._kept) <= 1024


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("Hello", "LATIN"), ("Mädchen", "LATIN"), ("Tiếng Việt", "LATIN"), ("œuvre… “oui”", "LATIN"),
        ("Привет", "CYRILLIC"), ("Привет from yesterday", "LATIN"), ("Привет, я здесь, ok", "CYRILLIC"),
        ("日本語のテキスト", "CJK"), ("北京", "CJK"),
        ("한국어", "HANGUL"), ("שלום", "HEBREW"), ("नमस्ते", "DEVANAGARI"), ("ﷺ", "ARABIC"), ("123 …!", ""), ("", ""),
        ("🙂", ""),
    ],
)  # fmt: skip
def test_the_script_of_a_text(text, script):
    scripts = ScriptTable()
    assert scripts.of_text(text) == script
    assert scripts.of_texts([text]) == scripts.of_texts([text, "я"])[:1] == [script]


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 90)), min_size=2))
def test_agreement_is_the_correlation(lengths):
    left, right = (list(side) for side in zip(*lengths, strict=True))
    agreement = LengthCorrelation()
    for start in range(0, len(left), 3):
        agreement.add(left[start : start + 3], right[start : start + 3])
    if len(set(left)) == 1 or len(set(right)) == 1:
        assert agreement.value is None
    else:
        assert agreement.value == pytest.approx(np.corrcoef(left, right)[0, 1], abs=1e-9)


def corpus(count, shift, spread):
    lengths = random.Random(1).choices(range(60 - spread, 60 + spread), k=count + 1)
    targets = [length + index % 7 for index, length in enumerate(lengths)][shift:]
    return pairs([("a" * source, "b" * target) for source, target in zip(lengths, targets, strict=False)])[:count]


@pytest.mark.parametrize(
    ("data", "missing"),
    [
        (corpus(512, 0, 40), False),
        (corpus(512, 1, 40), True),
        (corpus(100, 1, 40), None),  # too few to tell
        (corpus(512, 1, 5), None),  # all nearly as long
    ],
)
def test_sides_that_are_shifted_do_not_agree(data, missing):
    agreement = LengthCorrelation()
    agreement.add([len(pair.source) for pair in data], [len(pair.target) for pair in data])
    assert agreement.missing is missing


def test_where_the_sides_come_apart():
    measures = CorpusStatistics()
    good, bad = corpus(1024, 0, 40), corpus(1024, 1, 40)
    for block in (good[:512], good[512:], bad[:512], bad[512:]):
        measures.add(block)
    assert (measures.testable, measures.unaligned) == (4, 2)
    assert measures.first_unaligned.location == bad[0].location


TEXT = st.text(st.sampled_from("ab é\u0301яА1.北 \u00a0"), max_size=8)


@given(st.lists(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=5), max_size=4))
def test_sides_are_measured_as_one_would_by_hand(blocks):
    measures = CorpusStatistics()
    for block in blocks:
        measures.add(pairs(block))
    texts = [both for block in blocks for both in block]
    assert measures.pairs == len(texts)
    assert measures.hundredths == Counter(int(100 * len(b) / len(a) + 1e-9) for a, b in texts if a)
    for side, own in ((measures.source, [a for a, _ in texts]), (measures.target, [b for _, b in texts])):
        assert side.characters == Counter(map(len, own))
        assert side.words == Counter(len(text.split()) for text in own)
        assert side.distinct.count == len({word for text in own for word in text.split()})
        assert side.scripts == Counter(map(ScriptTable().of_text, own))
        for script, shown in side.examples.items():
            assert [pair for pair in shown if ScriptTable().of_text(pair[side is measures.target]) != script] == []
            assert len(shown) == min(3, side.scripts[script])


def test_the_script_of_a_side():
    measures = CorpusStatistics()
    measures.add(pairs([("ja", "да")] * 18 + [("ja", "12")] * 5))
    assert (measures.source.main_script(), measures.target.main_script()) == ("LATIN", "")  # 18 targets are too few
    measures.add(pairs([("ja", "да")] * 9 + [("да", "ja")] * 3))
    assert measures.target.main_script() == "CYRILLIC"  # 27 of 30
    measures.add(pairs([("ja", "ja")]))
    assert measures.target.main_script() == ""  # 27 of 31
