"""Numbers in hostile places: rows that may see nothing, garbage where nobody looks, padding of any side and amount.

On every backend, in every precision. What is shown here is exact: nothing changes by a single bit.
"""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from problems import NORMALIZERS, held, normal, normalizer, scorer

import regard

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
# score, normaliser, backend, precision: all precisions where the backends differ most, single precision elsewhere
WAYS = [("scaled_dot", "softmax", backend, dtype) for backend in ("exact", "tiled", "sdpa") for dtype in DTYPES]
WAYS += [("additive", normalize, backend, torch.float32) for normalize in NORMALIZERS[:4]
         for backend in ("exact", "tiled")]
WAYS += [("additive heads bias", "softmax", "tiled", torch.float64), ("additive", "relu", "exact", torch.float16)]
WAYS += [("bilinear heads", "softmax", "sdpa", torch.float32), ("module", "sparsemax", "exact", torch.float32)]
WAYS += [("function", "softmax_one", "tiled", torch.float64), ("module", "sigmoid", "tiled", torch.bfloat16)]
GARBAGE = [math.nan, math.inf, -math.inf, 1e30, 1e38]


def pairs(masks):
    """Every mask with the ways that go to all backends, two of them with the other ways."""
    return [pytest.param(mask, way, id=" ".join(map(str, (mask, *way)))) for mask in masks for way in WAYS
            if way[0] == "scaled_dot" or mask in ("padding", "packed")]


def options(score, normalize, backend, dtype, device):
    """The arguments of `attend`, the score's parameters in the precision that is asked for."""
    made = scorer(score, 2, 4)[0]
    if isinstance(made, torch.nn.Module):
        made = made.to(device, dtype)
    elif not isinstance(made, str) and hasattr(made, "weight"):
        parts = (made.weight, getattr(made, "bias", None))
        made = type(made)(*(t.detach().to(device, dtype).requires_grad_() for t in parts if t is not None))
    return {"score": made, "normalize": normalizer(normalize), "backend": backend}


def tensors(dtype, device, n_queries=5, n_keys=6, batch=2, key_heads=2):
    """query (batch, 2, n_queries, 4), key and value."""
    sizes = ((2, n_queries, 4), (key_heads, n_keys, 4), (key_heads, n_keys, 3))
    return [normal(batch, *size, seed=i).to(device, dtype).requires_grad_() for i, size in enumerate(sizes)]


def run(given, asked, mask):
    """The output, and the gradients of query, key and value, of a loss that is large, as scaled losses are."""
    with held(90):
        output = regard.attend(*given, mask=mask, **asked)
    weight = 100 * normal(*output.shape, seed=9).to(output)
    return output, torch.autograd.grad((output * weight).sum(), given)


def columns(*numbers):
    """A bool tensor (1, keys) that forbids these keys to all."""
    return torch.tensor([j not in numbers for j in range(6)])[None]


# ---- rows that may see nothing ---------------------------------------------------------------------------------------

# mask, and which rows (batch, queries) of 5 queries against 6 keys see nothing
BLIND = {
    "tensor": (columns() & torch.tensor([1, 0, 1, 1, 0], dtype=torch.bool)[:, None], [[0, 1, 0, 0, 1]] * 2),
    "padding": (regard.Padding([0, 4]), [[1] * 5, [0] * 5]),
    "left padding": (regard.Padding([6, 0], side="left") & regard.Causal(), [[0] * 5, [1] * 5]),
    "window": (regard.Window(0, 0) & columns(2, 5), [[0, 1, 0, 0, 1]] * 2),
    "packed": (regard.Packed([1, 2, 1], [2, 0, 3]) & regard.Causal(), [[0, 1, 1, 0, 1]] * 2),
    "placed": (regard.Placed([0, 3]) & ~regard.Causal(), [[0, 0, 0, 0, 1], [0, 0, 0, 1, 1]]),
    "nothing": (torch.tensor(False), [[1] * 5] * 2),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("mask", "way"), pairs(BLIND))
