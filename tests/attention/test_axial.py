"""Axial attention: one layer for rows, columns and triangles, equal to the oracle; masks change nothing else."""

import numpy as np
import pytest
import torch
from affine_maps import gated_heads
from hypothesis import given
from hypothesis import strategies as st
from problems import normal

import regard
from regard import AxialAttention
from regard.reference import protein


def layer_of(axis, width=6, pair_width=4, **options):
    layer = AxialAttention(width, heads=2, axis=axis, pair_width=pair_width, **options).double()
    for number, parameter in enumerate(layer.parameters()):
        with torch.no_grad():
            parameter.copy_(0.7 * normal(*parameter.shape, seed=number))
    return layer


def oracle(layer, x, pairs=None, present=None):
    attend = protein.row_attention if layer.axis == -2 else protein.column_attention
    bias = None if pairs is None else protein.pair_bias(pairs.numpy(), layer.pair_bias.weight.detach().numpy())
    there = None if present is None else present.numpy()
    return attend(x.numpy(), gated_heads(layer.attention), bias=bias, present=there)


def literal(layer, x, pairs=None, present=None):
    """The definition with the whole matrix of every row, in torch, for gradients."""
    own = layer.attention
    turned = x if layer.axis == -2 else x.transpose(-3, -2)
    there = None if present is None else (present if layer.axis == -2 else present.mT)
    query, key, value, gate = (part(turned).unflatten(-1, (own.heads, -1))
                               for part in (own.query, own.key, own.value, own.gate))
    scores = torch.einsum("...ijhd,...ikhd->...ihjk", query, key) / query.shape[-1] ** 0.5
    if pairs is not None:
        scores = scores + torch.einsum("...jkc,hc->...hjk", pairs, layer.pair_bias.weight).unsqueeze(-4)
    if there is not None:
        scores = scores.masked_fill(~there[..., None, None, :], -1e300)
    weights = scores.softmax(-1)
    if there is not None:
        weights = weights * there[..., None, None, :]
    output = torch.einsum("...ihjk,...ikhd->...ijhd", weights, value) * gate.sigmoid()
    output = own.output(output.flatten(-2))
    output = output if there is None else output * there[..., None]
    return output if layer.axis == -2 else output.transpose(-3, -2)


