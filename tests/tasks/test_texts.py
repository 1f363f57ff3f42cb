"""Batches of like lengths: every row once, no batch too large, results in order."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.tasks.task import as_texts, length_batches, map_batches, one_or_many, text_suffix

LENGTHS = st.lists(st.integers(0, 40), max_size=60)


@given(LENGTHS, st.integers(1, 100))
def test_every_row_once_and_no_batch_too_large(lengths, tokens):
    found = list(length_batches(lengths, tokens))
    assert sorted(number for batch in found for number in batch) == list(range(len(lengths)))
    for batch in found:
        assert len(batch) == 1 or len(batch) * max(lengths[number] for number in batch) <= tokens
    longest = [max(lengths[number] for number in batch) for batch in found]
    assert longest == sorted(longest, reverse=True)
    for batch, following in pairwise(found):  # as few as can be: one more row would be too much
        assert (len(batch) + 1) * lengths[batch[0]] > tokens
        assert min(lengths[number] for number in batch) >= max(lengths[number] for number in following)


@given(LENGTHS)
def test_results_come_in_the_order_given(lengths):
    rows = list(enumerate(lengths))
    seen = []

    def work(some):
        seen.append(len(some))
        return [("done", row) for row in some]

    assert map_batches(rows, lengths, work, 50) == [("done", row) for row in rows]
    assert sum(seen) == len(rows)


def test_what_may_be_given():
    assert as_texts("texts", "a b") == ["a b"]
    assert as_texts("texts", ("a", "b")) == ["a", "b"]
    assert as_texts("texts", []) == []
    for wrong, said in ((5, "a int"), (b"a", "a bytes"), (["a", 5], "a list with a int at 1"), (None, "a NoneType")):
        with pytest.raises(ValueError, match=f"`texts` must be a text, or a list of texts, but is {said}"):
            as_texts("texts", wrong)


def test_one_of_several_is_named_by_its_number():
    assert (text_suffix(1, ["a", "b"]), text_suffix(0, ["a", "b"]), text_suffix(0, ["a"])) == (" in text 1", " in text 0", "")


class Counting:
    @one_or_many
    def lengths(self, words: Sequence[str], *, times: int = 1) -> list[int]:
        """How long each is."""
        return [len(word) * times for word in words]


def test_a_method_of_several_takes_one():
    counting = Counting()
    assert counting.lengths("abc") == 3
    assert counting.lengths(("abc", "d"), times=2) == [6, 2]
    assert counting.lengths([]) == []
    assert Counting.lengths.__doc__ == "How long each is."
    for wrong in (5, b"ab", ["a", 1]):
        with pytest.raises(ValueError, match="`words` must be a text, or a list of texts"):
            counting.lengths(wrong)
    with pytest.raises(TypeError, match="time"):
        counting.lengths("a", time=2)
