"""Scores: how well a key fits a query.

A score computes the scores of a block of queries against a block of keys. It does not know where the block lies, which
pairs are allowed, or which backend calls it.

    dot           e = q · k
    scaled_dot    e = q · k / √D              D is the width of the query                  (Vaswani et al. 2017)
    scaled_dot_d  e = q · k / D               one source divides by the width of the hidden state; here D is the
                                              width of the query that the score sees
    Additive      e = w · tanh(q + k (+ b))   on queries and keys that are already projected (Bahdanau et al. 2015);
                                              with q = W_1 s and k = W_2 h this is the MLP score
    Bilinear      e = q W kᵀ                  (Luong et al. 2015, "general")
    AgentAware    e = q_s · k_s / √D, or q_o · k_o / √D where query and key are of different agents; both products
                                              and the agents are features of q and k (Yuan et al. 2021)

`adjust_score` changes a score as the arguments `scale` and `softcap` of `attend` say:

    scale         e = scale · q · k           the scale of a dot product, in the place of its own
    softcap       e = c tanh(e' / c)          any score e', smoothly limited to ±c (Gemma 2, 2024)

Legend: H heads, Q queries, K keys, D width.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor, nn

from regard import checks


class Score(ABC):
    """The base of scores, which say how well a key fits a query; subclass it, or pass any function of two arguments.

    Calling it with queries (..., Q, Dq) and keys (..., K, Dk), whose leading dimensions broadcast, gives scores
    (..., Q, K). The score of a pair must depend on that pair only: backends call it on any block of the matrix, and
    once more in the backward pass.
    """

    per_head: bool = False
    """Whether each head has parameters of its own."""
    parametric: bool = False
    """Whether the score has parameters that `as_dot` multiplies the query by: they get gradients from all queries."""
    bounded: bool = False
    """Whether |score| ≤ c |query| |key| with a small c: finite queries and keys have finite scores."""

    @abstractmethod
    def __call__(self, query: Tensor, key: Tensor) -> Tensor: ...

    def checked(self, query: Tensor, key: Tensor) -> Tensor:
        """The scores; a ValueError where their shape is wrong."""
        scores = self(query, key)
        leading = query.shape[:-2]
        if leading != key.shape[:-2]:
            leading = torch.broadcast_shapes(leading, key.shape[:-2])
        expected = (*leading, query.shape[-2], key.shape[-2])
        if tuple(scores.shape) != expected:
            got = f"one whose result has {checks.shape(scores)}"
            raise checks.wrong("score", f"one whose result here has the shape {expected}", got)
        return scores

    def check(self, query_width: int, key_width: int, heads: int | None) -> None:
        """Raise a ValueError when queries and keys of these widths and heads cannot be scored."""

    def numbers_per_pair(self, query_width: int) -> int:
        """The numbers that are held at once for every pair; backends size their blocks by it."""
        return query_width

    def as_dot(self, query: Tensor) -> tuple[Tensor, float] | None:
        """A query and a scale with which `scale · query · key` is this score; None where it is not a dot product.

        Kernels for dot products serve every score for which this is not None.
        """
        return None


def wide_product(one: Tensor, other: Tensor) -> Tensor:
    """The matrix product, in float32 for float16: its products may exceed 65,504, the largest number of float16."""
    if one.dtype == torch.float16 and not torch.is_autocast_enabled(one.device.type):
        return one.float() @ other.float()
    return one @ other


@dataclass(frozen=True)
class Dot(Score):
    """q · k times `scale(D)`, where D is the width of the query."""

    name: str
    scale: Callable[[int], float]
    bounded = True

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        # Scale the query, not the product: Q·D multiplications in place of Q·K.
        return wide_product(query * self.scale(query.shape[-1]), key.transpose(-2, -1))

    def check(self, query_width: int, key_width: int, heads: int | None) -> None:
        if query_width != key_width:
            raise checks.wrong("key", f"of the query's width {query_width}", f"of width {key_width}")

    def numbers_per_pair(self, query_width: int) -> int:
        return 1

    def as_dot(self, query: Tensor) -> tuple[Tensor, float]:
        return query, self.scale(query.shape[-1])

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class Additive(Score):
    """The additive score of Bahdanau et al. 2015, on queries and keys that are already projected.

        e = w · tanh(q + k + b)

    Args:
        weight: w, of shape (D,), or (H, D) with one for each head.
        bias: b, of the shape of the weight; None for none.
    """

    weight: Tensor
    bias: Tensor | None = None
    bounded = True

    @property
    def per_head(self) -> bool:  # type: ignore[override]
        return self.weight.dim() == 2

    def __post_init__(self) -> None:
        if self.weight.dim() not in (1, 2):
            raise checks.wrong("weight", "of shape (width,) or (heads, width)", f"of shape {checks.shape(self.weight)}")
        if self.bias is not None and self.bias.shape != self.weight.shape:
            expected = f"of the weight's shape {checks.shape(self.weight)}"
            raise checks.wrong("bias", expected, f"of shape {checks.shape(self.bias)}")

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        weight = self.weight.to(query.dtype)  # a parameter of another precision is allowed, as under autocast
        if self.bias is not None:
            query = query + self.bias.to(query.dtype).unsqueeze(-2)  # once for each query, not for each pair
        hidden_QKD = (query.unsqueeze(-2) + key.unsqueeze(-3)).tanh_()  # in place: it is the largest tensor
        if weight.dim() == 1:
            return hidden_QKD @ weight
        return (hidden_QKD @ weight[:, None, :, None]).squeeze(-1)

    def check(self, query_width: int, key_width: int, heads: int | None) -> None:
        _check_heads("Additive", self.weight, 2, heads)
        width = self.weight.shape[-1]
        for argument, got in (("query", query_width), ("key", key_width)):
            if got != width:
                remedy = "Additive scores take queries and keys that are already projected."
                raise checks.wrong(argument, f"of the width {width} of Additive's weight", f"of width {got}", remedy)

    def __repr__(self) -> str:
        return f"Additive(weight {checks.shape(self.weight)}{', bias' if self.bias is not None else ''})"


@dataclass(frozen=True, eq=False)
class Bilinear(Score):
    """The bilinear score of Luong et al. 2015, which they call "general".

        e = q W kᵀ

    Args:
        weight: W, of shape (Dq, Dk), or (H, Dq, Dk) with one for each head.
    """

    weight: Tensor
    parametric = True

    @property
    def per_head(self) -> bool:  # type: ignore[override]
        return self.weight.dim() == 3

    def __post_init__(self) -> None:
        if self.weight.dim() not in (2, 3):
            expected = "of shape (query width, key width) or (heads, query width, key width)"
            raise checks.wrong("weight", expected, f"of shape {checks.shape(self.weight)}")

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return wide_product(query @ self.weight.to(query.dtype), key.transpose(-2, -1))

    def check(self, query_width: int, key_width: int, heads: int | None) -> None:
        _check_heads("Bilinear", self.weight, 3, heads)
        for argument, got, expected in (("query", query_width, self.weight.shape[-2]),
                                        ("key", key_width, self.weight.shape[-1])):
            if got != expected:
                raise checks.wrong(argument, f"of the width {expected} of Bilinear's weight", f"of width {got}")

    def numbers_per_pair(self, query_width: int) -> int:
        return 1

    def as_dot(self, query: Tensor) -> tuple[Tensor, float]:
        return query @ self.weight.to(query.dtype), 1.0

    def __repr__(self) -> str:
        return f"Bilinear(weight {checks.shape(self.weight)})"


SCALED_DOT = Dot("scaled_dot", lambda width: width ** -0.5)
AGENT_FEATURES = 2
"""Features that hold the number of an agent: its digits to the base 256, which every dtype holds exactly."""
MAX_AGENTS = 256 ** AGENT_FEATURES


@dataclass(frozen=True)
class AgentAware(Score):
    """The score of agent-aware attention (AgentFormer, Yuan et al. 2021): one product inside an agent, one between two.

        e_ij = q_s · k_s / √D    if token i and token j are of the same agent
        e_ij = q_o · k_o / √D    otherwise

    Queries and keys are (..., N, 2D + 2): the D features for the same agent, the D features for other agents, and the
    agent of the token (see `with_agents`).

    Args:
        dot: the score of either product.
    """

    dot: Dot = SCALED_DOT
    bounded = True

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        (q_same, q_other, q_agent), (k_same, k_other, k_agent) = split_agents(query), split_agents(key)
        same = equal_agents(q_agent, k_agent)
        return torch.where(same, self.dot(q_same, k_same), self.dot(q_other, k_other))

    def check(self, query_width: int, key_width: int, heads: int | None) -> None:
        for argument, width in (("query", query_width), ("key", key_width)):
            if width < AGENT_FEATURES + 2 or width % 2:
                raise checks.wrong(argument, "of width 2D + 2: for the same agent, for other agents, and the agent",
                                   f"of width {width}", "Append the agents with regard.attention.score.with_agents.")
        self.dot.check(query_width, key_width, heads)

    def numbers_per_pair(self, query_width: int) -> int:
        return 3

    def scale(self, query_width: int) -> float:
        """The scale of both products, for queries of this width, the agent included."""
        return self.dot.scale((query_width - AGENT_FEATURES) // 2)

    def __repr__(self) -> str:
        return f"AgentAware({self.dot!r})"


def with_agents(same: Tensor, other: Tensor, agents: Tensor) -> Tensor:
    """Queries or keys of an `AgentAware` score: (..., N, 2D + 2) of two (..., N, D) and the agent of each token.

    Args:
        agents: numbers from 0 to 65,535, broadcastable to (..., N).
    """
    digits = torch.stack([agents % 256, agents // 256], -1).to(same.dtype)
    return torch.cat([same, other, digits.expand(*same.shape[:-1], AGENT_FEATURES)], -1)


def split_agents(tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The parts of queries or keys of an `AgentAware` score: for the same agent, for others, and the agent's digits."""
    width = (tokens.shape[-1] - AGENT_FEATURES) // 2
    same, other, digits = tokens.split([width, width, AGENT_FEATURES], -1)
    return same, other, digits


