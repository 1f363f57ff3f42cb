"""`regard translate` on files: the same format back, to stdout or to a new file, and on where it ended."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import texting
from calling import call, lines

import regard
from regard.data.sources.formats import read_pairs
from regard.tasks.placeholders import find_placeholders

PO = '''# head
msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\\n"

#, c-format
msgid "open %s"
msgstr ""

#~ msgid "gone"
#~ msgstr "weg"

msgid "a <b>{name}</b>\\n"
"see https://a.org/{0}\\n"
msgstr "old"
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("translate") / "model"
    texting.translator().save(place)
    return place


def written(folder, path, output, *options):
    """What is written of a file."""
    assert call("translate", folder, path, "-o", output, "--beam", "1", *options) == (0, "", "")
    return output.read_bytes()


def test_a_header_and_other_columns_stay(folder, tmp_path):
    path, output = tmp_path / "a.tsv", tmp_path / "b.tsv"
    path.write_text("en\tfr\tlicence\nthe dog\told\tCC-BY\r\na cat\t\tCC0")
    code, out, said = call("translate", folder, path, "-o", output, "--beam", "1")
    assert (code, out) == (0, "")
    assert [line.startswith("Note: ") for line in said.splitlines()] == [True, True]
    dog, cat = [one.text for one in regard.load(folder).translate(["the dog", "a cat"], beams=1, length_penalty="none")]
    assert output.read_bytes().decode() == f"en\tfr\tlicence\nthe dog\t{dog}\tCC-BY\r\na cat\t{cat}\tCC0"


@pytest.mark.thorough
def test_a_plain_file_gives_lines(folder, tmp_path):
    path = tmp_path / "a b.txt"
    path.write_bytes(b"the dog\r\n\r\nno")
    want = [one.text for one in regard.load(folder).translate(["the dog", "", "no"], beams=1, length_penalty="none")]
    assert lines("translate", folder, path, "--beam", "1") == want
    assert lines("translate", folder, path, "--beam", "1", "--format", "txt") == want
    assert written(folder, path, tmp_path / "out").decode() == f"{want[0]}\r\n\r\n{want[2]}"
    found = [json.loads(line)["source"] for line in lines("translate", folder, path, "--beam", "1", "--json")]
    assert found == ["the dog", "", "no"]


@pytest.mark.thorough
def test_a_po_file_keeps_all_but_its_targets(folder, tmp_path):
    path = tmp_path / "a.po"
    path.write_text(PO)
    before = path.read_text().split("\n")
    after = written(folder, path, tmp_path / "b.po").decode()
    assert lines("translate", folder, path, "--beam", "1") == after.split("\n")[:-1]
    for pair in read_pairs([tmp_path / "b.po"]):
        assert find_placeholders(pair.target) == find_placeholders(pair.source)
        assert pair.target.count("\n") == pair.source.count("\n")
        assert pair.target.endswith("\n") == pair.source.endswith("\n")
    kept = [line for line in before if not line.startswith('msgstr "') or "Content" in line]
    assert [line for line in after.split("\n") if line in kept] == kept
    missing = written(folder, path, tmp_path / "c.po", "--entries", "missing").decode()
    assert 'msgstr "old"' in missing
    assert after.split("\n")[:7] == missing.split("\n")[:7]


@pytest.mark.thorough
def test_other_formats(folder, tmp_path):
    (tmp_path / "a.tsv").write_text("x\tthe {0} dog\nthe cat\n")
    (tmp_path / "a.jsonl").write_text('{"en": "the dog %s", "n": 1}\n')
    (tmp_path / "a.tmx").write_text('<?xml version="1.0"?><tmx version="1.4"><header srclang="en"/><body><tu>'
                                    '<tuv xml:lang="en"><seg>the &lt;b&gt;dog</seg></tuv></tu></body></tmx>')
    (tmp_path / "b").write_text("the dog\n")
    for name, options in (("a.jsonl", ["--source", "en", "--target", "fr"]),
                          ("a.tmx", ["--source", "en", "--target", "fr"]), ("b", ["--format", "tsv"])):
        output = tmp_path / f"out-{name}"
        written(folder, tmp_path / name, output, *options)
        names = {"source": "en", "target": "fr"} if "en" in options else {}
        (pair,) = read_pairs([output], format="tsv" if name == "b" else name[2:], **names)
        assert find_placeholders(pair.target) == find_placeholders(pair.source)
        assert pair.target != ""
    assert json.loads((tmp_path / "out-a.jsonl").read_text())["n"] == 1


def test_what_cannot_be_translated_is_named_and_empty(tmp_path):
    texting.translator("learned", tie_word_embeddings=False).save(tmp_path / "model")  # 12 positions
    path, output = tmp_path / "a.txt", tmp_path / "b.txt"
    path.write_text("no\n" + "the big dog sees the big cat. " * 3 + "\nyes\n")
    code, out, said = call("translate", tmp_path / "model", path, "-o", output, "--beam", "1")
    first, last = said.strip().split("\n")
    assert (code, out) == (1, "")
    assert first.startswith(f"Error: {path}:2: `texts` must be at most 12 tokens long")
    assert last.startswith("1 entry ")
    found = output.read_text().split("\n")
    assert [bool(line) for line in found] == [True, False, True, False]


@pytest.mark.parametrize(("options", "message"), [
    (["-o", "IN"], "The output is the input"), (["-o", "THERE"], "exists already"),
    (["-o", "x", "--json"], "--json"), (["-o", "x", "--align"], "--align"),
    (["-o", "no/x"], "It cannot be written"),
    (["-o", "x", "--format", "tsv", "--source", "0", "--target", "1"], "columns"),
    (["-o", "THERE", "--source", "a"], "`source, target`"),
])
def test_a_wrong_call(folder, tmp_path, options, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "IN").write_text("one\n")
    (tmp_path / "THERE").write_text("mine\n")
    code, out, said = call("translate", folder, "IN", *options)
    assert (code, out) == (2, "")
    assert message in said
    assert ((tmp_path / "IN").read_text(), (tmp_path / "THERE").read_text()) == ("one\n", "mine\n")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["IN", "THERE"]


def test_interrupted(folder, tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("one\n")

    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(regard.Translator, "search", interrupted)
    code, out, said = call("translate", folder, path, "-o", tmp_path / "b.txt", "--beam", "1")
    assert (code, out) == (130, "")
    assert "b.txt.progress" in said
    monkeypatch.undo()
    assert written(folder, path, tmp_path / "b.txt")


def test_texts_that_stay_as_they_are_are_counted(folder, tmp_path, monkeypatch):
    def one_letter(self, texts, search, **options):
        return [SimpleNamespace(text="s", score=0.0, cut=False, alternatives=()) for _ in texts]

    monkeypatch.setattr(regard.Translator, "search", one_letter)
    (tmp_path / "a.txt").write_text("%1b\nno\n")
    said = "1 text was not translated: no translation kept all placeholders. The source was copied.\n"
    assert call("translate", folder, tmp_path / "a.txt") == (0, "%1b\ns\n", said)
    assert call("translate", folder, tmp_path / "a.txt", "-o", tmp_path / "b.txt") == (0, "", said)
    assert (tmp_path / "b.txt").read_text() == "%1b\ns\n"


@pytest.mark.thorough
def test_a_reader_that_has_gone(folder, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("no\n" * 3000)
    line = f'"{sys.executable}" -m regard translate "{folder}" "{path}" --beam 1 | head -n 1'
    found = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert (found.stdout.count("\n"), found.stderr) == (1, "")


@pytest.mark.thorough
def test_killed_and_called_again(folder, tmp_path):
    """The command itself, killed as soon as something is done, says where it goes on, and ends with the same file."""
    path, output = tmp_path / "a.txt", tmp_path / "b.txt"
    path.write_text("".join(f"{source} %s\n" if number % 50 == 0 else f"{source}\n"
                            for number, (source, _) in enumerate(texting.pairs() * 6)))
    whole = written(folder, path, tmp_path / "whole.txt")
    arguments = [sys.executable, "-m", "regard", "translate", folder, path, "-o", output, "--beam", "1"]
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"})
    journal = tmp_path / "b.txt.progress" / "entries.jsonl"
    while process.poll() is None and not (journal.exists() and journal.read_bytes().count(b"\n") > 512):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not output.exists()
    code, _, said = call("translate", folder, path, "-o", output, "--beam", "2")
    assert code == 2
    assert "beams was 1 and is 2" in said
    code, out, said = call("translate", folder, path, "-o", output, "--beam", "1")
    assert (code, out) == (0, "")
    assert re.match(r"Resuming: [\d,]+ of 1,200 entries", said)
    assert output.read_bytes() == whole
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.txt", "b.txt", "whole.txt"]
