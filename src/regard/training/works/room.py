"""How long a text may be for a model; longer ones are cut. It does not know what else a model is."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from regard import checks
from regard.data.batches.batch import Reader
from regard.data.batches.buckets import Numbers
from regard.data.batches.plan import Shape
from regard.data.store import Ragged, TextStore
from regard.position.encoding import LearnedConfig
from regard.training.settings import TrainingConfig


@dataclass(frozen=True)
class Shortened:
    """Reads sequences as another reader does, and of each the first `longest` ids alone."""

    read: Reader
    longest: int

    def __call__(self, numbers: Numbers, epoch: int) -> tuple[Ragged, ...]:
        return tuple(_shortened(side, self.longest) for side in self.read(numbers, epoch))


def positions(made_from: Any) -> int | None:
    """How many tokens a model that reads tokens knows positions for; None where there is no end."""
    known = made_from.embedding.positions
    return known.count if isinstance(known, LearnedConfig) else None


def shortened(read: Reader, room: int | None) -> Reader:
    """A reader of what a model has room for."""
    return read if room is None else Shortened(read, room)


def shapes(known: tuple[Shape, ...], room: int | None) -> tuple[Shape, ...]:
    """Shapes of batches, of what a model has room for."""
    if room is None:
        return known
    return tuple(Shape(shape.rows, tuple(min(length, room) for length in shape.lengths)) for shape in known)


def cut_note(store: TextStore, room: int | None) -> tuple[str, ...]:
    """What a person should know of texts that are too long."""
    many = 0 if room is None else int((lengths(store) > room).sum())
    note = f"{many:,} of {len(store):,} texts are longer than the {room} positions of the model, and are cut."
    return (note,) if many else ()


def lengths(store: TextStore) -> Numbers:
    """How many ids each text has."""
    return store.sides[0].lengths(0, len(store))


def refuse_sampling(settings: TrainingConfig) -> None:
    """Refuse what only pairs of texts are learned with."""
    if settings.sampling:
        raise checks.wrong("training.sampling", "0: only translation cuts its texts anew in every epoch",
                           settings.sampling)


def _shortened(sequences: Ragged, longest: int) -> Ragged:
    places = np.arange(len(sequences.ids)) - np.repeat(np.cumsum(sequences.lengths) - sequences.lengths,
                                                       sequences.lengths)
    return Ragged(sequences.ids[places < longest], np.minimum(sequences.lengths, longest))
