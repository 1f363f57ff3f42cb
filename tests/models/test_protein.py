"""AlphaFold's layers: equal to the oracle in float64 with their gradients; masks, dropout, initial values."""

import functools

import numpy as np
import pytest
import torch
from affine_maps import affine, gated_heads
from hypothesis import given
from hypothesis import strategies as st
from problems import normal

from regard.models.protein import (
    EvoformerBlock,
    MSAColumnAttention,
    MSARowAttention,
    OuterProductMean,
    SharedDropout,
    Transition,
    TriangleAttention,
    TriangleMultiplication,
)
from regard.reference import protein

S, N, M, Z = 3, 4, 6, 5


def drawn(module):
    """The module in float64, every parameter drawn: none is at its initial 0."""
    module = module.double()
    for number, parameter in enumerate(module.parameters()):
        with torch.no_grad():
            parameter.copy_(0.5 * normal(*parameter.shape, seed=number))
    return module


def pair_weight(axial):
    return axial.pair_bias.weight.detach().numpy()


def row(module, m, z, mask):
    return protein.msa_row_attention_with_pair_bias(
        m, z, affine(module.norm), affine(module.pair_norm), pair_weight(module.attention),
        gated_heads(module.attention.attention), mask)


def column(module, m, mask):
    return protein.msa_column_attention(m, affine(module.norm), gated_heads(module.attention.attention), mask)


def transition(module, x, mask):
    return protein.transition(x, affine(module.norm), affine(module.feed_forward.up), affine(module.feed_forward.down),
                              mask)


def outer(module, m, mask):
    return protein.outer_product_mean(m, *(affine(getattr(module, name)) for name in (
        "norm", "left", "right", "output")), mask)


def multiplication(module, z, mask, direction):
    maps = protein.TriangleMaps(*(affine(getattr(module, name)) for name in (
        "norm", "left", "left_gate", "right", "right_gate", "sum_norm", "output", "output_gate")))
    return getattr(protein, f"triangle_multiplication_{direction}")(z, maps, mask)


def triangle(module, z, mask, node):
    return getattr(protein, f"triangle_attention_{node}_node")(
        z, affine(module.norm), pair_weight(module.attention), gated_heads(module.attention.attention), mask)


MODULES = {
    "row": (lambda: MSARowAttention(M, Z, heads=2, head_width=3), "mz", row),
    "column": (lambda: MSAColumnAttention(M, heads=2, head_width=3), "m", column),
    "transition": (lambda: Transition(Z, factor=2), "z", transition),
    "outer": (lambda: OuterProductMean(M, Z, hidden_width=3), "m", outer),
    **{direction: (lambda direction=direction: TriangleMultiplication(Z, direction=direction, hidden_width=3), "z",
                   lambda *given, direction=direction: multiplication(*given, direction))
       for direction in ("outgoing", "incoming")},
    **{node: (lambda node=node: TriangleAttention(Z, node=node, heads=2, head_width=3), "z",
              lambda *given, node=node: triangle(*given, node)) for node in ("starting", "ending")},
}


def inputs(seed=0):
    return {"m": normal(S, N, M, seed=seed), "z": normal(N, N, Z, seed=seed + 1)}


def masks(seed=0):
    """An MSA with a missing sequence and gaps, and pairs of residues of which the last one does not exist."""
    msa = normal(S, N, seed=seed) > -0.5
    msa[1] = False
    pair = torch.ones(N, N, dtype=torch.bool)
    pair[-1], pair[:, -1] = False, False
    return {"m": msa, "z": pair}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("masked", [False, True])
def test_every_module_is_the_oracle(name, masked):
    make, kinds, oracle = MODULES[name]
    module, given = drawn(make()), [inputs()[kind] for kind in kinds]
    mask = masks()[kinds[0]] if masked else None
    got = module(*given, mask=mask).detach().numpy()
    want = oracle(module, *(t.numpy() for t in given), None if mask is None else mask.numpy())
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", MODULES)
def test_every_gradient_is_that_of_finite_differences(name):
    make, kinds, _ = MODULES[name]
    module, mask = drawn(make()), masks()[kinds[0]]
    asked = [inputs()[kind].requires_grad_() for kind in kinds]
    assert torch.autograd.gradcheck(lambda *given: module(*given, mask=mask), asked)


@functools.cache
def block():
    return drawn(EvoformerBlock(M, Z, msa_heads=2, pair_heads=2, head_width=3, outer_width=3, triangle_width=4,
                                transition_factor=2))


