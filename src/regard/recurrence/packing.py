"""The order in which a scan processes the tokens of a padded batch: step by step, the longest rows first.

    padded rows                 a1 a2 a3            packed    a1 b1 c1 | a2 c2 | a3        sizes 3, 2, 1
    (padding on either side)    b1  .  .            order                                  rows  a, c, b
                                c1 c2  .

This is the order of torch's `PackedSequence`: rows that have ended drop out, so padding is never touched, neither by a
product nor by a gradient. The reverse direction goes from each row's own last token to its first.

Counting the rows of every step needs the lengths on the CPU. Lengths on a GPU are not copied: that would wait for the
device, and a CUDA graph could not be replayed with other lengths. There every step takes all rows (`PaddedOrder`):
padding is replaced by zeros, comes after the tokens of its row, and its results are set to zero.

                                a1 a2 a3            padded    a1 b1 c1 | a2  0 c2 | a3  0  0
                                b1  .  .            order
                                c1 c2  .

This module knows neither cells nor layers.

Legend: B rows, N tokens, D width, R tokens in the order of the scan.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from regard import checks
from regard.attention.mask import Padding
from regard.kernels.launch import is_readable


@dataclass(frozen=True)
class PackedOrder:
    """The packed order of a batch of `rows` sequences, padded to `columns` tokens each: padding is left out."""

    rows: int
    columns: int
    sizes: tuple[int, ...]
    """The number of rows at each step; it never grows."""
    order: Tensor | None
    """(B,): the rows, longest first; None where they are in that order already."""
    index: Tensor | None
    """(R,): the index of each token of the scan among the B·N positions; None where there is no padding."""
    mirror: Tensor | None
    """(R,): for each token of the scan the one that the reverse has in its place; None where there is no padding."""
    lengths: ClassVar[None] = None
    """There are no padded tokens in a packed scan."""

    @classmethod
    def of(cls, x: Tensor, present: Padding | None) -> "PackedOrder":
        """The order for x (B, N, D), whose tokens `present` names. It waits for lengths on a GPU."""
        B, N = x.shape[:2]
        if present is None:
            return cls(B, N, (B,) * N if B else (), None, None, None)
        lengths_B = _row_lengths(present, B).to("cpu")  # the steps are counted on the CPU
        if B and int(lengths_B.max()) > N:
            raise checks.wrong("lengths", f"at most the number of tokens, {N}", int(lengths_B.max()))
        if B and N and int(lengths_B.min()) == N:
            return cls(B, N, (B,) * N, None, None, None)
        sorted_B, order_B = torch.sort(lengths_B, descending=True, stable=True)
        longest = int(sorted_B[0]) if B else 0
        step_L1 = torch.arange(longest).unsqueeze(-1)
        present_LB = step_L1 < sorted_B
        first_B = torch.zeros_like(sorted_B) if present.side == "right" else N - sorted_B
        position_LB = order_B * N + first_B + step_L1
        sizes_L1 = present_LB.sum(1, keepdim=True)
        turn_LB = sizes_L1.cumsum(0) - sizes_L1 + torch.arange(B)  # the index of a token in the scan
        mirror_LB = turn_LB.gather(0, (sorted_B - 1 - step_L1).clamp(min=0))
        sizes = tuple(sizes_L1.flatten().tolist())
        order = None if bool((order_B == torch.arange(B)).all()) else order_B.to(x.device)
        return cls(B, N, sizes, order, position_LB[present_LB].to(x.device), mirror_LB[present_LB].to(x.device))

    @property
    def alive(self) -> int:
        """The number of rows that have a token."""
        return self.sizes[0] if self.sizes else 0

    def gather(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (R, D): the tokens in the order of the scan."""
        if self.index is None:
            return x.transpose(0, 1).flatten(0, 1)
        return x.flatten(0, 1).index_select(0, self.index)

    def scatter(self, tokens: Tensor) -> Tensor:
        """(R, D) -> (B, N, D): each token at its own position, zeros in the padding."""
        if self.index is None:
            return tokens.unflatten(0, (self.columns, self.rows)).transpose(0, 1)
        empty = tokens.new_zeros(self.rows * self.columns, tokens.shape[-1])
        return empty.index_copy(0, self.index, tokens).unflatten(0, (self.rows, self.columns))

    def reverse(self, tokens: Tensor) -> Tensor:
        """(R, D) -> (R, D): from the order of the scan to that of the reverse, or back."""
        if self.mirror is None:
            return tokens.unflatten(0, (self.columns, self.rows)).flip(0).flatten(0, 1)
        return tokens.index_select(0, self.mirror)

    def arrange(self, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Sort the states (B, D) of all rows like the scan: longest row first, rows without tokens left out."""
        if self.order is not None:
            state = tuple(memory.index_select(0, self.order) for memory in state)
        return state if self.alive == self.rows else tuple(memory[:self.alive] for memory in state)

    def restore(self, final: tuple[Tensor, ...], before: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Undo `arrange`; rows without tokens keep the state that they had before."""
        if self.order is None:
            if self.alive == self.rows:
                return final
            return tuple(torch.cat([new, old[self.alive:].to(new.dtype)])
                         for new, old in zip(final, before, strict=True))
        rows = self.order[:self.alive]
        return tuple(old.to(new.dtype).index_copy(0, rows, new) for new, old in zip(final, before, strict=True))


@dataclass(frozen=True)
class PaddedOrder:
    """The order of a batch of `rows` sequences, padded to `columns` tokens each, for any lengths.

    Every row stays where it is, its tokens first and then its padding. Nothing is copied from the device.
    """

    rows: int
    columns: int
    lengths: Tensor
    """(B,): the number of tokens of each row. Values are not checked: they are clamped to 0 .. N."""
    side: str
    """The side of the padding, "left" or "right"."""

    @classmethod
    def of(cls, x: Tensor, present: Padding) -> "PaddedOrder":
        """The order for x (B, N, D), whose tokens `present` names."""
        B, N = x.shape[:2]
        return cls(B, N, _row_lengths(present, B).to(x.device).clamp(0, N), present.side)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of rows at each step: all of them."""
        return (self.rows,) * self.columns if self.rows else ()

    def gather(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (R, D): the tokens in the order of the scan; padding becomes zeros."""
        if self.side == "left":
            x = self._rotated(x, -self.lengths)
        return x.transpose(0, 1).masked_fill(self._absent(), 0.0).flatten(0, 1)

    def scatter(self, tokens: Tensor) -> Tensor:
        """(R, D) -> (B, N, D): each token at its own position, zeros in the padding."""
        y = tokens.unflatten(0, (self.columns, self.rows)).masked_fill(self._absent(), 0.0).transpose(0, 1)
        return self._rotated(y, self.lengths) if self.side == "left" else y

    def reverse(self, tokens: Tensor) -> Tensor:
        """(R, D) -> (R, D): from the order of the scan to that of the reverse, or back. Padding stays where it is."""
        step_N1 = self._steps().unsqueeze(-1)
        mirror_NB = torch.where(step_N1 < self.lengths, self.lengths - 1 - step_N1, step_N1)
        index_NB = mirror_NB * self.rows + torch.arange(self.rows, device=tokens.device)
        return tokens.index_select(0, index_NB.flatten())

    def arrange(self, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The states (B, D) as they are: rows are not sorted."""
        return state

    def restore(self, final: tuple[Tensor, ...], before: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The final states as they are: the scan has kept the state of rows without tokens."""
        return final

    def _steps(self) -> Tensor:
        return torch.arange(self.columns, device=self.lengths.device)

    def _absent(self) -> Tensor:
        """(N, B, 1): whether a row has ended before a step."""
        return (self._steps().unsqueeze(-1) >= self.lengths).unsqueeze(-1)

    def _rotated(self, x: Tensor, shift_B: Tensor) -> Tensor:
        """Rotate each row of x (B, N, D): position n gets the token at n + shift, modulo N."""
        position_BN = (self._steps() + shift_B.unsqueeze(-1)) % max(1, self.columns)
        index_BN = position_BN + self.columns * torch.arange(self.rows, device=x.device).unsqueeze(-1)
        return x.flatten(0, 1).index_select(0, index_BN.flatten()).view_as(x)


def scan_order(x: Tensor, present: Padding | None) -> PackedOrder | PaddedOrder:
    """The order for x (B, N, D), whose tokens `present` names; packed, unless both are on a GPU.

    While compiling and inside of torch.func the lengths cannot be read, so that the order is padded there too.
    """
    if isinstance(present, Padding):
        on_gpu = "cpu" not in (x.device.type, present.lengths.device.type)
        if on_gpu or (present.lengths.device.type == "cpu" and not is_readable(present.lengths)):
            return PaddedOrder.of(x, present)
    return PackedOrder.of(x, present)


def _row_lengths(present: Padding, rows: int) -> Tensor:
    """(B,): the number of tokens of each row."""
    if not isinstance(present, Padding):
        raise checks.wrong("present", "a regard.Padding or None", *checks.kind(present))
    if present.lengths.shape not in ((), (1,), (rows,)):
        raise checks.wrong("lengths", f"one for each of the {rows} rows", f"of shape {checks.shape(present.lengths)}")
    return present.lengths.expand(rows)
