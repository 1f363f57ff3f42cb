"""From numbers of sequences to what a model reads and what it must answer.

    Batch(source, inputs, labels, numbers, tokens)

For a target y the inputs are [START] y and the labels y [END], so that the label at a position is the id that comes
next. Sequences lie in a batch in one of two layouts, `padded` (rows, filled up on the right) or `packed` (one after
another in a single row); labels that fill up are IGNORED.

    read = Stored(store)                     the ids as they are in the store
    read = Sampled(texts, encoders, seed)    the texts encoded anew, otherwise in every epoch: subword sampling
    Shifted(read, Ends.of(special), padded)  makes batches: pairs for an encoder-decoder, texts for a language model

It does not know which numbers come when, nor how a text is encoded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard import checks
from regard.data.batches.buckets import Numbers
from regard.data.batches.order import key
from regard.data.store import Ragged, Store
from regard.models.contract import IGNORED, AnyTokens, PackedTokens, Tokens
from regard.models.special import SpecialConfig

Reader = Callable[[Numbers, int], tuple[Ragged, ...]]
"""(numbers, epoch) -> their sequences, a Ragged for each side."""
Encoder = Callable[[str, int], Sequence[int]]
"""(text, seed) -> ids"""
Layout = Callable[[Ragged, int], AnyTokens]
"""(sequences, what fills up) -> a batch of them"""


@dataclass(frozen=True)
class Batch:
    """What a model reads, and what it must answer."""

    source: AnyTokens | None
    """What an encoder reads; None where there is one side only."""
    inputs: AnyTokens
    """What the decoder, or a model of one side, reads."""
    labels: Tensor
    """Of the shape of inputs.ids: the id that belongs there, or IGNORED."""
    numbers: Numbers
    """Which pairs or texts these are, by their numbers in the store."""
    tokens: int
    """How many labels are not IGNORED."""

    @property
    def rows(self) -> int:
        """How many sequences there are, those without tokens counted."""
        return self.inputs.rows

    def to(self, device: "torch.device | str") -> "Batch":
        """The same on a device."""
        source = None if self.source is None else self.source.to(device)
        return Batch(source, self.inputs.to(device), self.labels.to(device), self.numbers, self.tokens)


class Ends(NamedTuple):
    """The ids around a target, and the one that fills up."""

    start: int
    end: int
    padding: int

    @staticmethod
    def of(special: SpecialConfig) -> "Ends":
        """Those of a model. Where several ids end a text, the first of them is learned."""
        if special.start is None or not special.end:
            missing = "start" if special.start is None else "end"
            raise checks.wrong("special", "with a start and an end", f"without {missing}")
        return Ends(special.start, special.end[0], special.padding or 0)


@dataclass(frozen=True)
class Stored:
    """Reads sequences as they are in a store."""

    store: Store

    def __call__(self, numbers: Numbers, epoch: int) -> tuple[Ragged, ...]:
        return self.store.gather(numbers)


@dataclass(frozen=True)
class Sampled:
    """Reads texts, kept in a store as their bytes in UTF-8, and encodes each anew for every epoch.

    The lengths are then others than those that batches were planned for: a budget is kept on average alone.
    """

    texts: Store
    encoders: tuple[Encoder, ...]
    """One a side; each is given the text, and a seed that follows from (seed, epoch, number, side)."""
    seed: int

    def __call__(self, numbers: Numbers, epoch: int) -> tuple[Ragged, ...]:
        sides = enumerate(zip(self.texts.gather(numbers), self.encoders, strict=True))
        return tuple(_encoded(bytes_, encode, [key(self.seed, epoch, int(number), side) for number in numbers])
                     for side, (bytes_, encode) in sides)


@dataclass(frozen=True)
class Shifted:
    """Makes batches in which a target is shifted by one. Of two sides the first is the source, which stays as it is."""

    read: Reader
    ends: Ends
    layout: Layout

    def __call__(self, numbers: Numbers, epoch: int) -> Batch:
        """The batch of these numbers; with none of them, a batch without rows."""
        *sources, target = self.read(numbers, epoch)
        source = self.layout(sources[0], self.ends.padding) if sources else None
        inputs = self.layout(opened(target, self.ends.start), self.ends.padding)
        labels = self.layout(closed(target, self.ends.end), IGNORED).ids
        return Batch(source, inputs, labels, numbers, len(target.ids) + len(target.lengths))


def padded(sequences: Ragged, padding: int) -> Tokens:
    """Rows that are filled up on the right."""
    lengths = sequences.lengths
    ids_BN = np.full((len(lengths), int(lengths.max(initial=0))), padding, np.int64)
    ids_BN[np.arange(ids_BN.shape[1]) < lengths[:, None]] = sequences.ids
    return Tokens(torch.from_numpy(ids_BN), torch.from_numpy(lengths.astype(np.int64)))


def packed(sequences: Ragged, padding: int) -> PackedTokens:
    """One after another in a single row; nothing is filled up."""
    return PackedTokens(torch.from_numpy(sequences.ids).unsqueeze(0), torch.from_numpy(sequences.lengths))


LAYOUTS: dict[str, Layout] = {"padded": padded, "packed": packed}


def opened(sequences: Ragged, first: int) -> Ragged:
    """The same sequences with this id in front of each."""
    return Ragged(np.insert(sequences.ids, np.cumsum(sequences.lengths) - sequences.lengths, first),
                  sequences.lengths + 1)


def closed(sequences: Ragged, last: int) -> Ragged:
    """The same sequences with this id behind each."""
    return Ragged(np.insert(sequences.ids, np.cumsum(sequences.lengths), last), sequences.lengths + 1)


def _encoded(texts: Ragged, encode: Encoder, seeds: list[int]) -> Ragged:
    pieces = np.split(texts.ids.astype(np.uint8), np.cumsum(texts.lengths))[:len(seeds)]
    sequences = [encode(piece.tobytes().decode(), seed) for piece, seed in zip(pieces, seeds, strict=True)]
    ids = [np.asarray(sequence, np.int64) for sequence in sequences]
    return Ragged(np.concatenate([*ids, np.zeros(0, np.int64)]), np.array([len(one) for one in ids], np.int64))
