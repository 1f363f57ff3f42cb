"""`regard info`: what it says of a model, of a training that has not ended, and of what is no model."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import texting
from calling import call, lines, tables
from texting import RECORD

import regard
from regard.cli import info
from regard.storage import folder as folders
from regard.tasks.card import CARD_FILE
from regard.tasks.info import TrainingFolderStatus
from regard.tasks.load import make_task
from regard.training.checkpoints import training_lock

STORED = Path(__file__).parent.parent / "stored"


@pytest.fixture
def model(tmp_path):
    made = texting.translator()
    record = {**RECORD, "data": {"source_lang": "en", "target_lang": "fr", "pairs": 1234, "validation_fraction": 0.1,
                                 "validation_examples": 50, "files": ["pairs.tsv " + "a" * 64]},
              "scores": {"step": 60, "bleu": 41.25, "bleu_interval": [40.5, 42.0]}}
    make_task(made.model, made.config, tokenizer=made.tokenizer, record=record).save(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def stored(tmp_path):
    """A training of an older version that was interrupted."""
    with zipfile.ZipFile(STORED / "interrupted.zip") as packed:
        packed.extractall(tmp_path / "stored")
    return tmp_path / "stored" / "model"


def test_a_model(model):
    text = "\n".join(lines("info", model))
    task = regard.load(model)
    for part in ("translation", "English (en) to French (fr)", "encoder-decoder", "transformer-tiny",
                 "BLEU 41.25 [40.50, 42.00]", f"{task.config.parameters():,}", "step 60", "50 pairs held out",
                 "1,234 pairs (pairs.tsv)", regard.__version__, f"regard translate {model}",
                 f"regard.load('{model}').translate("):
        assert part in " ".join(text.split()), part


def test_a_folder_with_a_leading_dash(model, monkeypatch):
    monkeypatch.chdir(model.parent)
    model.rename("-m")
    assert "regard translate ./-m " in " ".join("\n".join(lines("info", "--", "-m")).split())


def test_json(model):
    (found,) = tables("info", model)
    task = regard.load(model)
    assert (found["task"], found["source_lang"], found["target_lang"]) == ("translation", "en", "fr")
    assert found["parameters"] == task.config.parameters()
    scores = {"step": 60, "bleu": 41.25, "bleu_interval": [40.5, 42.0]}
    assert (found["scores"], found["files"], found["pairs"]) == (scores, ["pairs.tsv"], 1234)
    assert found["vocab_sizes"] == [*task.vocabularies]
    assert found["model_bytes"] == sum(one.length for one in folders.read_manifest(model).files.values())
    assert found["training"] is None


@pytest.mark.filterwarnings("ignore:.*keys? renamed:FutureWarning")
def test_every_stored_model(tmp_path):
    with zipfile.ZipFile(STORED / "models.zip") as packed:
        packed.extractall(tmp_path)
    for folder in sorted(tmp_path.iterdir()):
        (found,) = tables("info", folder)
        task = regard.load(folder)
        assert found["parameters"] == task.config.parameters(), folder
        assert found["kind"] == task.config.kind
        assert tuple(found["vocab_sizes"]) == task.vocabularies
        assert tuple(found["labels"]) == (task.labels or ())
        assert found["source_lang"] is None


def test_a_training_that_has_not_ended(stored):
    (found,) = tables("info", stored)
    assert found["training"]["step"] == 11
    assert found["training"]["max_steps"] == 20
    assert not found["training"]["finished"]
    assert found["training"]["resume"] == f"regard train pairs.tsv --validation validation.tsv -o {stored} --resume"
    assert "11 of 20" in "\n".join(lines("info", stored))


def test_a_training_without_a_model_yet(stored):
    manifest = folders.Manifest({})
    for name in folders.read_manifest(stored).files:
        (stored / name).unlink()
    (stored / folders.MANIFEST_FILE).write_bytes(manifest.encoded())
    text = "\n".join(lines("info", stored))
    assert "11 of 20" in text
    assert "no model is saved yet" in text
    assert "--resume" in text
    assert "regard translate" not in text


def test_a_training_that_is_running(stored):
    with training_lock(stored / "checkpoints"):
        (found,) = tables("info", stored)
        assert found["training"]["running"]
        text = "\n".join(lines("info", stored))
        assert "running: step 11 of 20" in text
        assert "--resume" not in text
        code, _, said = call("info", stored, "--set-languages", "en-fr")
        assert code == 2
        assert "running" in said
    (found,) = tables("info", stored)
    assert not found["training"]["running"]


def test_a_folder_that_a_training_has_only_claimed(tmp_path):
    folders.save(tmp_path / "model", {})
    code, out, said = call("info", tmp_path / "model")
    assert (code, out) == (2, "")
    assert "Nothing is saved" in said


@pytest.mark.parametrize("change", [
    lambda folder: (folder / "model.safetensors").unlink(),
    lambda folder: (folder / "model.safetensors").write_bytes(b"short"),
    lambda folder: (folder / "config.toml").write_text((folder / "config.toml").read_text().replace("a", "b", 1)),
    lambda folder: (folder / "manifest.json").write_text("{}"),
    lambda folder: (folder / "manifest.json").unlink(),
], ids=["missing", "truncated", "changed", "manifest", "none"])
def test_a_damaged_folder_is_one_sentence(model, change):
    change(model)
    code, out, said = call("info", model)
    assert (code, out) == (2, "")
    assert said.startswith("Error: ")
    assert str(model) in said
    assert said.count("\n") == 1


def test_what_is_no_folder(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    for name in ("missing", "a.txt", "."):
        code, out, said = call("info", tmp_path / name)
        assert (code, out) == (2, "")
        assert said.count("\n") == 1


def test_languages_are_set(model):
    weights = (model / "model.safetensors").read_bytes()
    (model / "notes.txt").write_text("mine")
    code, _, said = call("info", model, "--set-languages", "de-pt-BR")
    assert code == 0
    assert "de-pt-BR" in said
    folders.verify(model)
    task = regard.load(model)
    assert (task.source_lang, task.target_lang) == ("de", "pt-BR")
    assert task.record["data"]["pairs"] == 1234
    assert '- "pt-BR"' in (model / CARD_FILE).read_text()
    assert ((model / "model.safetensors").read_bytes(), (model / "notes.txt").read_text()) == (weights, "mine")
    assert call("info", model, "--set-languages", "en-fr")[0] == 0
    assert regard.load(model).target_lang == "fr"


@pytest.mark.filterwarnings("ignore:.*keys? renamed:FutureWarning")
def test_languages_of_an_old_folder_are_set(tmp_path, stored):
    assert call("info", stored, "--set-languages", "en-fr")[0] == 0
    assert (regard.load(stored).source_lang, regard.load(stored).target_lang) == ("en", "fr")
    assert (stored / "checkpoints" / "step-00000011" / "values.json").exists()
    made = texting.translator()
    made.save(tmp_path / "bare")  # whose config.toml has no [data]
    assert call("info", tmp_path / "bare", "--set-languages", "en-fr")[0] == 0
    assert regard.load(tmp_path / "bare").target_lang == "fr"


def test_a_card_of_the_user_stays(model):
    (model / CARD_FILE).write_text("mine")
    code, _, said = call("info", model, "--set-languages", "de-en")
    assert code == 0
    assert "README.md" in said
    assert (model / CARD_FILE).read_text() == "mine"
    assert regard.load(model).source_lang == "de"


def test_languages_that_cannot_be_set(model, tmp_path):
    code, _, said = call("info", model, "--set-languages", "english")
    assert code == 2
    assert "en-fr" in said
    texting.filler().save(tmp_path / "filler")
    code, _, said = call("info", tmp_path / "filler", "--set-languages", "en-fr")
    assert code == 2
    assert "translation" in said
    assert regard.load(model).source_lang == "en"


def test_a_failed_write_changes_nothing(model, monkeypatch):
    before = {path.name: path.read_bytes() for path in model.iterdir()}

    def fail(path):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("regard.storage.filesystem.fsync", fail)
    assert call("info", model, "--set-languages", "de-en")[0] != 0
    assert {path.name: path.read_bytes() for path in model.iterdir()} == before
    assert [path.name for path in model.parent.iterdir()] == ["model"]


def test_a_hugging_face_folder(tmp_path):
    folder = tmp_path / "opus-mt-en-fr"
    folder.mkdir()
    config = {"model_type": "marian", "architectures": ["MarianMTModel"], "vocab_size": 99}
    (folder / "config.json").write_text(json.dumps(config))
    header = json.dumps({"__metadata__": {}, "a": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(48))
    (found,) = tables("info", folder)
    assert (found["format"], found["family"], found["task"]) == ("huggingface", "marian", "translation")
    assert (found["parameters"], found["vocab_sizes"]) == (12, [99])
    assert (found["source_lang"], found["target_lang"]) == ("en", "fr")
    (folder / "tokenizer_config.json").write_text('{"source_lang": "eng", "target_lang": "deu"}')
    (found,) = tables("info", folder)
    assert (found["source_lang"], found["target_lang"]) == ("eng", "deu")
    (folder / "config.json").write_text("[]")
    code, _, said = call("info", folder)
    assert code == 2
    assert "config.json" in said


def test_nothing_of_torch_is_imported(model):
    program = ("import sys; from regard.cli.main import app\ntry: app(['info', sys.argv[1]])\n"
               "except SystemExit: pass\nassert not {'torch', 'numpy'} & {*sys.modules}")
    subprocess.run([sys.executable, "-c", program, str(model)], check=True, capture_output=True,
                   env={**os.environ, "PYTHONPATH": str(Path(regard.__file__).parent.parent)})


def test_a_control_character_in_a_name_is_written_out(tmp_path):
    texting.translator().save(tmp_path / "a\x1bb")
    assert "\x1b" not in "\n".join(lines("info", tmp_path / "a\x1bb"))


@pytest.mark.parametrize(("arguments", "start", "words"), [
    ({"DATA": ["mine.tsv"], "--validation": [], "--source": None, "--mix": ["old.tsv", "older.tsv"]}, "model",
     "mine.tsv --mix old.tsv --mix older.tsv --from model"),
    ({"DATA": [], "--direction": ["en-fr:a.tsv", "en-de:b.tsv"], "--both-ways": True}, None,
     "--direction en-fr:a.tsv --direction en-de:b.tsv --both-ways"),
    ({"DATA": ["p.tsv"], "--monolingual": ["more.txt"], "--reverse": None, "--top-k": 5, "--time": 90.0}, None,
     "p.tsv --monolingual more.txt --top-k 5 --time 90s"),
    ({"DATA": ["p.tsv"], "--source": "en", "--target": "fr", "reversed": True}, None, "p.tsv --source en --target fr"),
])
def test_the_command_that_resumes_has_everything_the_data_depends_on(arguments, start, words):
    status = TrainingFolderStatus(3, 10, 1.0, False, arguments=arguments, start=start)
    assert info._resume_command("new", status) == f"regard train {words} -o new --resume"
