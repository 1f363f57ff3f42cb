"""Exports compute the same in the target program, or are refused."""

import json
import math
import shutil
from dataclasses import replace

import ending
import pytest
import texting
import torch
from tiny import TRANSLATING, built, language, reading
from tiny import translating as translating_config
from writers import Table, drawn

import regard
from regard.decoding.constraints import ForbiddenTokens
from regard.decoding.sampling import greedy
from regard.special_tokens import SpecialTokens
from regard.storage import ctranslate2
from regard.storage import ctranslate2 as ctranslate2_writing
from regard.storage import onnx as onnx_writing
from regard.storage.huggingface import conversion as huggingface_writing
from regard.tasks import export as exporting
from regard.tasks import export as runners
from regard.tasks.export import (
    RECORD_FILE,
    ROW_LENGTHS,
    ExportError,
    ReloadedModel,
    StopTokens,
    compare_outputs,
    describe_comparison,
    export,
    find_stop_tokens,
    make_check_inputs,
    model_identity,
    vocabulary_names,
)
from regard.tasks.export import greedy_rows as written
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


@pytest.mark.thorough
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


@pytest.mark.thorough
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


@pytest.mark.thorough
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


@pytest.mark.thorough
@pytest.mark.parametrize("make", [lambda: with_text(texting.separate()), lambda: regard.task(
    "gpt-tiny", tokenizer=texting.characters(), vocab_size=texting.characters().size, **{"stack.layers": 1})])
def test_a_tokenizer_that_has_no_form_there_is_told(make, tmp_path):
    report = export(make(), "huggingface", tmp_path / "out")
    assert "tokenizer" in report.notes[0]
    assert report.files == ("config.json", RECORD_FILE, "model.safetensors")


@pytest.mark.thorough
def test_a_tokenizer_that_gives_other_ids_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(exporting.tokenizer_json, "encode_texts", lambda data, texts: [[5]] * len(texts))
    report = export(with_text(texting.joint()), "huggingface", tmp_path / "out")
    assert "other ids" in report.notes[0]
    assert "tokenizer.json" not in report.files


@pytest.mark.thorough
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
    with pytest.raises(ExportError, match=r"\d outputs|\d log-probabilities"):
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
    with pytest.raises(ValueError, match=str(tmp_path / "model")):
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
    text = describe_comparison(found)
    assert all(part in text for part in ("90 outputs of 8 rows", "2.0e-06", "1.0e-07", "1.0e-04", "7 of 8", "for 1"))
    assert "of 1 row " in describe_comparison(replace(found, rows=1))
    assert "greedy" not in describe_comparison(replace(found, same=None))
    assert not found.passed


def test_without_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(ctranslate2.importlib, "import_module", _missing)
    with pytest.raises(ValueError, match=r"pip install 'regard\[export\]'"):
        export(transformer(), "ctranslate2", tmp_path / "out")


def _missing(name):
    raise ModuleNotFoundError(name)


class Changed(ReloadedModel):
    """Our own model, whose numbers and texts are changed before they are given."""

    def __init__(self, task, numbers=lambda one: one, text=lambda ids: ids):
        super().__init__(task)
        self.changed, self.text = numbers, text

    def outputs(self, inputs):
        return [self.changed(one) for one in super().outputs(inputs)]

    def generate(self, inputs, max_length):
        return [self.text(ids) for ids in super().generate(inputs, max_length)]


@pytest.mark.parametrize("make", [texting.translator, texting.completer, texting.filler, texting.classifier,
                                  texting.tagger, texting.seer])
def test_a_model_is_as_itself(make):
    task = make()
    found = compare_outputs(task, ReloadedModel(task), make_check_inputs(task))
    assert found.passed
    assert (found.rows, found.difference) == (len(ROW_LENGTHS), 0.0)
    assert found.same == (len(ROW_LENGTHS) if make in (texting.translator, texting.completer) else None)


def test_rows_are_of_several_lengths_and_have_no_special_ids():
    task = texting.translator()
    given = make_check_inputs(task)
    assert [len(row) for row in given.rows] == [length + 1 for length in ROW_LENGTHS]
    for row, target in zip(given.rows, given.targets, strict=True):
        assert row[-1] == 3
        assert target[0] == 2
        assert not {*row[:-1]} & task.special.ids()
    assert given == make_check_inputs(task)


def test_rows_leave_room_in_a_model_with_few_positions():
    task = regard.task("gpt-tiny", vocab_size=9, special=SpecialTokens(end=(3,)),
                       **{"embedding.positions.max_positions": 4})
    assert {len(row) for row in make_check_inputs(task).rows} == {1, 2, 3}
    assert compare_outputs(task, ReloadedModel(task), make_check_inputs(task)).passed


