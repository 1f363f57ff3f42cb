"""What is kept, in order and unchanged; the tally of the rest; excerpts."""

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
    FilterConfig,
    RuleMatch,
    RuleTally,
    count_matches,
    excerpt,
    filter_pairs,
    split_blocks,
)
from regard.data.sources.text import Location, SentencePair


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
