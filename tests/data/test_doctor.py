"""The data doctor: reports, statistics, and validation pairs that are in the training data."""

import json
import math
import random
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import doctor
from regard.data.doctor import (
    FINDINGS_PER_RULE,
    FINDINGS_SHOWN,
    CorpusStatistics,
    DistinctWords,
    HeldOutOverlap,
    LengthCorrelation,
    OverlappingPair,
    ScriptTable,
    SkippedEntries,
    check_corpus,
    compute_percentiles,
)
from regard.data.filters import RULE_NAMES, FilterConfig, fold_text
from regard.data.sources.text import Location, SentencePair

CONFIG = FilterConfig(max_words=3, max_characters=12, max_length_ratio=2, min_ratio_characters=4)


def pairs(texts, file="c.tsv"):
    return [SentencePair(*both, Location(file, line)) for line, both in enumerate(texts, 1)]


def slowly(data, config):
    """Which rule drops each pair, or None: the definitions once more, with loops."""
    reasons, before = [], []
    for source, target, _ in data:
        a, b = source.strip(), target.strip()
        reason = None
        if not any(char.isprintable() and not char.isspace() for char in source) or not any(
            char.isprintable() and not char.isspace() for char in target
        ):
            reason = "empty"
        elif any(len(text) > config.max_characters or len(text.split()) > config.max_words
                 for text in (source, target)):  # fmt: skip
            reason = "too_long"
        elif max(len(a), len(b)) >= config.min_ratio_characters and max(len(a),
                                                                        len(b)) > config.max_length_ratio * min(len(a),
                                                                                                                len(b)):
            reason = "ratio"
        elif a == b and any(char.isalpha() for char in a):
            reason = "copy"
        elif (source, target) in before:
            reason = "duplicate"
        if reason is None:
            before.append((source, target))
        reasons.append(reason)
    return reasons


TEXT = st.text(st.sampled_from("ab 1\u00a0\u200b\t"), max_size=14)


@given(st.lists(st.tuples(TEXT, TEXT), max_size=30))
def test_counts_are_those_of_a_slow_check(texts):
    data = pairs(texts)
    tables = check_corpus(data, CONFIG).tables()
    reasons = slowly(data, CONFIG)
    assert tables["pairs"] == {
        "read": len(data), "kept": reasons.count(None), "dropped": len(data) - reasons.count(None)}  # fmt: skip
    for rule in CONFIG.drop:
        lines = [str(pair.location) for pair, reason in zip(data, reasons, strict=True) if reason == rule]
        assert tables["dropped"][rule] == {"count": len(lines), "first": lines[:10]}
    kept = [pair for pair, reason in zip(data, reasons, strict=True) if reason is None]
    sources = Counter(pair.source for pair in kept)
    assert tables["noticed"]["repeated_source"]["count"] == sum(count - 1 for count in sources.values())
    trimmed = [(pair.source.strip(), pair.target.strip()) for pair in kept]
    spaces = [str(pair.location) for pair, both in zip(kept, trimmed, strict=True) if pair[:2] != both]
    assert tables["noticed"]["outer_spaces"] == {"count": len(spaces), "first": spaces[:10]}
    for side, own in (("source", [pair.source for pair in kept]), ("target", [pair.target for pair in kept])):
        assert tables[side]["characters"] == sum(map(len, own))
        assert tables[side]["words"] == sum(len(text.split()) for text in own)
        assert tables[side]["distinct_words"] == len({word for text in own for word in text.split()})


def shape(value):
    """What keys a table has, and which types."""
    if isinstance(value, dict):
        return {key: shape(part) for key, part in value.items()}
    return [shape(part) for part in value[:1]] if isinstance(value, list) else type(value).__name__


