"""One run of an attention: a look, or the steps that go on from each other and are the rows of one.

    the same keys                    cross-attention, step by step
    the same keys and one more       self-attention with a cache, and the tape of an LSTMN

A step has one query for every row of the batch. It knows looks and nothing of where they are kept.

Legend: B rows of a batch, n queries, N keys.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.look import Look
from regard.attention.mask import All, Allowed, Causal, Mask, Window, as_mask

AnyMask = Mask | Tensor | None


class _Step(NamedTuple):
    """What a layer gave last: sizes, places in memory, and of what is not kept the last key."""

    query: torch.Size
    key: torch.Size
    query_place: int
    key_place: int
    mask: AnyMask
    tail: Tensor | None
    held: object


class Run:
    """The looks of one run. `strict`: a token does not see itself, but only what is before it."""

    def __init__(self, strict: bool) -> None:
        self.strict = strict
        self.pieces: list[Look] = []
        """What is kept of each look; only the last has the keys."""
        self.bytes = 0
        self.lost = False
        """It was not kept, because there was no room for all of it."""
        self._before: _Step | None = None
        self._grows: bool | None = None
        self._whole: Look | None = None

    def goes_on(self, look: Look) -> bool:
        """Whether this look, as the layer gave it, is the next step of the run."""
        before, query, key = self._before, look.query.shape, look.key.shape
        if before is None or query[-2] != 1 or len(query) != 4:
            return False
        if query[:-2] != before.query[:-2] or key[:-2] != before.key[:-2]:
            return False
        N = before.key[-2]
        if key[-2] == N and not self.strict:
            same = look.mask is before.mask and look.key.data_ptr() == before.key_place
            return same and look.query.data_ptr() != before.query_place and not self._grows and before.query[-2] == 1
        if key[-2] != N + 1 or self._grows is False or not self._masks_go_on(look.mask, before):
            return False
        # The same sequence, and not another one in its place: the keys before are what they were.
        known = self.pieces[-1].key if before.tail is None else before.tail
        return N == 0 or torch.equal(look.key[..., N - known.shape[-2]:N, :], known)

    def note(self, look: Look) -> None:
        """Remember what the layer gave, to know what goes on from it."""
        if self._before is not None:
            self._grows = look.key.shape[-2] > self._before.key[-2]
        one = look.query.shape[-2] == 1 and not self._grows and not self.strict
        # What is held has a place in memory that nothing else can have as long as it is.
        held = (look.query, look.key) if one else None
        N = look.key.shape[-2]
        self._before = _Step(look.query.shape, look.key.shape, look.query.data_ptr(), look.key.data_ptr(), look.mask,
                             look.key[..., N - 1:, :].clone() if self.lost and N else None, held)

    def add(self, piece: Look) -> None:
        """Keep a look. The keys of the one before it are in its own."""
        if self.pieces:
            self.pieces[-1] = replace(self.pieces[-1], key=piece.key[..., :0, :])
        self.pieces.append(piece)
        self._whole = None

    def lose(self) -> None:
        """Keep nothing of it."""
        self.pieces, self.bytes, self.lost, self._whole = [], 0, True, None

    def look(self) -> Look | None:
        """All rows together; None where it was not kept."""
        if self._whole is None and self.pieces:
            self._whole = self._together()
        return self._whole

    def _masks_go_on(self, mask: AnyMask, before: "_Step") -> bool:
        if self.strict:
            return all(one is None or type(one) is Allowed for one in (mask, before.mask))
        if not _of_distance(mask):
            return False
        first = mask if before.query[-2] == 1 else Causal() if mask is None else Causal() & as_mask(mask)
        return repr(before.mask) == repr(first)

    def _together(self) -> Look:
        last = self.pieces[-1]
        if len(self.pieces) == 1 and not self.strict:
            return last
        query, key, mask = torch.cat([piece.query for piece in self.pieces], dim=-2), last.key, last.mask
        if self.strict:
            # The key of the last token is seen by nobody, and is not there; a column for it makes the map square.
            key = torch.nn.functional.pad(key, (0, 0, 0, 1))
            count = key.shape[-2]
            mask = _rows([piece.mask for piece in self.pieces], count - len(self.pieces), count, key.device)
        elif self._grows:
            mask = Causal() if mask is None else Causal() & as_mask(mask)
        return replace(last, query=query, key=key, mask=mask)


def _rows(masks: Sequence[AnyMask], first: int, count: int, device: torch.device) -> Mask:
    """The masks (B, 1, 1, N) of rows of which each sees one key more than the one before, the first of them `first`."""
    rows = []
    for number, mask in enumerate(masks):
        seen = first + number
        own = mask.tensor if isinstance(mask, Allowed) else torch.ones(1, 1, 1, seen, dtype=torch.bool, device=device)
        rows.append(torch.nn.functional.pad(own.expand(*own.shape[:-1], seen), (0, count - seen)))
    widest = max(len(row) for row in rows)
    return Allowed(torch.cat([row.expand(widest, -1, -1, -1) for row in rows], dim=-2))


def _of_distance(mask: AnyMask) -> bool:
    """Whether a mask says the same of every place, so that its name is all of it."""
    parts = mask.members if isinstance(mask, All) else (mask,)
    return all(part is None or type(part) in (Causal, Window) for part in parts)
