"""`sdpa`: what it refuses, the form it gives to torch's kernels, and which of them it names."""

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from problems import SCORES, assert_close, cases, normal, normalizer, scorer
from torch.nn.attention import SDPBackend
from torch.nn.functional import scaled_dot_product_attention

import regard
from regard.attention import fused
from regard.attention.fused import SDPA
from regard.attention.problem import build_problem


def stated(*tensors, **options):
    return build_problem(*tensors, **{"score": "scaled_dot", "normalize": "softmax", "mask": None, "bias": None, "dropout": 0.0,
                              **options})


def zeros(n_queries=3, n_keys=5, leading=(2, 4)):
    return [torch.zeros(1, 1, dtype=torch.float64).expand(*leading, n, 8) for n in (n_queries, n_keys, n_keys)]


@pytest.mark.parametrize("normalize", ["softmax", "relu", "sigmoid", "sparsemax"])
@pytest.mark.parametrize("name", SCORES)
def test_it_takes_dot_products_under_softmax_alone(name, normalize):
    score = scorer(name, 4, 8)[0]
    reason = SDPA.refusal(stated(*zeros(), score=score, normalize=normalizer(normalize)))
    able = normalize == "softmax" and ("dot" in name or "bilinear" in name)
    assert (reason is None) == able
    if reason is not None:
        assert ("normalise by softmax" in reason) == (normalize != "softmax")
        assert "dot products" in reason or normalize != "softmax"


@given(cases(most=5))
@settings(suppress_health_check=list(HealthCheck))
def test_the_form_has_four_dimensions_one_width_and_heads_that_divide(case):
    assume(case.dotted)
    problem = build_problem(*case.tensors, **case.options, dropout=0.0)
    form = fused.sdpa_inputs(problem)
    batch, heads, _, width = form.query.shape
    assert form.key.shape[::3] == form.value.shape[::3] == (batch, width)
    assert form.key.shape[1] == form.value.shape[1]
    assert heads % form.key.shape[1] == 0
    if form.matrix is not None:
        torch.broadcast_to(form.matrix, (batch, heads, problem.n_queries, problem.n_keys))
        full = form.matrix if form.matrix.dtype == torch.bool else form.matrix != -torch.inf
        assert not form.causal
        if problem.n_keys:
            assert full.any(-1).all()  # no row forbids everything: torch's kernels disagree on those


@pytest.mark.parametrize(("n_queries", "n_keys", "causal", "matrix"), [
    (5, 5, True, False), (1, 5, False, False), (1, 1, False, False), (3, 5, False, True), (5, 3, False, True),
])
def test_causal_is_said_in_torchs_own_way_only_where_it_means_the_same(n_queries, n_keys, causal, matrix):
    form = fused.sdpa_inputs(stated(*zeros(n_queries, n_keys), mask=regard.Causal()))
    assert form.causal is causal
    assert (form.matrix is not None) == matrix


def test_torch_aligns_to_the_top_left_and_we_do_not():
    """Should torch ever change its mind, this says so first."""
    query, key = normal(1, 1, 2, 4), normal(1, 1, 5, 4, seed=1)
    torchs = scaled_dot_product_attention(query, key, key, is_causal=True)
    assert torch.allclose(torchs[..., 0, :], key[..., 0, :])
    assert not torch.allclose(torchs, regard.attend(query, key, key, mask=regard.Causal(), backend="sdpa"))


def test_a_large_matrix_is_a_drawback():
    side = int(fused.MAX_MATRIX_ENTRIES**0.5)
    large = zeros(side + 1, side + 2, leading=(2, 4))
    assert SDPA.drawback(stated(*large)) is None
    assert SDPA.drawback(stated(*zeros(side + 1, side + 1), mask=regard.Causal())) is None  # needs no matrix
    for options in ({"mask": regard.Causal()}, {"mask": regard.Window(5, 5)}, {"bias": regard.ALiBi.for_heads(4)}):
        assert "more than" in SDPA.drawback(stated(*large, **options))
    fits = zeros(side // 2, side // 2)
    assert SDPA.drawback(stated(*fits, mask=regard.Window(1, 1))) is None
    assert SDPA.drawback(stated(*fits, mask=regard.Padding([3, 4]))) is None
    a_head = regard.Window(1, 1) & regard.Padding([[3] * 4] * 2)  # one matrix a head: 8 quarters
    assert SDPA.drawback(stated(*fits, mask=a_head)) is not None


def test_on_a_cpu_torch_chooses():
    assert fused.sdpa_kernels(stated(*(t.bfloat16() for t in zeros()))) == []
    assert SDPA.detail(stated(*zeros())) == "the kernel that torch chooses"


@pytest.mark.gpu
def test_on_hopper_the_fastest_is_tried_first():
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("not a Hopper GPU")
    low = [torch.zeros(2, 4, 512, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    assert fused.sdpa_kernels(stated(*low))[0] == SDPBackend.CUDNN_ATTENTION
    assert set(fused.sdpa_kernels(stated(*low))) >= {SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH}  # one of them takes it
    assert fused.sdpa_kernels(stated(*low, dropout=0.1)) == []
    assert fused.sdpa_kernels(stated(*(t.float() for t in low))) == []


@pytest.mark.parametrize("width", [1, 3, 8])
@pytest.mark.parametrize("value_width", [1, 3, 8])
def test_widths_need_not_agree(width, value_width):
    """Zeros make them agree; the scale is that of the query's own width."""
    query, key, value = normal(4, width), normal(6, width, seed=1), normal(6, value_width, seed=2)
    got = regard.attend(query, key, value, backend="sdpa")
    assert got.shape == (4, value_width)
    assert_close(got, torch.softmax(query @ key.T / width**0.5, -1) @ value)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(7,), (1, 7), (5, 7), (4, 1, 7), (), (1,), (5, 1), (4, 5, 1), (2, 1, 5, 1),
                                   (2, 4, 1, 1)], ids=str)
def test_masks_and_biases_of_any_broadcast_shape(shape, dtype, device):
    """torch's fused kernels do not take a last dimension that is broadcast: it is written out for them."""
    query, key, value = (normal(2, 4, n, 8, seed=i).to(device, dtype).requires_grad_() for i, n in enumerate((5, 7, 7)))
    numbers = normal(*shape, seed=4)
    for options in ({"mask": numbers > -0.5}, {"bias": numbers.to(dtype)}, {"mask": numbers > -0.5, "bias": numbers}):
        options = {name: tensor.to(device) for name, tensor in options.items()}
        fused, exact = (regard.attend(query, key, value, **options, backend=backend) for backend in ("sdpa", "exact"))
        tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
        torch.testing.assert_close(fused, exact, rtol=tolerance, atol=tolerance)
        gradients = (torch.autograd.grad(y.sum(), (query, key, value)) for y in (fused, exact))
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=tolerance, atol=4 * tolerance)
