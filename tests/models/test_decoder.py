"""A decoder that goes on: features without logits, and memories that can be taken out and put back."""

import pytest
import torch
from tiny import LANGUAGE, TARGET, built

from regard.tokens import Tokens

CARRIED = ("recurrence", "convolution", "old", "old mut2")


@pytest.mark.parametrize("name", LANGUAGE)
def test_read_gives_the_features_of_a_step(name):
    model, ids = built(LANGUAGE[name]), torch.randint(TARGET, (2, 5))
    state, other = model.start(rows=2, capacity=5), model.start(rows=2, capacity=5)
    for part in (ids[:, :3], ids[:, 3:]):
        features, state = model.step_features(state, part)
        logits, other, _ = model.step(other, part)
        torch.testing.assert_close(model.output(features), logits, rtol=0, atol=0)
    assert state.positions.tolist() == [5, 5]


@pytest.mark.parametrize("name", CARRIED)
def test_memories_that_are_put_back_go_on_where_they_were(name):
    model, ids = built(LANGUAGE[name]), torch.randint(TARGET, (3, 9))
    model.decoder.embedding.positions = None  # which a text that goes on for ever does not have
    _, state = model.step_features(model.start(rows=3, capacity=9), ids[:, :4])
    again = model.start(rows=3, capacity=9).with_memories(state.memories())
    features, _ = model.step_features(again, ids[:, 4:])
    torch.testing.assert_close(features, model.features(Tokens(ids))[:, 4:], rtol=1e-12, atol=1e-12)
    assert all(memory.shape[0] == 3 for memory in state.memories())


def test_what_grows_cannot_be_taken_out():
    model = built(LANGUAGE["attention"])
    with pytest.raises(ValueError, match=r"`state` must be of recurrences or convolutions.*one with a Cache"):
        model.start(rows=1, capacity=3).memories()