COUNTED = {"count": "int", "first": ["str"]}
NONE = {"count": "int", "first": []}
PERCENTILES = {"5": "int", "50": "int", "95": "int", "99": "int", "max": "int"}
SIDE = {"characters": "int", "words": "int", "distinct_words": "int", "distinct_words_exact": "bool",
        "scripts": {"LATIN": "int"}, "composed": "int", "decomposed": "int", "characters_per_text": PERCENTILES,
        "words_per_text": PERCENTILES}  # fmt: skip
NEAR = dict.fromkeys(("pairs", "source", "target", "either", "both"), "int")
EXAMPLE = {"training": "str", "side": "str", "similarity": "float", "text": "str", "training_text": "str"}
TABLES = {
    "pairs": {"read": "int", "kept": "int", "dropped": "int"},
    "left_out": {"fuzzy": COUNTED},
    "dropped": {"empty": COUNTED, "too_long": NONE, "ratio": NONE, "copy": NONE, "duplicate": NONE},
    "noticed": {"replacement": NONE, "mojibake": COUNTED, "control": NONE, "line_breaks": NONE, "decomposed": NONE,
                "outer_spaces": NONE, "repeated_source": COUNTED, "script": NONE},
    "source": SIDE,
    "target": SIDE,
    "ratio": dict.fromkeys(PERCENTILES, "float"),
    "agreement": "float",
    "overlap": {"validation": "int", "exact": "int", "folded": "int", "sources": "int",
                "first": [{"validation": "str", "training": "str"}]},
    "test_overlap": {"test": "int", "exact": "int", "folded": "int", "sources": "int",
                     "first": [{"test": "str", "training": "str"}]},
    "near_duplicates": {"validation": {**NEAR, "first": [{"validation": "str", **EXAMPLE}]},
                        "test": {**NEAR, "first": []}},
    "warnings": ["str"],
    "look_at": [{"where": "str", "rule": "str", "what": "str", "source": "str", "target": "str"}],
    "filters": {"max_words": "int", "max_characters": "int", "max_length_ratio": "float", "min_ratio_characters": "int",
                "drop": ["str"]},
}  # fmt: skip


def test_the_keys_stay():
    left_out = SkippedEntries()
    left_out(Location("x.po", 3), "fuzzy")
    data = pairs([("one", "uno"), ("twothree", "dos"), ("twothree", "cafÃ©"), ("", "d")])
    tables = check_corpus(data, validation=pairs([("One", "uno"), ("Twothree", "f")], "dev.tsv"),
                          test=pairs([("one", "uno")], "test.tsv"), near_duplicates=True, skipped=left_out).tables()
    assert shape(tables) == TABLES
    assert list(tables) == list(TABLES)
    assert json.loads(json.dumps(tables)) == tables
    assert all(f"    {key}" in doctor.__doc__ for key in TABLES)  # where they are explained


@pytest.mark.parametrize("texts", [[], [("", "")], [("a", "b")], [("a", "a")] * 3, [("a", "b")] * 700])
def test_small_and_odd_corpora(texts):
    found = check_corpus(pairs(texts))
    tables = found.tables()
    assert tables["pairs"]["read"] == len(texts)
    assert tables["pairs"]["kept"] == found.kept == len({pair for pair in texts if all(pair) and pair[0] != pair[1]})
    assert tables["agreement"] is None
    json.dumps(tables, allow_nan=False)


def test_what_is_wrong_with_a_corpus_of_nothing():
    assert check_corpus([]).warnings() == ["There are no pairs."]
    assert check_corpus(pairs([("", "b")])).warnings() == ["The only pair is skipped."]
    assert "More than half" in check_corpus(pairs([("a", "b")] * 3)).warnings()[0]
    assert check_corpus(pairs([("a", "b"), ("c", "d")])).warnings() == []


def test_sides_that_are_not_aligned():
    random.seed(1)
    texts = [" ".join(["word"] * random.randrange(2, 20)) + f" {number}" for number in range(2000)]
    same = [(text, text.upper()) for text in texts]
    assert check_corpus(pairs(same)).warnings() == []
    shifted = same[:1000] + [(text, other) for (text, _), (_, other) in pairwise(same[1000:])]
    (warning,) = check_corpus(pairs(shifted)).warnings()
    assert warning.startswith("c.tsv:1025: ")
    assert "aligned" in warning


