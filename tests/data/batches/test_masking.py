"""Masking: the shares that were asked for, never a special id, and the same whatever batch a text comes in."""

import numpy as np
import pytest

from regard.config import Config
from regard.data.batches.batch import LAYOUTS, MaskedCollator, MaskingConfig, StoredReader, pad_sequences
from regard.special_tokens import SpecialTokens
from regard.tokens import IGNORED_LABEL

SPECIAL = SpecialTokens(start=1, end=(2, 3), padding=0, unknown=4, mask=5, cls=6, separator=7)
VOCABULARY = 50


@pytest.fixture
def masked(written):
    """A function to a maker of batches, on texts of all ids."""
    chance = np.random.default_rng(0)
    texts = [chance.integers(0, VOCABULARY, chance.integers(0, 60)) for _ in range(600)]
    store = written(texts, VOCABULARY)

    def make(layout=pad_sequences, seed=0, **config):
        return MaskedCollator(StoredReader(store), SPECIAL, VOCABULARY, MaskingConfig(**config), layout, seed), texts

    return make


def flat(batch):
    """Inputs and labels of all tokens, padding left out."""
    there = np.arange(batch.inputs.ids.shape[1]) < batch.inputs.lengths.numpy()[:, None]
    assert (batch.labels.numpy()[~there] == IGNORED_LABEL).all()
    return batch.inputs.ids.numpy()[there], batch.labels.numpy()[there]


@pytest.mark.parametrize("config", [{}, {"mlm_probability": 0.5, "mask_replace_prob": 0.3, "random_replace_prob": 0.6}])
def test_shares_are_as_asked(masked, config):
    make, texts = masked(**config)
    batch = make(np.arange(len(texts)), 0)
    seen, labels = flat(batch)
    truth, ordinary = np.concatenate(texts), np.concatenate(texts) > 7
    chosen = labels != IGNORED_LABEL
    assert (labels[chosen] == truth[chosen]).all()
    assert (seen[~chosen] == truth[~chosen]).all()
    assert not chosen[~ordinary].any()
    assert batch.tokens == chosen.sum()
    count, wanted = chosen.sum(), MaskingConfig(**config)
    assert chosen.sum() / ordinary.sum() == pytest.approx(wanted.mlm_probability, abs=0.02)
    assert (seen[chosen] == 5).sum() / count == pytest.approx(wanted.mask_replace_prob, abs=0.03)
    other = chosen & (seen != 5) & (seen != truth)
    assert other.sum() / count == pytest.approx(wanted.random_replace_prob, abs=0.03)
    assert (seen[other] > 7).all()  # what is put in is an ordinary id
    assert len(set(seen[other].tolist())) > 30


def test_a_text_is_masked_in_one_way_in_any_batch_and_in_another_in_the_next_epoch(masked):
    make, _ = masked()
    together, alone = make(np.arange(100, 200), 3), make(np.array([150]), 3)
    length = int(alone.inputs.lengths)
    assert length > 20
    assert together.inputs.ids[50, :length].tolist() == alone.inputs.ids[0].tolist()
    assert together.labels[50, :length].tolist() == alone.labels[0].tolist()
    assert make(np.arange(100, 200), 3).labels.tolist() == together.labels.tolist()
    assert make(np.arange(100, 200), 4).labels.tolist() != together.labels.tolist()
    assert masked(seed=1)[0](np.arange(100, 200), 3).labels.tolist() != together.labels.tolist()


def test_all_and_nothing(masked):
    make, texts = masked(mlm_probability=1.0, mask_replace_prob=1.0, random_replace_prob=0.0)
    seen, labels = flat(make(np.arange(len(texts)), 0))
    truth = np.concatenate(texts)
    assert (seen == np.where(truth > 7, 5, truth)).all()
    assert (labels == np.where(truth > 7, truth, IGNORED_LABEL)).all()
    assert masked(mlm_probability=0.0)[0](np.arange(9), 0).tokens == 0


def test_packed_has_the_tokens_of_padded(masked):
    filled, dense = (masked(layout)[0](np.arange(50), 0) for layout in LAYOUTS.values())
    seen, labels = flat(filled)
    assert dense.inputs.ids[0].tolist() == seen.tolist()
    assert dense.labels[0].tolist() == labels.tolist()
    assert dense.source is None


def test_a_batch_without_rows(masked):
    assert masked()[0](np.zeros(0, np.int64), 0).rows == 0


def test_what_cannot_be_masked(written):
    read = StoredReader(written([[1]]))
    with pytest.raises(ValueError, match="`special` must be with a mask"):
        MaskedCollator(read, SpecialTokens(), 10, MaskingConfig(), pad_sequences, 0)
    with pytest.raises(ValueError, match="`vocabulary` must be larger than the special ids"):
        MaskedCollator(read, SpecialTokens(mask=0), 1, MaskingConfig(), pad_sequences, 0)


def test_shares_that_are_no_shares():
    assert issubclass(MaskingConfig, Config)
    with pytest.raises(ValueError, match=r"random_replace_prob.*add up to 1\.1"):
        MaskingConfig(mask_replace_prob=0.8, random_replace_prob=0.3)
    with pytest.raises(ValueError, match="mlm_probability"):
        MaskingConfig(mlm_probability=1.5)
