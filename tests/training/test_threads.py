"""The number of threads: what is free, what the user chooses, and what a checkpoint says."""

import itertools
import json
import os
from types import SimpleNamespace

import pytest
import torch
import trained

from regard.training import threads
from regard.training.threads import free_cores, thread_count, torch_threads
from regard.training.train import train


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine of four cores, whose load is given as the idle fraction of each; nobody has chosen a number."""
    for name in threads.CHOSEN_BY:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "STAT_FILE", tmp_path / "stat")
    monkeypatch.setattr(threads, "CGROUP_FOLDER", tmp_path / "cgroup")
    monkeypatch.setattr(threads, "_own_cores", lambda: {0, 1, 2, 3})

    class Threads:
        number = 4

    monkeypatch.setattr(torch, "get_num_threads", lambda: Threads.number)
    monkeypatch.setattr(torch, "set_num_threads", lambda number: setattr(Threads, "number", number))

    def loaded(*idle):
        passed = itertools.count(0, 100)  # clock ticks

        def write(seconds=0.0):
            now = next(passed)
            lines = [f"cpu{core} {500 + now * (1 - part):.0f} 0 7 {300 + now * part:.0f} 5 0 0 0 0 0"
                     for core, part in enumerate(idle)]
            (tmp_path / "stat").write_text("\n".join(["cpu  9 9 9 9 9 9 9 9 9 9", *lines, "intr 12 3", ""]))

        write()
        monkeypatch.setattr(threads, "time", SimpleNamespace(sleep=write))

    return loaded


def used(stored=None, **options):
    """The number of threads inside of the block, and the notes."""
    notes = []
    with thread_count(stored, notes.append, **options):
        number = torch.get_num_threads()
    assert torch.get_num_threads() == 4  # as before
    return number, [note.text for note in notes]


@pytest.mark.parametrize(("idle", "free", "expected"), [
    ((1.0, 1.0, 1.0, 1.0), 4.0, 4), ((0.9, 0.9, 0.95, 1.0), 3.75, 4), ((0.0, 1.0, 1.0, 1.0), 3.0, 3),
    ((0.5, 0.5, 0.5, 0.5), 2.0, 2), ((0.0, 0.0, 0.1, 0.0), 0.1, 1), ((0.0, 0.0, 0.0, 0.0, 1.0), 0.0, 1),
])
def test_as_many_threads_as_free_cores(machine, idle, free, expected):
    """Other cores than those that the process may use do not count."""
    machine(*idle)
    assert free_cores() == pytest.approx(free)
    number, notes = used()
    assert number == expected
    shown = f"{free:.1f} of " if free else "No CPU core"
    assert [(f"{expected} thread" in note, shown in note, "OMP_NUM_THREADS" in note) for note in notes] == (
        [(True, True, True)] if expected < 4 else [])


@pytest.mark.parametrize(("files", "expected"), [
    ({"cpu.max": "150000 100000\n"}, 1.5), ({"cpu.max": "max 100000\n"}, 4.0), ({"cpu.max": ""}, 4.0),
    ({"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2.0),
    ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4.0),
])
def test_the_quota_of_a_container(machine, tmp_path, files, expected):
    machine(1.0, 1.0, 1.0, 1.0)
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert free_cores() == expected


@pytest.mark.parametrize("text", [None, "cpu 0 0 0 0\n", "".join(f"cpu{core} 0 0 0 0 0 0 0 0\n" for core in range(4))])
def test_a_system_that_does_not_tell_its_load_is_free(machine, monkeypatch, text):
    monkeypatch.setattr(threads, "time", SimpleNamespace(sleep=lambda seconds: None))
    if text is not None:
        threads.STAT_FILE.write_text(text)
    assert free_cores() == 4
    assert used() == (4, [])


@pytest.mark.parametrize("name", threads.CHOSEN_BY)
def test_the_number_of_the_user_is_kept(machine, monkeypatch, name):
    machine(0.0, 0.0, 0.0, 0.0)
    monkeypatch.setenv(name, "4")
    assert used() == used(2, resumed=True) == (4, [])


def test_a_resumed_training_keeps_its_threads(machine):
    machine(0.0, 0.0, 0.0, 0.0)
    assert used(3, resumed=True) == (3, [])
    assert used(None, resumed=True) == (4, [])  # a checkpoint of an earlier version: as then
    assert used(64, resumed=True) == (4, [])  # it comes from a larger machine
    assert used(adapt=False) == (4, [])


def test_a_training_stores_its_threads_and_resumes_with_them(tmp_path, monkeypatch):
    """Begun on a busy machine with one of two threads, and resumed on an idle one."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    for name in threads.CHOSEN_BY:
        monkeypatch.delenv(name, raising=False)
    data, free, seen = trained.pairs(tmp_path / "pairs.tsv"), [0.0], []
    monkeypatch.setattr(threads, "free_cores", lambda: free[0])
    monkeypatch.setattr(threads, "_own_cores", lambda: {0, 1})
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        first = trained.Recorder(stop=("CheckpointSaved", 2))
        with pytest.raises(KeyboardInterrupt):
            train(trained.request(data, tmp_path / "model"), [first])
        assert torch.get_num_threads() == 2
        assert sum("OMP_NUM_THREADS" in note for note in first.notes()) == 1
        (values,) = (tmp_path / "model" / "checkpoints").glob("step-*/values.json")
        assert json.loads(values.read_bytes())["values"]["threads"] == 1
        free[0] = 2.0
        second = trained.Recorder()
        train(trained.request(data, tmp_path / "model", resume=True),
              [second, trained.Recorder()], [lambda event: seen.append(torch.get_num_threads())])
        assert set(seen) == {1}
        assert not any("OMP_NUM_THREADS" in note for note in second.notes())
    finally:
        torch.set_num_threads(before)


def test_the_number_is_restored_after_an_error(machine):
    def fail():
        assert torch.get_num_threads() == 1
        raise KeyError

    with pytest.raises(KeyError), torch_threads(1):
        fail()
    assert torch.get_num_threads() == 4
