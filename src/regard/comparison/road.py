"""The road from the recurrent network to the Transformer, as recipes that translate; each step adds one idea.

    steps(ROAD)                      all of them, in order
    steps(("seq2seq", "conv-small")) some recipes, in a size or in the one that fits the data

It knows names and what is said of them. It does not train anything, and does not know which step is better.
"""

from collections.abc import Sequence
from typing import NamedTuple

from regard import checks
from regard.recipes import catalog
from regard.training.plans.translation import TranslationPlan

ROAD = ("seq2seq", "seq2seq-attention", "attention", "conv", "transformer")
ABOUT = {
    "seq2seq": "recurrence, one context vector",
    "seq2seq-attention": "recurrence, and attention to the source",
    "attention": "attention alone: no recurrence, one head, no feed-forward part",
    "conv": "convolution, and attention to the source",
    "transformer": "self-attention in many heads, with feed-forward parts",
}


class Step(NamedTuple):
    """One model of a comparison."""

    name: str
    recipe: str
    about: str


def steps(names: Sequence[str]) -> tuple[Step, ...]:
    """The steps of these recipes; a ValueError names one that is unknown, cannot translate or is there twice."""
    if not names:
        raise checks.wrong("models", "at least one recipe, such as transformer", "none")
    found = list[Step]()
    for name in names:
        kind = catalog.find(name).tables["model"]["kind"]
        if kind not in TranslationPlan.kinds:
            able = [known for known in catalog.names()
                    if catalog.find(known).tables["model"]["kind"] in TranslationPlan.kinds]
            raise checks.wrong("models", f"recipes that translate, such as {', '.join(able)}", f'"{name}"')
        if name in [step.name for step in found]:
            raise checks.wrong("models", "different recipes", f'"{name}" twice')
        found.append(Step(name, name, ABOUT.get(name, ABOUT.get(name.rpartition("-")[0], ""))))
    return tuple(found)
