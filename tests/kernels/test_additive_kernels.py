"""Fused additive scores: right in every precision, at odd sizes and for large numbers, and what `tiled` makes of them.

On a CPU Triton's interpreter runs the kernels, with small blocks; on a GPU they are compiled, and the sizes are larger.
"""

import pytest
import torch
from long_form import LONG, sample
from problems import held

import regard
from regard.attention import backends
from regard.attention.problem import build_problem
from regard.attention.score import Additive

pytest.importorskip("triton")
from regard.kernels import additive as additive_kernels

pytestmark = pytest.mark.thorough

INTERPRETED = pytest.mark.skipif(not additive_kernels.INTERPRETED, reason="the kernels are compiled here")
DEVICES = [pytest.param("cpu", marks=INTERPRETED), pytest.param("cuda", marks=pytest.mark.gpu)]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = {  # query, key, weight
    "one pair": ((1, 1), (1, 1), (1,)),
    "odd sizes": ((17, 5), (33, 5), (5,)),
    "one query": ((3, 1, 18), (3, 20, 18), (18,)),
    "a weight a head": ((2, 2, 3, 4), (2, 2, 18, 4), (2, 4)),
    "queries for all": ((5, 4), (2, 3, 7, 4), (4,)),
    "keys for all": ((2, 3, 5, 17), (1, 1, 7, 17), (3, 17)),
    "no queries": ((2, 0, 4), (2, 7, 4), (4,)),
    "no keys": ((2, 5, 4), (2, 0, 4), (4,)),
    "no batch": ((0, 5, 4), (0, 3, 4), (4,)),
    "no width": ((2, 5, 0), (2, 3, 0), (0,)),
}
LONGER = {"cpu": 1, "cuda": 9}
"""How many times as many tokens there are."""


@pytest.fixture
def _fused(monkeypatch):
    """`tiled` takes the fused kernels on a CPU as well."""
    monkeypatch.setattr(backends, "_triton_takes", lambda query: True)


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch):
    """Memory that nobody has written holds NaN."""
    empty = torch.Tensor.new_empty

    def poisoned(self, *size, **options):
        made = empty(self, *size, **options)
        return made.fill_(torch.nan) if made.is_floating_point() else made

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)


def assert_bounded(scores, inputs, upstream):
    """Scores and gradients err at most twice as much as the literal score in the same precision, and a few eps."""
    dtype = inputs[0].dtype

    def results(function, given):
        e = function(*given)
        return e, *torch.autograd.grad(e, given, upstream.to(e.dtype))

    truth = results(lambda q, k, w: Additive(w)(q, k), [t.detach().double().requires_grad_() for t in inputs])
    plain = results(lambda q, k, w: Additive(w)(q, k), inputs)
    for true, literal, got in zip(truth, plain, results(scores, inputs), strict=True):
        assert got.dtype == dtype
        assert got.shape == true.shape
        if true.numel():
            bound = 2 * (literal.double() - true).abs().max() + 4 * torch.finfo(dtype).eps * true.abs().max()
            assert (got.double() - true).abs().max() <= bound + 1e-30  # where tanh is 1 to the last digit, slopes are 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1.0, 30.0])
@pytest.mark.parametrize("name", SHAPES)
def test_scores_and_gradients(name, size, dtype, device):
    if device == "cpu" and dtype != torch.float32 and name != "odd sizes":
        pytest.skip("the interpreter is slow, and the other shapes have run in float32")
    if device == "cpu" and size > 1.0 and name != "odd sizes" and not LONG:
        pytest.skip("the interpreter is slow, and the other shapes have run with numbers of this size")
    query, key, weight = SHAPES[name]
    query, key = ((*shape[:-2], shape[-2] * LONGER[device], shape[-1]) for shape in (query, key))
    inputs = [(torch.randn(shape, device=device) * factor).to(dtype).requires_grad_()
              for shape, factor in ((query, size), (key, size), (weight, 1.0))]
    upstream = torch.randn(Additive(inputs[2])(*inputs[:2]).shape, device=device, dtype=dtype)
    assert_bounded(additive_kernels.AdditiveScores.apply, inputs, upstream)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("width", "size"), sample(
    [(16, 0.1), (64, 0.1), (256, 0.1), (16, 0.03), (64, 0.03), (64, 0.3)], 0, 4))
def test_a_small_tanh_keeps_its_digits_in_float32(width, size, device):
    """1 - 2s has only those that are left of 1: for queries and keys of 0.1 that errs up to twice what is allowed."""
    inputs = [(torch.randn(shape, device=device) * factor).requires_grad_()
              for shape, factor in (((15, width), size), ((20, width), size), ((width,), 1.0))]
    assert_bounded(additive_kernels.AdditiveScores.apply, inputs, torch.randn(15, 20, device=device))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("weight", [1.0, 1e3, 1e6])
