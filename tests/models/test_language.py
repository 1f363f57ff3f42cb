"""Causal and masked language models: algorithms 9 and 10, and what a token may see."""

import numpy as np
import pytest
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
from tiny import LANGUAGE, READING, SOURCE, TARGET, built

from regard.models.language import LanguageModelConfig, MaskedModelConfig
from regard.reference import formal_algorithms as paper
from regard.tokens import Tokens


def test_formal_algorithm_10():
    rng = np.random.default_rng(10)
    theta = drawn(rng, paper.DParameters, layers=[drawn(rng, paper.LayerParameters) for _ in range(LAYERS)])
    model = LanguageModelConfig(vocab_size=N_V, width=D_E, tie_word_embeddings=False, embedding=EMBEDDING,
                                stack=stack("pre", "gelu")).build().double()
    carry(W_e=(model.decoder.embedding.tokens.weight, theta.W_e), W_u=(model.decoder.output.weight, theta.W_u))
    carry_norm(model.decoder.stack.last_norm, theta.gamma, theta.beta)
    for block, layer in zip(model.decoder.stack.blocks, theta.layers, strict=True):
        carry_layer(block, layer)
    texts = [[1, 4, 4, 2, 8, 0], [7], [3, 3]]
    for row, x in zip(model(Tokens.of(texts)), texts, strict=True):
        assert_distributions(row[:len(x)], paper.d_transformer(x, theta))


@pytest.mark.parametrize("name", LANGUAGE)
def test_a_token_sees_none_after_it(name):
    model, ids = built(LANGUAGE[name]), torch.randint(TARGET, (1, 6))
    other = ids.clone()
    other[0, 4] = (ids[0, 4] + 1) % TARGET
    mine, theirs = model(Tokens(ids)), model(Tokens(other))
    torch.testing.assert_close(mine[:, :4], theirs[:, :4], rtol=0, atol=0)
    assert (mine[:, 4:] - theirs[:, 4:]).abs().amax() > 1e-6


def test_formal_algorithm_9():
    rng = np.random.default_rng(9)
    given = {"gamma": rng.normal(size=D_F), "beta": rng.normal(size=D_F), "W_u": rng.normal(size=(N_V, D_F))}
    theta = drawn(rng, paper.EParameters, layers=[drawn(rng, paper.LayerParameters) for _ in range(LAYERS)], **given)
    model = MaskedModelConfig(vocab_size=N_V, width=D_E, mlm_width=D_F, tie_word_embeddings=False, output_bias=False,
                              embedding=EMBEDDING, stack=stack("post", "gelu")).build().double()
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
