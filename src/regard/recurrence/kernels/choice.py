"""Which backend runs a cell over time, and why.

Backends are modules with four functions: `refusal` (why it cannot), `drawback` (why it should not), `detail` and `run`.
The first one in order with neither refusal nor drawback is taken; a backend asked for by name runs, or refuses with an
error: never another one in silence.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from regard import checks
from regard.recurrence.cell import State
from regard.recurrence.kernels import bptt, loop, native
from regard.recurrence.kernels.problem import Problem


class Backend(Protocol):
    """What a backend module offers."""

    def refusal(self, problem: Problem, /) -> str | None:
        """Why it cannot do the work; None when it can."""

    def drawback(self, problem: Problem, /) -> str | None:
        """Why it, able to do the work, is not the one to choose; None when it is."""

    def detail(self, problem: Problem, /) -> str:
        """How it goes about it, in a few words."""

    def run(self, problem: Problem, /) -> tuple[Tensor, State]:
        """The hidden vector of every token, (tokens, width), and the state of each row after its last one."""


BACKENDS: dict[str, Backend] = {"native": native, "bptt": bptt, "loop": loop}
"""Every backend by name, the preferred ones first. The last one takes everything and has no drawback."""


@dataclass(frozen=True)
class Explanation:
    """Which backend runs, and why each one that is preferred to it does not."""

    backend: str
    reasons: dict[str, str]
    detail: str

    def __str__(self) -> str:
        others = [f"{name} does not run: {reason}." for name, reason in self.reasons.items()]
        return "\n".join([f"{self.backend} runs: {self.detail}.", *others])


def choose(problem: Problem, backend: str | None = None) -> Backend:
    """The backend that runs this problem; a ValueError where the one asked for cannot."""
    if backend is not None:
        chosen = checks.pick("backend", backend, BACKENDS)
        reason = chosen.refusal(problem)
        if reason is not None:
            able = ", ".join(f'"{name}"' for name, other in BACKENDS.items() if other.refusal(problem) is None)
            raise checks.wrong("backend", f"one that can do this work ({able})", f'"{backend}"', f"Reason: {reason}.")
        return chosen
    for candidate in BACKENDS.values():
        if candidate.refusal(problem) is None and candidate.drawback(problem) is None:
            return candidate
    raise AssertionError("the last backend takes everything")


def explain(problem: Problem, backend: str | None = None) -> Explanation:
    """The choice, in words."""
    chosen = choose(problem, backend)
    reasons: dict[str, str] = {}
    for name, candidate in BACKENDS.items():
        if candidate is chosen:
            return Explanation(name, reasons, candidate.detail(problem))
        reasons[name] = candidate.refusal(problem) or candidate.drawback(problem) or f'"{backend}" was asked for'
    raise AssertionError("choose() gives one of the backends")
