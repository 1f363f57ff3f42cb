"""Files are translated whole or resumed; the journal survives any end."""

import gzip
import json
import os
import random
import signal
import time
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from regard.data.sources.formats import read_pairs
from regard.data.sources.text import DataError
from regard.tasks.documents import Journal, TextDocument, model_fingerprint, split_blocks
from regard.tasks.placeholder_translation import translate_with_placeholders
from regard.tasks.placeholders import find_placeholders
from regard.tasks.task import isolate_errors

ASKED = {"model": "m" * 64, "beam": 5}


class Told:
    """Keeps what a watcher is told."""

    def __init__(self):
        self.starts, self.steps, self.errors = [], [], []

    def begin(self, done, total):
        self.starts.append((done, total))

    def advance(self, done):
        self.steps.append(done)

    def fail(self, where, error):
        self.errors.append((where.line, str(error)))


def shout(texts):
    """A translator that cannot take long texts."""
    for text in texts:
        if len(text) > 40:
            raise ValueError(f"too long: {text[:5]}")
    return [SimpleNamespace(text=text.upper(), score=0.0, cut=False, alternatives=()) for text in texts]


WORK = partial(isolate_errors, work=shout)


def translated(path, output, work=WORK, **options):
    told = Told()
    return TextDocument(str(path), **options).translate(work, str(output), settings=ASKED, watcher=told, block=4), told


def test_lines(tmp_path):
    path, output = tmp_path / "a.txt", tmp_path / "b.txt"
    path.write_bytes("\ufeffone\r\ntwo\n\nvier\u2028\nfive\n  \nseven".encode())
    outcome, told = translated(path, output)
    assert outcome == (7, 0, 0)
    assert output.read_bytes() == "\ufeffONE\r\nTWO\n\nVIER\u2028\nFIVE\n  \nSEVEN".encode()
    assert (told.starts, told.steps, told.errors) == ([(0, 7)], [4, 7], [])
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.txt", "b.txt"]


def test_one_bad_line_of_ten_thousand(tmp_path):
    path, output, calls = tmp_path / "a.txt", tmp_path / "b.txt", []
    path.write_text("".join("x" * 50 + "\n" if line == 6789 else f"line {line}\n" for line in range(1, 10_001)))
    told = Told()
    outcome = TextDocument(str(path)).translate(partial(isolate_errors,
                                                        work=lambda texts: calls.append(texts) or shout(texts)),
                                            str(output), settings=ASKED, watcher=told)
    assert outcome == (10_000, 1, 0)
    assert told.errors == [(6789, "too long: xxxxx")]
    found = output.read_text().split("\n")
    assert found == ["" if line == 6789 else f"LINE {line}" for line in range(1, 10_001)] + [""]
    assert len(calls) < 50  # halves, and not one by one


def test_a_target_fits_its_format(tmp_path):
    def work(texts):
        return [SimpleNamespace(text="a\tb\r\nc\0", score=0.0, cut=False, alternatives=()) for _ in texts]

    for name, content, want in (("a.txt", "x\ny\n", "a\tb  c\na\tb  c\n"),
                                ("a.tsv", "x\ny\tz\n", "x\ta b  c\ny\ta b  c\n"),
                                ("a.jsonl", '{"source": "x"}\n', '{"source": "x", "target": "a\\tb\\r\\nc"}\n')):
        path = tmp_path / name
        path.write_text(content)
        translated(path, tmp_path / f"out-{name}", work)
        assert (tmp_path / f"out-{name}").read_bytes().decode() == want


def test_gzip(tmp_path):
    path, output = tmp_path / "a.txt.gz", tmp_path / "b.txt.gz"
    path.write_bytes(gzip.compress(b"one\ntwo\n"))
    translated(path, output)
    assert gzip.decompress(output.read_bytes()) == b"ONE\nTWO\n"


def test_entries_that_are_missing_alone(tmp_path):
    path, output = tmp_path / "a.tsv", tmp_path / "b.tsv"
    path.write_text("one\teins\ntwo\t\n")
    assert translated(path, output, entries="missing")[0].entries == 1
    assert output.read_text() == "one\teins\ntwo\tTWO\n"