def test_numbers_that_are_almost_large(weight, dtype, device):
    """The largest that may share a reciprocal: (1 + u·v)² is 6e34, and a product of four of them would overflow."""
    if dtype == torch.float16 and weight > 1e3:
        pytest.skip("float16 has no such numbers")
    inputs = [((torch.rand(shape, device=device) * 2.0 - 1.0) * factor).to(dtype).requires_grad_()
              for shape, factor in (((5, 8), 9.9), ((6, 8), 9.9), ((8,), weight))]
    with torch.no_grad():
        inputs[0][0], inputs[1][0] = 9.9, 9.9
        inputs[0][1], inputs[1][1] = -9.9, -9.9
    assert_bounded(additive_kernels.AdditiveScores.apply, inputs, torch.randn(5, 6, device=device))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nan_is_not_hidden(dtype, device):
    query, key, weight = (torch.randn(shape, device=device, dtype=dtype) for shape in ((3, 6), (5, 6), (6,)))
    clean = additive_kernels.AdditiveScores.apply(query, key, weight)
    query[1, 2] = torch.nan
    scores = additive_kernels.AdditiveScores.apply(query, key, weight)
    assert scores[1].isnan().all()
    torch.testing.assert_close(scores[[0, 2]], clean[[0, 2]])


@INTERPRETED
@pytest.mark.parametrize("programs", [1, 200])
@pytest.mark.parametrize("pairs", [1, 70, 1 << 20])
def test_gradients_in_pieces(pairs, programs, monkeypatch):
    """However many rows of a batch are taken at once, and however many programs share them."""
    monkeypatch.setattr(additive_kernels, "PAIRS", pairs)
    monkeypatch.setattr(additive_kernels, "PROGRAMS", programs)
    inputs = [torch.randn(shape, requires_grad=True) for shape in ((2, 3, 5, 4), (2, 3, 7, 4), (3, 4))]
    assert_bounded(additive_kernels.AdditiveScores.apply, inputs, torch.randn(2, 3, 5, 7))


@INTERPRETED
@pytest.mark.parametrize("programs", [1, 2, 5])
def test_queries_with_several_blocks_of_keys(programs, monkeypatch):
    """A program adds to the sums of its queries with every block of its keys."""
    monkeypatch.setattr(additive_kernels, "PROGRAMS", programs)
    inputs = [torch.randn(shape, requires_grad=True) for shape in ((29, 3), (18, 3), (3,))]
    assert_bounded(additive_kernels.AdditiveScores.apply, inputs, torch.randn(29, 18))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_that_lie_otherwise_in_memory(dtype, device):
    """Queries with another order of dimensions, and a gradient from above that begins in the middle of a word."""
    query = torch.randn(8, 2, 5, device=device, dtype=dtype).transpose(0, 1).requires_grad_()
    key, weight = (torch.randn(s, device=device, dtype=dtype, requires_grad=True) for s in ((2, 16, 5), (5,)))
    upstream = torch.randn(1 + 2 * 8 * 16, device=device, dtype=dtype)[1:].view(2, 8, 16)
    assert upstream.storage_offset() == 1
    assert_bounded(additive_kernels.AdditiveScores.apply, [query, key, weight], upstream)


@pytest.mark.parametrize(("queries", "keys", "programs"), [(4, 8, 1), (4, 8, 100), (1024, 1024, 24), (1024, 1024, 49),
                                                           (2048, 8192, 396), (36, 4096, 7)])
