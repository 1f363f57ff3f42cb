"""`Look`: the queries and keys of one attention, and statistics of the weights between them; `Tap`: where to get one.

A look keeps what a weight matrix is made from, and computes from it on demand: the whole matrix, some of its rows, or
statistics that never hold it. Every attention layer has a tap. Without listeners a tap costs nothing; with listeners it
passes them a `Look` each time the layer runs, whichever backend computes. A tap keeps nothing and changes nothing of what
the layer computes. The keys of a look taken in a step are those of the cache: copy them to keep them beyond the next
step.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard import checks
from regard.attention.attend import NormalizerLike, ScoreLike
from regard.attention.kernels import exact, questions, statistics
from regard.attention.mask import Mask
from regard.attention.problem import AttentionProblem, build_problem
from regard.kernels import dispatch
from regard.position.bias import Bias


class Peaks(NamedTuple):
    """The largest weights, and the positions of the keys that have them."""

    values: Tensor
    positions: Tensor


@dataclass(frozen=True)
class Look:
    """What `attend(query, key, ...)` looks at. All answers are without gradients.

    Rows are queries, columns are keys; `...` are the leading dimensions, heads last. The memory of every answer but
    `weights` grows with the number of tokens, not with its square.
    """

    query: Tensor
    key: Tensor
    value: Tensor | None = None
    score: ScoreLike = "scaled_dot"
    normalize: NormalizerLike = "softmax"
    mask: Mask | Tensor | None = None
    bias: Tensor | Bias | None = None

    def __repr__(self) -> str:
        parts: list[object] = [f"queries {checks.shape(self.query)}", f"keys {checks.shape(self.key)}", self.score,
                               self.normalize]
        for name, part in (("mask", self.mask), ("bias", self.bias)):
            if part is not None:
                parts.append(f"{name} {checks.shape(part)}" if isinstance(part, Tensor) else
                             type(part).__name__ if isinstance(part, Bias) else part)
        return f"Look({', '.join(map(str, parts))})"

    @cached_property
    def problem(self) -> AttentionProblem:
        """The look as kernels read it, checked."""
        query, key = self.query.detach(), self.key.detach()
        return build_problem(query, key, key, score=self.score, normalize=self.normalize, mask=self.mask, bias=self.bias,
                     dropout=0.0)

    @torch.no_grad()
    def weights(self) -> Tensor:
        """The whole matrix, (..., queries, keys)."""
        weights = exact.weights(self.problem)
        return weights.expand(*self.problem.leading, *weights.shape[-2:])

    def rows(self, indices: "int | list[int] | Tensor") -> Tensor:
        """The weights of these queries, (..., keys) for one index and (..., indices, keys) for several."""
        chosen = row_indices(indices, self.problem.n_queries, self.query.device)
        rows = statistics.some_rows(self.problem, chosen.reshape(-1))
        return rows if chosen.dim() else rows.squeeze(-2)

    def entropy(self) -> Tensor:
        """-Σ w log w of every row in nats, (..., queries): 0 for one key alone, log n for n keys alike.

        Weights that do not sum to 1 (relu, sigmoid) are taken as they are.
        """
        return self._answer("entropy")

    def row_max(self) -> Peaks:
        """The largest weight of every row and the first key that has it, (..., queries); 0 and 0 for an empty row."""
        return Peaks(*self._answer("row_max"))

    def column_sums(self) -> Tensor:
        """What every key receives from all queries, (..., keys)."""
        return self._answer("column_sums")

    def top_k(self, count: int) -> Peaks:
        """The `count` largest weights of every row, largest first, (..., queries, count)."""
        return Peaks(*self._answer("top_k", count))

    def block_map(self, size: int) -> Tensor:
        """The mean weight of every block of `size` queries and `size` keys, (..., blocks, blocks)."""
        return self._answer("block_map", size)

    def explain(self, asked: str, number: int | None = None) -> dispatch.Explanation:
        """Which kernels answer, and why those that are preferred to them do not: `look.explain("block_map", 64)`."""
        return questions.explain(self._question(asked, number))

    def _answer(self, asked: str, number: int | None = None) -> Any:
        return questions.answer(self._question(asked, number))

    def _question(self, asked: str, number: int | None) -> questions.StatisticRequest:
        """The question, checked."""
        checks.pick("asked", asked, dict.fromkeys(questions.STATISTICS))
        if asked == "top_k" and not 0 < (number or 0) <= self.problem.n_keys:
            raise checks.wrong("count", f"from 1 to the number of keys, {self.problem.n_keys}", number)
        if asked == "block_map" and (number or 0) < 1:
            raise checks.wrong("size", "at least 1", number)
        return questions.StatisticRequest(asked, self.problem, number)


def row_indices(indices: "int | list[int] | Tensor", count: int, device: torch.device) -> Tensor:
    """Indices of some of `count` rows, from 0 on, as a tensor; a ValueError where they are none."""
    chosen = torch.as_tensor(indices, device=device)
    chosen = chosen.long() if chosen.numel() == 0 else chosen
    if chosen.is_floating_point() or chosen.dtype == torch.bool or chosen.dim() > 1:
        raise checks.wrong("indices", "an integer or a list of integers", repr(indices))
    if chosen.numel() and not (-count <= int(chosen.min()) and int(chosen.max()) < count):
        raise checks.wrong("indices", f"rows of the {count} queries", repr(indices))
    return chosen % max(1, count)


# ---- tap: Taps: where an attention layer hands out what it looks at.
#
# Every attention layer has one. Closed, it is an empty list that the layer glances at; open, it hands a `Look` to whoever
# listens each time the layer runs, from whatever backend. It does not keep anything, and changes nothing of what the
# layer computes. Its name is that of its layer in the model. The keys of a look that a step gives are those of the cache:
# who keeps it beyond the next step copies them.

Listener = Callable[[Look], None]


class Tap:
    """The tap of one layer."""

    def __init__(self) -> None:
        self.listeners: list[Listener] = []

    @contextmanager
    def listen(self, listener: Listener) -> Iterator[None]:
        """Hand every look to `listener` inside the `with` block."""
        self.listeners.append(listener)
        try:
            yield
        finally:
            # The last one that is this very object: others may be equal to it.
            for i in reversed(range(len(self.listeners))):
                if self.listeners[i] is listener:
                    del self.listeners[i]
                    break

    def hand(self, look: Look) -> None:
        """Give a look to all who listen."""
        for listener in tuple(self.listeners):
            listener(look)

    def __reduce__(self) -> "tuple[type[Tap], tuple[()]]":
        return Tap, ()  # a copy of a layer, or one from another process, is another layer: nobody listens to it yet


def find_taps(model: nn.Module) -> dict[str, Tap]:
    """Every tap of a model under the name of its layer; of a layer by itself, under the empty name."""
    return {name: module.tap for name, module in model.named_modules() if isinstance(getattr(module, "tap", None), Tap)}
