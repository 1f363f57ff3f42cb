"""Positions: numbers written out, identities of waves and rotations, T5's buckets as T5 computes them."""

import math

import numpy as np
import pytest
import torch

from regard.reference import position
from regard.reference.attention import distances


def test_linear():
    assert position.linear(3, [2.0, 0.5], [1.0, -1.0]).tolist() == [7.0, 0.5]


def test_sinusoidal_by_hand():
    assert position.sinusoidal(0, 4).tolist() == [0.0, 1.0, 0.0, 1.0]
    expected = [math.sin(3), math.cos(3), math.sin(0.03), math.cos(0.03)]
    np.testing.assert_allclose(position.sinusoidal(3, 4), expected, rtol=1e-15)


def test_sinusoidal_of_odd_width_ends_with_a_sine():
    expected = [math.sin(2), math.cos(2), math.sin(2 / 10000 ** (2 / 5)), math.cos(2 / 10000 ** (2 / 5))]
    expected.append(math.sin(2 / 10000 ** (4 / 5)))
    np.testing.assert_allclose(position.sinusoidal(2, 5), expected, rtol=1e-14)
    assert position.sinusoidal(2, 1).tolist() == [math.sin(2)]


def test_sinusoidal_products_depend_on_the_distance_alone():
    def product(a, b):
        return position.sinusoidal(a, 8, base=100.0) @ position.sinusoidal(b, 8, base=100.0)

    assert product(3, 10) == pytest.approx(product(20, 27), rel=1e-12)
    assert product(3, 10) != pytest.approx(product(3, 11), rel=1e-3)


def test_the_formal_sinusoid_counts_from_one_and_ends_at_l_max():
    # i = 1: t / 64^(2/4) = t / 8; i = 2: t / 64^(4/4) = t / 64
    expected = [math.sin(5 / 8), math.cos(5 / 8), math.sin(5 / 64), math.cos(5 / 64)]
    np.testing.assert_allclose(position.sinusoidal_formal(5, 4, 64), expected, rtol=1e-15)
    with pytest.raises(ValueError, match="even"):
        position.sinusoidal_formal(1, 3, 64)


ROTATIONS = [position.rotary_interleaved, position.rotary_halves]


def test_rotary_by_hand():
    c, s, c2, s2 = math.cos(2), math.sin(2), math.cos(0.02), math.sin(0.02)
    x = [1.0, 10.0, 100.0, 1000.0]
    interleaved = [c - 10 * s, s + 10 * c, 100 * c2 - 1000 * s2, 100 * s2 + 1000 * c2]
    halves = [c - 100 * s, 10 * c2 - 1000 * s2, s + 100 * c, 10 * s2 + 1000 * c2]
    np.testing.assert_allclose(position.rotary_interleaved(x, 2), interleaved, rtol=1e-13)
    np.testing.assert_allclose(position.rotary_halves(x, 2), halves, rtol=1e-13)


