"""Plans: every pair exactly once an epoch, any batch at once, little padding, few shapes."""

import hashlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batches import plan as planning
from regard.data.batches.plan import (
    MIN_BATCHES,
    BatchLimits,
    BatchShape,
    PartRates,
    plan_batches,
    plan_packed,
    rows_with_padding,
    split_into_buckets,
)

lengths = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=60)


def epoch(plan, number):
    return [plan.batch(number, index).tolist() for index in range(plan.count)]


@pytest.mark.parametrize("block", [7, 2**18])
def test_every_pair_comes_exactly_once_an_epoch(stored, monkeypatch, block):
    monkeypatch.setattr(planning, "BLOCK_PAIRS", block)

    @given(lengths, st.integers(1, 300), st.integers(1, 40), st.integers(0, 2**64 - 1), st.integers(0, 10**9),
           st.none() | st.integers(1, 5))
    def check(lengths, tokens, rows, seed, number, most):
        plan = plan_batches(stored(lengths), BatchLimits(tokens, rows), seed=seed, max_shapes=most)
        assert most is None or len(plan.shapes) <= most
        batches = epoch(plan, number)
        assert Counter(chain(*batches)) == Counter(range(len(lengths)))
        for batch in batches:
            assert 1 <= len(batch) <= rows
            source, target = (max(lengths[pair][side] for pair in batch) for side in (0, 1))
            assert len(batch) == 1 or len(batch) * (source + target + 1) <= tokens

    check()


def test_epochs_and_seeds_differ_and_the_count_does_not(stored, lognormal):
    store = stored(lognormal(2000))
    plans = [plan_batches(store, BatchLimits(1000, 1000), seed=seed) for seed in (1, 2)]
    found = [epoch(plan, number) for plan in plans for number in (0, 1)]
    assert epoch(plan_batches(store, BatchLimits(1000, 1000), seed=1), 0) == found[0]
    assert len({len(batches) for batches in found}) == 1
    for number, one in enumerate(found):
        for other in found[:number]:
            together = {frozenset(batch) for batch in one} & {frozenset(batch) for batch in other}
            assert len(together) < 0.05 * len(one)  # not only the order of batches is new, but who is in them
            assert one[0] != other[0]


def test_lengths_are_shuffled(stored, lognormal):
    pairs = lognormal(5000)
    means = [np.mean([sum(pairs[pair]) for pair in batch])
             for batch in epoch(plan_batches(stored(pairs), BatchLimits(1000, 1000), seed=0), 0)]
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.2
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.2


def test_little_is_padding(stored, lognormal):
    lengths = lognormal(20_000)
    inside = np.array([(source, target + 1) for source, target in lengths])
    plan = plan_batches(stored(lengths), BatchLimits(4096, 4096), seed=0)
    padded = sum(len(batch) * inside[batch].max(axis=0).sum() for batch in epoch(plan, 0))
    assert 1 - inside.sum() / padded < 0.08


def fits(batch, inside, shapes):
    """Whether one of the shapes contains a batch."""
    longest = inside[batch].max(axis=0)
    return any(shape.rows >= len(batch) and (longest <= shape.lengths).all() for shape in shapes)


@pytest.mark.parametrize("most", [None, 6])
def test_shapes_contain_all_batches_and_are_no_larger(stored, lognormal, most):
    lengths = lognormal(3000)
    inside = np.array([(source, target + 1) for source, target in lengths])
    plan = plan_batches(stored(lengths), BatchLimits(1000, 1000), seed=0, max_shapes=most)
    batches = epoch(plan, 0) + epoch(plan, 1)
    assert all(fits(batch, inside, plan.shapes) for batch in batches)
    assert all(shape.tokens <= 1000 for shape in plan.shapes)
    for shape, pairs in zip(plan.shapes, np.split(plan.index.numbers, np.cumsum(plan.sizes)[:-1]), strict=True):
        mine = [batch for batch in batches if batch[0] in set(pairs.tolist())]
        assert shape == BatchShape(max(map(len, mine)), tuple(inside[pairs].max(axis=0).tolist()))  # and no larger


