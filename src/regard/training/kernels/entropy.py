"""Cross entropy of a chunk of logits on a GPU, written over by its own gradient, without a wider copy.

    own = log Σ exp z - z_label                     spread = log Σ exp z - mean of z
    loss = (1 - ε) own + ε spread                   ∂z_v = exp(z_v - log Σ exp z) - (1 - ε) [v = label] - ε / V

A program has one token. It reads its logits once for the sums, with the largest so far taken out (as in online
softmax), and once more for the gradient, which then stands in their place. Sums are in float32. A token whose label is
`IGNORED` counts nothing; one whose label names no token of the vocabulary makes the loss NaN, for a kernel cannot
complain. It does not know where logits come from.

Legend: C tokens, V vocabulary.
"""

import torch
import triton  # type: ignore[import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-untyped, unused-ignore]
from torch import Tensor

from regard import kernels

BLOCK, WARPS = 4096, 8
"""Logits that a program reads at a time, and what it reads them with."""


@triton.jit
def _entropy(logits: tl.tensor, labels: tl.tensor, own: tl.tensor, spread: tl.tensor, vocabulary: tl.tensor,
             smoothing: tl.tensor, ignored: tl.constexpr, block: tl.constexpr, gradients: tl.constexpr) -> None:
    """own, spread (C,) of logits (C, V) and labels (C,); logits become gradients where these are wanted."""
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
        highest, total, plain = -3.4e38, 0.0, 0.0  # nearly the lowest; unlike -inf it can be taken from itself
        for start in range(0, vocabulary, block):
            there = start + column < vocabulary
            z = tl.load(at + start + column, mask=there, other=float("-inf")).to(tl.float32)
            higher = tl.maximum(highest, tl.max(z, 0))
            total = total * tl.exp(highest - higher) + tl.sum(tl.exp(z - higher), 0)
            plain += tl.sum(tl.where(there, z, 0.0), 0)
            highest = higher
        tl.store(own + token, highest - of_label + tl.log(total))  # in this order: logits may be much larger
        tl.store(spread + token, highest - plain / vocabulary + tl.log(total))
        if gradients:
            everywhere = smoothing / vocabulary
            for start in range(0, vocabulary, block):
                there = start + column < vocabulary
                z = tl.load(at + start + column, mask=there, other=float("-inf")).to(tl.float32)
                wanted = tl.where(start + column == label, everywhere + (1.0 - smoothing), everywhere)
                slope = tl.exp(z - highest) / total - wanted
                tl.store(at + start + column, slope.to(logits.dtype.element_ty), mask=there)


def losses(logits: Tensor, labels: Tensor, ignored: int, smoothing: float) -> tuple[Tensor, Tensor]:
    """own and spread of each token, (C,) in float32, of logits (C, V), which stay as they are."""
    return _run(logits, labels, ignored, smoothing, gradients=False)


def losses_and_gradients(logits: Tensor, labels: Tensor, ignored: int, smoothing: float) -> tuple[Tensor, Tensor]:
    """The same; afterwards the gradient of the sum of all losses stands in the place of the logits."""
    return _run(logits, labels, ignored, smoothing, gradients=True)


def _run(logits: Tensor, labels: Tensor, ignored: int, smoothing: float, *, gradients: bool) -> tuple[Tensor, Tensor]:
    assert logits.is_contiguous()
    count, vocabulary = logits.shape
    own, spread = torch.empty(2, count, dtype=torch.float32, device=logits.device)
    block = min(BLOCK, triton.next_power_of_2(vocabulary))
    kernels.launch(_entropy, (count,), logits, labels.contiguous(), own, spread, vocabulary, smoothing, ignored, block,
                   gradients, num_warps=WARPS)
    return own, spread
