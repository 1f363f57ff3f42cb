"""Formal Algorithms 8, 9 and 10: random parameters of the paper, and how they are carried into our models."""


import numpy as np
import torch

from regard.attention.layer import AttentionConfig, SelfAttentionConfig
from regard.blocks.feed_forward import FeedForwardConfig
from regard.blocks.stack import StackConfig
from regard.models.embedding import EmbeddingConfig
from regard.position.encoding import FormalSinusoidalConfig
from regard.reference import formal_algorithms
from regard.reference import formal_algorithms as paper
from regard.reference.position import sinusoidal_formal

N_V, L_MAX, D_E, HEADS, D_ATTN, D_MLP, D_F, LAYERS = 9, 12, 6, 2, 4, 7, 5, 3
EMBEDDING = EmbeddingConfig(positions=FormalSinusoidalConfig(max_length=L_MAX))


def stack(order, activation, cross=False):
    """The blocks of the paper: no ε in its norms."""
    return StackConfig(layers=LAYERS, norm_position=order, epsilon=0.0,
                       mixer=SelfAttentionConfig(heads=HEADS, head_width=D_ATTN),
                       cross=AttentionConfig(heads=HEADS, head_width=D_ATTN) if cross else None,
                       feed_forward=FeedForwardConfig(ffn_width=D_MLP, activation=activation))


def drawn(rng, kind, **given):
    """The paper's parameters, drawn by their names."""
    shapes = {"W_e": (N_V, D_E), "W_u": (N_V, D_E), "W_f": (D_F, D_E), "b_f": D_F, "W_mlp1": (D_MLP, D_E),
              "W_mlp2": (D_E, D_MLP), "W_mlp3": (D_MLP, D_E), "W_mlp4": (D_E, D_MLP), "b_mlp1": D_MLP, "b_mlp3": D_MLP}
    values = dict(given)
    for name in kind.__dataclass_fields__:
        if name in ("attention", "cross"):
            values[name] = heads(rng)
        elif name == "W_p":
            values[name] = np.array([sinusoidal_formal(t, D_E, L_MAX) for t in range(1, L_MAX + 1)])
        elif name not in values:
            values[name] = rng.normal(size=shapes.get(name, D_E))
    return kind(**values)


def heads(rng):
    shapes = {"W_q": (D_ATTN, D_E), "b_q": D_ATTN, "W_k": (D_ATTN, D_E), "b_k": D_ATTN, "W_v": (D_ATTN, D_E),
              "b_v": D_ATTN}
    each = [formal_algorithms.AttentionParameters(**{name: rng.normal(size=shape) for name, shape in shapes.items()})
            for _ in range(HEADS)]
    return formal_algorithms.MultiHeadParameters(each, rng.normal(size=(D_E, HEADS * D_ATTN)), rng.normal(size=D_E))


@torch.no_grad()
def carry(**pairs):
    """Write arrays into parameters of our models, given as pairs (parameter, array)."""
    for parameter, array in pairs.values():
        assert tuple(parameter.shape) == np.shape(array)
        parameter.copy_(torch.as_tensor(np.asarray(array)))


def carry_attention(layer, theirs):
    """Algorithm 5's parameters into an attention layer: heads one under the other."""
    for name, linear in (("q", layer.query), ("k", layer.key), ("v", layer.value)):
        carry(weight=(linear.weight, np.concatenate([getattr(head, f"W_{name}") for head in theirs.heads])),
              bias=(linear.bias, np.concatenate([getattr(head, f"b_{name}") for head in theirs.heads])))
    carry(weight=(layer.output.weight, theirs.W_o), bias=(layer.output.bias, theirs.b_o))


def carry_norm(norm, gamma, beta):
    carry(gamma=(norm.weight, gamma), beta=(norm.bias, beta))


def carry_layer(block, theirs):
    """One layer of the paper into a block."""
    decoder = isinstance(theirs, paper.DecoderLayerParameters)
    first, last = (3, 4) if decoder else (1, 2)
    carry_attention(block.mixer.layer, theirs.attention)
    for linear, k in ((block.feed_forward.up, first), (block.feed_forward.down, last)):
        carry(weight=(linear.weight, getattr(theirs, f"W_mlp{k}")), bias=(linear.bias, getattr(theirs, f"b_mlp{k}")))
    norms = [block.around_mixer.norm, block.around_feed_forward.norm]
    if decoder:
        carry_attention(block.cross, theirs.cross)
        norms.insert(1, block.around_cross.norm)
    for k, norm in enumerate(norms, start=3 if decoder else 1):
        carry_norm(norm, getattr(theirs, f"gamma_{k}"), getattr(theirs, f"beta_{k}"))


def assert_distributions(logits, want):
    """The softmax of our logits is the paper's P, to 1e-11."""
    np.testing.assert_allclose(torch.softmax(logits, -1).detach().numpy(), want, rtol=1e-11, atol=1e-13)
