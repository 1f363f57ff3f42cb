"""What a comparison trains: which recipes, how often, with which budget, and the settings that all models share.

    road_steps(ROAD)                                    all steps of the road, in order
    ComparisonSettings(road_steps(ROAD), seeds=3, budget=ComparisonBudget.read("tokens:2M"))
    ComparisonSettings.quick(road_steps(ROAD))          a small comparison, minutes on a CPU

    tokens:2M                  each model trains on 2,000,000 target tokens, in the size of its recipe
    minutes:3                  each model trains for about three minutes, as a short trial predicts
    parameters:1M              the width of each model is chosen so that it has about a million parameters
    tokens:2M,parameters:1M    both

Without tokens or minutes, each model trains on as many tokens as it would by itself. All models have the same settings,
except those that belong to one kind of model. This module does not train.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from regard import checks
from regard.models import catalog
from regard.models.build import ModelConfig, model_config
from regard.toml import ConfigError
from regard.training.defaults import lookup, recipe_with_size
from regard.training.tasks.translation import TranslationSetup

TAGGERS = ("tagger-lstm", "tagger-conv", "tagger")
"""The three ways to label tokens: recurrence, convolution, self-attention."""
ROAD = ("seq2seq", "seq2seq-attention", "attention", "conv", "transformer")
DESCRIPTIONS = {
    "seq2seq": "recurrence, one context vector",
    "seq2seq-attention": "recurrence, and attention to the source",
    "attention": "attention alone: no recurrence, one head, no feed-forward part",
    "conv": "convolution, and attention to the source",
    "transformer": "self-attention in many heads, with feed-forward parts",
    "tagger": "self-attention, after convolutions over the neighbours",
    "tagger-lstm": "recurrence in both directions, after convolutions over the neighbours",
    "tagger-conv": "convolutions whose reach grows from layer to layer",
}


class RoadStep(NamedTuple):
    """One model of a comparison."""

    name: str
    recipe: str
    about: str


def road_steps(names: Sequence[str], kinds: Sequence[str] = TranslationSetup.model_kinds) -> tuple[RoadStep, ...]:
    """The steps of these recipes; a ValueError names one that is unknown, of another kind or occurs twice.

    Args:
        kinds: the kinds of models that can be compared; by default those that translate.
    """
    if not names:
        raise checks.wrong("models", "at least one recipe, such as transformer", "none")
    found = list[RoadStep]()
    for name in names:
        kind = catalog.find_recipe(name).tables["model"]["kind"]
        if kind not in kinds:
            able = [known for known in catalog.recipe_names()
                    if catalog.find_recipe(known).tables["model"]["kind"] in kinds]
            what = "translate" if kinds == TranslationSetup.model_kinds else "label tokens"
            raise checks.wrong("models", f"recipes that {what}, such as {', '.join(able)}", f'"{name}"')
        if name in [step.name for step in found]:
            raise checks.wrong("models", "different recipes", f'"{name}" twice')
        found.append(RoadStep(name, name, DESCRIPTIONS.get(name, DESCRIPTIONS.get(name.rpartition("-")[0], ""))))
    return tuple(found)


BUDGET_KINDS = ("tokens", "minutes", "parameters")
UNIT_FACTORS = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}
TRIED_WIDTHS = range(16, 4097, 16)
"""Model widths that are tried to match a number of parameters."""


@dataclass(frozen=True)
class ComparisonBudget:
    """The budget of each model; None means unlimited."""

    tokens: int | None = None
    """Target tokens; those seen more than once count each time."""
    minutes: float | None = None
    parameters: int | None = None

    @staticmethod
    def read(text: str) -> "ComparisonBudget":
        """Parse KIND:AMOUNT, or two of them separated by a comma."""
        expected = "KIND:AMOUNT with tokens, minutes or parameters, such as tokens:2M, minutes:3 or " \
                   "tokens:2M,parameters:1M"
        found: dict[str, float] = {}
        for part in text.split(","):
            match = re.fullmatch(r"\s*([a-z]+)\s*[:=]\s*([0-9]+(?:\.[0-9]+)?)\s*([kmg]?)\s*", part.lower())
            if match is None or match[1] not in BUDGET_KINDS or match[1] in found:
                raise checks.wrong("budget", expected, repr(text))
            found[match[1]] = float(match[2]) * UNIT_FACTORS[match[3]]
            if not found[match[1]] > 0:
                raise checks.wrong("budget", "an amount above 0", repr(text))
        if "tokens" in found and "minutes" in found:
            raise checks.wrong("budget", "tokens or minutes, not both", repr(text))
        whole = {kind: max(1, round(found[kind])) for kind in ("tokens", "parameters") if kind in found}
        return ComparisonBudget(minutes=found.get("minutes"), **whole)

    def describe(self) -> str:
        """The budget as a phrase for people."""
        parts = [f"{self.tokens:,} target tokens"] if self.tokens is not None else []
        parts += [f"about {self.minutes:g} minutes of training"] if self.minutes is not None else []
        parts += [f"about {self.parameters:,} parameters"] if self.parameters is not None else []
        return " and ".join(parts) or "as many target tokens as each would train on by itself"

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"tokens": self.tokens, "minutes": self.minutes, "parameters": self.parameters}


def steps_for_amount(amount: float, each: float) -> int:
    """The number of steps of size `each` that reach the amount, at least one."""
    return max(1, math.ceil(amount / max(each, 1e-9)))


def match_parameters(given: ModelConfig, parameters: int) -> dict[str, Any]:
    """Config changes (keys from the top) to another width with about this number of parameters.

    The ratio of feed-forward width to model width is kept.
    """
    width = given.width
    best: tuple[float, dict[str, Any]] | None = None
    for wide in TRIED_WIDTHS:
        changes = _scale_width(given, wide, width)
        try:
            made = model_config(given, **changes)
        except ConfigError:  # heads that do not divide this width
            continue
        off = abs(math.log(made.parameters() / parameters))
        if best is None or off < best[0]:
            best = off, changes
    if best is None:
        raise checks.wrong("budget",
                           f"a number of parameters that some width from {TRIED_WIDTHS[0]} to {TRIED_WIDTHS[-1]} gives",
                           f"{parameters:,}")
    return {f"model.{key}": value for key, value in best[1].items()}


def _scale_width(given: ModelConfig, wide: int, before: int) -> dict[str, Any]:
    changes: dict[str, Any] = {"width": wide}
    for side in ("encoder", "decoder", "front", "stack"):
        for name in ("feed_forward", "channel_mix"):
            part = getattr(getattr(given, side, None), name, None)
            if part is not None and part.ffn_width is not None:
                changes[f"{side}.{name}.ffn_width"] = max(1, round(part.ffn_width * wide / before))
    return changes


SHARED_SETTINGS: Mapping[str, Any] = {"training.validation.patience": 1_000_000}
"""Settings of every comparison: no training stops before its budget is used."""
QUICK_SETTINGS: Mapping[str, Any] = {
    "tokenizer.kind": "unigram",
    "tokenizer.vocab_size": 2000,
    "tokenizer.input_sentence_size": 10_000,
    "data.joint_tokenizer": False,
    "model.width": 64,
    "training.label_smoothing": 0.0,
    "training.rdrop": 0.0,
    "training.ema_decay": 0.0,
    "training.batches.max_tokens": 1200,
    "training.schedule.shape": "linear",
    "training.schedule.learning_rate": 5e-3,
    "training.schedule.constant_fraction": 0.4,
    "training.validation.metric": "loss",
    "training.checkpoints.every": 10_000,
    "training.checkpoints.keep": 1,
}
"""Settings of a short training of small models: a high learning rate that decays to 0, and small batches."""
QUICK_BUDGET = ComparisonBudget(tokens=600_000, parameters=450_000)
QUICK_LABEL_BUDGET = ComparisonBudget(tokens=400_000, parameters=450_000)
QUICK_WARMUP, QUICK_VALIDATIONS = 12, 3
"""A quick training warms up for one in 12 steps, and validates 3 times."""
SIDES = ("encoder", "decoder")
QUICK_FFN_FACTOR = 3
"""Feed-forward width as a multiple of the model width in a quick comparison."""


@dataclass(frozen=True)
class ComparisonSettings:
    """What a comparison trains and how."""

    steps: tuple[RoadStep, ...]
    seeds: int = 1
    budget: ComparisonBudget = field(default_factory=ComparisonBudget)
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Config changes by the user, for all models."""
    beams: int = 1
    """Beam size of the test; 1 is greedy search."""
    device: str = "auto"
    small: bool = False
    """Whether this is a quick comparison."""
    task: str = "seq2seq"
    """The training task: "seq2seq", or "label"."""

    @staticmethod
    def quick(steps: tuple[RoadStep, ...], **others: Any) -> "ComparisonSettings":
        """A quick comparison; by default with few tokens and the same small number of parameters for each model."""
        made = ComparisonSettings(steps, small=True, **others)
        quick = QUICK_BUDGET if made.task == "seq2seq" else QUICK_LABEL_BUDGET
        if made.budget == ComparisonBudget():
            return replace(made, budget=quick)
        if made.budget.tokens is None and made.budget.minutes is None:
            made = replace(made, budget=replace(made.budget, tokens=quick.tokens))
        return made

    def recipe(self, step: RoadStep) -> str:
        """The recipe of a model; in a quick comparison its smallest size, unless a size is named."""
        return recipe_with_size(step.recipe, "tiny") if self.small else step.recipe

    def changes_of(self, step: RoadStep, steps: int | None = None) -> dict[str, Any]:
        """Config changes for one model; `steps` if they are known."""
        made = dict(SHARED_SETTINGS)
        if self.small and self.task == "seq2seq":
            made |= {**QUICK_SETTINGS, **_quick_model_settings(catalog.find_recipe(self.recipe(step)).tables["model"])}
        if steps is not None:
            made["training.schedule.max_steps"] = steps
            if self.small:
                made["training.schedule.warmup_steps"] = max(1, steps // QUICK_WARMUP)
                made["training.validation.every"] = max(1, -(-steps // QUICK_VALIDATIONS))
                made["training.log_every"] = max(1, min(10, steps // 20))
        return made | dict(self.changes)

    def identity(self) -> dict[str, Any]:
        """What a resumed comparison must share with the stored one: all but the models and the number of seeds."""
        return {"budget": self.budget.to_json(), "changes": dict(self.changes), "beams": self.beams,
                "quick": self.small, **({} if self.task == "seq2seq" else {"task": self.task})}


def _quick_model_settings(model: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a quick training that only some models have: without dropout, because few pairs are seen twice."""
    if model["kind"] == "seq2seq":
        return {"model.dropout": 0.0}
    found: dict[str, Any] = {"model.embedding.dropout": 0.0}
    for side in SIDES:
        found |= {f"model.{side}.dropout": 0.0,
                  f"model.{side}.norm_position": "pre"}  # pre-norm is stable at a high learning rate
        for part in ("feed_forward", "cross", "mixer"):
            if lookup(model, f"{side}.{part}") is not None and lookup(model, f"{side}.{part}.kind",
                                                                      "attention") == "attention":
                found[f"model.{side}.{part}.dropout"] = 0.0
        if lookup(model, f"{side}.mixer.kind") == "attention":  # few pairs are not enough to learn distances
            found[f"model.{side}.mixer.position.kind"] = "rotary"
        for part in ("feed_forward", "channel_mix"):
            if lookup(model, f"{side}.{part}") is not None:
                found[f"model.{side}.{part}.ffn_width"] = QUICK_FFN_FACTOR * QUICK_SETTINGS["model.width"]
    return found
