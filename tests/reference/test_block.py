"""Blocks against torch's encoder layer in both orders, and the gated MLP against torch functions."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from regard.reference import attention, blocks

WIDTH, HEADS, HIDDEN = 6, 2, 8


def array(parameter):
    return parameter.detach().numpy()


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize(("ours", "theirs"), [(blocks.relu, functional.relu), (blocks.gelu, functional.gelu)])
def test_a_block_is_torchs_encoder_layer(norm_first, ours, theirs):
    torch.set_default_dtype(torch.float64)
    layer = torch.nn.TransformerEncoderLayer(
        WIDTH, HEADS, HIDDEN, dropout=0.0, activation=theirs, batch_first=True, norm_first=norm_first
    )
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    W_Q, W_K, W_V = array(layer.self_attn.in_proj_weight).reshape(3, HEADS, -1, WIDTH)
    b_Q, b_K, b_V = array(layer.self_attn.in_proj_bias).reshape(3, HEADS, -1)
    heads = [attention.Head(W_Q[h], W_K[h], W_V[h], b_Q[h], b_K[h], b_V[h]) for h in range(HEADS)]
    out, mask = layer.self_attn.out_proj, attention.causal(5, 5)
    parts = {
        "mixer": lambda X: attention.multi_head(X, X, heads, array(out.weight), array(out.bias), mask=mask),
        "norm_1": lambda x: blocks.layer_norm(x, array(layer.norm1.weight), array(layer.norm1.bias)),
        "norm_2": lambda x: blocks.layer_norm(x, array(layer.norm2.weight), array(layer.norm2.bias)),
        "mlp": lambda x: blocks.mlp(
            x, *map(array, (layer.linear1.weight, layer.linear1.bias, layer.linear2.weight, layer.linear2.bias)), ours
        ),
    }
    X = np.random.default_rng(1).normal(size=(5, WIDTH))
    result = (blocks.pre_norm_block if norm_first else blocks.post_norm_block)(X, **parts)
    expected = layer(torch.tensor(X)[None], src_mask=torch.tensor(~mask))[0]
    np.testing.assert_allclose(result, array(expected), rtol=1e-11, atol=1e-12)


def test_mlp_swiglu():
    rng = np.random.default_rng(2)
    x, gate, up, down = rng.normal(size=3), rng.normal(size=(4, 3)), rng.normal(size=(4, 3)), rng.normal(size=(2, 4))
    inner = functional.silu(torch.tensor(gate @ x)).numpy() * (up @ x)
    np.testing.assert_allclose(blocks.mlp_swiglu(x, gate, up, down), down @ inner, rtol=1e-12)
