"""The output gate of attention: the oracle's numbers, all at once and step by step, in the config and in a model."""

import numpy as np
import pytest
import torch
from affine_maps import gated_heads
from problems import normal
from tiny import LANGUAGE, TRANSLATING, built

import regard
from regard import Attention, Causal
from regard.attention.layer import AttentionConfig
from regard.config import read_config
from regard.decoding.decoder_step import FusedDecoder, PackedDecoder, packed_decoder
from regard.kernels.packed_linear import packed_linear_layers
from regard.reference import attention as oracle
from regard.reference import protein
from regard.tokens import Tokens
from regard.toml import document_of


def gated(width=6, **options):
    layer = Attention(width, heads=2, gate=True, **options).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return layer


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"qkv_bias": False}, {"value_width": 5}], ids=str)
@pytest.mark.parametrize("mask", [None, Causal()], ids=str)
def test_it_is_the_oracle(options, mask):
    layer, x, context = gated(**options), normal(2, 5, 6), normal(2, 7, 6, seed=1)
    for source in (None, context):
        matrix = None if mask is None else oracle.causal(5, 5 if source is None else 7)
        want = [protein.gated_attention(x[b].numpy(), (x if source is None else source)[b].numpy(), gated_heads(layer),
                                        mask=matrix) for b in range(2)]
        np.testing.assert_allclose(layer(x, source, mask=mask).detach().numpy(), np.stack(want), rtol=1e-12, atol=1e-12)


def test_an_open_gate_is_the_layer_without_one():
    layer, plain = gated(), Attention(6, heads=2).double()
    plain.load_state_dict({name: value for name, value in layer.state_dict().items() if not name.startswith("gate")})
    torch.nn.init.zeros_(layer.gate.weight)
    torch.nn.init.constant_(layer.gate.bias, 50.0)
    x = normal(2, 5, 6)
    torch.testing.assert_close(layer(x), plain(x), rtol=1e-13, atol=1e-13)
    torch.nn.init.constant_(layer.gate.bias, -800.0)
    torch.testing.assert_close(layer(x), layer.output.bias.expand(2, 5, 6), rtol=0, atol=0)


def test_its_gradients_are_those_of_finite_differences():
    layer, x = gated(), normal(1, 4, 6).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, w: torch.func.functional_call(layer, {"gate.weight": w}, (x,)),
                                    (x, layer.gate.weight.detach().clone().requires_grad_()))


def test_steps_and_contexts_equal_all_at_once():
    layer, x, context = gated(), normal(3, 6, 6), normal(3, 4, 6, seed=1)
    cache, memory = layer.start(3, 8), layer.remember(context)
    for chunk, at, cross in zip(x.split((1, 3, 2), 1), layer(x, mask=Causal()).split((1, 3, 2), 1),
                                layer(x, context).split((1, 3, 2), 1), strict=True):
        y, cache = layer.step(chunk, cache)
        torch.testing.assert_close(y, at, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(layer.step(chunk, memory)[0], cross, rtol=1e-12, atol=1e-12)


def test_packed_rows_equal_their_sequences():
    layer, x = gated(), normal(1, 9, 6)
    together = layer(x, mask=Causal() & regard.Packed([4, 5]))
    for part, alone in zip(together.split((4, 5), 1), x.split((4, 5), 1), strict=True):
        torch.testing.assert_close(part, layer(alone, mask=Causal()), rtol=1e-12, atol=1e-12)


def test_a_watched_layer_gives_the_same_and_shows_its_weights():
    layer, x = gated(), normal(2, 5, 6)
    with regard.watch(layer) as records:
        y = layer(x)
    torch.testing.assert_close(y, layer(x), rtol=1e-13, atol=1e-13)
    weights = records[records.names()[0]].weights()
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


@pytest.mark.parametrize("bias", [True, False])
def test_the_config_builds_it_and_counts_its_parameters(bias):
    config = read_config(AttentionConfig, document_of({"heads": 2, "key_heads": 1, "gate": True, "bias": bias}))
    layer = config.build(8)
    assert (layer.gate.bias is not None) == bias
    assert sum(parameter.numel() for parameter in layer.parameters()) == config.parameters(8)
    assert AttentionConfig(heads=2).build(8).gate is None


@pytest.mark.parametrize("name", ["translating", "language"])
@torch.no_grad()
def test_packed_decoder_steps_have_the_gate(name):
    model = built((TRANSLATING if name == "translating" else LANGUAGE)["gated"]).eval().float()
    ids = torch.randint(5, 10, (2, 6))
    memory = model.encode(Tokens(torch.randint(5, 10, (2, 4)))) if name == "translating" else None
    want = model.decode(Tokens(ids), memory) if memory is not None else model(Tokens(ids))
    with packed_linear_layers(model):
        writer = packed_decoder(model)
        assert isinstance(writer, PackedDecoder)
        state = writer.start(memory, rows=2, capacity=8)
        for at in range(6):
            step = writer.step(state, ids[:, at:at + 1])
            torch.testing.assert_close(step.logits.squeeze(1), want[:, at], rtol=1e-4, atol=1e-5)
            state = step.state


@torch.no_grad()
def test_fused_decoder_steps_have_the_gate():
    """The merge of a fused step, whose attention kernels are tested by themselves."""
    model = built(LANGUAGE["gated"]).eval().float()
    fused, x, attended = FusedDecoder(model.decoder, 4).self_attention[0], torch.randn(3, 8), torch.randn(3, 2, 4)
    layer = fused.layer
    want = layer.output(attended.flatten(1) * torch.sigmoid(layer.gate(x)))
    torch.testing.assert_close(fused.merge(attended, x), want)


@pytest.mark.thorough
def test_a_compiled_layer_gives_the_same():
    layer, x = Attention(8, heads=2, gate=True), torch.randn(2, 5, 8)
    torch.testing.assert_close(torch.compile(layer, backend="aot_eager")(x), layer(x))
