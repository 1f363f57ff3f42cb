"""Labels for tokens and for sequences: which vector stands for a sequence."""

import pytest
import torch
from tiny import READING, SOURCE, built, reading

from regard.models.classification import ClassifierConfig, TaggerConfig
from regard.tokens import PackedTokens, Tokens

TOKENS = Tokens(torch.randint(SOURCE, (3, 6), generator=torch.Generator().manual_seed(0)), torch.tensor([6, 1, 4]))


@pytest.mark.parametrize(("pooling", "pooled"), [
    ("first", lambda states, length: states[0]),
    ("last", lambda states, length: states[length - 1]),
    ("mean", lambda states, length: states[:length].mean(0)),
])
@pytest.mark.parametrize("between", ["none", "tanh"])
def test_the_vector_of_a_sequence(pooling, pooled, between):
    model = built(reading(ClassifierConfig, num_labels=3, pooling=pooling, pooler_activation=between))
    states, logits = model.encode(TOKENS).states, model(TOKENS)
    assert logits.shape == (3, 3)
    for b, length in enumerate(TOKENS.lengths.tolist()):
        vector = pooled(states[b], length)
        if between == "tanh":
            vector = torch.tanh(model.between(vector))
        torch.testing.assert_close(logits[b], model.output(vector))


@pytest.mark.parametrize("pooling", ["first", "last", "mean"])
def test_a_row_without_tokens_is_the_same_in_any_company(pooling):
    model = built(reading(ClassifierConfig, num_labels=3, pooling=pooling))
    alone = model(Tokens.of([[]]))
    for filled in (0, 1):
        torch.testing.assert_close(model(Tokens.of([[], [1, 2]], padding=filled))[:1], alone)
    torch.testing.assert_close(model(PackedTokens.of([[], [1, 2]]))[:1], alone)
    assert model(PackedTokens.of([])).shape == model(Tokens.of([])).shape == (0, 3)


def test_every_token_has_logits():
    model = built(reading(TaggerConfig, num_labels=4))
    assert torch.equal(model(TOKENS), model.output(model.encode(TOKENS).states))


def test_dropout_is_before_the_labels():
    model = built(reading(ClassifierConfig, num_labels=3, dropout=0.5)).train()
    assert not torch.equal(model(TOKENS), model(TOKENS))
    assert torch.equal(model.eval()(TOKENS), model(TOKENS))


def test_names_are_checked():
    encoder = READING["encoder"].build()
    with pytest.raises(ValueError, match='`pooling` must be one of "first", "last", "mean", but is "max"'):
        type(READING["first"].build())(encoder, 3, pooling="max")
