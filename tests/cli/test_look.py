"""`regard look`: models and traces, to a page, a picture, a trace, the terminal, or a server."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from dataclasses import replace

import numpy as np
import pytest
import texting
import torch
import trace_examples
from calling import call, idx
from tiny import built, seq2seq

import regard
from regard.cli import look
from regard.inspection.page.server import WhatIfRequest
from regard.inspection.trace import Trace
from regard.inspection.trace_format import TraceSide
from regard.tasks.load import make_task
from regard.tokens import Tokens

TEXT = "the big dog sleeps."


def plain():
    """A recurrent translator with one context vector."""
    both = texting.joint()
    config = replace(seq2seq(), source_vocab_size=both.source.size, target_vocab_size=both.target.size)
    return make_task(built(config), config, tokenizer=both)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder of each kind of model."""
    place = tmp_path_factory.mktemp("models")
    made = {"translator": texting.translator, "completer": texting.completer, "filler": texting.filler,
            "classifier": texting.classifier, "seer": texting.seer, "plain": plain, "tagger": texting.tagger}
    for name, make in made.items():
        make().save(place / name)
    return place


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    place = tmp_path_factory.mktemp("traces")
    trace_examples.translation().save(place / "one.safetensors")
    trace_examples.translation(seed=5, title="another").save(place / "two.safetensors")
    Trace({"text": TraceSide(("a",))}).save(place / "empty.safetensors")
    return place


def document(path):
    """What stands in a page."""
    [found] = re.findall(r'<script type="application/json" id="page">([^<]*)</script>', path.read_text("utf-8"))
    return json.loads(found)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "given", "more", "names"), [
    ("translator", TEXT, [], 6), ("translator", TEXT, ["--target", "le chien dort."], 6),
    ("translator", TEXT, ["--beam", 2], 6), ("completer", "the dog", ["--max-length", 4], 2),
    ("completer", "the dog", [], 2),
    ("filler", "the ___ sleeps.", [], 2), ("classifier", TEXT, [], 2)])
def test_a_page_of_a_model(folders, tmp_path, name, given, more, names):
    path = tmp_path / "page.html"
    assert call("look", folders / name, given, "-o", path, *more) == (0, "", "")
    table = document(path)
    assert table["served"] is False
    [trace] = table["traces"]
    assert trace["model"] == name
    assert len(trace["attentions"]) == names
    assert ("search" in trace) == ((name == "translator" and "--target" not in more) or "--max-length" in more)


def test_a_page_of_an_image(folders, tmp_path):
    image = tmp_path / "a.idx"
    image.write_bytes(idx(np.zeros((1, 8, 8), dtype=np.uint8)))
    code, _, said = call("look", folders / "seer", image, "-o", tmp_path / "page.html")
    assert (code, "a.idx" in said) == (2, True)  # several images in one file are for `classify`
    from PIL import Image

    picture = tmp_path / "a.png"
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(picture)
    assert call("look", folders / "seer", picture, "-o", tmp_path / "page.html") == (0, "", "")
    [trace] = document(tmp_path / "page.html")["traces"]
    assert trace["title"].startswith("a.png: ")
    assert trace["sides"]["image"]["grid"] == [4, 4]


@pytest.mark.thorough
def test_two_models_on_one_text(folders, tmp_path):
    path = tmp_path / "page.html"
    assert call("look", folders / "translator", TEXT, "--with", folders / "translator", "-o", path)[0] == 0
    assert len(document(path)["traces"]) == 2


def test_traces_side_by_side(traces, tmp_path):
    path = tmp_path / "page.html"
    assert call("look", traces / "one.safetensors", traces / "two.safetensors", "-o", path) == (0, "", "")
    table = document(path)
    assert [trace["title"] for trace in table["traces"]] == ["The black cat sleeps.", "another"]


@pytest.mark.thorough
def test_a_trace_of_a_model_is_shown_as_the_model_is(folders, tmp_path):
    kept = tmp_path / "kept.safetensors"
    assert call("look", folders / "translator", TEXT, "-o", kept)[0] == 0
    trace = Trace.load(kept)
    assert trace.title == TEXT
    direct, again = (call("look", *given, "--terminal") for given in ((folders / "translator", TEXT), (kept,)))
    assert direct == again


