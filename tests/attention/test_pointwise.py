"""`pointwise`: what it takes and refuses, and that its answers are the oracle's, under every mask, in every precision.

On a CPU Triton's interpreter runs the kernels, with small blocks; on a GPU they are compiled, and the sizes are larger.
"""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from problems import ORACLE_NORMALIZERS, alibi_of, normal

import regard
from regard.attention import fused
from regard.attention.fused import POINTWISE
from regard.attention.problem import build_problem
from regard.reference import attention as oracle

pytest.importorskip("triton")
from regard.kernels import pointwise as pointwise_triton

INTERPRETED = pytest.mark.skipif(not pointwise_triton.INTERPRETED, reason="the kernels are compiled here")
DEVICES = [pytest.param("cpu", marks=INTERPRETED), pytest.param("cuda", marks=pytest.mark.gpu)]
KINDS = ("relu", "relu_sum", "sigmoid")
FLAGS = normal(2, 2, 18, 21, seed=3) < 0.3
FLAGS[:, :, :, 7] = False  # nobody sees this key
FLAGS[0, 1, 4] = False  # this query sees nothing


def both(matrix, *others):
    for other in others:
        matrix = matrix & other
    return matrix


MASKS = {  # 18 queries and 21 keys, a batch of two, two heads
    "none": (None, np.ones((18, 21), dtype=bool)),
    "causal": (regard.Causal(), oracle.causal(18, 21)),
    "window": (regard.Window(3, 2), oracle.window(18, 21, 3, 2)),
    "padding": (regard.Padding([17, 0]), oracle.padding([17, 0], 18, 21, "right")[:, None]),
    "left": (regard.Padding([4, 21], side="left") & regard.Causal(),
             both(oracle.padding([4, 21], 18, 21, "left")[:, None], oracle.causal(18, 21))),
    "packed": (regard.Packed([5, 11], [9, 3]) & regard.Causal(), oracle.packed_causal([5, 11], [9, 3], 18, 21)),
    "placed": (regard.Placed(2) & regard.Causal(), oracle.placed_causal(2, 18, 21)),
    "tensor": (FLAGS, FLAGS.numpy()),
    "tensor and causal": (regard.Causal() & FLAGS[:, :1], FLAGS[:, :1].numpy() & oracle.causal(18, 21)),
    "or": (regard.Causal() | regard.Padding([3, 9]),
           oracle.causal(18, 21) | oracle.padding([3, 9], 18, 21, "right")[:, None]),
}


def ask(kind, *, n_queries=18, n_keys=21, width=5, value_width=7, heads=2, key_heads=2, dtype=torch.float32,
        device="cpu"):
    """Query, key and value with gradients, fresh in every test."""
    shapes = ((2, heads, n_queries, width), (2, key_heads, n_keys, width), (2, key_heads, n_keys, value_width))
    return [torch.randn(shape).to(device, dtype).requires_grad_() for shape in shapes]


def solve(tensors, **options):
    """The output of the backend; on a CPU, where it would refuse, asked directly."""
    if tensors[0].device.type == "cuda":
        return regard.attend(*tensors, **options, backend="pointwise")
    return POINTWISE.run(build_problem(*tensors, **{"score": "scaled_dot", "mask": None, "bias": None, "dropout": 0.0,
                                                    **options}))