def equal_agents(query_digits: Tensor, key_digits: Tensor) -> Tensor:
    """Which pairs are of the same agent, (..., Q, K), by the digits (..., Q, 2) and (..., K, 2) of their agents."""
    low, high = (query_digits[..., digit, None] == key_digits[..., None, :, digit] for digit in range(AGENT_FEATURES))
    return low & high


@dataclass(frozen=True, eq=False)
class CustomScore(Score):
    """A user's function (or module) of a block of queries and a block of keys."""

    function: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return self.function(query, key)

    def __repr__(self) -> str:
        name = type(self.function).__name__ if isinstance(self.function, nn.Module) else self.function
        return getattr(name, "__name__", str(name))


@dataclass(frozen=True)
class ConstantScale:
    """The scale of a dot product that does not depend on the width; equal ones are equal keys of caches."""

    scale: float

    def __call__(self, width: int) -> float:
        return self.scale


@dataclass(frozen=True, eq=False)
class SoftcappedScore(Score):
    """cap · tanh(score / cap): between -cap and cap, and about the score itself where that is small."""

    score: Score
    cap: float

    @property
    def per_head(self) -> bool:  # type: ignore[override]
        return self.score.per_head

    @property
    def bounded(self) -> bool:  # type: ignore[override]
        return self.score.bounded  # |cap · tanh(e / cap)| ≤ |e|

    def __call__(self, query: Tensor, key: Tensor) -> Tensor:
        return (self.score(query, key) / self.cap).tanh() * self.cap

    def check(self, query_width: int, key_width: int, heads: int | None) -> None:
        self.score.check(query_width, key_width, heads)

    def numbers_per_pair(self, query_width: int) -> int:
        return self.score.numbers_per_pair(query_width) + 1  # the backward pass of tanh needs its result

    def __repr__(self) -> str:
        return f"{self.score!r} with softcap {self.cap:g}"


