"""The encoder-decoder: algorithm 8 of the Formal Algorithms, shared and tied tables, what is refused."""

import numpy as np
import pytest
import torch
from formal import D_E, EMBEDDING, LAYERS, N_V, assert_distributions, carry, carry_layer, drawn, stack
from tiny import LANGUAGE, built, translating

import regard
from regard.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from regard.reference import formal_algorithms as paper
from regard.tokens import Tokens
from regard.toml import ConfigError


def test_formal_algorithm_8():
    rng = np.random.default_rng(8)
    theta = drawn(rng, paper.EDParameters, encoder=[drawn(rng, paper.LayerParameters) for _ in range(LAYERS)],
                  decoder=[drawn(rng, paper.DecoderLayerParameters) for _ in range(LAYERS)])
    model = EncoderDecoderConfig(source_vocab_size=N_V, target_vocab_size=N_V, width=D_E, share_embeddings=True,
                                 tie_word_embeddings=False, embedding=EMBEDDING, encoder=stack("post", "relu"),
                                 decoder=stack("post", "relu", cross=True)).build().double()
    carry(W_e=(model.decoder.embedding.tokens.weight, theta.W_e), W_u=(model.decoder.output.weight, theta.W_u))
    for blocks, layers in ((model.encoder.stack.blocks, theta.encoder), (model.decoder.stack.blocks, theta.decoder)):
        for block, layer in zip(blocks, layers, strict=True):
            carry_layer(block, layer)
    pairs = [([1, 4, 4, 2, 8], [0, 3, 5]), ([7], [0, 6, 6, 2, 1, 1]), ([3, 3], [0])]
    logits = model(Tokens.of([z for z, _ in pairs]), Tokens.of([x for _, x in pairs]))
    for row, (z, x) in zip(logits, pairs, strict=True):
        assert_distributions(row[:len(x)], paper.ed_transformer(z, x, theta))


def test_tables_are_one_where_they_are_shared_or_tied():
    model = translating(share_embeddings=True, target_vocab_size=11, tie_word_embeddings=True).build()
    assert model.encoder.embedding.tokens.weight is model.decoder.embedding.tokens.weight
    assert model.decoder.output.weight is model.decoder.embedding.tokens.weight
    model = translating(tie_word_embeddings=False).build()
    assert model.decoder.output.weight is not model.decoder.embedding.tokens.weight


def test_dropout_is_where_it_is_asked_for():
    model = built(translating()).train()
    source, target = Tokens(torch.randint(11, (2, 3))), Tokens(torch.randint(11, (2, 3)))
    assert torch.equal(model(source, target), model(source, target))


def test_what_does_not_go_together_is_said_at_once():
    encoder, decoder = translating().encoder, translating().decoder
    with pytest.raises(ConfigError) as error:
        EncoderDecoderConfig(source_vocab_size=5, target_vocab_size=6, width=7, share_embeddings=True, encoder=decoder,
                             decoder=encoder)
    for part in ("encoder.cross", "cross is missing", "5 and 6", "2 does not divide the width, 7"):
        assert part in str(error.value)


def test_a_decoder_must_look_at_the_source():
    model = built(translating())
    with pytest.raises(ValueError, match="`decoder` must be a decoder with cross-attention"):
        EncoderDecoder(model.encoder, built(LANGUAGE["attention"]).decoder)
    with pytest.raises(ValueError, match="`decoder` must be a decoder without cross-attention"):
        regard.LanguageModel(model.decoder)
