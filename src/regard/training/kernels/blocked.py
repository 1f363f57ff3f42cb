"""Products with one matrix of weights again and again, by oneDNN, which torch brings along: on a CPU, in float32.

    weights = laid_out(weight)       a copy in the order in which oneDNN reads it
    product(x, weights, bias)        x Wᵀ + b

Torch itself asks MKL, which lays the weights out anew for each product. For a number of rows that it has not met oneDNN
first writes a program, which takes longer than all that it then wins: it pays for many products of one shape alone.
Measured on one thread of an AMD EPYC, the output layer of a small Transformer with its gradients (2,138 tokens of width
128, a vocabulary of 8,000, 262 tokens at a time): 160 ms in the place of 176. There are no gradients here. It knows
neither layers nor losses.
"""

import torch
from torch import Tensor, nn


def usable(*tensors: Tensor) -> bool:
    """Whether oneDNN can be asked for products of these."""
    return (all(type(tensor) in (Tensor, nn.Parameter) and tensor.device.type == "cpu"
                and tensor.dtype == torch.float32 and tensor.numel() > 0 for tensor in tensors)
            and not torch.compiler.is_compiling() and torch.backends.mkldnn.is_available()
            and hasattr(torch.ops.mkldnn, "_linear_pointwise"))


def product(x: Tensor, weights: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (N, in) times weights (out, in), as they are or laid out, plus bias (out,)."""
    made: Tensor = torch.ops.mkldnn._linear_pointwise(x, weights, bias, "none", [], "")
    return made


def laid_out(weight: Tensor) -> Tensor:
    """The weight (out, in), for `product` alone."""
    made: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
    return made