def test_a_query_that_sees_nothing_gets_zeros_and_leaves_no_trace(mask, way, device):
    mask, blind = BLIND[mask][0], torch.tensor(BLIND[mask][1], dtype=torch.bool)
    given, asked = tensors(way[3], device), options(*way, device)
    output, (query, key, value) = run(given, asked, mask)
    hidden = blind[:, None, :].expand(2, 2, 5).to(device)
    assert (output[hidden] == 0).all()
    assert (query[hidden] == 0).all()
    for tensor in (output, query, key, value):
        assert tensor.isfinite().all()
    weights = regard.attention_weights(*given[:2], mask=mask, score=asked["score"], normalize=asked["normalize"])
    assert (weights[hidden] == 0).all()
    # What the blind queries ask for does not count for the others, nor in the gradients of keys and values.
    louder = torch.where(hidden[..., None], 7.0, given[0]).detach().requires_grad_()
    again, gradients = run([louder, *given[1:]], asked, mask)
    for first, second in zip((output, query, key, value), (again, *gradients), strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("backend", ["exact", "tiled", "sdpa"])
@pytest.mark.parametrize("garbage", GARBAGE)
def test_what_stands_in_a_query_that_sees_nothing_does_not_matter(garbage, backend, device):
    """Behind the last segment of a packed row there is room, and what stands there is query, key and value."""
    mask = regard.Packed([2, 1]) & regard.Causal()
    found = []
    for filler in (0.0, garbage):
        x = normal(2, 5, 4).float()
        x[:, 3:] = filler
        x = x.to(device).requires_grad_()
        with held(20):
            output = regard.attend(x, x, x, mask=mask, backend=backend)
        found.append((output, *torch.autograd.grad(output.square().sum(), x)))
    (clean, clean_gradient), (dirty, gradient) = found
    assert torch.equal(dirty, clean)
    assert torch.equal(gradient, clean_gradient)


@pytest.mark.parametrize("backend", ["exact", "tiled", "sdpa"])
def test_a_bias_of_minus_infinity_forbids_as_a_mask_does(backend):
    given = tensors(torch.float64, "cpu")
    allowed = normal(2, 5, 6, seed=4) > 0
    allowed[0, 2] = False
    bias = torch.zeros(2, 5, 6, dtype=torch.float64).masked_fill(~allowed, -torch.inf).requires_grad_()
    masked, biased = (regard.attend(*given, backend=backend, **how) for how in ({"mask": allowed}, {"bias": bias}))
    torch.testing.assert_close(biased, masked, rtol=1e-12, atol=0)
    assert (biased[:, 0, 2] == 0).all()
    for gradient in torch.autograd.grad(biased.square().sum(), [*given, bias]):
        assert gradient.isfinite().all()


def test_a_row_of_scores_that_are_all_minus_infinity_never_reaches_a_normaliser():
    """Whoever forbids it: here the user's own score, without mask or bias."""
    first = torch.tensor([True, False, False])[:, None]
    query, key, value = (t.detach() for t in tensors(torch.float64, "cpu", n_queries=3))
    output = regard.attend(query, key, value, score=lambda q, k: (q @ k.mT).masked_fill(first, -torch.inf))
    assert (output[..., 0, :] == 0).all()
    assert output.isfinite().all()


@pytest.mark.parametrize("mask", [None, regard.Causal(), regard.Window(0, 0)], ids=repr)
def test_a_normaliser_is_not_asked_about_rows_without_keys(mask):
    """A user's function may take the maximum of a row; of no keys there is none."""

    def stable(scores):
        return (scores - scores.amax(-1, keepdim=True)).softmax(-1)

    for n_keys in (0, 2):  # with two, the first of many queries, a block of their own, stand before all keys
        given = tensors(torch.float64, "cpu", n_queries=9, n_keys=n_keys)
        with held(1):
            for backend in ("exact", "tiled"):
                output = regard.attend(*given, normalize=stable, mask=mask, backend=backend)
                if mask is not None or not n_keys:
                    assert (output[..., :7, :] == 0).all()


# ---- garbage where nobody looks --------------------------------------------------------------------------------------

# mask, and which keys (batch, keys) of 6 no query of 5 may see
UNSEEN = {
    "padding": (regard.Padding([4, 6]), [[0, 0, 0, 0, 1, 1], [0] * 6]),
    "left padding": (regard.Padding([4, 0], side="left") & regard.Causal(), [[1, 1, 0, 0, 0, 0], [1] * 6]),
    "columns": (columns(0, 3), [[1, 0, 0, 1, 0, 0]] * 2),
    "packed": (regard.Packed([2, 0, 2], [2, 1, 1]), [[0, 0, 1, 0, 1, 1]] * 2),
    "window": (regard.Window(0, 0), [[1, 0, 0, 0, 0, 0]] * 2),
    "placed": (regard.Placed([0, 1]) & regard.Causal(), [[0, 0, 0, 0, 0, 1], [0] * 6]),
    "either": (columns(0, 3) & regard.Causal() | columns(0, 5), [[1, 0, 0, 0, 0, 0]] * 2),
}


@pytest.mark.thorough
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("mask", "way"), pairs(UNSEEN))
def test_garbage_in_keys_that_nobody_sees_changes_nothing_at_all(mask, way, device):
    mask, unseen = UNSEEN[mask][0], torch.tensor(UNSEEN[mask][1], dtype=torch.bool, device=device)[:, None, :, None]
    given, asked = tensors(way[3], device), options(*way, device)
    results = []
    huge = torch.finfo(way[3]).max / 50  # finite in the forward pass; a product with a gradient is not
    for garbage in (([0.0], [0.0]), ([math.nan], [math.nan]), ([math.sqrt(huge)], [-huge]), (GARBAGE, GARBAGE)):
        fillers = (torch.tensor(numbers * 144, device=device, dtype=torch.float64) for numbers in garbage)
        dirty = [torch.where(unseen, filler[:t.numel()].view_as(t).to(t), t).detach().requires_grad_()
                 for filler, t in zip(fillers, given[1:], strict=True)]
        results.append(run([given[0], *dirty], asked, mask))
    clean, clean_gradients = results[0]
    assert clean.isfinite().all()
    for output, gradients in results[1:]:
        assert torch.equal(output, clean)
        for gradient, clean_gradient in zip(gradients, clean_gradients, strict=True):
            assert torch.equal(gradient, clean_gradient)
        for gradient in gradients[1:]:
            assert (gradient.masked_select(unseen) == 0).all()


