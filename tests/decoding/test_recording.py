"""Recordings: the first call runs as it is; on a GPU all later ones are replayed on the same memory."""

import pytest
import torch

from regard.decoding.recording import Recording, recorder


def test_the_first_call_runs_as_it_is():
    calls = []
    Recording(lambda: calls.append(1))()
    assert calls == [1]


@pytest.mark.gpu
def test_later_calls_run_no_python():
    x, total, calls = torch.ones(3, device="cuda"), torch.zeros(3, device="cuda"), []

    def work():
        calls.append(1)
        total.add_(x * 2)

    record = recorder()
    first, second = record(work), record(lambda: total.mul_(2))
    for _ in range(4):
        first()
        second()
    assert total.tolist() == [60.0] * 3
    assert len(calls) == 2, "once as it is, and once to be recorded"
    x.fill_(0.0)
    first()
    assert total.tolist() == [60.0] * 3
