"""A training that is killed at any moment of a save: the newest whole checkpoint loads, the best is there, and nothing
that is left confuses those that come later.

The process kills itself (SIGKILL) before its n-th touch of the file system, for every n until it comes to its end, or
is killed after random times. Only touches that change something count.
"""

import json
import os
import signal
import subprocess
import sys

import pytest

from regard.training.checkpoints import CheckpointManager
from regard.training.snapshot import Snapshot

# One worker makes what all of these tests look at.
pytestmark = pytest.mark.thorough

# A process that forks one that saves, for each n. Python reports most touches to an audit hook; fsync and the exchange
# are wrapped.
DRIVER = '''
import itertools, json, os, shutil, signal, sys
from pathlib import Path
import torch
from regard.storage import filesystem
from regard.training.checkpoints import CheckpointManager
from regard.training.snapshot import Snapshot

EVENTS = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.chmod", "os.chown", "fcntl.flock"}

def saved(folder, step, best):
    tensors = {"a": torch.full((100,), float(step)), "b": torch.full((3,), float(step))}
    return CheckpointManager(folder, 1).save(step, Snapshot(tensors, {"step": step}), best)

def killed(folder, step, best, count):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    calls = itertools.count()
    def touch():
        if next(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
    exchange = filesystem.exchange
    os.fsync = lambda handle: touch()
    filesystem.exchange = lambda first, second: (touch(), exchange(first, second))[1]
    def hook(event, arguments):
        if event in EVENTS or event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR):
            touch()
    sys.addaudithook(hook)
    os._exit(0 if saved(folder, step, best) == [] else 1)

def every_moment(root, before, left, save, exchange):
    """The exit codes of saves that are killed ever later, each in a folder of its own, until one is not killed."""
    template, codes = root / "template", []
    template.mkdir(parents=True)
    for step, best in before:
        assert saved(template, step, best) == []
    if left:
        killed(template, *left)
    while 0 not in codes:
        folder = root / f"{len(codes):04}"
        shutil.copytree(template, folder)
        codes.append(killed(folder, *save, len(codes)))
    return codes

os.fsync = lambda handle: None
exchange = filesystem.exchange
for name, scenario in json.loads(sys.argv[2]).items():
    filesystem.exchange = exchange if scenario["exchange"] else lambda first, second: False
    print(json.dumps(every_moment(Path(sys.argv[1]) / name, **scenario)), flush=True)
'''
TWO = [[5, 5], [10, 5]]
"""Checkpoints of the steps 5 and 10, of which 5 is the best."""


def scenario(save, before=TWO, left=None, exchange=True):
    """Saves before; one that was killed at a given touch: [step, best, touch]; and the one that is killed at every."""
    return {"before": before, "left": left, "save": save, "exchange": exchange}


LATER = {"later": scenario([20, 5]), "another was killed before": scenario([20, 5], left=[15, 5, 10]),
         "the newest was killed while it was stored again": scenario([20, 5], left=[10, 5, 20], exchange=False)}
BEST = {"a new best": scenario([20, 20])}
AGAIN = {"the same again": scenario([10, 10]), "the same again, without exchange": scenario([10, 10], exchange=False)}
FIRST = {"the first": scenario([1, 1], before=[])}


