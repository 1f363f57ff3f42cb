"""Feeds: every pair once an epoch on any number of processes, any step at once, and batches made ahead."""

import threading
import time
from collections import Counter
from itertools import chain, islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batches.batch import BoundaryIds, ShiftedCollator, StoredReader, pack_sequences, pad_sequences
from regard.data.batches.feed import PlanFeed, StepPosition, prefetch_steps
from regard.data.batches.plan import BatchLimits, plan_batches

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
    assert [feed.position(step) for step in (0, 4, 5, 12)] == [StepPosition(0, 0), StepPosition(0, 4), StepPosition(1, 0), StepPosition(2, 2)]
    with pytest.raises(ValueError, match="`step` must be at least 0, but is -1"):
        feed.at(-1)


def test_a_late_step_takes_no_longer_than_an_early_one(stored):
    (feed,) = feeds(stored([(5, 5)] * 5000), 550, 1)

    def seconds(step):
        start = time.perf_counter()
        feed.at(step)
        return time.perf_counter() - start

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
    assert free.wait(10)  # three more, while nobody asks
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
