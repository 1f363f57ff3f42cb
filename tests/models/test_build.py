"""Models are built from recipes, files, tables and configs; the recipes by name."""

import re

import pytest
from tiny import ALL, TRANSLATING

import regard
from regard import config, toml
from regard.models import catalog
from regard.models.build import ModelConfig, model_config
from regard.toml import ConfigError

NEEDED = {"encoder-decoder": {"source_vocab_size": 90, "target_vocab_size": 90}, "language": {"vocab_size": 70},
          "seq2seq": {"source_vocab_size": 80, "target_vocab_size": 70}, "masked": {"vocab_size": 60},
          "vision": {"num_labels": 7}, "classifier": {"vocab_size": 60, "num_labels": 3},
          "tagger": {"vocab_size": 60, "num_labels": 3}, "tracks": {}}
RECIPES = [f"{name}-{size}" for name in catalog.recipe_names() for size in catalog.recipe_sizes(name)]


def needed(name):
    """What a recipe does not say, because it follows from the data."""
    return NEEDED[catalog.find_recipe(name).tables["model"]["kind"]]


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_whole(name):
    chosen = model_config(name, **needed(name))
    assert chosen.parameters() > 0
    assert model_config({"model": config.to_tables(chosen)}) == chosen


@pytest.mark.parametrize("name", [name for name in RECIPES if name.endswith("tiny")])
def test_the_smallest_of_each_is_built(name):
    model = regard.build(name, **needed(name))
    chosen = model_config(name, **needed(name))
    stored = [buffer for key, buffer in model.named_buffers() if key in model.state_dict()]
    assert chosen.parameters() == sum(tensor.numel() for tensor in (*model.parameters(), *stored))


@pytest.mark.parametrize("chosen", ALL.values(), ids=ALL)
def test_configs_come_back_from_their_text(chosen):
    text = config.to_toml({"model": chosen})
    assert config.read_config(ModelConfig, toml.parse_document(text, "config.toml"), ("model",)) == chosen


def test_a_file_is_read(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(config.to_toml({"model": TRANSLATING["attention"], "note": 1}), encoding="utf-8")
    assert model_config(path) == model_config(str(path)) == TRANSLATING["attention"]
    assert model_config(path, **{"encoder.layers": 5}).encoder.layers == 5
    path.write_text('[model]\nkind = "languag"\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r'mine\.toml:2: .*"languag".*did you mean "language"'):
        regard.build(path)


def test_objects_and_their_tables_are_taken():
    chosen = TRANSLATING["attention"]
    assert model_config(chosen) is chosen
    assert model_config(chosen, width=16).width == 16
    assert model_config(config.to_tables(chosen)) == chosen


@pytest.mark.parametrize(("recipe", "changes", "key"), [
    ("vit-tiny", {"width": 129, "stack.mixer.heads": 3, "positions": {"kind": "formal", "max_length": 9}}, "positions"),
    ("vit-tiny", {"stack.mixer.position": {"kind": "bucketed", "num_buckets": 5}}, "stack.mixer.position.num_buckets"),
    ("vit-tiny", {"stack.mixer.position": {"kind": "bucketed", "max_distance": 8}},
     "stack.mixer.position.max_distance"),
    ("gpt-tiny", {"stack.mixer.position": {"kind": "bucketed", "max_distance": 16}},
     "stack.mixer.position.max_distance"),
    ("gpt-tiny", {"stack.mixer.backend": "sdpa", "stack.mixer.normalize": "relu"}, "stack.mixer.backend"),
    ("gpt-tiny", {"stack.mixer.backend": "flex", "stack.mixer.score": "additive"}, "stack.mixer.backend"),
])
def test_parts_that_cannot_be_made_or_run_are_conflicts(recipe, changes, key):
    needed = {"num_labels": 2} if recipe.startswith("vit") else {"vocab_size": 9}
    with pytest.raises(ConfigError) as error:
        model_config(recipe, **needed, **changes)
    assert [".".join(map(str, problem.path)) for problem in error.value.found] == [f"model.{key}"]


@pytest.mark.parametrize("changes", [
    {"stack.mixer.position": {"kind": "bucketed", "num_buckets": 5}},
    {"stack.mixer.position": {"kind": "bucketed", "max_distance": 17}},
    {"stack.mixer.backend": "sdpa", "stack.mixer.score": "bilinear"},
], ids=str)
def test_what_only_looks_like_a_conflict_is_built(changes):
    model = regard.build("gpt-tiny", vocab_size=9, **changes)
    assert model(regard.Tokens.of([[1, 2, 3]])).shape == (1, 3, 9)


@pytest.mark.parametrize(("given", "changes", "parts"), [
    ("transformr", {}, ["one of attention, bert, classifier, conv", 'Did you mean "transformer"?']),
    ("transformer-huge", {}, ["tiny, small, medium, big, student, base", "transformer-huge"]),
    ("seq2seq-attention-big", {"widht": 3}, ['unknown key "widht"', 'did you mean "width"?', "source_vocab_size"]),
    ("gpt", {"vocab_size": 10**9}, ["parameters", "GiB", "memory"]),
    ("gpt", {"vocab_size": 9, "stack.layers": 10**12}, ["GiB"]),
    ({"modle": {}}, {}, ['missing table "model"']),
    (3, {}, ["the name of a recipe", "but is an int"]),
])
def test_what_is_wrong_is_said_before_anything_is_built(given, changes, parts):
    with pytest.raises(ValueError, match=r"\w") as error:
        regard.build(given, **changes)
    for part in parts:
        assert part in str(error.value)


ROAD = ("rnn", "lstm", "gru", "mut1", "mut2", "mut3", "seq2seq", "seq2seq-attention", "attention", "conv",
        "transformer", "gpt", "llama", "bert", "vit")


def test_the_road_is_there():
    assert set(ROAD) <= set(catalog.recipe_names())
    for name in ROAD:
        assert {"tiny", "small", "base", "big"} <= set(catalog.recipe_sizes(name))


def test_a_size_changes_what_it_names_and_nothing_else():
    base, tiny = (catalog.find_recipe(name).tables["model"] for name in ("transformer", "transformer-tiny"))
    assert (base["width"], tiny["width"]) == (512, 128)
    assert (base["encoder"]["mixer"]["heads"], tiny["encoder"]["mixer"]["heads"]) == (8, 4)
    assert base["encoder"]["norm_position"] == tiny["encoder"]["norm_position"] == "post"
    assert catalog.find_recipe("transformer-base").tables == catalog.find_recipe("transformer").tables
    assert "sizes" not in catalog.find_recipe("transformer-tiny").tables


def test_a_dash_may_be_part_of_a_name():
    assert catalog.find_recipe("seq2seq-attention").tables["model"]["attention"]
    assert catalog.find_recipe("seq2seq-attention-tiny").tables["model"]["width"] == 128
    assert "attention" not in catalog.find_recipe("seq2seq-tiny").tables["model"]


def test_files_say_which_line_is_wrong():
    assert catalog.find_recipe("transformer").line(("model", "width")) == 6
    assert catalog.find_recipe("transformer-tiny").line(("model", "width")) is None  # it is another's


@pytest.mark.parametrize("name", ["", "-tiny", "transformer-", "../transformer"])
def test_what_is_no_recipe(name):
    with pytest.raises(ValueError, match=f'`recipe` must be .*, but is "{re.escape(name)}" instead'):
        catalog.find_recipe(name)
