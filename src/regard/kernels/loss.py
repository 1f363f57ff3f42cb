"""Triton kernels for cross entropy with label smoothing and for R-Drop, on a chunk of logits.

    own = log Σ exp z - z_label                     spread = log Σ exp z - mean of z
    loss = (1 - ε) own + ε spread                   ∂z_v = exp(z_v - log Σ exp z) - (1 - ε) [v = label] - ε / V
    KL(p‖q) = Σ p (z - z') - (log Σ exp z - log Σ exp z')        z, z' the logits that p and q are made of

One program handles one token: it reads the logits once for the sums, with the running maximum subtracted (online
softmax), and once more for the gradient, which overwrites them. Sums are in float32. A token whose label is ignored
counts nothing; a label outside the vocabulary makes the loss NaN, since a kernel cannot raise.

Legend: P passes (2), C tokens, V vocabulary.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.kernels import launch

BLOCK, WARPS = 4096, 8
"""Logits that a program reads at a time, of each pass, and its warps."""


@triton.jit
def _cross_entropy_kernel(logits: tl.tensor, labels: tl.tensor, own: tl.tensor, spread: tl.tensor,
                          vocabulary: tl.tensor, smoothing: tl.tensor, ignored: tl.constexpr, block: tl.constexpr,
                          gradients: tl.constexpr) -> None:
    """own, spread (C,) of logits (C, V) and labels (C,); gradients overwrite the logits if they are wanted."""
    token = tl.program_id(0)
    at = logits + token.to(tl.int64) * vocabulary
    label = tl.load(labels + token)
    column = tl.arange(0, block)
    if label == ignored:
        tl.store(own + token, 0.0)
        tl.store(spread + token, 0.0)
        if gradients:
            nothing = tl.zeros((block,), tl.float32).to(logits.dtype.element_ty)
            for start in range(0, vocabulary, block):
                tl.store(at + start + column, nothing, mask=start + column < vocabulary)
    else:
        named = (label >= 0) & (label < vocabulary)
        of_label = tl.load(at + label, mask=named, other=float("nan")).to(tl.float32)
        highest, total, plain = -3.4e38, 0.0, 0.0  # nearly the lowest; unlike -inf it can be subtracted from itself
        for start in range(0, vocabulary, block):
            there = start + column < vocabulary
            z = tl.load(at + start + column, mask=there, other=float("-inf")).to(tl.float32)
            higher = tl.maximum(highest, tl.max(z, 0))
            total = total * tl.exp(highest - higher) + tl.sum(tl.exp(z - higher), 0)
            plain += tl.sum(tl.where(there, z, 0.0), 0)
            highest = higher
        tl.store(own + token, highest - of_label + tl.log(total))  # in this order, since logits may be much larger
        tl.store(spread + token, highest - plain / vocabulary + tl.log(total))
        if gradients:
            everywhere = smoothing / vocabulary
            for start in range(0, vocabulary, block):
                there = start + column < vocabulary
                z = tl.load(at + start + column, mask=there, other=float("-inf")).to(tl.float32)
                wanted = tl.where(start + column == label, everywhere + (1.0 - smoothing), everywhere)
                slope = tl.exp(z - highest) / total - wanted
                tl.store(at + start + column, slope.to(logits.dtype.element_ty), mask=there)


def cross_entropy(logits: Tensor, labels: Tensor, ignored: int, smoothing: float, *,
                  gradients: bool) -> tuple[Tensor, Tensor]:
    """own and spread of each token, (C,) in float32, of logits (C, V).

    With `gradients`, the gradient of the summed loss overwrites the logits.
    """
    assert logits.is_contiguous()
    count, vocabulary = logits.shape
    own, spread = torch.empty(2, count, dtype=torch.float32, device=logits.device)
    block = min(BLOCK, triton.next_power_of_2(vocabulary))
    launch.launch(_cross_entropy_kernel, (count,), logits, labels.contiguous(), own, spread, vocabulary, smoothing,
                  ignored, block, gradients, num_warps=WARPS)
    return own, spread


@triton.jit
def _rdrop_kernel(logits: tl.tensor, labels: tl.tensor, own: tl.tensor, spread: tl.tensor, divergence: tl.tensor,
                  count: tl.tensor, vocabulary: tl.tensor, smoothing: tl.tensor, quarter: tl.tensor,
                  ignored: tl.constexpr, block: tl.constexpr, gradients: tl.constexpr) -> None:
    """own, spread, divergence (C,), each the mean of both passes, of logits (P, C, V); gradients overwrite these."""
    token = tl.program_id(0)
    first = logits + token.to(tl.int64) * vocabulary
    second = logits + (token.to(tl.int64) + count) * vocabulary
    label = tl.load(labels + token)
    column = tl.arange(0, block)
    if label == ignored:
        tl.store(own + token, 0.0)
        tl.store(spread + token, 0.0)
        tl.store(divergence + token, 0.0)
        if gradients:
            nothing = tl.zeros((block,), tl.float32).to(logits.dtype.element_ty)
            for start in range(0, vocabulary, block):
                tl.store(first + start + column, nothing, mask=start + column < vocabulary)
                tl.store(second + start + column, nothing, mask=start + column < vocabulary)
    else:
        named = (label >= 0) & (label < vocabulary)
        label_p = tl.load(first + label, mask=named, other=float("nan")).to(tl.float32)
        label_q = tl.load(second + label, mask=named, other=float("nan")).to(tl.float32)
        highest_p, total_p, toward_p = -3.4e38, 0.0, 0.0  # unlike -inf it can be subtracted from itself
        highest_q, total_q, toward_q = -3.4e38, 0.0, 0.0
        plain = 0.0
        for start in range(0, vocabulary, block):
            there = start + column < vocabulary
            z_p = tl.load(first + start + column, mask=there, other=0.0).to(tl.float32)
            z_q = tl.load(second + start + column, mask=there, other=0.0).to(tl.float32)
            apart = z_p - z_q
            plain += tl.sum(z_p + z_q, 0)
            higher = tl.maximum(highest_p, tl.max(tl.where(there, z_p, -3.4e38), 0))
            e = tl.where(there, tl.exp(z_p - higher), 0.0)
            less = tl.exp(highest_p - higher)
            total_p = total_p * less + tl.sum(e, 0)
            toward_p = toward_p * less + tl.sum(e * apart, 0)
            highest_p = higher
            higher = tl.maximum(highest_q, tl.max(tl.where(there, z_q, -3.4e38), 0))
            e = tl.where(there, tl.exp(z_q - higher), 0.0)
            less = tl.exp(highest_q - higher)
            total_q = total_q * less + tl.sum(e, 0)
            toward_q = toward_q * less + tl.sum(e * apart, 0)
            highest_q = higher
        log_p = tl.log(total_p)
        log_q = tl.log(total_q)
        between = highest_p - highest_q + (log_p - log_q)  # in this order, since logits may be much larger
        divergence_p = toward_p / total_p - between
        divergence_q = between - toward_q / total_q
        tl.store(own + token, 0.5 * ((highest_p - label_p) + (highest_q - label_q) + (log_p + log_q)))
        tl.store(spread + token, 0.5 * (highest_p + highest_q - plain / vocabulary + (log_p + log_q)))
        tl.store(divergence + token, 0.5 * (divergence_p + divergence_q))
        if gradients:
            everywhere = 0.5 * smoothing / vocabulary
            for start in range(0, vocabulary, block):
                there = start + column < vocabulary
                z_p = tl.load(first + start + column, mask=there, other=0.0).to(tl.float32)
                z_q = tl.load(second + start + column, mask=there, other=0.0).to(tl.float32)
                p = tl.exp(z_p - highest_p) / total_p
                q = tl.exp(z_q - highest_q) / total_q
                apart = quarter * (z_p - z_q - between)
                here = tl.where(start + column == label, 0.5 * (1.0 - smoothing), 0.0) + everywhere
                of_p = p * (0.5 + quarter + apart - quarter * divergence_p) - quarter * q - here
                of_q = q * (0.5 + quarter - apart - quarter * divergence_q) - quarter * p - here
                tl.store(first + start + column, of_p.to(logits.dtype.element_ty), mask=there)
                tl.store(second + start + column, of_q.to(logits.dtype.element_ty), mask=there)


def rdrop(logits: Tensor, labels: Tensor, ignored: int, smoothing: float, weight: float, *,
          gradients: bool) -> tuple[Tensor, Tensor, Tensor]:
    """own, spread and divergence, each the mean of both passes, (C,) in float32, of logits (P, C, V).

    With `gradients`, the gradient of the summed loss overwrites the logits.
    """
    assert logits.is_contiguous()
    _, count, vocabulary = logits.shape
    own, spread, divergence = torch.empty(3, count, dtype=torch.float32, device=logits.device)
    block = min(BLOCK, triton.next_power_of_2(vocabulary))
    launch.launch(_rdrop_kernel, (count,), logits, labels.contiguous(), own, spread, divergence, count, vocabulary,
                  smoothing, 0.25 * weight, ignored, block, gradients, num_warps=WARPS)
    return own, spread, divergence
