"""Texts with blanks, "The ___ sleeps.": three underscores or more stand for one hidden token.

    [the ids of "The"] [MASK] [the ids of " sleeps."]

The text is normalised whole and then cut at its blanks, so that what stands around a blank has the ids that it has in a
whole text: a point behind a blank has no space in front of it. Where a tokenizer sets a space in front of the first
word, tokens begin with their space, and the hidden one too: the space in front of a blank belongs to it. It does not
know models.
"""

import re
from collections.abc import Sequence

from regard.data.tokenizer.contract import Tokenizer
from regard.data.tokenizer.surface import SurfaceTokenizer

BLANK = re.compile("_{3,}")
SHOWN = "___"


def with_blanks(tokenizer: Tokenizer, text: str, mask: int) -> list[int]:
    """The ids of a text, with `mask` in the place of each blank."""
    if not isinstance(tokenizer, SurfaceTokenizer):  # of others only whole texts are known to be cut as they should
        return _joined(tokenizer.encode_many([part.rstrip(" ") for part in BLANK.split(text)]), mask)
    first, *others = BLANK.split(tokenizer.normalise(text))
    parts = [tokenizer.prefix + first if first else "", *others]
    if tokenizer.prefix:
        parts = [*(part.removesuffix(tokenizer.prefix) for part in parts[:-1]), parts[-1]]
    cut = iter(tokenizer.cut([part for part in parts if part]))
    return _joined([next(cut) if part else [] for part in parts], mask)


def _joined(parts: Sequence[Sequence[int]], mask: int) -> list[int]:
    first, *others = parts
    return [*first, *(id_ for part in others for id_ in (mask, *part))]
