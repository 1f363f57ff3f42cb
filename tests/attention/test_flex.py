"""`flex`: a mask asked about one pair at a time is the mask; on CUDA, the same answers as the oracle.

The rule that the compiled kernel reads is plain torch: it is checked here pair by pair, on any machine.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from problems import Known, masks, normal, per_sequence, scorer

import regard
from regard.attention import fused
from regard.attention.fused import FLEX
from regard.attention.problem import build_problem
from regard.reference import attention as oracle

# torch's compiler warns about torch itself on some versions.
pytestmark = [pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("DeprecationWarning", "UserWarning")]


def stated(query, key, value, **options):
    return build_problem(query, key, value,
                         **{"score": "scaled_dot", "normalize": "softmax", "mask": None, "bias": None,
                                               "dropout": 0.0, **options})


def asked_pair_by_pair(mask, leading, n_queries, n_keys):
    """The matrix (batch, heads, queries, keys) that the rule of the kernel gives, one number at a time."""
    tensors = [torch.zeros(*leading, n, 1) for n in (n_queries, n_keys, n_keys)]
    rule = fused._mask_mod(stated(*tensors, mask=mask))
    batch, heads = (1,) * (2 - len(leading)) + leading
    matrix = np.zeros((batch, heads, n_queries, n_keys), dtype=bool)
    for index in np.ndindex(matrix.shape):
        answer = rule(*(torch.tensor(i) for i in index))
        assert answer.shape == ()
        matrix[index] = bool(answer)
    return matrix


def broadcast(known: Known, leading, n_queries, n_keys):
    matrix = np.broadcast_to(known.matrix, (*leading, n_queries, n_keys))
    return matrix.reshape((1,) * (2 - len(leading)) + matrix.shape)


@given(st.data(), st.sampled_from(((), (2,), (1, 2), (2, 2))), st.integers(1, 4), st.integers(1, 4))
@settings(suppress_health_check=list(HealthCheck))
def test_a_mask_asked_about_one_pair_is_the_mask(data, leading, n_queries, n_keys):
    known = data.draw(masks(leading, n_queries, n_keys))
    got = asked_pair_by_pair(known.mask, leading, n_queries, n_keys)
    assert np.array_equal(got, broadcast(known, leading, n_queries, n_keys))


@pytest.mark.parametrize(("leading", "lengths"), [
    ((2, 3), [1, 3]), ((2, 3), [2]), ((2, 3), [[1, 2, 3], [0, 1, 2]]), ((2, 3), [[1], [3]]), ((2, 3), [[1, 2, 3]]),
    ((3,), [1, 2, 3]), ((3,), [2]), ((2, 3), 2), ((), 2),
], ids=str)
def test_lengths_of_any_shape_mean_what_they_mean_elsewhere(leading, lengths):
    """One for all, one a sequence, one a head; where there is no batch, the first dimension is heads."""
    numbers = np.array(lengths)
    size = (2, 3)
    padding = Known(regard.Padding(torch.tensor(lengths)),
                    per_sequence(numbers, len(leading), lambda n: oracle.padding([n], *size, "right")[0]))
    placed = Known(regard.Causal() & regard.Placed(torch.tensor(lengths)),
                   per_sequence(numbers, len(leading), lambda s: oracle.placed_causal(s, *size)))
    for known in (padding, placed):
        assert np.array_equal(asked_pair_by_pair(known.mask, leading, *size), broadcast(known, leading, *size))


def test_what_it_refuses():
    tensors = [torch.zeros(2, 4, n, 8) for n in (3, 5, 5)]
    assert "CUDA" in FLEX.refusal(stated(*tensors))
    assert "softmax" in FLEX.refusal(stated(*tensors, normalize="relu"))
    assert "dot products" in FLEX.refusal(stated(*tensors, score=regard.Additive(torch.zeros(8))))


@pytest.mark.gpu
def test_what_it_refuses_on_cuda():
    def reason(leading=(2, 4), n=(3, 5), dtype=torch.float32, **options):
        query, key = (torch.zeros(*leading, m, 8, device="cuda", dtype=dtype) for m in n)
        return FLEX.refusal(stated(query, key, key, **options))

    assert reason() is None
    assert "bias" in reason(bias=torch.zeros(5, device="cuda"))
    assert "dropout" in reason(dropout=0.1)
    assert "float64" in reason(dtype=torch.float64)
    assert "leading" in reason(leading=(2, 2, 4))
    assert "no queries or no keys" in reason(n=(0, 5))
    assert "no queries or no keys" in reason(n=(3, 0))


def test_where_it_is_not_the_one_to_choose():
    few, many = ([torch.zeros(1, 1).expand(n, 8)] * 3 for n in (fused.FLEX_MIN_KEYS - 1, fused.FLEX_MIN_KEYS))
    assert "no mask" in FLEX.drawback(stated(*many))
    assert f"{fused.FLEX_MIN_KEYS:,} keys" in FLEX.drawback(stated(*few, mask=regard.Causal()))
    assert FLEX.drawback(stated(*many, mask=regard.Causal())) is None


# ---- on a GPU --------------------------------------------------------------------------------------------------------

N = 150  # more than one block of 128, and no multiple of it
FULL = {
    "none": (None, np.ones((N, N), dtype=bool)),
    "causal": (regard.Causal(), oracle.causal(N, N)),
    "window": (regard.Window(20, 3), oracle.window(N, N, 20, 3)),
    "padding": (regard.Padding([100, 0]), oracle.padding([100, 0], N, N, "right")[:, None]),
    "left padding": (regard.Padding([100, 7], side="left") & regard.Causal(),
                     (oracle.padding([100, 7], N, N, "left") & oracle.causal(N, N))[:, None]),
    "packed": (regard.Packed([60, 0, 50]) & regard.Causal(), oracle.packed_causal([60, 0, 50], None, N, N)),
    "one length": (regard.Padding([90]), oracle.padding([90], N, N, "right")[:, None]),
    "tensor": (torch.tensor(oracle.window(N, N, 9, 30))[None], oracle.window(N, N, 9, 30)),
    "either": (~regard.Causal() | regard.Window(3, 0), ~oracle.causal(N, N) | oracle.window(N, N, 3, 0)),
}


def answered(query, key, value, allowed):
    """Attention in float64 with torch's plain operators: the oracle's loops would take minutes at this size."""
    query, key, value = (t.double() for t in (query, key, value))
    groups = query.shape[1] // key.shape[1]
    key, value = (t.repeat_interleave(groups, dim=1) for t in (key, value))
    scores = (query @ key.mT / math.sqrt(query.shape[-1])).masked_fill(~allowed, -torch.inf)
    return torch.softmax(scores, -1).nan_to_num() @ value


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mask", FULL)
def test_output_and_gradients_on_cuda(mask, dtype):
    given_mask, matrix = FULL[mask]
    sizes = ((2, 4, N, 32), (2, 2, N, 32), (2, 2, N, 16))
    tensors = [normal(*size, seed=i).to("cuda", dtype).requires_grad_() for i, size in enumerate(sizes)]
    allowed = torch.tensor(np.broadcast_to(matrix, (2, 4, N, N)).copy(), device="cuda")
    output = regard.attend(*tensors, mask=given_mask, backend="flex")
    truth = answered(*tensors, allowed)
    weight = normal(*output.shape, seed=8).cuda()
    tolerance = 2e-5 if dtype == torch.float32 else 3e-2  # float32 may use tf32-like products inside of triton
    assert output.dtype == dtype
    assert (output.double() - truth).abs().max() <= tolerance * truth.abs().max()
    assert (output[~allowed.any(-1)] == 0).all()
    got, want = (torch.autograd.grad((y.double() * weight).sum(), tensors) for y in (output, truth))
    for one, other in zip(got, want, strict=True):
        assert (one.double() - other.double()).abs().max() <= 10 * tolerance * other.abs().max()


@pytest.mark.gpu
@pytest.mark.parametrize("garbage", [math.nan, math.inf, 1e30])
def test_garbage_that_nobody_sees_on_cuda(garbage):
    found = []
    for filler in (0.0, garbage):
        tensors = [normal(2, 2, N, 16, seed=i).float().cuda() for i in range(3)]
        for tensor in tensors[1:]:
            tensor[0, :, 100:] = filler
        leaves = [tensor.requires_grad_() for tensor in tensors]
        output = regard.attend(*leaves, mask=regard.Padding([100, N]), backend="flex")
        found.append((output, *torch.autograd.grad(output.square().sum(), leaves)))
    for clean, dirty in zip(*found, strict=True):
        assert torch.equal(clean, dirty)


@pytest.mark.gpu
def test_bilinear_scores_and_two_dimensions_on_cuda():
    query, key, value = (normal(n, 16, seed=i).float().cuda() for i, n in enumerate((70, N, N)))
    score = regard.Bilinear(scorer("bilinear", None, 16)[0].weight.detach().float().cuda())
    for mask in (None, regard.Causal(), regard.Padding(3)):
        flexed, exact = (regard.attend(query, key, value, score=score, mask=mask, backend=backend)
                         for backend in ("flex", "exact"))
        torch.testing.assert_close(flexed, exact, rtol=2e-3, atol=2e-3)


@pytest.mark.gpu
def test_long_sequences_with_a_window_are_its_work():
    tensors = [torch.zeros(1, 1, 20_000, 16, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    assert regard.explain(*tensors, mask=regard.Window(64, 0)).backend == "flex"
