"""Attention over bands in Triton: softmax(q·k) v, where query i sees the keys first[i] ≤ j < last[i].

The band is cut into tiles on the device (`band_tiles`). Kernels for whole tiles (`band_whole`) and for parts of what is
longer (`band_parts`) run one after the other, whatever the lengths are, so that nobody waits for the device to say: the
one that has nothing to do is done at once. Both write every number of their tiles, once, and no sum is made by several
programs, so results are the same every time. Weights that are dropped are drawn from a counter and the seed, a number
on the device, so a recorded graph draws anew each time.

A query that sees nothing gets zeros. It does not know how bands come about. Triton's interpreter runs the same code on
a CPU, for tests.

Legend: B rows, H heads, N queries, M keys, D width, E width of the values.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from regard import kernels
from regard.attention.adjacent import room, whole
from regard.attention.kernels import band_parts, band_whole
from regard.kernels import once_differentiable

INTERPRETED: bool = triton.knobs.runtime.interpret
PARTS = 8 if INTERPRETED else 512
"""Programs that share the parts of long sequences, or find that there are none: enough to fill a large device."""


@dataclass(frozen=True)
class Runs:
    """Who sees whom: the ends of the runs, (B, H, N) and (B, H, M), and the tiles that they are cut into."""

    first: Tensor
    last: Tensor
    from_query: Tensor
    to_query: Tensor
    tiles: Tensor
    """(B, 2, room, 4): whole ones and parts, as `band_tiles.find` gives them."""
    counts: Tensor
    """(B, 2)"""

    @property
    def ends(self) -> tuple[Tensor, ...]:
        return self.first, self.last, self.from_query, self.to_query

    def of(self, kind: int) -> tuple[Tensor, Tensor]:
        return self.tiles[:, kind], self.counts[:, kind]

    @property
    def room(self) -> int:
        return self.tiles.shape[2]

    @property
    def strides(self) -> tuple[int, ...]:
        return (*self.first.stride()[:2], *self.from_query.stride()[:2], self.tiles.stride(0), self.counts.stride(0))


def tile_size(query: Tensor, value: Tensor) -> int:
    """Queries, and keys, of a tile: as many as there is room for on a chip beside their weights and gradients."""
    if INTERPRETED:
        return 16
    wide = max(query.shape[-1], value.shape[-1]) > 128
    return (32 if wide else 64) if query.element_size() == 2 else 16 if wide else 32


def attend(query: Tensor, key: Tensor, value: Tensor, runs: Runs, *, scale: float, dropout: float) -> Tensor:
    """(B, H, N, E) of query (B, H, N, D), key (B, key heads, M, D) and value (B, key heads, M, E).

    The tiles are of the `tile_size` of query and value.
    """
    drawn = torch.randint(1 << 31, (1,), device=query.device) if dropout else runs.counts  # not read
    output: Tensor = _Bands.apply(query, key, value, *runs.ends, runs.tiles, runs.counts, drawn, scale, dropout)
    return output


class _Bands(torch.autograd.Function):
    """The output, and the gradients of query, key and value."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, first: Tensor, last: Tensor, from_query: Tensor,
                to_query: Tensor, tiles: Tensor, counts: Tensor, seed: Tensor, scale: float, dropout: float) -> Tensor:
        query, key, value = _last_first(query), _last_first(key), _last_first(value)
        runs = Runs(first, last, from_query, to_query, tiles, counts)
        B, H, N, _ = query.shape
        M, E = value.shape[-2:]
        output = query.new_empty(B, N, H, E)
        logs = query.new_empty(B, H, N, dtype=torch.float32)
        strides = (*query.stride()[:3], *key.stride()[:3], *value.stride()[:3], *runs.strides)
        for kind, kernel in enumerate((band_whole.forward, band_parts.forward)):
            slots = _slots(kind, B * H, max(N, M), tile_size(query, value), runs.room)
            kernels.launch(kernel, (slots * B * H,), query, key, value, output, logs, *runs.ends, *runs.of(kind), seed,
                           *strides, N, M, H, H // key.shape[1], slots, runs.room, scale, dropout,
                           **_sizes(kind, query, value, dropout), maxnreg=_registers(kind, query, value))
        ctx.save_for_backward(query, key, value, output, logs, first, last, from_query, to_query, tiles, counts, seed)
        ctx.scale, ctx.dropout = scale, dropout
        return output.transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Any, ...]:
        query, key, value, output, logs, *tensors, seed = ctx.saved_tensors
        runs, above = Runs(*tensors), _last_first(upstream[0])
        B, H, N, _ = query.shape
        key_heads, M = value.shape[1:3]
        found = _gradients(query, key, value)
        strides = [stride for tensor in (query, key, value, above, *found) for stride in tensor.stride()[:3]]
        for kind, (kernel, outputs) in enumerate(((band_whole.backward, ()), (band_parts.backward, (output,)))):
            slots = _slots(kind, B * key_heads, max(N, M), tile_size(query, value), runs.room)
            kernels.launch(kernel, (slots * B * key_heads,), query, key, value, *outputs, above, logs, *found,
                           *runs.ends, *runs.of(kind), seed, *strides, *runs.strides, N, M, H, H // key_heads, slots,
                           runs.room, ctx.scale, ctx.dropout, **_sizes(kind, query, value, ctx.dropout))
        return (*found, *[None] * 9)


def _gradients(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """Memory for the gradients, laid out as their tensors are: where one product made several of them, what it has to
    read in its turn lies beside each other again."""
    if whole((query, key, value), 1) is not None:
        return room((query, key, value), 1)
    return (*room((query,), 1), *room((key, value), 1))


def _slots(kind: int, heads: int, tokens: int, size: int, room: int) -> int:
    """How many tiles of each head are begun at once, of as many as there may be; programs go on to the next ones.

    Where sequences are much shorter than a tile, more than three of four places in it are filled, and every tile has a
    program.
    """
    return min(room, max(1, PARTS // heads) if kind else triton.cdiv(4 * tokens, 3 * size) + 1)


def _sizes(kind: int, query: Tensor, value: Tensor, dropout: float) -> dict[str, Any]:
    """What the kernels are compiled for, and how."""
    width, value_width = query.shape[-1], value.shape[-1]
    return {"D": width, "padded_d": max(16, triton.next_power_of_2(width)), "E": value_width,
            "padded_e": max(16, triton.next_power_of_2(value_width)), "size": tile_size(query, value),
            "drops": dropout > 0.0, "precision": "ieee", "num_warps": 4,
            "num_stages": 2 if kind and query.element_size() == 2 else 1}  # parts go through loops, and read ahead


def _registers(kind: int, query: Tensor, value: Tensor) -> int | None:
    """Of a thread of a forward pass: whole tiles mostly wait for memory, and with so few four share a processor. The
    backward pass has more to hold, and is slower with a limit."""
    narrow = query.element_size() == 2 and max(query.shape[-1], value.shape[-1]) <= 64
    return 128 if narrow and not kind else None


def _last_first(tensor: Tensor) -> Tensor:
    """The features of a token side by side in memory."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()

