"""Batches of token ids are checked, and know their padding; special ids; rows of a memory can be picked."""

import pytest
import torch

import regard
from regard.models.contract import Memory
from regard.special_tokens import SpecialTokens
from regard.tokens import PackedTokens, Tokens


def test_tokens_say_which_are_there():
    ids = torch.zeros(2, 4, dtype=torch.long)
    assert Tokens(ids).present is None
    assert Tokens(ids).rows == 2
    for side, row in (("right", [1, 1, 0, 0]), ("left", [0, 0, 1, 1])):
        present = Tokens(ids, torch.tensor([2, 4]), side).present
        assert isinstance(present, regard.Padding)
        assert present.matrix(1, 4)[:, 0].int().tolist() == [row, [1, 1, 1, 1]]


@pytest.mark.parametrize(("ids", "lengths", "message"), [
    (torch.zeros(2, 4), None, r"`ids` must be integers of shape \(rows, tokens\), but is of shape \(2, 4\).*float32"),
    (torch.zeros(4, dtype=torch.long), None, r"`ids` must be integers .* \(4,\)"),
    (torch.zeros(2, 4, dtype=torch.bool), None, "`ids` must be integers .* torch.bool"),
    (torch.zeros(2, 4, dtype=torch.long), torch.tensor([1, 2, 3]), r"`lengths` must be of shape \(2,\).*\(3,\)"),
])
def test_what_are_no_tokens(ids, lengths, message):
    with pytest.raises(ValueError, match=message):
        Tokens(ids, lengths)


def test_rows_of_a_memory_can_be_picked_and_repeated():
    memory = Memory(torch.randn(3, 4, 5), torch.tensor([4, 1, 2]), torch.randn(3, 5))
    picked = memory.pick([2, 0, 2])
    for part in ("states", "lengths", "summary"):
        assert torch.equal(getattr(picked, part), getattr(memory, part)[[2, 0, 2]])
    bare = Memory(memory.states, None).pick(torch.tensor([1]))
    assert (bare.lengths, bare.summary) == (None, None)
    assert torch.equal(bare.states, memory.states[1:2])


@pytest.mark.parametrize(("lengths", "segments", "message"), [
    ([-1, 5], None, "`lengths` must be 0 or more, but is -1"),
    ([1.0, 3.0], None, "`lengths` must be integers"),
    ([1, 3], torch.zeros(1, 3).long(), r"`segments` must be of the ids' shape \(1, 4\)"),
])
def test_what_are_no_packed_tokens(lengths, segments, message):
    with pytest.raises(ValueError, match=message):
        PackedTokens(torch.zeros(1, 4).long(), torch.tensor(lengths), segments)


def test_all_special_ids_are_found():
    special = SpecialTokens(start=0, end=(1, 9), padding=2, unknown=3, mask=4, cls=5, separator=6)
    assert special.ids() == {0, 1, 2, 3, 4, 5, 6, 9}
    assert SpecialTokens().ids() == frozenset()
