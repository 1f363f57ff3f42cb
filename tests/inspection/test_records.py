"""Attention records: one sequence of a batch, given weights, masks that are recognised, and traces of sequences."""

import pytest
import tiny
import torch

import regard
from regard.attention.look import Look
from regard.attention.mask import BoolMask, Causal, Padding
from regard.inspection import records as record_module
from regard.inspection.records import WeightMatrix, recognize_mask
from regard.inspection.trace import Trace
from regard.inspection.trace_format import TraceSide
from regard.inspection.watch import NotRecordedError
from regard.tokens import Tokens

SOURCE, TARGET = [[1, 2, 3, 4, 5], [6, 7, 3], [1, 2, 3, 4]], [[1, 2, 3], [4, 5, 6], [7, 2]]
MIXERS = ["attention", "rotary", "alibi", "relative", "bucketed", "window", "additive", "bilinear", "lstmn"]


def watched(model, *given):
    with regard.watch(model) as records:
        model(*given)
    return records


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("side", ["right", "left"])
def test_row_equals_the_sequence_alone(mixer, side):
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
    records = watched(model, Tokens.of(SOURCE))
    look = records.row(1)["decoder.1.self"]
    assert repr(look.mask) == "Causal()"
    alone = watched(model, Tokens(torch.tensor([SOURCE[1]])))
    torch.testing.assert_close(look.weights(), alone.row(0)["decoder.1.self"].weights(), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("row", [3, -4, True, "0", None, 0.0])
def test_missing_row_is_refused(row):
    records = watched(tiny.built(tiny.language()), Tokens.of(SOURCE))
    with pytest.raises(ValueError, match="`row` must be one of the 3 sequences, from 0"):
        records.row(row)


def test_calls_are_numbered_for_each_attention():
    model = tiny.built(tiny.translating())
    with regard.watch(model) as records:
        memory = model.encode(Tokens.of(SOURCE))
        for target in ([[1, 2]] * 3, [[3]] * 3):
            model.decode(Tokens.of(target), memory)
    assert len(records.calls) == 2
    assert [*records.calls[1]] == [name for name in records.names() if name.startswith("decoder")]
    assert records.calls[-1]["decoder.0.self"].weights().shape[-1] == 1
    assert [call["decoder.0.self"].weights().shape[-1] for call in records.calls[:]] == [2, 1]
    assert records["encoder.0.self"] is records.calls[0]["encoder.0.self"]
    with pytest.raises(NotRecordedError, match=r'"encoder\.0\.self" did not run in this call'):
        records.calls[1]["encoder.0.self"]
    with pytest.raises(IndexError, match="no call 2: 2 calls"):
        records.calls[2]


def test_a_name_that_is_not_there_has_a_suggestion():
    records = watched(tiny.built(tiny.translating()), Tokens.of(SOURCE), Tokens.of(TARGET))
    with pytest.raises(KeyError) as error:
        records["decoder.1.corss"]
    assert str(error.value) == 'There is no attention "decoder.1.corss". Did you mean "decoder.1.cross"?'
    names = "encoder.0.self, encoder.1.self, decoder.0.self, decoder.0.cross, … (6)"
    assert repr(records) == f"ModelRecords(1 call of {names})"


def test_a_trace_of_a_translation(tmp_path):
    model = tiny.built(tiny.translating("alibi"))
    records = watched(model, Tokens.of(SOURCE), Tokens.of(TARGET))
    records.save(tmp_path / "a.safetensors", row=2, source=list("abcd"), target=TraceSide(("x", "y"), "x y"),
                 title="abcd")
    trace = Trace.load(tmp_path / "a.safetensors")
    assert trace.title == "abcd"
    assert trace.sides["source"].tokens == ("a", "b", "c", "d")
    assert trace.sides["target"].text == "x y"
    assert [(one.name, one.queries, one.keys, one.layer, one.kind, one.heads) for one in trace.attentions] == [
        ("encoder.0.self", "source", "source", 0, "self", 2), ("encoder.1.self", "source", "source", 1, "self", 2),
        ("decoder.0.self", "target", "target", 0, "self", 2), ("decoder.0.cross", "target", "source", 0, "cross", 2),
        ("decoder.1.self", "target", "target", 1, "self", 2), ("decoder.1.cross", "target", "source", 1, "cross", 2)]
    for one in trace.attentions:
        torch.testing.assert_close(one.look.weights(), records.row(2)[one.name].weights(), rtol=1e-12, atol=1e-14)


def test_tokens_without_names_are_numbers():
    trace = watched(tiny.built(tiny.language()), Tokens.of(SOURCE)).trace(1)
    assert trace.sides["text"].tokens == ("0", "1", "2")


def test_tokens_of_a_decoder_without_self_attention_cut_what_is_padding():
    model = tiny.built(tiny.TRANSLATING["seq2seq-attention"])
    records = watched(model, Tokens.of(SOURCE), Tokens.of(TARGET))
    one = records.trace(2, target=["x", "y"]).attentions[0]
    alone = watched(model, Tokens(torch.tensor([SOURCE[2]])), Tokens(torch.tensor([TARGET[2]]))).row(0)
    torch.testing.assert_close(one.look.weights(), alone["decoder.cross"].weights(), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("name", ["class", "no token"])
def test_an_image_is_a_grid(name):
    model = tiny.built(tiny.VISION[name])
    trace = watched(model, torch.randn(2, model.patches.channels, *model.patches.size, dtype=torch.float64)).trace(1)
    side = trace.sides["image"]
    assert (side.grid, side.lead) == {"class": ((2, 3), 1), "no token": ((4, 4), 0)}[name]
    assert side.tokens[0] == {"class": "[class]", "no token": "1,1"}[name]
    assert trace.attentions[0].queries == "image"


def test_unknown_sides_and_wrong_tokens_are_refused():
    records = watched(tiny.built(tiny.translating()), Tokens.of(SOURCE), Tokens.of(TARGET))
    with pytest.raises(ValueError, match=r'"sourse".* Did you mean "source"'):
        records.trace(sourse=["a"])
    with pytest.raises(ValueError, match="`source` must be tokens, a list of strings, or a TraceSide"):
        records.trace(source="abcde")
    with pytest.raises(ValueError, match=r'side "source" has 6 tokens, but there are 5 columns'):
        records.trace(source=list("abcdef"))


def test_a_model_without_attention_says_so():
    records = watched(tiny.built(tiny.TRANSLATING["seq2seq"]), Tokens.of(SOURCE), Tokens.of(TARGET))
    assert repr(records) == "ModelRecords()"
    for ask in (lambda: records["decoder.cross"], records.trace):
        with pytest.raises(NotRecordedError, match="no attention of this model ran"):
            ask()


def test_a_layer_alone_with_any_mask():
    layer = regard.Attention(4, heads=2)
    x, context = torch.randn(3, 4, 4), torch.randn(3, 5, 4)
    hidden = torch.rand(3, 4, 5) > 0.3
    hidden[1, :, 2] = False  # a key in the middle that nobody sees is no padding
    mask = regard.Padding([5, 5, 3]) & hidden.unsqueeze(1)
    with regard.watch(layer) as records:
        layer(x, context, mask=mask)
        layer(x, mask=Padding([4, 4, 2]))
    first, second = (records.calls[i] for i in range(2))
    assert [first.row(i)["attention"].weights().shape for i in range(3)] == [(2, 4, 5), (2, 4, 5), (2, 4, 3)]
    assert torch.equal(first.row(2)["attention"].weights(), first["attention"].weights()[2, :, :, :3])
    assert second.row(2)["attention"].weights().shape == (2, 2, 2)
    assert second.trace(2).attentions[0].kind == "self"
    assert first.trace(2).attentions[0].kind == "cross"


def test_distances_stay_what_they_were_where_keys_are_cut():
    layer = regard.Attention(4, heads=2, position_bias=regard.ALiBi.for_heads(2))
    with regard.watch(layer) as records:
        layer(torch.randn(2, 3, 4), torch.randn(2, 5, 4), mask=regard.Causal() & regard.Padding([5, 3]))
    for row, there in enumerate((5, 3)):
        whole = records["attention"].weights()[row, :, :, :there]
        torch.testing.assert_close(records.row(row)["attention"].weights(), whole)


@pytest.fixture
def both():
    """A look, and the matrix of its weights."""
    query, key = torch.randn(2, 3, 7, 4, dtype=torch.float64), torch.randn(2, 3, 9, 4, dtype=torch.float64)
    look = Look(query, key, mask=Causal())
    return look, WeightMatrix(look.weights())


@pytest.mark.parametrize("ask", [
    lambda one: one.weights(), lambda one: one.rows(2), lambda one: one.rows([-1, 0, 3]), lambda one: one.entropy(),
    lambda one: one.column_sums(), lambda one: one.row_max().values, lambda one: one.row_max().positions,
    lambda one: one.top_k(3).values, lambda one: one.top_k(1).positions, lambda one: one.block_map(1),
    lambda one: one.block_map(2), lambda one: one.block_map(4), lambda one: one.block_map(100),
], ids=["weights", "row", "rows", "entropy", "column_sums", "max", "argmax", "top", "top places", "map 1", "map 2",
        "map 4", "map 100"])
def test_answers_as_a_look_does(both, ask):
    look, matrix = both
    torch.testing.assert_close(ask(matrix), ask(look), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("ask", "argument"), [
    (lambda one: one.rows(7), "indices"), (lambda one: one.rows(0.5), "indices"), (lambda one: one.top_k(0), "count"),
    (lambda one: one.top_k(10), "count"), (lambda one: one.block_map(0), "size"),
])
def test_refuses_what_a_look_refuses_in_the_same_words(both, ask, argument):
    messages = []
    for one in both:
        with pytest.raises(ValueError, match=f"`{argument}` must be") as error:
            ask(one)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_negative_weights_stay_what_they_are_and_have_no_entropy():
    matrix = WeightMatrix(torch.tensor([[[-0.5, 1.5], [0.25, 0.25]]]))
    assert matrix.entropy().isnan().tolist() == [[True, False]]
    assert matrix.column_sums().tolist() == [[-0.25, 1.75]]
    assert matrix.block_map(2).tolist() == [[[0.375]]]
    assert matrix.row_max().positions.tolist() == [[1, 0]]


def test_sums_of_half_precision_keep_their_digits():
    sums = WeightMatrix(torch.full((1, 4096, 1), 0.5, dtype=torch.bfloat16)).column_sums()
    assert sums.dtype == torch.bfloat16
    assert sums.tolist() == [[2048.0]]


def test_no_keys_at_all():
    matrix = WeightMatrix(torch.zeros(2, 3, 0))
    assert matrix.row_max().values.tolist() == [[0.0] * 3] * 2
    assert matrix.entropy().tolist() == [[0.0] * 3] * 2
    assert matrix.block_map(2).shape == (2, 2, 0)


@pytest.mark.parametrize("given", [[[0.5]], torch.zeros(3), torch.zeros(2, 2, dtype=torch.long)],
                         ids=["list", "vector", "integers"])
def test_only_matrices_of_numbers(given):
    with pytest.raises(ValueError, match="`given` must be"):
        WeightMatrix(given)


def test_repr_is_short():
    assert repr(WeightMatrix(torch.zeros(2, 3, 4))) == "WeightMatrix((2, 3, 4))"


@pytest.mark.parametrize("rows", [1, 2, 1024])
@pytest.mark.parametrize(("n", "N"), [(1, 1), (3, 3), (5, 5), (2, 5), (5, 2)])
def test_causal_masks_and_none(n, N, rows, monkeypatch):
    monkeypatch.setattr(record_module, "ROWS_COMPARED", rows)
    causal = Causal().matrix(n, N)
    found = recognize_mask(causal.expand(3, n, N))
    assert found is None if causal.all() else type(found) is Causal
    assert recognize_mask(torch.ones(1, n, N, dtype=torch.bool)) is None
    for row, column in ((0, 0), (n - 1, N - 1), (n - 1, 0)):
        changed = causal.clone()
        changed[row, column] ^= True
        found = recognize_mask(changed)
        assert found is None if changed.all() else type(found) is BoolMask
        if found is not None:
            assert torch.equal(found.tensor, changed)
