"""What a claim is here: a sentence, a measurement that gives numbers, and a judgement that reads nothing but these.

The judgement of other numbers may be the opposite, and tests give it such numbers. It knows none of the claims.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

Numbers = Mapping[str, Any]
"""What was measured: names, numbers and lists, as JSON has them."""
Rows = list[list[str]]


class Verdict(NamedTuple):
    """Whether the numbers bear the claim, and which of them say so."""

    held: bool
    why: str


@dataclass(frozen=True)
class Claim:
    """One claim. `measure()` is sized for two cores and less than two minutes; its arguments make it larger."""

    sentence: str
    measure: Callable[..., Numbers]
    judge: Callable[[Numbers], Verdict]
    shown: Callable[[Numbers], tuple[list[str], Rows]]
    """The header and the rows of a table."""


def middle(values: Sequence[float]) -> float:
    """The median."""
    return float(median(values))


def clearly(better: Sequence[float], worse: Sequence[float]) -> bool:
    """Whether the worst of the ones lies above the best of the others: more than chance between seeds explains."""
    return min(better) > max(worse)


def spread(values: Sequence[float], form: str = ".3f") -> str:
    """The median, and the range where there are several."""
    shown = f"{middle(values):{form}}"
    return shown if len(values) == 1 else f"{shown} [{min(values):{form}}, {max(values):{form}}]"
