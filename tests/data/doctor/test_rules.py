"""Each rule, on both sides of its limit."""

import pytest

from regard.data.filters import RULE_NAMES, RULES, FilterConfig, start_rules
from regard.toml import ConfigError

CONFIG = FilterConfig(max_words=4, max_characters=20, max_length_ratio=3, min_ratio_characters=10)


def find(name, source, target, config=CONFIG):
    ((rule, test),) = start_rules(config, [name])
    assert rule.name == name
    return test(source, target)


@pytest.mark.parametrize(
    ("name", "source", "target", "what"),
    [
        ("empty", "", "b", "the source is empty"),
        ("empty", "a", " \u00a0", "the target is empty"),
        ("empty", "\u200b", "b", "the source is empty"),
        ("empty", "\ufeff", "\t", "both are empty"),
        ("too_long", "a a a a a", "b", "source, 5 words"),
        ("too_long", "a", "b b  b\u00a0b\u2003b", "target, 5 words"),
        ("too_long", "a" * 21, "b", "source, 21 characters"),
        ("too_long", "a" * 21, "b" * 22, "target, 22 characters"),
        ("ratio", "a" * 10, "bbb", "10 characters against 3"),
        ("ratio", "aaa", "b" * 10, "3 characters against 10"),
        ("ratio", "a" * 10, "  b   ", "10 characters against 1"),
        ("copy", "Same text", "Same text", "the target is the source"),
        ("copy", " Same", "Same\t", "the target is the source"),
        ("replacement", "a", "b\ufffd", "target, character 2: U+FFFD"),
        ("mojibake", "cafÃ©", "b", "source, character 4: U+00C3"),
        ("control", "a\x1b[31m", "b", "source, character 2: U+001B"),
        ("control", "a", "\x00", "target, character 1: U+0000"),
        ("line_breaks", "a\u2028b", "b", "source, character 2: U+2028"),
        ("line_breaks", "a", "b\x0c", "target, character 2: U+000C"),
        ("decomposed", "cafe\u0301", "café", "source, character 4: U+0065"),
        ("outer_spaces", "a", "b ", "target, character 2: U+0020"),
        ("outer_spaces", "\u00a0a", "b", "source, character 1: U+00A0"),
    ],
)
def test_a_rule_finds(name, source, target, what):
    assert find(name, source, target).what == what


@pytest.mark.parametrize(
    ("name", "source", "target"),
    [
        ("empty", ".", "\u200bx"),
        ("too_long", "a a a a", "b" * 20),
        ("ratio", "a" * 9, "b"),  # too short to ask
        ("ratio", "a" * 12, "bbbb"),
        ("copy", "Same", "same"),
        ("copy", "1,995.00", "1,995.00"),  # numbers are the same everywhere
        ("copy", "!?", "!?"),
        ("replacement", "é", "?"),
        ("mojibake", "café", "“Ü”"),
        ("control", "a\tb", "\u200dc"),
        ("line_breaks", "a\tb", "\u00a0"),
        ("decomposed", "é", "क़"[:1]),
        ("outer_spaces", "", "a b"),
    ],
)
def test_a_rule_lets_pass(name, source, target):
    assert find(name, source, target) is None


def test_duplicates_are_equal_pairs():
    ((_, test),) = start_rules(CONFIG, ["duplicate"])
    pairs = [("a", "b"), ("a", "c"), ("ab", ""), ("a", "b"), ("b", "a"), ("a", "b"), ("A", "b")]
    assert [test(*pair) is not None for pair in pairs] == [False, False, False, True, False, True, False]


@pytest.mark.parametrize("config", [CONFIG, FilterConfig(drop=("repeated_source",))])
def test_a_source_that_comes_again(config):
    ((_, test),) = start_rules(config, ["repeated_source"])
    pairs = [("a", "b"), ("a", "c"), ("b", "a"), ("a", "d"), ("", "")]
    assert [test(*pair) is not None for pair in pairs] == [False, True, False, True, False]


def test_each_reading_starts_anew():
    for _ in range(2):
        assert find("duplicate", "a", "b") is None
        assert find("repeated_source", "a", "b") is None


def test_of_two_lost_lines_the_one_alone_is_worse():
    assert find("empty", "a", "").badness > find("empty", "", "").badness
    assert find("ratio", "a" * 30, "b").badness > find("ratio", "a" * 30, "bb").badness


def test_a_line_of_ten_megabytes():
    for text in ("a" * 10_000_000, "a " * 5_000_000):
        assert find("too_long", text, "b").what == "source, 10000000 characters"
        assert find("empty", text, "b") is None
    assert find("empty", " " * 10_000_000, "b").what == "the source is empty"


def test_every_rule_has_a_name_a_sentence_and_its_own_rank():
    assert {rule.name for rule in RULES} == set(RULE_NAMES)
    assert all(rule.sentence for rule in RULES)
    ranks = [rule.rank for rule in RULES if rule.rank]
    assert len(ranks) == len(set(ranks))
    assert [rule.name for rule, _ in start_rules(CONFIG, reversed(RULE_NAMES))] == [rule.name for rule in RULES]


def test_the_defaults_leave_ordinary_pairs_alone():
    pairs = [
        ("Go!", "Vas-y maintenant, s'il te plaît !"),
        ("你好，世界。今天天气很好。", "Hello, world. The weather is lovely today."),
        ("2", "II"),
    ]
    for _, test in start_rules(FilterConfig(), FilterConfig().drop):
        assert [test(*pair) for pair in pairs] == [None] * len(pairs)


@pytest.mark.parametrize(
    ("key", "value"),
    [("max_words", 0), ("max_characters", -1), ("max_length_ratio", 0.5), ("max_length_ratio", float("nan")),
     ("min_ratio_characters", -1),
     ("drop", ("empty", "emtpy"))],
)  # fmt: skip
def test_limits_that_make_no_sense(key, value):
    with pytest.raises(ConfigError, match=key):
        FilterConfig(**{key: value})
