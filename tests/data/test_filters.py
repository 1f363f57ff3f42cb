"""Filters: which pairs are skipped, characters that are found, and the set of hashes."""

import os
import subprocess
import sys
import unicodedata
from itertools import count, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import filters
from regard.data.filters import (
    BLOCK_PAIRS,
    EXAMPLES_KEPT,
    EXCERPT_CHARACTERS,
    LONG_TEXT,
    RULE_NAMES,
    RULES,
    FilterConfig,
    RuleMatch,
    RuleTally,
    count_matches,
    excerpt,
    filter_pairs,
    split_blocks,
    start_rules,
)
from regard.data.sources.text import Location, SentencePair
from regard.toml import ConfigError


def pairs(*texts):
    return [SentencePair(*both, Location("c.tsv", line)) for line, both in enumerate(texts, 1)]


def test_what_is_kept_is_as_it_was_and_in_order():
    data = pairs((" a ", "b\x1b"), ("", "b"), ("a", "c"), (" a ", "b\x1b"), ("same", "same"), ("d", "e"))
    dropped = RuleTally(FilterConfig().drop)
    assert list(filter_pairs(data, FilterConfig(), dropped)) == [data[0], data[2], data[5]]
    assert dropped.counts == {"empty": 1, "too_long": 0, "ratio": 0, "copy": 1, "duplicate": 1}
    assert {name: [where.line for where in places] for name, places in dropped.first.items() if places} == {
        "empty": [2], "copy": [5], "duplicate": [4]}  # fmt: skip
    assert dropped.total == 3
    assert list(filter_pairs(data, FilterConfig())) == [data[0], data[2], data[5]]


def test_it_streams():
    """One pair in, one pair out: an endless source, and nothing read ahead."""
    read = []

    def endless():
        for line in count(1):
            read.append(line)
            yield SentencePair(f"source {line}", f"target {line}", Location("-", line))

    assert [pair.location.line for pair in islice(filter_pairs(endless(), FilterConfig()), 3)] == [1, 2, 3]
    assert read == [1, 2, 3]


def test_a_pair_counts_once_for_the_first_reason():
    data = pairs(("", ""), ("", ""), ("a" * 3000, "a" * 3000), ("a", "a"), ("a", "a"))
    dropped = RuleTally(FilterConfig().drop)
    assert not list(filter_pairs(data, FilterConfig(), dropped))
    assert dropped.counts == {"empty": 2, "too_long": 1, "ratio": 0, "copy": 2, "duplicate": 0}


def test_the_config_says_which_rules_drop():
    data = pairs(("", "b"), ("cafÃ©", "b"), ("a", "b"), ("a", "b"))
    assert list(filter_pairs(data, FilterConfig(drop=("mojibake",)))) == [data[0], data[2], data[3]]
    assert list(filter_pairs(data, FilterConfig(drop=()))) == data


@given(st.lists(st.floats(0, 3).map(round), max_size=40))
def test_the_worst_are_the_worst_and_of_equals_the_first(badness):
    tally = RuleTally(["ratio"])
    data = pairs(*(("a", "b") for _ in badness))
    for bad, pair in zip(badness, data, strict=True):
        tally.add("ratio", RuleMatch("x", bad), pair)
    order = sorted(range(len(badness)), key=lambda at: (-badness[at], at))[:EXAMPLES_KEPT]
    assert [finding.location for finding in tally.worst("ratio")] == [data[at].location for at in order]
    assert tally.first["ratio"] == [pair.location for pair in data[:EXAMPLES_KEPT]]
    assert tally.counts == {"ratio": len(badness)}


@given(st.lists(st.tuples(st.sampled_from(["a", "é", "e\u0301", " a", "\x1b", "Ã©", "\ufffd", "a\u2028"]),
                          st.sampled_from(["b", "é", "b "])), max_size=8))  # fmt: skip
def test_noticing_in_blocks_is_noticing_one_by_one(texts):
    data, tally = pairs(*texts), RuleTally(filters.RULE_NAMES)
    count_matches(filters.start_rules(FilterConfig(), filters.RULE_NAMES), data, tally)
    expected = dict.fromkeys(filters.RULE_NAMES, 0)
    for rule, find in filters.start_rules(FilterConfig(), filters.RULE_NAMES):
        expected[rule.name] = sum(find(pair.source, pair.target) is not None for pair in data)
    assert tally.counts == expected


