"""Which ids have a meaning of their own: where a sequence starts and ends, what fills up, what hides.

Ids alone: how they are written in a text is the tokenizer's matter. A model's folder stores them beside its config.
"""

from dataclasses import dataclass

from regard.config import Config, whole


@dataclass(frozen=True, kw_only=True)
class SpecialConfig(Config):
    """The special ids of a model, each None where it has none."""

    start: int | None = whole(None, least=0)
    """What a decoder reads first."""
    end: tuple[int, ...] = whole((), least=0)
    """What says that a sequence is over: any of these."""
    padding: int | None = whole(None, least=0)
    unknown: int | None = whole(None, least=0)
    mask: int | None = whole(None, least=0)
    """What stands for a hidden token."""
    first: int | None = whole(None, least=0)
    """What a reading model has in front of every text (BERT's [CLS])."""
    separator: int | None = whole(None, least=0)
    """What stands behind every text of several (BERT's [SEP])."""

    def ids(self) -> frozenset[int]:
        """All of them."""
        single = (self.start, self.padding, self.unknown, self.mask, self.first, self.separator)
        return frozenset((*self.end, *(one for one in single if one is not None)))
