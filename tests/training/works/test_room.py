"""Texts that a model has no room for are cut, and so are the shapes of their batches."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import LANGUAGE

from regard.data.batches.plan import BatchShape
from regard.data.store import Ragged, open_or_make_texts
from regard.training.tasks.common import (
    TruncatedReader,
    max_positions,
    refuse_sampling,
    text_lengths,
    truncate_reader,
    truncate_shapes,
    truncation_note,
)


@given(st.lists(st.lists(st.integers(0, 9), max_size=8), max_size=8), st.integers(1, 9))
def test_of_each_text_the_first_ids(texts, longest):
    ids = Ragged(np.array([one for text in texts for one in text], np.int64),
                 np.array([len(text) for text in texts], np.int64))
    (found,) = TruncatedReader(lambda numbers, epoch: (ids,), longest)(np.arange(len(texts)), 0)
    assert np.split(found.ids, np.cumsum(found.lengths))[:-1] if texts else True
    cut = [text[:longest] for text in texts]
    assert found.lengths.tolist() == [len(text) for text in cut]
    assert found.ids.tolist() == [one for text in cut for one in text]


def test_room_follows_from_the_positions():
    assert max_positions(LANGUAGE["learned"]) == 12
    assert max_positions(LANGUAGE["sinusoidal"]) is None
    assert max_positions(LANGUAGE["llama"]) is None


def test_nothing_is_cut_where_there_is_no_end():
    def read(numbers, epoch):
        return ()

    assert truncate_reader(read, None) is read
    known = (BatchShape(2, (9,)), BatchShape(3, (4,)))
    assert truncate_shapes(known, None) is known
    assert truncate_shapes(known, 5) == (BatchShape(2, (5,)), BatchShape(3, (4,)))


def test_what_is_cut_is_told(tmp_path):
    store = open_or_make_texts(tmp_path, "key", lambda: [[1] * 3, [1] * 7, [1] * 8], vocabulary=5).store
    assert text_lengths(store).tolist() == [3, 7, 8]
    assert truncation_note(store, 6) == ("2 of 3 texts are longer than the 6 positions of the model and are truncated.",)
    assert truncation_note(store, 8) == truncation_note(store, None) == ()


def test_sampling_is_for_pairs(settings):
    refuse_sampling(settings())
    with pytest.raises(ValueError, match=r"`training.subword_sampling` must be 0.* but is 0.2"):
        refuse_sampling(settings(subword_sampling=0.2))