def test_texts_can_be_given():
    task = texting.translator()
    assert make_check_inputs(task, ["the dog", "", "a cat"]).rows == task.tokenizer.encode_sources(["the dog", "",
                                                                                                    "a cat"])
    assert make_check_inputs(texting.completer(), ["ab", ""]).rows == [texting.characters().encode("ab")]
    assert make_check_inputs(texting.filler(), ["the dog"]).rows == texting.filler().encode_texts(["the dog"])
    with pytest.raises(ValueError, match=r"`texts` .* empty"):
        make_check_inputs(texting.completer(), [""])


@pytest.mark.parametrize("change", [lambda one: one + 0.02, lambda one: one * math.nan, lambda one: one.flip(-1)])
def test_other_numbers_do_not_pass(change):
    task = texting.translator()
    found = compare_outputs(task, Changed(task, change), make_check_inputs(task))
    assert not found.passed
    assert found.difference > found.tolerance


def test_what_is_quantised_may_differ_more():
    task = texting.translator()
    off = Changed(task, lambda one: one + 0.01, lambda ids: [])
    assert compare_outputs(task, off, make_check_inputs(task), "int8").passed
    assert compare_outputs(task, off, make_check_inputs(task), "int8").same == 0
    assert not compare_outputs(task, off, make_check_inputs(task)).passed


@pytest.mark.thorough
@pytest.mark.parametrize("make", [texting.translator, texting.completer])
@pytest.mark.parametrize("text", [lambda ids: [], lambda ids: [*ids[:2], 7, *ids[3:]], lambda ids: [*ids, 8]])
def test_other_texts_do_not_pass(make, text):
    task = make()
    found = compare_outputs(task, Changed(task, text=text), make_check_inputs(task))
    assert not found.passed
    assert found.parted == found.rows
    assert found.same == 0


def test_a_near_tie_passes():
    """Two ids with one and the same row of the output: our model cannot tell them apart."""
    task = texting.translator(tie_word_embeddings=False, output_bias=True)
    model = task.config.build().double().eval()
    model.load_state_dict(task.model.state_dict())
    with torch.no_grad():
        weight, bias = model.decoder.output.weight, model.decoder.output.bias
        first = int(model.decode(Tokens.of([[2]]), model.encode(Tokens.of([[9, 3]])))[0, 0].argmax())
        weight[first + 1], bias[first + 1] = weight[first], bias[first] - 1e-7
    same = make_task(model, task.config, tokenizer=task.tokenizer)
    given = make_check_inputs(same)
    swapped = Changed(same, text=lambda ids: [first + 1 if id_ == first else id_ for id_ in ids])
    found = compare_outputs(same, swapped, given)
    assert any(first in target for target in given.targets)
    assert found.same < found.rows
    assert found.passed


def test_outputs_of_another_shape_are_refused():
    task = texting.filler()
    with pytest.raises(ExportError, match="shape"):
        compare_outputs(task, Changed(task, lambda one: one[:, :-1]), make_check_inputs(task))


def test_what_is_never_written():
    task = texting.translator()
    assert find_stop_tokens(task).forbidden == (0,)
    size = task.tokenizer.source.size
    wider = regard.task("transformer-tiny", tokenizer=task.tokenizer, source_vocab_size=size + 2,
                        target_vocab_size=size + 2)
    assert find_stop_tokens(wider).forbidden == (size, size + 1, 0)
    assert find_stop_tokens(texting.completer()).forbidden == find_stop_tokens(texting.filler()).forbidden == ()
    assert set(exporting.TOLERANCES) == {"float32", "float16", "bfloat16", "int8"}


def test_greedy_search_is_ours():
    function, starts, sizes = drawn(6, spread=2.0), [[1], [1, 2], [4, 4, 1]], []
    for end, never in (((0,), ()), ((0, 5), (3,)), ((), (2, 3))):
        rules = [ForbiddenTokens(never)] if never else []
        want = [one.ids for one in greedy(Table(lambda key, text: function(0, text)), prompts=starts, end=end,
                                          max_length=7, constraints=rules)]

        def following(rows, texts):
            return [torch.tensor(function(0, tuple(text))) for text in texts]

        assert written(starts, StopTokens(SpecialTokens(end=end), never), 7, following) == want
        sizes += map(len, want)
    assert len({*sizes}) > 2  # some end at once, some late, some never


def test_a_row_that_has_ended_is_not_asked_again():
    asked = []

    def following(rows, texts):
        asked.append(rows)
        return [torch.tensor([0.0, 1.0 if row == len(asked) - 1 else -1.0]) for row in rows]

    assert written([[1], [1], [1]], StopTokens(SpecialTokens(end=(1,))), 9, following) == [[], [0], [0, 0]]
    assert asked == [[0, 1, 2], [1, 2], [2]]
