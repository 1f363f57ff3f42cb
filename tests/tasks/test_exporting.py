"""Exports: compared on the spot, kept where they are the same as ours, and not left behind otherwise."""

import json
import shutil
from dataclasses import replace

import ending
import pytest
import texting
import torch
from tiny import TRANSLATING, built, language, reading
from tiny import translating as translating_config

import regard
from regard.special_tokens import SpecialTokens
from regard.storage import ctranslate2
from regard.storage import ctranslate2 as ctranslate2_writing
from regard.storage import onnx as onnx_writing
from regard.storage.huggingface import conversion as huggingface_writing
from regard.tasks import export as exporting
from regard.tasks import export as runners
from regard.tasks.export import RECORD_FILE, ExportError, describe_comparison, export, model_identity, vocabulary_names
from regard.tasks.load import make_task
from regard.tokens import Tokens

SPECIAL = SpecialTokens(padding=0, unknown=1, start=2, end=(3,), mask=4)


def recipe(name, **options):
    """A new model of a recipe, tiny, with one layer."""
    torch.manual_seed(0)
    return regard.task(f"{name}-tiny", special=SPECIAL, **options)


def transformer():
    one = {f"{side}.layers": 1 for side in ("encoder", "decoder")}
    return recipe("transformer", source_vocab_size=40, target_vocab_size=40, **one)


def gpt():
    return recipe("gpt", vocab_size=40, **{"stack.layers": 1})


@pytest.mark.parametrize("quantization", ctranslate2_writing.QUANTIZATIONS)
@pytest.mark.parametrize("make", [ending.translator, texting.completer, transformer, gpt])
def test_to_ctranslate2(make, quantization, tmp_path):
    pytest.importorskip("ctranslate2")
    task = make()
    report = export(task, "ctranslate2", tmp_path / "out", quantization=quantization, origin="abc")
    assert report.comparison.passed
    assert report.comparison.difference < (1e-5 if quantization == "float32" else 0.3)
    assert (report.comparison.same == report.comparison.rows) or quantization != "float32"
    assert (report.program, report.target) == ("ctranslate2", "ctranslate2")
    assert {*report.files} < {path.name for path in (tmp_path / "out").iterdir()}
    assert ("tokenizer.toml" in report.files) == (task.tokenizer is not None)
    record = json.loads((tmp_path / "out" / RECORD_FILE).read_text())
    assert (record["quantization"], record["model"], record["target"]) == (quantization, "abc", "ctranslate2")


@pytest.mark.parametrize(("make", "architecture"), [
    (transformer, "MarianMTModel"), (gpt, "GPT2LMHeadModel"),
    (lambda: recipe("bert", vocab_size=40, **{"stack.layers": 1}), "BertForMaskedLM"),
    (lambda: recipe("vit", num_labels=5, **{"stack.layers": 1}), "ViTForImageClassification"),
])
def test_to_huggingface(make, architecture, tmp_path):
    pytest.importorskip("transformers")
    task = make()
    report = export(task, "huggingface", tmp_path / "out")
    assert report.program == "transformers"
    assert report.comparison.difference < 1e-5
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == [architecture]
    again = regard.load(tmp_path / "out")  # our own reader gives the same model
    assert type(again) is type(task)
    found = exporting.compare_outputs(task, exporting.ReloadedModel(again), exporting.make_check_inputs(task))
    assert found.passed


def test_without_transformers_our_own_reader_compares(tmp_path, monkeypatch):
    monkeypatch.setattr(runners, "has_transformers", lambda: False)
    report = export(transformer(), "huggingface", tmp_path / "out")
    assert report.program == "regard"
    assert report.comparison.passed


def with_text(pair):
    sizes = {"source_vocab_size": pair.source.size, "target_vocab_size": pair.target.size}
    return regard.task("transformer-tiny", tokenizer=pair, share_embeddings=pair.joint,
                       **sizes, **{"encoder.layers": 1, "decoder.layers": 1})