def test_the_terminal(traces):
    code, out, said = call("look", traces / "one.safetensors", "-o", "-")
    assert (code, said) == (0, "")
    assert "tiny, decoder.1.cross, head 1" in out
    assert "│" in out or "|" in out
    for word in ("Le", "chat", "noir", "dort"):
        assert word in out
    assert call("look", traces / "one.safetensors", "--terminal")[1] == out


def test_the_terminal_says_how_probable_each_word_is(folders):
    task = regard.load(folders / "completer")
    code, out, _ = call("look", folders / "completer", "the dog", "--terminal")
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    [row] = [line for line in lines if line[:1] == ["dog"] and "nats" in line and "%" in line]
    [ids] = task.encode_prompts(["the dog"])
    with torch.no_grad():
        logs = task.model(Tokens(torch.tensor([ids])))[0].log_softmax(-1)
    word = task.text_tokenizer().words("the dog")[-1]
    total = sum(float(logs[at - 1, ids[at]]) for at in range(word.first_token, word.last_token + 1))
    assert float(row[row.index("nats") - 1]) == pytest.approx(-total, abs=0.006)
    assert any(line[:1] == ["(next)"] for line in lines)
    names = [one.name for one in regard.load(folders / "classifier")(TEXT)]
    told = " ".join(call("look", folders / "classifier", TEXT, "--terminal")[1].split())
    assert all(re.search(rf"{name} \d+ %", told) for name in names)


def test_a_long_text_in_the_terminal_is_cut_and_says_so(tmp_path):
    trace_examples.long(100).save(tmp_path / "long.safetensors")
    code, out, _ = call("look", tmp_path / "long.safetensors", "--terminal")
    assert code == 0
    assert "100 rows and 100 columns" in " ".join(out.split())
    assert "w59" in out
    assert "w60" not in out


def test_a_terminal_obeys_nothing_in_a_trace(tmp_path):
    trace = trace_examples.translation()
    names = [replace(one, name=f"\x1b[2J{number}") for number, one in enumerate(trace.attentions)]
    replace(trace, model="\x1b[31m[/bold]", attentions=tuple(names)).save(tmp_path / "bad.safetensors")
    code, out, _ = call("look", tmp_path / "bad.safetensors", "--terminal")
    assert code == 0
    assert "\\x1b[31m[/bold], \\x1b[2J" in out


@pytest.mark.thorough
@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_a_picture(traces, tmp_path, ending):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"picture.{ending}"
    assert call("look", traces / "one.safetensors", "-o", path) == (0, "", "")
    assert call("look", traces / "one.safetensors", "-o", tmp_path / f"heads.{ending}", "--view", "heads")[0] == 0
    starts = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    assert path.read_bytes().startswith(starts[ending])