def block_oracle(model, m, z, msa_mask, pair_mask):
    def pairs_only(update):
        return update if pair_mask is None else update * pair_mask[..., None]

    return protein.evoformer_block(m, z, msa_updates=(
        lambda m, z: row(model.msa_row, m, z, msa_mask), lambda m, z: column(model.msa_column, m, msa_mask),
        lambda m, z: transition(model.msa_transition, m, msa_mask),
    ), pair_updates=(
        lambda m, z: pairs_only(outer(model.outer, m, msa_mask)),
        lambda m, z: multiplication(model.outgoing, z, pair_mask, "outgoing"),
        lambda m, z: multiplication(model.incoming, z, pair_mask, "incoming"),
        lambda m, z: triangle(model.starting, z, pair_mask, "starting"),
        lambda m, z: triangle(model.ending, z, pair_mask, "ending"),
        lambda m, z: transition(model.pair_transition, z, pair_mask),
    ))


@pytest.mark.parametrize("masked", [False, True])
def test_a_block_is_the_oracle(masked):
    model, given = block().eval(), inputs()
    found = masks() if masked else {"m": None, "z": None}
    m, z = ((given[kind] if found[kind] is None else given[kind] * found[kind].unsqueeze(-1)).numpy() for kind in "mz")
    want = block_oracle(model, m, z, *(None if found[kind] is None else found[kind].numpy() for kind in "mz"))
    got = model(given["m"], given["z"], msa_mask=found["m"], pair_mask=found["z"])
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one.detach().numpy(), other, rtol=1e-12, atol=1e-12)