def test_rotary_is_a_product_of_complex_numbers():
    x = np.random.default_rng(0).normal(size=6)
    turned = torch.view_as_complex(torch.tensor(x).view(3, 2)) * torch.polar(
        torch.ones(3, dtype=torch.float64), 5 * 50.0 ** (-torch.arange(0, 6, 2, dtype=torch.float64) / 6)
    )
    theirs = torch.view_as_real(turned).flatten().numpy()
    np.testing.assert_allclose(position.rotary_interleaved(x, 5, base=50.0), theirs, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("rotary", ROTATIONS)
def test_rotary_keeps_length_and_knows_only_distance(rotary):
    rng = np.random.default_rng(1)
    q, k = rng.normal(size=8), rng.normal(size=8)
    assert np.linalg.norm(rotary(q, 11)) == pytest.approx(np.linalg.norm(q), rel=1e-14)
    assert rotary(q, 0).tolist() == q.tolist()
    assert rotary(q, 3) @ rotary(k, 7) == pytest.approx(rotary(q, 103) @ rotary(k, 107), rel=1e-11)
    assert rotary(q, 3) @ rotary(k, 7) != pytest.approx(rotary(q, 3) @ rotary(k, 8), rel=1e-3)
    with pytest.raises(ValueError, match="even width"):
        rotary([1.0, 2.0, 3.0], 1)


def test_the_two_pairings_are_one_up_to_the_order_of_features():
    x = np.random.default_rng(2).normal(size=6)
    order = [0, 2, 4, 1, 3, 5]
    np.testing.assert_allclose(
        position.rotary_halves(x[order], 3), position.rotary_interleaved(x, 3)[order], rtol=1e-15
    )


def test_rotary_frequencies_and_their_scalings_by_hand():
    # d = 4, base 100: the two frequencies are 1 and 1/10, waves of 2π and 20π positions.
    np.testing.assert_allclose(position.rotary_frequencies(4, 100.0), [1.0, 0.1], rtol=1e-15)
    np.testing.assert_allclose(position.rotary_linear(4, 100.0, 4.0), [0.25, 0.025], rtol=1e-15)
    # 40π positions hold 20 waves and 2 waves: above 4 it stays; 2 of 1 to 4 is a third of the way.
    original = 125.66370614359172
    expected = [1.0, 2 / 3 * 0.1 / 8 + 1 / 3 * 0.1]
    np.testing.assert_allclose(position.rotary_llama3(4, 100.0, 8.0, 1.0, 4.0, original), expected, rtol=1e-13)
    np.testing.assert_allclose(position.rotary_llama3(4, 100.0, 8.0, 3.0, 4.0, original), [1.0, 0.1 / 8], rtol=1e-13)


def test_dynamic_scaling_begins_at_the_length_of_the_training():
    for at in (0, 5, 7):
        assert position.rotary_dynamic(at, 4, 100.0, 4.0, 8).tolist() == position.rotary_frequencies(4, 100.0).tolist()
    # 16 tokens of 8: s l/L - (s - 1) = 8 - 3 = 5, to the power 4/2 = 25; the base is 2500, its root 50.
    np.testing.assert_allclose(position.rotary_dynamic(15, 4, 100.0, 4.0, 8), [1.0, 1 / 50], rtol=1e-14)


def test_yarn_ramps_from_fast_waves_to_slow_ones():
    # d = 8, base 10^4: c(β) = 8 ln(L / 2πβ) / (8 ln 10) = log10(L / 2πβ); L = 2π 100: c(100) = 0, c(1) = 2.
    frequencies = [1.0, 0.1, 0.01, 0.001]
    found = position.rotary_yarn(8, 1e4, 4.0, 200 * math.pi, beta_fast=100.0, truncate=False)
    kept = [1.0, 0.5 + 0.5 / 4, 0.25, 0.25]
    np.testing.assert_allclose(found, np.multiply(frequencies, kept), rtol=1e-12)
    # Rounded outwards, c(50) = 0.3 and c(2) = 1.7 are 0 and 2 again.
    rounded = position.rotary_yarn(8, 1e4, 4.0, 200 * math.pi, beta_fast=50.0, beta_slow=2.0)
    np.testing.assert_allclose(rounded, found, rtol=1e-12)
    assert position.yarn_attention_factor(math.e) == pytest.approx(1.1, rel=1e-15)
    assert position.yarn_attention_factor(1.0) == 1.0


def test_scaled_rotation_is_the_plain_one_with_other_frequencies():
    x = np.random.default_rng(3).normal(size=6)
    plain = position.rotary_scaled(x, 7, position.rotary_frequencies(6, 50.0))
    np.testing.assert_allclose(plain, position.rotary_halves(x, 7, 50.0), rtol=1e-13)
    np.testing.assert_allclose(position.rotary_scaled(x, 7, position.rotary_frequencies(6, 50.0), 1.5), 1.5 * plain)


def test_alibi_slopes():
    assert position.alibi_slopes(8).tolist() == [1 / 2**h for h in range(1, 9)]
    assert position.alibi_slopes(1).tolist() == [2.0**-8]
    assert position.alibi_slopes(2).tolist() == [2.0**-4, 2.0**-8]
    # 12 heads: the 8 above, then the 1st, 3rd, 5th and 7th of the 16 slopes 2^-0.5, 2^-1, ...
    expected = [1 / 2**h for h in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]
    np.testing.assert_allclose(position.alibi_slopes(12), expected, rtol=1e-15)
    assert position.alibi_slopes(3).tolist() == [2.0**-4, 2.0**-8, 2.0**-2]
    with pytest.raises(ValueError, match="at least 1"):
        position.alibi_slopes(0)


def test_alibi_falls_with_distance_on_both_sides():
    bias = position.alibi(2, distances(2, 3))
    assert bias.shape == (2, 2, 3)
    assert (bias[0] * 2**4).tolist() == [[-1, 0, -1], [-2, -1, 0]]
    assert (bias[1] * 2**8).tolist() == [[-1, 0, -1], [-2, -1, 0]]


def test_relative_bucket_one_way_by_hand():
    # 8 buckets: 0..3 exact, then 4 + floor(4 log(d/4) / log(64/4)): 4 from 4, 5 from 8, 6 from 16, 7 from 32
    known = {
        3: 0,
        1: 0,
        0: 0,
        -1: 1,
        -3: 3,
        -4: 4,
        -7: 4,
        -8: 5,
        -15: 5,
        -16: 6,
        -31: 6,
        -32: 7,
        -63: 7,
        -64: 7,
        -999: 7,
    }
    assert {d: position.relative_bucket(d, 8, 64, both_ways=False) for d in known} == known


def test_relative_bucket_both_ways_by_hand():
    # 32 buckets, 16 each way: 0..7 exact, then 8 + floor(8 log2(d/8) / 4): one more every sqrt(2)
    known = {0: 0, -1: 1, -7: 7, -8: 8, -11: 8, -12: 9, -15: 9, -16: 10, -22: 10, -23: 11, -32: 12, -64: 14, -90: 14}
    known |= {-91: 15, -128: 15, -5000: 15, 1: 17, 7: 23, 8: 24, 16: 26, 64: 30, 91: 31, 5000: 31}
    assert {d: position.relative_bucket(d, 32, 128, both_ways=True) for d in known} == known


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (20, 100), (64, 1000)])
def test_relative_bucket_is_the_floor_of_a_float32_logarithm_as_in_t5(buckets, max_distance, both_ways):
    distance = torch.arange(-1100, 1101)
    one_way = buckets // 2 if both_ways else buckets
    away = distance.abs() if both_ways else (-distance).clamp(min=0)
    exact = one_way // 2
    log = torch.log(away.clamp(min=1).float() / exact) / math.log(max_distance / exact) * (one_way - exact)
    far = (exact + log.long()).clamp(max=one_way - 1)
    theirs = torch.where(away < exact, away, far) + (distance > 0) * one_way * both_ways
    ours = [position.relative_bucket(int(d), buckets, max_distance, both_ways) for d in distance]
    assert ours == theirs.tolist()


def test_relative_bucket_with_one_exact_distance():
    assert [position.relative_bucket(d, 4, 9, both_ways=True) for d in (-9, -1, 0, 1, 9)] == [1, 1, 0, 3, 3]
    assert [position.relative_bucket(d, 3, 9, both_ways=False) for d in (-9, -3, -2, -1, 0)] == [2, 2, 1, 1, 0]


def test_relative_bucket_refuses_sizes_without_a_logarithm():
    for buckets, max_distance in ((32, 8), (2, 128)):
        with pytest.raises(ValueError, match="max_distance"):
            position.relative_bucket(1, buckets, max_distance, both_ways=True)


def test_relative_clip():
    assert [position.relative_clip(d, 2) for d in (-9, -2, -1, 0, 1, 2, 3)] == [-2, -2, -1, 0, 1, 2, 2]


def test_relative_bias_reads_one_row_a_bucket():
    table = [[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]]
    bias = position.relative_bias(table, [[0, 2, 2], [1, 0, 1]])
    assert bias.tolist() == [[[1.0, 3.0, 3.0], [2.0, 1.0, 2.0]], [[10.0, 30.0, 30.0], [20.0, 10.0, 20.0]]]
