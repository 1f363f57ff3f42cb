"""Zero configuration of language models: from the length of a text and the device."""

import pytest
import torch
from planned import CPU, GPU, config

from regard.models import catalog
from regard.models.build import build
from regard.training import defaults as choices
from regard.training.defaults import DeviceProperties, lookup

TOKENS = (10, 500, 1_000_000, 30_000_000, 3_000_000_000)
DEVICES = {"cpu": CPU, "gpu": GPU}
RECIPES = ("gpt", "rnn", "lstm", "gru", "mut1", "mut2", "mut3")


def made(tokens, device=CPU, recipe=None, training=None):
    """The config, and all choices."""
    named = choices.language_recipe(tokens, device, recipe)
    table, asked = catalog.find_recipe(named.value).tables["model"], training or {}
    found = [*choices.language_tokenizer(tokens, {}), *choices.language_model(tokens, table),
             *choices.language_training(tokens, table, device, asked)]
    given = {"model": {"vocab_size": 100}, "training": asked}
    return config(named.value, found, given), {choice.key: choice for choice in found}, named


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_can_be_built_for_every_length(recipe, name):
    sizes = []
    for tokens in TOKENS:
        tables, found, named = made(tokens, DEVICES[name], recipe)
        with torch.device("meta"):
            network = build(tables["model"])
        sizes.append(sum(one.numel() for one in network.parameters()))
        assert all(choice.reason for choice in (*found.values(), named))
        windows = tables["training"].windows
        assert windows.order == ("shuffled" if recipe == "gpt" else "continuous")
        assert windows.batch_size >= 1
        assert windows.length >= 1
        assert windows.batch_size * windows.length <= max(8, tokens) or tokens < 64
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


def test_a_short_text_is_read_by_characters():
    few, many = ({choice.key: choice.value for choice in choices.language_tokenizer(count, {})} for count in (10**6, 10**8))
    assert few == {"tokenizer.kind": "characters"}
    assert (many["tokenizer.kind"], many["tokenizer.vocab_size"] > 1000) == ("unigram", True)
    asked = {choice.key: choice.value for choice in choices.language_tokenizer(10**6, {"kind": "bpe"})}
    assert asked["tokenizer.kind"] == "bpe"
    assert "tokenizer.vocab_size" in asked
    assert [choice.key for choice in choices.language_tokenizer(10**8, {"kind": "bytes"})] == ["tokenizer.kind"]


def test_the_less_there_is_the_more_care():
    dropouts = [made(tokens, GPU)[0]["model"].stack.dropout for tokens in TOKENS]
    assert dropouts == sorted(dropouts, reverse=True)
    epochs = [made(tokens, GPU)[0]["training"].epochs for tokens in TOKENS]
    assert epochs == sorted(epochs, reverse=True)


def test_what_is_set_is_followed():
    steps = made(10**6, GPU)[0]["training"]
    half = made(10**6, GPU, training={"gradient_accumulation": 2})[0]["training"]
    assert half.validation.every == pytest.approx(steps.validation.every / 2, rel=0.1)
    four = made(10**6, DeviceProperties("cuda", 2**36, True, count=4))[0]["training"]
    assert four.validation.every == pytest.approx(steps.validation.every / 4, rel=0.1)
    tables, found, _ = made(10**6, GPU, training={"schedule": {"max_steps": 40}, "windows": {"length": 10}})
    assert "training.epochs" not in found
    assert lookup({"training": found}, "training.epochs") is None
    assert (tables["training"].steps, tables["training"].windows.length) == (40, 10)
    assert tables["training"].schedule.warmup_steps <= 10
    assert tables["training"].validation.every <= 4


@pytest.mark.parametrize(("mixer", "positions", "order"), [
    ({"kind": "recurrence", "cell": "lstm"}, None, "continuous"), ({"kind": "lstmn"}, None, "shuffled"),
    ({"kind": "recurrence", "cell": "lstm"}, {"kind": "sinusoidal"}, "shuffled"),
    ({"kind": "attention"}, None, "shuffled"), ({"kind": "convolution"}, None, "shuffled")])
def test_windows_go_on_where_the_model_does(mixer, positions, order):
    """A memory that is told of is one that is carried."""
    table = {"stack": {"mixer": mixer}, "embedding": {} if positions is None else {"positions": positions}}
    found = {choice.key: choice for choice in choices.language_training(10**5, table, CPU, {})}["training.windows.order"]
    assert found.value == order
    assert ("carried" in found.reason) == (order == "continuous")
