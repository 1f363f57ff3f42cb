"""Stores: what goes in comes out, one that is there is used, and one that is damaged is not."""

import errno
import json
import os
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
    assert "made from other data" in again.notes[0]
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
    with pytest.raises(ValueError, match=f"{name}` must be a folder with only the files of a store.*thesis.txt"):
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
    with pytest.raises(ValueError, match=r"`folder` must be a folder that can be .*/file \(File exists\)"):
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
    with pytest.raises(DataError, match=r"missing\.de: cannot be read: No such file"):
        file_digest(tmp_path / "missing.de")


def test_the_header_tells_what_the_files_are(tmp_path):
    made(tmp_path, vocabularies=(8, 300))
    header = json.loads((tmp_path / "tokens" / "header.json").read_bytes())
    assert header["sides"]["source"].items() >= {"count": 3, "ids": 4, "vocabulary": 8}.items()
    assert np.fromfile(tmp_path / "tokens" / "source.offsets", "<i8").tolist() == [0, 3, 3, 4]
    assert np.fromfile(tmp_path / "tokens" / "target.ids", "<u2").tolist() == [4, 5, 6]
