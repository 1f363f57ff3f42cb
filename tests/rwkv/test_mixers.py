"""RWKV's mixers and its channel mix against the oracle; directions; the values of the first layer; initial values."""

import math
import re

import numpy as np
import pytest
import torch

import regard
from regard.blocks.stack import StackConfig
from regard.mixer import FirstValues
from regard.reference import blocks as oracle_blocks
from regard.reference import rwkv as oracle
from regard.rwkv.channel_mix import ChannelMix, ChannelMixConfig
from regard.rwkv.time_mix import RWKV4, RWKV7, BothDirections, Ranks, RWKV4Config, RWKV7Config, default_ranks

WIDTH, COUNT = 8, 7
SMALL = RWKV7Config(head_width=4, decay_rank=2, learning_rate_rank=3, value_rank=2, gate_rank=3)


def drawn(module, seed=0):
    """The module in float64 with random parameters."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.double().parameters():
        parameter.data = 0.7 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return module


def tokens(*shape, seed=0):
    return torch.randn(*shape, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def named7(mixer):
    """The parameters of a mixer under the oracle's names."""
    found = {name: parameter.detach().numpy() for name, parameter in mixer.named_parameters()}
    rename = {"receptance.weight": "W_r", "key.weight": "W_k", "value.weight": "W_v", "output.weight": "W_o",
              "output.bias": "b_o", "ln_x.weight": "ln_weight", "ln_x.bias": "ln_bias"}
    return {rename.get(name, name): value for name, value in found.items()}


def named4(mixer):
    found = named7(mixer)
    rename = {"x_r": "m_r", "x_k": "m_k", "x_v": "m_v", "bonus": "u"}
    return {rename.get(name, name): value for name, value in found.items()}


def assert_close(ours, theirs, tolerance=1e-12):
    np.testing.assert_allclose(ours.detach().numpy(), theirs, rtol=tolerance, atol=tolerance)


def test_version_4_is_the_oracles():
    mixer, x = drawn(RWKV4(WIDTH)), tokens(2, COUNT)
    for b in range(2):
        assert_close(mixer(x)[b], oracle.time_mix4(x[b].numpy(), named4(mixer)))


@pytest.mark.parametrize("output_bias", [False, True])
def test_version_7_is_the_oracles(output_bias):
    mixer = drawn(RWKV7(WIDTH, head_width=4, ranks=Ranks(2, 3, 2, 3), output_bias=output_bias))
    x = tokens(2, COUNT)
    for b in range(2):
        assert_close(mixer(x)[b], oracle.time_mix7(x[b].numpy(), named7(mixer), heads=2)[0])


@pytest.mark.parametrize("gated", [False, True])
def test_the_channel_mix_is_the_oracles(gated):
    layer, x = drawn(ChannelMix(WIDTH, 10, gated=gated)), tokens(2, COUNT)
    known = oracle.channel_mix4 if gated else oracle.channel_mix7
    for b in range(2):
        assert_close(layer(x)[b], known(x[b].numpy(), named4(layer)))


def test_a_stack_hands_on_the_values_of_its_first_layer():
    """Three blocks of version 7, block by block as the oracle computes them."""
    config = StackConfig(layers=3, mixer=SMALL, channel_mix=ChannelMixConfig(ffn_width=10))
    stack, x = drawn(config.build(WIDTH, causal=True)), tokens(1, COUNT)
    states, first = x[0].numpy(), None

    def norm(module, states):
        gain, bias = (part.detach().numpy() for part in (module.weight, module.bias))
        return np.stack([oracle_blocks.layer_norm(token, gain, bias, module.eps) for token in states])

    for block in stack.blocks:
        mixed, first = oracle.time_mix7(norm(block.around_mixer.norm, states), named7(block.mixer), 2, first)
        states = states + mixed
        fed = norm(block.around_feed_forward.norm, states)
        states = states + oracle.channel_mix7(fed, named4(block.feed_forward))
    assert_close(stack(x)[0], norm(stack.last_norm, states), 1e-11)