def test_what_is_refused_before_any_work(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one\n")
    os.link(path, tmp_path / "same.txt")
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"one\n" * 100 + b"\xff\n")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for given, output, message in ((path, path, "The output is the input"),
                                   (path, tmp_path / "same.txt", "The output is the input"),
                                   (path, tmp_path, "exists already"),
                                   (bad, tmp_path / "out", r"bad\.txt:101: byte 1: 0xFF is not UTF-8"),
                                   (fifo, tmp_path / "out", "can be read only once"),
                                   (tmp_path / "no", tmp_path / "out", "There is no such file")):
        with pytest.raises(DataError, match=message):
            translated(given, output, lambda texts: pytest.fail("asked"))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.txt", "bad.txt", "fifo", "same.txt"]
    assert path.read_text() == "one\n"


def test_an_interrupted_work_goes_on(tmp_path):
    path, output = tmp_path / "a.txt", tmp_path / "b.txt"
    path.write_text("".join(f"line {line}{'x' * 40 * (line == 3)}\n" for line in range(11)))
    seen = []

    def work(texts):
        seen.extend(texts)
        if len(seen) > 9:
            raise KeyboardInterrupt
        return WORK(texts)

    with pytest.raises(KeyboardInterrupt):
        translated(path, output, work)
    assert not output.exists()
    outcome, told = translated(path, output)
    assert outcome == (11, 1, 8)
    assert told.starts == [(8, 11)]
    assert output.read_text() == "".join("\n" if line == 3 else f"LINE {line}\n" for line in range(11))


