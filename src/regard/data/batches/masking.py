"""Hiding tokens, for models that say what is hidden.

Each token is chosen with a probability of `share`; of the chosen ones, most are hidden behind the mask id, some are
replaced by any ordinary id, and the rest stay as they are. The model must say what stood in their places (Devlin et al.
2019). Departure: every token is chosen on its own, by (seed, epoch, number of its sequence, place in it), so that a
sequence is masked in one way whatever batch it comes in, and in another way in the next epoch.

Special ids are never chosen, and never put in. It knows ids; it does not know what is learned from them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from regard import checks
from regard.config import Config, number
from regard.data.batches.batch import Batch, Layout, Reader
from regard.data.batches.buckets import Numbers
from regard.data.batches.order import below, key, uniform, words
from regard.data.store import Ragged
from regard.models.contract import IGNORED
from regard.models.special import SpecialConfig


@dataclass(frozen=True, kw_only=True)
class MaskingConfig(Config):
    """How much is hidden, and how."""

    share: float = number(0.15, least=0, most=1)
    """Of all tokens, those that the model must say."""
    hidden: float = number(0.8, least=0, most=1)
    """Of these, those that are hidden behind the mask id."""
    replaced: float = number(0.1, least=0, most=1)
    """Of these, those in whose place stands another id; the rest stay as they are."""

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """What does not go together: key, and why."""
        if self.hidden + self.replaced > 1:
            yield "replaced", f"hidden and replaced are parts of one whole, but add up to {self.hidden + self.replaced}"


@dataclass(frozen=True)
class Masked:
    """Makes batches in which some tokens are hidden, from texts as they are in a store."""

    read: Reader
    special: SpecialConfig
    vocabulary: int
    config: MaskingConfig
    layout: Layout
    seed: int
    ordinary: Numbers = field(init=False, repr=False, compare=False)
    """The ids that may be chosen and put in."""

    def __post_init__(self) -> None:
        if self.special.mask is None:
            raise checks.wrong("special", "with a mask", "without one")
        object.__setattr__(self, "ordinary", np.setdiff1d(np.arange(self.vocabulary), sorted(self.special.ids())))
        if not len(self.ordinary):
            raise checks.wrong("vocabulary", "larger than the special ids", self.vocabulary)

    def __call__(self, numbers: Numbers, epoch: int) -> Batch:
        """The batch of these numbers; with none of them, a batch without rows."""
        (text,) = self.read(numbers, epoch)
        places = np.arange(len(text.ids)) - np.repeat(np.cumsum(text.lengths) - text.lengths, text.lengths)
        token = words(key(self.seed, epoch, 0), np.repeat(numbers, text.lengths)) ^ places.astype(np.uint64)
        chosen = (uniform(key(self.seed, epoch, 1), token) < self.config.share) & np.isin(text.ids, self.ordinary)
        how = uniform(key(self.seed, epoch, 2), token)
        hidden = chosen & (how < self.config.hidden)
        replaced = chosen & ~hidden & (how < self.config.hidden + self.config.replaced)
        other = self.ordinary[below(len(self.ordinary), key(self.seed, epoch, 3), token)]
        seen = np.where(hidden, np.int64(self.special.mask or 0), np.where(replaced, other, text.ids))
        inputs = self.layout(Ragged(seen, text.lengths), self.special.padding or 0)
        labels = self.layout(Ragged(np.where(chosen, text.ids, IGNORED), text.lengths), IGNORED).ids
        return Batch(None, inputs, labels, numbers, int(chosen.sum()))
