"""Feeds: every pair once an epoch on any number of processes, windows of a text, and prefetching."""

import threading
import time
from collections import Counter
from itertools import chain, islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import toml
from regard.config import read_config, to_toml
from regard.data.batches import feed as feed_module
from regard.data.batches.batch import (
    LAYOUTS,
    BoundaryIds,
    FittedCollator,
    MaskedCollator,
    MaskingConfig,
    ShiftedCollator,
    StoredReader,
    pack_sequences,
    pad_sequences,
)
from regard.data.batches.feed import (
    BatchConfig,
    MovingWindowCollator,
    PlanFeed,
    StepPosition,
    StreamFeed,
    WindowCollator,
    WindowPlan,
    batch_feed,
    plan_from_config,
    prefetch_steps,
)
from regard.data.batches.plan import BatchLimits, plan_batches
from regard.data.store import Ragged
from regard.special_tokens import SpecialTokens
from regard.tokens import IGNORED_LABEL, PackedTokens, Tokens

PROCESSES = (1, 2, 3, 7)
lengths = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=50)


def feeds(store, tokens, processes, seed=0, layout=pad_sequences):
    plan = plan_batches(store, BatchLimits(tokens, tokens), seed=seed)
    make = ShiftedCollator(StoredReader(store), BoundaryIds(1, 2, 0), layout)
    return [PlanFeed(plan, make, rank=rank, processes=processes) for rank in range(processes)]


def in_order(ranks, first, last):
    """The numbers of the pairs of all batches of these steps, the processes of a step one after another."""
    return [feed.at(step).numbers.tolist() for step in range(first, last) for feed in ranks]


@given(lengths, st.integers(1, 200), st.integers(0, 2**32), st.integers(0, 50))
def test_every_pair_comes_exactly_once_an_epoch(stored, lengths, tokens, seed, epoch):
    store = stored(lengths)
    orders = []
    for processes in PROCESSES:
        ranks = feeds(store, tokens, processes, seed)
        (steps,) = {feed.steps for feed in ranks}
        batches = in_order(ranks, epoch * steps, (epoch + 1) * steps)
        assert Counter(chain(*batches)) == Counter(range(len(lengths)))
        there = [batch for batch in batches if batch]
        assert batches == there + [[]] * (len(batches) - len(there))  # those without rows are the last
        assert len(batches) - len(there) < processes
        orders.append(there)
    assert orders == [orders[0]] * len(PROCESSES)  # one order for any number of processes


@pytest.mark.parametrize("layout", [pad_sequences, pack_sequences])
def test_a_step_is_reached_at_once(stored, lognormal, layout):
    (feed,) = feeds(stored(lognormal(200)), 300, 1, layout=layout)
    walked = list(islice(feed.since(0), 3 * feed.steps))
    for step in (0, 1, feed.steps - 1, feed.steps, 2 * feed.steps + 3):
        batch = feed.at(step)
        assert batch.numbers.tolist() == walked[step].numbers.tolist()
        assert batch.inputs.ids.tolist() == walked[step].inputs.ids.tolist()
        assert batch.labels.tolist() == walked[step].labels.tolist()
    resumed = next(iter(feed.since(feed.steps + 2)))
    assert resumed.numbers.tolist() == walked[feed.steps + 2].numbers.tolist()
    assert walked[0].numbers.tolist() != walked[feed.steps].numbers.tolist()


def test_the_largest_batches_are_those_that_are_named_or_the_first(stored):
    (feed,) = feeds(stored([(1, 1)] * 10), 6, 1)
    assert [batch.numbers.tolist() for batch in feed.largest()] == [feed.at(0).numbers.tolist()]
    named = PlanFeed(feed.plan, feed.maker, largest=[np.array([1, 2]), np.array([3])])
    assert [batch.numbers.tolist() for batch in named.largest()] == [[1, 2], [3]]


