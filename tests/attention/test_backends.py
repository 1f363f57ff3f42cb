"""Which backend is chosen, and the backends `exact`, `tiled` and `sdpa`."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from problems import SCORES, assert_close, cases, held, masks, nearness, normal, normalizer, scorer
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from regard.attention import backends, fused
from regard.attention.backends import EXACT, EXACT_MAX_NUMBERS, TILED, exact_weights
from regard.attention.fused import SDPA
from regard.attention.mask import as_mask
from regard.attention.problem import build_problem
from regard.checks import plural
from regard.reference import attention as oracle

ADDITIVE = regard.Additive(torch.zeros(64))


def tensors(length, width=64, leading=(), device=None):
    """Tensors of any size that take no memory."""
    return [torch.empty(1, 1, device=device).expand(*leading, length, width) for _ in range(3)]


@pytest.mark.parametrize(("length", "options", "backend"), [
    (16, {}, "sdpa"), (16, {"mask": regard.Causal()}, "sdpa"), (16, {"score": "dot"}, "sdpa"),
    (16, {"score": regard.Bilinear(torch.zeros(64, 64))}, "sdpa"), (16, {"bias": torch.zeros(16)}, "sdpa"),
    (16, {"dropout": 0.1}, "sdpa"), (100_000, {}, "sdpa"), (100_000, {"mask": regard.Causal()}, "sdpa"),
    (16, {"score": ADDITIVE}, "exact"), (16, {"normalize": "relu"}, "exact"),
    (16, {"normalize": torch.sigmoid}, "exact"),
    (2_000, {"score": ADDITIVE}, "tiled"), (20_000, {"normalize": "sigmoid"}, "tiled"),
    (20_000, {"mask": regard.Window(5, 5)}, "tiled"),  # on a CPU; the matrix would be too large for sdpa
])
def test_the_backend_that_is_chosen(length, options, backend):
    explanation = regard.explain(*tensors(length), **options)
    assert explanation.backend == backend
    before = list(backends.BACKENDS)[: list(backends.BACKENDS).index(backend)]
    assert list(explanation.reasons) == before
    assert all(explanation.reasons.values())


def test_the_reasons_are_the_right_ones():
    reasons = regard.explain(*tensors(2_000), score=ADDITIVE).reasons
    assert "dot products" in reasons["sdpa"]
    assert "Additive" in reasons["sdpa"]
    assert f"{2_000 * 2_000 * 64:,} numbers" in reasons["exact"]
    reasons = regard.explain(*tensors(20_000), mask=regard.Window(5, 5)).reasons
    assert f"{20_000**2:,} entries" in reasons["sdpa"]
    assert "CUDA" in reasons["flex"]
    assert "softmax, not relu" in regard.explain(*tensors(16), normalize="relu").reasons["sdpa"]


def test_the_words():
    text = str(regard.explain(*tensors(16), normalize="relu"))
    first, *others = text.splitlines()
    assert first == "exact runs: the whole 16 × 16 matrix of weights at once."
    assert [line.split(" does not run: ")[0] for line in others] == ["sdpa", "shared_bias", "flex", "pointwise",
                                                                     "agents"]
    assert all(line.endswith(".") for line in text.splitlines())


def test_a_backend_that_is_asked_for_runs_and_the_others_say_so():
    explanation = regard.explain(*tensors(16), backend="tiled")
    assert explanation.backend == "tiled"
    assert explanation.reasons["sdpa"] == '"tiled" was requested'
    assert explanation.reasons["exact"] == '"tiled" was requested'
    assert "CUDA" in explanation.reasons["flex"]
    assert regard.explain(*tensors(16), backend="sdpa").reasons == {}


@pytest.mark.parametrize("backend", ["exact", "tiled", "sdpa"])
def test_the_backend_that_is_named_is_the_one_that_runs(backend, monkeypatch):
    """Each other one would raise."""
    def refuse(problem):
        raise AssertionError("another backend ran")

    for name, module in backends.BACKENDS.items():
        if name != backend:
            monkeypatch.setattr(module, "run", refuse)
    given = [normal(4, 3, seed=i) for i in range(3)]
    assert regard.attend(*given, backend=backend).shape == (4, 3)
    assert regard.explain(*given, backend=backend).backend == backend


@pytest.mark.parametrize(("options", "backend"), [
    ({"score": ADDITIVE}, "sdpa"), ({"normalize": "relu"}, "sdpa"), ({}, "flex"), ({"score": ADDITIVE}, "flex"),
])
def test_a_backend_that_cannot_is_an_error_and_never_another_backend(options, backend, monkeypatch):
    for module in backends.BACKENDS.values():
        monkeypatch.setattr(module, "run", lambda problem: pytest.fail("something ran"))
    words = f'`backend` must be .*"{backend}" instead. .*(dot|softmax|CUDA)'
    for ask in (regard.attend, regard.explain):
        with pytest.raises(ValueError, match=words):
            ask(*tensors(16), backend=backend, **options)


def test_the_last_backend_takes_everything():
    *_, last = backends.BACKENDS
    assert last == "tiled"
    for options in ({}, {"score": ADDITIVE, "normalize": torch.relu, "dropout": 0.5}):
        assert regard.explain(*tensors(100_000), **options, backend="tiled").backend == "tiled"


def problem_of_sizes(n_queries, n_keys, width, score="dot", leading=()):
    query, key = (torch.empty(1, 1).expand(*leading, n, width) for n in (n_queries, n_keys))
    return build_problem(query, key, key, score=score, normalize="softmax", mask=None, bias=None, dropout=0.0)


def test_it_holds_at_most_so_many_numbers():
    side = int(EXACT_MAX_NUMBERS**0.5)
    assert EXACT.drawback(problem_of_sizes(side, side, 64)) is None
    assert f"{(side + 2) * side:,}" in EXACT.drawback(problem_of_sizes(side + 2, side, 64))
    assert EXACT.drawback(problem_of_sizes(side // 2, side // 2, 64, leading=(2, 2))) is None
    assert EXACT.drawback(problem_of_sizes(side // 2, side // 2, 64, leading=(2, 3))) is not None
    # An additive score holds a vector for every pair.
    additive = regard.Additive(torch.zeros(64))
    assert EXACT.drawback(problem_of_sizes(side // 8, side // 8, 64, score=additive)) is None
    assert EXACT.drawback(problem_of_sizes(side // 4, side // 4, 64, score=additive)) is not None


def test_it_refuses_nothing_and_says_what_it_does():
    problem = problem_of_sizes(3, 5, 4, score=scorer("module", None, 4)[0])
    assert EXACT.refusal(problem) is None
    assert "3 × 5" in EXACT.detail(problem)


def test_output_and_weights_are_the_oracles():
    query, key, value = normal(2, 4, 3, 5), normal(2, 2, 6, 5, seed=1), normal(2, 2, 6, 2, seed=2)
    problem = build_problem(query, key, value, score="scaled_dot", normalize="relu_sum", mask=regard.Causal(),
                            bias=None,
                            dropout=0.0)
    known = {"normalize": oracle.relu_sum, "mask": oracle.causal(3, 6)}
    assert_close(EXACT.run(problem), oracle.attend_many(query, key, value, **known))
    assert_close(exact_weights(problem), oracle.weights_many(query, key, **known))


def problem_of_case(case):
    return build_problem(*case.tensors, **case.options, dropout=0.0).repeat_key_heads()


@pytest.mark.thorough
@given(st.data(), cases(most=6))
@settings(suppress_health_check=list(HealthCheck))
def test_some_rows_are_cut_from_all_rows(data, case):
    problem, whole = problem_of_case(case), case.weights()
    n_queries, n_keys = problem.n_queries, problem.n_keys
    first = data.draw(st.integers(0, n_queries))
    last = data.draw(st.integers(first, n_queries))
    weights, value = backends.weigh(problem, slice(first, last), slice(0, n_keys))
    want, floor = whole[..., first:last, :], float(np.abs(whole).max(initial=0))
    assert_close(weights.expand(want.shape), want, floor=floor)
    assert value.shape[-2] == n_keys
    numbers = data.draw(st.lists(st.integers(0, n_queries - 1), max_size=4)) if n_queries else []
    some = torch.tensor(numbers, dtype=torch.long)
    weights, _ = backends.weigh(problem, some, slice(0, n_keys))
    want = whole[..., some.numpy(), :]
    assert_close(weights.expand(want.shape), want, floor=floor)


def test_queries_may_be_cut_out_by_the_caller():
    query, key = normal(2, 5, 3), normal(2, 6, 3, seed=1)
    problem = build_problem(query, key, key, score="dot", normalize="softmax", mask=regard.Causal(), bias=None,
                            dropout=0.0)
    asked, given_query = slice(1, 3), query[:, 1:3]
    cut, _ = backends.weigh(problem, asked, slice(0, 6))
    assert torch.equal(cut, backends.weigh(problem, asked, slice(0, 6), given_query)[0])
    other, _ = backends.weigh(problem, asked, slice(0, 6), torch.zeros_like(given_query))
    assert not torch.equal(cut, other)


def test_a_run_of_keys_that_holds_all_that_may_be_seen_is_enough():
    query, key = normal(2, 6, 3), normal(2, 6, 3, seed=1)
    for normalize in ("softmax", "relu", "relu_sum", "sigmoid"):
        problem = build_problem(query, key, key, score="dot", normalize=normalize, mask=regard.Window(1, 0), bias=None,
                                dropout=0.0)
        whole, _ = backends.weigh(problem, slice(2, 4), slice(0, 6))
        near, value = backends.weigh(problem, slice(2, 4), slice(1, 4))
        assert_close(near, whole[..., 1:4])
        assert_close(backends._attend_rows(problem, slice(2, 4), slice(1, 4)), near @ value)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_dropout_falls_on_weights(dropout):
    query = normal(40, 3)
    eye = torch.eye(40, dtype=torch.float64)
    problem = build_problem(query, query, eye, score="dot", normalize="softmax", mask=None, bias=None, dropout=dropout)
    output = backends._attend_rows(problem, slice(0, 40), slice(0, 40))
    assert (output == 0).double().mean().item() == pytest.approx(dropout, abs=0.1)


def problem_of_tensors(query, key, value, **options):
    return build_problem(query, key, value, **{"score": "dot", "normalize": "softmax", "mask": None, "bias": None,
                                               "dropout": 0.0, **options})


@given(st.data(), st.integers(0, 9), st.integers(0, 9), st.integers(1, 10))
@settings(suppress_health_check=list(HealthCheck))
def test_blocks_cover_every_row_once_and_every_pair_that_counts(data, n_queries, n_keys, size):
    known = data.draw(masks((2,), n_queries, n_keys))
    problem = problem_of_tensors(*(torch.zeros(2, n, 1) for n in (n_queries, n_keys, n_keys)), mask=known.mask)
    blocks = list(problem.row_blocks(size))
    assert [row for rows, _ in blocks for row in range(rows.start, rows.stop)] == list(range(n_queries))
    assert all(rows.stop - rows.start <= size for rows, _ in blocks)
    matrix = as_mask(known.mask).matrix(n_queries, n_keys, leading=1)
    for rows, columns in blocks:
        seen = matrix[..., rows, :].sum()
        assert matrix[..., rows, columns].sum() == seen


@pytest.mark.parametrize(("numbers", "score", "size"), [
    (1, "dot", 1), (60, "dot", 3), (79, "dot", 3), (80, "dot", 4), (1 << 21, "dot", 7),
    (100, nearness, 1), (240, nearness, 3), (60, regard.Additive(torch.zeros(4)), 3),
])
def test_how_many_rows_a_block_has(numbers, score, size):
    """7 queries against 5 keys in 4 heads: a row holds 20 numbers, or 80 where every pair holds a vector of 4.

    Additive scores hold no such vector here.
    """
    problem = problem_of_tensors(torch.zeros(2, 2, 7, 4), torch.zeros(2, 2, 5, 4), torch.zeros(2, 2, 5, 4), score=score)
    with held(numbers):
        assert f"{plural(size, 'row')} at a time" in TILED.detail(problem)


def test_it_takes_everything():
    problem = problem_of_tensors(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, 3), score=lambda q, k: q @ k.mT,
                                 dropout=0.5)
    assert TILED.refusal(problem) is None
    assert TILED.drawback(problem) is None


@pytest.mark.parametrize("numbers", [1, 9, 10, 40, 1 << 20])
@pytest.mark.parametrize("grad", [False, True])
def test_any_number_of_blocks_gives_the_same(numbers, grad):
    tensors = [normal(2, n, 3, seed=n).requires_grad_(grad) for n in (7, 8, 8)]
    options = {"score": regard.Additive(normal(3, seed=4)), "mask": regard.Causal() & regard.Window(3, None)}
    want = regard.attend(*tensors, **options, backend="exact")
    with held(numbers):
        assert_close(regard.attend(*tensors, **options, backend="tiled"), want)


class Largest(TorchDispatchMode):
    """Remembers the most numbers that any tensor had, whatever operator made it."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.numbers = max(self.numbers, tensor.untyped_storage().nbytes() // tensor.element_size())
        return result


