"""`attend`: the one way into attention, whatever the score, the normaliser, the mask and the backend.

    weights = normalize(score(query, key) + bias), over the keys that the mask allows
    output  = dropout(weights) · value

Tokens are rows: query (..., queries, Dq), key (..., keys, Dk), value (..., keys, Dv) give (..., queries, Dv). Leading
dimensions broadcast; the one before the tokens is heads, of which key and value may have fewer (grouped heads). A
query that may attend to nothing gets zeros. This file only asks: `problem` checks, `kernels` compute.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from regard.attention.kernels import choice, exact, known, sdpa
from regard.attention.mask import Mask
from regard.attention.normalize import Normalizer
from regard.attention.problem import state
from regard.attention.score import Score
from regard.position.bias import Bias

AnyScore = str | Score | Callable[[Tensor, Tensor], Tensor]
AnyNormalizer = str | Normalizer | Callable[[Tensor], Tensor]


def attend(query: Tensor, key: Tensor, value: Tensor, *, score: AnyScore = "scaled_dot",
           normalize: AnyNormalizer = "softmax", mask: Mask | Tensor | None = None, bias: Tensor | Bias | None = None,
           dropout: float = 0.0, backend: str | None = None) -> Tensor:
    """Look at `value` with the weights that `query` and `key` give.

    Args:
        query: (..., heads, queries, Dq), or (queries, Dq).
        key: (..., key heads, keys, Dk); the number of key heads divides the number of heads.
        value: (..., key heads, keys, Dv).
        score: "dot", "scaled_dot", "scaled_dot_d", a `Score` such as `Additive(weight)`, or a function of a block of
            queries and a block of keys.
        normalize: "softmax", "relu" (divided by the number of keys), "relu_sum", "sigmoid", a `Normalizer`, or a
            function of rows of scores.
        mask: who may attend to whom: `Causal()`, `Padding(lengths)`, ..., or a bool tensor in which True means may.
        bias: added to the scores: a tensor that broadcasts to (..., queries, keys), or a `Bias` such as `ALiBi`.
        dropout: the probability with which a weight is dropped; whoever calls says 0 outside of training.
        backend: "exact", "tiled", "sdpa", "flex", "pointwise" or "segments"; by itself the fastest that can do the
            work. One that cannot is an error.

    Returns:
        (..., heads, queries, Dv).
    """
    asked = None if torch.compiler.is_compiling() else known.question(
        query, key, value, score=score, normalize=normalize, mask=mask, bias=bias, dropout=dropout, backend=backend)
    plan = None if asked is None else known.PLANS.get(asked)
    if plan is not None:
        return plan(query, key, value)
    problem = state(query, key, value, score=score, normalize=normalize, mask=mask, bias=bias, dropout=dropout)
    chosen = choice.choose(problem, backend)
    if asked is not None and chosen is sdpa:
        known.learn(asked, problem)
    return chosen.run(problem)


def attention_weights(query: Tensor, key: Tensor, *, score: AnyScore = "scaled_dot",
                      normalize: AnyNormalizer = "softmax", mask: Mask | Tensor | None = None,
                      bias: Tensor | Bias | None = None) -> Tensor:
    """The weights (..., heads, queries, keys) with which `attend` looks. They are held whole: N² numbers a head."""
    problem = state(query, key, key, score=score, normalize=normalize, mask=mask, bias=bias, dropout=0.0)
    weights = exact.weights(problem)
    return weights.expand(*problem.leading, *weights.shape[-2:])


def explain(query: Tensor, key: Tensor, value: Tensor, *, score: AnyScore = "scaled_dot",
            normalize: AnyNormalizer = "softmax", mask: Mask | Tensor | None = None, bias: Tensor | Bias | None = None,
            dropout: float = 0.0, backend: str | None = None) -> choice.Explanation:
    """Which backend `attend` takes for these arguments, and why each one that is preferred to it does not run."""
    problem = state(query, key, value, score=score, normalize=normalize, mask=mask, bias=bias, dropout=dropout)
    return choice.explain(problem, backend)