@pytest.fixture(autouse=True)
def _without_syncing(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """By the name of a scenario the folders in which a save was killed at every moment, and in the last one not."""
    root, scenarios = tmp_path_factory.mktemp("killed"), {**LATER, **BEST, **AGAIN, **FIRST}
    done = subprocess.run([sys.executable, "-c", DRIVER, str(root), json.dumps(scenarios)], capture_output=True,
                          text=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
    folders = {}
    for name, codes in zip(scenarios, map(json.loads, done.stdout.splitlines()), strict=True):
        assert len(codes) > 20
        assert set(codes[:-1]) == {-signal.SIGKILL}
        folders[name] = [root / name / f"{count:04}" for count in range(len(codes))]
    return folders


def whole(loaded):
    """The step of a checkpoint, of which all must be."""
    numbers = {float(number) for name in ("a", "b") for number in loaded.snapshot.tensor(name).unique()}
    assert numbers == {float(loaded.step)}
    assert loaded.snapshot.values == {"step": loaded.step}
    return loaded.step


def assert_goes_on(folder, step, best):
    """A training that is resumed there saves again, and leaves nothing but what it keeps."""
    checkpoints = CheckpointManager(folder, 1)
    assert checkpoints.save(step, Snapshot({}, {}), best) == []
    assert sorted(path.name for path in folder.iterdir()) == [
        "newest.json", *(f"step-{one:08}" for one in sorted({best, step}))]


@pytest.mark.parametrize("name", LATER)
def test_killed_at_every_moment_of_a_save(killed, name):
    found = []
    for folder in killed[name]:
        loaded = CheckpointManager(folder, 1).load()
        found.append(whole(loaded))
        assert loaded.notes == ()
        assert whole(CheckpointManager(folder, 1).at(5)) == 5  # the best
        assert_goes_on(folder, 30, 5)
    assert set(found) == {10, 20}
    assert found == sorted(found)


@pytest.mark.parametrize("name", BEST)
def test_killed_while_a_new_best_takes_the_place_of_the_old(killed, name):
    for folder in killed[name]:
        checkpoints = CheckpointManager(folder, 1)
        loaded = checkpoints.load()
        assert whole(loaded) in (10, 20)
        assert loaded.notes == ()
        assert whole(checkpoints.at(loaded.best)) == {10: 5, 20: 20}[loaded.step]
        assert_goes_on(folder, 30, loaded.best)


@pytest.mark.parametrize("name", AGAIN)
def test_killed_while_the_same_step_is_stored_again(killed, name):
    for folder in killed[name]:
        loaded = CheckpointManager(folder, 1).load()
        assert whole(loaded) == 10
        assert loaded.notes == ()
        assert loaded.best in (5, 10)
        assert loaded.best in CheckpointManager(folder, 1).steps()
        assert_goes_on(folder, 30, 10)


@pytest.mark.parametrize("name", FIRST)
def test_killed_in_the_first_save(killed, name):
    found = []
    for folder in killed[name]:
        loaded = CheckpointManager(folder, 1).load()
        found.append(None if loaded is None else whole(loaded))
        assert_goes_on(folder, 2, 2)
    assert set(found) == {None, 1}
    assert found[0] is None
    assert found[-1] == 1


def test_killed_after_random_times(tmp_path):
    """As a machine that goes down would: a training that saves and saves, and every time goes on from what it finds."""
    code = """
import os, random, signal, sys, time, torch
from regard.training.checkpoints import CheckpointManager
from regard.training.snapshot import Snapshot

def train(checkpoints):
    with checkpoints.lock():
        loaded = checkpoints.load()
        step, best = (0, None) if loaded is None else (loaded.step, loaded.best)
        while True:
            step += 1
            best = step if best is None or step % 7 == 0 else best
            tensors = {"a": torch.full((300, 1000), float(step)), "b": torch.full((3,), float(step))}
            assert checkpoints.save(step, Snapshot(tensors, {"step": step}), best) == []

checkpoints, chance = CheckpointManager(sys.argv[1], 2), random.Random(1)
began, timed = time.monotonic(), CheckpointManager(sys.argv[1] + " timed", 2)
for step in (1, 2, 3):
    timed.save(step, Snapshot({"a": torch.full((300, 1000), float(step))}, {"step": step}), step)
one_save = (time.monotonic() - began) / 3  # on this machine, now
for seconds in [chance.uniform(2, 7) * one_save for _ in range(8)]:
    child = os.fork()
    if not child:
        try:
            train(checkpoints)
        finally:
            os._exit(1)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    loaded = checkpoints.load()
    if loaded is not None:
        assert loaded.notes == ()
        for each in (loaded, checkpoints.at(loaded.best)):
            numbers = {float(one) for name in ("a", "b") for one in each.snapshot.tensor(name).unique()}
            assert numbers == {float(each.step)}
        print(loaded.step, flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "checkpoints")], capture_output=True, text=True,
                          timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
    steps = list(map(int, done.stdout.split()))
    assert steps == sorted(steps)
    assert len(set(steps)) > 2
