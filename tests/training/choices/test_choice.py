"""Choices: sizes of recipes, grades, and values at dotted keys."""

import pytest

from regard.training.defaults import Default, DeviceProperties, by_threshold, lookup, recipe_with_size, training_length


@pytest.mark.parametrize(("recipe", "size", "name"), [
    ("transformer", "tiny", "transformer-tiny"), ("transformer", "base", "transformer"),
    ("transformer-small", "tiny", "transformer-small"), ("transformer", "huge", "transformer"),
    ("seq2seq", "small", "seq2seq-small"), ("seq2seq-attention", "small", "seq2seq-attention-small"),
    ("unknown", "tiny", "unknown"),
])
def test_a_recipe_in_a_size(recipe, size, name):
    assert recipe_with_size(recipe, size) == name


def test_grades():
    steps = ((10, "few"), (100, "some"))
    assert [by_threshold(number, steps, "many") for number in (0, 9, 10, 99, 100, 10**9)] == [
        "few", "few", "some", "some", "many", "many"]
    assert by_threshold(5, (), "all") == "all"


def test_values_at_dotted_keys():
    tables = {"a": {"b": {"c": 1}, "d": 0}}
    assert (lookup(tables, "a.b.c"), lookup(tables, "a.d"), lookup(tables, "a.b")) == (1, 0, {"c": 1})
    assert (lookup(tables, "a.x"), lookup(tables, "a.d.x"), lookup(tables, "x", 7)) == (None, None, 7)


def test_a_choice_is_three_things():
    assert Default("a.b", 1, "why") == ("a.b", 1, "why")
    assert DeviceProperties("cuda", 1, True).fast
    assert not DeviceProperties("cpu", 1, True).fast


@pytest.mark.parametrize(("batches", "many", "steps"), [
    (0.01, 1, 60), (1.0, 1, 60), (2.5, 1, 150), (0.01, 7, 9), (0.01, 1000, 1)])
def test_an_epoch_has_a_batch_at_least(batches, many, steps):
    made, found = training_length({"gradient_accumulation": many}, 60, batches, DeviceProperties("cpu", 1, False), "why")
    assert (found, [choice.value for choice in made]) == (steps, [60])
    assert training_length({"schedule": {"max_steps": 3}}, 60, batches, DeviceProperties("cpu", 1, False), "why") == ([], 3)
