"""Masks that are looked up once, for all layers of a model that ask the same.

Every layer asks under the same padding, and in decoding every step asks again. To write the mask out each time costs
more than a small attention itself. Here it is written out once, and what the kernels guard against is settled then:
which rows see nothing, and that what nobody sees is finite, because whoever made it has cleared it.

    Looked(allowed)    a matrix that was written out; `unseen_is_finite` by the word of whoever makes it
    Pass(padding)      the padding of one pass through a model, which gives the `Looked` of each of its masks

It does not know layers or kernels. Legend: B rows, N tokens.
"""

import torch
from torch import Tensor

from regard.attention.kernels import guard
from regard.attention.mask import Allowed, Device, Mask, Padding


class Looked(Allowed):
    """A bool matrix (B, 1, N or 1, N of the keys) and what was found out about it.

    What stands in keys and values that no query sees is finite, by the word of whoever makes it: it needs no guard.

    Args:
        allowed: who may attend.
        blind_rows: "zeros": queries that see nothing get zeros, as everywhere; "any": what they get is never used, as
            whoever asks clears it.
    """

    def __init__(self, allowed: Tensor, blind_rows: str = "zeros") -> None:
        super().__init__(allowed)
        blind = ~guard.any_along(allowed, -1)
        some = guard.may_hold(blind)
        self.opened = allowed | blind if some else allowed
        """The same with the rows that forbid everything opened, as fused kernels need it."""
        self.blind = blind if some and blind_rows == "zeros" else None
        """The queries whose results must be zeros; None where there are none."""

    def ready(self, n_queries: int, n_keys: int, device: Device) -> Mask:
        """Itself: it was made for these sizes and this device."""
        super().ready(n_queries, n_keys, device)
        return self

    def pick(self, index: Tensor) -> "Looked":
        """The mask of these rows."""
        return Looked(self.tensor[index], "zeros")


class Pass(Padding):
    """The padding of one pass through a model, where all layers have the same tokens."""

    def __init__(self, padding: Padding) -> None:
        super().__init__(padding.lengths, padding.side)
        self._there: Tensor | None = None
        self._looked: dict[str, Looked] = {}

    def there(self, count: int, device: torch.device) -> Tensor:
        """(B, N): which tokens are there."""
        if self._there is None:
            self._there = self.matrix(1, count, device=device).squeeze(-2)
        return self._there

    def under(self, mask: Mask | None, count: int, device: torch.device) -> Looked:
        """This padding and a mask of a mixer, for tokens that look at each other. Rows of padding get anything."""
        name = repr(mask)
        if name not in self._looked:
            both = self if mask is None else mask & Padding(self.lengths, self.side)
            self._looked[name] = Looked(both.matrix(count, count, leading=2, device=device), "any")
        return self._looked[name]