@pytest.mark.parametrize("length", [0, 1, BLOCK_PAIRS - 1, BLOCK_PAIRS, BLOCK_PAIRS + 1, 3 * BLOCK_PAIRS])
def test_blocks(length):
    data = pairs(*(("a", "b") for _ in range(length)))
    made = list(split_blocks(data))
    assert [pair for block in made for pair in block] == data
    assert all(0 < len(block) <= BLOCK_PAIRS for block in made)
    assert len(made) == -(-length // BLOCK_PAIRS)


def test_long_texts_do_not_pile_up():
    long = "a" * (LONG_TEXT + 1)
    assert [len(block) for block in split_blocks(pairs(("a", "b"), (long, "b"), ("a", long), ("a", "b")))] == [2, 1, 1]


@given(st.integers(0, 300), st.integers(0, 299))
def test_an_excerpt_has_the_place(length, at):
    text = "".join(chr(0x4E00 + index) for index in range(length))
    short = excerpt(text, at)
    assert len(short) <= EXCERPT_CHARACTERS + 2
    assert short.strip("…") in text
    if at < length:
        assert text[at] in short
    if length <= EXCERPT_CHARACTERS:
        assert short == text
    else:
        assert len(short.strip("…")) == EXCERPT_CHARACTERS
        assert short.startswith("…") == (not text.startswith(short.strip("…")))
        assert short.endswith("…") == (not text.endswith(short.strip("…")))


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


ODD = "a é\u0301\u00a0\u200b\ufeff\ufffd\x00\x0b\x0c\x1b\x1c\x1f\t\n\r\x7f\x85\x9f\u2028\u2029ÃÂâ€™©\ud800 "
TEXTS = st.text(st.one_of(st.sampled_from(ODD), st.characters()), max_size=12)


@pytest.mark.parametrize(
    "text",
    ["", " ", "   \t", "\u00a0", "\u200b", "\ufeff", "\u200b \u00a0\u2060", "\x00\x07", "\u3164", "\u2800",
     "\u200e\u202c", "\xad"],
)  # fmt: skip
def test_what_has_nothing_to_read(text):
    assert filters.is_blank(text)


@pytest.mark.parametrize("text", ["a", ".", " 1 ", "\u200bא", "़x", "🙂", "한", "\ufffd"])
def test_what_can_be_read(text):
    assert not filters.is_blank(text)


@given(TEXTS)
def test_line_breaks_are_what_python_would_split_at(text):
    at = filters.find_line_break(text)
    assert (at >= 0) == (len((text + "x").splitlines()) > 1)
    if at >= 0:
        assert text[at] == text.splitlines(keepends=True)[0].rstrip(" ")[-1] or text[at] == "\r"


@pytest.mark.parametrize("char", "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")
def test_every_line_break(char):
    assert filters.find_line_break(f"a{char}b") == 1
    assert filters.find_control(f"a{char}b") == -1


@given(TEXTS)
def test_control_characters_are_those_of_unicode_but_for_the_tab_and_line_breaks(text):
    breaks = "\n\r\x0b\x0c\x1c\x1d\x1e\x85"
    odd = [at for at, char in enumerate(text)
           if (unicodedata.category(char) in ("Cc", "Cs") and char not in breaks + "\t") or char == "\ufeff"
           or char in "\ufffe\uffff" or "\ufdd0" <= char <= "\ufdef"]  # fmt: skip
    assert filters.find_control(text) == (odd[0] if odd else -1)


@given(st.text(st.characters(codec="utf-8", min_codepoint=0xA1), min_size=2, max_size=20))
def test_mojibake_of_any_text_that_went_through_latin_1(text):
    """Two letters that are not ASCII, at least, so that chance is no explanation."""
    assert filters.find_mojibake("plain " + text.encode().decode("latin-1")) >= 6


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("café".encode().decode("cp1252"), 3),
        ("It’s".encode().decode("cp1252"), 2),
        ("“so”".encode().decode("latin-1"), 0),
        ("Привет".encode().decode("latin-1"), 0),
        ("no. 5 costs £3, 5 °C".encode().decode("cp1252"), 12),
        ("Москва, and next to it cafÃ©", 26),  # only a part of the line
    ],
)
def test_mojibake_is_found(text, at):
    assert filters.find_mojibake(text) == at


