"""Shared options: models, texts, and help panels."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Annotated

import pytest
import texting
import torch
import typer
from calling import call, lines, tables
from typer.testing import CliRunner

from regard.cli import options, output
from regard.cli.options import PanelCommand, expand_options

COMMANDS = ("translate", "complete", "fill", "classify", "evaluate")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A translator with 12 positions, saved."""
    place = tmp_path_factory.mktemp("models") / "model"
    task = texting.translator("learned", tie_word_embeddings=False)
    task.save(place)
    return place


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_that_is_no_model(command, tmp_path):
    for place in (tmp_path / "nowhere", tmp_path):
        code, out, said = call(command, place, "x")
        assert (code, out) == (2, "")
        assert said.startswith("Error: ")
        assert said.count("\n") == 1
        assert str(place) in said


@pytest.mark.parametrize(("command", "wanted"), [("complete", "a language model"), ("fill", "a masked language model"),
                                                 ("classify", "a classifier")])
def test_the_command_that_fits_is_named(command, wanted, folder):
    code, out, said = call(command, folder, "x")
    assert (code, out) == (2, "")
    assert wanted in said
    assert "a translator" in said
    assert "`regard translate`" in said


def test_devices(folder):
    assert len(lines("translate", folder, "no", "--device", "cpu")) == 1
    code, _, said = call("translate", folder, "no", "--device", "banana")
    assert code == 2
    assert "--device" in said
    assert "'banana'" in said


def test_a_gpu_that_is_not_there(folder, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, out, said = call("translate", folder, "no", "--device", "gpu")
    assert (code, out) == (2, "")
    assert "--device cuda: " in said
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    code, out, said = call("translate", folder, "no", "--device", "cuda:1")
    assert (code, out) == (2, "")
    assert "1 GPU," in said


def test_a_bad_text_is_named_and_the_others_are_done(folder):
    long = "the big dog sees the big cat. " * 3
    stdin = f"no\n{long}\n\nthe dog\n"
    code, out, said = call("translate", folder, "--beam", "1", stdin=stdin)
    assert code == 1
    found = out.split("\n")
    assert len(found) == 5
    assert (found[1], found[2], found[4]) == ("", "", "")
    assert said.startswith("Error: text 2: `texts` must be at most 12 tokens long")
    assert said.count("\n") == 1
    assert found[0] == lines("translate", folder, "no", "--beam", "1")[0]
    assert "in text" not in said  # the number is told once
    code, out, said = call("translate", folder, "--json", long)
    assert (code, json.loads(out)) == (1, {"source": long, "text": None})


def test_one_bad_text_among_many_does_not_part_the_others():
    calls = []

    def work(some):
        calls.append(len(some))
        if "bad" in some:
            raise ValueError("bad")
        return [text.upper() for text in some]

    done = options.process_each([["a"] * 700 + ["bad"] + ["b"] * 323], work, options.text_label)
    assert [next(done)[1] for _ in range(1024)] == ["A"] * 700 + [None] + ["B"] * 323
    with pytest.raises(typer.Exit):
        next(done)
    assert len(calls) == 21  # two at each of ten levels, and all of them


@pytest.mark.parametrize(("stdin", "said"), [
    (b"no\nb\xff\n", "standard input:2: byte 2: 0xFF is not UTF-8"), ("no\n".encode("utf-16"), "UTF-16"),
])
def test_input_that_cannot_be_read(stdin, said, folder):
    code, _, err = call("translate", folder, stdin=stdin)
    assert code == 2
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.thorough
def test_lines_in_and_lines_out(folder, monkeypatch):
    """Only LF and CRLF end a line, however the lines come."""
    texts = ["no", "", "a\u2028b", "c\x0bd", " ", "e\u0085f"]
    whole = [one["source"] for one in tables("translate", folder, "--beam", "1", stdin="\n".join(texts))]
    assert whole == texts
    assert [one["source"] for one in tables("translate", folder, "-", stdin="\r\n".join(texts) + "\r\n")] == texts
    assert lines("translate", folder, stdin="") == []
    assert lines("translate", folder, stdin="\n\n") == ["", ""]
    monkeypatch.setattr(options, "BLOCK_SIZE", 2)
    assert [one["source"] for one in tables("translate", folder, stdin="\n".join(texts))] == texts


def test_what_is_written_stays_on_its_line(capfdbinary):
    output.write_line("a\nb\r\x1b[31m")
    output.write_text("a\nb")
    output.write_json({"a": "é\n"})
    sys.stdout.flush()
    assert capfdbinary.readouterr().out == "a b \x1b[31m\na\nb\n{\"a\": \"é\\n\"}\n".encode()


def test_a_terminal_is_not_obeyed(monkeypatch, capfdbinary):
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: True, raising=False)
    output.write_line("a\x1b[31m\u00a0é\x9b\x7f")
    sys.stdout.flush()
    assert capfdbinary.readouterr().out == "a\\x1b[31m\u00a0é\\x9b\\x7f\n".encode()


