"""Additive scores a piece at a time: the same scores and gradients as the literal ones, and never all pairs at once."""

import pytest
import torch

from regard.attention import backends
from regard.attention.backends import TiledAdditive, with_tiled_score
from regard.attention.problem import build_problem
from regard.attention.score import Additive

SHAPES = {
    "one head": ((5, 4), (7, 4), (4,)),
    "a weight a head": ((2, 3, 5, 4), (2, 3, 7, 4), (3, 4)),
    "one weight": ((2, 3, 5, 4), (2, 3, 7, 4), (4,)),
    "queries for all": ((5, 4), (2, 3, 7, 4), (4,)),
    "keys for all": ((2, 3, 5, 4), (1, 1, 7, 4), (3, 4)),
    "one pair": ((1, 1), (1, 1), (1,)),
    "no queries": ((2, 0, 4), (2, 7, 4), (4,)),
    "no keys": ((2, 5, 4), (2, 0, 4), (4,)),
}


def parts(name, dtype=torch.float64):
    query, key, weight = SHAPES[name]
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in (query, key, weight, weight)]


@pytest.mark.parametrize("piece", [1, 30, 100, 1 << 20])
@pytest.mark.parametrize("name", SHAPES)
def test_scores_and_gradients_are_the_literal_ones(name, piece, monkeypatch):
    monkeypatch.setattr(backends, "PIECE_CPU", piece)
    query, key, weight, bias = parts(name)
    for given in (Additive(weight), Additive(weight, bias)):
        inputs = [query, key, weight] + ([bias] if given.bias is not None else [])
        literal, got = given(query, key), TiledAdditive(given)(query, key)
        torch.testing.assert_close(got, literal, rtol=1e-12, atol=1e-12)
        upstream = torch.randn_like(literal)
        want = torch.autograd.grad(literal, inputs, upstream)
        for mine, theirs in zip(torch.autograd.grad(got, inputs, upstream), want, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.thorough
def test_gradients_are_right(monkeypatch):
    monkeypatch.setattr(backends, "PIECE_CPU", 24)
    query, key, weight, bias = parts("a weight a head")
    assert torch.autograd.gradcheck(lambda q, k, w, b: TiledAdditive(Additive(w, b))(q, k), (query, key, weight, bias))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_errs_at_most_twice_as_much_as_the_literal_score(dtype, monkeypatch):
    monkeypatch.setattr(backends, "PIECE_CPU", 200)
    query, key, weight = (torch.randn(s, dtype=dtype, requires_grad=True) for s in ((40, 16), (50, 16), (16,)))
    upstream = torch.randn(40, 50, dtype=dtype)
    wide = [t.detach().double().requires_grad_() for t in (query, key, weight)]

    def results(score, inputs):
        scores = score(inputs[2])(*inputs[:2])
        return scores, *torch.autograd.grad(scores, inputs, upstream.to(scores.dtype))

    exact = results(Additive, wide)
    plain = results(Additive, [query, key, weight])
    pieces = results(lambda w: TiledAdditive(Additive(w)), [query, key, weight])
    for truth, literal, got in zip(exact, plain, pieces, strict=True):
        bound = 2 * (literal.double() - truth).abs().max() + 4 * torch.finfo(dtype).eps * truth.abs().max()
        assert (got.double() - truth).abs().max() <= bound


def test_no_tensor_as_large_as_pairs_times_width_is_kept(monkeypatch):
    monkeypatch.setattr(backends, "PIECE_CPU", 1 << 10)
    query, key, weight = (torch.randn(s, requires_grad=True) for s in ((64, 32), (64, 32), (32,)))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        TiledAdditive(Additive(weight))(query, key)
    assert max(kept) == 64 * 32


def test_only_additive_scores_are_changed():
    query = torch.randn(2, 3, 4)
    options = {"normalize": "softmax", "mask": None, "bias": None, "dropout": 0.0}
    dot = build_problem(query, query, query, score="dot", **options)
    assert with_tiled_score(dot) is dot
    given = Additive(torch.ones(4))
    made = with_tiled_score(build_problem(query, query, query, score=given, **options))
    assert isinstance(made.score, TiledAdditive)
    assert made.score.score is given
    assert made.score.numbers_per_pair(4) == 1