def test_another_input_or_other_options_are_refused(tmp_path):
    path, output = tmp_path / "a.txt", tmp_path / "b.txt"
    path.write_text("one\n")
    with pytest.raises(KeyboardInterrupt):
        translated(path, output, lambda texts: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(DataError, match="format was not set and is plain"):
        translated(path, output, format="plain")
    path.write_text("two\n")
    with pytest.raises(DataError, match="input was"):
        translated(path, output)
    path.write_text("one\n")
    assert translated(path, output)[0].entries == 1


PO = '''# head
msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\\n"

'''


def po(count):
    """A PO file, in which entries have all kinds of placeholders."""
    draw = random.Random(1)
    marks = ["%s", "%(name)d", "{name}", "{0}", "${x}", "<b>", "</b>", "https://a.org/?x=%s", "%1$s", "&amp;"]
    texts = [" ".join(draw.choice([*marks, "word", "File", "a,"]) for _ in range(draw.randrange(1, 7))) + f" {number}"
             for number in range(count)]
    return PO + "\n".join(f'#: a.c:{number}\nmsgid "{text}"\nmsgstr "old"\n' for number, text in enumerate(texts))


@pytest.mark.thorough
@pytest.mark.parametrize("block", [4, 512])
def test_killed_at_any_moment_and_called_again(tmp_path, block):
    """A child translates, and is killed again and again, until it comes to the end."""
    path = tmp_path / "a.po"
    path.write_text(po(60))
    draw, kills = random.Random(block), 0

    def ask(texts):
        time.sleep(0.0005 * len(texts))
        return [SimpleNamespace(text=text.upper(), score=0.0, cut=False, alternatives=()) for text in texts]

    def work(texts):
        return translate_with_placeholders(texts, ask)

    def run(output):
        TextDocument(str(path)).translate(work, str(output), settings=ASKED, watcher=Told(), block=block)

    run(tmp_path / "whole.po")
    output = tmp_path / "out.po"
    pause = 0.0
    while True:
        child = os.fork()
        if not child:
            try:
                run(output)
            finally:
                os._exit(0)
        pause += draw.random() * 0.03
        time.sleep(pause)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            break
        kills += 1
    assert kills > 1
    assert output.exists()
    assert output.read_bytes() == (tmp_path / "whole.po").read_bytes()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.po", "out.po", "whole.po"]


def test_placeholders_of_two_hundred_entries_survive_any_model(tmp_path):
    path, output, draw = tmp_path / "a.po", tmp_path / "b.po", random.Random(3)
    path.write_text(po(200))

    def ask(texts):
        return [SimpleNamespace(text="".join(draw.choices('%s{}<>/b1 X"\\$\n', k=9)), score=0.0, cut=False,
                                alternatives=()) for _ in texts]

    outcome, _ = translated(path, output, lambda texts: translate_with_placeholders(texts, ask))
    assert outcome.entries == 200
    found = list(read_pairs([output]))
    assert [pair.source for pair in found] == [pair.source for pair in read_pairs([path])]
    for pair in found:
        assert find_placeholders(pair.target) == find_placeholders(pair.source)
    after, before = ([line for line in place.read_text().split("\n") if not line.startswith("msgstr")]
                     for place in (output, path))
    assert after == before  # nothing else has changed


def test_flow_gives_targets_as_they_come(tmp_path):
    path, told, seen = tmp_path / "a.txt", Told(), []
    path.write_text("one\ntwo\n" + "x" * 50 + "\n")
    flow = TextDocument(str(path)).stream(lambda texts: seen.append(texts) or WORK(texts), told, block=2)
    assert next(flow) == "ONE"
    assert len(seen) == 1
    assert [*flow] == ["TWO", ""]
    assert told.errors == [(3, "too long: xxxxx")]


def test_what_does_not_fit_into_memory_is_left_out():
    def work(numbers):
        if 3 in numbers:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return [2 * number for number in numbers]

    found = isolate_errors([1, 2, 3, 4, 5], work)
    assert found[:2] + found[3:] == [2, 4, 8, 10]
    assert "memory" in str(found[2])
    assert isolate_errors([], work) == []


def test_blocks():
    assert list(split_blocks(iter("abcde"), 2)) == [["a", "b"], ["c", "d"], ["e"]]


def test_a_model_is_known_by_its_manifest(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    before = model_fingerprint(tmp_path)
    (tmp_path / "config.json").write_text("{ }")
    assert model_fingerprint(tmp_path) != before
    (tmp_path / "manifest.json").write_text("x")
    listed = model_fingerprint(tmp_path)
    (tmp_path / "README.md").write_text("changed")
    assert model_fingerprint(tmp_path) == listed


JOURNAL_WORK = {"input": "a" * 64, "beam": 5, "format": None}


@pytest.fixture
def output(tmp_path):
    return tmp_path / "out.txt"


def entries(output):
    return output.with_name("out.txt.progress") / "entries.jsonl"


def test_what_was_added_is_there_in_whole_blocks(output):
    with Journal(output, JOURNAL_WORK, 2) as journal:
        assert (journal.count, journal.failed) == (0, 0)
        journal.add(["one", None])
        journal.add(["zwei\n\u2028", None])
        journal.add(["three"])
        assert (journal.count, journal.failed) == (5, 2)
    with Journal(output, JOURNAL_WORK, 2) as journal:
        assert (journal.count, journal.failed) == (4, 2)
        assert list(journal.entries()) == ["one", None, "zwei\n\u2028", None]
        journal.add(["drei"])
        assert list(journal.entries())[-1] == "drei"


def test_every_place_to_be_killed_at(output):
    with Journal(output, JOURNAL_WORK, 2) as journal:
        journal.add(["one", "two"])
        first = len(entries(output).read_bytes())
        journal.add([None, "four"])
    whole = entries(output).read_bytes()
    header = whole.index(b"\n") + 1
    for length in range(len(whole) + 1):
        entries(output).write_bytes(whole[:length])
        with Journal(output, JOURNAL_WORK, 2) as journal:
            want = 4 if length == len(whole) else 2 if length >= first else 0
            assert (journal.count, journal.failed) == (want, want == 4)
            assert list(journal.entries()) == ["one", "two", None, "four"][:want]
        assert entries(output).read_bytes() == whole[:max(header, {0: header, 2: first, 4: len(whole)}[want])]


def test_the_output_gets_its_name_at_the_end(output):
    with Journal(output, JOURNAL_WORK, 2) as journal:
        journal.add(["one"])
        journal.partial_output.write_text("one\n")
        assert not output.exists()
        journal.finish()
    assert output.read_text() == "one\n"
    assert [path.name for path in output.parent.iterdir()] == ["out.txt"]


def test_killed_between_the_name_and_the_end(output, monkeypatch):
    monkeypatch.setattr("shutil.rmtree", lambda folder: None)
    with Journal(output, JOURNAL_WORK, 2) as journal:
        journal.add(["one", None])
        journal.partial_output.write_text("one\n")
        journal.finish()
    monkeypatch.undo()
    with Journal(output, JOURNAL_WORK, 2) as journal:
        assert (journal.finished, journal.count, journal.failed) == (True, 2, 1)
        journal.finish()
    assert [path.name for path in output.parent.iterdir()] == ["out.txt"]


def test_killed_before_the_name(output, monkeypatch):
    monkeypatch.setattr("pathlib.Path.rename", lambda *paths: None)
    monkeypatch.setattr("shutil.rmtree", lambda folder: None)
    with Journal(output, JOURNAL_WORK, 2) as journal:
        journal.add(["one", "two"])
        journal.partial_output.write_text("one\n")
        journal.finish()
    monkeypatch.undo()
    with Journal(output, JOURNAL_WORK, 2) as journal:
        assert (journal.finished, journal.count) == (False, 2)
        assert list(journal.entries()) == ["one", "two"]
        assert not journal.partial_output.exists()


def test_an_output_that_is_there_is_not_written_over(output):
    output.write_text("mine")
    with pytest.raises(DataError, match=r"out\.txt: .*exists already"):
        Journal(output, JOURNAL_WORK, 2)
    assert [path.name for path in output.parent.iterdir()] == ["out.txt"]
    output.unlink()
    Journal(output, JOURNAL_WORK, 2).__exit__(None, None, None)
    output.write_text("mine")
    with pytest.raises(DataError, match="exists already"):
        Journal(output, JOURNAL_WORK, 2)
    output.unlink()
    with Journal(output, JOURNAL_WORK, 2) as journal:
        journal.partial_output.write_text("x")
        output.write_text("mine")
        with pytest.raises(DataError, match="exists already"):
            journal.finish()
    assert output.read_text() == "mine"


def test_another_work_is_refused_with_what_differs(output):
    with Journal(output, JOURNAL_WORK, 2) as journal:
        journal.add(["one", "two"])
    before = entries(output).read_bytes()
    other = {**JOURNAL_WORK, "input": "b" * 64, "beam": 1, "entries": "all"}
    with pytest.raises(DataError, match=r"input was aaaaaaaaaaaa\.\.\. and is bbbbbbbbbbbb\.\.\.; "
                                        r"beam was 5 and is 1; entries was not set and is all\. .*progress"):
        Journal(output, other, 2)
    assert entries(output).read_bytes() == before


@pytest.mark.parametrize("content", ["{}\n", "no\n", '{"work": {"x": 1}', "[]\n", "HEADER\nno\n\"one\"\n"])
def test_what_is_no_journal_is_refused(output, content):
    entries(output).parent.mkdir()
    entries(output).write_text(content.replace("HEADER", json.dumps({"work": JOURNAL_WORK})))
    if content.endswith("\n"):
        with pytest.raises(DataError, match=r"entries\.jsonl is damaged"):
            Journal(output, JOURNAL_WORK, 2)
    else:  # a first line that a kill has cut
        with Journal(output, JOURNAL_WORK, 2) as journal:
            assert journal.count == 0


def test_two_processes_at_once(output):
    with Journal(output, JOURNAL_WORK, 2), pytest.raises(DataError, match="Another process is writing it"):
        Journal(output, JOURNAL_WORK, 2)
    with Journal(output, JOURNAL_WORK, 2) as journal:
        assert journal.count == 0


def test_a_place_where_nothing_can_be_written(tmp_path):
    with pytest.raises(DataError, match="It cannot be written: No such file or directory"):
        Journal(tmp_path / "missing" / "out.txt", JOURNAL_WORK, 2)
