"""Taps: where an attention layer hands out what it looks at.

Every attention layer has one. Closed, it is an empty list that the layer glances at; open, it hands a `Look` to whoever
listens each time the layer runs, from whatever backend. It does not keep anything, and changes nothing of what the
layer computes. Its name is that of its layer in the model. The keys of a look that a step gives are those of the cache:
who keeps it beyond the next step copies them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import nn

from regard.attention.look import Look

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


def taps(model: nn.Module) -> dict[str, Tap]:
    """Every tap of a model under the name of its layer; of a layer by itself, under the empty name."""
    return {name: module.tap for name, module in model.named_modules() if isinstance(getattr(module, "tap", None), Tap)}
