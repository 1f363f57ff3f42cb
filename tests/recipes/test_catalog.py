"""The recipes by name: the whole road is there, and sizes differ from what is written."""

import pytest

from regard.models import catalog

ROAD = ("rnn", "lstm", "gru", "mut1", "mut2", "mut3", "seq2seq", "seq2seq-attention", "attention", "conv",
        "transformer", "gpt", "bert", "vit")


def test_the_road_is_there():
    assert set(ROAD) <= set(catalog.recipe_names())
    for name in ROAD:
        assert {"tiny", "small", "base", "big"} <= set(catalog.recipe_sizes(name))


def test_a_size_changes_what_it_names_and_nothing_else():
    base, tiny = catalog.find_recipe("transformer").tables["model"], catalog.find_recipe("transformer-tiny").tables["model"]
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
    with pytest.raises(ValueError, match="`recipe` must be a recipe"):
        catalog.find_recipe(name)