@pytest.mark.parametrize("backend", ["exact", "tiled"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_score_that_grows_faster_than_a_product_does_not_meet_garbage_either(dtype, backend):
    """exp(k) of a user's score is inf where k is 1e3, and 0 · inf would be NaN in the gradient."""

    def growing(query, key):
        return torch.tanh(query.sum(-1, keepdim=True) * key.exp().sum(-1).unsqueeze(-2))

    found = []
    for garbage in (0.0, 1e3, 1e30):
        query, key, value = tensors(dtype, "cpu")
        key = torch.where(torch.arange(6)[:, None] > 3, garbage, key).detach().to(dtype).requires_grad_()
        found.append(run([query, key, value], {"score": growing, "backend": backend}, regard.Padding([4, 4])))
    for output, gradients in found[1:]:
        assert torch.equal(output, found[0][0])
        for gradient, clean in zip(gradients, found[0][1], strict=True):
            assert torch.equal(gradient, clean)


@pytest.mark.parametrize("backend", ["exact", "tiled", "sdpa"])
def test_garbage_that_one_of_the_heads_sharing_a_key_does_not_see(backend):
    """Key head 0 serves query heads 0 and 1. Nobody sees key 2; key 3 is seen by head 1 alone."""
    query, key, value = (normal(*size, seed=i) for i, size in enumerate(((4, 5, 4), (2, 6, 4), (2, 6, 3))))
    mask = torch.ones(4, 5, 6, dtype=torch.bool)
    mask[:, :, 2] = False
    mask[0, :, 3] = False
    outputs = []
    for garbage in (0.0, math.nan):
        for tensor in (key, value):
            tensor[:, 2] = garbage
        outputs.append(regard.attend(query, key, value, mask=mask, backend=backend))
    assert torch.equal(*outputs)
    value[0, 3] += 1
    changed = regard.attend(query, key, value, mask=mask, backend=backend) != outputs[0]
    assert changed.flatten(1).any(1).tolist() == [False, True, False, False]


# ---- causal against the corner, padding, neighbours ------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["exact", "tiled", "sdpa"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_causal_with_fewer_and_with_more_queries_than_keys(dtype, backend):
    few, key, value = (t.detach() for t in tensors(dtype, "cpu", n_queries=2))
    full = regard.attend(few, key, value, backend=backend)
    causal = regard.attend(few, key, value, mask=regard.Causal(), backend=backend)
    torch.testing.assert_close(causal[..., -1, :], full[..., -1, :])  # the last query sees all keys
    shorter = regard.attend(few[..., :1, :], key[..., :-1, :], value[..., :-1, :], backend=backend)
    torch.testing.assert_close(causal[..., :1, :], shorter)  # the one before it, all but the last
    alone = regard.attend(few[..., -1:, :], key, value, mask=regard.Causal(), backend=backend)
    torch.testing.assert_close(alone, full[..., -1:, :])

    many = tensors(dtype, "cpu", n_queries=9)[0].detach()
    output = regard.attend(many, key, value, mask=regard.Causal(), backend=backend)
    assert (output[..., :3, :] == 0).all()
    first = value[..., :1, :].expand(2, 2, 1, 3)
    torch.testing.assert_close(output[..., 3:4, :], first)  # the first that sees anything sees the first key alone


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["exact", "tiled", "sdpa"])
@pytest.mark.parametrize("causal", [False, True])
@given(st.lists(st.integers(0, 6), min_size=1, max_size=3), st.integers(0, 5), st.sampled_from((0.0, math.nan, 1e30)))
@settings(suppress_health_check=list(HealthCheck))
def test_padding_of_any_side_and_amount_and_any_neighbours_change_nothing(causal, backend, lengths, more, filler):
    sequences = [normal(2, n, 4, seed=i).float() for i, n in enumerate(lengths)]
    own = regard.Causal() if causal else None
    alone = [regard.attend(x, x, x, mask=own, backend=backend) for x in sequences]
    longest = max(lengths) + more
    for side in ("left", "right"):
        key, query = torch.full((len(lengths), 2, longest, 4), filler), torch.zeros(len(lengths), 2, longest, 4)
        places = [slice(0, n) if side == "right" else slice(longest - n, longest) for n in lengths]
        for b, (x, place) in enumerate(zip(sequences, places, strict=True)):
            key[b, :, place] = query[b, :, place] = x
        mask = regard.Padding(lengths, side=side)
        mask = mask & regard.Causal() if causal else mask
        with held(70):
            together = regard.attend(query, key, key, mask=mask, backend=backend)
        for b, place in enumerate(places):
            torch.testing.assert_close(together[b, :, place], alone[b], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", ["exact", "tiled", "sdpa"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_token_one_head_width_one(dtype, backend):
    query, key = (normal(1, 1, 1, 1, seed=i).to(dtype) for i in range(2))
    value = normal(1, 1, 1, 3, seed=2).to(dtype)
    for mask in (None, regard.Causal(), regard.Padding([1]), regard.Packed([1])):
        assert torch.equal(regard.attend(query, key, value, mask=mask, backend=backend), value)
    for mask in (regard.Padding([0]), regard.Packed([0]), ~regard.Causal()):
        assert (regard.attend(query, key, value, mask=mask, backend=backend) == 0).all()
