"""Convolution: the oracle for its numbers, torch's Conv1d for its parameters, gradients for how far it sees.

What it shares with every mixer (steps, padding, causality, states) is in `test_mixer`.
"""

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import regard
from regard.convolution import FEW_TOKENS, Convolution, receptive_field
from regard.reference import convolution as oracle

KINDS = list(itertools.product(("causal", "centred"), ("full", "depthwise"), ("none", "glu")))
FORMS = pytest.mark.parametrize(("placement", "groups", "gate"), KINDS)


def make(width=4, *, kernel_size=3, **options):
    """A convolution in float64 whose biases are not zeros."""
    made = Convolution(width, kernel_size=kernel_size, **options).double()
    if made.bias is not None:
        nn.init.normal_(made.bias)
    return made


def truth(made, x, present=None):
    """The oracle's answer to x (B, N, D), and which tokens are there, (B, N)."""
    place = oracle.causal_offsets if made.placement == "causal" else oracle.centred_offsets
    convolve = oracle.convolution if made.groups == "full" else oracle.depthwise_convolution
    pieces = 2 if made.gate == "glu" else 1
    weights = made.weight.detach().numpy() if made.groups == "full" else made.weight.detach().numpy()[:, 0]
    biases = [None] * pieces if made.bias is None else np.split(made.bias.detach().numpy(), pieces)
    there = np.ones(x.shape[:2], bool) if present is None else present.matrix(1, x.shape[1])[:, 0].numpy()
    rows = []
    for row, own in zip(x.numpy(), there, strict=True):
        parts = [convolve(row, weight, bias, offsets=place(made.kernel_size, made.dilation), present=own)
                 for weight, bias in zip(np.split(weights, pieces), biases, strict=True)]
        rows.append(np.where(own[:, None], oracle.glu(*parts), 0.0) if pieces == 2 else parts[0])
    return torch.from_numpy(np.stack(rows))


def assert_close(ours, theirs, tolerance=1e-12):
    assert ours.shape == theirs.shape
    assert torch.isfinite(ours).all()
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


# ---- the numbers -----------------------------------------------------------------------------------------------------


@st.composite
def convolutions(draw):
    placement, groups, gate = draw(st.sampled_from(KINDS))
    kernel_size = draw(st.sampled_from((1, 3, 5) if placement == "centred" else (1, 2, 3, 4, 7)))
    return make(draw(st.integers(1, 3)), kernel_size=kernel_size, dilation=draw(st.integers(1, 3)), placement=placement,
                groups=groups, gate=gate, bias=draw(st.booleans()))


@given(convolutions(), st.data())
def test_it_is_the_oracles(made, data):
    B, N = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 9))
    x = torch.randn(B, N, made.width, dtype=torch.float64)
    lengths = data.draw(st.lists(st.integers(0, N), min_size=B, max_size=B))
    for present in (None, regard.Padding(lengths, data.draw(st.sampled_from(("right", "left"))))):
        assert_close(made(x, present), truth(made, x, present))