def test_spans_hold_all_and_are_alike(queries, keys, programs):
    q_span, k_span = additive_kernels._spans(queries, keys, programs)
    assert q_span % 4 == k_span % additive_kernels.TOKENS == 0
    parts = -(-queries // q_span) * -(-keys // k_span)
    assert parts <= programs
    if programs < queries * keys // 4096:  # else they have whole blocks of which there are too few
        assert q_span * k_span * programs <= 1.2 * queries * keys


@pytest.mark.parametrize("device", DEVICES)
def test_the_same_every_time(device):
    inputs = [torch.randn(shape, device=device, requires_grad=True) for shape in ((20, 6), (35, 6), (6,))]
    first, second = (additive_kernels.AdditiveScores.apply(*inputs) for _ in range(2))
    assert torch.equal(first, second)
    for one, other in zip(*(torch.autograd.grad(e.square().sum(), inputs) for e in (first, second)), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("device", DEVICES)
def test_large_numbers_that_cancel(device):
    """exp(2q) of the one overflows, and exp(2k) of the other is 0: their product would be NaN."""
    query = torch.tensor([[60.0, -500.0, 60.0]], device=device)
    key = torch.tensor([[-59.5, 499.0, 80.0], [3e4, 3e4, -3e4]], device=device)
    want = torch.tanh(query + key).sum(-1, keepdim=True).T
    torch.testing.assert_close(additive_kernels.AdditiveScores.apply(query, key, torch.ones(3, device=device)), want)


@INTERPRETED
def test_a_second_derivative_is_an_error_and_not_a_zero():
    query = torch.randn(2, 3, requires_grad=True)
    scores = additive_kernels.AdditiveScores.apply(query, torch.randn(2, 3), torch.randn(3))
    with pytest.raises(ValueError, match="`create_graph` must be False"):
        torch.autograd.grad(scores.sum(), query, create_graph=True)


@INTERPRETED
@pytest.mark.usefixtures("_fused")
@pytest.mark.parametrize("numbers", [80, 1 << 20])
def test_tiled_with_fused_scores_keeps_what_attention_promises(numbers):
    """Rows that see nothing get zeros and zero gradients, and NaN in keys that nobody sees changes nothing."""
    mask = regard.Causal() & regard.Padding([4, 0])
    tensors = [torch.randn(2, 1, n, 3) for n in (6, 5, 5)]
    weight = torch.randn(3)
    poisoned = [tensors[0], *(t.clone() for t in tensors[1:])]
    for tensor in poisoned[1:]:
        tensor[0, :, 4:] = torch.nan
        tensor[1] = torch.inf
    results = []
    for given, backend in ((tensors, "exact"), (poisoned, "tiled")):
        inputs = [t.clone().requires_grad_() for t in (*given, weight)]
        with held(numbers):
            output = regard.attend(*inputs[:3], score=Additive(inputs[3]), mask=mask, backend=backend)
        results.append((output, *torch.autograd.grad(output.square().sum(), inputs)))
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    assert not results[1][0][1].any()
    assert not results[1][0][0, 0, 0].any()


@INTERPRETED
@pytest.mark.usefixtures("_fused")
@pytest.mark.parametrize(("kept", "passes"), [(1 << 25, 1), (60, 1), (59, 2)])
def test_few_scores_are_kept_and_many_computed_once_more(kept, passes, monkeypatch):
    monkeypatch.setattr(backends, "MAX_KEPT_SCORES", kept)
    calls = []
    run = additive_kernels.additive_scores
    monkeypatch.setattr(additive_kernels, "additive_scores", lambda *given: calls.append(given) or run(*given))
    query, key, weight = (torch.randn(shape, requires_grad=True) for shape in ((2, 5, 3), (2, 6, 3), (3,)))
    output = regard.attend(query, key, key, score=Additive(weight), backend="tiled")
    output.sum().backward()
    assert len(calls) == passes
    words = regard.explain(query, key, key, score=Additive(weight), backend="tiled").detail
    assert words.startswith("5 rows at a time, ")
    assert ("recomputed" in words) == (passes == 2)
    assert words.endswith("fused kernels")


@pytest.mark.usefixtures("_fused")
def test_exact_gives_way_to_fused_scores(monkeypatch):
    def drawback(score):
        query = torch.zeros(2, 5, 3)
        return backends.EXACT.drawback(build_problem(query, query, query, score=score, normalize="softmax", mask=None,
                                                     bias=None,
                                                     dropout=0.0))

    monkeypatch.setattr(backends, "EXACT_MAX_NUMBERS", 150)
    assert drawback(Additive(torch.ones(3))) is None
    monkeypatch.setattr(backends, "EXACT_MAX_NUMBERS", 149)
    assert "fused kernels" in drawback(Additive(torch.ones(3)))
    assert drawback("dot") is None


def test_fused_scores_are_for_cuda():
    query = torch.zeros(2, 5, 3)
    problem = build_problem(query, query, query, score=Additive(torch.ones(3)), normalize="softmax", mask=None,
                            bias=None,
                            dropout=0.0)
    assert not backends.has_fused_scores(problem)
    assert "fused" not in backends.TILED.detail(problem)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
def test_on_a_gpu_all_but_float64_are_fused(dtype):
    query = torch.zeros(2, 5, 3, device="cuda", dtype=dtype)
    problem = build_problem(query, query, query, score=Additive(torch.ones(3, device="cuda")), normalize="softmax",
                            mask=None,
                            bias=None, dropout=0.0)
    assert backends.has_fused_scores(problem) == (dtype != torch.float64)


@pytest.mark.gpu
def test_on_a_gpu_memory_does_not_grow_with_the_square_of_the_length():
    peaks = []
    for length in (8192, 16384):
        tensors = [torch.randn(length, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
        score = Additive(torch.randn(64, device="cuda", dtype=torch.bfloat16, requires_grad=True))
        torch.cuda.reset_peak_memory_stats()
        regard.attend(*tensors, score=score).sum().backward()
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[1] <= 2 * peaks[0]
