"""Rotary positions against the oracle, and what makes them rotary: lengths kept, products that see distances alone."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import assert_named

from regard.position.rotary import Rotary
from regard.reference import position as oracle

PAIRINGS = {"halves": oracle.rotary_halves, "interleaved": oracle.rotary_interleaved}
quick = settings(max_examples=40, deadline=None)
pairings = st.sampled_from(sorted(PAIRINGS))


def turned_by_oracle(x: torch.Tensor, positions: torch.Tensor, pairing: str, width: int, base: float) -> np.ndarray:
    """x (..., D), positions of the same shape without D."""
    features = x.shape[-1]
    rows = x.detach().double().reshape(-1, features).numpy().copy()
    for row, position in zip(rows, positions.flatten().tolist(), strict=True):
        row[:width] = PAIRINGS[pairing](row[:width], position, base)
    return rows.reshape(x.shape)


@quick
@given(
    st.lists(st.integers(1, 3), max_size=3).map(tuple),
    st.integers(0, 4),
    st.integers(1, 4),
    st.integers(0, 3),
    pairings,
    st.sampled_from([10000.0, 500.0]),
    st.data(),
)
def test_rotary_is_the_oracle(leading, count, half, rest, pairing, base, data):
    x = torch.randn(*leading, count, 2 * half + rest, dtype=torch.float64)
    rows = leading[: data.draw(st.integers(0, len(leading)))]
    positions = torch.randint(0, 1000, (*rows, count))
    everywhere = positions.reshape(*rows, *(1,) * (len(leading) - len(rows)), count).expand(x.shape[:-1])
    got = Rotary(2 * half, base, pairing)(x, positions)
    expected = turned_by_oracle(x, everywhere, pairing, 2 * half, base)
    assert got.shape == expected.shape
    assert np.allclose(
        got.numpy(), expected, rtol=0, atol=1e-12 * max(1.0, float(x.abs().amax()) if x.numel() else 1.0)
    )
    assert torch.equal(got[..., 2 * half :], x[..., 2 * half :])


@quick
@given(st.integers(1, 8), pairings, st.integers(0, 10**6))
def test_lengths_are_kept(half, pairing, position):
    x = torch.randn(3, 2 * half, dtype=torch.float64)
    got = Rotary(2 * half, pairing=pairing)(x, torch.full((3,), position))
    torch.testing.assert_close(got.norm(dim=-1), x.norm(dim=-1), rtol=1e-12, atol=0)


@quick
@given(st.integers(1, 4), pairings, st.integers(0, 500), st.integers(0, 500), st.integers(0, 10_000))
def test_products_depend_on_the_distance_alone(half, pairing, m, n, shift):
    query, key = torch.randn(2, 1, 2 * half, dtype=torch.float64)
    rotary = Rotary(2 * half, pairing=pairing)

    def product(m, n):
        return (rotary(query, torch.tensor([m])) * rotary(key, torch.tensor([n]))).sum()

    torch.testing.assert_close(product(m, n), product(m + shift, n + shift), rtol=1e-9, atol=1e-10)


def test_the_two_pairings_differ_by_a_permutation_of_features():
    x, positions = torch.randn(5, 6, dtype=torch.float64), torch.arange(5)
    order = torch.tensor([0, 2, 4, 1, 3, 5])
    halves = Rotary(6)(x[:, order], positions)
    assert torch.equal(halves, Rotary(6, pairing="interleaved")(x, positions)[:, order])
    assert not torch.allclose(Rotary(6)(x, positions), Rotary(6, pairing="interleaved")(x, positions))


def test_rows_have_their_own_positions():
    x = torch.randn(2, 3, 4, 8)
    positions = torch.tensor([[0, 0, 1, 2], [7, 8, 9, 10]])
    rotary = Rotary(8)
    for row in range(2):
        assert torch.equal(rotary(x, positions)[row], rotary(x[row], positions[row]))


def test_one_step_equals_the_same_place_in_the_whole():
    x, rotary = torch.randn(2, 3, 9, 8), Rotary(8)
    assert torch.equal(rotary(x, torch.arange(9))[:, :, 8:], rotary(x[:, :, 8:], torch.tensor([8])))


@pytest.mark.parametrize("position", [100_000, 1_000_000, 16_777_217])
def test_float32_is_right_far_out(position):
    x, positions = torch.randn(4, 64), torch.full((4,), position)
    expected = turned_by_oracle(x, positions, "halves", 64, 10000.0)
    error = np.abs(Rotary(64)(x, positions).double().numpy() - expected).max()
    assert error <= 4 * 2.0**-24 * float(x.abs().max()) + 1e-14 * position


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pairing", sorted(PAIRINGS))
def test_low_precision_is_no_worse_than_the_plain_computation(dtype, pairing):
    x, positions = torch.randn(200, 32).to(dtype), torch.arange(0, 20_000, 100)
    expected = torch.from_numpy(turned_by_oracle(x, positions, pairing, 32, 10000.0))
    rotary = Rotary(32, pairing=pairing)
    got = rotary(x, positions)
    assert got.dtype == dtype
    cosine, sine = (wave.to(dtype) for wave in rotary.rotations(positions, torch.float64))
    a, b = (x[:, :16], x[:, 16:]) if pairing == "halves" else (x[:, ::2], x[:, 1::2])
    plain = a * cosine - b * sine, a * sine + b * cosine
    plain = torch.cat(plain, -1) if pairing == "halves" else torch.stack(plain, -1).flatten(-2)
    error, plain_error = (got.double() - expected).abs().max(), (plain.double() - expected).abs().max()
    eps = torch.finfo(dtype).eps
    assert error <= 2 * plain_error + 2 * eps * expected.abs().max()
    # Rounded once, at the end: half a unit in the last place of each number (and what float32 adds to it).
    assert ((got.double() - expected).abs() <= 0.51 * eps * expected.abs() + 1e-5 * eps + 2e-6).all()


@pytest.mark.parametrize("pairing", sorted(PAIRINGS))
def test_gradients_are_right(pairing):
    x = torch.randn(2, 2, 3, 5, dtype=torch.float64, requires_grad=True)
    positions = torch.tensor([[0, 5, 900], [3, 3, 4]])
    rotary = Rotary(4, pairing=pairing)
    assert torch.autograd.gradcheck(lambda x: rotary(x, positions), x)
    assert torch.autograd.gradgradcheck(lambda x: rotary(x, positions), x)


def test_shared_turns_give_the_same():
    rotary, positions = Rotary(6), torch.tensor([[4, 5, 6], [0, 1, 2]])
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        rotations = rotary.rotations(positions, dtype)
        for x in torch.randn(2, 2, 3, 3, 8).to(dtype):
            assert torch.equal(rotary.rotate(x, rotations), rotary(x, positions))


def test_casts_and_moves_change_nothing():
    positions = torch.tensor([999_999])
    x = torch.randn(1, 8, dtype=torch.float64)
    expected = Rotary(8)(x, positions)
    for cast in (
        Rotary(8).half(),
        Rotary(8).double(),
        Rotary(8).to(torch.bfloat16),
        Rotary(8).to("meta").to_empty(device="cpu"),
    ):
        assert torch.equal(cast(x, positions), expected)
    assert not Rotary(8).state_dict()
    assert not list(Rotary(8).buffers())
    assert Rotary(8)(x.to("meta"), positions.to("meta")).device.type == "meta"


@pytest.mark.parametrize("pairing", sorted(PAIRINGS))
def test_compiles_without_a_break(pairing):
    torch.compiler.reset()
    rotary = Rotary(4, pairing=pairing)
    compiled = torch.compile(rotary, backend="eager", fullgraph=True)
    x, positions = torch.randn(2, 3, 5, 6), torch.arange(10).view(2, 5)
    assert torch.equal(compiled(x, positions), rotary(x, positions))
    assert torch.equal(compiled(x.bfloat16(), positions[0]), rotary(x.bfloat16(), positions[0]))


X, AT = torch.zeros(2, 3, 5, 8), torch.arange(5)
WRONG = {
    "odd width": (lambda: Rotary(5), ["`width`", "even", "pairs", "5"]),
    "width 0": (lambda: Rotary(0), ["`width`", "at least 2"]),
    "base": (lambda: Rotary(4, base=-1.0), ["`base`", "above 0", "-1.0"]),
    "pairing": (lambda: Rotary(4, pairing="interleave"), ["`pairing`", "halves", "interleaved", "Did you mean"]),
    "narrow x": (lambda: Rotary(16)(X, AT), ["`x`", "16", "(2, 3, 5, 8)", "one head"]),
    "ids": (lambda: Rotary(8)(X.long(), AT), ["`x`", "floating"]),
    "too few": (lambda: Rotary(8)(X, AT[:4]), ["`positions`", "(5,)", "(4,)"]),
    "other rows": (lambda: Rotary(8)(X, AT.expand(3, 5)), ["`positions`", "(3, 5)", "from the left"]),
    "a list": (lambda: Rotary(8)(X, [0, 1, 2, 3, 4]), ["`positions`", "list"]),
    "elsewhere": (lambda: Rotary(8)(X, AT.to("meta")), ["`positions`", "meta"]),
    "coarse rotations": (
        lambda: Rotary(8).rotate(X.double(), Rotary(8).rotations(AT, X.dtype)),
        ["`rotations`", "float64", "float32"],
    ),
    "narrow rotations": (lambda: Rotary(8).rotate(X, Rotary(4).rotations(AT, X.dtype)),
                         ["`rotations`", "4 angles", "2 wide"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_named(case):
    assert_named(*WRONG[case])