def test_a_stack_is_the_same_step_by_step_and_with_activation_checkpointing():
    config = StackConfig(layers=3, mixer=SMALL, channel_mix=ChannelMixConfig(ffn_width=10))
    stack, x = drawn(config.build(WIDTH, causal=True)), tokens(2, COUNT).requires_grad_()
    state, results = stack.start(2, COUNT), []
    for chunk in x.split([1, 3, 1, 2], 1):
        y, state = stack.step(chunk, state)
        results.append(y)
    assert_close(torch.cat(results, 1), stack(x).detach().numpy())
    parameters = [x, *stack.parameters()]
    want = torch.autograd.grad(stack(x).cos().sum(), parameters)
    stack.activation_checkpointing = True
    for ours, theirs in zip(torch.autograd.grad(stack(x).cos().sum(), parameters), want, strict=True):
        assert_close(ours, theirs.numpy())


def test_gradients_of_single_tokens_are_those_of_the_whole():
    """A state carries gradients from step to step, in the first layer and in later ones."""
    stack, x = drawn(StackConfig(layers=2, mixer=SMALL).build(WIDTH, causal=True)), tokens(2, COUNT).requires_grad_()
    state, results, parameters = stack.start(2, COUNT), [], [x, *stack.parameters()]
    for token in x.split(1, 1):
        y, state = stack.step(token, state)
        results.append(y)
    ours = torch.autograd.grad(torch.cat(results, 1).cos().sum(), parameters)
    for mine, theirs in zip(ours, torch.autograd.grad(stack(x).cos().sum(), parameters), strict=True):
        assert_close(mine, theirs.numpy(), 1e-11)


def test_a_later_layer_needs_the_values_of_the_first():
    mixer = RWKV7(WIDTH, head_width=4, layer=1, layers=2).double()
    with pytest.raises(ValueError, match=r"`first` must be .*layer 1"):
        mixer(tokens(1, 2))
    with pytest.raises(ValueError, match="`first`"):
        mixer(tokens(1, 2), None, FirstValues())


def test_two_passes_do_not_share_values():
    stack = drawn(StackConfig(layers=2, mixer=SMALL).build(WIDTH, causal=True))
    one, other = tokens(1, COUNT), tokens(1, COUNT, seed=1)
    want = stack(one)
    stack(other)
    assert torch.equal(stack(one), want)


# ---- directions ----


@pytest.mark.parametrize("config", [RWKV4Config(), SMALL], ids=["rwkv4", "rwkv7"])
def test_an_encoder_reads_in_both_directions(config):
    mixer, x = drawn(config.mixer(WIDTH, False, 0, 1)), tokens(2, COUNT)
    assert isinstance(mixer, BothDirections)
    onward, backward = mixer.onward, mixer.backward
    turned = config.mixer(WIDTH, True, 0, 1).double()
    turned.load_state_dict(backward.state_dict())
    assert_close(mixer(x), (onward(x) + turned(x.flip(1)).flip(1)).detach().numpy())
    assert not any(torch.equal(a, b) for a, b in zip(onward.parameters(), backward.parameters(), strict=True))
    with pytest.raises(ValueError, match="step by step"):
        mixer.start(1, 4)
    with pytest.raises(ValueError, match="`direction`"):
        backward.step(x, backward.start(2))


def test_an_encoders_channel_mix_reads_both_neighbours():
    layer, x = drawn(ChannelMix(WIDTH, 10, direction="both")), tokens(1, 5).requires_grad_()
    (gradient,) = torch.autograd.grad(layer(x)[0, 2].sum(), x)
    assert [bool(row.any()) for row in gradient[0]] == [False, True, True, True, False]
    with pytest.raises(ValueError, match="`direction`"):
        layer.start(1)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("config", [RWKV4Config(), SMALL], ids=["rwkv4", "rwkv7"])
