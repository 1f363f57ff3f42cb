"""`regard config`: every key with one sentence, sections, single keys, tasks, JSON, and misspelt keys."""

import json
import os
import subprocess
import sys

import pytest
from calling import call

from regard import config, toml
from regard.cli import config as cli_config
from regard.models import catalog
from regard.training import config_reference, resolution
from regard.training.config_reference import BY_DATA, BY_RECIPE, describe_config, read_reference


def lines(*arguments):
    code, out, said = call("config", *arguments)
    assert (code, said) == (0, "")
    return out.split("\n")[:-1]


@pytest.fixture(scope="module")
def reference():
    return read_reference()


def test_the_stored_reference_is_that_of_the_classes(reference):
    """After a change of a config class: python -m regard.training.config_reference"""
    assert reference == describe_config()


def test_every_key_has_a_sentence(reference):
    for one in reference:
        assert one.doc[:1].isupper(), one.key
        assert one.doc.endswith("."), one.key
        assert len(one.doc) < 160, one.key
        assert one.type, one.key
        assert one.default or one.type == "table", one.key


@pytest.mark.parametrize("recipe", [name for recipe in catalog.recipe_names()
                                    for name in resolution.recipe_sizes(recipe)])
def test_every_key_of_a_recipe_is_listed(reference, recipe):
    known = {one.key for one in reference}
    for key, _ in toml.flatten_tables(catalog.find_recipe(recipe).tables):
        assert key in known, key


def test_every_key_can_be_set(reference):
    """Each key is one that the config classes accept, and the classes have no other."""
    def walk(reader, path):
        if isinstance(reader, config.TableReader):
            for cls in reader.classes:
                for name, spec in config.key_specs(cls).items():
                    yield f"{path}.{name}"
                    yield from walk(spec.reader, f"{path}.{name}")
            if len(reader.classes) > 1:
                yield f"{path}.kind"

    accepted = {key for name, kind in resolution.TABLES.items()
                for key in (name, *walk(config.type_spec(kind, name).reader, name))}
    refused = {key for key in accepted for table in config_reference.REFUSED_TABLES
               if key == table or key.startswith(f"{table}.")}
    assert {one.key for one in reference} == accepted - refused


def test_defaults(reference):
    found = {one.key: one.default for one in reference if not one.kinds}
    assert found["training.seed"] == "1"
    assert found["training.max_grad_norm"] == "1.0"
    assert found["training.schedule.learning_rate"] == found["training.batches.max_tokens"] == BY_DATA
    assert found["training.precision"] == BY_DATA  # of the device
    assert found["training.label_smoothing"] == "0.1 for seq2seq, classify and label, 0.0 for language and masked"
    assert found["model.width"] == BY_RECIPE
    assert found["training.validation.metric"].startswith("chrf for seq2seq, loss for language and masked")


def test_tasks(reference):
    tasks = {one.key: set(one.tasks) for one in reference}
    assert tasks["training.windows.length"] == {"language"}
    assert tasks["training.masking.mlm_probability"] == {"masked"}
    assert tasks["training.random_shift"] == tasks["model.patch_size"] == {"classify"}
    assert tasks["model.encoder.layers"] == tasks["data.joint_tokenizer"] == {"seq2seq"}
    assert tasks["training.seed"] == set(resolution.TASKS)


def test_all_keys(reference):
    found = "\n".join(lines())
    for one in reference:
        if one.type != "table":
            assert f"\n  {one.key.split('.')[-1]}" in "\n" + found, one.key
    assert found.index("[data]") < found.index("[data.filters]") < found.index("[model]") < found.index("[training]")


def test_a_section():
    found = lines("training.optimizer")
    assert found[0].startswith("[training.optimizer]")
    names = [line.split()[0] for line in found[1:] if line[2:3].strip()]
    assert names == ["name", "beta1", "beta2", "epsilon", "weight_decay"]


def test_one_key():
    found = "\n".join(lines("training.optimizer.beta2"))
    words = " ".join(found.split())
    assert found.startswith("training.optimizer.beta2\n")
    for part in ("squared gradients", "at least 0 and below 1", "0.98", "0.99 for language",
                 "--set training.optimizer.beta2="):
        assert part in words
    assert "transformer-tiny 2" in " ".join("\n".join(lines("model.encoder.layers")).split())


def test_every_example_can_be_parsed(reference):
    """Every twentieth as the command prints it, the others as it would."""
    keys = [one for one in reference if one.type != "table"]
    for number, one in enumerate(keys):
        example = f"--set {one.key}={cli_config._example_value(one)}"
        assert number % 20 or f"--set {one.key}=" in "\n".join(lines(one.key))
        key, value = toml.parse_override(example.removeprefix("--set ").replace("'", ""))
        assert key == one.key, example
        assert value != ""


@pytest.mark.parametrize(("key", "values"), [
    ("training.schedule.learning_rate", ["0.001"]), ("tokenizer.vocab_size", ["8000"] * 2),
    ("training.optimizer.beta2", ["0.98"]), ("training.optimizer.weight_decay", ["0.01"]),
    ("model.encoder.layers", ["4"]), ("training.seed", ["1"])])
def test_an_example_is_a_usual_value(key, values):
    assert [line.partition(f"--set {key}=")[2] for line in lines(key) if "--set" in line] == values


def test_one_task():
    found = "\n".join(lines("--task", "language"))
    assert "[training.windows]" in found
    assert "[model.encoder]" not in found
    assert "[model.stack.mixer]" in found
    code, out, said = call("config", "training.masking", "--task", "seq2seq")
    assert (code, out) == (2, "")
    assert "training.masking" in said
    assert "seq2seq" in said


def test_json(reference):
    code, out, said = call("config", "training.schedule", "--json")
    assert (code, said) == (0, "")
    found = json.loads(out)
    assert [one["key"] for one in found][:2] == ["training.schedule", "training.schedule.shape"]
    assert {"key", "type", "default", "doc", "tasks"} <= found[1].keys()
    assert len(json.loads(call("config", "--json")[1])) == len(reference)


@pytest.mark.parametrize(("key", "nearest"), [
    ("training.optimzer.beta2", "training.optimizer.beta2"), ("learning_rate", "training.schedule.learning_rate"),
    ("model.widht", "model.width"), ("train", "training"), ("every", "training.checkpoints.every")])
def test_an_unknown_key_names_the_nearest(key, nearest):
    code, out, said = call("config", key)
    assert (code, out) == (2, "")
    assert key in said
    assert nearest in said


def test_an_unknown_task():
    code, _, said = call("config", "--task", "translate")
    assert code == 2
    assert "seq2seq" in said


def test_it_does_not_load_torch():
    code = "import sys; from regard.cli.main import app; app(['config', 'training'], standalone_mode=False); " \
           "sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "COLUMNS": "100"})
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.split("\n"))) <= 100
