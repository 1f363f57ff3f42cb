"""The decoder state of beam search with packed steps: hypotheses share the keys and values of common tokens.

    cache = BeamCache.of(state, rows)       hypotheses of the sequences of a `DecoderState`
    cache, slots = cache.next_slots()       where the next tokens are written, and what they attend to
    cache = cache.pick(rows)                hypotheses that change places, without copying a key

The hypotheses of one sequence have most of their tokens in common. A state with a row for each hypothesis stores such a
token in every row, copies it when hypotheses change places, and reads every copy at every step. Here the tokens of a
sequence are a tree in one storage: a token has a slot, and each hypothesis knows the slots of its own tokens. Attention
to all slots under a mask then is one operation for several sequences. Slots of tokens that no hypothesis continues are
written again. Keys contain their positions, so their order in the storage means nothing.

Legend: F sequences, W hypotheses of each, R = F·W rows, S slots of storage, n slots in use, G key heads, D width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard import checks
from regard.attention.cache import ContextCache
from regard.blocks.block import BlockState
from regard.mixer import RowGroups, row_indices
from regard.models.encoder_decoder import DecoderState

RUN_BYTES = 600_000
"""Bytes of keys and values that attention reads in the time of one more call."""
KEY_MULTIPLE = 16
"""A power of two. Attention on a CPU is fast for numbers of keys that fill vector registers: 15 keys take twice as long
as 16."""
MIN_SLOTS = 64
"""The slots for which there is storage at first."""
AttendFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Attention of queries (F, H, W, D) to keys and values (F, G, n, D) under a mask (F, 1, W, n)."""


class BeamStorage:
    """The keys and values of one layer: tokens (F, S, 2 · G · D), finite everywhere, and views of them."""

    def __init__(self, tokens: Tensor, key_heads: int) -> None:
        self.tokens, self.key_heads = tokens, key_heads
        self.rows = tokens.flatten(0, 1)
        """(F · S, 2 · G · D)"""
        self.keys, self.values = tokens.unflatten(-1, (2, key_heads, -1)).permute(2, 0, 3, 1, 4)
        """(F, G, S, D) each"""

    def resized(self, sequences: int, slots: int) -> "BeamStorage":
        """A copy of the first sequences in storage for this many, with at least as many slots as before."""
        kept, filled, width = self.tokens.shape
        tokens = self.tokens.new_empty(sequences, slots, width)
        tokens[:kept, :filled] = self.tokens[:sequences]
        tokens[:kept, filled:] = 0.0
        tokens[kept:] = 0.0
        return BeamStorage(tokens, self.key_heads)

    def move(self, sequences: Tensor, to: Tensor, slots: int) -> None:
        """Write the first slots of some sequences into the places of others."""
        tokens = self.tokens[:, :slots]
        tokens.index_copy_(0, to, tokens.index_select(0, sequences))

    def replace(self, sequences: Tensor, other: "BeamStorage", slots: int) -> None:
        """Replace sequences by the first ones of another storage, of which `slots` are in use."""
        self.tokens.index_fill_(0, sequences, 0.0)  # NaN would reach the new ones
        self.tokens[:, :slots].index_copy_(0, sequences, other.tokens[:len(sequences), :slots])


class AttentionRun(NamedTuple):
    """Consecutive sequences whose attention is one operation."""

    start: int
    stop: int
    keys: int
    """The number of keys that are read of each sequence."""


def attend_runs(attend: AttendFunction, query: Tensor, key: Tensor, value: Tensor, mask: Tensor,
                runs: Sequence[AttentionRun]) -> Tensor:
    """The attention of queries (F, H, W, D) to keys and values (F, G, n, D), run by run: (F, W, H · D).

    Args:
        mask: (F, 1, W or 1, n).
    """
    # Slices keep the GIL; other views release it, and wait for it again while another worker computes. The kernel
    # stores the heads of a query side by side, so that only `cat` copies.
    parts = [attend(query[start:stop], key[start:stop, :, :keys], value[start:stop, :, :keys],
                    mask[start:stop, ..., :keys]).transpose(1, 2).flatten(2) for start, stop, keys in runs]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


