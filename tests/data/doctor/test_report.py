"""The whole check, against a slow literal one; its tables, its warnings, and what to look at first."""

import json
import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import doctor
from regard.data.doctor import FINDINGS_PER_RULE, FINDINGS_SHOWN, SkippedEntries, check_corpus
from regard.data.filters import RULE_NAMES, FilterConfig
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
        elif max(len(a), len(b)) >= config.min_ratio_characters and max(len(a), len(b)) > config.max_length_ratio * min(len(a), len(b)):
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
    "warnings": ["str"],
    "look_at": [{"where": "str", "rule": "str", "what": "str", "source": "str", "target": "str"}],
    "filters": {"max_words": "int", "max_characters": "int", "max_length_ratio": "float", "min_ratio_characters": "int",
                "drop": ["str"]},
}  # fmt: skip


def test_the_keys_stay():
    left_out = SkippedEntries()
    left_out(Location("x.po", 3), "fuzzy")
    data = pairs([("one", "uno"), ("twothree", "dos"), ("twothree", "cafÃ©"), ("", "d")])
    tables = check_corpus(data, validation=pairs([("One", "uno"), ("e", "f")], "dev.tsv"), skipped=left_out).tables()
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
    assert check_corpus([]).warnings() == ["There is no pair."]
    assert check_corpus(pairs([("", "b")])).warnings() == ["No pair is kept."]
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
    assert warning.startswith("The sources mix normal forms: 1 texts have accented letters in one character, 2 in two.")
    assert check_corpus(pairs([("e\u0301", "a"), ("e\u0301x", "c")])).warnings() == []


TRAINING = [("one", "uno"), ("two", "dos"), ("three", "tres"), ("", "x")]


@pytest.mark.parametrize(
    ("validation", "said"),
    [
        (TRAINING, "The validation data is the training data"),
        (TRAINING[::-1], "The validation data is the training data"),
        (TRAINING[:2], "Every pair of the validation data is in the training data."),
        ([("One", "uno"), ("two", "dos"), ("x", "y"), ("z", "w")], "2 of the 4 validation pairs (50.0%) are in the"),
        ([("", "")], "No pair of the validation data is kept."),
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
    found = check_corpus(pairs([(a, b + "!" * bool(b and a != b) * turn) for turn in range(4) for a, b in texts])).look_at()
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
