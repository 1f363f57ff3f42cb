"""Rules: what they forbid, and what they leave as it was."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import assert_named

from regard.decoding.constraints import (
    ForbiddenTokens,
    MinLength,
    NoRepeatNgram,
    Prefixes,
    WithPrefix,
    check_vocabulary,
)

INF = float("inf")


def written(count, rows=2):
    return of([[0] * count] * rows)


def of(texts, lengths=None):
    """What is written so far; without lengths all of it."""
    ids = torch.tensor(texts, dtype=torch.long).view(len(texts), -1)
    lengths = torch.full((len(texts),), ids.shape[1]) if lengths is None else torch.tensor(lengths)
    return Prefixes(ids, torch.arange(len(texts)), lengths, torch.zeros_like(lengths))


def test_forbidden_tokens_and_no_others():
    logs = torch.randn(2, 5)
    got = ForbiddenTokens([3, 1])(logs.clone(), written(7))
    assert got[:, [1, 3]].tolist() == [[-INF, -INF]] * 2
    assert torch.equal(got[:, [0, 2, 4]], logs[:, [0, 2, 4]])
    assert torch.equal(ForbiddenTokens([])(logs.clone(), written(0)), logs)


@pytest.mark.parametrize(("count", "forbidden"), [(0, True), (2, True), (3, False), (4, False)])
def test_ends_come_only_after_the_least_number_of_tokens(count, forbidden):
    logs = torch.randn(2, 5)
    got = MinLength(3, [0, 4])(logs.clone(), written(count))
    assert torch.equal(got[:, 1:4], logs[:, 1:4])
    assert bool((got[:, [0, 4]] == -INF).all()) is forbidden
    assert torch.equal(got, logs) is not forbidden


@pytest.mark.parametrize(("call", "parts"), [
    (lambda: ForbiddenTokens([-1]), ["`ids`", "whole numbers from 0", "-1"]),
    (lambda: ForbiddenTokens([1.5]), ["`ids`", "1.5"]),
    (lambda: ForbiddenTokens([True]), ["`ids`", "True"]),
    (lambda: ForbiddenTokens("a"), ["`ids`", "made of ids", "'a'"]),
    (lambda: ForbiddenTokens([5])(torch.zeros(1, 5), written(0, 1)), ["`ids`", "below 5", "is 5"]),
    (lambda: NoRepeatNgram(0), ["`size`", "at least 1", "is 0"]),
    (lambda: MinLength(-1, [0]), ["`min_length`", "at least 0", "-1"]),
    (lambda: check_vocabulary("end", [1, 9], 4), ["`end`", "below 4", "is 9"]),
])
def test_what_is_no_rule(call, parts):
    assert_named(call, parts)


@pytest.mark.parametrize("lengths", [[0, 3], [4, 2]])
def test_rows_may_have_written_different_numbers_of_tokens(lengths):
    logs = torch.randn(2, 5)
    got = MinLength(3, [0, 4])(logs.clone(), of([[1] * 4] * 2, lengths))
    for row, length in enumerate(lengths):
        assert torch.equal(got[row, 1:4], logs[row, 1:4])
        assert bool((got[row, [0, 4]] == -INF).all()) is (length < 3)


def repeating(text, size, vocabulary):
    """The tokens that would complete a sequence that is in the text."""
    there = {tuple(text[first:first + size]) for first in range(len(text) - size + 1)}
    return {token for token in range(vocabulary) if tuple([*text, token][-size:]) in there and len(text) >= size}


@given(texts=st.integers(0, 9).flatmap(lambda n: st.lists(st.lists(st.integers(0, 2), min_size=n, max_size=n),
                                                          min_size=1, max_size=4)),
       size=st.integers(1, 4), data=st.data())
def test_no_sequence_is_completed_again(texts, size, data):
    lengths = [data.draw(st.integers(0, len(text))) for text in texts]
    logs = torch.randn(len(texts), 4)
    got = NoRepeatNgram(size)(logs.clone(), of(texts, lengths))
    for row, (text, length) in enumerate(zip(texts, lengths, strict=True)):
        want = repeating(text[:length], size, 4)
        assert {token for token in range(4) if got[row, token] == -INF} == want
        others = [token for token in range(4) if token not in want]
        assert torch.equal(got[row, others], logs[row, others])


@given(rows=st.lists(st.tuples(*[st.lists(st.integers(0, 2), max_size=5)] * 2), min_size=1, max_size=4),
       size=st.integers(1, 3))
def test_what_stands_in_front_counts_for_a_rule_behind_it(rows, size):
    """Rows of (what stands in front, what is written), each twice, in another order than the prompts."""
    order = [number for number in reversed(range(len(rows))) for _ in range(2)]
    texts = [rows[number][1] for number in order]
    filled = [[*text, *[2] * (max(map(len, texts)) - len(text))] for text in texts]
    ids = torch.tensor(filled, dtype=torch.long).view(len(order), -1)
    lengths = torch.tensor([*map(len, texts)])
    state = Prefixes(ids, torch.tensor(order), lengths, torch.zeros_like(lengths))
    logs, before = torch.randn(len(order), 4), [front for front, _ in rows]
    repeats = WithPrefix(NoRepeatNgram(size), before)(logs.clone(), state)
    ends = WithPrefix(MinLength(4, [3]), before)(logs.clone(), state)
    for place, number in enumerate(order):
        whole = [*rows[number][0], *rows[number][1]]
        assert {token for token in range(4) if repeats[place, token] == -INF} == repeating(whole, size, 4)
        assert bool(ends[place, 3] == -INF) is (len(whole) < 4)
