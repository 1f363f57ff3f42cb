"""`attend`: the one entry point of attention, for every score, normaliser, mask and backend.

    weights = normalize(score(query, key) + bias), over the keys that the mask allows
    output  = dropout(weights) · value

Tokens are rows: query (..., queries, Dq), key (..., keys, Dk), value (..., keys, Dv) give (..., queries, Dv). Leading
dimensions broadcast; the one before the tokens is heads, of which key and value may have fewer (grouped heads). A query
that may attend to nothing gets zeros. `problem` checks the arguments, `backends` chooses who computes.

Checking a call and asking every backend takes 40 µs of Python, as long as a small attention itself. Where score and
normaliser are names, there is no bias and no dropout, and the mask is None or `Causal()`, the choice depends on names,
shapes, dtypes and devices alone: it is kept in a dispatch cache, and the same call goes straight to torch's kernel.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from regard.attention import backends
from regard.attention.kernels import exact, sdpa
from regard.attention.mask import Causal, Mask
from regard.attention.normalize import Normalizer
from regard.attention.problem import AttentionProblem, build_problem
from regard.attention.score import Score
from regard.position.bias import Bias

ScoreLike = str | Score | Callable[[Tensor, Tensor], Tensor]
NormalizerLike = str | Normalizer | Callable[[Tensor], Tensor]


def attend(query: Tensor, key: Tensor, value: Tensor, *, score: ScoreLike = "scaled_dot",
           normalize: NormalizerLike = "softmax", mask: Mask | Tensor | None = None, bias: Tensor | Bias | None = None,
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
    asked = None if torch.compiler.is_compiling() else dispatch_key(
        query, key, value, score=score, normalize=normalize, mask=mask, bias=bias, dropout=dropout, backend=backend)
    plan = None if asked is None else DISPATCH_CACHE.get(asked)
    if plan is not None:
        return plan(query, key, value)
    problem = build_problem(query, key, value, score=score, normalize=normalize, mask=mask, bias=bias, dropout=dropout)
    chosen = backends.choose_backend(problem, backend)
    if asked is not None and chosen is sdpa:
        remember_dispatch(asked, problem)
    return chosen.run(problem)


def attention_weights(query: Tensor, key: Tensor, *, score: ScoreLike = "scaled_dot",
                      normalize: NormalizerLike = "softmax", mask: Mask | Tensor | None = None,
                      bias: Tensor | Bias | None = None) -> Tensor:
    """The weights (..., heads, queries, keys) with which `attend` looks. They are held whole: N² numbers a head."""
    problem = build_problem(query, key, key, score=score, normalize=normalize, mask=mask, bias=bias, dropout=0.0)
    weights = exact.weights(problem)
    return weights.expand(*problem.leading, *weights.shape[-2:])


def explain(query: Tensor, key: Tensor, value: Tensor, *, score: ScoreLike = "scaled_dot",
            normalize: NormalizerLike = "softmax", mask: Mask | Tensor | None = None, bias: Tensor | Bias | None = None,
            dropout: float = 0.0, backend: str | None = None) -> backends.Explanation:
    """Which backend `attend` takes for these arguments, and why each one that is preferred to it does not run."""
    problem = build_problem(query, key, value, score=score, normalize=normalize, mask=mask, bias=bias, dropout=dropout)
    return backends.explain_choice(problem, backend)


# ---- known: Questions that were asked before: which of torch's kernels answers them, found by their shapes.
#
#     asked = known.question(query, key, value, score=..., ...)     None for what is not kept
#     plan = known.PLANS.get(asked)                                 None where it was never learned
#     output = plan(query, key, value)
#
# To check a call of `attend` and to ask every backend takes 40 µs of Python, and up to five times as much where Python
# was not running just before; a forward pass over 4,096 tokens takes no more than 1,000 on a GPU. Where scores and
# weights are named, nothing is added, nothing is dropped, and no mask but a causal one is given, all that is found out
# depends on names, shapes, dtypes and devices alone. What torch's kernels take as it stands (`sdpa`) is kept here, and
# the same question goes straight to them, in a few µs.
#
# It does not choose, and does not check: it learns what others have chosen and checked.

DispatchKey = tuple[Any, ...]
MAX_DISPATCHES = 4096
"""Questions that are kept; when there are more, all are forgotten."""


class SdpaCall(NamedTuple):
    """A call of torch's kernels, without its tensors."""

    causal: bool
    scale: float
    grouped: bool
    order: list[int]
    """Of the kernels, as torch numbers them; empty where torch's own order is taken."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if not self.order:
            return self._run(query, key, value)
        with sdpa.kernel_priority(self.order):
            return self._run(query, key, value)

    def _run(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return scaled_dot_product_attention(query, key, value, None, 0.0, self.causal, scale=self.scale,
                                            enable_gqa=self.grouped)


DISPATCH_CACHE: dict[DispatchKey, SdpaCall] = {}
"""Of every question that was learned."""


def dispatch_key(query: object, key: object, value: object, *, score: object, normalize: object, mask: object,
             bias: object, dropout: object, backend: object) -> DispatchKey | None:
    """All that a plan depends on; None where it depends on more, or may. It is not for compiled graphs."""
    if bias is not None or backend is not None or (mask is not None and type(mask) is not Causal):
        return None
    if type(dropout) is not float or dropout != 0.0:
        return None
    if not (type(query) is type(key) is type(value) is Tensor and type(score) is type(normalize) is str):
        return None
    return (query.shape, key.shape, value.shape, query.dtype, key.dtype, value.dtype, query.device, key.device,
            value.device, score, normalize, mask is None)


def remember_dispatch(asked: DispatchKey, problem: AttentionProblem) -> None:
    """Keep how `sdpa`, which was chosen for this problem, computes it, where it takes the tensors as they stand."""
    if problem.mask is not None and not sdpa.is_square_causal(problem):
        return  # its matrix is made by whoever computes, and not here once more
    form = sdpa.sdpa_inputs(problem)
    if asked[:3] != (form.query.shape, form.key.shape, form.value.shape):
        return
    if len(DISPATCH_CACHE) >= MAX_DISPATCHES:
        DISPATCH_CACHE.clear()
    DISPATCH_CACHE[asked] = SdpaCall(form.causal, form.scale, sdpa.grouped(form), [one.value for one in sdpa.kernels(problem)])
