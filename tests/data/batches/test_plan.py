"""Plans: every pair exactly once an epoch, any batch at once, the same for the same seed wherever it is made."""

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
from regard.data.batches.plan import BatchLimits, BatchShape, plan_batches

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
    assert epoch(plan_batches(store, BatchLimits(4096, 4096), seed=0), 0) == epoch(any_number, 0)  # each has its own index


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
    assert plan.notes == ("2 of 42 are longer than the budget of 100 tokens (the longest has 111): "
                          "each is a batch by itself.",)
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
        start = time.perf_counter()
        plan.batch(number, index)
        return time.perf_counter() - start

    plan.batch(0, 0)
    early, late = (min(seconds(*place) for _ in range(30)) for place in ((0, 0), (10**12, plan.count - 1)))
    assert late < 5 * early
    whole = time.perf_counter()
    epoch(plan, 0)
    assert early < (time.perf_counter() - whole) / 20  # there are 200, each by itself


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
