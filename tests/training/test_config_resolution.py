"""Config resolution: mistakes with their lines, defaults, devices, and what a resumed training must share."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from regard import config, toml
from regard.data.sources.text import DataError
from regard.models import catalog
from regard.toml import ConfigError, flatten_tables
from regard.training.config import HIGHER_IS_BETTER, DataConfig, TrainingConfig
from regard.training.defaults import Default, DeviceProperties, lookup
from regard.training.optimizer import ScheduleConfig
from regard.training.resolution import (
    TASKS,
    check_same_files,
    check_same_tokenizer,
    device_properties,
    fill_defaults,
    recipe_defaults,
    recipe_sizes,
    requested_config,
    stored_config,
    training_identity,
)
from regard.training.tasks.interface import TrainingRequest


def ask(task="seq2seq", recipe=None, **changes):
    """With changes such as model__width=16."""
    return change(task, recipe, {key.replace("__", "."): value for key, value in changes.items()})


def change(task, recipe, changes):
    return requested_config(TrainingRequest(task, ("nowhere.tsv",), Path("nowhere"), recipe=recipe, changes=changes),
                            TASKS[task]())


@pytest.mark.parametrize("task", TASKS)
def test_nothing_need_be_asked_for(task):
    assert ask(task).tables == {}


@pytest.mark.parametrize("task", TASKS)
def test_what_is_asked_for_is_all_that_there_is(task):
    assert ask(task, training__seed=3, training__schedule__learning_rate=0.5).tables == {
        "training": {"seed": 3, "schedule": {"learning_rate": 0.5}}}


@pytest.mark.parametrize(("task", "recipe"), [
    ("seq2seq", "transformer"), ("seq2seq", "transformer-big"), ("seq2seq", "seq2seq"), ("seq2seq", "conv-tiny"),
    ("seq2seq", "seq2seq-attention-small"), ("language", "llama-small"), ("language", "gpt"), ("language", "lstm"),
    ("language", "rwkv4-tiny"), ("language", "rwkv7"), ("masked", "bert"),
    ("classify", "vit")])
def test_a_recipe_by_its_name(task, recipe):
    assert ask(task, recipe).tables == {"recipe": recipe}


@pytest.mark.parametrize(("task", "recipe", "message"), [
    ("seq2seq", "gpt", r"recipe gpt .* language, .*--task seq2seq .* transformer.*--task language"),
    ("language", "transformer", r"recipe transformer .* encoder-decoder, .*--task language .* gpt.*--task seq2seq"),
    ("masked", "vit", r"recipe vit .* vision, .*--task masked .* bert.*--task classify"),
])
def test_a_recipe_of_another_task(task, recipe, message):
    with pytest.raises(ValueError, match=message):
        ask(task, recipe)


@pytest.mark.parametrize(("recipe", "message"), [
    ("transfromer", 'is "transfromer" instead. Did you mean "transformer"?'),
    ("transformer-tny", 'tiny, small, medium, big, student, base, but is "transformer-tny" instead. Did you mean'),
])
def test_an_unknown_recipe(recipe, message, tmp_path):
    file = tmp_path / "own.toml"
    file.write_text(f'recipe = "{recipe}"\n')
    for name, changes in ((recipe, {}), (str(file), {}), (None, {"recipe": recipe})):
        with pytest.raises(ValueError, match="recipe") as error:
            change("seq2seq", name, changes)
        assert message in str(error.value)


def test_misspelt_keys_of_single_values_are_all_told():
    with pytest.raises(ConfigError) as error:
        ask(model__widht=32, training__schedule__stpes=5, trainin__seed=1, training__max_grad_norm=-1.0,
            tokenizer__size=3)
    told = str(error.value).split("\n")
    assert len(told) == 5
    for part in ('unknown key "widht" in [model]; did you mean "width"?', 'unknown table "trainin"; did you mean',
                 'unknown key "stpes" in [training.schedule]; did you mean',
                 'unknown key "size" in [tokenizer]',
                 '"max_grad_norm" in [training]: expected a finite number, at least 0.0, but got -1.0'):
        assert any(part in line for line in told), part


def test_mistakes_in_a_file_are_told_with_their_lines(tmp_path):
    file = tmp_path / "train.toml"
    file.write_text("""recipe = "transformer"

