"""What was seen is found by name, by call and by row; and one sequence of it becomes a trace."""

import pytest
import tiny
import torch

import regard
from regard.attention.mask import Padding
from regard.inspection.trace import Trace
from regard.inspection.trace_format import TraceSide
from regard.inspection.watch import NotRecordedError
from regard.tokens import Tokens

SOURCE, TARGET = [[1, 2, 3, 4, 5], [6, 7, 3], [1, 2, 3, 4]], [[1, 2, 3], [4, 5, 6], [7, 2]]
MIXERS = ["attention", "rotary", "alibi", "relative", "bucketed", "window", "additive", "bilinear", "lstmn"]


def watched(model, *given):
    with regard.watch(model) as seen:
        model(*given)
    return seen


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("side", ["right", "left"])
def test_a_row_is_what_the_sequence_alone_would_be(mixer, side):
    model = tiny.built(tiny.translating(mixer))
    together = watched(model, Tokens.of(SOURCE), Tokens.of(TARGET, side=side))
    for row, (source, target) in enumerate(zip(SOURCE, TARGET, strict=True)):
        alone = watched(model, Tokens(torch.tensor([source])), Tokens(torch.tensor([target])))
        for (name, one), other in zip(together.row(row).items(), alone.row(0).values(), strict=True):
            assert repr(one.mask) == repr(other.mask) or mixer in ("window", "lstmn")
            assert one.weights().dim() == 3
            torch.testing.assert_close(one.weights(), other.weights(), rtol=1e-10, atol=1e-13, msg=name)
            torch.testing.assert_close(one.block_map(2), other.block_map(2), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("mixer", ["attention", "alibi"])
def test_long_masks_are_not_written_out(mixer, monkeypatch):
    monkeypatch.setattr("regard.attention.mask_cache.MAX_MATRIX_ENTRIES", 0)
    model = tiny.built(tiny.language(mixer))
    seen = watched(model, Tokens.of(SOURCE))
    look = seen.row(1)["decoder.1.self"]
    assert repr(look.mask) == "Causal()"
    alone = watched(model, Tokens(torch.tensor([SOURCE[1]])))
    torch.testing.assert_close(look.weights(), alone.row(0)["decoder.1.self"].weights(), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("row", [3, -4, True, "0", None, 0.0])
def test_rows_that_are_not_there(row):
    seen = watched(tiny.built(tiny.language()), Tokens.of(SOURCE))
    with pytest.raises(ValueError, match="`row` must be one of the 3 sequences, from 0"):
        seen.row(row)


def test_calls_are_numbered_for_each_attention():
    model = tiny.built(tiny.translating())
    with regard.watch(model) as seen:
        memory = model.encode(Tokens.of(SOURCE))
        for target in ([[1, 2]] * 3, [[3]] * 3):
            model.decode(Tokens.of(target), memory)
    assert len(seen.calls) == 2
    assert [*seen.calls[1]] == [name for name in seen.names() if name.startswith("decoder")]
    assert seen.calls[-1]["decoder.0.self"].weights().shape[-1] == 1
    assert [call["decoder.0.self"].weights().shape[-1] for call in seen.calls[:]] == [2, 1]
    assert seen["encoder.0.self"] is seen.calls[0]["encoder.0.self"]
    with pytest.raises(NotRecordedError, match=r'"encoder\.0\.self" did not run in this call'):
        seen.calls[1]["encoder.0.self"]
    with pytest.raises(IndexError, match="There were 2 calls, and number 2 is none of them"):
        seen.calls[2]


def test_a_name_that_is_not_there_has_a_suggestion():
    seen = watched(tiny.built(tiny.translating()), Tokens.of(SOURCE), Tokens.of(TARGET))
    with pytest.raises(KeyError) as error:
        seen["decoder.1.corss"]
    assert str(error.value) == 'There is no attention "decoder.1.corss". Did you mean "decoder.1.cross"?'
    assert repr(seen) == "Seen(1 calls of encoder.0.self, encoder.1.self, decoder.0.self, decoder.0.cross, … (6))"


def test_a_trace_of_a_translation(tmp_path):
    model = tiny.built(tiny.translating("alibi"))
    seen = watched(model, Tokens.of(SOURCE), Tokens.of(TARGET))
    seen.save(tmp_path / "a.safetensors", row=2, source=list("abcd"), target=TraceSide(("x", "y"), "x y"), title="abcd")
    trace = Trace.load(tmp_path / "a.safetensors")
    assert trace.title == "abcd"
    assert trace.sides["source"].tokens == ("a", "b", "c", "d")
    assert trace.sides["target"].text == "x y"
    assert [(one.name, one.queries, one.keys, one.layer, one.kind, one.heads) for one in trace.attentions] == [
        ("encoder.0.self", "source", "source", 0, "self", 2), ("encoder.1.self", "source", "source", 1, "self", 2),
        ("decoder.0.self", "target", "target", 0, "self", 2), ("decoder.0.cross", "target", "source", 0, "cross", 2),
        ("decoder.1.self", "target", "target", 1, "self", 2), ("decoder.1.cross", "target", "source", 1, "cross", 2)]
    for one in trace.attentions:
        torch.testing.assert_close(one.look.weights(), seen.row(2)[one.name].weights(), rtol=1e-12, atol=1e-14)


def test_tokens_without_names_are_numbers():
    trace = watched(tiny.built(tiny.language()), Tokens.of(SOURCE)).trace(1)
    assert trace.sides["text"].tokens == ("0", "1", "2")


def test_tokens_of_a_decoder_without_self_attention_cut_what_is_padding():
    model = tiny.built(tiny.TRANSLATING["seq2seq-attention"])
    seen = watched(model, Tokens.of(SOURCE), Tokens.of(TARGET))
    one = seen.trace(2, target=["x", "y"]).attentions[0]
    alone = watched(model, Tokens(torch.tensor([SOURCE[2]])), Tokens(torch.tensor([TARGET[2]]))).row(0)
    torch.testing.assert_close(one.look.weights(), alone["decoder.cross"].weights(), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("name", ["class", "no token"])
def test_an_image_is_a_grid(name):
    model = tiny.built(tiny.VISION[name])
    trace = watched(model, torch.randn(2, model.patches.channels, *model.patches.size, dtype=torch.float64)).trace(1)
    side = trace.sides["image"]
    assert (side.grid, side.lead) == {"class": ((2, 3), 1), "no token": ((4, 4), 0)}[name]
    assert side.tokens[0] == {"class": "[class]", "no token": "1, 1"}[name]
    assert trace.attentions[0].queries == "image"


def test_sides_that_nobody_looks_at_and_tokens_that_are_none():
    seen = watched(tiny.built(tiny.translating()), Tokens.of(SOURCE), Tokens.of(TARGET))
    with pytest.raises(ValueError, match=r'`sourse` must be a side .* Did you mean "source"'):
        seen.trace(sourse=["a"])
    with pytest.raises(ValueError, match="`source` must be tokens, a list of strings, or a Side"):
        seen.trace(source="abcde")
    with pytest.raises(ValueError, match=r'side "source" has 6 tokens, but there are 5 columns'):
        seen.trace(source=list("abcdef"))


def test_a_model_without_attention_says_so():
    seen = watched(tiny.built(tiny.TRANSLATING["seq2seq"]), Tokens.of(SOURCE), Tokens.of(TARGET))
    assert repr(seen) == "Seen(nothing)"
    for ask in (lambda: seen["decoder.cross"], seen.trace):
        with pytest.raises(NotRecordedError, match="no attention of this model ran"):
            ask()


def test_a_layer_alone_with_any_mask():
    layer = regard.Attention(4, heads=2)
    x, context = torch.randn(3, 4, 4), torch.randn(3, 5, 4)
    hidden = torch.rand(3, 4, 5) > 0.3
    hidden[1, :, 2] = False  # a key in the middle that nobody sees is no padding
    mask = regard.Padding([5, 5, 3]) & hidden.unsqueeze(1)
    with regard.watch(layer) as seen:
        layer(x, context, mask=mask)
        layer(x, mask=Padding([4, 4, 2]))
    first, second = (seen.calls[i] for i in range(2))
    assert [first.row(i)["attention"].weights().shape for i in range(3)] == [(2, 4, 5), (2, 4, 5), (2, 4, 3)]
    assert torch.equal(first.row(2)["attention"].weights(), first["attention"].weights()[2, :, :, :3])
    assert second.row(2)["attention"].weights().shape == (2, 2, 2)
    assert second.trace(2).attentions[0].kind == "self"
    assert first.trace(2).attentions[0].kind == "cross"


def test_distances_stay_what_they_were_where_keys_are_cut():
    layer = regard.Attention(4, heads=2, position_bias=regard.ALiBi.for_heads(2))
    with regard.watch(layer) as seen:
        layer(torch.randn(2, 3, 4), torch.randn(2, 5, 4), mask=regard.Causal() & regard.Padding([5, 3]))
    for row, there in enumerate((5, 3)):
        whole = seen["attention"].weights()[row, :, :, :there]
        torch.testing.assert_close(seen.row(row)["attention"].weights(), whole)
