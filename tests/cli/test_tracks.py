"""Tracks on the command line: data, train, predict, evaluate, look and info."""

import json
import re
from pathlib import Path

import pytest
from calling import call, lines, tables

import regard


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tracks and a model."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "tracks.csv").write_text("\n".join(lines("data", "tracks", "--frames", 60, "--agents", 5)) + "\n")
    code, out, said = call("train", folder / "tracks.csv", "--task", "tracks", "-o", folder / "model", "--steps", 4,
                           "--observed", 4, "--predicted", 3, "--futures", 5, "--width", 16)
    assert (code, out.strip()) == (0, str(folder / "model")), said
    assert "regard predict" in said
    return folder


def test_synthetic_tracks() -> None:
    head, *rows = lines("data", "tracks", "--scenes", 2, "--frames", 3, "--agents", 4)
    assert head == "scene,frame,agent,x,y,kind"
    assert {row.split(",")[0] for row in rows} == {"0", "1"}
    assert lines("data", "tracks", "--frames", 3) == lines("data", "tracks", "--frames", 3)
    assert lines("data", "tracks", "--frames", 3) != lines("data", "tracks", "--frames", 3, "--seed", 1)


def test_the_check_recognises_tracks(place: Path, tmp_path: Path) -> None:
    code, out, said = call("data", "check", place / "tracks.csv")
    assert (code, said) == (0, "")
    assert "tracks.csv" in out
    assert re.search(r"windows of 8 observed and 12 predicted", " ".join(out.split()))
    report = json.loads("\n".join(lines("data", "check", place / "tracks.csv", "--json", "--observed", 4)))
    assert report["windows"]["observed"] == 4
    plain = tmp_path / "plain.txt"
    plain.write_text("0 1 0 0\n1 1 0 1\n")
    code, out, said = call("data", "check", plain, "--task", "tracks")
    assert code == 2
    assert "frame, agent, x, y" in said
    assert "20 steps" in said
    plain.write_text("frame,agent,x,y\n0,1,0,0\n0,1,0,0\n")
    code, _, said = call("data", "check", plain)
    assert code == 2
    assert "plain.txt:3" in said


def test_predict(place: Path) -> None:
    forecaster = regard.load(place / "model")
    want = forecaster.predict(place / "tracks.csv", k=2)
    got = lines("predict", place / "model", place / "tracks.csv", "-k", 2)
    assert len(got) == len(want) * 2 * 3
    expected = [f"{one.agent}\t{k + 1}\t{one.probabilities[k]:.4f}\t{60 + step}\t{x:.4f}\t{y:.4f}" for one in want
                for k in range(2) for step, (x, y) in enumerate(one.futures[k].tolist())]
    assert got == expected
    found = tables("predict", place / "model", place / "tracks.csv", "--joint", "--agent", want[0].agent)
    assert [one["agent"] for one in found] == [want[0].agent]
    assert len(found[0]["futures"]) == 5
    assert found[0]["frame"] == 59
    piped = lines("predict", place / "model", "-", "-k", 2, stdin=(place / "tracks.csv").read_text())
    assert piped == got


@pytest.mark.parametrize(("options", "part"), [(["-k", "6"], "at most 5"), (["--agent", "nobody"], "nobody"),
                                               (["--frame", "2"], "4 steps"), (["--columns", "frame,x"], "--columns"),
                                               (["--frame-step", "0"], "frame_step"),
                                               (["--frame-step", "nan"], "frame_step")])
def test_predict_refuses(place: Path, options: list[str], part: str) -> None:
    code, out, said = call("predict", place / "model", place / "tracks.csv", *options)
    assert (code, out) == (2, "")
    assert part in said


def test_evaluate_shows_the_baselines_beside_the_model(place: Path) -> None:
    code, out, _ = call("evaluate", place / "model", place / "tracks.csv")
    assert code == 0
    for name in ("model", "constant velocity", "k-means", "linear", "minADE", "JFDE", "collisions"):
        assert name in out
    (table,) = tables("evaluate", place / "model", place / "tracks.csv")
    assert table["agents>=1"]["linear"]["fde"] > 0
    code, _, said = call("evaluate", place / "model", place / "tracks.csv", "-o", place / "out.txt")
    assert code == 2
    assert "a forecaster of tracks" in said


def test_look_writes_a_page_a_picture_and_a_table(place: Path, tmp_path: Path) -> None:
    page, picture = tmp_path / "scene.html", tmp_path / "scene.svg"
    assert lines("look", place / "model", place / "tracks.csv", "-o", page) == []
    assert "frame 56" in page.read_text()
    code, out, _ = call("look", place / "model", place / "tracks.csv", "--terminal", "--frame", 30)
    assert code == 0
    assert "frame 30" in out
    pytest.importorskip("matplotlib")
    assert lines("look", place / "model", place / "tracks.csv", "-o", picture, "--joint") == []
    assert picture.read_bytes().startswith(b"<?xml")
    for options, part in ((["--beam", "2"], "--beam"), (["-o", tmp_path / "a.safetensors"], "traces"), ([], "TRACKS")):
        given = [place / "tracks.csv"] if options else []
        code, _, said = call("look", place / "model", *given, *options)
        assert code == 2
        assert part in said


def test_info_tells_the_task_and_the_command(place: Path) -> None:
    out = "\n".join(lines("info", place / "model"))
    assert "forecasting of tracks" in out
    assert "regard predict" in out


def test_tracks_without_their_task(place: Path, tmp_path: Path) -> None:
    code, _, said = call("train", place / "tracks.csv", "-o", tmp_path / "new")
    assert code == 2
    assert "--task tracks" in said


def test_options_of_tracks_are_refused_elsewhere(place: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("a\tb\nc\td\n")
    for options in (["--observed", "4"], ["--columns", "frame,agent,x,y"]):
        code, _, said = call("train", pairs, "-o", tmp_path / "out", "--steps", 1, *options)
        assert code == 2
        assert options[0].strip("-").split("_")[0] in said


@pytest.mark.parametrize(("task", "options", "wanted"), [
    ("tracks", ["--max-words", "5", "--test", "test.tsv"], "sentence pairs"), ("label", ["--observed", "4"], "tracks"),
    ("label", ["--drop", "control"], "sentence pairs"),
    ("seq2seq", ["--predicted", "4", "--frame-step", "2"], "tracks"),
])
def test_a_check_refuses_options_of_other_data(place: Path, task: str, options: list[str], wanted: str) -> None:
    code, out, said = call("data", "check", place / "tracks.csv", "--task", task, *options)
    assert (code, out) == (2, "")
    assert wanted in said
    assert all(option in said for option in options if option.startswith("--"))