def measured(backend, length, width):
    """The largest tensor of a forward and a backward pass, and all that was kept between the two."""
    tensors = [normal(length, width, seed=i).float().requires_grad_() for i in range(3)]
    weight = normal(width, seed=4).float().requires_grad_()
    kept = []

    def keep(tensor):
        kept.append(tensor.numel())
        return tensor

    with Largest() as largest, saved_tensors_hooks(keep, lambda tensor: tensor):
        output = regard.attend(*tensors, score=regard.Additive(weight), mask=regard.Causal(), backend=backend)
        output.sum().backward()
    assert weight.grad.abs().sum() > 0
    return largest.numbers, sum(kept)


@pytest.mark.thorough
def test_memory_grows_with_the_length_and_not_with_its_square():
    length, width = 1024, 32
    largest, kept = measured("tiled", length, width)
    assert largest <= backends.TILE_NUMBERS_CPU + 8 * length * width  # a block, and tensors like the query
    assert kept <= 40 * length * width
    # That the measurement can see it: on exact, both are quadratic.
    largest, kept = measured("exact", 256, width)
    assert largest >= 256 * 256 * width
    assert kept >= 256 * 256 * width


def test_without_gradients_nothing_is_kept():
    with torch.no_grad():
        output = regard.attend(*(normal(5, 3).requires_grad_() for _ in range(3)), backend="tiled")
    assert not output.requires_grad