def test_normal_forms_that_are_mixed():
    (warning,) = check_corpus(pairs([("é", "a"), ("e\u0301", "b"), ("e\u0301x", "c")])).warnings()
    assert warning.startswith("The sources mix Unicode normal forms: 1 text with")
    assert check_corpus(pairs([("e\u0301", "a"), ("e\u0301x", "c")])).warnings() == []


TRAINING = [("one", "uno"), ("two", "dos"), ("three", "tres"), ("", "x")]


@pytest.mark.parametrize(
    ("validation", "said"),
    [
        (TRAINING, "The validation data is the training data"),
        (TRAINING[::-1], "The validation data is the training data"),
        (TRAINING[:2], "Every validation pair is in the training data."),
        ([("One", "uno"), ("two", "dos"), ("x", "y"), ("z", "w")], "2 of 4 validation pairs (50.0%) are in the"),
        ([("", "")], "All validation pairs are skipped."),
    ],
)
def test_validation_pairs_in_the_training_data(validation, said):
    (warning,) = check_corpus(pairs(TRAINING), validation=pairs(validation, "dev.tsv")).warnings()
    assert said in warning


def test_validation_pairs_that_are_new():
    found = check_corpus(pairs(TRAINING), validation=pairs([("x", "y")]))
    assert found.warnings() == []
    assert check_corpus(pairs(TRAINING)).tables()["overlap"] is None


def test_a_text_in_another_script():
    data = pairs([(f"word {number}", f"слово {number}") for number in range(30)] + [("слово", "word"), ("12", "13")])
    found = check_corpus(data)
    assert found.tables()["noticed"]["script"] == {"count": 2, "first": ["c.tsv:31", "c.tsv:31"]}
    (finding,) = found.look_at()  # the pair once
    assert (finding.rule, finding.what) == ("script", "source, CYRILLIC where the others are LATIN")


def test_the_lines_to_look_at_first():
    bad = [("x\ufffd", "a"), ("cafÃ©", "b"), ("a\x1b", "c"), ("d", ""), ("", "")]
    good = [(f" source {number}", f"target {number}") for number in range(40)]
    found = check_corpus(pairs(good + bad)).look_at()
    assert [finding.rule for finding in found] == [
        "replacement", "mojibake", "control", "empty", "outer_spaces", "empty", "outer_spaces",
        "outer_spaces"]  # fmt: skip
    assert [finding.location.line for finding in found[:6]] == [41, 42, 43, 44, 1, 45]
    assert len({finding.location for finding in found}) == len(found) <= FINDINGS_SHOWN
    assert max(Counter(finding.rule for finding in found).values()) <= FINDINGS_PER_RULE


def test_a_pair_with_two_reasons_stands_where_the_first_puts_it():
    found = check_corpus(pairs([("a\x1b", "b"), (" x\ufffd", "c"), (" y", "d")])).look_at()
    assert [(finding.location.line, finding.rule) for finding in found] == [
        (2, "replacement"), (1, "control"), (3, "outer_spaces")]  # fmt: skip


def test_ten_lines_and_no_more():
    texts = [("x\ufffd", "a"), ("cafÃ©", "b"), ("a\x1b", "c"), ("d", ""), ("same", "same"), (" a", "b")]
    found = check_corpus(pairs([(a, b + "!" * bool(b and a != b) * turn) for turn in range(4) for a,
                                b in texts])).look_at()
    assert len(found) == FINDINGS_SHOWN


def test_long_texts_are_shortened():
    found = check_corpus(pairs([("a" * 50 + "\ufffd" + "b" * 500, "c" * 400), ("d" * 10_000_000, "e")]))
    for finding in found.look_at():
        assert len(finding.source) < 80
        assert len(finding.target) < 80
    assert "\ufffd" in found.look_at()[0].source


