"""Questions that were asked before: which of torch's kernels answers them, found by their shapes.

    asked = known.question(query, key, value, score=..., ...)     None for what is not kept
    plan = known.PLANS.get(asked)                                 None where it was never learned
    output = plan(query, key, value)

To check a call of `attend` and to ask every backend takes 40 µs of Python, and up to five times as much where Python
was not running just before; a forward pass over 4,096 tokens takes no more than 1,000 on a GPU. Where scores and
weights are named, nothing is added, nothing is dropped, and no mask but a causal one is given, all that is found out
depends on names, shapes, dtypes and devices alone. What torch's kernels take as it stands (`sdpa`) is kept here, and
the same question goes straight to them, in a few µs.

It does not choose, and does not check: it learns what others have chosen and checked.
"""

from typing import Any, NamedTuple

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from regard.attention.kernels import sdpa
from regard.attention.mask import Causal
from regard.attention.problem import Problem

Question = tuple[Any, ...]
ROOM = 4096
"""Questions that are kept; when there are more, all are forgotten."""


class Plan(NamedTuple):
    """A call of torch's kernels, without its tensors."""

    causal: bool
    scale: float
    grouped: bool
    order: list[int]
    """Of the kernels, as torch numbers them; empty where torch's own order is taken."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if not self.order:
            return self._run(query, key, value)
        with sdpa.preferring(self.order):
            return self._run(query, key, value)

    def _run(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return scaled_dot_product_attention(query, key, value, None, 0.0, self.causal, scale=self.scale,
                                            enable_gqa=self.grouped)


PLANS: dict[Question, Plan] = {}
"""Of every question that was learned."""


def question(query: object, key: object, value: object, *, score: object, normalize: object, mask: object,
             bias: object, dropout: object, backend: object) -> Question | None:
    """All that a plan depends on; None where it depends on more, or may. It is not for compiled graphs."""
    if bias is not None or backend is not None or (mask is not None and type(mask) is not Causal):
        return None
    if type(dropout) is not float or dropout != 0.0:
        return None
    if not (type(query) is type(key) is type(value) is Tensor and type(score) is type(normalize) is str):
        return None
    return (query.shape, key.shape, value.shape, query.dtype, key.dtype, value.dtype, query.device, key.device,
            value.device, score, normalize, mask is None)


def learn(asked: Question, problem: Problem) -> None:
    """Keep how `sdpa`, which was chosen for this problem, computes it, where it takes the tensors as they stand."""
    if problem.mask is not None and not sdpa.is_square_causal(problem):
        return  # its matrix is made by whoever computes, and not here once more
    form = sdpa.shape(problem)
    if asked[:3] != (form.query.shape, form.key.shape, form.value.shape):
        return
    if len(PLANS) >= ROOM:
        PLANS.clear()
    PLANS[asked] = Plan(form.causal, form.scale, sdpa.grouped(form), [one.value for one in sdpa.kernels(problem)])