class BeamSlots(NamedTuple):
    """The slots of one step."""

    rows: Tensor
    """(R,): the positions of the tokens."""
    filled: int
    """The number of tokens of the longest hypothesis after the step."""
    places: Tensor
    """(R,): where the tokens are written in the rows of the storage."""
    width: int
    mask: Tensor
    """(F, 1, W, n): 0 for the slots that a hypothesis attends to, −∞ for others."""
    runs: list[AttentionRun]
    context_runs: list[AttentionRun]
    """Those of cross-attention."""

    def attend(self, attend: AttendFunction, storage: BeamStorage, query: Tensor, new: Tensor) -> Tensor:
        """Write new keys and values (R, 2 · G, 1, D); what queries (R, H, 1, D) read from their slots, (R, H · D)."""
        storage.rows.index_copy_(0, self.places, new.flatten(1))
        rows, heads, _, width = query.shape
        query_FHWD = query.view(-1, self.width, heads, width).transpose(1, 2)
        return attend_runs(attend, query_FHWD, storage.keys, storage.values, self.mask, self.runs).view(rows, -1)


@dataclass(frozen=True)
class BeamCache:
    """The state of W hypotheses of each of F sequences. Like other caches it is consumed by a step, `pick` or `put`."""

    blocks: tuple[BlockState, ...]
    """With a `BeamStorage` as mixer, for F sequences or more, and the contexts."""
    attended: Tensor
    """(F, W, n): the slots of the tokens of each hypothesis."""
    positions: Tensor
    """(R,): the number of tokens of each hypothesis."""
    capacity: int
    """The maximum number of tokens of a hypothesis."""

    @staticmethod
    def of(state: DecoderState, rows: RowGroups) -> "BeamCache":
        """Hypotheses that continue the rows of a state of key-value caches: `rows.size` of them for each group.

        It consumes the state, whose layers are `Attention`: their keys and values are projections.
        """
        assert rows.groups is not None
        sequences, positions = rows.groups, state.positions[rows.rows]
        cache = state.stack.blocks[0].mixer
        filled, slots = cache.filled, max(MIN_SLOTS, round_up(cache.filled + rows.size))
        blocks = []
        for block in state.stack.blocks:
            key, value = block.mixer.view(filled)
            storage = BeamStorage(key.new_zeros(len(sequences), slots, 2 * key.shape[1] * key.shape[3]), key.shape[1])
            if filled:
                storage.keys[:, :, :filled], storage.values[:, :, :filled] = key[sequences], value[sequences]
            blocks.append(BlockState(storage, _pick_context(block.context, replace(rows, reuse_storage=True))))
        attended = torch.arange(filled) < positions.unsqueeze(-1)
        return BeamCache(tuple(blocks), attended.view(len(sequences), rows.size, filled), positions, cache.capacity)

    def next_slots(self) -> "tuple[BeamCache, BeamSlots]":
        """Find a free slot for the next token of each hypothesis; a ValueError where the capacity is used up."""
        sequences, width, count = self.attended.shape
        longest = int(self.positions.max())
        if longest >= self.capacity:
            raise checks.wrong("capacity", f"at least {longest + 1}, for 1 token after {longest}", self.capacity)
        attended = pad(self.attended, (0, width))
        used = attended.any(1)
        free = used.byte().sort(dim=-1, stable=True).indices[:, :width]  # the first ones that are free
        attended.scatter_(2, free.unsqueeze(-1), True)
        sizes = round_up((used.scatter_(1, free, True) * torch.arange(1, count + width + 1)).amax(-1)).tolist()
        size = max(sizes)
        attended = attended[..., :size] if size <= attended.shape[-1] else pad(attended, (0, size - attended.shape[-1]))
        grown = self._with_storage(sequences, size)
        tokens, context = grown.blocks[0].mixer.tokens, grown.blocks[0].context
        places = (free + tokens.shape[1] * torch.arange(sequences).unsqueeze(-1)).flatten()
        mask = torch.where(attended, 0.0, -torch.inf).unsqueeze(1)
        runs = attention_runs(sizes, RUN_BYTES // tokens[0, 0].nbytes)
        context_runs = [] if context is None else _context_runs(context)
        following = replace(grown, attended=attended, positions=self.positions + 1)
        return following, BeamSlots(self.positions, longest + 1, places, width, mask, runs, context_runs)

    def pick(self, rows: RowGroups) -> "BeamCache":
        """The hypotheses that continue these rows, each a row of the sequence that its group continues."""
        _, width, count = self.attended.shape
        index = row_indices(rows, self.positions)
        attended = self.attended.flatten(0, 1)[index].view(len(index) // width, width, count)
        picked = self if rows.groups is None else self._moved(rows.groups, rows.reuse_storage)
        blocks = tuple(replace(block, context=_pick_context(block.context, rows)) for block in picked.blocks)
        return BeamCache(blocks, attended, self.positions[index], self.capacity)

    def put(self, rows: RowGroups, other: "BeamCache") -> "BeamCache":
        """Replace the sequences of these rows by those of another cache."""
        assert rows.groups is not None
        count, theirs = max(self.attended.shape[-1], other.attended.shape[-1]), other.attended.shape[-1]
        grown, blocks = self._with_storage(len(self.attended), count), []
        for mine, new in zip(grown.blocks, other.blocks, strict=True):
            mine.mixer.replace(rows.groups, new.mixer, theirs)
            context = None if mine.context is None or new.context is None else mine.context.put(rows, new.context)
            blocks.append(BlockState(mine.mixer, context))
        attended, new_attended = (pad(one.attended, (0, count - one.attended.shape[-1])) for one in (self, other))
        return BeamCache(tuple(blocks), attended.index_copy(0, rows.groups, new_attended),
                         self.positions.index_copy(0, row_indices(rows, self.positions), other.positions),
                         self.capacity)

    def _moved(self, sequences: Tensor, reuse_storage: bool) -> "BeamCache":
        """The storage of these sequences; those that stay where they are need not be copied."""
        count, slots = len(sequences), self.attended.shape[-1]
        if not reuse_storage:
            return self._with([BeamStorage(one.tokens[sequences], one.key_heads) for one in self._storages()])
        grown = self._with_storage(count, slots)
        moved = (sequences != torch.arange(count)).nonzero().squeeze(-1)
        for storage in grown._storages() if len(moved) else ():
            storage.move(sequences[moved], moved, slots)
        return grown

    def _with_storage(self, sequences: int, slots: int) -> "BeamCache":
        """The same with storage for at least this many sequences and slots.

        What is too small grows by half. If only the slots grow, storage of sequences that have left is dropped: the
        longest sequences of a large batch are few, and allocating memory is slow.
        """
        room, size, _ = self.blocks[0].mixer.tokens.shape
        if sequences <= room and slots <= size:
            return self
        room = sequences + sequences // 2 if sequences > room else sequences
        size = size if slots <= size else max(slots, round_up(size + size // 2))
        return self._with([one.resized(room, size) for one in self._storages()])

    def _storages(self) -> list[BeamStorage]:
        return [block.mixer for block in self.blocks]

    def _with(self, storages: list[BeamStorage]) -> "BeamCache":
        return replace(self, blocks=tuple(replace(block, mixer=storage)
                                          for block, storage in zip(self.blocks, storages, strict=True)))


def _pick_context(context: ContextCache | None, rows: RowGroups) -> ContextCache | None:
    """The contexts of the sequences that these rows continue."""
    if context is None or rows.groups is None or not rows.reuse_storage or len(rows.groups) > len(context.key):
        return None if context is None else context.pick(rows)
    assert context.rows_per_context == rows.previous_size
    return context.move(rows.groups, rows.size)


def round_up(count: Any) -> Any:
    """A number of keys, or a tensor of such numbers, as a multiple of KEY_MULTIPLE."""
    return (count + KEY_MULTIPLE - 1) & -KEY_MULTIPLE


def _context_runs(context: ContextCache) -> list[AttentionRun]:
    """The runs of cross-attention: batches begin with the longest sources, so that neighbours have similar lengths."""
    count, heads, states, width = context.key.shape
    if context.lengths is None:
        return [AttentionRun(0, count, states)]
    runs = attention_runs(round_up(context.lengths.clamp(min=1)).tolist(),
                          RUN_BYTES // (2 * heads * width * context.key.element_size()))
    return [run._replace(keys=min(run.keys, states)) for run in runs]


def attention_runs(sizes: list[int], waste: int) -> list[AttentionRun]:
    """Divide sequences into runs, whose attention reads the keys of the largest one.

    Args:
        sizes: the number of keys of each sequence.
        waste: how many keys attention may read in vain before another run begins.
    """
    runs, first, number, most, wasted = list[AttentionRun](), 0, 0, 0, 0
    for size, equal in groupby(sizes):
        count = len([*equal])
        more = (most - size) * count if size <= most else (size - most) * (number - first)
        if number > first and wasted + more > waste:
            runs.append(AttentionRun(first, number, most))
            first, most, wasted, more = number, 0, 0, 0
        number, most, wasted = number + count, max(most, size), wasted + more
    return [*runs, AttentionRun(first, number, most)]
