"""`attend`: the one entry point of attention, for every score, normaliser, mask and backend.

    weights = normalize(score(query, key) + bias), over the keys that the mask allows
    output  = dropout(weights) · value

`scale` replaces the scale of a dot product, and `softcap` limits the score: c · tanh(score / c), before the bias.

Tokens are rows: query (..., queries, Dq), key (..., keys, Dk), value (..., keys, Dv) give (..., queries, Dv). Leading
dimensions broadcast; the one before the tokens is heads, of which key and value may have fewer (grouped heads). A query
that may attend to nothing gets zeros. `problem` checks the arguments, `backends` chooses and computes.

Checking a call and asking every backend takes 40 µs of Python, and up to five times as much right after Python was
idle; a forward pass over 4,096 tokens takes no more than 1,000 µs on a GPU. Where score and normaliser are names (or
the score a dot product with another scale), there is no bias and no dropout, and the mask is None or `Causal()`, the
choice depends on names, shapes, dtypes and devices alone: it is kept in a dispatch cache, and the same call goes
straight to torch's kernel in a few µs.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from regard.attention import backends
from regard.attention.fused import SDPA, is_square_causal, kernel_priority, sdpa_inputs, sdpa_kernels
from regard.attention.mask import Causal, Mask
from regard.attention.normalize import NormalizerLike
from regard.attention.problem import AttentionProblem, build_problem
from regard.attention.score import Dot, ScoreLike, adjust_score
from regard.kernels.dispatch import Explanation
from regard.kernels.launch import in_torch_func
from regard.position.bias import Bias


def attend(query: Tensor, key: Tensor, value: Tensor, *, score: ScoreLike = "scaled_dot",
           normalize: NormalizerLike = "softmax", mask: Mask | Tensor | None = None, bias: Tensor | Bias | None = None,
           scale: float | None = None, softcap: float | None = None, dropout: float = 0.0,
           backend: str | None = None) -> Tensor:
    """Compute attention: for every query, the average of the values, weighted by how well their keys match.

        weights = normalize(score(query, key) + bias), over the keys that the mask allows
        output  = dropout(weights) · value

    A query that may attend to nothing gets zeros and zero gradients.

    Args:
        query: (..., heads, queries, Dq), or (queries, Dq).
        key: (..., key heads, keys, Dk); the number of key heads divides the number of heads.
        value: (..., key heads, keys, Dv).
        score: "dot", "scaled_dot", "scaled_dot_d", a `Score` such as `Additive(weight)`, or a function of a block of
            queries and a block of keys.
        normalize: "softmax", "relu" (divided by the number of keys), "relu_sum", "sigmoid", a `Normalizer`, or a
            function of rows of scores.
        mask: which keys a query may attend to: `Causal()`, `Padding(lengths)`, ..., or a bool tensor (True: may).
            `Causal()` is aligned to the bottom right: the last query attends to all keys. `Causal() & Placed(0)` is
            aligned to the top left, as torch's `is_causal`: the first query attends to the first key.
        bias: added to the scores: a tensor that broadcasts to (..., queries, keys), or a `Bias` such as `ALiBi`.
        scale: the scale of a dot product, in the place of the score's own (1/√Dq for "scaled_dot").
        softcap: limits the scores smoothly to ±softcap, by softcap · tanh(score / softcap), before bias and mask are
            applied; Gemma 2 uses 50.
        dropout: the probability of dropping a weight; pass 0 outside training.
        backend: "exact", "tiled", "sdpa", "shared_bias", "flex", "pointwise", "agents", "band" or "segments"; by
            default the fastest that can do the work. Naming one that cannot is an error.

    Returns:
        The output, (..., heads, queries, Dv).

    Example:
        import torch
        import regard

        query, key, value = torch.randn(3, 2, 8, 100, 64)           # 2 sequences, 8 heads, 100 tokens, width 64
        output = regard.attend(query, key, value, mask=regard.Causal())
        assert output.shape == (2, 8, 100, 64)
    """
    score = adjust_score(score, scale, softcap)
    cache_key = None if torch.compiler.is_compiling() or in_torch_func() else dispatch_key(
        query, key, value, score=score, normalize=normalize, mask=mask, bias=bias, dropout=dropout, backend=backend)
    call = None if cache_key is None else DISPATCH_CACHE.get(cache_key)
    if call is not None:
        return call(query, key, value)
    problem = build_problem(query, key, value, score=score, normalize=normalize, mask=mask, bias=bias, dropout=dropout)
    chosen = backends.choose_backend(problem, backend)
    if cache_key is not None and chosen is SDPA:
        remember_dispatch(cache_key, problem)
    return chosen.run(problem)


def attention_weights(query: Tensor, key: Tensor, *, score: ScoreLike = "scaled_dot",
                      normalize: NormalizerLike = "softmax", mask: Mask | Tensor | None = None,
                      bias: Tensor | Bias | None = None, scale: float | None = None,
                      softcap: float | None = None) -> Tensor:
    """Compute the whole matrix of weights that `attend` uses.

    It holds queries × keys numbers for each head; `Look` computes statistics of long sequences without it.

    Args:
        query: (..., heads, queries, Dq), or (queries, Dq).
        key: (..., key heads, keys, Dk).
        score, normalize, mask, bias, scale, softcap: as for `attend`.

    Returns:
        The weights, (..., heads, queries, keys).
    """
    problem = build_problem(query, key, key, score=adjust_score(score, scale, softcap), normalize=normalize, mask=mask,
                            bias=bias, dropout=0.0)
    return backends.exact_weights(problem)


def explain(query: Tensor, key: Tensor, value: Tensor, *, score: ScoreLike = "scaled_dot",
            normalize: NormalizerLike = "softmax", mask: Mask | Tensor | None = None, bias: Tensor | Bias | None = None,
            scale: float | None = None, softcap: float | None = None, dropout: float = 0.0,
            backend: str | None = None) -> Explanation:
    """Tell which backend `attend` uses for these arguments, and why each faster one does not run.

    Args:
        query, key, value, score, normalize, mask, bias, scale, softcap, dropout, backend: as for `attend`.

    Returns:
        An explanation; printed, it has a line for each backend.
    """
    problem = build_problem(query, key, value, score=adjust_score(score, scale, softcap), normalize=normalize,
                            mask=mask, bias=bias, dropout=dropout)
    return backends.explain_choice(problem, backend)


DispatchKey = tuple[Any, ...]


class SdpaCall(NamedTuple):
    """A call of `scaled_dot_product_attention`, without its tensors."""

    causal: bool
    scale: float
    grouped: bool
    order: list[int]
    """The order in which torch tries its kernels, by their numbers; empty for torch's own order."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if not self.order:
            return self._run(query, key, value)
        with kernel_priority(self.order):
            return self._run(query, key, value)

    def _run(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return scaled_dot_product_attention(query, key, value, None, 0.0, self.causal, scale=self.scale,
                                            enable_gqa=self.grouped)


DISPATCH_CACHE: dict[DispatchKey, SdpaCall] = {}
MAX_DISPATCHES = 4096
"""When the dispatch cache is full, it is emptied."""


def dispatch_key(query: object, key: object, value: object, *, score: object, normalize: object, mask: object,
                 bias: object, dropout: object, backend: object) -> DispatchKey | None:
    """Everything that the choice depends on; None where it may depend on more. It is not for compiled graphs."""
    if bias is not None or backend is not None or (mask is not None and type(mask) is not Causal):
        return None
    if type(dropout) is not float or dropout != 0.0:
        return None
    if not (type(query) is type(key) is type(value) is Tensor and type(normalize) is str):
        return None
    if type(score) is not str and type(score) is not Dot:  # equal ones compute the same
        return None
    return (query.shape, key.shape, value.shape, query.dtype, key.dtype, value.dtype, query.device, key.device,
            value.device, score, normalize, mask is None)


def remember_dispatch(cache_key: DispatchKey, problem: AttentionProblem) -> None:
    """Keep how `sdpa`, which was chosen for this problem, computes it, if it takes the tensors unchanged."""
    if problem.mask is not None and not is_square_causal(problem):
        return  # it needs a matrix, which only the computation should make
    inputs = sdpa_inputs(problem)
    if cache_key[:3] != (inputs.query.shape, inputs.key.shape, inputs.value.shape):
        return
    if len(DISPATCH_CACHE) >= MAX_DISPATCHES:
        DISPATCH_CACHE.clear()
    order = [kernel.value for kernel in sdpa_kernels(problem)]
    DISPATCH_CACHE[cache_key] = SdpaCall(inputs.causal, inputs.scale, inputs.grouped, order)