def test_a_message_is_not_markup(folder):
    code, _, said = call("translate", "[/bold]\x1b[31m", "x")
    assert code == 2
    assert "[/bold]\\x1b[31m" in said


@pytest.mark.thorough
@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_plain_and_needs_no_torch(command):
    code = """
import sys
from regard.cli import main
sys.argv = ["regard", sys.argv[1], "--help"]
try:
    main.run()
except SystemExit as end:
    sys.exit(end.code or any(name in sys.modules for name in ("torch", "numpy", "rich", "sacrebleu")))
"""
    result = subprocess.run([sys.executable, "-c", code, command], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.isascii()
    assert "MODEL" in result.stdout


@pytest.mark.thorough
def test_a_process_of_its_own(folder):
    """`| head`, lines that come one by one, and an encoding that has no letters."""
    command = [sys.executable, "-m", "regard", "translate", str(folder), "--beam", "1"]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    environment = {**buffered, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env=environment) as process:
        process.stdin.write("Élodie 語\n".encode())
        process.stdin.flush()
        first = process.stdout.readline()  # it comes before the input ends
        process.stdout.close()
        process.stdin.write(b"no\n" * 30)
        process.stdin.close()
        said = process.stderr.read()
        assert process.wait(timeout=60) == 1
    assert first.endswith(b"\n")
    assert said == b""


@dataclass(frozen=True)
class Colour:
    red: Annotated[int, typer.Option("--red", metavar="N", min=0, help="How red.", rich_help_panel="Colours")] = 3
    plain: Annotated[bool, typer.Option("--plain", help="None at all.", rich_help_panel="Colours")] = False


def app(given):
    made = typer.Typer(rich_markup_mode=None, add_completion=False)

    @expand_options
    def paint(name: Annotated[str, typer.Argument(help="What.")], *, colour: Colour,
              fast: Annotated[bool, typer.Option("--fast", help="Soon.")] = False) -> None:
        """Paint it."""
        given.append((name, colour, fast))

    made.command(cls=PanelCommand)(paint)
    return made


def called(*arguments):
    given = []
    result = CliRunner().invoke(app(given), list(arguments))
    return result, given


def test_a_folder_is_a_file_name_only_as_shells_complete_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "letter").write_text("a\n")
    found = {text: options.is_file_name(text) for text in ("docs", "docs/", "letter", "missing/", "a.tsv", "To be/")}
    assert found == {"docs": False, "docs/": True, "letter": True, "missing/": False, "a.tsv": True, "To be/": False}


def test_options_become_a_value():
    assert called("x")[1] == [("x", Colour(), False)]
    assert called("x", "--red", "5", "--plain", "--fast")[1] == [("x", Colour(5, True), True)]
    result, given = called("x", "--red", "-1")
    assert (result.exit_code, given) == (2, [])


def test_help_is_by_panels():
    text = called("--help")[0].output
    heads = [line.strip(":") for line in text.splitlines() if line.endswith(":")]
    assert heads == ["Arguments", "Colours", "Options"]
    assert "Paint it." in text
    for option in ("--red", "--plain"):
        assert text.index("Colours:") < text.index(option) < text.index("Options:")
    assert text.index("--fast") > text.index("Options:")
