"""Pictures of traces, and the maps that notebooks show."""

import math
import xml.etree.ElementTree as ET
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
import torch
from refusals import assert_named

from regard.attention.look import Look
from regard.attention.mask import Causal
from regard.attention.normalize import Softmax
from regard.data.tokenizer.interface import Word
from regard.inspection.pictures import attention_picture, maps, save, trace_picture, trace_svg, trace_views
from regard.inspection.records import WeightMatrix
from regard.inspection.trace import Trace
from regard.inspection.trace_format import AlignmentPointer, TracedAttention, TraceSide

SOURCE = TraceSide(("▁Two", "▁dogs", "▁pl", "ay", ".", "</s>"), "Two dogs play.",
              (Word(0, 3, 0, 0), Word(4, 8, 1, 1), Word(9, 13, 2, 3), Word(13, 14, 4, 4)))
TARGET = TraceSide(("▁Zwei", "▁Hunde", "▁sp", "iel", "en", ".", "</s>"), "Zwei Hunde spielen.",
              (Word(0, 4, 0, 0), Word(5, 10, 1, 1), Word(11, 18, 2, 4), Word(18, 19, 5, 5)))


def pair(**more):
    torch.manual_seed(0)
    own = Look(torch.randn(4, 7, 8), torch.randn(2, 7, 8), mask=Causal())
    cross = Look(torch.randn(4, 7, 8), torch.randn(4, 6, 8))
    attentions = (TracedAttention("decoder.0.self", "target", "target", own, 0, "self"),
                  TracedAttention("decoder.0.cross", "target", "source", cross, 0, "cross"))
    return Trace({"source": SOURCE, "target": TARGET}, attentions, title="Two dogs play.", model="a model", **more)


def image(figure, place=0):
    return np.asarray([image for axes in figure.axes for image in axes.images][place].get_array())


def names(ticks):
    return [tick.get_text() for tick in ticks]


def head(figure):
    return " ".join(text.get_text() for text in figure.texts)


@pytest.mark.parametrize(("number", "offset"), [(None, 0), (2, 0), (2, 1)])
def test_the_map_of_a_pair_is_of_words(number, offset):
    trace = pair(alignment=AlignmentPointer(1, number, offset))
    weights = trace.attentions[1].look.weights().double().numpy()
    weights = weights.mean(0) if number is None else weights[number]
    rows = []
    for word in TARGET.words:  # token by token, as docs/trace.md says
        own = [weights[token + offset] for token in range(word.first_token, word.last_token + 1)]
        look = sum(own) / len(own)
        rows.append([sum(look[token] for token in range(word.first_token, word.last_token + 1))
                     for word in SOURCE.words])
    figure = trace_picture(trace)
    np.testing.assert_allclose(image(figure), rows, rtol=1e-5)
    assert names(figure.axes[0].get_yticklabels()) == ["Zwei", "Hunde", "spielen", "."]
    assert names(figure.axes[0].get_xticklabels()) == ["Two", "dogs", "play", "."]
    which = "mean of 4 heads" if number is None else f"head {number}"
    assert f"Two dogs play. a model; decoder.0.cross, {which};" in head(figure)
    assert "not shown: 1 token of source outside of words" in head(figure)
    assert "rows sum to less than 1" in head(figure)


