"""Graphs for ONNX: run by onnxruntime, for other rows and lengths than they were made with, they say what ours say."""

from dataclasses import replace

import pytest
import torch
from tiny import ALL, LANGUAGE, READING, TRANSLATING, VISION, built, language

from regard.blocks.stack import StackConfig
from regard.models.contract import Memory
from regard.storage import onnx
from regard.storage.onnx import check_exportable, write_onnx
from regard.tokens import Tokens

runtime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
IDS, LENGTHS = torch.tensor([[5, 6, 7, 8, 9, 10, 4], [6, 3, 0, 0, 0, 0, 0]]), torch.tensor([7, 2])


def run(path, **given):
    """The output of a graph."""
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {name: value.numpy() for name, value in given.items()})[0])


def made(config, place):
    """Our model of one layer in float32, and its graphs."""
    stacks = {name: replace(getattr(config, name), layers=1) for name in ("encoder", "decoder", "stack")
              if isinstance(getattr(config, name, None), StackConfig)}
    config = replace(config, **stacks)
    model = built(config)
    files = write_onnx(place, config, model)
    assert next(model.parameters()).dtype == torch.float64  # it is left as it was
    return model.float(), files


def assert_same(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)


@pytest.mark.thorough
@torch.no_grad()
def test_a_translator(tmp_path):
    model, files = made(TRANSLATING["post-norm"], tmp_path)
    assert files == ("decoder.onnx", "encoder.onnx")
    states = run(tmp_path / "encoder.onnx", ids=IDS, lengths=LENGTHS)
    wanted = model.encode(Tokens(IDS, LENGTHS))
    assert_same(states[0], wanted.states[0])
    assert_same(states[1, :2], wanted.states[1, :2])
    states[1, 2:] = 1e30  # what stands behind a row changes nothing
    target = torch.tensor([[2, 5, 6], [2, 7, 8]])
    logits = run(tmp_path / "decoder.onnx", ids=target, states=states, lengths=LENGTHS)
    assert_same(logits, model.decode(Tokens(target), Memory(wanted.states, LENGTHS)))


@pytest.mark.thorough
@pytest.mark.parametrize("mixer", ["rotary", "gated"])
@torch.no_grad()
def test_a_language_model(tmp_path, mixer):
    model, files = made(language(mixer, "none", gated=True, norm="rms", tie_word_embeddings=False), tmp_path)
    assert files == ("model.onnx",)
    assert_same(run(tmp_path / "model.onnx", ids=IDS), model.decode(Tokens(IDS)))
    assert_same(run(tmp_path / "model.onnx", ids=IDS[:1, :1]), model.decode(Tokens(IDS[:1, :1])))


@pytest.mark.thorough
@torch.no_grad()
def test_a_model_that_reads(tmp_path):
    model, _ = made(READING["mean"], tmp_path)
    assert_same(run(tmp_path / "model.onnx", ids=IDS, lengths=LENGTHS), model(Tokens(IDS, LENGTHS)))


@pytest.mark.thorough
@torch.no_grad()
def test_a_model_of_images(tmp_path):
    model, _ = made(VISION["class"], tmp_path)
    images = torch.rand(2, 3, 8, 12)
    assert_same(run(tmp_path / "model.onnx", images=images), model(images))


@pytest.mark.parametrize(("config", "keys"), [
    (TRANSLATING["recurrence"], r"model\.encoder\.mixer\.kind, model\.decoder\.mixer\.kind"),
    (TRANSLATING["seq2seq-attention"], r"model\.kind"), (LANGUAGE["lstmn"], r"model\.stack\.mixer\.kind"),
    (LANGUAGE["old"], r"model\.stack\.mixer\.kind"), (READING["tagger"], r"model\.stack\.mixer\.kind"),
    (LANGUAGE["rwkv4"], r"model\.stack\.mixer\.kind"), (LANGUAGE["rwkv7"], r"model\.stack\.mixer\.kind"),
])
def test_recurrence_is_refused(config, keys, tmp_path):
    with pytest.raises(ValueError, match=rf"recurrence \({keys}\)"):
        write_onnx(tmp_path, config, torch.nn.Identity())
    assert not [*tmp_path.iterdir()]


def test_all_others_pass():
    passing = {name for name, config in ALL.items() if "recurrence" not in name and "mut1" not in name
               and "lstmn" not in name and "rwkv" not in name and "seq2seq" not in name and " old" not in name
               and "tagger" not in name and name != "reading last"}
    for name in passing:
        check_exportable(ALL[name])


def test_without_the_package(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    with pytest.raises(ValueError, match=r"onnxscript: pip install 'regard\[export\]'"):
        write_onnx(tmp_path, LANGUAGE["attention"], torch.nn.Identity())


def test_what_the_exporter_cannot_follow_is_said(monkeypatch, tmp_path):
    class Odd(torch.nn.Module):
        def forward(self, ids):
            return ids if int(ids.sum()) > 3 else -ids

    monkeypatch.setattr(onnx, "OnnxLanguageModel", lambda model: Odd())
    with pytest.raises(ValueError, match="exporter cannot trace this model: Could not"):
        write_onnx(tmp_path, LANGUAGE["attention"], torch.nn.Linear(1, 1))