@pytest.mark.parametrize("axis", [-2, -3])
@pytest.mark.parametrize("with_pairs", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_it_is_the_oracle_with_its_gradients(axis, with_pairs, masked):
    layer = layer_of(axis, pair_width=4 if with_pairs else None)
    x, size = normal(3, 5, 6), 5 if axis == -2 else 3
    pairs = normal(size, size, 4, seed=1) if with_pairs else None
    present = None
    if masked:
        present = normal(3, 5, seed=2) > -0.3
        present[1] = False
    got = layer(x, pairs, present=present)
    np.testing.assert_allclose(got.detach().numpy(), oracle(layer, x, pairs, present), rtol=1e-12, atol=1e-12)
    asked = [t.clone().requires_grad_() for t in (x, pairs) if t is not None]
    parameters, above = list(layer.parameters()), normal(3, 5, 6, seed=3)
    mine, theirs = (torch.autograd.grad(each(*asked, present=present), [*asked, *parameters], above)
                    for each in (layer, lambda *given, present: literal(layer, *given, present=present)))
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@given(st.sampled_from([-2, -3]), st.integers(1, 4), st.integers(1, 5), st.integers(0, 1000), st.booleans())
def test_what_is_absent_changes_nothing(axis, rows, columns, seed, with_pairs):
    layer = layer_of(axis, pair_width=4 if with_pairs else None)
    x, size = normal(2, rows, columns, 6, seed=seed), columns if axis == -2 else rows
    pairs = normal(2, size, size, 4, seed=seed + 1) if with_pairs else None
    present = normal(2, rows, columns, seed=seed + 2) > 0
    want = layer(x, pairs, present=present)
    spoiled = x.masked_fill(~present.unsqueeze(-1), torch.nan).requires_grad_()
    got = layer(spoiled, pairs, present=present)
    assert torch.equal(got, want)
    assert torch.equal(got[~present], torch.zeros_like(got[~present]))
    got.sum().backward()
    assert torch.isfinite(spoiled.grad).all()
    assert all(torch.isfinite(parameter.grad).all() for parameter in layer.parameters())
    layer.zero_grad()
    for b in range(2):  # a batch is its members
        alone = layer(x[b], None if pairs is None else pairs[b], present=present[b])
        torch.testing.assert_close(alone, want[b], rtol=1e-12, atol=1e-12)


def test_padding_equals_the_smaller_grid():
    layer = layer_of(-2)
    x, pairs = normal(3, 5, 6), normal(5, 5, 4, seed=1)
    present = torch.zeros(3, 5, dtype=torch.bool)
    present[:2, :4] = True
    small = layer(x[:2, :4], pairs[:4, :4])
    torch.testing.assert_close(layer(x, pairs, present=present)[:2, :4], small, rtol=1e-12, atol=1e-12)


def test_columns_are_the_rows_of_the_transpose():
    row, column = layer_of(-2), layer_of(-3)
    x, pairs = normal(2, 4, 3, 6), normal(2, 4, 4, 4, seed=1)
    torch.testing.assert_close(column(x, pairs), row(x.transpose(1, 2), pairs).transpose(1, 2), rtol=1e-12, atol=1e-12)


def test_a_new_layer_adds_nothing_and_its_gate_is_open():
    layer = AxialAttention(6, heads=2, axis=-2, pair_width=4)
    assert not layer(torch.randn(3, 5, 6), torch.randn(5, 5, 4)).any()
    gates = layer.attention.gates(torch.randn(3, 6)).sigmoid()
    torch.testing.assert_close(gates, torch.full_like(gates, 0.7310585786300049))  # 1 / (1 + e^-1)


def test_it_can_be_watched():
    layer, x, pairs = layer_of(-3), normal(4, 3, 6), normal(4, 4, 4, seed=1)
    looks = []
    with layer.attention.tap.listen(looks.append):
        layer(x, pairs)
    weights = looks[0].weights()
    assert weights.shape == (3, 2, 4, 4)  # columns, heads, queries, keys
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2, 4, dtype=torch.float64))
    with regard.watch(layer) as records:
        layer(x, pairs)
    torch.testing.assert_close(records[records.names()[0]].weights(), weights)


@pytest.mark.parametrize(("wrong", "message"), [
    (lambda: AxialAttention(6, heads=2, axis=1), "`axis` .*-2.*-3"),
    (lambda: AxialAttention(6, heads=2, axis=-2, pair_width=0), "`pair_width` .*1.*0"),
    (lambda: AxialAttention(6, heads=2, axis=-2, head_width=0), "`head_width` .*1.*0"),
    (lambda: AxialAttention(0, heads=2, axis=-2), "`width` .*1.*0"),
    (lambda: layer_of(-2)(normal(3, 5, 7), normal(5, 5, 4)), r"`x` .*6.*\(3, 5, 7\)"),
    (lambda: layer_of(-2)(normal(3, 5, 6)), "`pairs` .*pair_width.*None"),
    (lambda: layer_of(-2, pair_width=None)(normal(3, 5, 6), normal(5, 5, 4)), "`pairs` .*None"),
    (lambda: layer_of(-3)(normal(3, 5, 6), normal(5, 5, 4)), r"`pairs` .*\(\.\.\., 3, 3, 4\).*\(5, 5, 4\)"),
    (lambda: layer_of(-2)(normal(3, 5, 6), normal(5, 5, 4), present=torch.ones(3, 5)), "`present` .*bool.*float32"),
])
def test_errors_name_the_argument(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()
