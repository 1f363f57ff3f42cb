"""Digests by name, also where two files share one; and what can be read only once is refused."""

import hashlib
import os

import pytest

from regard.data.sources.text import DataError
from regard.training.tasks.common import file_digests, in_blocks, name_digests, open_inputs


def sha(data):
    return hashlib.sha256(data).hexdigest()


def test_digests_are_by_name(tmp_path):
    for folder, data in (("a", b"1"), ("b", b"2"), ("c", b"1")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.txt").write_bytes(data)
    paths = [str(tmp_path / folder / "x.txt") for folder in "abc"]
    assert file_digests(paths) == {"x.txt": sha(b"1"), "x.txt (2)": sha(b"2")}
    assert name_digests([("set/", "1"), ("other/set", "2"), ("set", "3")]) == {"set": "1", "set (2)": "2", "set (3)": "3"}


def test_what_is_read_once_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in ("-", str(tmp_path / "pipe")):
        with pytest.raises(DataError, match=r"Training reads its data more than once.*Save it to a file"):
            open_inputs([path])


def test_blocks_hold_all_in_order():
    assert list(in_blocks(range(5), 2)) == [[0, 1], [2, 3], [4]]
    assert list(in_blocks([], 2)) == []