@pytest.mark.parametrize("block", [7, 2**18])
@pytest.mark.parametrize("most", [None, 3])
def test_the_largest_batches_are_as_large_as_any(stored, lognormal, monkeypatch, block, most):
    monkeypatch.setattr(planning, "BLOCK_PAIRS", block)
    lengths = lognormal(400)
    inside = np.array([(source, target + 1) for source, target in lengths])
    plan = plan_batches(stored(lengths), BatchLimits(500, 500), seed=0, max_shapes=most)
    for power, batch in zip((1, 2), plan.largest(), strict=True):
        assert len(set(batch.tolist())) == len(batch)
        needed = [shape.rows * sum(length**power for length in shape.lengths) for shape in plan.shapes]
        assert len(batch) * (inside[batch].max(axis=0) ** power).sum() == max(needed)


def test_the_largest_batch_may_be_one_pair(stored):
    plan = plan_batches(stored([(1, 1)] * 5 + [(50, 9)]), BatchLimits(20, 20), seed=0)
    assert [batch.tolist() for batch in plan.largest()] == [[5], [5]]


def test_few_shapes_need_little_more_padding(stored, lognormal):
    lengths = lognormal(20_000)
    real = sum(source + target + 1 for source, target in lengths)
    store = stored(lengths)
    any_number, few = (plan_batches(store, BatchLimits(4096, 4096), seed=0, max_shapes=most) for most in (None, 24))
    assert len(any_number.shapes) > 30
    assert len(few.shapes) == 24
    assert 1 - real / sum(shape.tokens * count for shape, count in zip(few.shapes, few.batches, strict=True)) < 0.12
    assert few.count < 1.05 * any_number.count
    assert epoch(plan_batches(store, BatchLimits(4096, 4096), seed=0), 0) == epoch(any_number,
                                                                                   0)  # each has its own index


def test_the_most_alike_are_united(stored):
    pairs = [(4, 3)] * 30 + [(5, 4)] * 30 + [(40, 39)] * 30
    plan = plan_batches(stored(pairs), BatchLimits(80, 80), seed=0, max_shapes=2)
    assert sorted(plan.shapes) == [BatchShape(1, (40, 40)), BatchShape(8, (5, 5))]
    assert plan_batches(stored(pairs), BatchLimits(80, 80), seed=0, max_shapes=1).shapes == (BatchShape(1, (40, 40)),)
    with pytest.raises(ValueError, match="`max_shapes` must be at least 1, but is 0"):
        plan_batches(stored(pairs), BatchLimits(80, 80), seed=0, max_shapes=0)


def test_a_pair_over_the_budget_is_a_batch_by_itself_and_noted(stored):
    plan = plan_batches(stored([(3, 3)] * 40 + [(90, 20), (5, 100)]), BatchLimits(100, 100), seed=0)
    batches = epoch(plan, 0)
    assert [40] in batches
    assert [41] in batches
    (note,) = plan.notes
    assert all(part in note for part in ("2 of 42 examples", "100 tokens", "111", "a batch by itself"))
    assert plan_batches(stored([(3, 3)]), BatchLimits(100, 100), seed=0).notes == ()


def test_one_side_with_nothing_more(written):
    plan = plan_batches(written([[1]] * 10), BatchLimits(3, 100), seed=0, extra=(0,))
    assert sorted(map(len, epoch(plan, 0))) == [2, 2, 3, 3]


def test_the_index_is_made_once(stored, lognormal, monkeypatch):
    store = stored(lognormal(300))
    first = plan_batches(store, BatchLimits(500, 500), seed=0)
    monkeypatch.setattr(planning, "_make_index", lambda *_: pytest.fail("made again"))
    again = plan_batches(store, BatchLimits(500, 500), seed=0)
    assert epoch(again, 3) == epoch(first, 3)
    assert again.notes == first.notes
    monkeypatch.undo()
    assert plan_batches(store, BatchLimits(100, 500), seed=0).count > first.count  # another budget has its own index
    assert len([path for path in store.folder.iterdir() if path.suffix == ".index"]) == 2


@pytest.mark.parametrize("suffix", [".index", ".json"])
@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"\1" + data[1:], lambda data: b""])
def test_a_damaged_index_is_made_again(stored, lognormal, suffix, damage):
    store = stored(lognormal(300))
    before = epoch(plan_batches(store, BatchLimits(500, 500), seed=0), 0)
    (path,) = (path for path in store.folder.iterdir() if path.suffix == suffix and path.name.startswith("buckets"))
    path.write_bytes(damage(path.read_bytes()))
    assert epoch(plan_batches(store, BatchLimits(500, 500), seed=0), 0) == before