ScoreLike = str | Score | Callable[[Tensor, Tensor], Tensor]
"""What callers may pass as a score: a name, a `Score`, or a function of queries and keys."""

SCORES: dict[str, Score] = {
    "dot": Dot("dot", lambda width: 1.0),
    "scaled_dot": SCALED_DOT,
    "scaled_dot_d": Dot("scaled_dot_d", lambda width: 1.0 / width),
}
NEED_PARAMETERS = {"additive": "regard.Additive(weight)", "mlp": "regard.Additive(weight)",
                   "bilinear": "regard.Bilinear(weight)"}


def _check_heads(name: str, weight: Tensor, dims: int, heads: int | None) -> None:
    """Raise a ValueError where a weight for each head has another number of heads."""
    if weight.dim() == dims and weight.shape[0] != heads:
        expected = f"{name} with one weight for all, as the query has no heads" if heads is None else (
            f"{name} with a weight for each of the {heads} heads")
        raise checks.wrong("score", expected, f"one with weights for {checks.plural(weight.shape[0], 'head')}")


def as_score(score: ScoreLike) -> Score:
    """The argument `score` as a score; an unknown name is a ValueError that offers the nearest valid one."""
    if isinstance(score, Score):
        return score
    if isinstance(score, str):
        if score in NEED_PARAMETERS:
            remedy = f"It has parameters: pass score={NEED_PARAMETERS[score]}, or use a layer, which owns them."
            raise checks.wrong("score", "a score without parameters, by name", f'"{score}"', remedy)
        return checks.pick("score", score, SCORES)
    if callable(score) and not isinstance(score, type):
        return CustomScore(score)
    raise checks.wrong("score", "a name, a Score or a function of queries and keys", *checks.kind(score))


def adjust_score(score: ScoreLike, scale: float | None = None, softcap: float | None = None) -> ScoreLike:
    """The score with another scale, and limited by a soft cap; the score as it is where both are None.

    Args:
        score: as for `attend`.
        scale: the scale of a dot product in the place of the score's own; a ValueError for a score without one.
        softcap: scores are limited to ±softcap, after the scale and before bias and mask.
    """
    if scale is not None:
        inner = as_score(score)
        if not isinstance(inner, Dot):
            raise checks.wrong("scale", "None for a score that has no scale", f"{scale!r}, and the score is {inner!r}",
                               f"Leave it out, or choose one of the scores {', '.join(SCORES)}.")
        scale = _finite_number("scale", scale)
        score = Dot(f"dot with scale {scale:g}", ConstantScale(scale))
    if softcap is not None:
        cap = _finite_number("softcap", softcap)
        if not cap > 0:
            raise checks.wrong("softcap", "above 0, or None for no cap", softcap)
        score = SoftcappedScore(as_score(score), cap)
    return score


def _finite_number(argument: str, number: object) -> float:
    """A number as a float; a ValueError for anything else, bools included."""
    if type(number) is bool or not isinstance(number, Real) or not math.isfinite(number):
        raise checks.wrong(argument, "a finite number", repr(number))
    return float(number)
