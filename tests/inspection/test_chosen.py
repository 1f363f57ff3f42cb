"""The one map of a trace: where the trace says, or where it is clearest; by words, or by tokens."""

from dataclasses import replace

import pytest
import torch
import traced

from regard.data.tokenizer.interface import Word
from regard.inspection.records import WeightMatrix
from regard.inspection.trace import Trace, select_map
from regard.inspection.trace_format import AlignmentPointer, TracedAttention, TraceSide


def pair(*matrices, **options):
    """A trace of some looks from three tokens at four, of two and three words."""
    rows = TraceSide(("Le", "ch", "at"), "Le chat", (Word(0, 2, 0, 0), Word(3, 7, 1, 2)))
    columns = TraceSide(("the", "c", "at", "</s>"), "the cat", (Word(0, 3, 0, 0), Word(4, 7, 1, 2)))
    attentions = tuple(TracedAttention(f"{number}", "b", "a", WeightMatrix(weights), number, "cross")
                       for number, weights in enumerate(matrices))
    return Trace({"a": columns, "b": rows}, attentions, **options)


def test_words_look_as_their_tokens_on_average_and_are_looked_at_in_sum():
    weights = torch.tensor([[[0.1, 0.2, 0.3, 0.4], [0.5, 0.1, 0.2, 0.2], [0.3, 0.3, 0.0, 0.4]]])
    found = select_map(pair(weights))
    assert (found.rows, found.columns, found.name) == (("Le", "chat"), ("the", "cat"), "0")
    torch.testing.assert_close(found.weights(), torch.tensor([[0.1, 0.5], [0.4, 0.3]]))
    torch.testing.assert_close(found.weights(1), torch.tensor([[0.1]]))


def test_where_the_trace_says():
    one, two = torch.rand(2, 3, 4), torch.rand(2, 3, 4)
    found = select_map(pair(one, two, alignment=AlignmentPointer(1, 1, 1)))
    assert found.name == "1, head 1"
    rows = two[1][[1, 2, 2]]  # the last has no row behind it, and takes its own
    want = torch.stack([rows[0], rows[1:].mean(0)])
    torch.testing.assert_close(found.weights(), torch.stack([want[:, 0], want[:, 1] + want[:, 2]], -1))


def test_the_clearest_where_nothing_is_said():
    flat, sharp = torch.full((2, 3, 4), 0.25), torch.zeros(2, 3, 4)
    sharp[:, :, 0] = 1.0
    assert select_map(pair(flat, sharp, flat)).name == "1, mean of the heads"


def test_tokens_where_there_are_no_words_of_two_sides():
    trace = traced.long(30)
    found = select_map(trace)
    assert (found.rows, found.words) == (trace.sides["text"].tokens, None)
    torch.testing.assert_close(found.weights(), trace.attentions[0].look.weights().mean(0))
    assert found.weights(5).shape == (5, 5)
    plain = replace(pair(torch.rand(1, 3, 4)), sides={"a": TraceSide(tuple("abcd")), "b": TraceSide(tuple("xyz"))})
    assert select_map(plain).columns == tuple("abcd")


def test_the_last_where_everything_is_large(monkeypatch):
    monkeypatch.setattr("regard.inspection.trace.SELECTION_LIMIT", 5)
    sharp = torch.zeros(1, 3, 4)
    sharp[:, :, 0] = 1.0
    assert select_map(pair(sharp, torch.full((1, 3, 4), 0.25))).name == "1"


def test_a_model_without_attention_has_nothing_to_see():
    with pytest.raises(ValueError, match="no attention"):
        select_map(Trace({"text": TraceSide(("a",))}))
