"""In a notebook a trace is a map with its own tokens, and whatever they say is text."""

import xml.etree.ElementTree as ET

import pytest
import torch

from regard.attention.look import Look
from regard.data.tokenizer.interface import Word
from regard.inspection import trace as trace_html
from regard.inspection.records import WeightMatrix
from regard.inspection.trace import Trace
from regard.inspection.trace_format import AlignmentPointer, TracedAttention, TraceSide

HOSTILE = ("<script>alert(1)</script>", '"><img onerror=1>', "c")
LOOK = Look(torch.randn(2, 3, 4), torch.randn(2, 3, 4))
ONE = TracedAttention("decoder.0.<b>", "text", "text", LOOK)


def texts(shown):
    return [element.text for element in ET.fromstring(f"<div>{shown}</div>").iter() if element.text]


@pytest.mark.parametrize("pointer", [None, AlignmentPointer(0, 1)])
def test_a_trace_shows_its_tokens_as_text(pointer):
    shown = Trace({"text": TraceSide(HOSTILE)}, (ONE,), "a <i>title</i>", alignment=pointer)._repr_html_()
    found = texts(shown)
    assert "a <i>title</i>" in found
    assert f"decoder.0.<b>, {'mean of 2 heads' if pointer is None else 'head 1'}" in found
    assert any(text.startswith(HOSTILE[0][:8]) for text in found)
    assert "<script" not in shown
    assert "<img" not in shown


def test_a_word_is_beside_the_row_that_belongs_to_it():
    """A model may look at a word when it reads it, a row after the one in which it wrote it."""
    sides = {name: TraceSide(tuple("abc"), "a b c", tuple(Word(2 * at, 2 * at + 1, at, at) for at in range(3)))
             for name in ("target", "source")}
    later = WeightMatrix(torch.tensor([[[0.0, 0, 1], [1, 0, 0], [0, 1, 0]]]))
    trace = Trace(sides, (TracedAttention("x", "target", "source", later),), alignment=AlignmentPointer(0, 0, 1))
    found = texts(trace._repr_html_())
    assert "a → a: 1" in found
    assert "a → c: 1" not in found


def test_an_attention_shows_a_map_for_each_head():
    shown = ONE._repr_html_()
    assert "<svg" in shown
    assert 'aria-label="decoder.0.&lt;b&gt;' in shown


def test_what_is_too_long_is_told_in_words(monkeypatch):
    monkeypatch.setattr(trace_html, "NOTEBOOK_LIMIT", 17)
    monkeypatch.setattr(Look, "weights", lambda look: pytest.fail("all weights were computed"))
    for shown in (ONE._repr_html_(), Trace({"text": TraceSide(HOSTILE)}, (ONE,))._repr_html_()):
        assert "2 heads of 3 × 3 weights, too many for a small map" in shown.replace("\n", " ")


def test_no_attention_and_one_token():
    assert "no attention" in Trace({"text": TraceSide(("a",))})._repr_html_()
    one = Trace({"text": TraceSide(("a",))}, (TracedAttention("x", "text", "text", WeightMatrix(torch.ones(1, 1, 1))),))
    assert "<svg" in one._repr_html_()
