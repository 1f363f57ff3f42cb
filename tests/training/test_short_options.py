"""Short options: the keys that each sets for every recipe, bad values, contradictions, and resumed trainings."""

from pathlib import Path

import pytest

from regard import config
from regard.data.tokenizer.subwords import FIRST_PIECE
from regard.models import catalog
from regard.models.build import model_config
from regard.toml import ConfigError, document_of, flatten_tables
from regard.training import short_options
from regard.training.resolution import (
    TASKS,
    override_expanded,
    recipe_sizes,
    requested_config,
    stored_config,
)
from regard.training.short_options import (
    TRACK_OPTIONS,
    OptionSpelling,
    ShortOptions,
    expand_dependent,
    expand_direct,
    read_short_options,
)
from regard.training.tasks.interface import TrainingRequest

VOCABULARY = {"encoder-decoder": ("source_vocab_size", "target_vocab_size"),
              "seq2seq": ("source_vocab_size", "target_vocab_size"), "vision": ("num_labels",),
              "classifier": ("vocab_size", "num_labels"), "tagger": ("vocab_size", "num_labels"), "tracks": ()}
"""What only the data determines, by the kind of model."""
TASK_OF_KIND = {kind: task for task, setup in TASKS.items() for kind in setup.model_kinds}
SIZED_RECIPES = [name for recipe in catalog.recipe_names() for name in recipe_sizes(recipe)]


def expanded_keys(options, tables, *, task="seq2seq", requested=None):
    """All keys that these options set."""
    return [*expand_direct(options, task), *expand_dependent(options, tables, task, requested or {})]


def expanded_model(recipe, **options):
    """The model config of a recipe with these options, and what they expand to."""
    document = catalog.find_recipe(recipe)
    task = TASK_OF_KIND[document.tables["model"]["kind"]]
    expanded = expanded_keys(options, document.tables, task=task)
    tables = override_expanded(document, expanded).tables
    changes = dict.fromkeys(VOCABULARY.get(tables["model"]["kind"], ("vocab_size",)), 300)
    return model_config(tables, **changes), expanded


def request(task="seq2seq", recipe=None, changes=(), **options):
    return TrainingRequest(task, ("nowhere.tsv",), Path("nowhere"), recipe=recipe, changes=dict(changes),
                           options=options)


def check(task="seq2seq", recipe=None, changes=(), **options):
    """The tables that a request sets, or its errors."""
    return requested_config(request(task, recipe, changes, **options), TASKS[task]()).tables


@pytest.mark.parametrize("recipe", SIZED_RECIPES)
def test_layers_of_every_recipe(recipe):
    before, _ = expanded_model(recipe)
    model, _ = expanded_model(recipe, layers=3)
    stacks = [getattr(model, name) for name in ("encoder", "decoder", "stack") if hasattr(model, name)
              and not callable(getattr(model, name))] or [model]
    assert [stack.layers for stack in stacks] == [3] * len(stacks)
    assert model.width == before.width


