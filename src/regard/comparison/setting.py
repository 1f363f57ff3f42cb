"""What a comparison is: which models, how often, how long, and everything that they share.

    Setting(steps(ROAD), seeds=3, budget=Budget.read("tokens:2M"))
    Setting.quick(steps(ROAD))                a small one, for minutes on a CPU

All models are trained with the same settings but for what belongs to one kind of model alone. It knows configs, and
does not train.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from regard.comparison.budget import Budget
from regard.comparison.road import Step
from regard.recipes import catalog
from regard.training.choices.choice import sized, value

SHARED: Mapping[str, Any] = {"training.validation.patience": 1_000_000}
"""Of every comparison: no training ends before its budget does."""
QUICK: Mapping[str, Any] = {
    "tokenizer.kind": "unigram",
    "tokenizer.vocabulary": 2000,
    "tokenizer.sentences": 10_000,
    "data.joint": False,
    "model.width": 64,
    "training.smoothing": 0.0,
    "training.consistency": 0.0,
    "training.average": 0.0,
    "training.batches.tokens": 1200,
    "training.schedule.shape": "linear",
    "training.schedule.peak": 5e-3,
    "training.schedule.hold": 0.4,
    "training.validation.score": "loss",
    "training.checkpoints.every": 10_000,
    "training.checkpoints.keep": 1,
}
"""A short training of small models: a high rate that falls to nothing, and small batches."""
QUICK_BUDGET = Budget(tokens=600_000, parameters=450_000)
WARMUP, JUDGED = 12, 3
"""One in so many steps of a quick training is of its warm-up; and how often it is judged."""
SIDES = ("encoder", "decoder")
INNER = 3
"""How many times as wide as the model a feed-forward part is in a quick comparison."""


@dataclass(frozen=True)
class Setting:
    """A comparison, before anything is trained."""

    steps: tuple[Step, ...]
    seeds: int = 1
    budget: Budget = field(default_factory=Budget)
    changes: Mapping[str, Any] = field(default_factory=dict)
    """What somebody has set, for all models."""
    beams: int = 1
    """Of the search by which they are tested; with one it is greedy."""
    device: str = "auto"
    small: bool = False
    """Whether models and trainings are those of a quick comparison."""

    @staticmethod
    def quick(steps: tuple[Step, ...], **others: Any) -> "Setting":
        """A small one; where no budget is given, tokens are few, and parameters too, as many for each model."""
        made = Setting(steps, small=True, **others)
        if made.budget == Budget():
            return replace(made, budget=QUICK_BUDGET)
        if made.budget.tokens is None and made.budget.minutes is None:
            made = replace(made, budget=replace(made.budget, tokens=QUICK_BUDGET.tokens))
        return made

    def recipe(self, step: Step) -> str:
        """The recipe of a model; of a quick comparison in its smallest size, where no size is named."""
        return sized(step.recipe, "tiny") if self.small else step.recipe

    def changes_of(self, step: Step, steps: int | None = None) -> dict[str, Any]:
        """The config of one model as far as it is not left to the data; `steps` where they are known."""
        made = dict(SHARED)
        if self.small:
            made |= {**QUICK, **_careless(catalog.find(self.recipe(step)).tables["model"])}
        if steps is not None:
            made["training.schedule.steps"] = steps
            if self.small:
                made["training.schedule.warmup"] = max(1, steps // WARMUP)
                made["training.validation.every"] = max(1, -(-steps // JUDGED))
                made["training.report"] = max(1, min(10, steps // 20))
        return made | dict(self.changes)

    def identity(self) -> dict[str, Any]:
        """What two comparisons must share to be in one folder: all but which models there are, and how often."""
        return {"budget": self.budget.plain(), "changes": dict(self.changes), "beams": self.beams, "quick": self.small}


def _careless(model: Mapping[str, Any]) -> dict[str, Any]:
    """What only some models have: nearly all pairs are new, so there is nothing to keep a model from."""
    if model["kind"] == "seq2seq":
        return {"model.dropout": 0.0}
    found: dict[str, Any] = {"model.embedding.dropout": 0.0}
    for side in SIDES:
        found |= {f"model.{side}.dropout": 0.0, f"model.{side}.order": "pre"}  # pre-norm bears a high rate at once
        for part in ("feed_forward", "cross", "mixer"):
            if value(model, f"{side}.{part}") is not None and value(model, f"{side}.{part}.kind",
                                                                    "attention") == "attention":
                found[f"model.{side}.{part}.dropout"] = 0.0
        if value(model, f"{side}.mixer.kind") == "attention":  # it need not learn what a distance is from few pairs
            found[f"model.{side}.mixer.position.kind"] = "rotary"
        if value(model, f"{side}.feed_forward") is not None:
            found[f"model.{side}.feed_forward.inner"] = INNER * QUICK["model.width"]
    return found
