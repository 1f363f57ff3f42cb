"""Ids to vectors: the sum of its parts, the scale, and ids that are not there."""

import pytest
import torch
from tiny import EMBEDDINGS, WIDTH

from regard.models.embedding import Embedding, EmbeddingConfig, make_output_layer
from regard.position.encoding import SinusoidalConfig, SinusoidalEncoding
from regard.toml import ConfigError

IDS = torch.tensor([[3, 0, 2], [1, 1, 4]])
PLACES = torch.tensor([[0, 1, 2], [5, 6, 7]])


def test_the_parts_are_added():
    embedding = EmbeddingConfig(positions=SinusoidalConfig(), scale=True, segments=2, norm="layer").build(5, WIDTH)
    segments = torch.tensor([[0, 1, 1], [1, 0, 0]])
    want = (embedding.tokens.weight[IDS] * WIDTH**0.5 + SinusoidalEncoding(WIDTH)(PLACES)
            + embedding.segments.weight[segments])
    torch.testing.assert_close(embedding(IDS, PLACES, segments), torch.nn.functional.layer_norm(want, (WIDTH,)))


def test_positions_can_stand_beside_the_features():
    embedding = EMBEDDINGS["beside"].build(5, WIDTH)
    x = embedding(IDS, PLACES)
    assert x.shape == (2, 3, WIDTH)
    assert torch.equal(x[..., :WIDTH - 2], embedding.tokens.weight[IDS])
    torch.testing.assert_close(x[..., WIDTH - 2:], SinusoidalEncoding(2)(PLACES))


def test_dropout_is_of_the_result():
    embedding = EmbeddingConfig(dropout=0.5).build(5, 1000)
    assert 0.4 < (embedding(IDS, PLACES) == 0).double().mean() < 0.6
    assert (embedding.eval()(IDS, PLACES) != 0).all()


@pytest.mark.parametrize("ids", [[[5]], [[-1]]])
def test_ids_that_are_not_there_are_named(ids):
    with pytest.raises(ValueError, match=rf"`ids` must be from 0 to 4, .* 5 entries, but is {ids[0][0]}"):
        Embedding(5, 4)(torch.tensor(ids), torch.tensor([0]))


def test_segments_that_are_not_there_are_named():
    with pytest.raises(ValueError, match=r"`segments` must be from 0 to 1, .* 2 entries, but is 2"):
        Embedding(5, 4, segments=2)(torch.tensor([[0]]), torch.tensor([0]), torch.tensor([[2]]))


def test_what_does_not_go_together():
    with pytest.raises(ValueError, match="`segments` must be None"):
        Embedding(5, 4)(IDS, PLACES, IDS)
    with pytest.raises(ValueError, match=r"`positions` .* 4, but is one of width 4"):
        Embedding(5, 4, positions=SinusoidalEncoding(4), joined="concatenated")
    with pytest.raises(ConfigError, match=r'"position_width".*combine = "concatenated"'):
        EmbeddingConfig(positions=SinusoidalConfig(), position_width=2)
    with pytest.raises(ConfigError, match=r'"combine".*there are no positions to concatenate'):
        EmbeddingConfig(combine="concatenated", position_width=2)


def test_an_output_layer_may_have_the_table_of_an_embedding():
    embedding = Embedding(5, 4)
    assert make_output_layer(4, 5, bias=False, tied=embedding).weight is embedding.tokens.weight
    assert make_output_layer(4, 5, bias=True).bias.tolist() == [0.0] * 5
