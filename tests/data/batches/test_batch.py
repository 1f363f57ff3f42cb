"""Batches: targets shifted by one, filled up or packed, with the same numbers in both."""

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batches.batch import (
    LAYOUTS,
    BoundaryIds,
    SamplingReader,
    ShiftedCollator,
    StoredReader,
    pack_sequences,
    pad_sequences,
)
from regard.data.store import open_or_make_pairs
from regard.special_tokens import SpecialTokens
from regard.tokens import IGNORED_LABEL, PackedTokens, Tokens

ENDS = BoundaryIds(start=1, end=2, padding=0)


def rows(tokens):
    """The sequences of padded or packed tokens."""
    if isinstance(tokens, PackedTokens):
        return [part.tolist() for part in tokens.ids[0].split(tokens.lengths.tolist())]
    return [row[:length].tolist() for row, length in zip(tokens.ids, tokens.lengths.tolist(), strict=True)]


def labels(batch):
    """The labels of every row, without those that fill up."""
    if isinstance(batch.inputs, PackedTokens):
        return [part.tolist() for part in batch.labels[0].split(batch.inputs.lengths.tolist())]
    return [[label for label in row if label != IGNORED_LABEL] for row in batch.labels.tolist()]


def test_a_target_is_shifted_and_filled_up_on_the_right(stored):
    store = stored([(2, 1), (3, 2), (1, 0)])  # ids from 10: [10 11] [12], [13 14 15] [16 17], [18] []
    batch = ShiftedCollator(StoredReader(store), ENDS, pad_sequences)(np.array([1, 2, 0]), 0)
    assert isinstance(batch.source, Tokens)
    assert batch.source.ids.tolist() == [[13, 14, 15], [18, 0, 0], [10, 11, 0]]
    assert batch.source.lengths.tolist() == [3, 1, 2]
    assert batch.source.side == "right"
    assert batch.inputs.ids.tolist() == [[1, 16, 17], [1, 0, 0], [1, 12, 0]]
    assert batch.inputs.lengths.tolist() == [3, 1, 2]
    assert batch.labels.tolist() == [[16, 17, 2], [2, IGNORED_LABEL, IGNORED_LABEL], [12, 2, IGNORED_LABEL]]
    assert (batch.tokens, batch.rows, batch.numbers.tolist()) == (6, 3, [1, 2, 0])


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=12), st.data())
def test_packed_has_the_tokens_of_padded(stored, lengths, data):
    store = stored(lengths)
    numbers = np.array(data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=9)), np.int64)
    filled, dense = (ShiftedCollator(StoredReader(store), ENDS, layout)(numbers, 0) for layout in (pad_sequences, pack_sequences))
    assert rows(filled.source) == rows(dense.source) == [store[n][0].tolist() for n in numbers]
    assert rows(filled.inputs) == rows(dense.inputs) == [[1, *store[n][1].tolist()] for n in numbers]
    assert labels(filled) == labels(dense) == [[*store[n][1].tolist(), 2] for n in numbers]
    assert filled.tokens == dense.tokens == int((filled.labels != IGNORED_LABEL).sum()) == dense.labels.numel()
    assert filled.rows == dense.rows == len(numbers)
    for batch in (filled, dense):
        assert batch.labels.shape == batch.inputs.ids.shape
        assert {batch.labels.dtype, batch.inputs.ids.dtype, batch.source.ids.dtype} == {torch.long}
    assert (filled.inputs.ids[filled.labels == IGNORED_LABEL] == 0).all()