def test_a_notebook_shows_the_same_map():
    trace = pair(alignment=AlignmentPointer(1, 2))
    svg = ElementTree.fromstring(trace_svg(trace))
    told = dict(title.text.rsplit(": ", 1) for title in svg.iter("{http://www.w3.org/2000/svg}title"))
    drawn = image(trace_picture(trace))
    assert {pair: float(weight) for pair, weight in told.items()} == {
        f"{row} → {column}": float(f"{drawn[i, j]:.3g}") for i, row in enumerate(["Zwei", "Hunde", "spielen", "."])
        for j, column in enumerate(["Two", "dogs", "play", "."])}
    assert "decoder.0.cross, head 2" in [text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")]


def test_without_words_the_map_is_of_tokens():
    trace = Trace({"a": TraceSide(("x", "y")), "b": TraceSide(("u", "v", "w"))},
                  (TracedAttention("cross", "b", "a", WeightMatrix(torch.rand(1, 3, 2))),),
                  alignment=AlignmentPointer(0, None, 1))
    figure = trace_picture(trace, "map")
    np.testing.assert_allclose(image(figure), trace.attentions[0].look.given[0])
    assert names(figure.axes[0].get_yticklabels()) == ["u", "v", "w"]
    assert head(figure).startswith("cross; the row of a token is 1 further down")


def test_the_views_that_a_trace_has():
    assert trace_views(pair()) == ("map", "heads", "entropy")
    assert trace_views(picture()) == ("patches", "heads", "entropy", "map")
    own = tuple(TracedAttention(name, "a", "a", WeightMatrix(torch.eye(2)[None])) for name in ("one", "two"))
    assert trace_views(Trace({"a": TraceSide(("x", "y"))}, own[:1])) == ("map", "heads", "entropy")
    assert trace_views(Trace({"a": TraceSide(("x", "y"))}, own)) == ("heads", "entropy", "map")
    pointed = Trace({"a": TraceSide(("x", "y"))}, own, alignment=AlignmentPointer(0))
    assert trace_views(pointed) == ("map", "heads", "entropy")


@pytest.mark.parametrize("number", [None, 0, 3])
def test_one_attention_is_of_tokens(number):
    trace = pair()
    weights = trace.attentions[0].look.weights().double()
    figure = attention_picture(trace, "decoder.0.self", number)
    np.testing.assert_allclose(image(figure), weights.mean(0) if number is None else weights[number], rtol=1e-6)
    assert names(figure.axes[0].get_yticklabels()) == list(TARGET.tokens)
    assert (figure.axes[0].get_ylabel(), figure.axes[0].get_xlabel()) == ("target", "target")


def test_rows_that_are_asked_for_in_parts_are_the_same(monkeypatch):
    whole = image(attention_picture(pair(), "decoder.0.cross", 1))
    monkeypatch.setattr(maps, "WEIGHTS_AT_ONCE", 50)
    np.testing.assert_allclose(image(attention_picture(pair(), "decoder.0.cross", 1)), whole, rtol=1e-6)


def test_all_heads_of_all_layers():
    trace = pair()
    figure = trace_picture(trace, "heads")
    for layer, one in enumerate(trace.attentions):
        for number, weights in enumerate(one.look.weights()):
            np.testing.assert_allclose(image(figure, layer * 4 + number), weights)
    assert names(figure.axes[0].get_yticklabels()) == ["decoder.0.self", "decoder.0.cross"]
    assert head(figure) == "Two dogs play. a model; hatched: masked"


def test_entropies_and_the_largest_that_the_masks_allow():
    trace = pair()
    figure = trace_picture(trace, "entropy")
    weights = [one.look.weights().double() for one in trace.attentions]
    expected = torch.cat([-(each * each.clamp(min=1e-300).log()).sum(-1).mean(-1) for each in weights])
    drawn = [float(image(figure, place)[0, 0]) for place in range(8)]
    np.testing.assert_allclose(drawn, expected, rtol=1e-4)
    causal = sum(math.log(row) for row in range(1, 8)) / 7
    assert names(figure.axes[0].get_yticklabels()) == [f"decoder.0.self (at most {causal:.2f})",
                                                       f"decoder.0.cross (at most {math.log(6):.2f})"]


def test_weights_without_a_largest_entropy_are_told_of():
    side = {"a": TraceSide(("x", "y"))}
    look = Look(torch.randn(1, 2, 4), torch.randn(1, 2, 4), normalize="sigmoid")
    trace = Trace(side, (TracedAttention("own", "a", "a", look),
                         TracedAttention("given", "a", "a", WeightMatrix(torch.full((1, 2, 2), 0.5))),
                         TracedAttention("more", "a", "a", WeightMatrix(torch.full((1, 2, 2), 0.9))),
                         TracedAttention("less", "a", "a", WeightMatrix(torch.tensor([[[-0.5, 1.5]] * 2]))),
                         TracedAttention("object", "a", "a", Look(look.query, look.key, normalize=Softmax()))))
    figure = trace_picture(trace, "entropy")
    assert names(figure.axes[0].get_yticklabels()) == ["own", "given (at most 0.69)", "more", "less",
                                                       "object (at most 0.69)"]
    assert "no maximum entropy" in head(figure)


def picture(lead=1):
    side = TraceSide((*["[CLS]"] * lead, *map(str, range(6))), grid=(2, 3), lead=lead)
    look = Look(torch.randn(2, 6 + lead, 4), torch.randn(2, 6 + lead, 4))
    return Trace({"image": side}, (TracedAttention("encoder.0.self", "image", "image", look),))


def test_patches_show_the_weights_of_the_class_token():
    trace = picture()
    figure = trace_picture(trace)
    weights = trace.attentions[0].look.weights()
    for number in range(2):
        np.testing.assert_allclose(image(figure, number).ravel(), weights[number, 0, 1:], rtol=1e-5)
    assert "the token [CLS]" in head(figure)


def test_patches_may_have_their_image_beside_them():
    pixels = np.random.default_rng(0).random((4, 6))
    figure = trace_picture(picture(), "patches", image=pixels)
    np.testing.assert_array_equal(image(figure), pixels)
    assert image(figure, 1).shape == (2, 3)


def test_patches_without_a_class_token_show_the_mean():
    trace = picture(lead=0)
    figure = trace_picture(trace)
    np.testing.assert_allclose(image(figure).ravel(), trace.attentions[0].look.weights()[0].mean(0), rtol=1e-5)
    assert "averaged over 6 tokens" in head(figure)


def test_4096_tokens_are_asked_for_as_blocks(monkeypatch):
    tokens = tuple(f"w{number}" for number in range(4096))
    look = Look(torch.randn(2, 4096, 4), torch.randn(2, 4096, 4), mask=Causal())
    trace = Trace({"text": TraceSide(tokens)}, (TracedAttention("encoder.0.self", "text", "text", look),),
                  alignment=AlignmentPointer(0, 1, 1))
    expected = look.block_map(3)

    def never(self):
        raise AssertionError("the whole matrix was asked for")

    monkeypatch.setattr(Look, "weights", never)
    figure = trace_picture(trace)
    np.testing.assert_allclose(image(figure), expected[1], rtol=1e-5)
    assert "the row of a token is 1 further down; each cell is the mean of 3 × 3 weights" in head(figure)
    np.testing.assert_allclose(image(trace_picture(trace, "heads"), 1), look.block_map(43)[1], rtol=1e-5)
    assert "each cell is the mean of 64 × 64 weights" in trace_svg(trace)


@pytest.mark.parametrize("view", ["entropy", "heads", "map"])
def test_a_view_of_hostile_words_can_be_saved(tmp_path, view):
    words = ("$\\frac", "<script>", "\u200b", "\u202e", "\x00")
    trace = Trace({"$a": TraceSide(words)},
                  (TracedAttention("$own", "$a", "$a", WeightMatrix(torch.eye(5)[None] - 0.1)),), title="${",
                  model="\n", alignment=AlignmentPointer(0))
    save(trace_picture(trace, view), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("call", "parts"), [
    (lambda: trace_picture(pair(), "patches"), ["`view`", '"heads"', "None of its sides is an image."]),
    (lambda: trace_picture(pair(), "hedas"), ["`view`", 'Did you mean "heads"?']),
    (lambda: attention_picture(pair(), "decoder.0.cros"), ["`name`", 'Did you mean "decoder.0.cross"?']),
    (lambda: attention_picture(pair(), "decoder.0.cross", 4), ["`head`", "from 0 to 3"]),
    (lambda: attention_picture(pair(), "decoder.0.cross", -1), ["`head`"]),
    (lambda: trace_picture(picture(), "heads", image=np.ones((2, 2))), ["`image`", '"heads"']),
    (lambda: trace_picture(Trace({"a": TraceSide(("x",))})), ["`trace`", "at least one attention"]),
])
def test_what_a_trace_does_not_have_is_refused(call, parts):
    assert_named(call, parts)


HOSTILE = ("<script>alert(1)</script>", '"><img onerror=1>', "c")
LOOK = Look(torch.randn(2, 3, 4), torch.randn(2, 3, 4))
ONE = TracedAttention("decoder.0.<b>", "text", "text", LOOK)


def texts(shown):
    return [element.text for element in ET.fromstring(f"<div>{shown}</div>").iter() if element.text]


@pytest.mark.parametrize("pointer", [None, AlignmentPointer(0, 1)])
def test_a_trace_shows_its_tokens_as_text(pointer):
    trace = Trace({"text": TraceSide(HOSTILE)}, (ONE,), "a <i>title</i>", alignment=pointer)
    assert 'title="a &lt;i&gt;title&lt;/i&gt;"' in trace._repr_html_()
    shown = trace_svg(trace)
    found = texts(shown)
    assert 'aria-label="a &lt;i&gt;title&lt;/i&gt;"' in shown
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
    found = texts(trace_svg(trace))
    assert "a → a: 1" in found
    assert "a → c: 1" not in found


def test_an_attention_shows_a_map_for_each_head():
    shown = ONE._repr_html_()
    assert "<svg" in shown
    assert 'aria-label="decoder.0.&lt;b&gt;' in shown


def test_long_attentions_are_described_in_words(monkeypatch):
    monkeypatch.setattr("regard.inspection.pictures.maps.NOTEBOOK_LIMIT", 17)
    monkeypatch.setattr(Look, "weights", lambda look: pytest.fail("all weights were computed"))
    assert "2 heads of 3 × 3 weights, too many for a small map" in ONE._repr_html_().replace("\n", " ")


def test_no_attention_and_one_token():
    assert "no attention" in Trace({"text": TraceSide(("a",))})._repr_html_()
    one = Trace({"text": TraceSide(("a",))}, (TracedAttention("x", "text", "text", WeightMatrix(torch.ones(1, 1, 1))),))
    assert "<svg" in trace_svg(one)
    assert one._repr_html_().startswith('<iframe sandbox="allow-scripts allow-downloads"')


def hatched(figure):
    """The boxes that are hatched: left, top, right, bottom."""
    return [tuple(np.round([*path.vertices.min(0), *path.vertices.max(0)], 6)) for axes in figure.axes
            for one in axes.collections if one.get_hatch() for path in one.get_paths()]


def test_masked_cells_are_hatched_and_zero_is_the_paper(tmp_path):
    figure = attention_picture(pair(), "decoder.0.self")
    assert hatched(figure) == [(row + 0.5, row - 0.5, 6.5, row + 0.5) for row in range(6)]
    assert "hatched: masked" in head(figure)
    assert hatched(attention_picture(pair(), "decoder.0.cross")) == []
    assert len(hatched(trace_picture(pair(), "heads"))) == 4 * 6
    paper = figure.get_facecolor()
    assert figure.axes[0].images[0].get_cmap()(0.0) == pytest.approx(paper)
    save(figure, tmp_path / "a.svg")
    lone = Trace({"text": TARGET}, pair().attentions[:1] and (
        TracedAttention("decoder.0.self", "text", "text", pair().attentions[0].look, 0, "self"),))
    strokes = [element.attrib["d"] for element in ElementTree.fromstring(trace_svg(lone)).iter()
               if element.tag.endswith("}path")]
    assert [one.count("M") for one in strokes] == [21]
