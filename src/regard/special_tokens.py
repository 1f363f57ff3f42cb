"""Special token ids: those that start and end a sequence, fill it up, stand for unknown words or hide tokens.

Only the ids: the tokenizer knows how they are written in a text. A model's folder stores them beside its config. This
module imports no torch, so tokenizers can use it.
"""

from dataclasses import dataclass

from regard.config import Config, integer


@dataclass(frozen=True, kw_only=True)
class SpecialTokens(Config):
    """The special ids of a model; None where it has none."""

    start: int | None = integer(None, minimum=0)
    """The first input of a decoder."""
    end: tuple[int, ...] = integer((), minimum=0)
    """The ids that end a sequence; any of them does."""
    padding: int | None = integer(None, minimum=0)
    unknown: int | None = integer(None, minimum=0)
    mask: int | None = integer(None, minimum=0)
    """The id that stands for a hidden token."""
    cls: int | None = integer(None, minimum=0, old="first")
    """The id before every text of an encoder (BERT's [CLS])."""
    separator: int | None = integer(None, minimum=0)
    """The id after every text of several (BERT's [SEP])."""

    def ids(self) -> frozenset[int]:
        """The set of all special ids."""
        single = (self.start, self.padding, self.unknown, self.mask, self.cls, self.separator)
        return frozenset((*self.end, *(one for one in single if one is not None)))
