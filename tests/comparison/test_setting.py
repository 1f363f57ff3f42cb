"""What models of a comparison share, and what only some of them have."""

import pytest

from regard.comparison.settings import QUICK_BUDGET, ROAD, ComparisonBudget, ComparisonSettings, road_steps
from regard.models.build import model_config


@pytest.mark.parametrize("step", road_steps(ROAD), ids=lambda step: step.name)
def test_a_quick_comparison_has_small_models_that_can_be_built(step):
    setting = ComparisonSettings.quick((step,))
    assert setting.recipe(step) == f"{step.name}-tiny"
    changes = setting.changes_of(step, steps=90)
    model = {key.removeprefix("model."): value for key, value in changes.items() if key.startswith("model.")}
    made = model_config(setting.recipe(step), source_vocab_size=300, target_vocab_size=300, **{"share_embeddings": False} if
                        step.name not in ("seq2seq", "seq2seq-attention") else {}, **model)
    assert made.width == 64
    assert made.parameters() < 500_000
    assert (changes["training.schedule.max_steps"], changes["training.validation.every"]) == (90, 30)


def test_what_is_set_wins_and_a_budget_is_kept():
    setting = ComparisonSettings.quick(road_steps(ROAD), changes={"model.width": 32}, budget=ComparisonBudget(parameters=10**6))
    assert setting.changes_of(setting.steps[0])["model.width"] == 32
    assert setting.budget == ComparisonBudget(tokens=QUICK_BUDGET.tokens, parameters=10**6)
    assert ComparisonSettings.quick(road_steps(ROAD), budget=ComparisonBudget(minutes=1.0)).budget == ComparisonBudget(minutes=1.0)
    assert ComparisonSettings.quick(road_steps(ROAD)).budget == QUICK_BUDGET


def test_a_comparison_that_is_not_quick_leaves_everything_to_the_data_but_its_end():
    setting = ComparisonSettings(road_steps(["transformer"]))
    assert setting.recipe(setting.steps[0]) == "transformer"
    assert setting.changes_of(setting.steps[0]) == {"training.validation.patience": 1_000_000}


def test_models_and_seeds_may_be_added_later():
    assert ComparisonSettings(road_steps(["conv"]), seeds=1).identity() == ComparisonSettings(road_steps(ROAD), seeds=5).identity()
    assert ComparisonSettings(road_steps(["conv"]), beams=2).identity() != ComparisonSettings(road_steps(["conv"])).identity()
