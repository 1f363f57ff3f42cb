"""`regard export`: what is told, and how it ends."""

import pytest
import texting
from calling import call, lines, tables

from regard.tasks import ctranslate2_engine, export
from regard.tasks.export import ExportComparison

pytest.importorskip("ctranslate2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("export") / "model"
    texting.translator().save(place)
    return place


def test_what_is_told(folder, tmp_path):
    found = lines("export", folder, "--to", "ctranslate2", "-o", tmp_path / "out")
    text = "\n".join(found)
    for part in (str(tmp_path / "out"), "model.bin", "by ctranslate2", "at most", "8 of 8", "2,048"):
        assert part in text
    assert ctranslate2_engine.open_ctranslate2(folder, tmp_path / "out").translate("a cat", max_length=3) is not None


def test_json(folder, tmp_path):
    sentences = tmp_path / "sentences.txt"
    sentences.write_text("the dog sleeps.\n\na cat\n")
    (found,) = tables("export", folder, "--to", "ctranslate2", "-o", tmp_path / "out", "--check", sentences,
                      "--quantization", "int8")
    assert (found["target"], found["quantization"], found["program"]) == ("ctranslate2", "int8", "ctranslate2")
    assert found["comparison"]["rows"] == 3
    assert 0 < found["comparison"]["difference"] <= found["comparison"]["tolerance"]
    assert found["folder"] == str(tmp_path / "out")


def test_a_difference_ends_with_1_and_leaves_nothing(folder, tmp_path, monkeypatch):
    bad = ExportComparison(8, 90, "outputs", 0.5, 0.1, 1e-4, 8)
    monkeypatch.setattr(export, "compare_outputs", lambda *given: bad)
    code, out, said = call("export", folder, "--to", "ctranslate2", "-o", tmp_path / "out")
    assert (code, out) == (1, "")
    assert "90 outputs of 8 rows" in said
    assert "5.0e-01" in said
    assert not (tmp_path / "out").exists()


def test_what_a_target_cannot_hold_ends_with_2(tmp_path):
    texting.filler().save(tmp_path / "model")
    code, out, said = call("export", tmp_path / "model", "--to", "ctranslate2", "-o", tmp_path / "out")
    assert (code, out) == (2, "")
    assert "model.kind" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("arguments", "message"), [
    (["--to", "ctranslat", "-o", "out"], 'Did you mean "ctranslate2"?'), (["--to", "onnx"], "-o"),
    (["-o", "out"], "--to"), (["--to", "onnx", "-o", "out", "--quantization", "int8"], "float32"),
    (["--to", "ctranslate2", "-o", "out", "--check", "missing.txt"], "missing.txt"),
])
def test_a_wrong_call(folder, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, out, said = call("export", folder, *arguments)
    assert (code, out) == (2, "")
    assert message in said
    assert not (tmp_path / "out").exists()


def test_the_model_itself_is_not_written_over(folder):
    before = (folder / "manifest.json").read_bytes()
    code, _, said = call("export", folder, "--to", "ctranslate2", "-o", folder)
    assert code == 2
    assert "Choose another folder" in said
    assert (folder / "manifest.json").read_bytes() == before
