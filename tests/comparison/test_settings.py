"""The road: every step is a recipe that translates, and what is none is refused."""

import pytest

from regard.comparison.settings import (
    DESCRIPTIONS,
    QUICK_BUDGET,
    ROAD,
    ComparisonBudget,
    ComparisonSettings,
    match_parameters,
    road_steps,
    steps_for_amount,
)
from regard.models.build import model_config


def test_every_step_of_the_road_is_a_recipe_and_is_told_of():
    found = road_steps(ROAD)
    assert [step.name for step in found] == list(ROAD)
    assert all(step.about == DESCRIPTIONS[step.name] for step in found)
    assert road_steps(["transformer-small"])[0].about == DESCRIPTIONS["transformer"]


@pytest.mark.parametrize(("names", "match"), [((), "at least one"), (("gpt",), "translate"),
                                              (("conv", "conv"), "twice"), (("tranformer",), "transformer")])
def test_what_cannot_be_compared_is_refused(names, match):
    with pytest.raises(ValueError, match=match):
        road_steps(names)


SIZES = {"source_vocab_size": 500, "target_vocab_size": 500}


@pytest.mark.parametrize(("text", "want"), [
    ("tokens:2M", ComparisonBudget(tokens=2_000_000)), ("tokens:1500", ComparisonBudget(tokens=1500)),
    ("minutes:0.5", ComparisonBudget(minutes=0.5)),
    ("parameters:1.5k", ComparisonBudget(parameters=1500)),
    ("tokens=3k, parameters:1m", ComparisonBudget(tokens=3000, parameters=10**6)),
])
def test_a_budget_is_read(text, want):
    assert ComparisonBudget.read(text) == want


@pytest.mark.parametrize("text", ["", "tokens", "2M", "token:2M", "tokens:0", "tokens:-1", "tokens:1,minutes:2",
                                  "tokens:1,tokens:2", "tokens:nan", "tokens:1e9", "minutes:"])
def test_what_is_no_budget_is_refused(text):
    with pytest.raises(ValueError, match="`budget` must be"):
        ComparisonBudget.read(text)


def test_a_budget_is_said_in_words():
    budget = ComparisonBudget.read("tokens:2M,parameters:1M")
    assert budget.describe() == "2,000,000 target tokens and about 1,000,000 parameters"
    assert "3 minutes" in ComparisonBudget(minutes=3.0).describe()
    assert "by itself" in ComparisonBudget().describe()


def test_steps_come_to_the_amount():
    assert (steps_for_amount(100, 10), steps_for_amount(101, 10), steps_for_amount(0.5, 10)) == (10, 11, 1)


@pytest.mark.parametrize("recipe", ["seq2seq", "seq2seq-attention", "attention", "conv", "transformer"])
def test_models_are_made_equally_large(recipe):
    given = model_config(recipe, **SIZES)
    changes = {key.removeprefix("model."): value for key, value in match_parameters(given, 3_000_000).items()}
    made = model_config(given, **changes)
    assert abs(made.parameters() / 3_000_000 - 1) < 0.12
    part = getattr(getattr(given, "encoder", None), "feed_forward", None)
    if part is not None:
        assert made.encoder.feed_forward.ffn_width / made.width == pytest.approx(part.ffn_width / given.width, rel=0.01)


@pytest.mark.parametrize("step", road_steps(ROAD), ids=lambda step: step.name)
def test_a_quick_comparison_has_small_models_that_can_be_built(step):
    setting = ComparisonSettings.quick((step,))
    assert setting.recipe(step) == f"{step.name}-tiny"
    changes = setting.changes_of(step, steps=90)
    model = {key.removeprefix("model."): value for key, value in changes.items() if key.startswith("model.")}
    made = model_config(setting.recipe(step), source_vocab_size=300, target_vocab_size=300,
                        **{"share_embeddings": False} if
                        step.name not in ("seq2seq", "seq2seq-attention") else {}, **model)
    assert made.width == 64
    assert made.parameters() < 500_000
    assert (changes["training.schedule.max_steps"], changes["training.validation.every"]) == (90, 30)


def test_what_is_set_wins_and_a_budget_is_kept():
    setting = ComparisonSettings.quick(road_steps(ROAD), changes={"model.width": 32},
                                       budget=ComparisonBudget(parameters=10**6))
    assert setting.changes_of(setting.steps[0])["model.width"] == 32
    assert setting.budget == ComparisonBudget(tokens=QUICK_BUDGET.tokens, parameters=10**6)
    assert ComparisonSettings.quick(road_steps(ROAD),
                                    budget=ComparisonBudget(minutes=1.0)).budget == ComparisonBudget(minutes=1.0)
    assert ComparisonSettings.quick(road_steps(ROAD)).budget == QUICK_BUDGET


def test_a_comparison_that_is_not_quick_leaves_everything_to_the_data_but_its_end():
    setting = ComparisonSettings(road_steps(["transformer"]))
    assert setting.recipe(setting.steps[0]) == "transformer"
    assert setting.changes_of(setting.steps[0]) == {"training.validation.patience": 1_000_000}


def test_models_and_seeds_may_be_added_later():
    assert ComparisonSettings(road_steps(["conv"]), seeds=1).identity() == ComparisonSettings(road_steps(ROAD),
                                                                                              seeds=5).identity()
    assert ComparisonSettings(road_steps(["conv"]),
                              beams=2).identity() != ComparisonSettings(road_steps(["conv"])).identity()