def plain(query, key, value, kind, allowed, bias=None):
    """The definition, one operation after another in the precision of the inputs."""
    key, value = (t.repeat_interleave(query.shape[1] // t.shape[1], dim=1) for t in (key, value))
    scores = query @ key.mT * query.shape[-1] ** -0.5
    scores = (scores if bias is None else scores + bias).masked_fill(~allowed, -torch.inf)
    if kind == "sigmoid":
        return torch.sigmoid(scores) @ value
    positive = torch.relu(scores)
    total = allowed.sum(-1, keepdim=True) if kind == "relu" else positive.sum(-1, keepdim=True)
    return positive / total.masked_fill(total == 0, 1) @ value


def assert_bounded(got, literal, truth):
    eps = torch.finfo(got.dtype).eps
    assert got.dtype == literal.dtype
    assert got.shape == truth.shape
    bound = 2 * (literal.double() - truth).abs().max() + 4 * eps * truth.abs().max()
    assert (got.double() - truth).abs().max() <= bound


@pytest.mark.thorough
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "kind", "dtype", "key_heads"), [
    (name, KINDS[i % 3], (torch.float32, torch.bfloat16, torch.float16)[i // 3 % 3], 1 + i % 2)
    for i, name in enumerate([*MASKS, *MASKS])
], ids=str)
def test_answers_and_gradients(name, kind, dtype, key_heads, device):
    given, matrix = MASKS[name]
    given = given.to(device) if isinstance(given, torch.Tensor) else given
    tensors = ask(kind, key_heads=key_heads, dtype=dtype, device=device)
    allowed = torch.tensor(np.broadcast_to(matrix, (2, 2, 18, 21)).copy(), device=device)
    wide = [t.detach().double().requires_grad_() for t in tensors]
    outputs = [solve(tensors, normalize=kind, mask=given), plain(*tensors, kind, allowed), plain(*wide, kind, allowed)]
    want = oracle.attend_many(*(t.detach().cpu().numpy() for t in wide), score=oracle.scaled_dot,
                              normalize=ORACLE_NORMALIZERS[kind], mask=matrix)
    assert np.abs(outputs[2].detach().cpu().numpy() - want).max() <= 1e-12
    assert_bounded(*outputs)
    upstream = torch.randn(outputs[0].shape).to(device, dtype)
    gradients = [torch.autograd.grad(output, inputs, upstream.to(output.dtype))
                 for output, inputs in zip(outputs, (tensors, tensors, wide), strict=True)]
    for got, literal, truth in zip(*gradients, strict=True):
        assert_bounded(got, literal, truth)
    blind = ~allowed.any(-1)
    assert not outputs[0][blind].any()
    assert not gradients[0][0][blind].any()


def near_zero_sums(style, dtype, device, draw):
    """Query, key, value and bias, or None, of random sizes, whose rows of scores sum to almost 0 in one of four ways.

    cancelling: the features of the first query cancel in its products with all keys. single: only one of them may be
    above 0. whole: small integers, whose products are often exactly 0. bias: a bias cancels the products.
    """
    n_queries, n_keys, width, value_width = (draw(low, high) for low, high in ((1, 20), (1, 24), (1, 24), (1, 12)))
    query, key, value = (torch.randn(1, 2, *size) for size in ((n_queries, width), (n_keys, width),
                                                               (n_keys, value_width)))
    first = query[:, :, :1]
    across = key - (key @ first.mT) / (first @ first.mT) * first
    bias = None
    if style == "cancelling":
        key = across
    elif style == "single":
        key = torch.cat([across[:, :, :1], torch.where(key @ first.mT > 0, -key, key)[:, :, 1:]], 2)
    elif style == "whole":
        query, key, value = (t.mul(2).round() for t in (query, key, value))
    query, key, value = (t.to(device, dtype) for t in (query, key, value))
    if style == "bias":
        bias = (-(query.double() @ key.double().mT) * width**-0.5).to(dtype)
    return [t.requires_grad_() for t in (query, key, value, bias) if t is not None]


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # of the interpreter; the truth is too large too
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("style", ["cancelling", "single", "whole", "bias"])
def test_relu_sum_where_the_positive_scores_sum_to_almost_nothing(style, dtype, device):
    """Answer and gradients keep the bound where a row of weights depends on the last bit of a score.

    Where the plain computation is not finite, the fused one is, unless the truth is too large for the dtype.
    """
    for seed in range(12):
        torch.manual_seed(seed)
        tensors = near_zero_sums(style, dtype, device, lambda low, high: int(torch.randint(low, high, ())))
        wide = [t.detach().double().requires_grad_() for t in tensors]
        n_queries, n_keys = tensors[0].shape[2], tensors[1].shape[2]
        given, matrix = [(None, np.ones((n_queries, n_keys), dtype=bool)),
                         (regard.Causal(), oracle.causal(n_queries, n_keys)),
                         (torch.rand(n_queries, n_keys).to(device) < 0.7, None)][seed % 3]
        allowed = given if matrix is None else torch.tensor(matrix, device=device)
        outputs = [solve(tensors[:3], normalize="relu_sum", mask=given, bias=tensors[3] if tensors[3:] else None),
                   *(plain(*t[:3], "relu_sum", allowed, *t[3:]) for t in (tensors, wide))]
        upstream = torch.randn(outputs[0].shape).to(device, dtype)
        results = [(output, *torch.autograd.grad(output, inputs, upstream.to(output.dtype)))
                   for output, inputs in zip(outputs, (tensors, tensors, wide), strict=True)]
        for got, literal, truth in zip(*results, strict=True):
            if truth.abs().max() > torch.finfo(dtype).max:
                continue
            assert got.isfinite().all()
            if literal.isfinite().all():
                assert_bounded(got, literal, truth)


@pytest.mark.thorough
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["padding", "tensor", "packed"])
def test_what_nobody_sees_changes_nothing(name, device):
    given, matrix = MASKS[name]
    given = given.to(device) if isinstance(given, torch.Tensor) else given
    tensors = ask("relu", key_heads=1, device=device)
    allowed = torch.tensor(np.broadcast_to(matrix, (2, 2, 18, 21)).copy(), device=device)
    unseen, blind = ~allowed.any(-2).any(1), ~allowed.any(-1)
    assert unseen.any()
    bad = [t.detach().clone() for t in tensors]
    bad[0][blind] = torch.nan
    bad[1][:, 0][unseen] = torch.nan
    bad[2][:, 0][unseen] = torch.inf
    results = []
    for inputs in (tensors, [t.requires_grad_() for t in bad]):
        output = solve(inputs, normalize="relu", mask=given)
        results.append((output, *torch.autograd.grad(output.square().sum(), inputs)))
    for clean, got in zip(*results, strict=True):
        assert torch.equal(clean, got)


@pytest.mark.thorough
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_bias_and_its_gradient(kind, device):
    """A bias of -inf forbids, and does not count as a key of relu."""
    tensors = ask(kind, device=device)
    bias = torch.randn(2, 18, 21).masked_fill(torch.rand(2, 18, 21) < 0.2, -torch.inf).to(device).requires_grad_()
    allowed = torch.tensor(oracle.causal(18, 21), device=device) & (bias != -torch.inf)
    inputs = [*tensors, bias]
    outputs = [solve(tensors, normalize=kind, mask=regard.Causal(), bias=bias), plain(*tensors, kind, allowed, bias)]
    torch.testing.assert_close(*outputs, rtol=1e-5, atol=1e-5)
    gradients = (torch.autograd.grad(output.square().sum(), inputs) for output in outputs)
    for got, want in zip(*gradients, strict=True):
        torch.testing.assert_close(got, want.nan_to_num(), rtol=1e-4, atol=1e-5)


@INTERPRETED
def test_alibi_and_a_score_that_is_a_bilinear_form():
    tensors = ask("sigmoid")
    slopes, matrix = np.array([0.5, 0.25]), torch.randn(5, 5)
    got = solve(tensors, normalize="sigmoid", score=regard.Bilinear(matrix), bias=regard.ALiBi(torch.tensor(slopes)))
    want = oracle.attend_many(*(t.detach().double().numpy() for t in tensors), normalize=oracle.sigmoid,
                              score=lambda q, k: oracle.bilinear(q, k, matrix.double().numpy()),
                              bias=alibi_of(slopes, oracle.distances(18, 21)))
    assert np.abs(got.detach().numpy() - want).max() <= 1e-4


@pytest.mark.thorough
@pytest.mark.parametrize("device", DEVICES)
def test_dropout(device):
    """With the identity as values the output is the weights: some are dropped, the others scaled; gradients follow."""
    n = {"cpu": 20, "cuda": 200}[device]
    query, key = (torch.randn(1, 2, n, 16, device=device, requires_grad=True) for _ in range(2))
    value = torch.eye(n, device=device).expand(1, 2, n, n).clone().requires_grad_()
    tensors = [query, key, value]
    torch.manual_seed(1)
    dropped = solve(tensors, normalize="sigmoid", dropout=0.25)
    whole = solve(tensors, normalize="sigmoid")
    kept = dropped != 0
    torch.testing.assert_close(dropped, torch.where(kept, whole / 0.75, 0.0), rtol=1e-5, atol=1e-6)
    assert abs(kept.double().mean() - 0.75) < 4 * (0.25 * 0.75 / kept.numel()) ** 0.5
    assert not torch.equal(kept[0, 0], kept[0, 1])
    torch.manual_seed(1)
    assert torch.equal(solve(tensors, normalize="sigmoid", dropout=0.25), dropped)
    assert not torch.equal(solve(tensors, normalize="sigmoid", dropout=0.25), dropped)
    upstream = torch.randn_like(dropped)
    literal = (torch.sigmoid(query @ key.mT / 4) * kept / 0.75) @ value
    for got, want in zip(*(torch.autograd.grad(output, tensors, upstream) for output in (dropped, literal)),
                         strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("n_queries", "n_keys", "width"), [(1, 1, 1), (1, 40, 16), (33, 1, 3), (0, 4, 3), (4, 0, 3)])
def test_sizes(n_queries, n_keys, width, device):
    tensors = ask("relu", n_queries=n_queries, n_keys=n_keys, width=width, device=device)
    allowed = torch.ones(n_queries, n_keys, dtype=torch.bool, device=device)
    outputs = solve(tensors, normalize="relu"), plain(*tensors, "relu", allowed)
    torch.testing.assert_close(*outputs, rtol=1e-5, atol=1e-6)
    gradients = (torch.autograd.grad(output.square().sum(), tensors) for output in outputs)
    for got, want in zip(*gradients, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@INTERPRETED
def test_shapes_that_broadcast():
    query, key, value = torch.randn(3, 4), torch.randn(2, 3, 2, 6, 4), torch.randn(6, 5)
    got = solve((query, key, value), normalize="relu_sum")
    want = regard.attend(*(t.double() for t in (query, key, value)), normalize="relu_sum", backend="exact")
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-6)
    single = solve((query, key[0, 0, 0], value), normalize="relu_sum")
    torch.testing.assert_close(single, got[0, 0, 0])


@INTERPRETED
def test_keys_of_a_mask_may_be_farther_apart_than_32_bits_count():
    """A mask that is turned round: nobody touches more of its 2^31 flags than the nine that are asked for."""
    far = torch.empty(2**31 + 3, dtype=torch.bool).as_strided((3, 3), (1, 2**30))
    for column in range(3):
        far[:, column] = torch.tensor([True, column == 2, column != 1])
    tensors = ask("relu", n_queries=3, n_keys=3)
    outputs = solve(tensors, normalize="relu", mask=far), solve(tensors, normalize="relu", mask=far.clone())
    assert torch.equal(*outputs)
    for got, want in zip(*(torch.autograd.grad(output.sum(), tensors) for output in outputs), strict=True):
        assert torch.equal(got, want)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [16, 64, 100, 256])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("as_matrix", [False, True])