@pytest.mark.thorough
@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 4))
def test_padded_residues_and_missing_sequences_change_nothing(seed, sequences, residues):
    """A block on a padded batch, NaN in its padding, equals the block on what exists, and its gradients are finite."""
    model = block().eval()
    m, z = normal(1, sequences, residues, M, seed=seed), normal(1, residues, residues, Z, seed=seed + 1)
    want = model(m, z)
    wide = torch.full((1, sequences + 2, residues + 1, M), torch.nan, dtype=torch.float64)
    wide[:, :sequences, :residues] = m
    far = torch.full((1, residues + 1, residues + 1, Z), torch.nan, dtype=torch.float64)
    far[:, :residues, :residues] = z
    asked = [t.requires_grad_() for t in (wide, far)]
    there = torch.arange(residues + 1) < residues
    msa_mask = ((torch.arange(sequences + 2) < sequences)[:, None] & there).unsqueeze(0)
    pair_mask = (there[:, None] & there).unsqueeze(0)
    msa, pair = model(*asked, msa_mask=msa_mask, pair_mask=pair_mask)
    torch.testing.assert_close(msa[:, :sequences, :residues], want[0], rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(pair[:, :residues, :residues], want[1], rtol=1e-11, atol=1e-11)
    assert not msa[~msa_mask].any()
    assert not pair[~pair_mask].any()
    gradients = torch.autograd.grad(msa.sum() + pair.sum(), [*asked, *model.parameters()], allow_unused=True)
    assert all(gradient is None or torch.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.thorough
@given(st.integers(0, 10_000))
def test_the_order_of_sequences_does_not_matter_except_to_themselves(seed):
    model = block().eval()
    m, z = normal(S, N, M, seed=seed), normal(N, N, Z, seed=seed + 1)
    order = torch.randperm(S, generator=torch.Generator().manual_seed(seed))
    (one, pairs), (other, same) = model(m, z), model(m[order], z)
    torch.testing.assert_close(one[order], other, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(pairs, same, rtol=1e-10, atol=1e-10)


def test_a_new_block_changes_nothing():
    model = EvoformerBlock(M, Z, msa_heads=2, pair_heads=2, head_width=3, outer_width=3)
    m, z = torch.randn(S, N, M), torch.randn(N, N, Z)
    msa, pair = model(m, z)
    assert torch.equal(msa, m)
    assert torch.equal(pair, z)


def test_the_sizes_of_alphafold():
    """The parameters of one block with the paper's sizes, counted by hand from the algorithms."""
    c_m, c_z, c = 256, 128, 32
    attention = 3 * c_m * 8 * c + (c_m + 1) * 8 * c + (8 * c + 1) * c_m
    pairs = 3 * c_z * 4 * c + (c_z + 1) * 4 * c + (4 * c + 1) * c_z
    want = (2 * (attention + 2 * c_m) + 2 * c_z + 8 * c_z                      # 7, 8: norms, heads, bias of pairs
            + 2 * c_m + (c_m + 1) * 4 * c_m + (4 * c_m + 1) * c_m                # 9
            + 2 * c_m + 2 * (c_m + 1) * c + (c * c + 1) * c_z                   # 10
            + 2 * (4 * c_z + 6 * (c_z + 1) * c_z)                               # 11, 12
            + 2 * (2 * c_z + 4 * c_z + pairs)                                   # 13, 14
            + 2 * c_z + (c_z + 1) * 4 * c_z + (4 * c_z + 1) * c_z)               # 15
    assert sum(parameter.numel() for parameter in EvoformerBlock().parameters()) == want


@pytest.mark.parametrize("dim", [-3, -2])
def test_dropout_is_shared_along_its_dimension(dim):
    dropped = SharedDropout(0.5, dim)(torch.ones(2, 6, 7, 8))
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    first = dropped.narrow(dim, 0, 1)
    assert torch.equal(dropped, first.expand_as(dropped))
    assert not torch.equal(first.narrow(-5 - dim, 0, 1).expand_as(first), first)  # drawn along the other one
    assert torch.equal(SharedDropout(0.5, dim).eval()(dropped), dropped)


def test_a_block_in_training_drops():
    model, given = block().train(), inputs()
    assert not torch.equal(model(given["m"], given["z"])[1], model(given["m"], given["z"])[1])


@pytest.mark.parametrize(("wrong", "message"), [
    (lambda: TriangleAttention(Z, node="middle"), '`node` .*"starting".*"ending".*"middle"'),
    (lambda: TriangleMultiplication(Z, direction="left"), '`direction` .*"outgoing".*"incoming".*"left"'),
    (lambda: SharedDropout(1.5, -3), "`dropout` .*1.5"),
    (lambda: TriangleMultiplication(Z, direction="outgoing", hidden_width=0), "`hidden_width` .*1.*0"),
    (lambda: OuterProductMean(M, Z, hidden_width=-1), "`hidden_width` .*-1"),
    (lambda: Transition(M, factor=0), "`factor` .*0"),
    (lambda: MSARowAttention(M, 0), "`pair_width` .*0"),
    (lambda: EvoformerBlock(0, Z), "`msa_width` .*0"),
    (lambda: EvoformerBlock(M, Z, outer_width=0), "`outer_width` .*0"),
    (lambda: block()(normal(S, N, M + 1), normal(N, N, Z)), r"`msa` .*\(\.\.\., S, N, 6\).*\(3, 4, 7\)"),
    (lambda: block()(normal(S, N, M), normal(N, N + 1, Z)), r"`pair` .*\(\.\.\., 4, 4, 5\).*\(4, 5, 5\)"),
    (lambda: block()(normal(S, N, M), normal(N, N, Z), msa_mask=torch.ones(S, N)), "`msa_mask` .*bool.*float32"),
    (lambda: block()(normal(S, N, M), normal(N, N, Z), pair_mask=torch.ones(N, 1) > 0),
     r"`pair_mask` .*\(4, 4\).*\(4, 1\)"),
    (lambda: block().outer(normal(S, N, M), mask=torch.ones(1, N) > 0), r"`mask` .*\(3, 4\).*\(1, 4\)"),
    (lambda: block().msa_row(normal(S, N, M), normal(N, N, Z + 1)), r"`pair` .*\(4, 4, 6\)"),
    (lambda: block().msa_column(normal(S, N, M), mask=torch.ones(S, N)), "`mask` .*bool.*float32"),
    (lambda: block().outgoing(normal(N, N + 1, Z)), r"`pair` .*\(\.\.\., N, N, 5\).*\(4, 5, 5\)"),
    (lambda: block().starting(normal(N, N + 1, Z)), r"`pair` .*\(\.\.\., N, N, 5\).*\(4, 5, 5\)"),
    (lambda: block().pair_transition(normal(N, N, Z), mask=torch.ones(N, 1) > 0), r"`mask` .*\(4, 4\).*\(4, 1\)"),
    (lambda: block().msa_transition(normal(S, N, Z)), r"`x` .*\(\.\.\., 6\).*\(3, 4, 5\)"),
])
def test_errors_name_the_argument(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()


