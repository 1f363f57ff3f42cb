"""A cache whose storage, sizes and masks stay where they are, so that a step can be recorded and replayed.

`Cache` knows in Python how many tokens there are, and reads no more keys than that. A recording knows nothing of
Python: it repeats the same work on the same memory. Here a token is written where a tensor says, and every step reads
all places, under a mask that a tensor holds. Whoever records the step moves the positions and the mask on.

One token a step, causal attention over all tokens before: nothing else. Legend: B rows, H key heads, C places, D width.
"""

from dataclasses import dataclass, field

from torch import Tensor

from regard.attention.cache import Cache
from regard.attention.looked import Looked
from regard.attention.mask import Allowed, Mask


class Seen(Looked):
    """A matrix by which every query sees something, by the word of whoever makes it: nothing is looked up."""

    def __init__(self, allowed: Tensor) -> None:
        Allowed.__init__(self, allowed)
        self.opened, self.blind = allowed, None


@dataclass(frozen=True)
class SteadyCache(Cache):
    """The keys and values of at most C tokens, (B, H, C, D); the next one of row b goes to positions[b]."""

    seen: Seen | None = field(default=None)
    """(B, 1, 1, C): which places the next token sees, its own among them."""

    def extend(self, key: Tensor, value: Tensor, lengths: Tensor | None = None) -> "SteadyCache":
        """Write the key and the value (B, H, 1, D) of one new token a row."""
        assert (key.shape[-2], lengths) == (1, None), "one token of each row"
        for storage, new in ((self.key, key), (self.value, value)):
            places = self.positions.view(-1, 1, 1, 1).expand(-1, *new.shape[1:])
            storage.scatter_(2, places, new.to(storage.dtype))
        return self

    def sees(self, count: int, lengths: Tensor | None, extra: Mask | None) -> Mask | None:
        """What was said to be seen."""
        assert (count, lengths, extra) == (1, None, None), "one token of each row, which sees all before it"
        return self.seen