def test_on_a_gpu_longer_and_wider(as_matrix, kind, width, dtype):
    tensors = ask(kind, n_queries=300, n_keys=513, width=width, value_width=width, heads=4, dtype=dtype, device="cuda")
    wide = [t.detach().double().requires_grad_() for t in tensors]
    allowed = torch.tensor(oracle.causal(300, 513), device="cuda")
    outputs = [solve(tensors, normalize=kind, mask=allowed if as_matrix else regard.Causal()),
               plain(*tensors, kind, allowed), plain(*wide, kind, allowed)]
    assert_bounded(*outputs)
    upstream = torch.randn(outputs[0].shape).to("cuda", dtype)
    gradients = [torch.autograd.grad(output, inputs, upstream.to(output.dtype))
                 for output, inputs in zip(outputs, (tensors, tensors, wide), strict=True)]
    for got, literal, truth in zip(*gradients, strict=True):
        assert_bounded(got, literal, truth)


COMPILE = """
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from regard.attention.fused import POINTWISE
from regard.attention.problem import build_problem
from regard.kernels import launch


class H200:
    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


def compile_only(kernel, grid, arguments, options):
    print(kernel.fn.__name__, kernel.warmup(*arguments, grid=grid, **options).metadata.shared)


driver.set_active(H200())
launch._run = compile_only
for width in (5, 256):
    tensors = [torch.zeros(2, 8, width, requires_grad=True) for _ in range(3)]
    bias = torch.zeros(8, 8, requires_grad=True)
    output = POINTWISE.run(build_problem(*tensors, score="dot", normalize="relu_sum", bias=bias, dropout=0.0,
                                         mask=torch.ones(8, 8, dtype=torch.bool)))
    torch.autograd.grad(output.sum(), [*tensors, bias])
"""


