"""The parameters of layers in the form that `regard.reference.protein` takes."""

from regard.attention.layer import Attention
from regard.reference import protein


def affine(module):
    """A linear layer or a layer norm."""
    bias = None if module.bias is None else module.bias.detach().numpy()
    return protein.Affine(module.weight.detach().numpy(), bias)


def gated_heads(layer: Attention):
    """A layer with a gate."""
    return protein.GatedHeads(layer.heads, *(affine(getattr(layer, name))
                                             for name in ("query", "key", "value", "gate", "output")))