[training]
sed = 3
label_smoothing = 1.5

[training.schedule]
learning_rate = 1e-3
warmup_step = 4

[model.encoder]
mixer = { heds = 2 }
""")
    with pytest.raises(ConfigError) as error:
        ask(recipe=str(file), training__rdrop="much")
    assert str(error.value).split("\n") == [
        '--set: "rdrop" in [training]: expected a finite number, at least 0.0, but got "much"',
        f'{file}:4: unknown key "sed" in [training]; did you mean "seed"?',
        f'{file}:5: "label_smoothing" in [training]: expected a probability, at least 0 and below 1, but got 1.5',
        f'{file}:9: unknown key "warmup_step" in [training.schedule]; did you mean "warmup_steps"?',
        f'{file}:12: unknown key "heds" in [model.encoder.mixer]; did you mean "heads"?']


def test_a_file_that_is_no_toml(tmp_path):
    file = tmp_path / "train.toml"
    file.write_text("[training\n")
    with pytest.raises(ConfigError, match=rf"^{file}:1: "):
        ask(recipe=str(file))
    with pytest.raises(ConfigError, match="there is no such file"):
        ask(recipe=str(tmp_path / "none.toml"))


@pytest.mark.parametrize("changes", [
    {"tokenizer__vocab_size": 300}, {"tokenizer__kind": "bytes"}, {"model__width": 64},
                                     {"data__validation_fraction": 0.5},
    {"model__width": 100},  # which four heads divide, as the smaller sizes have, and eight do not
    {"training__batches__max_tokens": 10}, {"model__encoder__mixer__heads": 16},
                                     {"training__schedule__shape": "cosine"},
    {"training__schedule__warmup_steps": 10**6}, {"model__embedding__positions__kind": "sinusoidal"},
    {"model__encoder__mixer__key_heads": 8},  # which the smallest size has too few heads for
])
def test_what_may_fit_some_data_is_not_refused(changes):
    found = ask(**changes).tables
    assert {key: lookup(found, key.replace("__", ".")) for key in changes} == changes


@pytest.mark.parametrize(("changes", "message"), [
    ({"model.width": 31}, '"heads" in [model.encoder.mixer]: 4 does not divide the width, 31'),
    ({"training.parallelism": "fsdp", "training.validation.metric": "bleu"},
     '"metric" in [training.validation]: only "loss" can be computed if the parameters are sharded'),
    ({"training.schedule.warmup_steps": 9, "training.schedule.max_steps": 8},
     '"warmup_steps" in [training.schedule]: 9 steps'),
    ({"recipe": 5}, '"recipe": expected text, but got 5'),
    ({"model": 5}, 'cannot change "model"'),
    ({"training": "fast"}, 'cannot change "training"'),
    ({"model.kind": "transformer"}, '"kind" in [model]: expected one of'),
])
def test_what_fits_no_data_is_refused(changes, message):
    with pytest.raises(ConfigError) as error:
        change("seq2seq", None, changes)
    assert message in str(error.value)


def test_a_whole_model_of_their_own(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text('[model]\nkind = "seq2seq"\nwidth = 8\ncell = "gru"\n')
    assert ask(recipe=str(file)).tables["model"]["width"] == 8
    file.write_text('[model]\nkind = "language"\nwidth = 8\n')
    with pytest.raises(ValueError, match="encoder-decoder or seq2seq for --task seq2seq, but is language instead"):
        ask(recipe=str(file))


def test_choices_fill_what_was_not_asked_for():
    given = ask(model__width=64)
    some = [Default("model.width", 512, ""), Default("model.tie_word_embeddings", True, ""), Default("recipe", "x", "")]
    once = fill_defaults(given, some, given)
    assert once.tables == {"model": {"width": 64, "tie_word_embeddings": True}}
    assert fill_defaults(once, [Default("model.tie_word_embeddings", False, "")],
                         given).tables["model"]["tie_word_embeddings"] is False  # a later one counts
    assert given.tables == {"model": {"width": 64}}


def test_recipes_and_their_sizes():
    assert recipe_sizes("transformer") == ["transformer-tiny", "transformer-small", "transformer-medium",
                                           "transformer-big", "transformer-student", "transformer"]
    assert recipe_sizes("transformer-small") == ["transformer-small"]
    assert {choice.key: choice.value for choice in recipe_defaults("transformer-tiny")}["model.encoder.layers"] == 2
    assert all(choice.key.startswith("model.") for choice in recipe_defaults("seq2seq"))
    assert list(flatten_tables({"a": {"b": 1, "c": {}}, "d": [2]})) == [("a.b", 1), ("d", [2])]


@pytest.mark.parametrize("task", TASKS)
def test_plans_name_what_there_is(task):
    """Recipes that exist, of the kinds that the plan trains."""
    plan = TASKS[task]()
    assert plan.recipes
    for name in plan.recipes:
        assert catalog.find_recipe(name).tables["model"]["kind"] in plan.model_kinds


@pytest.mark.parametrize("task", TASKS)
def test_a_score_of_another_task_is_refused(task):
    plan = TASKS[task]()
    for score in HIGHER_IS_BETTER:
        if score in plan.scores:
            ask(task, training__validation__metric=score)
        else:
            with pytest.raises(ValueError, match=f"loss.* for --task {task}, but is {score} instead"):
                ask(task, training__validation__metric=score)


@pytest.mark.parametrize(("task", "key", "asked_for"), [
    ("seq2seq", "training.windows.length", 9), ("seq2seq", "training.masking.mlm_probability", 0.3),
    ("seq2seq", "training.random_shift", 1), ("language", "training.batches.max_tokens",
                                              100), ("language", "data.joint_tokenizer", False),
    ("language", "training.masking.mlm_probability", 0.3), ("masked", "training.windows.batch_size", 3),
    ("masked", "training.random_shift", 1), ("masked", "data.joint_tokenizer", False),
    ("classify", "training.masking.mlm_probability", 0.3), ("classify", "data.joint_tokenizer", False),
])
def test_what_would_change_nothing_is_refused(task, key, asked_for):
    with pytest.raises(ValueError, match=f"{key}.* has no effect on --task {task}"):
        change(task, None, {key: asked_for})


@pytest.mark.parametrize("task", TASKS)
def test_what_is_so_anyway_may_be_asked_for(task):
    """As a config does that was stored."""
    unused = {key: each for key, each in TASKS[task]().unused.items() if each is not None}
    change(task, None, unused)
    default = config.to_tables({"training": TrainingConfig(schedule=ScheduleConfig(max_steps=1)), "data": DataConfig()})
    assert unused.items() <= dict(flatten_tables(default)).items()


CONFIG = {"recipe": "transformer-tiny", "model": {"width": 128}, "data": {"filters": {"drop": ["empty", "copy"]}},
          "training": {"seed": 1, "epochs": 60.0}}


def request(**options):
    given = {"task": "seq2seq", "data": ("/here/en.txt", "/here/fr.txt"), "output": Path("model")} | options
    return TrainingRequest(**given)


@pytest.fixture
def stored():
    """As it comes back from a checkpoint."""
    return json.loads(json.dumps(training_identity(request(), CONFIG, {"en.txt": "aa", "fr.txt": "bb"}, "cc")))


@pytest.mark.parametrize("asked", [
    {}, {"recipe": "transformer"}, {"recipe": "transformer-tiny"}, {"training": {"epochs": 60}},
    {"model": {"width": 128}, "training": {"seed": 1}}, {"data": {"filters": {"drop": ["empty", "copy"]}}},
])
def test_the_same_or_less_goes_on(stored, asked):
    found = stored_config(stored, request(data=("/there/en.txt", "/there/fr.txt")), toml.document_of(asked))
    assert found.tables == CONFIG


@pytest.mark.parametrize(("options", "asked", "lines"), [
    ({"task": "language"}, {}, ["task: seq2seq is stored, language is requested"]),
    ({"data": ("fr.txt", "en.txt")}, {}, ["DATA: en.txt fr.txt is stored, fr.txt en.txt is requested"]),
    ({"data": ("en.txt",), "validation": ("fr.txt",)}, {}, [
        "DATA: en.txt fr.txt is stored, en.txt is requested", "--validation: nothing is stored, fr.txt is requested"]),
    ({"source": "1", "target": "2"}, {}, ["--source: nothing is stored, 1 is requested",
                                          "--target: nothing is stored, 2 is requested"]),
    ({"format": "plain"}, {}, ["--format: nothing is stored, plain is requested"]),
    ({}, {"recipe": "transformer-small"}, ["recipe: transformer-tiny is stored, transformer-small is requested"]),
    ({}, {"recipe": "conv"}, ["recipe: transformer-tiny is stored, conv is requested"]),
    ({}, {"model": {"width": 64}, "training": {"seed": 1, "max_grad_norm": 0.5}}, [
        "model.width: 128 is stored, 64 is requested", "training.max_grad_norm: nothing is stored, 0.5 is requested"]),
    ({}, {"data": {"filters": {"drop": ["empty"]}}}, ["data.filters.drop: empty copy is stored, empty is requested"]),
])
def test_every_difference_is_told(stored, options, asked, lines):
    with pytest.raises(DataError) as error:
        stored_config(stored, request(**options), toml.document_of(asked))
    assert str(error.value).split("\n") == [
        "model: This training cannot be resumed with other settings.", *(f"  {line}" for line in lines),
        "Use the stored settings, or choose another folder."]


def test_seq2seq_is_no_size_of_another_recipe(stored):
    stored["config"]["recipe"] = "seq2seq-attention"
    assert stored_config(stored, request(), toml.document_of({"recipe": "seq2seq-attention"}))
    with pytest.raises(DataError, match="recipe: seq2seq-attention is stored, seq2seq is requested"):
        stored_config(stored, request(), toml.document_of({"recipe": "seq2seq"}))


def test_files_that_are_others(stored):
    check_same_files(stored["files"], {"en.txt": "aa", "fr.txt": "bb"}, request())
    with pytest.raises(DataError) as error:
        check_same_files(stored["files"], {"en.txt": "ab", "de.txt": "cc"}, request())
    assert str(error.value).split("\n") == [
        "model: This training cannot be resumed with other data.",
        "  en.txt was changed: its sha256 is ab, and was aa.",
        "  fr.txt is missing.", "  de.txt is new.",
        "Use the same files, or choose another folder."]


def test_another_tokenizer(stored):
    check_same_tokenizer(stored, stored, Path("model/data"))
    with pytest.raises(DataError,
                       match=r"^model/data: .*tokenizer.* is dd, and was cc\."):
        check_same_tokenizer(stored, {**stored, "tokenizer": "dd"}, Path("model/data"))
    with pytest.raises(DataError, match="is None, and was cc"):
        check_same_tokenizer(stored, {**stored, "tokenizer": None}, Path("model/data"))


def test_a_cpu():
    found = device_properties(torch.device("cpu"))
    assert found == DeviceProperties("cpu", found.memory, has_bfloat16=False, count=1)
    assert 2**28 < found.memory < 2**50
    assert not found.is_gpu
    assert device_properties(torch.device("cpu"), 3).count == 3


@pytest.mark.parametrize("lowered", [True, False])
def test_a_gpu(monkeypatch, lowered):
    asked = []
    monkeypatch.setattr(torch.cuda, "get_device_properties",
                        lambda device: asked.append(device) or SimpleNamespace(total_memory=7 * 2**30))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported",
                        lambda including_emulation: lowered and not including_emulation)
    found = device_properties(torch.device("cuda", 1), 2)
    assert found == DeviceProperties("cuda", 7 * 2**30, lowered, 2)
    assert found.is_gpu
    assert asked == [torch.device("cuda", 1)]