def test_the_index_may_be_kept_elsewhere(stored, tmp_path):
    store = stored([(1, 1)])
    before = sorted(store.folder.iterdir())
    plan_batches(store, BatchLimits(10, 10), seed=0, folder=tmp_path)
    assert sorted(store.folder.iterdir()) == before
    assert len(list(tmp_path.iterdir())) == 2


def test_an_empty_store(stored):
    plan = plan_batches(stored([]), BatchLimits(10, 10), seed=0)
    assert plan.count == 0
    assert plan.shapes == ()
    assert plan_batches(stored([]), BatchLimits(10, 10), seed=0, max_shapes=3).shapes == ()
    with pytest.raises(ValueError, match="`index` must be from 0 to -1, but is 0"):
        plan.batch(0, 0)


@pytest.mark.parametrize("extra", [(1,), (0, 0, 1)])
def test_what_does_not_fit_the_sides(stored, extra):
    with pytest.raises(ValueError, match="`extra` must be of 2 numbers, one a side"):
        plan_batches(stored([(1, 1)]), BatchLimits(10, 10), seed=0, extra=extra)


def test_a_late_batch_takes_no_longer_than_an_early_one(stored):
    plan = plan_batches(stored([(5, 5)] * 20_000), BatchLimits(1100, 100), seed=0)

    def seconds(number, index):
        start = time.process_time()
        plan.batch(number, index)
        return time.process_time() - start

    plan.batch(0, 0)
    early, late = (min(seconds(*place) for _ in range(30)) for place in ((0, 0), (10**12, plan.count - 1)))
    assert late < 5 * early
    whole = time.process_time()
    epoch(plan, 0)
    assert early < (time.process_time() - whole) / 20  # there are 200, each by itself


def test_the_same_in_another_process(stored, lognormal):
    store = stored(lognormal(500))
    code = """
import json, sys
from pathlib import Path
from regard.data.batches.plan import BatchLimits
from regard.data.batches.plan import plan_batches
from regard.data.store import open_or_make_pairs
total = int(sys.argv[2])
store = open_or_make_pairs(Path(sys.argv[1]), "key", None, vocabularies=(total, total)).store
plan = plan_batches(store, BatchLimits(700, 700), seed=9, folder=Path(sys.argv[3]))
print(json.dumps([plan.batch(4, index).tolist() for index in range(plan.count)]))
"""
    total = 10 + sum(len(side.ids) for side in store.sides)
    answers = []
    for seed in ("0", "77"):
        folder = store.folder.parent / f"beside-{seed}"
        folder.mkdir()
        done = subprocess.run([sys.executable, "-c", code, store.folder.parent, str(total), folder], text=True,
                              capture_output=True, env={**os.environ, "PYTHONHASHSEED": seed}, timeout=100)
        assert (done.returncode, done.stderr) == (0, "")
        answers.append(json.loads(done.stdout))
    here = epoch(plan_batches(store, BatchLimits(700, 700), seed=9), 4)
    assert answers == [here, here]
    names = [sorted((path.name, hashlib.sha256(path.read_bytes()).hexdigest())
                    for path in (store.folder.parent / f"beside-{seed}").iterdir()) for seed in ("0", "77")]
    assert names[0] == names[1]


def table(lengths):
    rows, counts = np.unique(np.array(lengths), axis=0, return_counts=True)
    return rows, counts


def summary(rows, counts, limits):
    """Tokens with padding, tokens, and the batches of each bucket."""
    found = split_into_buckets(rows, counts, limits)
    padded, batches = 0, []
    for bucket in range(found.max() + 1):
        inside = found == bucket
        longest, count = rows[inside].max(axis=0), counts[inside].sum()
        padded += count * longest.sum()
        batches.append(int(limits.batches(count, longest)))
    return padded, (rows.sum(axis=1) * counts).sum(), batches


def test_a_batch_has_as_many_rows_as_the_budget_allows():
    longest = np.array([[5, 5], [50, 51], [60, 0], [0, 0]])
    assert BatchLimits(100, 1000).size(longest).tolist() == [10, 1, 1, 100]
    assert BatchLimits(100, 7).size(longest).tolist() == [7, 1, 1, 7]
    assert BatchLimits(100, 1000).batches(np.array([21, 3, 1, 0]), longest).tolist() == [3, 3, 1, 0]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=200), st.integers(1, 500))
