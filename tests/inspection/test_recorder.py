"""The names of attention modules, and decoding steps that are recorded as the rows of one map."""

import pytest
import tiny
import torch
from torch import nn

import regard
from regard.inspection.recorder import find_attention_modules, foreign_module
from regard.tokens import Tokens

BOTH = ["encoder.0.self", "encoder.1.self", "decoder.0.self", "decoder.0.cross", "decoder.1.self", "decoder.1.cross"]
NAMES = {
    "translating attention": BOTH,
    "translating lstmn": BOTH,
    "translating recurrence": ["decoder.0.cross", "decoder.1.cross"],
    "translating seq2seq": [],
    "translating seq2seq-attention": ["decoder.cross"],
    "translating seq2seq-projected": ["decoder.cross"],
    "language rotary": ["decoder.0.self", "decoder.1.self"],
    "language lstmn": ["decoder.0.self", "decoder.1.self"],
    "language old": [],
    "reading encoder": ["encoder.0.self", "encoder.1.self"],
    "reading masked": ["encoder.0.self", "encoder.1.self"],
    "reading first": ["encoder.0.self", "encoder.1.self"],
    "vision class": ["encoder.0.self", "encoder.1.self"],
}


@pytest.mark.parametrize("model", sorted(NAMES))
def test_names_of_models(model):
    found = find_attention_modules(tiny.built(tiny.ALL[model]))
    assert [place.name for place in found] == NAMES[model]
    for place in found:
        assert place.kind == place.name.split(".")[-1]
        assert place.layer == (0 if place.name == "decoder.cross" else int(place.name.split(".")[1]))


def test_names_of_parts():
    model = tiny.built(tiny.translating())
    decoder, recurrent = model.decoder, tiny.built(tiny.TRANSLATING["seq2seq-attention"]).decoder
    named = {decoder: BOTH[2:], decoder.stack: [name.removeprefix("decoder.") for name in BOTH[2:]],
             decoder.stack.blocks[0]: ["self", "cross"], decoder.stack.blocks[0].mixer: ["self"],
             decoder.stack.blocks[0].cross: ["attention"], regard.LSTMN(4): ["self"], recurrent: ["cross"]}
    for part, names in named.items():
        assert [place.name for place in find_attention_modules(part)] == names


def test_custom_modules_keep_their_names():
    own = nn.ModuleDict({"reader": regard.SelfAttention(regard.Attention(4, heads=2)),
                         "looker": regard.BasicAttention(4), "deep": nn.ModuleList([tiny.built(tiny.language())])})
    found = {place.name: place.kind for place in find_attention_modules(own)}
    assert found == {"reader.layer": "self", "looker": None, "deep.0.decoder.0.self": "self",
                     "deep.0.decoder.1.self": "self"}


def test_two_of_one_name_have_the_names_of_their_modules():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([tiny.built(tiny.language()).decoder.stack.blocks[0]])
            self.stack = nn.Module()
            self.stack.blocks = nn.ModuleList([tiny.built(tiny.language()).decoder.stack.blocks[0]])
            self.encoder = nn.Module()
            self.encoder.stack = self.stack

    names = [place.name for place in find_attention_modules(Twice())]
    assert len(names) == len({*names}) == 2


@pytest.mark.parametrize(("path", "kind", "layer"), [
    ("model.decoder.layers.3.encoder_attn", "cross", 3), ("model.encoder.layers.0.self_attn", "self", 0),
    ("decoder.layers.1.multihead_attn", "cross", 1), ("transformer.h.11.attn", "self", 11),
    ("bert.encoder.layer.2.attention.self", "self", 2), ("decoder.block.4.layer.1.EncDecAttention", "cross", 4),
    ("encoder.block.4.layer.0.SelfAttention", "self", 4), ("attention", "self", None),
])
def test_foreign_names_tell_kind_and_layer(path, kind, layer):
    place = foreign_module(path, nn.Identity())
    assert (place.name, place.kind, place.layer) == (path, kind, layer)


def test_one_module_in_two_places_is_one_attention_that_runs_twice():
    layer = regard.Attention(4, heads=2)
    model = nn.Sequential(regard.SelfAttention(layer), regard.SelfAttention(layer))
    with regard.watch(model) as records:
        model(torch.randn(1, 3, 4))
    assert records.names() == ["0.layer"]
    assert len(records.calls) == 2


SOURCE, IDS = Tokens.of([[1, 2, 3, 4, 5], [6, 7, 3]]), torch.tensor([[1, 2, 3, 4, 5, 6], [4, 5, 6, 7, 8, 2]])
STEPPED = ["attention", "rotary", "alibi", "relative", "bucketed", "window", "additive", "bilinear", "lstmn"]


