"""Windows of one long text: every id but the first is asked for once an epoch; streams go on where they were."""

from collections import Counter
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batches.feed import PlanFeed, StreamFeed, WindowCollator, WindowConfig, WindowPlan, window_feed
from regard.tokens import IGNORED_LABEL

sizes = st.tuples(st.integers(2, 300), st.integers(1, 30), st.integers(1, 12))


def rows(batch):
    """[(inputs, labels)] of every row, padding left out."""
    count = batch.inputs.ids.shape[1]
    lengths = [count] * batch.rows if batch.inputs.lengths is None else batch.inputs.lengths.tolist()
    for labels, length in zip(batch.labels.tolist(), lengths, strict=True):
        assert all(label == IGNORED_LABEL for label in labels[length:])
        assert IGNORED_LABEL not in labels[:length]
    assert batch.tokens == sum(lengths)
    return [(ids[:length], labels[:length])
            for ids, labels, length in zip(batch.inputs.ids.tolist(), batch.labels.tolist(), lengths, strict=True)]


@given(sizes, st.integers(0, 3), st.data())
def test_a_row_goes_on_where_it_was(written, sizes, epoch, data):
    total, length, width = sizes
    width = min(width, total - 1)
    processes = data.draw(st.integers(1, width))
    text = written([range(total // 3), range(total // 3, total)])
    parts = []
    for rank in range(processes):
        stream = StreamFeed(text, length=length, rows=width, rank=rank, processes=processes)
        steps = [rows(stream.at(epoch * stream.steps + step)) for step in range(stream.steps)]
        assert all(len(row[0]) <= length for step in steps for row in step)
        for row in zip(*steps, strict=True):
            inputs, labels = ([number for window in row for number in window[side]] for side in (0, 1))
            assert inputs == list(range(inputs[0], inputs[0] + len(inputs)))
            assert labels == [number + 1 for number in inputs]
            parts.append(labels)
    assert len(parts) == width
    assert list(chain(*parts)) == list(range(1, total))  # all ids but the first, once, for any number of processes
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(sizes, st.sampled_from([1, 2, 3, 7]), st.integers(0, 5))
def test_shuffled_windows_come_exactly_once(written, sizes, processes, epoch):
    total, length, width = sizes
    windows = WindowCollator(written([range(total)]), length)
    plan = WindowPlan(windows.count, width, seed=4)
    found = []
    for rank in range(processes):
        feed = PlanFeed(plan, windows, rank=rank, processes=processes)
        for step in range(epoch * feed.steps, (epoch + 1) * feed.steps):
            found += rows(feed.at(step))
    assert Counter(label for _, labels in found for label in labels) == Counter(range(1, total))
    for inputs, labels in found:
        assert labels == [number + 1 for number in inputs]
        assert inputs[0] % length == 0


def test_an_epoch_is_shuffled_anew():
    plan = WindowPlan(100, 10, seed=0)
    first, second = ([number for index in range(10) for number in plan.batch(epoch, index)] for epoch in (0, 1))
    assert first != second
    assert first != sorted(first)
    assert sorted(first) == sorted(second) == list(range(100))


def test_full_windows_have_no_lengths_and_short_ones_are_filled_up(written):
    stream = StreamFeed(written([range(10, 21)]), length=3, rows=2, padding=9)
    full, short = stream.at(0), stream.at(1)
    assert full.inputs.lengths is None
    assert full.inputs.ids.tolist() == [[10, 11, 12], [15, 16, 17]]
    assert full.labels.tolist() == [[11, 12, 13], [16, 17, 18]]
    assert short.inputs.lengths is None  # shorter, but all alike
    assert short.inputs.ids.tolist() == [[13, 14], [18, 19]]
    uneven = StreamFeed(written([range(10, 20)]), length=3, rows=2, padding=9).at(1)
    assert uneven.inputs.ids.tolist() == [[13, 9], [17, 18]]
    assert uneven.inputs.lengths.tolist() == [1, 2]
    assert uneven.labels.tolist() == [[14, IGNORED_LABEL], [18, 19]]


def test_a_config_says_which(written):
    text = written([range(100)])
    stream = window_feed(text, WindowConfig(length=5, batch_size=4, order="continuous"), seed=0, rank=1, processes=2)
    assert isinstance(stream, StreamFeed)
    assert stream.at(0).rows == 2
    shuffled = window_feed(text, WindowConfig(length=5, batch_size=4), seed=0)
    assert isinstance(shuffled, PlanFeed)
    assert shuffled.at(0).rows == 4
    assert shuffled.at(0).numbers.tolist() != window_feed(text, WindowConfig(length=5, batch_size=4),
                                                          seed=1).at(0).numbers.tolist()


@pytest.mark.parametrize(("total", "width", "processes", "message"), [
    (10, 1, 2, "`rows` must be from 2, one a process, to 9, one a label, but is 1"),
    (10, 10, 1, "`rows` must be from 1, one a process, to 9"),
    (1, 1, 1, "`text` must be of at least two ids, but is of 1"),
    (0, 1, 1, "`text` must be of at least two ids, but is of 0"),
])
def test_what_cannot_be_cut(written, total, width, processes, message):
    with pytest.raises(ValueError, match=message):
        StreamFeed(written([range(total)]), length=4, rows=width, processes=processes)
