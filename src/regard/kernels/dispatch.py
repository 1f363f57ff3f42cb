"""Several backends for one operation: which one runs, and why.

Attention and recurrence each have a table of backends. A backend has four functions: `refusal` (why it cannot do the
work), `drawback` (why it should not), `detail` and `run`. The first backend of the table with neither a refusal nor a
drawback runs; the last one of a table never has either. A backend that the caller names runs, or is an error: another
backend never takes its place. This module does not know what the operation is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from regard import checks

WorkIn = TypeVar("WorkIn", contravariant=True)
WorkOut = TypeVar("WorkOut", covariant=True)
Work = TypeVar("Work")
Output = TypeVar("Output")


class Backend(Protocol[WorkIn, WorkOut]):
    """One way to do the work."""

    def refusal(self, problem: WorkIn, /) -> str | None:
        """Why it cannot do the work; None when it can."""

    def drawback(self, problem: WorkIn, /) -> str | None:
        """Why it, able to do the work, should not be chosen; None when it should."""

    def detail(self, problem: WorkIn, /) -> str:
        """How it computes, in a few words."""

    def run(self, problem: WorkIn, /) -> WorkOut:
        """Do the work."""


@dataclass(frozen=True)
class Explanation:
    """Which backend runs, and why each preferred one does not."""

    backend: str
    reasons: dict[str, str]
    detail: str

    def __str__(self) -> str:
        others = [f"{name} does not run: {reason}." for name, reason in self.reasons.items()]
        return "\n".join([f"{self.backend} runs: {self.detail}.", *others])


def choose_backend(table: Mapping[str, Backend[Work, Output]], problem: Work,
                   name: str | None) -> Backend[Work, Output]:
    """The backend that runs this problem; a ValueError where the named one cannot."""
    if name is not None:
        chosen = checks.pick("backend", name, table)
        reason = chosen.refusal(problem)
        if reason is not None:
            able = ", ".join(f'"{other}"' for other, backend in table.items() if backend.refusal(problem) is None)
            raise checks.wrong("backend", f"one that supports this call ({able})", f'"{name}"', f"Reason: {reason}.")
        return chosen
    for candidate in table.values():
        if candidate.refusal(problem) is None and candidate.drawback(problem) is None:
            return candidate
    raise AssertionError("the last backend of a table supports everything")


def explain_choice(table: Mapping[str, Backend[Work, Output]], problem: Work, name: str | None) -> Explanation:
    """Which backend runs this problem, and the reason why each preferred one does not."""
    chosen = choose_backend(table, problem, name)
    reasons: dict[str, str] = {}
    for other, candidate in table.items():
        if candidate is chosen:
            return Explanation(other, reasons, candidate.detail(problem))
        reasons[other] = candidate.refusal(problem) or candidate.drawback(problem) or f'"{name}" was requested'
    raise AssertionError("choose_backend() returns a backend of the table")