def test_buckets_never_cost_more_than_one_for_all(lengths, budget):
    rows, counts = table(lengths)
    limits = BatchLimits(budget, 10**6)
    found = split_into_buckets(rows, counts, limits)
    assert sorted(set(found.tolist())) == list(range(found.max() + 1))
    padded, _, batches = summary(rows, counts, limits)
    longest, total = rows.max(axis=0), counts.sum()
    whole = 4 * total * longest.sum() + budget * limits.batches(total, longest)
    assert 4 * padded + budget * sum(batches) <= whole


@pytest.mark.parametrize(("count", "most"), [(20_000, 0.08), (200_000, 0.04)])
def test_little_is_padding_buckets(lognormal, count, most):
    rows, counts = table(lognormal(count))
    padded, tokens, batches = summary(rows, counts, BatchLimits(4096, 4096))
    assert 1 - tokens / padded < most
    assert sum(batches) < 1.25 * tokens / 4096
    assert np.median(batches) >= MIN_BATCHES


def test_one_side():
    rows, counts = np.arange(1, 101).reshape(-1, 1), np.full(100, 1000)
    padded, tokens, _ = summary(rows, counts, BatchLimits(4096, 4096))
    assert 1 - tokens / padded < 0.04


def test_a_giant_does_not_make_the_batches_of_the_others_small():
    rows, counts = table([(10, 10), (12, 9), (11, 11)] * 300 + [(5000, 8)])
    found = split_into_buckets(rows, counts, BatchLimits(2000, 2000))
    giant = found[-1]
    assert rows[found == giant].tolist() == [[5000, 8]]
    assert sum(summary(rows, counts, BatchLimits(2000, 2000))[2]) < 15


def test_a_small_corpus_stays_together():
    rows, counts = table([(n % 30 + 1, n % 29 + 1) for n in range(100)])
    assert split_into_buckets(rows, counts, BatchLimits(4096, 4096)).tolist() == [0] * len(rows)


def test_no_lengths():
    assert split_into_buckets(np.zeros((0, 2), int), np.zeros(0, int), BatchLimits(10, 10)).tolist() == []


def lengths_of_packing(count, seed=0, longest=12):
    chance = np.random.default_rng(seed)
    return [tuple(int(one) for one in chance.integers(1, longest, 2)) for _ in range(count)]


@pytest.mark.parametrize("count", [1, 7, 300])
def test_every_pair_comes_once_an_epoch_in_an_order_that_follows_from_the_seed(stored, count):
    plan = plan_packed(stored(lengths_of_packing(count)), BatchLimits(200, 50), seed=3)
    epochs = [[plan.batch(epoch, index) for index in range(plan.count)] for epoch in (0, 1)]
    for batches in epochs:
        assert sorted(np.concatenate(batches)) == list(range(count))
        sizes = {len(batch) for batch in batches}
        assert max(sizes) - min(sizes) <= 1
        assert max(sizes) <= min(50, plan.rows)
    again = plan_packed(stored(lengths_of_packing(count)), BatchLimits(200, 50), seed=3)
    assert all((again.batch(1, index) == batch).all() for index, batch in enumerate(epochs[1]))
    if count > 50:
        assert (epochs[0][0] != epochs[1][0]).any()
        other = plan_packed(stored(lengths_of_packing(count)), BatchLimits(200, 50), seed=4)
        assert (other.batch(0, 0) != epochs[0][0]).any()


def test_the_room_is_within_the_budget_and_enough_for_all_but_a_few(stored):
    pairs = lengths_of_packing(6000, seed=1)
    plan = plan_packed(stored(pairs), BatchLimits(2000, 10_000), seed=1)
    ((rows, room),) = plan.shapes
    assert sum(room) <= 2000
    assert rows == rows_with_padding(plan.rows)
    table = np.array(pairs) + np.array([0, 1])
    totals = np.array([table[plan.batch(epoch, index)].sum(axis=0) for epoch in range(20) for index in
                       range(plan.count)])
    assert (totals <= np.array(room)).all(axis=1).mean() > 0.999
    assert (totals / np.array(room)).mean() > 0.8  # of 100 pairs; larger batches vary less


