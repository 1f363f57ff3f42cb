"""The language model: algorithm 10 of the Formal Algorithms, and what comes before cannot see what comes after."""

import numpy as np
import pytest
import torch
from formal import D_E, EMBEDDING, LAYERS, N_V, assert_distributions, carry, carry_layer, carry_norm, drawn, stack
from tiny import LANGUAGE, TARGET, built

from regard.models.language import LanguageModelConfig
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
def test_a_token_sees_none_behind_it(name):
    model, ids = built(LANGUAGE[name]), torch.randint(TARGET, (1, 6))
    other = ids.clone()
    other[0, 4] = (ids[0, 4] + 1) % TARGET
    mine, theirs = model(Tokens(ids)), model(Tokens(other))
    torch.testing.assert_close(mine[:, :4], theirs[:, :4], rtol=0, atol=0)
    assert (mine[:, 4:] - theirs[:, 4:]).abs().amax() > 1e-6
