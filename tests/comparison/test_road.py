"""The road: every step is a recipe that translates, and what is none is refused."""

import pytest

from regard.comparison.settings import DESCRIPTIONS, ROAD, road_steps


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
