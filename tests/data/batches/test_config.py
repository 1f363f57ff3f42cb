"""Feeds as a config asks for them."""

from collections import Counter

import numpy as np
import pytest
import torch

from regard import toml
from regard.config import read_config, to_toml
from regard.data.batches import feed as config_module
from regard.data.batches.batch import MaskingConfig
from regard.data.batches.feed import BatchConfig, batch_feed, masked_feed
from regard.data.store import Ragged
from regard.special_tokens import SpecialTokens
from regard.tokens import IGNORED_LABEL, PackedTokens, Tokens

SPECIAL = SpecialTokens(start=1, end=(2,), padding=0, mask=3)


@pytest.mark.parametrize(("layout", "kind"), [("padded", Tokens), ("packed", PackedTokens)])
def test_pairs(stored, lognormal, layout, kind):
    pairs = lognormal(300)
    feed = batch_feed(stored(pairs), SPECIAL, BatchConfig(max_tokens=500, layout=layout), seed=1)
    batches = [feed.at(step) for step in range(feed.steps)]
    assert Counter(number for batch in batches for number in batch.numbers.tolist()) == Counter(range(300))
    for batch in batches:
        assert isinstance(batch.source, kind)
        assert isinstance(batch.inputs, kind)
        assert batch.source.ids.numel() + batch.inputs.ids.numel() <= 500
    assert sum(batch.tokens for batch in batches) == sum(target + 1 for _, target in pairs)


def shapes(feed):
    """The shapes of all batches of an epoch."""
    return {tuple(feed.at(step).inputs.ids.shape) for step in range(feed.steps)}


def test_pairs_in_few_shapes(stored, lognormal, monkeypatch):
    monkeypatch.setattr(config_module, "MAX_SHAPES", 4)
    pairs = lognormal(500)
    store = stored(pairs)
    feed = batch_feed(store, SpecialTokens(start=1, end=(2,), padding=5), BatchConfig(max_tokens=300, shapes="few"), seed=1)
    batches = [feed.at(step) for step in range(feed.steps)]
    drawn = batch_feed(store, SPECIAL, BatchConfig(max_tokens=300), seed=1)
    assert len(shapes(feed)) <= 4 < len(shapes(drawn))
    assert {(batch.rows, (batch.source.ids.shape[1], batch.inputs.ids.shape[1])) for batch in batches} == set(
        feed.plan.shapes)
    assert all(batch.source.ids.numel() + batch.inputs.ids.numel() <= 300 for batch in batches if batch.rows > 1)
    assert Counter(number for batch in batches for number in batch.numbers.tolist()) == Counter(range(500))
    assert sum(batch.tokens for batch in batches) == sum(target + 1 for _, target in pairs)
    there = torch.arange(batches[0].inputs.ids.shape[1]) < batches[0].inputs.lengths.unsqueeze(-1)
    assert (batches[0].inputs.ids[~there] == 5).all()


@pytest.mark.parametrize("masked", [False, True])
def test_packed_batches_of_all_processes_have_one_shape(stored, written, lognormal, masked):
    """Where an epoch ends unevenly too."""
    config = BatchConfig(max_tokens=900, layout="packed", shapes="few")
    store = written([[10] * target for _, target in lognormal(300)]) if masked else stored(lognormal(300))

    def made(rank, processes):
        if masked:
            return masked_feed(store, SPECIAL, config, MaskingConfig(), vocabulary=1000, seed=1, rank=rank,
                               processes=processes)
        return batch_feed(store, SPECIAL, config, seed=1, rank=rank, processes=processes)

    count = made(0, 1).plan.count
    processes = next(many for many in (2, 3, 4, 5) if count % many)
    feeds = [made(rank, processes) for rank in range(processes)]
    batches = [feed.at(step) for step in range(2 * feeds[0].steps) for feed in feeds]
    assert min(len(batch.numbers) for batch in batches) == 0
    assert {(batch.rows, batch.inputs.ids.shape[1]) for batch in batches} == {
        (rows, lengths[-1]) for rows, lengths in feeds[0].plan.shapes}
    assert Counter(number for batch in batches for number in batch.numbers.tolist()) == {
        number: 2 for number in range(300)}