@pytest.mark.parametrize(("arguments", "parts"), [
    (["nowhere", "text"], ["nowhere: "]),
    (["{translator}"], ["Give a text"]),
    (["{translator}", ""], ["`text`"]),
    (["{translator}", TEXT, "-o", "a.txt"], ["a.txt", ".html", ".png", ".safetensors"]),
    (["{translator}", TEXT, "-o", "{here}"], ["exists already"]),
    (["{translator}", TEXT, "-o", "nowhere/a.html"], ["folder nowhere"]),
    (["{translator}", TEXT, "--max-length", "3"], ["--max-length", "a language model", "a translator"]),
    (["{completer}", TEXT, "--target", "x"], ["--target", "a translator", "a language model"]),
    (["{filler}", TEXT, "--beam", "3"], ["--beam", "a translator or a language model"]),
    (["{translator}", TEXT, "--target", "x", "--beam", "3"], ["--beam has no effect with --target"]),
    (["{one}", "nowhere.safetensors"], ["nowhere.safetensors: "]),
    (["{one}", "--beam", "2"], ["--beam", "trace"]),
    (["{one}", "{two}", "-o", "both.safetensors"], ["one trace", ".html"]),
    (["{damaged}"], ["damaged.safetensors"]),
    (["{translator}", TEXT, "--with", "{seer}"], ["images"]),
    (["{seer}", "nowhere.png"], ["nowhere.png"]),
    (["{one}", "--view", "heads"], ["--view", ".png"]),
    (["{one}", "--view", "head", "-o", "a.png"], ['"heads"']),
    (["{one}", "--view", "patches", "-o", "a.png"], ["patches", "image"]),
    (["{plain}", TEXT], ["plain has no attention", "`influence`"]),
    (["{translator}", "{pairs}"], ["pairs.tsv: ", "a text, not a file", "- < "]),
    (["{translator}", "missing.txt"], ["missing.txt: ", "a text, not a file"]),
    (["{translator}", "nowhere.safetensors"], ["nowhere.safetensors: ", "a text, not a file"]),
    (["{plain}", "--heads", "{pairs}"], ["no attention"]),
    (["{translator}", TEXT, "--heads", "{pairs}"], ["--heads", "--sentences"]),
    (["{translator}", "--heads", "nowhere.tsv"], ["nowhere.tsv"]),
    (["{translator}", "--json", TEXT], ["--json", "--heads"]),
    (["{one}", "--heads", "{pairs}"], ["--heads", "model folder"]),
    (["{filler}", "--heads", "{empty_file}"], ["empty.tsv"]),
    (["{completer}", "--heads", "{empty_file}"], ["empty.tsv"]),
    (["{tagger}", "--heads", "{empty_file}"], ["empty.tsv"]),
    (["{classifier}", "--heads", "{empty_file}"], ["empty.tsv"]),
    (["{filler}", "--heads", "{pairs}", "--to", "fr"], ["--to", "a translator"]),
    (["{empty}"], ["no attention"]),
    (["{empty}", "-o", "a.html"], ["no attention"]),
])
def test_what_is_wrong_is_one_message(folders, traces, tmp_path, monkeypatch, arguments, parts):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.html").write_text("mine")
    (tmp_path / "damaged.safetensors").write_bytes(b"x" * 100)
    known = {path.name: path for path in folders.iterdir()}
    known |= {name: traces / f"{name}.safetensors" for name in ("one", "two", "empty")}
    (tmp_path / "pairs.tsv").write_text("the dog\tle chien\n")
    (tmp_path / "empty.tsv").write_text("")
    known |= {"here": "here.html", "damaged": "damaged.safetensors", "pairs": "pairs.tsv", "empty_file": "empty.tsv"}
    code, out, said = call("look", *(part.format(**known) for part in arguments))
    assert (code, out) == (2, "")
    assert said.startswith("Error: ")
    for part in parts:
        assert part in said
    assert (tmp_path / "here.html").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["damaged.safetensors", "empty.tsv", "here.html", "pairs.tsv"]


def test_standard_input(folders, tmp_path):
    path = tmp_path / "page.html"
    assert call("look", folders / "filler", "-", "-o", path, stdin="a text\nof two lines\n")[0] == 0
    assert document(path)["traces"][0]["title"] == "a text\nof two lines"


def test_a_port_that_is_taken(traces):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, said = call("look", traces / "one.safetensors", "--no-browser", "--port", port)
    assert code == 1
    assert f"Port {port} cannot be used" in said


def test_the_browser_is_opened_unless_not_wanted(traces, monkeypatch):
    opened = []
    monkeypatch.setattr(look.webbrowser, "open", lambda address: opened.append(address) or True)
    monkeypatch.setattr("regard.inspection.page.server.PageServer.run", lambda self, waiting: self.http.server_close())
    monkeypatch.setattr(look.threading, "Thread", _Now)
    code, out, said = call("look", traces / "one.safetensors")
    assert (code, [out.strip()]) == (0, opened)
    assert "Ctrl-C" in said
    call("look", traces / "one.safetensors", "--no-browser")
    assert len(opened) == 1


class _Now:
    """A thread that does its work at once; those of a server are never started here."""

    def __init__(self, target, args=(), **options):
        self.target, self.args = target, args

    def start(self):
        self.target(*self.args)


def test_without_a_browser_it_says_so(traces, monkeypatch):
    monkeypatch.setattr(look.webbrowser, "open", lambda address: False)
    monkeypatch.setattr("regard.inspection.page.server.PageServer.run", lambda self, waiting: self.http.server_close())
    monkeypatch.setattr(look.threading, "Thread", _Now)
    assert "No browser" in call("look", traces / "one.safetensors")[2]


