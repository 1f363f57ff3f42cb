"""Questions about attention weights, and who answers: the ways to compute a statistic, in the order of preference.

    fused         passes over tiles on a GPU, for masks that are ranges of keys      (`fused_statistics`)
    identities    torch's fused kernels, for masks that are no matrix                (`identities`)
    statistics    blocks of whole rows, for everything                               (`statistics`)

The rules of choosing are those of `regard.kernels.dispatch`. It does not know what an answer means: see `Look`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from regard.attention.kernels import fused_statistics, identities, statistics
from regard.attention.problem import AttentionProblem
from regard.kernels import dispatch

STATISTICS = ("entropy", "row_max", "column_sums", "top_k", "block_map")
"""What can be asked."""


@dataclass(frozen=True)
class StatisticRequest:
    """One of ASKED, about the weights of a problem; `number` is the count of "top_k" and the size of "block_map"."""

    asked: str
    problem: AttentionProblem
    number: int | None = None


@dataclass(frozen=True)
class StatisticsBackend:
    """A module that answers questions by functions of their names, and what speaks against it."""

    module: ModuleType
    words: str
    refuses: Callable[[StatisticRequest], str | None]
    hinders: Callable[[StatisticRequest], str | None]

    def refusal(self, question: StatisticRequest, /) -> str | None:
        """Why it cannot answer; None when it can."""
        return self.refuses(question)

    def drawback(self, question: StatisticRequest, /) -> str | None:
        """Why it, able to answer, is not the one to choose; None when it is."""
        return self.hinders(question)

    def detail(self, question: StatisticRequest, /) -> str:
        """How it goes about it, in a few words."""
        return self.words

    def run(self, question: StatisticRequest, /) -> Any:
        """The answer."""
        numbers = () if question.number is None else (question.number,)
        return getattr(self.module, question.asked)(question.problem, *numbers)


def answer(question: StatisticRequest, backend: str | None = None) -> Any:
    """The answer of the way that is chosen, or asked for by name; a ValueError where that one cannot."""
    return dispatch.choose_backend(BACKENDS, question, backend).run(question)


def explain(question: StatisticRequest, backend: str | None = None) -> dispatch.Explanation:
    """The choice, in words."""
    return dispatch.explain_choice(BACKENDS, question, backend)


def _fused_refuses(question: StatisticRequest) -> str | None:
    number = question.number or 0
    if question.asked == "top_k" and fused_statistics.refused_count(number):
        return fused_statistics.refused_count(number)
    if question.asked == "block_map" and fused_statistics.refused_size(number):
        return fused_statistics.refused_size(number)
    return fused_statistics.refusal(question.problem)


def _fused_hinders(question: StatisticRequest) -> str | None:
    if question.problem.query.device.type != "cuda":
        return "on a CPU its kernels are interpreted, to be tested"
    return None


def _identities_refuse(question: StatisticRequest) -> str | None:
    if question.asked in ("row_max", "top_k"):
        return "no identity tells where the largest weights are"
    return identities.refusal(question.problem)


def _identities_hinder(question: StatisticRequest) -> str | None:
    problem = question.problem
    if question.asked == "column_sums" and problem.query.device.type != "cuda":
        return "a gradient costs three times a forward pass: measured slower than the plain pass on a CPU"
    if question.asked == "block_map" and problem.n_keys > (question.number or 1) * identities.WIDTH:
        return f"it pays for every {identities.WIDTH} blocks of keys with one attention: it is for coarse maps"
    return None


def _never(question: StatisticRequest) -> str | None:
    return None


BACKENDS: dict[str, dispatch.Backend[StatisticRequest, Any]] = {
    "fused": StatisticsBackend(fused_statistics, "passes over tiles of scores", _fused_refuses, _fused_hinders),
    "identities": StatisticsBackend(identities, "torch's fused kernels", _identities_refuse, _identities_hinder),
    "statistics": StatisticsBackend(statistics, "blocks of whole rows", _never, _never),
}
"""Every way by name, the preferred ones first."""