def test_where_a_step_stands(stored):
    feed, _ = feeds(stored([(1, 1)] * 10), 3, 2)
    assert feed.steps == 5
    assert [feed.position(step) for step in (0, 4, 5, 12)] == [StepPosition(0, 0), StepPosition(0, 4),
                                                               StepPosition(1, 0), StepPosition(2, 2)]
    with pytest.raises(ValueError, match="`step` must be at least 0, but is -1"):
        feed.at(-1)


def test_a_late_step_takes_no_longer_than_an_early_one(stored):
    (feed,) = feeds(stored([(5, 5)] * 5000), 550, 1)

    def seconds(step):
        start = time.process_time()
        feed.at(step)
        return time.process_time() - start

    feed.at(0)
    early, late = (min(seconds(step) for _ in range(30)) for step in (0, 10**15))
    assert late < 5 * early


@pytest.mark.parametrize(("rank", "processes"), [(1, 1), (-1, 2), (0, 0)])
def test_what_is_no_process(stored, rank, processes):
    (feed,) = feeds(stored([(1, 1)]), 10, 1)
    with pytest.raises(ValueError, match="`rank` must be from 0 up to the number of processes"):
        PlanFeed(feed.plan, feed.maker, rank=rank, processes=processes)


def test_nothing_to_feed(stored):
    with pytest.raises(ValueError, match="`plan` must be one of at least one batch, but is empty"):
        feeds(stored([]), 10, 1)


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("regard-batches")]


@pytest.mark.parametrize("ahead", [1, 2, 100])
def test_batches_made_ahead_come_in_their_order(ahead):
    assert list(prefetch_steps(lambda step: step * step, range(5, 40), prefetch=ahead)) == [n * n for n in range(5, 40)]
    assert threads() == []


def test_batches_are_made_ahead_but_not_without_bound():
    made, free = [], threading.Event()

    def make(step):
        made.append(step)
        if len(made) == 4:
            free.set()
        return step

    batches = prefetch_steps(make, iter(range(1000)), prefetch=3)
    assert next(batches) == 0
    assert free.wait(60)  # three more, while nobody asks
    time.sleep(0.05)
    assert made == [0, 1, 2, 3]
    assert next(batches) == 1
    batches.close()
    assert threads() == []
    assert len(made) <= 5


def test_an_error_comes_when_its_turn_comes():
    def make(step):
        if step == 3:
            raise ValueError("corpus.de:7")
        return step

    found = []
    with pytest.raises(ValueError, match=r"corpus\.de:7"):
        found.extend(prefetch_steps(make, range(10), prefetch=5))
    assert found == [0, 1, 2]
    assert threads() == []


def test_a_forgotten_iterator_ends_its_thread():
    for step in prefetch_steps(lambda step: step, range(10**9)):
        if step == 5:
            break
    del step
    assert threads() == []


def test_prefetching_needs_room():
    with pytest.raises(ValueError, match="`prefetch` must be at least 1"):
        prefetch_steps(lambda step: step, range(3), prefetch=0)


def test_a_feed_prefetched(stored, lognormal):
    (feed,) = feeds(stored(lognormal(100)), 200, 1)
    plain = [batch.numbers for batch in islice(feed.since(3), 20)]
    ahead = [batch.numbers for batch in prefetch_steps(feed.at, range(3, 23))]
    assert all(np.array_equal(one, other) for one, other in zip(plain, ahead, strict=True))


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


@pytest.mark.parametrize(("total", "width", "processes", "message"), [
    (10, 1, 2, "`rows` must be from 2, one a process, to 9, one a label, but is 1"),
    (10, 10, 1, "`rows` must be from 1, one a process, to 9"),
    (1, 1, 1, "`text` must be of at least two ids, but is of 1"),
    (0, 1, 1, "`text` must be of at least two ids, but is of 0"),
])
def test_what_cannot_be_cut(written, total, width, processes, message):
    with pytest.raises(ValueError, match=message):
        StreamFeed(written([range(total)]), length=4, rows=width, processes=processes)