@pytest.mark.thorough
def test_relu_sum_with_a_mask_matrix_and_a_bias_compiles_for_an_h200(tmp_path):
    """Its float32 kernels multiply in float64, compile without a GPU, and need no more than the chip's memory.

    In a process of its own, as the kernels of this one may be interpreted.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, timeout=250,
                          env={**environment, "TRITON_CACHE_DIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr[-2000:]
    kernels = [line.split() for line in done.stdout.splitlines()]
    assert [name for name, _ in kernels] == ["_forward", "_query_gradient", "_key_gradient"] * 2
    assert max(int(shared) for _, shared in kernels) <= 232448  # bytes of shared memory for one block


def test_flags_of_four_bytes_take_no_more_room_than_distinct_ones():
    flags = FLAGS[:1, :, :, :1].expand(2, 2, 18, 21)
    wide = pointwise_triton._as_int32(flags)
    assert torch.equal(wide, flags.int())
    assert wide.untyped_storage().nbytes() == 2 * 18 * 4


@pytest.mark.parametrize(("options", "words"), [
    ({"normalize": "softmax"}, "not softmax"), ({"normalize": torch.sigmoid}, "not sigmoid"),
    ({"score": regard.Additive(torch.ones(4))}, "dot products"), ({}, "CUDA device, and the query is on cpu"),
])
def test_what_it_refuses(options, words):
    tensors = [torch.zeros(2, 3, 4) for _ in range(3)]
    with pytest.raises(ValueError, match=f'but is "pointwise" instead. Reason: .*{words}'):
        regard.attend(*tensors, **{"normalize": "relu", **options}, backend="pointwise")


@pytest.mark.parametrize(("device", "dtype", "width", "words"), [
    ("meta", torch.float64, 4, "on meta"),
    pytest.param("cuda", torch.float64, 4, "float64", marks=pytest.mark.gpu),
    pytest.param("cuda", torch.float32, 257, "head widths up to 256, and this one is 257", marks=pytest.mark.gpu),
    pytest.param("cuda", torch.float32, 256, None, marks=pytest.mark.gpu),
])
def test_which_numbers_it_takes(device, dtype, width, words):
    tensors = [torch.zeros(3, width, device=device, dtype=dtype) for _ in range(3)]
    reason = POINTWISE.refusal(build_problem(*tensors, score="dot", normalize="relu", mask=None, bias=None,
                                             dropout=0.0))
    assert reason is None if words is None else words in reason


def test_when_it_is_not_the_one_to_choose(monkeypatch):
    def drawback(mask=None, bias=None, n=1024, normalize="relu"):
        tensors = [torch.empty(1, 1).expand(n, 4) for _ in range(3)]
        return POINTWISE.drawback(build_problem(*tensors, score="dot", normalize=normalize, mask=mask, bias=bias,
                                                dropout=0.0))

    assert drawback() is None
    assert "name it to use it" in drawback(normalize="relu_sum")
    assert "1,046,529" in drawback(n=1023)
    monkeypatch.setattr(fused, "MAX_MATRIX_ENTRIES", 1024 * 1024 - 1)
    assert drawback(regard.Causal() & regard.Window(3, None)) is None
    assert "1,048,576 entries" in drawback(~regard.Causal())
    assert "1,048,576 entries" in drawback(bias=torch.zeros(1, 1).expand(1024, 1024))


def test_it_says_how_it_goes_about_it():
    tensors = [torch.zeros(3, 4) for _ in range(3)]

    def detail(mask):
        return POINTWISE.detail(build_problem(*tensors, score="dot", normalize="relu_sum", mask=mask, bias=None,
                                              dropout=0.0))

    assert "relu_sum" in detail(None)
    assert detail(regard.Causal()).endswith("range of keys for each query")
    assert detail(~regard.Causal()).endswith("mask matrix")
