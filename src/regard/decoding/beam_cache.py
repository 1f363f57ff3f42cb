"""The state of beam search with packed decoder steps: hypotheses share the keys and values of common tokens.

    cache = BeamCache.of(state, rows)       hypotheses of the sequences of a `DecoderState`
    cache = cache.pick(rows)                after each step; hypotheses change places without copying a key
    cache, slots = cache.next_slots()       where the next tokens are written, and what they attend to

The hypotheses of one sequence have most of their tokens in common. A state with a row for each hypothesis stores such a
token in every row, copies it whenever hypotheses change places, and reads all copies at every step. Here the tokens of a
sequence are a tree in one storage: a token has a slot, and each hypothesis knows the slots of its own tokens. Attention
to all slots under a mask then is one operation for all sequences. Slots of tokens that no hypothesis continues are
written again. Keys contain their positions, so their order in the storage means nothing.

Legend: F sequences, W hypotheses of each, R = F·W rows, S slots of storage, n slots in use, G key heads, D width.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard import checks
from regard.blocks.block import BlockState
from regard.mixer import RowGroups, row_indices
from regard.models.encoder_decoder import DecoderState

RUN_BYTES = 100_000
"""Keys and values that attention reads in the time of one more call."""
MIN_SLOTS = 64
"""The slots for which there is storage at first; it is doubled when they are taken."""


AttendFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class BeamSlots(NamedTuple):
    """The slots of one step."""

    rows: Tensor
    """(R,): the positions of the tokens."""
    filled: int
    """The number of tokens of the longest hypothesis after the step."""
    index: Tensor
    """(R,): where the tokens are written in storage viewed as (F · S, ...)."""
    masks: list[Tensor]
    """(f, 1, W, n) for each run of f consecutive sequences: 0 for the slots that a hypothesis attends to, −∞ for
    others."""

    def write(self, storage: Tensor, new: Tensor) -> None:
        """Write keys and values (R, 2 · G · D)."""
        storage.flatten(0, 1).flatten(1).index_copy_(0, self.index, new)

    def attend(self, attend: AttendFunction, query: Tensor, storage: Tensor) -> Tensor:
        """The attention of queries (F, H, W, D) to the slots of their sequences."""
        found, first = list[Tensor](), 0
        for mask in self.masks:
            count, _, _, slots = mask.shape
            key, value = storage[first:first + count, :slots].permute(2, 0, 3, 1, 4)
            found.append(attend(query[first:first + count], key, value, mask))
            first += count
        return found[0] if len(found) == 1 else torch.cat(found)


@dataclass(frozen=True)
class BeamCache:
    """The state of W hypotheses of each of F sequences. Like other caches it is consumed by a step, `pick` or `put`."""

    blocks: tuple[BlockState, ...]
    """With the keys and values as mixer, (F or more, S, 2, G, D), finite everywhere; and the contexts."""
    attended: Tensor
    """(F, W, n): the slots of the tokens of each hypothesis."""
    positions: Tensor
    """(R,): the number of tokens of each hypothesis."""
    capacity: int
    """The maximum number of tokens of a hypothesis."""

    @staticmethod
    def of(state: DecoderState, rows: RowGroups) -> "BeamCache":
        """Hypotheses that continue the rows of a state of key-value caches: `rows.size` of them for each group."""
        assert rows.groups is not None
        sequences, positions = rows.groups, state.positions[rows.rows]
        cache = state.stack.blocks[0].mixer
        filled, slots = cache.filled, max(MIN_SLOTS, cache.filled + rows.size)
        blocks = []
        for block in state.stack.blocks:
            key, value = block.mixer.view(filled)
            storage = key.new_zeros(len(sequences), slots, 2, key.shape[1], key.shape[3])
            storage[:, :filled] = torch.stack([key, value], 1)[sequences].permute(0, 3, 1, 2, 4)
            blocks.append(BlockState(storage, None if block.context is None else block.context.pick(rows)))
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
        sizes = (used.scatter_(1, free, True) * torch.arange(1, count + width + 1)).amax(-1).tolist()
        count = max(sizes)
        attended = attended[..., :count]
        grown = self._with_storage(sequences, count)
        slots = grown.blocks[0].mixer.shape[1]
        index = (free + slots * torch.arange(sequences).unsqueeze(-1)).flatten()
        mask = torch.where(attended, 0.0, -torch.inf).unsqueeze(1)
        runs = _runs(sizes, RUN_BYTES // self.blocks[0].mixer[0, 0].nbytes)
        masks = [one[..., :most] for one, (_, most) in zip(mask.split([n for n, _ in runs]), runs, strict=True)]
        following = replace(grown, attended=attended, positions=self.positions + 1)
        return following, BeamSlots(self.positions, longest + 1, index, masks)

    def pick(self, rows: RowGroups) -> "BeamCache":
        """The hypotheses that continue these rows, each a row of the sequence that its group continues."""
        _, width, count = self.attended.shape
        index = row_indices(rows, self.positions)
        attended, positions = self.attended.flatten(0, 1)[index].view(-1, width, count), self.positions[index]
        picked = self if rows.groups is None else self._moved(rows.groups, rows.reuse_storage)
        blocks = tuple(replace(block, context=None if block.context is None else block.context.pick(rows))
                       for block in picked.blocks)
        return BeamCache(blocks, attended, positions, self.capacity)

    def put(self, rows: RowGroups, other: "BeamCache") -> "BeamCache":
        """Replace the sequences of these rows by those of another cache."""
        assert rows.groups is not None
        count, theirs = max(self.attended.shape[-1], other.attended.shape[-1]), other.attended.shape[-1]
        grown, blocks = self._with_storage(len(self.attended), count), []
        for mine, new in zip(grown.blocks, other.blocks, strict=True):
            mine.mixer[:, :count].index_fill_(0, rows.groups, 0.0)  # NaN would reach the new sequence
            mine.mixer[:, :theirs].index_copy_(0, rows.groups, new.mixer[:len(rows.groups), :theirs])
            context = None if mine.context is None or new.context is None else mine.context.put(rows, new.context)
            blocks.append(BlockState(mine.mixer, context))
        attended, new_attended = (pad(one.attended, (0, count - one.attended.shape[-1])) for one in (self, other))
        return BeamCache(tuple(blocks), attended.index_copy(0, rows.groups, new_attended),
                         self.positions.index_copy(0, row_indices(rows, self.positions), other.positions),
                         self.capacity)

    def _moved(self, sequences: Tensor, reuse_storage: bool) -> "BeamCache":
        """The storage of these sequences; those that stay where they are need not be copied."""
        count, used = len(sequences), self.attended.shape[-1]
        if not reuse_storage:
            return self._with_blocks([block.mixer[sequences] for block in self.blocks])
        grown = self._with_storage(count, used)
        moved = (sequences != torch.arange(count)).nonzero().squeeze(-1)
        if len(moved):
            for block in grown.blocks:
                tokens = block.mixer[:, :used]
                tokens.index_copy_(0, moved, tokens.index_select(0, sequences[moved]))
        return grown

    def _with_storage(self, sequences: int, slots: int) -> "BeamCache":
        """The same with storage for at least this many sequences and slots."""
        room, size = self.blocks[0].mixer.shape[:2]
        if sequences <= room and slots <= size:
            return self
        room = room if sequences <= room else sequences + sequences // 2  # for those that come later
        size = size if slots <= size else max(slots, 2 * size)
        grown = []
        for block in self.blocks:
            storage = block.mixer.new_zeros(room, size, *block.mixer.shape[2:])
            storage[:len(block.mixer), :block.mixer.shape[1]] = block.mixer
            grown.append(storage)
        return self._with_blocks(grown)

    def _with_blocks(self, storages: list[Tensor]) -> "BeamCache":
        return replace(self, blocks=tuple(replace(block, mixer=storage)
                                          for block, storage in zip(self.blocks, storages, strict=True)))


def _runs(sizes: list[int], waste: int) -> list[tuple[int, int]]:
    """Divide sequences into runs for attention: the number of sequences of each run, and the size of the largest one.

    Args:
        sizes: the number of slots of each sequence.
        waste: how many slots attention may read in vain before another run begins.
    """
    runs, count, most, wasted = list[tuple[int, int]](), 0, 0, 0
    for size in sizes:
        more = most - size if size <= most else (size - most) * count
        if count and wasted + more > waste:
            runs.append((count, most))
            count, most, wasted, more = 0, 0, 0, 0
        count, most, wasted = count + 1, max(most, size), wasted + more
    return [*runs, (count, most)]
