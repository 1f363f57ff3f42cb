"""`regard translate` where things go wrong, for an RNN with attention and for a Transformer: nothing that is good is
lost, and no error is a traceback."""

import os
import shlex
import subprocess
import sys

import pytest
import texting
import torch
from calling import call, lines, tables
from tiny import built, seq2seq

import regard
from regard.models.seq2seq import Seq2SeqAttentionConfig
from regard.tasks.load import make_task

LINES, BAD = 10_000, 6789
WORD = "語"
"""It is cut into bytes, one of which is in no other text here."""


def transformer():
    both = texting.joint()
    config = texting.translating(embedding="learned", tie_word_embeddings=False, output_bias=True,
                                 source_vocab_size=both.source.size, target_vocab_size=both.target.size)
    return make_task(built(config), config, tokenizer=both)  # 12 positions: what it writes is short


def recurrent():
    both = texting.joint()
    config = seq2seq(direction="both", input_feeding=True, attention=Seq2SeqAttentionConfig())
    config = type(config)(**{**vars(config), "source_vocab_size": both.source.size,
                             "target_vocab_size": both.target.size})
    return make_task(built(config), config, tokenizer=both)


KINDS = {"Transformer": transformer, "RNN with attention": recurrent}
REGARD = [sys.executable, "-m", "regard", "translate"]


def saved(kind, place, ends=0.0):
    """The folder of a model that has learned nothing, and of one word no numbers; and how readily it ends."""
    task = KINDS[kind]()
    embedding = task.model.encoder.embedding
    with torch.no_grad():
        for parameter in task.model.parameters():
            parameter.mul_(3.0)  # what it writes differs from text to text
        (embedding if isinstance(embedding, torch.nn.Embedding) else embedding.tokens).weight[
            task.tokenizer.source.encode(WORD)[-1]] = float("nan")
        task.model.output.bias[list(task.special.end)] += ends
    task.model.float()
    task.save(place)
    return place


@pytest.fixture(scope="module", params=sorted(KINDS))
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def folder(kind, tmp_path_factory):
    return saved(kind, tmp_path_factory.mktemp("hostile") / "model", -1000.0)  # nothing that it writes is empty


def shell(line, **environment):
    """Exit code, stdout and stderr of a line of shell, as a user would type it."""
    found = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, timeout=200,
                           env={**os.environ, "OMP_NUM_THREADS": "1", **environment})
    return found.returncode, found.stdout, found.stderr


def command(*arguments):
    return shlex.join([*REGARD, *map(str, arguments)])


@pytest.mark.thorough
def test_one_bad_line_of_ten_thousand(folder, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("".join(f"{WORD}\n" if line == BAD else f"{line}\n" for line in range(1, LINES + 1)), "utf-8")
    code, out, said = call("translate", folder, path, "--beam", "1")
    assert code == 1
    found = out.split("\n")
    assert len(found) == LINES + 1
    assert [line for line, text in enumerate(found, 1) if not text] == [BAD, LINES + 1]
    assert said.count("\n") == 1
    assert said.startswith(f"Error: text {BAD}: ")
    assert "NaN" in said
    some = [1, 2, 9, 10, BAD - 1, BAD + 1, LINES]
    want = regard.load(folder).translate([str(line) for line in some], beams=1, length_penalty="none")
    assert [found[line - 1] for line in some] == ["".join(filter(str.isprintable, one.text)) for one in want]


@pytest.mark.thorough
def test_one_bad_line_of_a_file_that_is_written(folder, tmp_path):
    path, output = tmp_path / "a.tsv", tmp_path / "b.tsv"
    path.write_text("".join(f"{WORD if line == 555 else line}\told\n" for line in range(1, 601)), "utf-8")
    code, out, said = call("translate", folder, path, "-o", output, "--beam", "1")
    assert (code, out) == (1, "")
    named, told = said.strip().split("\n")
    assert named.startswith(f"Error: {path}:555: ")
    assert told.startswith("1 entry ")
    rows = [line.split("\t") for line in output.read_text("utf-8").split("\n")[:-1]]
    assert [row[0] for row in rows] == [WORD if line == 555 else str(line) for line in range(1, 601)]
    assert [line for line, row in enumerate(rows, 1) if not row[1]] == [555]


@pytest.mark.thorough
def test_lines_do_not_depend_on_each_other(folder):
    texts = ["no", "the dog", "a", "Emma sings", "", "we", "12", "big cat", "%s dog", "<b>a</b> cat"]
    want = [text for one in texts for text in lines("translate", folder, one, "--beam", "2")]
    assert len({*want}) > 4
    for order in (range(10), range(9, -1, -1), [7, 7, 3]):
        given = "\n".join(texts[number] for number in order) + "\n"
        assert lines("translate", folder, "--beam", "2", stdin=given) == [want[number] for number in order]


@pytest.mark.parametrize("beam", [1, 3])
def test_the_end_at_once_and_never(kind, beam, tmp_path):
    for ends, cut in ((1000.0, False), (-1000.0, True)):
        place = saved(kind, tmp_path / f"model{ends}", ends)
        found = tables("translate", place, "no", "yes", "--beam", beam)
        assert [(one["text"] != "", one["cut"]) for one in found] == [(cut, cut)] * 2


@pytest.mark.parametrize("name", ["a.po", "./a.po", "folder/../a.po", "link.po", "hard.po"])
def test_the_output_is_not_the_input(folder, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    path, text = tmp_path / "a.po", 'msgid "no"\nmsgstr "old"\n'
    path.write_text(text)
    (tmp_path / "link.po").symlink_to("a.po")
    os.link(path, tmp_path / "hard.po")
    for given, output in (("a.po", name), (name, "a.po")):
        code, out, said = call("translate", folder, given, "-o", output, "--beam", "1")
        assert (code, out) == (2, "")
        assert "The output is the input." in said
    assert path.read_text() == text
    assert {one.name for one in tmp_path.iterdir()} == {"a.po", "folder", "hard.po", "link.po"}


# A process of its own takes seconds to begin: one model is enough here.


@pytest.mark.thorough
def test_a_reader_that_takes_three_lines_and_goes(tmp_path):
    folder = saved("RNN with attention", tmp_path / "model")
    code, out, said = shell(f"yes no | {command(folder, '--beam', 1)} | head -n 3")
    assert (out.count("\n"), said) == (3, "")
    assert code in (1, 141)
    (tmp_path / "a.po").write_text("\n".join(f'msgid "no {line}"\nmsgstr ""\n' for line in range(3000)))
    code, out, said = shell(f"{command(folder, tmp_path / 'a.po', '--beam', 1)} | head -n 1")
    assert (code, out, said) in [(code, 'msgid "no 0"\n', "") for code in (0, 1, 141)]


@pytest.mark.thorough
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk(tmp_path):
    folder = saved("Transformer", tmp_path / "model")
    code, _, said = shell(f"{command(folder, 'no', '--beam', 1)} > /dev/full")
    assert code not in (0, 120)
    assert "No space left" in said
    assert "Traceback" not in said
    assert said.count("\n") == 1


def test_half_a_character_is_found_before_any_work(folder, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"source": "no"}\n{"source": "a\\ud800b"}\n')
    code, out, said = call("translate", folder, path, "-o", tmp_path / "b.jsonl")
    assert (code, out) == (2, "")
    assert said.startswith(f'Error: {path}:2: "source" has half a surrogate pair')
    assert [one.name for one in tmp_path.iterdir()] == ["a.jsonl"]
