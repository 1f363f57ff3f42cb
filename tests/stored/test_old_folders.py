"""Folders that earlier versions wrote keep loading, and an interrupted training of theirs resumes.

`models.zip` has a small model of each task, `interrupted.zip` a training that Ctrl-C stopped in step 11 of 20. They
were written before the config keys were renamed. `trace.safetensors` is a trace from before traces had an influence and
scores of the search.
"""

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import regard
from regard.inspection.page.document import page_html
from regard.inspection.trace import Trace
from regard.training.config import TrainingConfig

HERE = Path(__file__).parent
MODELS = ("transformer", "seq2seq-attention", "conv", "gpt", "lstm", "bert", "classifier", "vit")
SENTENCE = "My old friends see a big garden."
OLD_KEYS = {"inner", "form", "order", "checkpoint", "vocabulary", "source_vocabulary", "target_vocabulary", "tied",
            "shared", "joined", "smoothing", "consistency", "average", "clip", "accumulate", "peak", "warmup",
            "optimiser", "held", "joint", "sharing", "report", "height", "breadth", "patch", "longest_words",
            "normalisation"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("stored")
    for name in ("models", "interrupted"):
        with zipfile.ZipFile(HERE / f"{name}.zip") as archive:
            archive.extractall(place / name)
    return place


def use(task):
    """What a model makes of a text or an image."""
    if isinstance(task, regard.Translator):
        return task.translate([SENTENCE], beams=3)[0].text
    if isinstance(task, regard.Completer):
        return task.complete(["The"])[0].text
    if isinstance(task, regard.Filler):
        return task.fill("The ___ sleeps.").text
    return task.classify(torch.zeros(1, 1, 8, 8) if task.tokenizer is None else [SENTENCE])


def keys(tables):
    """All keys of tables, also of those inside."""
    return {key for key in tables} | {one for part in tables.values() if isinstance(part, dict) for one in keys(part)}


@pytest.mark.thorough
@pytest.mark.parametrize("name", MODELS)
def test_an_old_model_loads_and_is_saved_with_new_keys(folders, tmp_path, name):
    with pytest.warns(FutureWarning, match=rf"{name}/config\.toml: .*is now") as notices:
        task = regard.load(folders / "models" / name)
    assert len(notices) == 1
    stored, loaded = load_file(folders / "models" / name / "model.safetensors"), task.model.state_dict()
    assert all(torch.equal(tensor, loaded[key]) for key, tensor in stored.items())
    task.save(tmp_path / "model")
    tables = tomllib.loads((tmp_path / "model" / "config.toml").read_text())
    assert keys(tables) & OLD_KEYS <= ({"order"} if name in ("gpt", "lstm") else set())  # windows have an order still
    assert tables["training"]["parallelism"] == "ddp"
    again = regard.load(tmp_path / "model")  # without a notice: warnings are errors here
    assert again.config == task.config
    assert use(again) == use(task)


def test_the_record_of_a_saved_model_is_a_config(folders, tmp_path):
    """The names that the record of an old model gets are those of the config."""
    with pytest.warns(FutureWarning, match="is now"):
        regard.load(folders / "models" / "transformer").save(tmp_path / "model")
    record = regard.load(tmp_path / "model").record["training"]
    assert TrainingConfig(**record).schedule.learning_rate == 5e-3


@pytest.mark.thorough
def test_an_interrupted_training_resumes(folders):
    place = folders / "interrupted"
    words = ["train", "pairs.tsv", "--validation", "validation.tsv", "-o", "model", "--resume", "--device", "cpu",
             "--set", "training.schedule.steps=20", "--set", "training.log_every=5"]
    run = subprocess.run([sys.executable, "-m", "regard", *words], cwd=place, capture_output=True, text=True,
                         env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=300)
    assert run.returncode == 0, run.stderr
    assert "training.schedule.steps is now training.schedule.max_steps" in run.stderr
    lines = [*map(json.loads, (place / "model" / "metrics.jsonl").read_text().splitlines())]
    assert max(line["step"] for line in lines if line["event"] == "progress") == 20
    assert {line["event"] for line in lines} == {"progress", "validation", "ended"}  # step 10 was "judged" before
    with pytest.warns(FutureWarning, match="is now"):  # the best model is still the one of step 10
        model = regard.load(place / "model")
    assert model.translate([SENTENCE])[0].text is not None
    assert next(entry["step"] for entry in model.history if "scores" in entry) == 10


def test_an_old_trace_opens(tmp_path):
    trace = Trace.load(HERE / "trace.safetensors")
    assert (trace.influence, trace.search.ranked_by, trace.search.nodes[-1].score) == (None, None, None)
    assert [one.name for one in trace.attentions] == ["encoder.0.self", "decoder.0.self", "decoder.0.cross"]
    assert "Le chat noir dort." in page_html([trace])
    trace.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (HERE / "trace.safetensors").read_bytes()