def test_a_second_backward_pass_through_the_same_graph():
    tensors = [normal(6, 3, seed=i).requires_grad_() for i in range(3)]
    with held(9):
        output = regard.attend(*tensors, backend="tiled", mask=regard.Causal())
    first = torch.autograd.grad(output.sum(), tensors, retain_graph=True)
    second = torch.autograd.grad(output.sum(), tensors)
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


def sdpa_problem(*tensors, **options):
    return build_problem(*tensors,
                         **{"score": "scaled_dot", "normalize": "softmax", "mask": None, "bias": None, "dropout": 0.0,
                                      **options})


def zero_tensors(n_queries=3, n_keys=5, leading=(2, 4)):
    return [torch.zeros(1, 1, dtype=torch.float64).expand(*leading, n, 8) for n in (n_queries, n_keys, n_keys)]


@pytest.mark.parametrize("normalize", ["softmax", "relu", "sigmoid", "sparsemax"])
@pytest.mark.parametrize("name", SCORES)
def test_it_takes_dot_products_under_softmax_alone(name, normalize):
    score = scorer(name, 4, 8)[0]
    reason = SDPA.refusal(sdpa_problem(*zero_tensors(), score=score, normalize=normalizer(normalize)))
    able = normalize == "softmax" and ("dot" in name or "bilinear" in name)
    assert (reason is None) == able
    if reason is not None:
        assert ("computes softmax" in reason) == (normalize != "softmax")
        assert "dot products" in reason or normalize != "softmax"


