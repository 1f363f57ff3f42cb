"""Making a store: killed at any point, by several processes at once, and of a million pairs."""

import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from regard.data import store as storing
from regard.data.store import open_or_make_pairs

# A process that forks one that makes a store, and kills itself before its n-th touch of the file system, for every n
# until it comes to its end. Python reports most touches to an audit hook; writing and syncing are wrapped.
KILLED = """
import itertools, json, os, shutil, signal, sys
from pathlib import Path
from regard.data import store as storing
from regard.data.store import open_or_make_pairs

storing.BLOCK_IDS = 100
EVENTS = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.listdir", "os.scandir", "fcntl.flock"}
root, before = Path(sys.argv[1]), sys.argv[2]

def rows(tag):
    return [([tag] * (n % 9), [tag, n % 50]) for n in range(60)]

for count in itertools.count():
    place = root / str(count)
    os.fsync = lambda handle: None
    if before:
        open_or_make_pairs(place, before, lambda: rows(1), vocabularies=(60, 60))
    child = os.fork()
    if not child:
        calls = itertools.count()
        def touch(*_):
            if next(calls) == count:
                os.kill(os.getpid(), signal.SIGKILL)
        os.fsync = touch
        write = storing._SideWriter._write
        storing._SideWriter._write = lambda *args: (touch(), write(*args))
        sys.addaudithook(lambda event, _: touch() if event in EVENTS else None)
        open_or_make_pairs(place, "b", lambda: rows(2), vocabularies=(60, 60))
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps([str(place), code]), flush=True)
    if code == 0:
        break
"""
SHARED = """
import json, os, sys, time
from regard.data.store import open_or_make_pairs
def make():
    with open(sys.argv[2], "a") as log:
        log.write("made\\n")
    for number in range(2000):
        yield [number % 7] * 5, [number % 5]
        if number % 500 == 0:
            time.sleep(0.02)
opened = open_or_make_pairs(sys.argv[1], "key", make, vocabularies=(7, 7))
print(json.dumps([opened.store.fingerprint, len(opened.store), opened.store[1999][0].tolist(), opened.notes]))
"""
FLAT = """
import sys
import numpy as np
from regard.data.batches.plan import BatchLimits
from regard.data.batches.plan import plan_batches
from regard.data.store import open_or_make_pairs
count = int(sys.argv[2])
def make():
    chance = np.random.default_rng(0)
    for _ in range(count // 1000):
        lengths = np.clip(np.exp(chance.normal(2.85, 0.5, (1000, 2))), 1, 200).astype(int)
        flat = chance.integers(0, 8000, lengths.sum())
        place = 0
        for source, target in lengths.tolist():
            yield flat[place:place + source], flat[place + source:place + source + target]
            place += source + target
store = open_or_make_pairs(sys.argv[1], "key", make, vocabularies=(8000, 8000)).store
plan = plan_batches(store, BatchLimits(4096, 4096), seed=0)
for index in range(0, plan.count, max(1, plan.count // 300)):
    store.gather(plan.batch(3, index))
with open("/proc/self/status") as status:
    print(len(store), next(line.split()[1] for line in status if line.startswith("VmHWM")))
"""


def run(code, *arguments):
    """What a process with this code writes; it must end well and say nothing else."""
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True,
                          timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def rows(tag):
    """What the killed process stores."""
    return [([tag] * (n % 9), [tag, n % 50]) for n in range(60)]


def found(place, keys):
    """The key of the whole store at this place, None where there is none; anything between is an error."""
    tokens = place / "tokens"
    if not tokens.exists():
        return None
    header = json.loads((tokens / "header.json").read_bytes())
    assert header["key"] in keys
    storing.read_header(tokens, header["key"], {"source": 60, "target": 60})
    return header["key"]


@pytest.mark.parametrize("before", ["", "a"])
def test_killed_at_any_point_there_is_a_whole_store_or_none(tmp_path, monkeypatch, before):
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    ends = [json.loads(line) for line in run(KILLED, tmp_path, before)]
    assert len(ends) > 30
    assert {code for _, code in ends[:-1]} == {-signal.SIGKILL}
    keys = [found(tmp_path / str(count), {"a", "b"}) for count in range(len(ends))]
    assert keys[0] == (before or None)
    assert keys[-1] == "b"
    assert keys == sorted(keys, key=[before or None, None, "b"].index)  # before, none for a moment, and then after
    for count in range(len(ends)):
        place = tmp_path / str(count)
        store = open_or_make_pairs(place, "b", lambda: rows(2), vocabularies=(60, 60)).store
        assert [tuple(side.tolist() for side in store[number]) for number in range(60)] == rows(2)
        assert sorted(os.listdir(place)) == ["lock", "tokens"]


def test_of_several_processes_one_makes_the_store_and_the_others_wait(tmp_path):
    log = tmp_path / "log"
    processes = [subprocess.Popen([sys.executable, "-c", SHARED, tmp_path / "place", log], stdout=subprocess.PIPE)
                 for _ in range(4)]
    answers = {process.communicate(timeout=100)[0] for process in processes}
    assert [process.returncode for process in processes] == [0] * 4
    assert len(answers) == 1
    assert json.loads(answers.pop())[1:] == [2000, [4] * 5, []]
    assert log.read_text() == "made\n"


def test_nobody_looks_at_a_store_while_it_is_put_in_place(tmp_path):
    open_or_make_pairs(tmp_path, "key", lambda: rows(1), vocabularies=(60, 60))
    ended = threading.Event()

    def look():
        open_or_make_pairs(tmp_path, "key", lambda: rows(1), vocabularies=(60, 60))
        ended.set()

    with storing.open_store_folder(tmp_path) as place:
        place.lock_exclusive()
        reader = threading.Thread(target=look)
        reader.start()
        assert not ended.wait(0.2)
    reader.join(10)
    assert ended.is_set()


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the peak of memory is read from /proc")
def test_memory_does_not_grow_with_the_corpus(tmp_path):
    (few, small), (many, large) = (map(int, run(FLAT, tmp_path / count, count)[0].split())
                                   for count in ("10000", "1000000"))
    assert (few, many) == (10**4, 10**6)
    assert sum(path.stat().st_size for path in (tmp_path / "1000000" / "tokens").iterdir()) > 90e6
    assert large - small < 60_000  # kB; the files have more