@pytest.mark.thorough
def test_it_serves_until_it_is_interrupted(folders):
    """As a user meets it: a process, an address on stdout, Ctrl-C."""
    process = subprocess.Popen([sys.executable, "-m", "regard", "look", str(folders / "translator"), TEXT,
                                "--no-browser"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        address = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]+/", address)
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert b'id="page"' in answer.read()
        question = urllib.request.Request(f"{address}translate.json", b'{"text": "the cat", "prefix": "le"}',
                                          {"Content-Type": "application/json"})
        with urllib.request.urlopen(question, timeout=60) as answer:
            trace = json.loads(answer.read())["trace"]
        assert (trace["title"], trace["model"]) == ("the cat", "translator")
        assert trace["sides"]["target"]["text"].startswith("le")
        question = urllib.request.Request(f"{address}influence.json", b'{"trace": 0, "words": [1, 2]}',
                                          {"Content-Type": "application/json"})
        with urllib.request.urlopen(question, timeout=60) as answer:
            found = json.loads(answer.read())["influence"]
        want = regard.load(folders / "translator").influence(TEXT, words=[1, 2])
        assert [sum(column) for column in zip(*found["values"], strict=True)] == pytest.approx(want.totals.tolist(),
                                                                                               abs=0.02)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
        assert process.returncode == 0
        assert "Traceback" not in said
    finally:
        process.kill()
        process.communicate()


ANSWERING = """
import sys, torch
import regard
from regard.cli import look
from regard.inspection.trace import Trace

def endless(question):
    print("asked", flush=True)
    while True:
        torch.randn(300, 300) @ torch.randn(300, 300)

look._serve_page([Trace.load(sys.argv[1])], endless, 0, False)
"""


@pytest.mark.thorough
def test_an_end_that_has_to_wait_says_so_and_a_second_interrupt_does_not_wait(traces):
    process = subprocess.Popen([sys.executable, "-c", ANSWERING, str(traces / "one.safetensors")],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        address = process.stdout.readline().strip()
        port, sent = int(address.split(":")[2].split("/")[0]), b'{"text": "a"}'
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(f"POST /{address.split('/')[3]}/translate.json HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
                               f"Content-Type: application/json\r\nContent-Length: {len(sent)}\r\n\r\n".encode() + sent)
            assert process.stdout.readline() == "asked\n"
            process.send_signal(signal.SIGINT)
            lines = iter(process.stderr.readline, "")
            assert any("still computing" in line for line in lines)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=20)
        assert (process.returncode, said) == (130, "")
    finally:
        process.kill()
        process.communicate()


def test_what_if_asks_the_model_that_is_meant(folders, monkeypatch):
    given = []
    monkeypatch.setattr(look, "_serve_page", lambda *arguments: given.append(arguments))
    monkeypatch.setattr("regard.tasks.translator.EXTRA_LENGTH", 3)
    assert call("look", folders / "translator", TEXT, "--with", folders / "filler", "--port", 81)[0] == 0
    [(traces, what_if, port, browser)] = given
    assert ([trace.model for trace in traces], port, browser) == (["translator", "filler"], 81, True)
    first = what_if(WhatIfRequest("the cat", prefix="le", beams=2, choice=1))
    assert (first.model, first.search.beams, first.title) == ("translator", 2, "the cat")
    assert first.sides["target"].text.startswith("le")
    assert what_if(WhatIfRequest("the ___ sleeps.", trace=1)).model == "filler"
    with pytest.raises(ValueError, match="`text`"):
        what_if(WhatIfRequest(" "))


def test_what_came_in_between_is_not_written_over(traces, tmp_path, monkeypatch):
    monkeypatch.setattr(look, "_check_output", lambda *arguments: None)
    (tmp_path / "a.html").write_text("mine")
    code, _, said = call("look", traces / "one.safetensors", "-o", tmp_path / "a.html")
    assert code == 1
    assert "a.html" in said
    assert (tmp_path / "a.html").read_text() == "mine"


def test_help_is_there():
    code, out, _ = call("look", "--help")
    assert code == 0
    for part in ("MODEL|TRACE", "--with", "--target", "--no-browser", "-o"):
        assert part in out


def test_torch_is_as_it_was():
    assert torch.is_grad_enabled()


HEADS_DATA = {
    "translator": "the big dog sleeps.\tle grand chien dort.\t0-0 1-1 2-2 3-3 4-4\nthe dog\tle chien\t0-0 1-1\n",
    "completer": "the big dog sleeps.\nthe dog sees the cat.\n", "filler": "the big dog sleeps.\nthe dog\n",
    "classifier": "the big dog sleeps.\twarm\nthe dog\tcold\n", "tagger": "the dog\tcold hot\nEmma sleeps\tcold warm\n",
}


@pytest.mark.parametrize("name", HEADS_DATA)
def test_the_heads_of_a_model_are_printed_and_stored(folders, tmp_path, name):
    file = tmp_path / ("data.txt" if name in ("completer", "filler") else "data.tsv")
    file.write_text(HEADS_DATA[name], "utf-8")
    code, out, said = call("look", folders / name, "--heads", file, "--json")
    assert code == 0, said
    table, stored = json.loads(out), folders / name / "heads.json"
    assert str(stored) in said
    kept = json.loads(stored.read_text("utf-8"))
    assert {**kept, "weights_sha256": None} == table
    assert table["data"] == file.name
    heads = [head for one in table["attentions"] for head in one["heads"]]
    assert len(heads) == {"translator": 6, "tagger": 2}.get(name, 2) * len(table["attentions"][0]["heads"])
    assert any(abs(head["cost"]) > 1e-6 for head in heads)
    assert ("gold" in heads[-1]["roles"]) == (name == "translator")
    code, out, _ = call("look", folders / name, "--heads", file, "--sentences", 1)
    assert code == 0
    rows = [line.split() for line in out.splitlines() if line.startswith(("encoder.", "decoder."))]
    assert len(rows) == len(heads)
    costs = [float(row[2]) for row in rows]
    assert costs == sorted(costs, reverse=True)
    stored.unlink()


def test_a_page_has_the_heads_that_are_stored_with_the_model(folders, tmp_path):
    (tmp_path / "pairs.tsv").write_text(HEADS_DATA["translator"], "utf-8")
    stored, path = folders / "translator" / "heads.json", tmp_path / "page.html"
    code, out, _ = call("look", folders / "translator", "--heads", tmp_path / "pairs.tsv", "--json")
    assert code == 0
    assert call("look", folders / "translator", TEXT, "-o", path) == (0, "", "")
    measured, wanted = document(path)["traces"][0]["heads"], json.loads(out)
    assert (measured["data"], measured["sentences"]) == ("pairs.tsv", 2)
    for one, other in zip(measured["attentions"], wanted["attentions"], strict=True):
        assert one["name"] == other["name"]
        for head, same in zip(one["heads"], other["heads"], strict=True):
            assert head["cost"] == pytest.approx(same["cost"], rel=1e-5)
            assert head["roles"] == pytest.approx(same["roles"], rel=1e-5)
            assert head.get("role") == same["role"]
    assert call("look", folders / "translator", TEXT, "-o", tmp_path / "one.safetensors") == (0, "", "")
    assert Trace.load(tmp_path / "one.safetensors").heads.data == "pairs.tsv"
    stored.write_text("{}")
    code, _, said = call("look", folders / "translator", TEXT, "-o", tmp_path / "other.html")
    assert (code, "heads.json" in said) == (0, True)  # a note, and the page without it
    assert "heads" not in document(tmp_path / "other.html")["traces"][0]
    stored.unlink()


def test_heads_that_cannot_be_stored_are_printed(folders, tmp_path, monkeypatch):
    def refuse(self, folder):
        raise OSError(30, "Read-only file system", str(folder))

    monkeypatch.setattr("regard.tasks.heads.HeadReport.save", refuse)
    (tmp_path / "pairs.tsv").write_text(HEADS_DATA["translator"], "utf-8")
    code, out, said = call("look", folders / "translator", "--heads", tmp_path / "pairs.tsv")
    assert (code, "decoder.1.cross" in out, "Read-only" in said) == (0, True, True)


def test_the_picture_of_an_image_has_the_image_beside_its_patches(folders, tmp_path):
    pytest.importorskip("matplotlib")
    from PIL import Image

    pixels = np.zeros((8, 12, 3), dtype=np.uint8)
    pixels[..., 0] = 255
    Image.fromarray(pixels).save(tmp_path / "red.png")
    assert call("look", folders / "seer", tmp_path / "red.png", "-o", tmp_path / "picture.png") == (0, "", "")
    with Image.open(tmp_path / "picture.png") as picture:
        found = np.asarray(picture.convert("RGB"))
    red = (found == (255, 0, 0)).all(-1)
    assert red.sum() > 1000
    down, across = np.ptp(np.nonzero(red), axis=1) + 1
    assert across / down == pytest.approx(12 / 8, rel=0.05)
    assert call("look", folders / "seer", tmp_path / "red.png", "-o", tmp_path / "heads.png", "--view", "heads")[0] == 0
