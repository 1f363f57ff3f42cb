"""Windows that begin elsewhere in every epoch: still every id but the first is asked for once an epoch."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batches.feed import MovingWindowCollator, PlanFeed, WindowPlan


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
