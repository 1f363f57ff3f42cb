"""The problem: sizes, grouped heads, and what kernels may ask of it."""

import pytest
import torch
from problems import assert_close, normal

import regard
from regard.attention.mask import BoolMask
from regard.attention.problem import AttentionProblem, build_problem


def stated(*tensors, **options) -> AttentionProblem:
    return build_problem(*tensors,
                         **{"score": "dot", "normalize": "softmax", "mask": None, "bias": None, "dropout": 0.0,
                                      **options})


@pytest.mark.parametrize(("query", "key", "value", "leading"), [
    ((3, 8), (5, 8), (5, 6), ()),
    ((4, 3, 8), (4, 5, 8), (4, 5, 6), (4,)),
    ((4, 3, 8), (2, 5, 8), (1, 5, 6), (4,)),
    ((3, 8), (4, 5, 8), (4, 5, 6), (4,)),
    ((1, 3, 8), (4, 5, 8), (1, 5, 6), (4,)),
    ((2, 4, 3, 8), (5, 8), (5, 6), (2, 4)),
    ((2, 4, 3, 8), (1, 2, 5, 8), (2, 2, 5, 6), (2, 4)),
    ((7, 1, 4, 3, 8), (2, 4, 5, 8), (1, 1, 1, 5, 6), (7, 2, 4)),
    ((0, 4, 3, 8), (1, 4, 5, 8), (0, 4, 5, 6), (0, 4)),
])
def test_the_leading_dimensions(query, key, value, leading):
    problem = stated(torch.zeros(query), torch.zeros(key), torch.zeros(value))
    assert problem.leading == leading
    assert (problem.n_queries, problem.n_keys) == (3, 5)
    assert problem.n_pairs == torch.Size(leading).numel() * 15
    for backend in ("exact", "tiled", "sdpa"):
        output = regard.attend(problem.query, problem.key, problem.value, backend=backend)
        assert output.shape == (*leading, 3, value[-1])


def test_a_group_of_heads_reads_one_key_head():
    """Query head h reads key head h // (heads / own): 0 0 0 1 1 1."""
    key = torch.arange(2.0).view(2, 1, 1).expand(2, 5, 8)
    spread = stated(torch.zeros(6, 3, 8), key, key).repeat_key_heads()
    assert spread.key.shape == (6, 5, 8)
    assert spread.key[:, 0, 0].tolist() == [0, 0, 0, 1, 1, 1]
    assert spread.value[:, 0, 0].tolist() == [0, 0, 0, 1, 1, 1]
    one = stated(torch.zeros(6, 3, 8), key[:1], key[:1])
    assert one.repeat_key_heads().key.shape == (1, 5, 8)  # broadcasting does the rest


def test_the_bias_of_a_block():
    bias = normal(4, 3, 5)
    problem = stated(*(torch.zeros(4, n, 8, dtype=torch.float64) for n in (3, 5, 5)), bias=bias)
    place = problem.indices(slice(1, 3), slice(2, 5))
    assert torch.equal(problem.block_bias(place), bias[:, 1:, 2:])
    alibi = regard.ALiBi([0.5, 0.25, 0.1, 1.0])
    problem = stated(torch.zeros(4, 3, 8), torch.zeros(4, 5, 8), torch.zeros(4, 5, 6), bias=alibi)
    want = [[-0.25 * abs(j - (i + 2)) for j in range(2, 5)] for i in range(1, 3)]
    assert_close(problem.block_bias(place)[1], torch.tensor(want), tolerance=1e-6)
    assert problem.block_bias(place).shape == (4, 2, 3)


def test_a_bias_follows_where_the_mask_puts_the_queries():
    alibi = regard.ALiBi([1.0])
    tensors = [torch.zeros(2, 1, n, 4) for n in (2, 5, 5)]
    problem = stated(*tensors, bias=alibi, mask=regard.Placed([0, 3]) & regard.Causal())
    added = problem.block_bias(problem.indices())
    assert added[0, 0].tolist() == [[0, -1, -2, -3, -4], [-1, 0, -1, -2, -3]]
    assert added[1, 0].tolist() == [[-3, -2, -1, 0, -1], [-4, -3, -2, -1, 0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_a_bias_takes_the_precision_of_the_query(dtype):
    tensors = [torch.zeros(2, n, 4, dtype=dtype) for n in (3, 5, 5)]
    for bias in (torch.zeros(3, 5), regard.ALiBi.for_heads(2), regard.RelativeBias(2, max_distance=1)):
        problem = stated(*tensors, bias=bias)
        assert problem.block_bias(problem.indices()).dtype == dtype
        assert regard.attend(*tensors, bias=bias).dtype == dtype


def test_nothing_is_allowed_or_added_where_nothing_is_said():
    problem = stated(torch.zeros(3, 2), torch.zeros(5, 2), torch.zeros(5, 2))
    assert problem.mask is None
    assert problem.allowed(problem.indices()) is None
    assert problem.block_bias(problem.indices()) is None


def test_a_tensor_becomes_a_mask_and_a_vector_a_matrix():
    problem = stated(torch.zeros(3, 2), torch.zeros(5, 2), torch.zeros(5, 2), mask=torch.ones(5, dtype=torch.bool),
                     bias=torch.zeros(5))
    assert isinstance(problem.mask, BoolMask)
    assert problem.allowed(problem.indices()).shape == (1, 5)
    assert problem.block_bias(problem.indices()).shape == (1, 5)


@pytest.mark.gpu
def test_masks_and_biases_are_moved_to_the_device_of_the_query():
    tensors = [normal(2, n, 4).cuda() for n in (3, 5, 5)]
    for mask in (regard.Padding([1, 2]), regard.Packed([1, 2]), torch.ones(3, 5, dtype=torch.bool), regard.Placed(1)):
        output = regard.attend(*tensors, mask=mask & regard.Causal(), bias=torch.zeros(3, 5))
        assert output.device.type == "cuda"
        again = regard.attend(*(t.cpu() for t in tensors), mask=mask & regard.Causal())
        assert_close(output, again)
