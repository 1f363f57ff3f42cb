"""Every attention of every model has a short name of its own."""

import pytest
import tiny
import torch
from torch import nn

import regard
from regard.inspection.recorder import find_attention_modules, foreign_module

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


def test_somebodys_own_module_keeps_its_names():
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
    with regard.watch(model) as seen:
        model(torch.randn(1, 3, 4))
    assert seen.names() == ["0.layer"]
    assert len(seen.calls) == 2
