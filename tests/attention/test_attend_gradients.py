"""Gradients against finite differences: every score and normaliser, every parameter and bias, on every backend."""

import pytest
import torch
from problems import DOTS, NORMALIZERS, SCORES, held, normal, normalizer, parameters, scorer
from torch import nn
from torch.autograd import gradcheck

import regard
from regard.attention.score import as_score
from regard.position.bias import RelativeBias

MASK = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 0, 1]], dtype=torch.bool)
"""3 queries, 4 keys; the second query sees nothing."""


def tensors(seed):
    """query (2, 3, 2), key (1, 4, 2), value (1, 4, 1): two heads share one key."""
    return [normal(*size, seed=seed + i) for i, size in enumerate(((2, 3, 2), (1, 4, 2), (1, 4, 1)))]


def away_from_kinks(query, key, score, normalize):
    """Whether small steps leave every weight on its side of zero (relu, sparsemax), masked or not."""
    if normalize not in ("relu", "relu_sum", "sparsemax"):
        return True
    for mask in (None, MASK):
        scores = score(query, key)
        scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
        if normalize == "sparsemax":
            rows = scores[scores.isfinite().any(-1)]
            weights = normalizer(normalize)(rows)
            threshold = (rows - weights).where(weights > 0, -torch.inf).amax(-1, keepdim=True)
            scores = rows - threshold
        if scores.abs().min() < 1e-2:
            return False
    return True


def question(score_name, normalize):
    """Inputs and the score, from the first seed that stays away from kinks."""
    score = scorer(score_name, 2, 2)[0]
    plain = as_score(score)
    seed = next(s for s in range(0, 900, 3) if away_from_kinks(*tensors(s)[:2], plain, normalize))
    return [t.requires_grad_() for t in tensors(seed)], score


def check(given, options, others=()):
    """gradcheck over the three tensors and whatever else has a gradient (`others` are used through `options`).

    Every entry of the Jacobian on `exact` under a mask; elsewhere, as that takes its time, along random directions.
    """
    def function(*inputs):
        return regard.attend(*inputs[:3], **options)

    fast = options["backend"] != "exact" or options["mask"] is None
    assert gradcheck(function, (*given, *others), eps=1e-6, atol=1e-6 if fast else 1e-7, rtol=1e-5, fast_mode=fast)


WAYS = [(score, normalize, backend) for score in SCORES for normalize in NORMALIZERS for backend in ("exact", "tiled")
        if normalize in ("softmax", "relu") or score in ("scaled_dot", "additive heads bias", "module")]
WAYS += [(score, "softmax", "sdpa") for score in DOTS]


@pytest.mark.thorough
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("way", WAYS, ids=" ".join)
def test_gradients_are_those_of_finite_differences(way, masked):
    score_name, normalize, backend = way
    given, score = question(score_name, normalize)
    options = {"score": score, "normalize": normalizer(normalize), "mask": MASK if masked else None, "backend": backend}
    with held(9):
        check(given, options, parameters(score))


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["exact", "tiled", "sdpa"])
@pytest.mark.parametrize("kind", ["tensor", "row", "infinite", "alibi", "relative", "placed"])
def test_the_gradient_of_a_bias(kind, backend):
    given, _ = question("dot", "softmax")
    mask = MASK
    if kind == "alibi":
        bias = regard.ALiBi(nn.Parameter(normal(2, seed=8).exp()))
        learned = [bias.slopes]
    elif kind in ("relative", "placed"):
        bias = regard.RelativeBias(2, max_distance=2).double()
        bias.table.data = normal(5, 2, seed=8)
        learned = [bias.table]
        mask = regard.Placed(1) & regard.Window(2, None) if kind == "placed" else MASK
    else:
        bias = normal(*{"tensor": (2, 3, 4), "row": (1, 4), "infinite": (2, 3, 4)}[kind], seed=8)
        if kind == "infinite":
            bias = bias.masked_fill(normal(2, 3, 4, seed=3) > 0.5, -torch.inf)
        learned = [bias.requires_grad_()]
    with held(9):
        check(given, {"mask": mask, "bias": bias, "backend": backend}, learned)


@pytest.mark.parametrize("backend", ["exact", "tiled"])
def test_the_gradients_of_a_score_that_a_bias_and_a_mask_go_with(backend):
    """All at once: parameters of the score, slopes of the bias, a whole-row normaliser, packed segments."""
    given, score = question("additive heads bias", "softmax")
    bias = regard.ALiBi(nn.Parameter(normal(2, seed=8).exp()))
    options = {"score": score, "bias": bias, "mask": regard.Packed([1, 2], [2, 1]), "backend": backend}
    with held(9):
        check(given, options, [*parameters(score), bias.slopes])


@pytest.mark.parametrize("backend", ["exact", "tiled", "sdpa"])
def test_parameters_get_no_gradient_from_a_question_nobody_answers(backend):
    """All queries are blind: gradients are zeros, not NaN."""
    given, score = question("bilinear", "softmax")
    output = regard.attend(*given, score=score, mask=torch.tensor(False), backend=backend)
    for gradient in torch.autograd.grad(output.sum(), [*given, *parameters(score)], allow_unused=True):
        assert gradient is None or (gradient == 0).all()


@pytest.mark.parametrize("sizes", [(2, 0, 3), (2, 3, 0), (2, 0, 0), (0, 3, 3)], ids=str)
@pytest.mark.parametrize("bias", ["tensor", "relative"])
def test_a_bias_gets_zeros_where_there_are_no_queries_or_no_keys(sizes, bias):
    batch, n_queries, n_keys = sizes
    bias = (nn.Parameter(torch.randn(n_queries, n_keys)) if bias == "tensor"
            else RelativeBias(heads=2, max_distance=3))
    learned = bias if isinstance(bias, nn.Parameter) else next(bias.parameters())
    regard.attend(torch.randn(batch, 2, n_queries, 4), torch.randn(batch, 2, n_keys, 4),
                  torch.randn(batch, 2, n_keys, 4), bias=bias).sum().backward()
    assert torch.equal(learned.grad, torch.zeros_like(learned))
