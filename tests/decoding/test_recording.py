"""Recordings: the first call runs as it is; on a GPU all later ones are replayed on the same memory."""

import pytest
import torch

from regard.decoding.cuda_graph import AsyncReadback, CapturedWork, HostMirror, StreamOrder, graph_capture


def test_the_first_call_runs_as_it_is():
    calls = []
    CapturedWork(lambda: calls.append(1))()
    assert calls == [1]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_numbers_are_those_that_each_work_has_left(device):
    source = torch.zeros(2, dtype=torch.int32, device=device)
    post = AsyncReadback(source)
    for turn in range(5):
        source.add_(1)
        post.send()
        assert post.read(0) == [turn + 1] * 2
        if turn:
            assert post.read(1) == [turn] * 2, "of the one before, whatever came after"
    with pytest.raises(AssertionError, match="written over"):
        post.read(2)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_first_rows_of_several_tensors_are_brought(device):
    first, second = torch.arange(6, device=device).view(3, 2), torch.zeros(3, dtype=torch.float64, device=device)
    mirror = HostMirror([first, second])
    for time in range(2):
        second[:2] = time + 0.5
        ids, logs = mirror.read(2, None)
        assert (ids.tolist(), logs.tolist()) == ([[0, 1], [2, 3]], [time + 0.5] * 2)
        assert ids.device.type == "cpu"


@pytest.mark.gpu
def test_a_mirror_does_not_wait_for_what_comes_after_its_event():
    source, other = torch.zeros(1, device="cuda"), torch.ones(4096, 4096, device="cuda")
    mirror, event, late = HostMirror([source]), torch.cuda.Event(), torch.cuda.Event()
    source.fill_(3.0)
    event.record()
    for _ in range(400):
        other = other @ other * 0
    late.record()
    assert mirror.read(1, event)[0].tolist() == [3.0]
    assert not late.query(), "the work behind the event goes on"


def test_on_a_cpu_there_are_no_streams_to_keep_apart():
    order = StreamOrder()
    with order(torch.device("cpu")):
        pass
    assert order.ended is None


@pytest.mark.gpu
def test_work_of_another_stream_begins_when_that_before_has_ended():
    order, number = StreamOrder(), torch.zeros(1, device="cuda")
    slow, device = torch.ones(4096, 4096, device="cuda"), number.device
    torch.cuda.synchronize()
    for turn in range(4):
        with torch.cuda.stream(torch.cuda.Stream()), order(device):
            for _ in range(50):
                slow = slow @ slow * 0
            number.mul_(2).add_(turn)
    torch.cuda.synchronize()
    assert number.item() == 11.0  # ((0·2 + 0)·2 + 1)·2 + 2)·2 + 3


@pytest.mark.gpu
def test_later_calls_run_no_python():
    x, total, calls = torch.ones(3, device="cuda"), torch.zeros(3, device="cuda"), []

    def work():
        calls.append(1)
        total.add_(x * 2)

    record = graph_capture()
    first, second = record(work), record(lambda: total.mul_(2))
    for _ in range(4):
        first()
        second()
    assert total.tolist() == [60.0] * 3
    assert len(calls) == 2, "once as it is, and once to be recorded"
    x.fill_(0.0)
    first()
    assert total.tolist() == [60.0] * 3
