"""The masked model: algorithm 9 of the Formal Algorithms, and both sides are seen."""

import numpy as np
import torch
from formal import (
    D_E,
    D_F,
    EMBEDDING,
    LAYERS,
    N_V,
    assert_distributions,
    carry,
    carry_layer,
    carry_norm,
    drawn,
    stack,
)
from tiny import READING, SOURCE, built

from regard.models.language import MaskedModelConfig
from regard.reference import formal_algorithms as paper
from regard.tokens import Tokens


def test_formal_algorithm_9():
    rng = np.random.default_rng(9)
    given = {"gamma": rng.normal(size=D_F), "beta": rng.normal(size=D_F), "W_u": rng.normal(size=(N_V, D_F))}
    theta = drawn(rng, paper.EParameters, layers=[drawn(rng, paper.LayerParameters) for _ in range(LAYERS)], **given)
    model = MaskedModelConfig(vocab_size=N_V, width=D_E, mlm_width=D_F, tie_word_embeddings=False, output_bias=False, embedding=EMBEDDING,
                         stack=stack("post", "gelu")).build().double()
    head = model.head
    carry(W_e=(model.encoder.embedding.tokens.weight, theta.W_e), W_u=(head.output.weight, theta.W_u),
          W_f=(head.dense.weight, theta.W_f), b_f=(head.dense.bias, theta.b_f))
    carry_norm(head.norm, theta.gamma, theta.beta)
    for block, layer in zip(model.encoder.stack.blocks, theta.layers, strict=True):
        carry_layer(block, layer)
    texts = [[1, 4, 4, 2, 8, 0], [7], [3, 3]]
    for row, x in zip(model(Tokens.of(texts)), texts, strict=True):
        assert_distributions(row[:len(x)], paper.e_transformer(x, theta))


def test_every_token_is_seen_from_both_sides():
    model, ids = built(READING["masked"]), torch.randint(SOURCE, (1, 5))
    before = model(Tokens(ids))
    for place in range(5):
        other = ids.clone()
        other[0, place] = (ids[0, place] + 1) % SOURCE
        assert ((model(Tokens(other)) - before).abs().amax(-1) > 1e-6).all()


def test_segments_are_told_apart():
    model, ids = built(READING["masked"]), torch.randint(SOURCE, (2, 5))
    zeros = torch.zeros_like(ids)
    assert torch.equal(model(Tokens(ids)), model(Tokens(ids, segments=zeros)))
    assert not torch.allclose(model(Tokens(ids)), model(Tokens(ids, segments=1 - zeros)))