@pytest.mark.parametrize(
    "text",
    [
        "plain", "café", "Ein Mädchen, „MENÜ“", "CAFÉ\u00a0!", "« À\u00a0» et « CAFÉ »",
        "« THÉ\u00a0» et « CAFÉ\u00a0»", "« il dit “café”\u00a0»",
        "AMANHÃ — SIM", "“AMANHÔ", "NÃO", "Âme", "ÂNGULO", "Đã", "ÇÖÜ", "Größe × 3", "España ¡olé!", "Å“", "5 €",
        "naïve…", "Ünïcödé", "Hrvatska šžč",
    ],
)  # fmt: skip
def test_texts_that_only_look_like_it(text):
    assert filters.find_mojibake(text) == -1


@given(TEXTS)
def test_decomposed_is_what_is_not_in_normal_form_c(text):
    at = filters.find_decomposed(text)
    assert (at >= 0) == (unicodedata.normalize("NFC", text) != text)
    if at > 0:
        assert unicodedata.normalize("NFC", text)[:at] == text[:at]
    assert filters.has_composed(text) == (unicodedata.normalize("NFD", text) != text)


@pytest.mark.parametrize(
    ("text", "at"),
    [("", -1), (" ", 0), ("a b", -1), (" a", 0), ("a ", 1), ("ab\u00a0", 2), ("\ta\n", 0), ("a\u200b", -1)],
)
def test_white_space_at_the_ends(text, at):
    assert filters.find_outer_space(text) == at


@given(st.lists(TEXTS, max_size=6))
def test_nothing_in_many_texts_is_nothing_in_each(texts):
    for name in ("line_break", "control", "replacement", "mojibake", "decomposed", "outer_space"):
        if getattr(filters, f"no_{name}")(texts):
            assert all(getattr(filters, f"find_{name}")(text) == -1 for text in texts), name


@pytest.mark.parametrize("name", ["line_break", "control", "replacement", "mojibake", "decomposed", "outer_space"])
def test_ordinary_texts_pass_at_once(name):
    assert getattr(filters, f"no_{name}")(["", "plain", "Mädchen – « oui\u00a0»", "北京", "Привет, мир!"])


@pytest.mark.parametrize("other", ["cafe\u0301  NOIR", "Café\u00a0noir", " café NOIR\t", "CAFÉ\nnoir"])
def test_folding(other):
    assert filters.fold_text(other) == filters.fold_text("café noir") == "café noir"
    assert filters.fold_text("Straße") == filters.fold_text("STRASSE")
    assert filters.fold_text("cafe noir") != filters.fold_text("café noir")


# Numbers that want the same place, the last place, and few different ones, so that many are there already.
SAME_PLACE = st.integers(1, 9).map(lambda n: n * 2**20 - 1)


@given(st.lists(st.one_of(st.integers(1, 40), SAME_PLACE, st.integers(1, 2**64 - 1))))
def test_it_is_a_set(values):
    table, known = filters.HashSet(), set()
    for value in values:
        assert table.add(value) == (value not in known)
        known.add(value)
        assert len(table) == len(known)


def test_it_grows_and_forgets_nothing():
    table = filters.HashSet()
    values = [filters.hash_texts(str(index)) for index in range(20_000)]
    assert all(map(table.add, values))
    assert not any(map(table.add, values))
    assert len(table._slots) * 8 <= 24 * len(values)


@pytest.mark.thorough
def test_numbers_that_all_want_the_last_places():
    table = filters.HashSet()
    values = [(index << 32) - 1 for index in range(1, 3000)]
    assert all(map(table.add, values))
    assert not any(map(table.add, values))


def test_the_odds_that_are_promised():
    text = " ".join(filters.HashSet.__doc__.split())
    for n, odds in ((10**6, "37 million"), (50 * 10**6, "15,000")):
        promised = float(odds.replace(",", "").replace(" million", "e6"))
        assert abs(2**65 / n**2 / promised - 1) < 0.03
        assert f"one in {odds}" in text


@given(st.text(), st.text(), st.text(), st.text())
def test_different_pairs_have_different_numbers(a, b, c, d):
    assert (filters.hash_texts(a, b) == filters.hash_texts(c, d)) == ((a, b) == (c, d))


def test_where_a_pair_is_parted_matters():
    texts = "1 2", "12", "1 1", "\udcff", "\n", ""
    pairs = [(a, b) for a in texts for b in texts]
    assert len({filters.hash_texts(*pair) for pair in pairs}) == len(pairs)


def test_the_same_number_in_every_process():
    code = "from regard.data.filters import hash_texts; print(hash_texts('é', 'b'))"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                           env={**os.environ, "PYTHONHASHSEED": seed}).stdout for seed in ("1", "2")]  # fmt: skip
    assert runs == [f"{filters.hash_texts('é', 'b')}\n"] * 2
