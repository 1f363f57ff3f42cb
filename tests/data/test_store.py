"""The token store: what is written is read, killed at any point it is complete or absent, and processes share it."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import store as storing
from regard.data.sources.text import DataError
from regard.data.store import file_digest, open_or_make_pairs, open_or_make_texts, store_key

PAIRS = [([1, 2, 3], [4]), ([], [5, 6]), ([7], [])]
FILES = ("source.ids", "source.offsets", "target.ids", "target.offsets", "header.json")


@pytest.fixture(autouse=True)
def _without_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def never():
    raise AssertionError("the store is made again")


def pairs(store):
    return [tuple(side.tolist() for side in store[number]) for number in range(len(store))]


def made(place, rows=PAIRS, key="key", vocabularies=(8, 8)):
    return open_or_make_pairs(place, key, lambda: iter(rows), vocabularies=vocabularies)


def reopened(place, key="key", vocabularies=(8, 8)):
    return open_or_make_pairs(place, key, never, vocabularies=vocabularies)


sequences = st.lists(st.integers(0, 2**32 - 1), max_size=5)


@given(st.lists(st.tuples(sequences, sequences), max_size=20), st.sampled_from([8, 16, 32]), st.data())
def test_what_goes_in_comes_out(tmp_path_factory, rows, bits, data):
    rows = [tuple([number % 2**bits for number in side] for side in row) for row in rows]
    place = tmp_path_factory.mktemp("store")
    for store in (made(place, rows, vocabularies=(2**bits, 2**bits)).store,
                  reopened(place, vocabularies=(2**bits, 2**bits)).store):
        assert pairs(store) == rows
        assert len(store) == len(rows)
        assert store.sides[0].ids.dtype.itemsize == bits // 8
        numbers = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=9)) if rows else []
        for side, found in zip((0, 1), store.gather(np.array(numbers, np.int64)), strict=True):
            assert found.ids.tolist() == [number for n in numbers for number in rows[n][side]]
            assert found.lengths.tolist() == [len(rows[n][side]) for n in numbers]


def test_blocks_are_joined(tmp_path, monkeypatch):
    monkeypatch.setattr(storing, "BLOCK_IDS", 7)
    rows = [([n % 8] * (n % 5), [n % 3] * (n % 4)) for n in range(100)]
    store = made(tmp_path, rows).store
    assert pairs(store) == rows
    assert store.sides[1].lengths(10, 20).tolist() == [len(target) for _, target in rows[10:20]]


def test_sequences_are_views_and_counted_as_lists_are(tmp_path):
    store = made(tmp_path).store
    source, _ = store[0]
    assert not source.flags.owndata
    assert not source.flags.writeable
    assert [side.tolist() for side in store[-1]] == [[7], []]
    with pytest.raises(IndexError):
        store[3]
    store.release()
    assert source.tolist() == [1, 2, 3]


def test_texts_are_one_long_text(tmp_path):
    opened = open_or_make_texts(tmp_path, "key", lambda: [[1, 2], [], np.array([3])], vocabulary=4)
    assert opened.store.stream.tolist() == [1, 2, 3]
    assert [opened.store[number].tolist() for number in range(3)] == [[1, 2], [], [3]]


def test_texts_can_be_kept_as_their_bytes(tmp_path):
    words = ["Größe", "", "\x00 \U0001F600"]
    store = open_or_make_texts(tmp_path, "key", lambda: (word.encode() for word in words), vocabulary=256).store
    assert [store[number].tobytes().decode() for number in range(3)] == words


def test_a_store_of_another_key_is_replaced_and_that_is_said(tmp_path):
    assert made(tmp_path).notes == []
    again = made(tmp_path, [([1], [1])], key="other")
    assert pairs(again.store) == [([1], [1])]
    assert len(again.notes) == 1
    assert "other data" in again.notes[0]
    assert made(tmp_path, [([1], [1])], key="other", vocabularies=(8, 9)).notes
    assert sorted(os.listdir(tmp_path)) == ["lock", "tokens"]


def test_an_old_view_outlives_its_store(tmp_path):
    source, _ = made(tmp_path).store[0]
    made(tmp_path, [([5, 5, 5, 5], [1])], key="other")
    assert source.tolist() == [1, 2, 3]


def cut(path):
    os.truncate(path, path.stat().st_size - 1)


def lengthen(path):
    with path.open("ab") as file:
        file.write(b"\0")


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", [cut, lengthen, flip, os.remove])
def test_a_damaged_store_is_made_anew_and_the_file_is_named(tmp_path, name, damage):
    made(tmp_path)
    damage(tmp_path / "tokens" / name)
    again = made(tmp_path)
    assert pairs(again.store) == PAIRS
    assert len(again.notes) == 1
    # A flipped bit of the header may also be one of its key, or of a sha256.
    assert name in again.notes[0] or (name == "header.json" and damage is flip)
    assert reopened(tmp_path).notes == []


@pytest.mark.parametrize("header", [b"", b"[]", b"{}", b"\xff", b'{"key": 1, "sides": {"source": 3}}'])
def test_what_is_no_header(tmp_path, header):
    made(tmp_path)
    (tmp_path / "tokens" / "header.json").write_bytes(header)
    assert "header.json is damaged" in made(tmp_path).notes[0]


@pytest.mark.parametrize(("rows", "message"), [
    ([([1], [2]), ([3, 8], [1])], "`ids` must be from 0 to 7, but is 8 instead. It is in sequence 1 of the source"),
    ([([1], [2]), ([8], [1])], "`ids` must be from 0 to 7, but is 8 instead. It is in sequence 1 of the source"),
    ([([1], [-1])], "`ids` must be from 0 to 7, but is -1 instead. It is in sequence 0 of the target"),
    ([([1], [1]), ([1], [0.5])], "`ids` must be whole numbers in a row, but is float64.* sequence 1 of the target"),
    ([([1], [[1]])], "`ids` must be whole numbers in a row"),
    ([([1],)], "`row` must be of 2 sides, source, target, but is of 1"),
])
def test_what_are_no_ids(tmp_path, rows, message):
    made(tmp_path)
    with pytest.raises(ValueError, match=message):
        made(tmp_path, rows, key="other")
    assert sorted(os.listdir(tmp_path)) == ["lock", "tokens"]
    assert pairs(reopened(tmp_path).store) == PAIRS


@pytest.mark.parametrize("vocabulary", [0, 2**32 + 1])
def test_what_is_no_vocabulary(tmp_path, vocabulary):
    with pytest.raises(ValueError, match=r"`vocabulary` must be from 1 to 2\*\*32"):
        open_or_make_texts(tmp_path, "key", never, vocabulary=vocabulary)


def test_an_error_of_the_data_passes_and_the_old_store_stays(tmp_path):
    made(tmp_path)

    def rows():
        yield [1], [2]
        raise DataError("corpus.de:7: byte 12: 0xFF is not UTF-8")

    with pytest.raises(DataError, match=r"corpus\.de:7"):
        open_or_make_pairs(tmp_path, "other", rows, vocabularies=(8, 8))
    assert pairs(reopened(tmp_path).store) == PAIRS


@pytest.mark.parametrize("when", range(5))
def test_a_full_disk_leaves_the_old_store_and_names_the_file(tmp_path, monkeypatch, when):
    made(tmp_path)
    calls = count()

    def full(handle):
        if next(calls) == when:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*/new/(source|target|header)") as caught:
        made(tmp_path, key="other")
    assert caught.value.errno == errno.ENOSPC
    assert not (tmp_path / "new").exists()
    assert pairs(reopened(tmp_path).store) == PAIRS


@pytest.mark.parametrize("name", ["tokens", "new", "old"])
def test_what_a_store_did_not_write_is_not_removed(tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match=f"{name}: .*thesis.txt"):
        made(tmp_path)
    assert (tmp_path / name / "thesis.txt").read_text() == "mine"


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "tokens").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="not a folder"):
        made(tmp_path / "place")


def test_a_place_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match=r"/file: .* File exists"):
        made(tmp_path / "file")


def test_a_store_that_may_only_be_read_is_read(tmp_path, monkeypatch):
    made(tmp_path)
    opening = os.open

    def only_reading(path, flags, *mode, **options):
        if flags & (os.O_RDWR | os.O_WRONLY):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opening(path, flags, *mode, **options)

    monkeypatch.setattr(os, "open", only_reading)
    assert pairs(reopened(tmp_path).store) == PAIRS


def test_a_key_stands_for_all_that_ids_depend_on(tmp_path):
    for name, text in (("a", "x"), ("b", "y"), ("c", "x")):
        (tmp_path / name).write_text(text)
    a, b, c = (file_digest(tmp_path / name) for name in "abc")
    assert a == c
    keys = {store_key(*parts) for parts in (
        ([a, b], "t", {}), ([b, a], "t", {}), ([a], "t", {}), ([a, b], "u", {}), ([a, b], "t", {"longest": 1}),
        ([a, b], "t", {"longest": 2}))}
    assert len(keys) == 6
    assert store_key([a], "t", {"m": 1, "n": 2}) == store_key([c], "t", {"n": 2, "m": 1})
    with pytest.raises(DataError, match=r"missing\.de: The file cannot be read: No such file"):
        file_digest(tmp_path / "missing.de")


def test_the_header_tells_what_the_files_are(tmp_path):
    made(tmp_path, vocabularies=(8, 300))
    header = json.loads((tmp_path / "tokens" / "header.json").read_bytes())
    assert header["sides"]["source"].items() >= {"count": 3, "ids": 4, "vocabulary": 8}.items()
    assert np.fromfile(tmp_path / "tokens" / "source.offsets", "<i8").tolist() == [0, 3, 3, 4]
    assert np.fromfile(tmp_path / "tokens" / "target.ids", "<u2").tolist() == [4, 5, 6]


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


@pytest.mark.thorough
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
    for number in range(len(ends)):
        place = tmp_path / str(number)
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
    reader.join(60)
    assert ended.is_set()


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the peak of memory is read from /proc")
def test_memory_does_not_grow_with_the_corpus(tmp_path):
    (few, small), (many, large) = (map(int, run(FLAT, tmp_path / count, count)[0].split())
                                   for count in ("10000", "1000000"))
    assert (few, many) == (10**4, 10**6)
    assert sum(path.stat().st_size for path in (tmp_path / "1000000" / "tokens").iterdir()) > 90e6
    assert large - small < 60_000  # kB; the files have more