def test_a_tokenizer_goes_with_its_model(tmp_path):
    transformers = pytest.importorskip("transformers")
    task = with_text(texting.joint())
    report = export(task, "huggingface", tmp_path / "out", texts=["the dog", "a cat sleeps."])
    assert report.comparison.rows == 2
    assert {"tokenizer.json", "tokenizer_config.json"} < {*report.files}
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    given = read("the dog", return_tensors="pt")
    assert given["input_ids"].tolist() == task.tokenizer.encode_sources(["the dog"])
    written = model.generate(given["input_ids"], num_beams=1, do_sample=False, max_new_tokens=5)[0, 1:].tolist()
    want = task.translate("the dog", beams=1, length_penalty="none", max_length=5)
    assert tuple(written[:len(want.ids)]) == want.ids
    assert len({*want.ids}) > 0


def test_a_reader_comes_back_with_its_tokenizer(tmp_path):
    own = texting.tokenizer()
    task = regard.task("bert-tiny", tokenizer=own, vocab_size=own.size, **{"stack.layers": 1})
    export(task, "huggingface", tmp_path / "out")
    again = regard.load(tmp_path / "out")
    assert again.encode_texts(["Two dogs.", "a cat"]) == task.encode_texts(["Two dogs.", "a cat"])
    assert again.special.mask == task.special.mask


@pytest.mark.parametrize("make", [lambda: with_text(texting.separate()), lambda: regard.task(
    "gpt-tiny", tokenizer=texting.characters(), vocab_size=texting.characters().size, **{"stack.layers": 1})])
def test_a_tokenizer_that_has_no_form_there_is_told(make, tmp_path):
    report = export(make(), "huggingface", tmp_path / "out")
    assert "no form" in report.notes[0]
    assert report.files == ("config.json", RECORD_FILE, "model.safetensors")


def test_a_tokenizer_that_gives_other_ids_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(exporting.tokenizer_json, "encode_texts", lambda data, texts: [[5]] * len(texts))
    report = export(with_text(texting.joint()), "huggingface", tmp_path / "out")
    assert "other ids" in report.notes[0]
    assert "tokenizer.json" not in report.files


