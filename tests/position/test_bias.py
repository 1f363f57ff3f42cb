"""Biases of the scores against the oracle: slopes, clipped distances, T5's buckets at every boundary."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import assert_named

from regard.position.bias import ALiBi, Bias, BucketedBias, RelativeBias
from regard.reference import position as oracle

quick = settings(max_examples=40, deadline=None)


def distances(queries: int, keys: int, first: int = 0) -> torch.Tensor:
    return torch.arange(keys) - (torch.arange(queries)[:, None] + first)


def filled(bias: Bias) -> Bias:
    """The same bias with a random table in float64: the zeros it begins with would hide a wrong row."""
    bias = bias.double()
    torch.nn.init.normal_(bias.table)
    return bias


def check_equal(got: torch.Tensor, expected: np.ndarray, tolerance: float = 1e-12) -> None:
    assert got.shape == expected.shape
    np.testing.assert_allclose(got.detach().numpy(), expected, rtol=tolerance, atol=0)


@quick
@given(st.integers(1, 40), st.integers(0, 4), st.integers(0, 4), st.integers(-50, 50))
def test_alibi_is_the_oracle(heads, queries, keys, first):
    distance = distances(queries, keys, first)
    got = ALiBi.for_heads(heads).double()(distance)
    check_equal(got, oracle.alibi(heads, distance.numpy()))


def test_alibi_slopes_are_the_papers():
    assert ALiBi.for_heads(8).slopes.tolist() == [2.0**-i for i in range(1, 9)]
    assert ALiBi.for_heads(12).numbers == tuple(oracle.alibi_slopes(12))


@quick
@given(st.integers(1, 4), st.integers(0, 6), st.integers(0, 5), st.integers(0, 5), st.integers(-20, 20))
def test_relative_bias_is_the_oracle(heads, limit, queries, keys, first):
    distance, bias = distances(queries, keys, first), filled(RelativeBias(heads, max_distance=limit))
    rows = np.array([[oracle.relative_clip(int(d), limit) + limit for d in row] for row in distance], dtype=np.int64)
    check_equal(bias(distance), oracle.relative_bias(bias.table.detach().numpy(), rows.reshape(queries, keys)))


@quick
@given(st.integers(1, 4), st.integers(2, 20), st.integers(1, 200), st.booleans(), st.integers(-300, 300))
def test_bucketed_bias_is_the_oracle(heads, half, more, both_ways, first):
    buckets = 2 * half
    max_distance = (half if both_ways else buckets) // 2 + more
    bias = filled(BucketedBias(heads, num_buckets=buckets, max_distance=max_distance, bidirectional=both_ways))
    distance = distances(3, 4, first)
    rows = [[oracle.relative_bucket(int(d), buckets, max_distance, both_ways) for d in row] for row in distance]
    check_equal(bias(distance), oracle.relative_bias(bias.table.detach().numpy(), np.array(rows)))


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (4, 3), (16, 1000), (64, 4096), (6, 27)])
def test_every_distance_falls_into_the_oracles_bucket(buckets, max_distance, both_ways):
    distance = torch.arange(-max_distance - 40, max_distance + 41)
    bias = BucketedBias(1, num_buckets=buckets, max_distance=max_distance, bidirectional=both_ways)
    expected = [oracle.relative_bucket(d, buckets, max_distance, both_ways) for d in distance.tolist()]
    assert bias.bucket(distance).tolist() == expected
    assert bias.bucket(distance.int()).tolist() == expected


@pytest.mark.parametrize("both_ways", [True, False])
def test_buckets_of_t5s_own_sizes_are_those_of_its_float32_logarithm(both_ways):
    """So that its published weights read the rows they were trained with."""
    distance = torch.arange(-2000, 2001)
    count = 16 if both_ways else 32
    exact = count // 2
    away = distance.abs() if both_ways else -distance.clamp(max=0)
    wide = exact + (torch.log(away.float() / exact) / math.log(128 / exact) * (count - exact)).long()
    expected = torch.where(away < exact, away, wide.clamp(max=count - 1))
    if both_ways:
        expected = expected + (distance > 0) * count
    assert torch.equal(BucketedBias(1, bidirectional=both_ways).bucket(distance), expected)


def test_boundaries_are_those_of_whole_numbers():
    # e = 4, m = 5, 128/e = 2^5: bucket 4 + k begins at 4 · 2^k exactly; float64's logarithm leaves 8 in bucket 4.
    bias = BucketedBias(1, num_buckets=9, max_distance=128, bidirectional=False)
    assert int(math.log(8 / 4) / math.log(128 / 4) * 5) == 0
    expected = [3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8]
    assert bias.bucket(-torch.tensor([3, 4, 7, 8, 15, 16, 31, 32, 63, 64, 10**9])).tolist() == expected


BIASES = {
    "alibi": lambda: ALiBi.for_heads(3),
    "learned alibi": lambda: ALiBi(torch.nn.Parameter(torch.tensor([0.5, 0.1, 0.2]))),
    "relative": lambda: RelativeBias(3, max_distance=2),
    "bucketed": lambda: BucketedBias(3, num_buckets=8, max_distance=6),
    "one way": lambda: BucketedBias(3, num_buckets=5, max_distance=6, bidirectional=False),
}


@pytest.fixture(params=BIASES)
def bias(request) -> Bias:
    made = BIASES[request.param]()
    return filled(made) if hasattr(made, "table") else made.double()


def test_a_block_is_a_block_of_the_whole(bias):
    whole = bias(distances(7, 9))
    assert whole.shape == (3, 7, 9)
    assert torch.equal(bias(distances(7, 9)[2:5, 3:]), whole[:, 2:5, 3:])


def test_rows_have_their_own_distances(bias):
    distance = torch.stack([distances(4, 5), distances(4, 5, first=3)])
    got = bias(distance[:, None])
    assert got.shape == (2, 3, 4, 5)
    for row in range(2):
        assert torch.equal(got[row], bias(distance[row]))


def test_empty_blocks_are_empty(bias):
    assert bias(distances(0, 4)).shape == (3, 0, 4)
    assert bias(distances(4, 5)[None, None][:0]).shape == (0, 3, 4, 5)


def test_gradients_are_right(bias):
    names = [name for name, _ in bias.named_parameters()] or ["slopes"]
    tensors = tuple(getattr(bias, name).detach().clone().requires_grad_() for name in names)
    for distance in (distances(3, 4), torch.stack([distances(3, 4), distances(3, 4, 9)])[:, None]):
        def of(*given, distance=distance):
            return torch.func.functional_call(bias, dict(zip(names, given, strict=True)), (distance,))

        assert torch.autograd.gradcheck(of, tensors)


def test_compiles_without_a_break(bias):
    torch.compiler.reset()
    compiled = torch.compile(bias, backend="eager", fullgraph=True)
    assert torch.equal(compiled(distances(3, 4)), bias(distances(3, 4)))


def test_survives_copies_and_empty_devices(bias):
    state = bias.state_dict()
    assert torch.equal(copy.deepcopy(bias)(distances(3, 4)), bias(distances(3, 4)))
    empty = copy.deepcopy(bias).to("meta")
    assert empty(distances(3, 4).to("meta")).shape == (3, 3, 4)
    empty = empty.to_empty(device="cpu")
    empty.load_state_dict(state)
    assert torch.equal(empty(distances(3, 4)), bias(distances(3, 4)))


def test_only_what_is_learned_is_stored():
    stored = {name: list(make().state_dict()) for name, make in BIASES.items()}
    table = ["table"]
    assert stored == {"alibi": [], "learned alibi": ["slopes"], "relative": table, "bucketed": table, "one way": table}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_alibi_keeps_its_digits_through_casts(dtype):
    distance, bias = distances(1, 70_000), ALiBi.for_heads(12).to(dtype)
    assert bias(distance).dtype == torch.float32
    assert torch.equal(bias(distance), ALiBi.for_heads(12)(distance))
    check_equal(bias.double()(distance[:, -9:]), oracle.alibi(12, distance[:, -9:].numpy()))
    given = ALiBi(torch.tensor([0.5], dtype=dtype))
    assert given(torch.tensor([[2049]])).item() == -1024.5


def test_alibi_learns_through_a_tensor_that_is_no_parameter():
    raw = torch.zeros(2, requires_grad=True)
    ALiBi(raw.exp())(distances(2, 2)).sum().backward()
    assert raw.grad.tolist() == [-2.0, -2.0]


def test_alibi_goes_to_the_device_of_the_distances():
    assert ALiBi.for_heads(2)(distances(3, 3).to("meta")).device.type == "meta"


def test_learned_biases_begin_with_nothing():
    assert not RelativeBias(2, max_distance=3)(distances(4, 4)).any()
    assert not BucketedBias(2)(distances(4, 4)).any()


def test_reads_well():
    assert repr(ALiBi.for_heads(2)) == "ALiBi(slopes=[0.0625, 0.003906])"
    assert repr(ALiBi(torch.nn.Parameter(torch.ones(1)))) == "ALiBi(slopes=[1], learned)"
    assert repr(ALiBi.for_heads(2).to("meta")) == "ALiBi(heads=2)"
    assert repr(RelativeBias(2, max_distance=3)) == "RelativeBias(heads=2, max_distance=3)"
    assert "num_buckets=32, max_distance=128, bidirectional=True" in repr(BucketedBias(2))


AT = distances(2, 2)
WRONG = {
    "no heads": (lambda: ALiBi.for_heads(0), ["`heads`", "at least 1", "0"]),
    "half a head": (lambda: ALiBi.for_heads(2.5), ["`heads`", "integer", "2.5"]),
    "no slopes": (lambda: ALiBi([]), ["`slopes`", "(0,)", "for_heads"]),
    "one slope": (lambda: ALiBi(0.5), ["`slopes`", "for each head", "0.5"]),
    "slopes in a matrix": (lambda: ALiBi(torch.ones(2, 2)), ["`slopes`", "(heads,)", "(2, 2)"]),
    "whole slopes": (lambda: ALiBi(torch.tensor([1, 2])), ["`slopes`", "floats", "int64"]),
    "no slope at all": (lambda: ALiBi([float("inf")]), ["`slopes`", "finite", "inf"]),
    "negative limit": (lambda: RelativeBias(2, max_distance=-1), ["`max_distance`", "at least 0", "-1"]),
    "relative heads": (lambda: RelativeBias(0, max_distance=2), ["`heads`"]),
    "bucketed heads": (lambda: BucketedBias(0), ["`heads`"]),
    "too few buckets": (lambda: BucketedBias(2, num_buckets=2), ["`num_buckets`", "at least 4", "2"]),
    "too few one way": (lambda: BucketedBias(2, num_buckets=1, bidirectional=False), ["`num_buckets`", "at least 2"]),
    "odd buckets": (lambda: BucketedBias(2, num_buckets=7), ["`num_buckets`", "even", "7", "bidirectional=False"]),
    "too near": (lambda: BucketedBias(2, max_distance=8), ["`max_distance`", "at least 9", "8", "fewer buckets"]),
    "float distances": (lambda: ALiBi.for_heads(2)(AT.float()), ["`distance`", "int64", "float32"]),
    "short distances": (lambda: RelativeBias(2, max_distance=1)(AT.to(torch.int8)), ["`distance`", "int32", "int8"]),
    "one distance": (lambda: BucketedBias(2)(AT[0]), ["`distance`", "(Q, K)", "(2,)"]),
    "heads in the distances": (lambda: ALiBi.for_heads(2)(AT.expand(3, 2, 2)), ["`distance`", "(3, 2, 2)", "leave 1"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_named(case):
    assert_named(*WRONG[case])


def test_a_bias_without_a_rule_cannot_be_made():
    with pytest.raises(TypeError, match="forward"):
        Bias()


def test_old_names_of_arguments_still_work():
    with pytest.warns(FutureWarning, match="max_distance"):
        assert RelativeBias(2, limit=3).max_distance == 3
    with pytest.warns(FutureWarning, match="num_buckets|bidirectional"):
        old = BucketedBias(2, buckets=8, both_ways=False)
    assert (old.num_buckets, old.bidirectional) == (8, False)