@pytest.mark.parametrize("shapes", ["as_drawn", "few"])
def test_the_largest_batch_is_as_large_as_any(stored, lognormal, shapes):
    feed = batch_feed(stored(lognormal(500)), SPECIAL, BatchConfig(max_tokens=300, shapes=shapes), seed=1)
    sizes = [batch.source.ids.numel() + batch.inputs.ids.numel() for batch in map(feed.at, range(3 * feed.steps))]
    largest = feed.largest()[0]
    assert max(sizes) <= largest.source.ids.numel() + largest.inputs.ids.numel() <= 300


def test_few_shapes_at_the_end_of_an_uneven_epoch(stored):
    store = stored([(2, 2)] * 9)
    config = BatchConfig(max_tokens=15, shapes="few")
    last = batch_feed(store, SPECIAL, config, seed=1, rank=1, processes=2).at(1)
    assert last.tokens == 0
    assert last.numbers.tolist() == []
    assert last.inputs.ids.shape == (3, 3)  # as large as all others
    assert last.inputs.lengths.tolist() == [0, 0, 0]


def test_packed_batches_of_few_shapes_have_one(stored):
    chance = np.random.default_rng(1)
    store = stored([tuple(chance.integers(1, 9, 2).tolist()) for _ in range(400)])
    feed = batch_feed(store, SPECIAL, BatchConfig(max_tokens=700, layout="packed", shapes="few"), seed=1)
    batches = [feed.at(step) for step in range(feed.steps)]
    assert len({(batch.source.ids.shape, batch.inputs.ids.shape, batch.rows) for batch in batches}) == 1
    assert batches[0].source.ids.shape[1] + batches[0].inputs.ids.shape[1] <= 700
    assert sorted(np.concatenate([batch.numbers for batch in batches])) == list(range(400))


def test_rows(stored):
    feed = batch_feed(stored([(2, 2)] * 20), SPECIAL, BatchConfig(batch_size=3), seed=1)
    assert sorted(feed.at(step).rows for step in range(feed.steps)) == [2, 3, 3, 3, 3, 3, 3]


def test_texts(written):
    feed = batch_feed(written([[5]] * 4), SPECIAL, BatchConfig(max_tokens=4), seed=1, rank=1, processes=2)
    assert feed.steps == 1
    assert feed.at(0).labels.tolist() == [[5, 2], [5, 2]]


def test_other_ids_may_be_read(stored):
    feed = batch_feed(stored([(2, 2)]), SPECIAL, BatchConfig(), seed=1,
                      read=lambda numbers, epoch: (Ragged(np.array([7]), np.array([1])),) * 2)
    assert feed.at(0).inputs.ids.tolist() == [[1, 7]]


def test_masked(written):
    texts = written([[10, 11, 12, 13]] * 50, 20)
    feed = masked_feed(texts, SPECIAL, BatchConfig(max_tokens=40), MaskingConfig(mlm_probability=0.5), vocabulary=20, seed=1)
    assert feed.steps == 5
    batch = feed.at(0)
    assert batch.inputs.ids.shape == (10, 4)
    assert 0 < batch.tokens == int((batch.labels != IGNORED_LABEL).sum()) < 40


def test_masked_in_few_shapes(written, monkeypatch):
    monkeypatch.setattr(config_module, "MAX_SHAPES", 2)
    texts = written([[10] * (1 + number % 9) for number in range(90)], 20)
    config = BatchConfig(max_tokens=30, shapes="few")
    feed = masked_feed(texts, SPECIAL, config, MaskingConfig(mlm_probability=0.5), vocabulary=20, seed=1)
    assert len(shapes(feed)) == 2


def test_from_a_file(tmp_path):
    config = BatchConfig(max_tokens=100, layout="packed")
    (tmp_path / "a.toml").write_text(to_toml({"batches": config}))
    assert read_config(BatchConfig, toml.read_document(tmp_path / "a.toml"), ("batches",)) == config
    with pytest.raises(ValueError, match="layout"):
        BatchConfig(layout="pakced")
    with pytest.raises(ValueError, match="tokens"):
        BatchConfig(max_tokens=0)