def test_every_rule_is_dropped_or_noticed():
    for drop in (RULE_NAMES, (), ("mojibake", "empty")):
        tables = check_corpus(pairs([("a", "b")]), FilterConfig(drop=drop)).tables()
        assert {*tables["dropped"]} == {*drop}
        assert {*tables["noticed"]} == {*RULE_NAMES, "script"} - {*drop}


def pairs_of_measures(texts):
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
    return pairs_of_measures([("a" * source, "b" * target) for source,
                              target in zip(lengths, targets, strict=False)])[:count]


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


TEXT_MEASURES = st.text(st.sampled_from("ab é\u0301яА1.北 \u00a0"), max_size=8)


@given(st.lists(st.lists(st.tuples(TEXT_MEASURES, TEXT_MEASURES), min_size=1, max_size=5), max_size=4))
def test_sides_are_measured_as_one_would_by_hand(blocks):
    measures = CorpusStatistics()
    for block in blocks:
        measures.add(pairs_of_measures(block))
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
    measures.add(pairs_of_measures([("ja", "да")] * 18 + [("ja", "12")] * 5))
    assert (measures.source.main_script(), measures.target.main_script()) == ("LATIN", "")  # 18 targets are too few
    measures.add(pairs_of_measures([("ja", "да")] * 9 + [("да", "ja")] * 3))
    assert measures.target.main_script() == "CYRILLIC"  # 27 of 30
    measures.add(pairs_of_measures([("ja", "ja")]))
    assert measures.target.main_script() == ""  # 27 of 31


TEXT_OVERLAP = st.sampled_from(["a", "A", " a", "a b", "A  B", "é", "e\u0301", "b", "c"])


def pairs_of_overlap(file, texts):
    return [SentencePair(*both, Location(file, line)) for line, both in enumerate(texts, 1)]


@given(st.lists(st.tuples(TEXT_OVERLAP, TEXT_OVERLAP), max_size=12),
       st.lists(st.lists(st.tuples(TEXT_OVERLAP, TEXT_OVERLAP), max_size=6), max_size=4))
def test_it_counts_what_sets_count(validation, training):
    overlap = HeldOutOverlap(pairs_of_overlap("dev", validation))
    for block in training:
        overlap.compare(pairs_of_overlap("train", block))
    texts = [both for block in training for both in block]
    assert overlap.pairs == len(validation)
    assert overlap.exact == sum(both in texts for both in validation)
    known = {(fold_text(a), fold_text(b)) for a, b in texts}
    assert overlap.folded == sum((fold_text(a), fold_text(b)) in known for a, b in validation)
    assert overlap.sources == sum(fold_text(a) in {source for source, _ in known} for a, _ in validation)


def test_the_first_places_are_told():
    overlap = HeldOutOverlap([*pairs_of_overlap("dev.tsv", [("x", "y"), ("a", "b")]),
                              *pairs_of_overlap("more.tsv", [("c", "d")])])
    overlap.compare(pairs_of_overlap("train.tsv", [("n", "n"), ("C", "d "), ("a", "b"), ("a", "b")]))
    assert overlap.first == [
        OverlappingPair(Location("more.tsv", 1), Location("train.tsv", 2)),
        OverlappingPair(Location("dev.tsv", 2), Location("train.tsv", 3)),
    ]
    assert (overlap.exact, overlap.folded) == (1, 2)


@pytest.mark.parametrize("validation", [[], [("a", "b")]])
def test_nothing_to_compare(validation):
    overlap = HeldOutOverlap(pairs_of_overlap("dev", validation))
    overlap.compare([])
    overlap.compare(pairs_of_overlap("train", [("x", "y")]))
    assert (overlap.exact, overlap.folded, overlap.sources, overlap.first) == (0, 0, 0, [])
