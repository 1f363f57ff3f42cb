"""Masks that are looked up once, for all layers of a model that ask the same.

Every layer asks under the same padding, and in decoding every step asks again. To write the mask out each time costs
more than a small attention itself. Here it is written out once, and what the kernels guard against is settled then:
which rows see nothing, and that what nobody sees is finite, because whoever made it has cleared it.

    Looked(allowed)    a matrix that was written out
    Pass(padding)      the padding of one pass through a model, which gives the `Looked` of each of its masks

It does not know layers or kernels. Legend: B rows, N tokens.
"""

import torch
from torch import Tensor

from regard.attention.kernels import guard
from regard.attention.mask import All, Allowed, Causal, Device, Mask, Padding, Window

MATRIX_HELD = 1 << 28
"""Entries that a matrix may have: a larger one is not written out, and a backend that needs none is preferred."""


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
        self._masks: dict[str | Mask | None, Mask] = {}

    def there(self, count: int, device: torch.device) -> Tensor:
        """(B, N): which tokens are there."""
        if self._there is None:
            self._there = self.matrix(1, count, device=device).squeeze(-2)
        return self._there

    def under(self, mask: Mask | None, count: int, device: torch.device) -> Mask:
        """This padding and a mask of a mixer, for tokens that look at each other. Rows of padding get anything.

        It is a `Looked`, but where the matrix would be too large to be held: there it is not written out.
        """
        plain = _of_distance(mask)
        key = repr(mask) if plain else mask  # two layers have equal masks of their own; others tell no more than a size
        if key not in self._masks:
            both: Mask = Padding(self.lengths, self.side)
            both = both if mask is None else over_heads(mask, 3) & both
            if both.square and self.lengths.numel() * count**2 > MATRIX_HELD:
                self._masks[key] = both
            else:
                matrix = both.matrix(count if both.square else 1, count, leading=2, device=device)
                self._masks[key] = Looked(matrix, "any" if plain else "zeros")
        return self._masks[key]


def _of_distance(mask: Mask | None) -> bool:
    """Whether a mask is made of distances alone: its name says all of it, and every token sees itself."""
    parts = mask.members if isinstance(mask, All) else (mask,)
    return all(part is None or type(part) in (Causal, Window) for part in parts)


def over_heads(mask: Mask, dims: int) -> Mask:
    """Bool tensors of `dims` dimensions in the mask, (B, N, M), say nothing of heads: they hold for all."""
    def widen(part: Mask) -> Mask:
        if isinstance(part, Allowed) and not isinstance(part, Looked) and part.tensor.dim() == dims > 2:
            return Allowed(part.tensor.unsqueeze(-3))
        return part

    return mask.each(widen)