def test_a_model_has_one_loss_for_both_layouts_and_none_without_rows(tmp_path):
    chance = np.random.default_rng(0)
    pairs = [[chance.integers(3, tiny.SOURCE, chance.integers(1, 8)) for _ in range(2)] for _ in range(20)]
    store = open_or_make_pairs(tmp_path, "key", lambda: pairs, vocabularies=(tiny.SOURCE, tiny.SOURCE)).store
    model = tiny.built(tiny.translating())

    def loss(layout, numbers):
        batch = ShiftedCollator(StoredReader(store), ENDS, layout)(numbers, 0)
        logits = model.decode(batch.inputs, model.encode(batch.source)).detach()
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORED_LABEL,
                                                 reduction="sum").item()

    assert loss(pad_sequences, np.arange(20)) == pytest.approx(loss(pack_sequences, np.arange(20)), rel=1e-12)
    assert loss(pad_sequences, np.zeros(0, np.int64)) == loss(pack_sequences, np.zeros(0, np.int64)) == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_texts_have_no_source(written, layout):
    batch = ShiftedCollator(StoredReader(written([[5, 6], [7]])), ENDS, LAYOUTS[layout])(np.array([1, 0]), 0)
    assert batch.source is None
    assert rows(batch.inputs) == [[1, 7], [1, 5, 6]]
    assert labels(batch) == [[7, 2], [5, 6, 2]]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_batch_without_rows(stored, layout):
    batch = ShiftedCollator(StoredReader(stored([(1, 1)])), ENDS, LAYOUTS[layout])(np.zeros(0, np.int64), 0)
    assert (batch.rows, batch.tokens, batch.labels.numel(), batch.source.rows) == (0, 0, 0, 0)
    assert batch.labels.shape == batch.inputs.ids.shape


def test_the_ends_are_those_of_the_model():
    assert BoundaryIds.of(SpecialTokens(start=4, end=(6, 7), padding=3)) == (4, 6, 3)
    assert BoundaryIds.of(SpecialTokens(start=4, end=(6,))) == (4, 6, 0)
    with pytest.raises(ValueError, match="`special` must be with a start and an end, but is without start"):
        BoundaryIds.of(SpecialTokens(end=(6,)))
    with pytest.raises(ValueError, match="without end"):
        BoundaryIds.of(SpecialTokens(start=1))


def test_a_batch_goes_to_a_device(stored):
    for layout in LAYOUTS.values():
        batch = ShiftedCollator(StoredReader(stored([(1, 2), (3, 1)])), ENDS, layout)(np.array([0, 1]), 0).to("meta")
        assert {batch.source.ids.device.type, batch.inputs.ids.device.type, batch.labels.device.type} == {"meta"}
    texts = ShiftedCollator(StoredReader(stored([(1, 2)])), ENDS, pad_sequences)(np.array([0]), 0)
    assert texts.to("cpu").labels.tolist() == texts.labels.tolist()


def test_texts_are_encoded_anew_in_every_epoch(tmp_path):
    words = [("Größe 😀", "taille"), ("", "x"), ("ja", "")]
    texts = open_or_make_pairs(tmp_path, "key", lambda: ((s.encode(), t.encode()) for s, t in words),
                               vocabularies=(256, 256)).store
    seen = []

    def encode(text, seed):
        seen.append((text, seed))
        return [10 + seed % 2, *(100 + len(word) for word in text.split())]

    read = SamplingReader(texts, (encode, encode), seed=3)
    first, *_ = [read(np.array(numbers), epoch) for numbers, epoch in (([2, 0, 1], 0), ([1, 2], 0), ([2, 0, 1], 1))]
    assert [text for text, _ in seen[:6]] == ["ja", "Größe 😀", "", "", "taille", "x"]
    assert first[0].lengths.tolist() == [2, 3, 1]
    assert first[0].ids[[1, 3, 4]].tolist() == [102, 105, 101]
    seeds = {text: [seed for other, seed in seen if other == text] for text in ("ja", "Größe 😀")}
    assert seeds["ja"][0] == seeds["ja"][1]  # of the same epoch, in another batch
    assert seeds["ja"][0] != seeds["ja"][2]
    assert len({seed for _, seed in seen}) == 12  # one for each side, pair and epoch: sides are cut apart
    assert [side.lengths.tolist() for side in read(np.zeros(0, np.int64), 0)] == [[], []]
