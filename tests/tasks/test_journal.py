"""The journal of a work: what is added is there after any end, in whole blocks, for the same work alone."""

import json

import pytest

from regard.data.sources.text import DataError
from regard.tasks.documents import Journal

WORK = {"input": "a" * 64, "beam": 5, "format": None}


@pytest.fixture
def output(tmp_path):
    return tmp_path / "out.txt"


def entries(output):
    return output.with_name("out.txt.progress") / "entries.jsonl"


def test_what_was_added_is_there_in_whole_blocks(output):
    with Journal(output, WORK, 2) as journal:
        assert (journal.count, journal.failed) == (0, 0)
        journal.add(["one", None])
        journal.add(["zwei\n\u2028", None])
        journal.add(["three"])
        assert (journal.count, journal.failed) == (5, 2)
    with Journal(output, WORK, 2) as journal:
        assert (journal.count, journal.failed) == (4, 2)
        assert list(journal.entries()) == ["one", None, "zwei\n\u2028", None]
        journal.add(["drei"])
        assert list(journal.entries())[-1] == "drei"


def test_every_place_to_be_killed_at(output):
    with Journal(output, WORK, 2) as journal:
        journal.add(["one", "two"])
        first = len(entries(output).read_bytes())
        journal.add([None, "four"])
    whole = entries(output).read_bytes()
    header = whole.index(b"\n") + 1
    for length in range(len(whole) + 1):
        entries(output).write_bytes(whole[:length])
        with Journal(output, WORK, 2) as journal:
            want = 4 if length == len(whole) else 2 if length >= first else 0
            assert (journal.count, journal.failed) == (want, want == 4)
            assert list(journal.entries()) == ["one", "two", None, "four"][:want]
        assert entries(output).read_bytes() == whole[:max(header, {0: header, 2: first, 4: len(whole)}[want])]


def test_the_output_gets_its_name_at_the_end(output):
    with Journal(output, WORK, 2) as journal:
        journal.add(["one"])
        journal.partial_output.write_text("one\n")
        assert not output.exists()
        journal.finish()
    assert output.read_text() == "one\n"
    assert [path.name for path in output.parent.iterdir()] == ["out.txt"]


def test_killed_between_the_name_and_the_end(output, monkeypatch):
    monkeypatch.setattr("shutil.rmtree", lambda folder: None)
    with Journal(output, WORK, 2) as journal:
        journal.add(["one", None])
        journal.partial_output.write_text("one\n")
        journal.finish()
    monkeypatch.undo()
    with Journal(output, WORK, 2) as journal:
        assert (journal.finished, journal.count, journal.failed) == (True, 2, 1)
        journal.finish()
    assert [path.name for path in output.parent.iterdir()] == ["out.txt"]


def test_killed_before_the_name(output, monkeypatch):
    monkeypatch.setattr("pathlib.Path.rename", lambda *paths: None)
    monkeypatch.setattr("shutil.rmtree", lambda folder: None)
    with Journal(output, WORK, 2) as journal:
        journal.add(["one", "two"])
        journal.partial_output.write_text("one\n")
        journal.finish()
    monkeypatch.undo()
    with Journal(output, WORK, 2) as journal:
        assert (journal.finished, journal.count) == (False, 2)
        assert list(journal.entries()) == ["one", "two"]
        assert not journal.partial_output.exists()


def test_an_output_that_is_there_is_not_written_over(output):
    output.write_text("mine")
    with pytest.raises(DataError, match=r"out\.txt: It exists already"):
        Journal(output, WORK, 2)
    assert [path.name for path in output.parent.iterdir()] == ["out.txt"]
    output.unlink()
    Journal(output, WORK, 2).__exit__(None, None, None)
    output.write_text("mine")
    with pytest.raises(DataError, match="It exists already"):
        Journal(output, WORK, 2)
    output.unlink()
    with Journal(output, WORK, 2) as journal:
        journal.partial_output.write_text("x")
        output.write_text("mine")
        with pytest.raises(DataError, match="It exists already"):
            journal.finish()
    assert output.read_text() == "mine"


def test_another_work_is_refused_with_what_differs(output):
    with Journal(output, WORK, 2) as journal:
        journal.add(["one", "two"])
    before = entries(output).read_bytes()
    other = {**WORK, "input": "b" * 64, "beam": 1, "entries": "all"}
    with pytest.raises(DataError, match=r"input was aaaaaaaaaaaa\.\.\. and is bbbbbbbbbbbb\.\.\.; "
                                        r"beam was 5 and is 1; entries was not set and is all\. .*progress"):
        Journal(output, other, 2)
    assert entries(output).read_bytes() == before


@pytest.mark.parametrize("content", ["{}\n", "no\n", '{"work": {"x": 1}', "[]\n", "HEADER\nno\n\"one\"\n"])
def test_what_is_no_journal_is_refused(output, content):
    entries(output).parent.mkdir()
    entries(output).write_text(content.replace("HEADER", json.dumps({"work": WORK})))
    if content.endswith("\n"):
        with pytest.raises(DataError, match=r"entries\.jsonl is damaged"):
            Journal(output, WORK, 2)
    else:  # a first line that a kill has cut
        with Journal(output, WORK, 2) as journal:
            assert journal.count == 0


def test_two_processes_at_once(output):
    with Journal(output, WORK, 2), pytest.raises(DataError, match="Another process is writing it"):
        Journal(output, WORK, 2)
    with Journal(output, WORK, 2) as journal:
        assert journal.count == 0


def test_a_place_where_nothing_can_be_written(tmp_path):
    with pytest.raises(DataError, match="It cannot be written: No such file or directory"):
        Journal(tmp_path / "missing" / "out.txt", WORK, 2)
