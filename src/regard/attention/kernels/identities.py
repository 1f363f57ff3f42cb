"""Statistics of attention weights on torch's fused kernels, by identities: nothing of size N² is held or even written.

For scores that are dot products, under softmax (what `sdpa` takes); p are the weights, s = scale · q·k the scores:

    entropy       -Σ p log p = lse - Σ p s = lse - scale · q · (p K)      K, the keys, in the place of the values
    column sums   Σ_i p_ij   = the gradient of the values, where that of every output is 1
    block map     Σ over keys of a block = p · V, where V says to which block a key belongs

They serve where the mask is no matrix and there is no bias. No gradients flow from here.
"""

import torch
from torch import Tensor
from torch.nn.functional import one_hot, scaled_dot_product_attention

from regard.attention.kernels import sdpa
from regard.attention.kernels.statistics import block_counts
from regard.attention.problem import AttentionProblem

WIDTH = 64
"""At least as wide are the values that say to which block a key belongs: every fused kernel takes it."""


def refusal(problem: AttentionProblem) -> str | None:
    """Why the identities do not serve this problem; None when they do."""
    if problem.n_queries == 0 or problem.n_keys == 0:
        return "there are no queries or no keys"
    if problem.query.device.type == "cuda" and problem.query.dtype == torch.float64:
        return "no fused kernel of a GPU computes in float64"
    if problem.bias is not None:
        return "the sum of weight times bias is none of the identities"
    if sdpa.matrix_entries(problem):
        return "the mask would be a matrix as large as that of the weights"
    return sdpa.refusal(problem)


@torch.no_grad()
def entropy(problem: AttentionProblem) -> Tensor:
    """-Σ p log p of every row: (..., Q)."""
    assert problem.bias is None, "the entropy of biased scores needs the sum of p · bias"
    form = _shape(problem)
    mean_key, lse = _with_lse(form)
    # In float32 at least: the two terms are large and nearly equal where the weights are sharp.
    wide = torch.promote_types(problem.query.dtype, torch.float32)
    mean_score = form.scale * (form.query.to(wide) * mean_key.to(wide)).sum(-1)
    result = (lse.to(wide) - mean_score).clamp(min=0.0)
    if form.empty is not None:
        result = result.masked_fill(form.empty.squeeze(-1), 0.0)
    return result.to(problem.query.dtype).reshape(*problem.leading, problem.n_queries)


def column_sums(problem: AttentionProblem) -> Tensor:
    """What each key receives in all: (..., K)."""
    form = _shape(problem)
    with torch.enable_grad():
        value = torch.zeros_like(form.key).requires_grad_()
        output = _attend(form._replace(query=form.query.detach(), key=form.key.detach()), value)
    upstream = torch.ones_like(output)
    if form.empty is not None:
        upstream = upstream.masked_fill(form.empty, 0.0)
    (gradient,) = torch.autograd.grad(output, value, upstream)
    return gradient[..., 0].reshape(*problem.leading, problem.n_keys)


@torch.no_grad()
def block_map(problem: AttentionProblem, size: int) -> Tensor:
    """The mean weight of every size × size block; one attention for every 64 blocks of keys or more."""
    form = _shape(problem)
    width = max(WIDTH, form.query.shape[-1])  # one width for all, or torch leaves its fused kernels
    form = form._replace(query=_widened(form.query, width), key=_widened(form.key, width))
    across = -(-problem.n_keys // size)
    block_of_key = torch.arange(problem.n_keys, device=problem.query.device) // size
    pieces = []
    for first in range(0, across, width):
        value = one_hot((block_of_key - first).clamp(-1, width) + 1, width + 2)[:, 1:-1].to(form.query.dtype)
        sums = _attend(form, value.expand(*form.query.shape[:2], -1, -1))
        if form.empty is not None:
            sums = sums.masked_fill(form.empty, 0.0)
        pieces.append(sums[..., :across - first])
    sums_QM = torch.cat(pieces, dim=-1).to(torch.promote_types(problem.query.dtype, torch.float32))
    down = -(-problem.n_queries // size)
    filled = torch.nn.functional.pad(sums_QM, (0, 0, 0, down * size - problem.n_queries))
    total = filled.unflatten(-2, (down, size)).sum(-2)
    result = (total / block_counts(problem, size)).to(problem.query.dtype)
    return result.reshape(*problem.leading, down, across)


def _shape(problem: AttentionProblem) -> sdpa.SdpaInputs:
    """The kernels' form, with as many heads of keys as of queries."""
    form = sdpa.sdpa_inputs(problem.spread())
    return form._replace(key=form.key.expand(*form.query.shape[:2], -1, -1))


def _attend(form: sdpa.SdpaInputs, value: Tensor) -> Tensor:
    return scaled_dot_product_attention(form.query, form.key, value, form.matrix, 0.0, form.causal, scale=form.scale)


def _with_lse(form: sdpa.SdpaInputs) -> tuple[Tensor, Tensor]:
    """The mean key of every row under its weights, and log Σ exp of its scores."""
    matrix, width = form.matrix, form.query.shape[-1]
    if matrix is not None and matrix.dtype == torch.bool:
        matrix = torch.zeros_like(matrix, dtype=form.query.dtype).masked_fill(~matrix, -torch.inf)
    if form.query.device.type == "cpu":
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        output, lse = kernel(form.query, form.key, form.key, 0.0, form.causal, attn_mask=matrix, scale=form.scale)
        return output, lse
    if matrix is not None:  # the kernel wants it whole, with rows that begin at multiples of 16 bytes
        n_queries, n_keys = form.query.shape[-2], form.key.shape[-2]
        whole = torch.nn.functional.pad(matrix.expand(*form.query.shape[:2], n_queries, n_keys), (0, -n_keys % 8))
        matrix = whole[..., :n_keys]
    query, key = (_widened(tensor, width + -width % 8) for tensor in (form.query, form.key))
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention
    output, lse, _, _ = kernel(query, key, key, matrix, True, 0.0, form.causal, scale=form.scale)
    return output[..., :width], lse[..., :form.query.shape[-2]]


def _widened(tensor: Tensor, width: int) -> Tensor:
    """Zeros behind the features: they change no dot product."""
    return torch.nn.functional.pad(tensor, (0, width - tensor.shape[-1]))