@pytest.mark.thorough
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
    form = fused.sdpa_inputs(sdpa_problem(*zero_tensors(n_queries, n_keys), mask=regard.Causal()))
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
    large = zero_tensors(side + 1, side + 2, leading=(2, 4))
    assert SDPA.drawback(sdpa_problem(*large)) is None
    # needs no matrix
    assert SDPA.drawback(sdpa_problem(*zero_tensors(side + 1, side + 1), mask=regard.Causal())) is None
    for options in ({"mask": regard.Causal()}, {"mask": regard.Window(5, 5)}, {"bias": regard.ALiBi.for_heads(4)}):
        assert "more than" in SDPA.drawback(sdpa_problem(*large, **options))
    fits = zero_tensors(side // 2, side // 2)
    assert SDPA.drawback(sdpa_problem(*fits, mask=regard.Window(1, 1))) is None
    assert SDPA.drawback(sdpa_problem(*fits, mask=regard.Padding([3, 4]))) is None
    a_head = regard.Window(1, 1) & regard.Padding([[3] * 4] * 2)  # one matrix a head: 8 quarters
    assert SDPA.drawback(sdpa_problem(*fits, mask=a_head)) is not None


def test_on_a_cpu_torch_chooses():
    assert fused.sdpa_kernels(sdpa_problem(*(t.bfloat16() for t in zero_tensors()))) == []
    assert SDPA.detail(sdpa_problem(*zero_tensors())) == "the kernel that torch chooses"


@pytest.mark.gpu
def test_on_hopper_the_fastest_is_tried_first():
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("not a Hopper GPU")
    low = [torch.zeros(2, 4, 512, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    assert fused.sdpa_kernels(sdpa_problem(*low))[0] == SDPBackend.CUDNN_ATTENTION
    # one of them takes it
    assert set(fused.sdpa_kernels(sdpa_problem(*low))) >= {SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH}
    assert fused.sdpa_kernels(sdpa_problem(*low, dropout=0.1)) == []
    assert fused.sdpa_kernels(sdpa_problem(*(t.float() for t in low))) == []


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