def stepped(model, sizes, memory=None):
    """Read the ids in chunks of these sizes."""
    state = model.start(memory, rows=2, capacity=8)
    for chunk in IDS[:, :sum(sizes)].split(sizes, dim=1):
        _, state, _ = model.step(state, chunk)


def assert_alike(one, other):
    assert one.names() == other.names()
    for name in one.names():
        torch.testing.assert_close(one[name].weights(), other[name].weights(), rtol=1e-10, atol=1e-13)
        torch.testing.assert_close(one[name].entropy(), other[name].entropy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("mixer", STEPPED)
@pytest.mark.parametrize("sizes", [[1] * 6, [3, 1, 1, 1]], ids=["tokens", "a prompt and tokens"])
def test_a_language_model_step_by_step(mixer, sizes):
    model = tiny.built(tiny.language(mixer))
    with regard.watch(model) as steps:
        stepped(model, sizes)
    with regard.watch(model) as whole:
        model(Tokens(IDS))
    assert len(steps.calls) == 1
    assert_alike(steps, whole)


@pytest.mark.parametrize("name", ["attention", "lstmn", "recurrence", "seq2seq-attention", "seq2seq-projected"])
def test_a_translator_step_by_step(name):
    model = tiny.built(tiny.TRANSLATING[name])
    with regard.watch(model) as steps:
        stepped(model, [1] * 6, model.encode(SOURCE))
    with regard.watch(model) as whole:
        model(SOURCE, Tokens(IDS))
    assert len(steps.calls) == 1
    assert_alike(steps, whole)


def test_another_start_is_another_call():
    model = tiny.built(tiny.TRANSLATING["seq2seq-attention"])
    memory = model.encode(SOURCE)
    with regard.watch(model) as records:
        for count in (2, 3):
            stepped(model, [1] * count, memory)
    assert [call["decoder.cross"].weights().shape[-2] for call in records.calls] == [2, 3]


@pytest.mark.parametrize("mixer", ["attention", "lstmn"])
def test_replaced_rows_start_a_new_run(mixer):
    model = tiny.built(tiny.language(mixer))
    state, other = (model.start(rows=2, capacity=8) for _ in range(2))
    _, other, _ = model.step(other, IDS[:, 4:])
    with regard.watch(model) as records:
        _, state, _ = model.step(state, IDS[:, :1])
        _, state, _ = model.step(state, IDS[:, 1:2])
        state = state.put([1], other.pick([0]))
        _, state, _ = model.step(state, IDS[:, 2:3])
    shapes = [tuple(call["decoder.0.self"].weights().shape[-2:]) for call in records.calls]
    assert shapes[0] == (2, 2)
    assert len(shapes) == 2


def test_reordered_rows_start_a_new_run():
    """Both end with the same token, so in the lowest layer their last keys are equal."""
    model = tiny.built(tiny.language(embedding="sinusoidal"))
    _, state, _ = model.step(model.start(rows=2, capacity=8), torch.tensor([[1, 5], [2, 5]]))
    with regard.watch(model) as records:
        _, state, _ = model.step(state, torch.tensor([[5], [5]]))
        for cache in (block.mixer for block in state.stack.blocks):
            cache.key.copy_(cache.key.flip(0))
        model.step(state, torch.tensor([[6], [7]]))
    assert len(records.calls) == 2


def test_later_cache_writes_do_not_change_records():
    model = tiny.built(tiny.language())
    state = model.start(rows=2, capacity=6)
    with regard.watch(model) as records:
        _, state, _ = model.step(state, IDS)
    before = records["decoder.0.self"].weights()
    state.put([0, 1], model.step(model.start(rows=2, capacity=6), IDS.flip(1))[1])
    assert torch.equal(records["decoder.0.self"].weights(), before)


def test_a_chunk_after_others_is_a_call_of_its_own():
    model = tiny.built(tiny.language())
    with regard.watch(model) as records:
        stepped(model, [2, 3])
    assert [tuple(call["decoder.0.self"].weights().shape[-2:]) for call in records.calls] == [(2, 2), (3, 5)]


def test_the_same_input_twice_is_two_calls():
    layer, x = regard.PlainAttention(4), torch.randn(1, 1, 4)
    with regard.watch(layer) as records:
        layer(x)
        layer(x)
    assert len(records.calls) == 2


def test_a_search_over_a_bare_model_is_seen_and_not_changed():
    model = tiny.built(tiny.translating())
    memory = model.encode(SOURCE)
    plain = regard.beam(model, memory, prompts=[[1]] * 2, end=[2], max_length=4, beams=3)
    with regard.watch(model) as records:
        watched = regard.beam(model, memory, prompts=[[1]] * 2, end=[2], max_length=4, beams=3)
    assert [[one.ids for one in row] for row in watched] == [[one.ids for one in row] for row in plain]
    assert "decoder.1.cross" in records
