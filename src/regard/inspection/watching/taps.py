"""The taps of a model, opened: every look of its attentions goes to whoever keeps it.

It knows which queries and keys a layer leaves to whoever listens, and when nobody can listen: inside compiled code,
while a CUDA graph is recorded, inside torch.func, where tensors stand for others, and in the backward pass, where a
checkpoint computes what it has computed before.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor

from regard.attention.layer import Attention, BasicAttention
from regard.attention.look import Look
from regard.attention.tap import Listener
from regard.inspection.seen.keeping import Keeping
from regard.inspection.watching.names import CROSS, Place
from regard.recurrence.lstmn import LSTMN


@contextmanager
def listening(places: Iterable[Place], keeping: Keeping) -> Iterator[None]:
    """Keep what these attentions look at inside the `with` block."""
    with ExitStack() as open_taps:
        for place in places:
            open_taps.enter_context(place.module.tap.listen(_listener(place, keeping)))  # type: ignore[union-attr, operator]
        yield


def watchable(tensor: Tensor) -> bool:
    """Whether what runs now is run for the first time, by Python, so that it can be kept."""
    if torch.compiler.is_compiling():
        return False
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    return torch._C._current_graph_task_id() == -1  # not inside of a backward pass


def _listener(place: Place, keeping: Keeping) -> Listener:
    settled, strict = _settled(place), place.strict

    def listen(look: Look) -> None:
        if watchable(look.query):
            keeping.take(place.name, look, strict=strict, settled=settled)

    return listen


def _settled(place: Place) -> frozenset[str]:
    """What nobody else has, or writes into: projections, and of these the keys only where they go to no cache."""
    if type(place.module) in (Attention, BasicAttention):
        return frozenset(("query", "key") if place.kind == CROSS else ("query",))
    return frozenset(("query",)) if isinstance(place.module, LSTMN) else frozenset()
