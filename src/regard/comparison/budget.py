"""What is the same for all models of a comparison: so many tokens to learn from, so many minutes, or parameters.

    Budget.read("tokens:2M")                  each learns from 2,000,000 target tokens, in the size of its recipe
    Budget.read("minutes:3")                  each trains for about three minutes, as a short trial foretells
    Budget.read("parameters:1M")              each is made so wide that it has about a million parameters
    Budget.read("tokens:2M,parameters:1M")    both

Where neither tokens nor minutes are named, each model learns from as many tokens as a training of its own would. It
knows numbers and configs of models; it does not train.
"""

import math
import re
from dataclasses import dataclass
from typing import Any

from regard import checks
from regard.models.build import ModelConfig, model_config
from regard.toml.document import ConfigError

KINDS = ("tokens", "minutes", "parameters")
FACTORS = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}
WIDTHS = range(16, 4097, 16)
"""That are tried to match parameters."""


@dataclass(frozen=True)
class Budget:
    """What each model is given; None where that is not bounded."""

    tokens: int | None = None
    """Target tokens, those seen more than once counted each time."""
    minutes: float | None = None
    parameters: int | None = None

    @staticmethod
    def read(text: str) -> "Budget":
        """From KIND:AMOUNT, or two of them with a comma between."""
        expected = "KIND:AMOUNT with tokens, minutes or parameters, such as tokens:2M, minutes:3 or " \
                   "tokens:2M,parameters:1M"
        found: dict[str, float] = {}
        for part in text.split(","):
            match = re.fullmatch(r"\s*([a-z]+)\s*[:=]\s*([0-9]+(?:\.[0-9]+)?)\s*([kmg]?)\s*", part.lower())
            if match is None or match[1] not in KINDS or match[1] in found:
                raise checks.wrong("budget", expected, repr(text))
            found[match[1]] = float(match[2]) * FACTORS[match[3]]
            if not found[match[1]] > 0:
                raise checks.wrong("budget", "more than nothing", repr(text))
        if "tokens" in found and "minutes" in found:
            raise checks.wrong("budget", "tokens or minutes, not both", repr(text))
        whole = {kind: max(1, round(found[kind])) for kind in ("tokens", "parameters") if kind in found}
        return Budget(minutes=found.get("minutes"), **whole)

    def said(self) -> str:
        """What is the same for all, in words."""
        parts = [f"{self.tokens:,} target tokens"] if self.tokens is not None else []
        parts += [f"about {self.minutes:g} minutes of training"] if self.minutes is not None else []
        parts += [f"about {self.parameters:,} parameters"] if self.parameters is not None else []
        return " and ".join(parts) or "as many target tokens as a training of its own would have"

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"tokens": self.tokens, "minutes": self.minutes, "parameters": self.parameters}


def steps_of(amount: float, each: float) -> int:
    """So many steps that each of `each` comes to the amount, at least one."""
    return max(1, math.ceil(amount / max(each, 1e-9)))


def matched(given: ModelConfig, parameters: int) -> dict[str, Any]:
    """The changes of a config, as keys of the whole, after which it has about so many parameters: another width.

    Feed-forward parts keep their share of the width.
    """
    width = given.width
    best: tuple[float, dict[str, Any]] | None = None
    for wide in WIDTHS:
        changes = _widened(given, wide, width)
        try:
            made = model_config(given, **changes)
        except ConfigError:  # heads that do not divide this width
            continue
        off = abs(math.log(made.parameters() / parameters))
        if best is None or off < best[0]:
            best = off, changes
    if best is None:
        raise checks.wrong("budget", f"parameters that a model of some width from {WIDTHS[0]} to {WIDTHS[-1]} has",
                           f"{parameters:,}")
    return {f"model.{key}": value for key, value in best[1].items()}


def _widened(given: ModelConfig, wide: int, before: int) -> dict[str, Any]:
    changes: dict[str, Any] = {"width": wide}
    for side in ("encoder", "decoder"):
        part = getattr(getattr(given, side, None), "feed_forward", None)
        if part is not None and part.inner is not None:
            changes[f"{side}.feed_forward.inner"] = max(1, round(part.inner * wide / before))
    return changes