def test_padding_changes_nothing_in_an_encoder(config, side):
    stack = drawn(StackConfig(layers=2, mixer=config, channel_mix=ChannelMixConfig(ffn_width=10, gated=True))
                  .build(WIDTH, causal=False))
    x, lengths = tokens(2, COUNT), [COUNT, 4]
    present = regard.Padding(lengths, side)
    there = present.matrix(1, COUNT)[:, 0]
    y = stack(x.masked_fill(~there.unsqueeze(-1), math.nan).nan_to_num(3.0), present)
    assert_close(y[1, there[1]], stack(x[1:, there[1]])[0].detach().numpy())


# ---- parameters ----


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("config", [RWKV4Config(), RWKV7Config(head_width=4, output_bias=True), SMALL], ids=repr)
def test_parameters_are_counted(config, causal):
    for layer in range(2):
        built = config.mixer(WIDTH, causal, layer, 2)
        assert config.parameters(WIDTH, causal, layer) == sum(map(torch.numel, built.parameters()))
    for gated in (False, True):
        mix = ChannelMixConfig(ffn_width=10, gated=gated)
        built = mix.build(WIDTH, causal, 0, 2)
        assert mix.parameters(WIDTH, causal) == sum(map(torch.numel, built.parameters()))


def test_initial_values():
    """A new layer adds nothing to its residual; mixes are ramps; decays of version 7 cover their range."""
    x = tokens(1, 5).float()
    for mixer in (RWKV4(WIDTH), RWKV7(WIDTH, head_width=4), ChannelMix(WIDTH, 9), ChannelMix(WIDTH, 9, gated=True)):
        assert (mixer(x) == 0).all()
        assert (mixer.x_k[0], mixer.x_k.diff().max() < 0) == (1.0, True)
    assert default_ranks(768) == (64, 64, 32, 128)
    assert default_ranks(2048) == (128, 128, 64, 224)
    wide = RWKV7(128, layer=0, layers=12)
    assert -9 < wide.w0.min() < -5
    assert 1 < wide.w0.max() < 5
    assert all(re.fullmatch(r"(receptance|key|value|output)\.weight|[wavg][12]", name)
               for name, parameter in wide.named_parameters() if parameter.dim() > 1)  # what weight decay applies to


def test_states_are_float32_at_least():
    for mixer in (RWKV4(WIDTH), RWKV7(WIDTH, head_width=4)):
        state = mixer.bfloat16().start(2)
        assert {tensor.dtype for tensor in state.tensors[1:]} == {torch.float32}


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match=r"`head_width` .*8"):
        RWKV7(8, head_width=3)
    with pytest.raises(ValueError, match="`layer` must be from 0 to 1"):
        RWKV4(8, layer=2, layers=2)
    with pytest.raises(ValueError, match="channel_mix"):
        regard.build({"kind": "language", "vocab_size": 9, "width": 8, "stack": {
            "layers": 1, "mixer": {"kind": "rwkv4"}, "feed_forward": {"ffn_width": 4},
            "channel_mix": {"ffn_width": 4}}})
    with pytest.raises(ValueError, match="head_width"):
        regard.build({"kind": "language", "vocab_size": 9, "width": 8,
                      "stack": {"layers": 1, "mixer": {"kind": "rwkv7"}}})


@pytest.mark.parametrize("mixer", [RWKV4(WIDTH), RWKV7(WIDTH, head_width=4), ChannelMix(WIDTH, 10)])
def test_a_state_of_other_rows_or_of_another_mixer_is_refused(mixer):
    x = torch.zeros(2, 1, WIDTH)
    others = [RWKV4(WIDTH), RWKV7(WIDTH, head_width=4), ChannelMix(WIDTH, 10)]
    for state in (mixer.start(1), mixer.start(3), *(one.start(2) for one in others if type(one) is not type(mixer))):
        with pytest.raises(ValueError, match=r"state.*2 rows.*start\(rows=2\)"):
            mixer.step(x, state)


@pytest.mark.parametrize("places", [{"layer": 2, "layers": 2}, {"layer": -1}, {"layers": 0}])
@pytest.mark.parametrize("made", [RWKV4, lambda width, **places: ChannelMix(width, 10, **places)])
def test_a_layer_outside_of_its_stack_is_refused(made, places):
    with pytest.raises(ValueError, match="layer"):
        made(WIDTH, **places)