@given(st.integers(2, 300), st.integers(1, 30), st.integers(1, 12), st.integers(0, 5), st.sampled_from([1, 2, 3]))
def test_every_id_but_the_first_once_an_epoch(written, total, length, rows, epoch, processes):
    windows = MovingWindowCollator(written([range(total)]), length, seed=3)
    found = []
    for rank in range(processes):
        feed = PlanFeed(WindowPlan(windows.count, rows, seed=4), windows, rank=rank, processes=processes)
        for step in range(epoch * feed.steps, (epoch + 1) * feed.steps):
            batch = feed.at(step)
            lengths = batch.inputs.lengths
            full = [batch.inputs.ids.shape[1]] * batch.rows if lengths is None else lengths.tolist()
            for inputs, labels, count in zip(batch.inputs.ids.tolist(), batch.labels.tolist(), full, strict=True):
                assert count <= length
                assert labels[:count] == [number + 1 for number in inputs[:count]]
                assert inputs[:count] == list(range(inputs[0], inputs[0] + count)) if count else True
                found += labels[:count]
            assert batch.tokens == sum(full)
    assert sorted(found) == list(range(1, total))


def test_other_epochs_have_other_windows(written):
    windows = MovingWindowCollator(written([range(200)]), 16, seed=0)
    begins = {epoch: int(windows(np.array([5]), epoch).inputs.ids[0, 0]) for epoch in range(40)}
    assert len(set(begins.values())) > 10
    assert set(begins.values()) <= set(range(65, 81))
    assert begins[7] == int(MovingWindowCollator(windows.text, 16, seed=0)(np.array([5]), 7).inputs.ids[0, 0])


SPECIAL = SpecialTokens(start=1, end=(2,), padding=0, mask=3)


def masked_feed(texts, config, masking, vocabulary, rank=0, processes=1):
    plan = plan_from_config(texts, config, seed=1, extra=(0,))
    maker = MaskedCollator(StoredReader(texts), SPECIAL, vocabulary, masking, LAYOUTS[config.layout], 1)
    if config.shapes == "few":
        maker = FittedCollator(maker, plan.shapes, 0)
    return PlanFeed(plan, maker, rank=rank, processes=processes)


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
    monkeypatch.setattr(feed_module, "MAX_SHAPES", 4)
    pairs = lognormal(500)
    store = stored(pairs)
    feed = batch_feed(store, SpecialTokens(start=1, end=(2,), padding=5), BatchConfig(max_tokens=300, shapes="few"),
                      seed=1)
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
            return masked_feed(store, config, MaskingConfig(), 1000, rank=rank, processes=processes)
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
    feed = masked_feed(texts, BatchConfig(max_tokens=40), MaskingConfig(mlm_probability=0.5), 20)
    assert feed.steps == 5
    batch = feed.at(0)
    assert batch.inputs.ids.shape == (10, 4)
    assert 0 < batch.tokens == int((batch.labels != IGNORED_LABEL).sum()) < 40


def test_masked_in_few_shapes(written, monkeypatch):
    monkeypatch.setattr(feed_module, "MAX_SHAPES", 2)
    texts = written([[10] * (1 + number % 9) for number in range(90)], 20)
    config = BatchConfig(max_tokens=30, shapes="few")
    feed = masked_feed(texts, config, MaskingConfig(mlm_probability=0.5), 20)
    assert len(shapes(feed)) == 2


def test_from_a_file(tmp_path):
    config = BatchConfig(max_tokens=100, layout="packed")
    (tmp_path / "a.toml").write_text(to_toml({"batches": config}))
    assert read_config(BatchConfig, toml.read_document(tmp_path / "a.toml"), ("batches",)) == config
    with pytest.raises(ValueError, match="layout"):
        BatchConfig(layout="pakced")
    with pytest.raises(ValueError, match="tokens"):
        BatchConfig(max_tokens=0)
