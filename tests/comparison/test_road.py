"""The road: every step is a recipe that translates, and what is none is refused."""

import pytest

from regard.comparison.road import ABOUT, ROAD, steps


def test_every_step_of_the_road_is_a_recipe_and_is_told_of():
    found = steps(ROAD)
    assert [step.name for step in found] == list(ROAD)
    assert all(step.about == ABOUT[step.name] for step in found)
    assert steps(["transformer-small"])[0].about == ABOUT["transformer"]


@pytest.mark.parametrize(("names", "match"), [((), "at least one"), (("gpt",), "translate"),
                                              (("conv", "conv"), "twice"), (("tranformer",), "transformer")])
def test_what_cannot_be_compared_is_refused(names, match):
    with pytest.raises(ValueError, match=match):
        steps(names)