def test_to_onnx(tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    report = export(gpt(), "onnx", tmp_path / "out")
    assert (report.program, report.files) == ("onnxruntime", (RECORD_FILE, "model.onnx"))
    assert report.comparison.difference < 1e-4
    assert report.comparison.same == report.comparison.rows


class Fake:
    """onnxruntime without graphs: it runs our own model."""

    def __init__(self, path, model):
        self.model, self.name = model, path.name

    def get_inputs(self):
        return [type("Input", (), {"name": name}) for name in ("ids", "lengths")]

    @torch.inference_mode()
    def run(self, _, given):
        given = {name: torch.from_numpy(value) for name, value in given.items()}
        if self.name == "encoder.onnx":
            found = self.model.encode(Tokens(given["ids"], given["lengths"])).states
        elif self.name == "decoder.onnx":
            found = onnx_writing.OnnxTargetDecoder(self.model)(given["ids"], given["states"], given["lengths"])
        else:
            found = self.model(Tokens(given["ids"], given["lengths"]))
        return [found.numpy()]


@pytest.mark.parametrize("make", [ending.translator, texting.filler, texting.classifier, texting.tagger])
def test_how_graphs_are_asked(make, tmp_path, monkeypatch):
    """Rows filled up, cut to their lengths, and written after token by token; the graphs are tested apart."""
    task = make()
    monkeypatch.setattr(onnx_writing, "write_onnx", lambda folder, config, model: ())
    monkeypatch.setattr(runners, "_onnx_session", lambda path: Fake(path, task.model))
    report = export(task, "onnx", tmp_path / "out")
    assert report.comparison.difference < 1e-5
    assert report.comparison.same in (None, report.comparison.rows)


@pytest.mark.parametrize(("target", "broken"), [("ctranslate2", ctranslate2_writing), ("huggingface",
                                                                                       huggingface_writing)])
def test_an_export_that_differs_is_not_left_behind(target, broken, tmp_path, monkeypatch):
    pytest.importorskip({"ctranslate2": "ctranslate2", "huggingface": "transformers"}[target])
    written = {"ctranslate2": "write_ctranslate2", "huggingface": "write_model"}[target]
    write, name = getattr(broken, written), "decoder.stack.blocks.0.cross.value.bias"

    def wrong(folder, config, special, tensors, *others, **more):
        return write(folder, config, special, {**tensors, name: tensors[name] + 0.1}, *others, **more)

    monkeypatch.setattr(broken, written, wrong)
    with pytest.raises(ExportError, match=r"differs from ours, and is not kept: .* differ by at most"):
        export(transformer(), target, tmp_path / "out")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(("task", "target", "message"), [
    (lambda: make_task(built(TRANSLATING["additive"]), TRANSLATING["additive"], SPECIAL), "ctranslate2",
     r"model\.encoder\.mixer\.score"),
    (lambda: make_task(built(language("recurrence")), language("recurrence"), SPECIAL), "onnx",
     r"model\.stack\.mixer\.kind"),
    (lambda: make_task(built(translating_config()), translating_config(), SPECIAL), "huggingface", r"share_embeddings"),
    (lambda: make_task(built(reading()), reading(), SPECIAL), "ctranslate2", r"model\.kind"),
    (transformer, "marian", r'`target` must be one of "ctranslate2", "onnx", "huggingface"'),
])
def test_what_a_target_cannot_hold_is_refused(task, target, message, tmp_path):
    pytest.importorskip("ctranslate2")
    with pytest.raises(ValueError, match=message):
        export(task(), target, tmp_path / "out")
    assert not [*tmp_path.iterdir()]


def test_only_ctranslate2_quantises(tmp_path):
    with pytest.raises(ValueError, match='`quantization` must be "float32" for onnx'):
        export(transformer(), "onnx", tmp_path / "out", quantization="int8")


def test_where_it_is_written(tmp_path):
    pytest.importorskip("ctranslate2")
    task = transformer()
    task.save(tmp_path / "model")
    with pytest.raises(ValueError, match="does not replace"):
        export(task, "ctranslate2", tmp_path / "model")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match=r"mine"):
        export(task, "ctranslate2", tmp_path / "mine")
    export(task, "ctranslate2", tmp_path / "out")
    export(task, "ctranslate2", tmp_path / "out", quantization="int8")  # which replaces the one before
    assert json.loads((tmp_path / "out" / RECORD_FILE).read_text())["quantization"] == "int8"
    assert (tmp_path / "mine" / "letter.txt").read_text() == "dear"
    assert type(regard.load(tmp_path / "model")) is type(task)


def test_names_are_those_of_the_tokenizer():
    task = texting.translator(pair=texting.separate)
    found = vocabulary_names(task)
    for side, called in ((task.tokenizer.source, found.source), (task.tokenizer.target, found.target)):
        assert called[:5] == ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
        assert list(called) == side.pieces(range(side.size))
    assert vocabulary_names(transformer()).source == tuple(f"<{id_}>" for id_ in range(40))


def test_a_model_that_has_changed_is_another(tmp_path):
    task = transformer()
    task.save(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    assert model_identity(tmp_path / "one") == model_identity(tmp_path / "two")
    with torch.no_grad():
        task.model.decoder.stack.blocks[0].cross.output.bias[0] += 1
    task.save(tmp_path / "two")
    assert model_identity(tmp_path / "one") != model_identity(tmp_path / "two")


def test_words():
    found = exporting.ExportComparison(8, 90, "outputs", 2e-6, 1e-7, 1e-4, 7, 1)
    assert describe_comparison(found) == ("90 outputs of 8 rows differ by at most 2.0e-06, 1.0e-07 on average (allowed: 1.0e-04); "
                           "greedy search writes the same after 7 of 8, and after 1 something that our model finds "
                           "worse")
    assert "greedy" not in describe_comparison(replace(found, same=None))
    assert not found.passed


def test_without_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(ctranslate2.importlib, "import_module", _missing)
    with pytest.raises(ValueError, match=r"pip install 'regard\[export\]'"):
        export(transformer(), "ctranslate2", tmp_path / "out")


def _missing(name):
    raise ModuleNotFoundError(name)