def test_a_pair_that_is_longer_than_the_budget_still_has_room(stored):
    plan = plan_packed(stored([(3, 3), (50, 2), (4, 70)]), BatchLimits(20, 10), seed=1)
    (shape,) = plan.shapes
    assert shape.lengths[0] >= 50
    assert shape.lengths[1] >= 71
    assert {1, 2} <= set(np.concatenate(plan.largest()))


def test_a_store_without_pairs_has_no_batches(stored):
    assert plan_packed(stored([]), BatchLimits(20, 10), seed=1).count == 0


def test_of_long_sequences_only_what_is_read_counts(stored):
    plan = plan_packed(stored([(3, 3), (500, 2), (4, 700)]), BatchLimits(200, 10), seed=1, longest=20)
    assert [(side.total, side.longest, side.longest_number) for side in plan.sides] == [(27, 20, 1), (28, 21, 2)]
    assert plan.shapes[0].lengths == (64, 64)


@pytest.mark.parametrize("make", [plan_batches, plan_packed])
def test_parts_are_drawn_at_their_rates_and_all_examples_equally_often(stored, lognormal, make):
    counts, rates = (300, 90, 2000), (1.0, 2.5, 0.1)
    plan = make(stored(lognormal(sum(counts))), BatchLimits(1000, 1000), seed=5, rates=PartRates(counts, rates))
    ends, epochs = np.cumsum(counts), 40
    found = [np.concatenate([plan.batch(number, index) for index in range(plan.count)]) for number in range(epochs)]
    assert len({len(one) for one in found}) == 1
    for part, (count, rate) in enumerate(zip(counts, rates, strict=True)):
        here = [one[(one >= ends[part] - count) & (one < ends[part])] for one in found]
        assert len(here[0]) == pytest.approx(rate * count, rel=0.1)
        assert {len(one) for one in here} == {len(here[0])}
        times = np.bincount(np.concatenate(here) - (ends[part] - count), minlength=count)
        assert times.mean() == pytest.approx(epochs * rate, rel=0.1)
        assert times.min() >= epochs * rate * 0.5  # a bucket draws a whole number an epoch, so some come more often
        assert make is plan_batches or times.max() - times.min() <= 1
    assert [found[0].tolist(), found[1].tolist()] == [
        np.concatenate([plan.batch(number, index) for index in range(plan.count)]).tolist() for number in (0, 1)]


def test_rates_of_one_draw_every_example_once(stored, lognormal):
    store = stored(lognormal(500))
    for make in (plan_batches, plan_packed):
        plan = make(store, BatchLimits(1000, 1000), seed=5, rates=PartRates((200, 0, 300), (1.0, 1.0, 1.0)))
        for number in range(3):
            assert sorted(chain(*epoch(plan, number))) == list(range(500))


def test_a_rare_part_adds_no_small_batches(stored, lognormal):
    """Buckets follow what is drawn: 300 pairs beside 20,000 that are rarely drawn."""
    store = stored(lognormal(20_300))
    limits = BatchLimits(2000, 2000)
    plan = plan_batches(store, limits, seed=1, rates=PartRates((300, 20_000), (1.0, 0.015)))
    alone = plan_batches(stored(lognormal(20_300)[:600]), limits, seed=1)
    assert plan.count <= 1.5 * alone.count + 2
    assert all(len(batch) <= shape.rows for batch in epoch(plan, 0) for shape in [max(plan.shapes)])


def test_a_part_with_rate_0_is_never_drawn(stored, lognormal):
    for make in (plan_batches, plan_packed):
        plan = make(stored(lognormal(400)), BatchLimits(1000, 1000), seed=5, rates=PartRates((100, 300), (1.0, 0.0)))
        assert sorted(chain(*epoch(plan, 7))) == list(range(100))


@pytest.mark.parametrize("rates", [PartRates((3, 3), (1.0, 1.0)), ((2,), (1.0, 1.0)), ((2,), (-1.0,))])
def test_rates_that_do_not_fit_are_refused(stored, rates):
    with pytest.raises(ValueError, match="rates"):
        plan_batches(stored([(1, 1)] * 5), BatchLimits(10, 10), seed=0,
                     rates=rates if isinstance(rates, PartRates) else PartRates(*rates))