@FORMS
def test_both_ways_to_compute_it_are_the_oracles(placement, groups, gate):
    """Few tokens and many go different ways."""
    made = make(3, dilation=2, placement=placement, groups=groups, gate=gate)
    for tokens in (1, FEW_TOKENS // 2 - 1, FEW_TOKENS // 2):
        x = torch.randn(2, tokens, 3, dtype=torch.float64)
        assert_close(made(x), truth(made, x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("groups", ["full", "depthwise"])
def test_lower_precision_is_as_precise_as_torchs(groups, dtype):
    made, x = make(16, kernel_size=5, groups=groups), torch.randn(4, 100, 16, dtype=torch.float64)
    low, low_x = make(16, kernel_size=5, groups=groups).to(dtype), x.to(dtype)
    low.load_state_dict(made.state_dict())
    made.load_state_dict(low.state_dict())
    exact = made(low_x.double())
    plain = F.conv1d(F.pad(low_x.mT, (4, 0)), low.weight, low.bias, groups=1 if groups == "full" else 16).mT
    error, allowed = (low(low_x).double() - exact).abs().max(), (plain.double() - exact).abs().max()
    assert error <= 2 * allowed + 4 * torch.finfo(dtype).eps * exact.abs().max()


def test_parameters_are_those_of_torchs_module():
    theirs = nn.Conv1d(4, 8, 3, dilation=2, dtype=torch.float64)
    made, x = make(dilation=2, gate="glu"), torch.randn(2, 9, 4, dtype=torch.float64)
    made.load_state_dict(theirs.state_dict())
    assert_close(made(x), F.glu(theirs(F.pad(x.mT, (4, 0))), 1).mT)


@FORMS
def test_gradients(placement, groups, gate):
    made = make(2, dilation=2, placement=placement, groups=groups, gate=gate)
    x, present = torch.randn(2, 4, 2, dtype=torch.float64, requires_grad=True), regard.Padding([4, 2], side="left")
    names, parameters = zip(*made.named_parameters(), strict=True)

    def function(x, *given):
        return torch.func.functional_call(made, dict(zip(names, given, strict=True)), (x, present))

    assert torch.autograd.gradcheck(function, (x, *parameters))


# ---- padding ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("filler", [math.nan, math.inf, 1e30])
@pytest.mark.parametrize("side", ["right", "left"])
@FORMS
def test_what_stands_in_padding_changes_nothing(placement, groups, gate, side, filler):
    made, x, lengths = make(placement=placement, groups=groups, gate=gate), torch.randn(3, 5, 4).double(), [5, 2, 0]
    present = regard.Padding(lengths, side)
    there = present.matrix(1, 5)[:, 0]
    filled = x.masked_fill(~there.unsqueeze(-1), filler).requires_grad_()
    output = made(filled, present)
    output.square().sum().backward()
    assert_close(output.detach(), truth(made, x, present))
    assert (output[~there] == 0).all()
    assert (filled.grad[~there] == 0).all()
    gradients = [parameter.grad for parameter in made.parameters()]
    made.zero_grad()
    total = sum((made(row[own][None]).square().sum() for row, own in zip(x, there, strict=True)), torch.zeros(()))
    total.backward()
    for ours, alone in zip(gradients, (parameter.grad for parameter in made.parameters()), strict=True):
        assert_close(ours, alone)


def test_one_length_may_stand_for_all_rows():
    made, x = make(), torch.randn(3, 5, 4).double()
    expected = truth(made, x, regard.Padding([2, 2, 2]))
    for lengths in (2, [2]):
        assert_close(made(x, regard.Padding(lengths)), expected)
        output, state = made.step(x, made.start(3), lengths=torch.tensor(lengths))
        assert_close(output, expected)
        assert torch.equal(state.tensors[0], x[:, :2])


# ---- how far it sees -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", ["causal", "centred"])
@pytest.mark.parametrize(("kernel_size", "dilation"), [(1, 1), (3, 1), (3, 4), (5, 2)])
def test_the_receptive_field_is_what_gradients_reach(kernel_size, dilation, placement):
    made = make(kernel_size=kernel_size, dilation=dilation, placement=placement)
    x = torch.randn(1, 31, 4, dtype=torch.float64, requires_grad=True)
    made(x)[0, 15].sum().backward()
    reached = torch.nonzero(x.grad[0].abs().sum(-1)).flatten()
    assert len(reached) == kernel_size
    assert int(reached[-1] - reached[0]) + 1 == made.receptive_field == oracle.receptive_field([kernel_size],
                                                                                               [dilation])
    assert int(reached[-1] - 15) == (0 if placement == "causal" else (kernel_size - 1) * dilation // 2)


def test_the_receptive_field_of_a_stack():
    stack = [make(kernel_size=kernel_size, dilation=dilation) for kernel_size, dilation in ((3, 1), (3, 2), (2, 4))]
    x = torch.randn(1, 20, 4, dtype=torch.float64, requires_grad=True)
    nn.Sequential(*stack)(x)[0, -1].sum().backward()
    assert int((x.grad[0] != 0).any(-1).sum()) == receptive_field(stack) == 11
    assert receptive_field([]) == 1


def test_depthwise_features_do_not_mix_and_full_ones_do():
    for groups, reached in (("depthwise", 1), ("full", 4)):
        x = torch.randn(1, 6, 4, dtype=torch.float64, requires_grad=True)
        make(groups=groups, gate="glu")(x)[..., 1].sum().backward()
        assert int((x.grad != 0).any(1).sum()) == reached


# ---- steps -----------------------------------------------------------------------------------------------------------


def test_a_state_is_the_last_inputs_and_no_more():
    made, x = make(kernel_size=3, dilation=2), torch.randn(2, 50, 4).double()
    _, state = made.step(x, made.start(2))
    (window,) = state.tensors
    assert torch.equal(window, x[:, -4:])
    assert window.untyped_storage().nbytes() == 2 * 4 * 4 * 8  # not the chunk that it was cut from


def test_a_step_does_not_change_the_state_that_it_is_given():
    made, x = make(), torch.randn(2, 6, 4).double()
    _, state = made.step(x[:, :3], made.start(2))
    before = state.tensors[0].clone()
    first, _ = made.step(x[:, 3:], state)
    assert torch.equal(state.tensors[0], before)
    assert torch.equal(made.step(x[:, 3:], state)[0], first)


def test_a_state_has_the_precision_of_its_convolution():
    assert make().bfloat16().start(1).tensors[0].dtype == torch.bfloat16
    made, x = make().float(), torch.randn(1, 3, 4)
    assert made.step(x, make().start(1))[0].dtype == torch.float32


def test_a_kernel_of_one_remembers_nothing():
    made, x = make(kernel_size=1), torch.randn(2, 3, 4).double()
    output, state = made.step(x, made.start(2, capacity=7), lengths=torch.tensor([3, 1]))
    assert_close(output, truth(made, x, regard.Padding([3, 1])))
    assert state.tensors[0].shape == (2, 0, 4)


# ---- the rest --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", ["full", "depthwise"])
def test_new_parameters_keep_the_variance(groups):
    x = torch.randn(8, 100, 256)
    gated = 4.0 * torch.sigmoid(2.0 * torch.randn(10**6)).square().mean()  # before the gate, a and b have variance 4
    for gate, expected in (("none", 1.0), ("glu", float(gated))):
        made = Convolution(256, kernel_size=5, groups=groups, gate=gate)
        assert float(made(x).detach()[:, 4:].var()) == pytest.approx(expected, rel=0.15)
        assert (made.bias == 0).all()


@pytest.mark.thorough
@FORMS
def test_it_compiles_whole(placement, groups, gate):
    made = make(placement=placement, groups=groups, gate=gate)
    x, present = torch.randn(2, 5, 4).double(), regard.Padding([5, 2])
    torch.compiler.reset()
    assert_close(torch.compile(made, fullgraph=True, backend="aot_eager")(x, present), made(x, present))


@FORMS
def test_no_tokens_and_no_rows(placement, groups, gate):
    made = make(placement=placement, groups=groups, gate=gate)
    for shape in ((2, 0, 4), (0, 5, 4), (0, 0, 4)):
        assert made(torch.zeros(shape).double()).shape == shape


def test_it_says_what_it_is():
    chosen = 'placement="causal", groups="full", gate="glu", bias=False'
    assert repr(Convolution(4, kernel_size=3, dilation=2, gate="glu", bias=False)) == (
        f"Convolution(4, kernel_size=3, dilation=2, {chosen})")


@pytest.mark.parametrize(("options", "message"), [
    ({"width": 0}, "`width` must be a whole number, at least 1, but is 0"),
    ({"kernel_size": 0}, "`kernel_size` must be a whole number, at least 1, but is 0"),
    ({"kernel_size": True}, "`kernel_size` must be .*, but is True"),
    ({"dilation": 1.5}, "`dilation` must be .*, but is 1.5"),
    ({"placement": "centered"}, 'one of "causal", "centred".*Did you mean "centred"'),
    ({"groups": "depth"}, '`groups` must be one of "full", "depthwise"'),
    ({"gate": "gelu"}, 'Did you mean "glu"'),
    ({"placement": "centred", "kernel_size": 4}, "`kernel_size` must be odd .*, but is 4"),
])
def test_what_it_cannot_be(options, message):
    options = {"width": 4, "kernel_size": 3} | options
    with pytest.raises(ValueError, match=message):
        Convolution(options.pop("width"), **options)


def test_what_it_cannot_take():
    made, x = make(), torch.randn(2, 5, 4).double()
    for wrong in (x[0], x[..., :3], x[None]):
        with pytest.raises(ValueError, match=r"`x` must be of shape \(rows, tokens, 4\), but is of shape"):
            made(wrong)
    with pytest.raises(ValueError, match=r"`present` must be a Padding.*, but is a Causal"):
        made(x, regard.Causal())
    with pytest.raises(ValueError, match="`present` must be for the 2 rows of x"):
        made(x, regard.Padding([1, 2, 3]))
    with pytest.raises(ValueError, match=r"`lengths` must be at most .* 5, but is 6"):
        made(x, regard.Padding([6, 2]))
    with pytest.raises(ValueError, match="`lengths` must be for the 2 rows of x"):
        made.step(x, made.start(2), lengths=torch.tensor([1, 2, 3]))
    with pytest.raises(ValueError, match=r"`state` .*start\(rows=2\)"):
        made.step(x, made.start(3))


def test_a_centred_one_cannot_go_step_by_step():
    made = make(placement="centred")
    for act in (lambda: made.start(1), lambda: made.step(torch.zeros(1, 1, 4), make().start(1))):
        with pytest.raises(ValueError, match=r'`placement` must be "causal" .*, but is "centred"'):
            act()