@pytest.mark.parametrize("width", [64, 100, 192, 2048])
@pytest.mark.parametrize("recipe", SIZED_RECIPES)
def test_width_of_every_recipe(recipe, width):
    """Heads divide the width, and have the recipe's width where it does; feed-forward layers keep their ratio."""
    before, _ = expanded_model(recipe)
    model, expanded = expanded_model(recipe, width=width)
    assert model.width == width
    for name in ("encoder", "decoder", "stack"):
        old, new = getattr(before, name, None), getattr(model, name, None)
        if old is None or callable(old):
            continue
        if old.feed_forward is not None:
            ratio = old.feed_forward.ffn_width / before.width
            assert new.feed_forward.ffn_width == pytest.approx(ratio * width, abs=0.5)
        for part in ("mixer", "cross"):
            heads = getattr(getattr(old, part), "heads", None)
            if heads is None:
                continue
            found = getattr(new, part).heads
            assert width % found == 0
            if heads == 1:
                assert found == 1  # a recipe of one head is about that
            elif width % (before.width // heads) == 0:
                assert width // found == before.width // heads
    assert all(one.option == f"--width {width}" for one in expanded)
    assert [one.key for one in expanded if not one.reason] == ["model.width"]


@pytest.mark.parametrize("recipe", SIZED_RECIPES)
def test_dropout_of_every_recipe(recipe):
    """Zero switches off all dropout; a high value leaves that inside the layers as it is."""
    none, high, before = (dropouts(expanded_model(recipe, **options)[0])
                          for options in ({"dropout": 0.0}, {"dropout": 0.5}, {}))
    assert set(none.values()) == {0.0}
    assert 0.5 in high.values()
    for key, value in high.items():
        inside = any(f"{part}.dropout" in key for part in ("mixer", "cross", "feed_forward"))
        assert value == (before[key] if inside else 0.5), key


def dropouts(model):
    """Every dropout of a model config by its key."""
    return {key: value for key, value in flatten_tables(config.to_tables(model)) if key.split(".")[-1] == "dropout"}


def test_the_same_options_again_give_the_same_values():
    """A resumed training compares them with the stored config."""
    for recipe in SIZED_RECIPES:
        document = catalog.find_recipe(recipe)
        options = {"width": 192, "layers": 3, "dropout": 0.05}
        once = override_expanded(document, expanded_keys(options, document.tables))
        again = override_expanded(once, expanded_keys(options, once.tables))
        assert again.tables == once.tables, recipe


def test_options_that_set_one_key():
    given = {"epochs": 3.0, "batch_tokens": 500, "lr": 0.1, "seed": 7, "vocab_size": 400}
    assert {one.key: one.value for one in expand_direct(given, "seq2seq")} == {
        "training.epochs": 3.0, "training.batches.max_tokens": 500, "training.schedule.learning_rate": 0.1,
        "training.seed": 7, "tokenizer.vocab_size": 400}
    assert expand_direct({"steps": 9}, "language")[0] == ("training.schedule.max_steps", 9, "--steps 9", "")
    assert short_options.MIN_VOCABULARY == FIRST_PIECE + 1


@pytest.mark.parametrize(("given", "seconds"), [("90s", 90.0), ("1h30m", 5400.0), (20, 20.0)])
def test_a_time_limit(given, seconds):
    (found,) = expand_direct({"time": given}, "masked")
    assert found == ("training.max_time", seconds, f"--time {given}", "")
    for wrong in ("30 minutes", "0", "-5m", -1):
        with pytest.raises(ConfigError, match="--time"):
            check(time=wrong)


def test_every_option_sets_a_key():
    document = catalog.find_recipe("transformer-tiny")
    for name in ShortOptions.__dataclass_fields__:
        fraction, flag = name in ("dropout", "lr", "mix_share", "blend_share"), name in ("blend", "zero_shot")
        value = "frame,agent,x,y" if name == "columns" else flag or (0.5 if fraction else 300)
        task = "tracks" if name in TRACK_OPTIONS else "seq2seq"
        assert expanded_keys({name: value}, document.tables, task=task), name


@pytest.mark.parametrize("name", TRACK_OPTIONS)
def test_an_option_of_tracks_is_refused_for_other_tasks(name):
    given = {name: "frame,agent,x,y" if name == "columns" else 3}
    with pytest.raises(ConfigError, match=rf"--{name.replace('_', '-')} .*--task tracks.*--task seq2seq"):
        expand_direct(given, "seq2seq")
    with pytest.raises(ConfigError, match=rf'{name}=.*task="?tracks"?.*task="?label"?'):
        expand_direct(given, "label", OptionSpelling(""))


@pytest.mark.parametrize(("length", "tokens", "rows"), [(256, 4096, 16), (256, 4100, 16), (100, 100, 1)])
def test_tokens_of_a_batch_of_windows(length, tokens, rows):
    tables = {**catalog.find_recipe("gpt").tables, "training": {"windows": {"length": length}}}
    (found,) = expanded_keys({"batch_tokens": tokens}, tables, task="language")
    assert found[:3] == ("training.windows.batch_size", rows, f"--batch-tokens {tokens}")


def test_a_batch_smaller_than_a_window():
    tables = {**catalog.find_recipe("gpt").tables, "training": {"windows": {"length": 256}}}
    with pytest.raises(ConfigError, match=r"--batch-tokens 100: .* 256 tokens.*training\.windows\.length=100"):
        expand_dependent({"batch_tokens": 100}, tables, "language", {})


@pytest.mark.parametrize(("options", "parts"), [
    ({"layers": 0}, ["--layers", "at least 1", "0"]), ({"layers": 1.5}, ["--layers", "1.5"]),
    ({"width": -4}, ["--width", "-4"]), ({"width": 2**40}, ["--width", str(2**40)]),
    ({"dropout": 1.0}, ["--dropout", "below 1", "1.0"]), ({"dropout": -0.1}, ["--dropout", "-0.1"]),
    ({"epochs": 0}, ["--epochs", "above 0"]), ({"steps": 0}, ["--steps", "at least 1"]),
    ({"lr": 0}, ["--lr", "above 0"]), ({"lr": "fast"}, ["--lr", '"fast"']), ({"seed": -1}, ["--seed", "-1"]),
    ({"batch_tokens": 0}, ["--batch-tokens", "at least 1"]), ({"vocab_size": 10}, ["--vocab-size", "262", "10"]),
    ({"epochs": 2, "steps": 3}, ["--epochs 2", "--steps 3"]),
])
@pytest.mark.parametrize("task", TASKS)
def test_bad_values_name_the_option(task, options, parts):
    with pytest.raises(ConfigError) as error:
        check(task, **options)
    for part in parts:
        assert part in str(error.value)


def test_all_bad_values_are_named():
    with pytest.raises(ConfigError) as error:
        read_short_options({"layers": 0, "lr": -1.0, "width": None, "seed": 1})
    assert [line.split(":")[0] for line in str(error.value).split("\n")] == ["--lr", "--layers"]


def test_options_in_python_have_their_own_names():
    python = OptionSpelling("")
    with pytest.raises(ConfigError, match=r"^batch_tokens: expected"):
        read_short_options({"batch_tokens": 0}, python)
    assert expand_direct({"batch_tokens": 4}, "masked", python)[0].option == "batch_tokens=4"


@pytest.mark.parametrize(("task", "changes", "options", "parts"), [
    ("seq2seq", {"training.schedule.learning_rate": 0.5}, {"lr": 0.1},
     ["--lr 0.1", "--set training.schedule.learning_rate=0.5"]),
    ("seq2seq", {"training.schedule.peak": 0.5}, {"lr": 0.1}, ["--lr 0.1", "training.schedule.learning_rate=0.5"]),
    ("seq2seq", {"model.decoder.layers": 2}, {"layers": 4}, ["--layers 4", "--set model.decoder.layers=2"]),
    ("masked", {"model.width": 64}, {"width": 64}, ["--width 64", "--set model.width=64"]),
    ("language", {"model.stack.dropout": 0.1}, {"dropout": 0.2}, ["--dropout 0.2", "--set model.stack.dropout=0.1"]),
    ("classify", {"training.seed": 1}, {"seed": 2}, ["--seed 2", "--set training.seed=1"]),
])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_option_and_a_change_of_the_same_key(task, changes, options, parts):
    with pytest.raises(ConfigError) as error:
        check(task, None, changes, **options)
    for part in parts:
        assert part in str(error.value)


def test_other_keys_that_the_user_has_set_stay():
    """The heads are set by hand: a width that they divide is right, another one is an error that names the option."""
    heads = {f"model.{part}.heads": 4 for part in ("encoder.mixer", "decoder.mixer", "decoder.cross")}
    tables = catalog.find_recipe("transformer-tiny").tables
    expanded = expanded_keys({"width": 96}, tables, requested={"model": {"encoder": {"mixer": {"heads": 4}}}})
    assert "model.encoder.mixer.heads" not in {one.key for one in expanded}
    check("seq2seq", None, heads, width=100)
    with pytest.raises(ConfigError, match=r"--width 30|--set") as error:
        check("seq2seq", None, heads, width=30)
    assert "30" in str(error.value)


def test_heads_need_to_divide_the_new_width_only():
    """The width of the recipe, 128, is not used."""
    heads = {"model.encoder.mixer.heads": 5}
    check("seq2seq", "transformer-tiny", heads, width=160)
    with pytest.raises(ConfigError, match=r"--set: .*5 does not divide the width, 64"):
        check("seq2seq", "transformer-tiny", heads, width=64)


@pytest.mark.parametrize(("heads", "part"), [(0, "at least 1"), (-3, "at least 1"), ("abc", "whole number")])
def test_wrong_heads_are_named_also_with_a_width(heads, part):
    with pytest.raises(ConfigError, match=rf"--set: .*heads.*{part}"):
        check("seq2seq", "transformer-tiny", {"model.encoder.mixer.heads": heads}, width=160)


def test_options_are_not_blamed_for_a_file(tmp_path):
    (tmp_path / "recipe.toml").write_text('recipe = "transformer-tiny"\n[model.encoder]\ndropout = 3.0\nnonsense = 1\n')
    with pytest.raises(ConfigError) as error:
        check("seq2seq", str(tmp_path / "recipe.toml"), {}, layers=3)
    assert "--layers" not in str(error.value)
    assert all(part in str(error.value) for part in ("recipe.toml:3", "recipe.toml:4", "nonsense"))
    (tmp_path / "recipe.toml").write_text('recipe = "transformer-tiny"\n[model.encoder.mixer]\nheads = 7\n')
    with pytest.raises(ConfigError, match=r"recipe\.toml:3: .*7 does not divide the width, 128"):
        check("seq2seq", str(tmp_path / "recipe.toml"), {}, dropout=0.2)


@pytest.mark.parametrize("length", [0, -3, "abc"])
def test_a_wrong_window_is_not_the_fault_of_the_batch(length):
    with pytest.raises(ConfigError, match=r"--set: .*length"):
        check("language", "gpt-tiny", {"training.windows.length": length}, batch_tokens=512)


def test_a_width_that_no_size_allows_names_the_option():
    with pytest.raises(ConfigError, match=r'^--width 101: .*"direction" in \[model\].* 101'):
        check("seq2seq", "seq2seq-attention", width=101)


def test_an_option_wins_over_a_file(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text('recipe = "transformer-tiny"\n[training]\nseed = 5\n[model]\nwidth = 64\n')
    assert check(recipe=str(file), seed=6)["training"]["seed"] == 6
    tables = check(recipe=str(file), width=128)
    filled = override_expanded(document_of(tables), expand_dependent(
        {"width": 128}, {"model": {**catalog.find_recipe("transformer-tiny").tables["model"], "width": 64}}, "seq2seq",
        tables))
    assert filled.tables["model"]["width"] == 128


STORED = {"task": "seq2seq", "reading": {"DATA": ["nowhere.tsv"], "--validation": [], "--source": None,
                                         "--target": None, "--format": None},
          "config": {"recipe": "transformer-tiny", "training": {"seed": 3},
                     "model": {**catalog.find_recipe("transformer-tiny").tables["model"], "width": 128}}}


def test_a_resumed_training_may_repeat_its_options():
    asked = request(width=128, layers=2, seed=3)
    setup = TASKS["seq2seq"]()
    assert stored_config(STORED, asked, requested_config(asked, setup)).tables == STORED["config"]
    for options, line in (({"width": 256}, "model.width: 128 is stored, 256 is requested"),
                          ({"layers": 3}, "model.encoder.layers: 2 is stored, 3 is requested"),
                          ({"seed": 4}, "training.seed: 3 is stored, 4 is requested")):
        asked = request(**options)
        with pytest.raises(ValueError, match="cannot be resumed") as error:
            stored_config(STORED, asked, requested_config(asked, setup))
        assert line in str(error.value)
