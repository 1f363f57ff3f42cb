"""In which order the tokens of a padded batch are read: step by step, the longest rows first.

    rows of tokens, padded      a1 a2 a3            read      a1 b1 c1 | a2 c2 | a3        sizes 3, 2, 1
    on whatever side            b1  .  .            as                                     rows  a, c, b
                                c1 c2  .

A token is read by one step of a scan; rows that have ended are no longer there, so what stands in the padding is never
touched: not by a product, not by a gradient. The reverse reads each row from its own last token to its first. This file
knows no cells and no layers.

Legend: B rows, N tokens, D width, R tokens that are read.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from regard import checks
from regard.attention.mask import Padding


@dataclass(frozen=True)
class Reading:
    """The order of reading a batch of `rows` sequences that fill up `places` places each."""

    rows: int
    places: int
    sizes: tuple[int, ...]
    """How many rows each step reads; they never grow."""
    order: Tensor | None
    """(B,): the rows, longest first; None where they are in that order already."""
    index: Tensor | None
    """(R,): where among the B·N places the tokens stand that are read; None where there is no padding."""
    mirror: Tensor | None
    """(R,): for every token that is read the one that the reverse reads in its turn; None where there is no padding."""

    @classmethod
    def of(cls, x: Tensor, present: Padding | None) -> "Reading":
        """How to read x (B, N, D), of which `present` says what is there."""
        B, N = x.shape[:2]
        if present is None:
            return cls(B, N, (B,) * N if B else (), None, None, None)
        if not isinstance(present, Padding):
            raise checks.wrong("present", "a regard.Padding or None", *checks.kind(present))
        if present.lengths.shape not in ((), (1,), (B,)):
            expected = f"one for each of the {B} rows"
            raise checks.wrong("lengths", expected, f"of shape {checks.shape(present.lengths)}")
        lengths_B = present.lengths.to("cpu").expand(B)  # the steps are counted here, so the device is asked
        if B and int(lengths_B.max()) > N:
            raise checks.wrong("lengths", f"at most the number of tokens, {N}", f"as long as {int(lengths_B.max())}")
        if B and N and int(lengths_B.min()) == N:
            return cls(B, N, (B,) * N, None, None, None)
        sorted_B, order_B = torch.sort(lengths_B, descending=True, stable=True)
        longest = int(sorted_B[0]) if B else 0
        step_L1 = torch.arange(longest).unsqueeze(-1)
        there_LB = step_L1 < sorted_B
        first_B = torch.zeros_like(sorted_B) if present.side == "right" else N - sorted_B
        place_LB = order_B * N + first_B + step_L1
        sizes_L1 = there_LB.sum(1, keepdim=True)
        turn_LB = sizes_L1.cumsum(0) - sizes_L1 + torch.arange(B)  # when a token is read, counted from 0
        mirror_LB = turn_LB.gather(0, (sorted_B - 1 - step_L1).clamp(min=0))
        sizes = tuple(sizes_L1.flatten().tolist())
        order = None if bool((order_B == torch.arange(B)).all()) else order_B.to(x.device)
        return cls(B, N, sizes, order, place_LB[there_LB].to(x.device), mirror_LB[there_LB].to(x.device))

    @property
    def alive(self) -> int:
        """How many rows have any token at all."""
        return self.sizes[0] if self.sizes else 0

    def gather(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (R, D): the tokens in the order in which they are read."""
        if self.index is None:
            return x.transpose(0, 1).flatten(0, 1)
        return x.flatten(0, 1).index_select(0, self.index)

    def scatter(self, read: Tensor) -> Tensor:
        """(R, D) -> (B, N, D): each token at its own place, zeros in the padding."""
        if self.index is None:
            return read.unflatten(0, (self.places, self.rows)).transpose(0, 1)
        empty = read.new_zeros(self.rows * self.places, read.shape[-1])
        return empty.index_copy(0, self.index, read).unflatten(0, (self.rows, self.places))

    def reverse(self, read: Tensor) -> Tensor:
        """(R, D) -> (R, D): in the order of the reverse, and back again."""
        if self.mirror is None:
            return read.unflatten(0, (self.places, self.rows)).flip(0).flatten(0, 1)
        return read.index_select(0, self.mirror)

    def arrange(self, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """States (B, D) of the rows as they are -> those of the rows that have tokens, longest first."""
        if self.order is not None:
            state = tuple(memory.index_select(0, self.order) for memory in state)
        return state if self.alive == self.rows else tuple(memory[:self.alive] for memory in state)

    def restore(self, final: tuple[Tensor, ...], before: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The other way round; rows without tokens keep the state that they had before."""
        if self.order is None:
            if self.alive == self.rows:
                return final
            return tuple(torch.cat([new, old[self.alive:].to(new.dtype)])
                         for new, old in zip(final, before, strict=True))
        rows = self.order[:self.alive]
        return tuple(old.to(new.dtype).index_copy(0, rows, new) for new, old in zip(final, before, strict=True))
