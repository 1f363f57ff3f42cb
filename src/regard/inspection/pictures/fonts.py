"""Which fonts of this machine have the characters that a picture shows.

DejaVu Sans comes with matplotlib and has the alphabets of most languages. For what it lacks, fonts of the machine are
looked through; for what none has, there is a font of boxes, each with a sign of its script, and the picture says so. So
no word is left out in silence, and matplotlib has nothing to warn of. It does not know what the characters mean.
"""

import functools
from collections.abc import Iterable
from typing import NamedTuple

FIRST = "DejaVu Sans"
LAST = "Last Resort High-Efficiency"
"""It comes with matplotlib too: a box for every character that there is."""
BITMAPS = ("Color Emoji", "ColorEmoji")
"""Fonts of coloured pictures, which matplotlib cannot draw."""


class Choice(NamedTuple):
    """Font families, in the order in which a character is looked for, and the characters that are in none."""

    families: tuple[str, ...]
    missing: tuple[str, ...]


def choose(texts: Iterable[str]) -> Choice:
    """Families that have every character of these texts, as far as the fonts of this machine do."""
    needed = frozenset(map(ord, "".join(texts)))
    return _chosen(frozenset(code for code in needed if code > 0x7e))


@functools.lru_cache(maxsize=256)
def _chosen(needed: frozenset[int]) -> Choice:
    families, missing = [FIRST], set(needed) - _characters(_first())
    while missing:
        # The one that has most of them: letters of one word should not come from many fonts.
        name, path = max(_fonts().items(), key=lambda font: len(missing & _characters(font[1])))
        if not missing & _characters(path):
            families.append(LAST)
            break
        families.append(name)
        missing -= _characters(path)
    return Choice(tuple(families), tuple(chr(code) for code in sorted(missing)))


def _first() -> str:
    """The file that matplotlib takes for the first font: its own, or one of the machine."""
    from matplotlib.font_manager import fontManager

    return str(fontManager.findfont(FIRST))


@functools.cache
def _fonts() -> dict[str, str]:
    """Names and files of upright fonts of a usual weight: ours first, then sans-serif ones, in one order always."""
    from matplotlib.font_manager import fontManager

    found = {font.name: font.fname for font in sorted(fontManager.ttflist, key=lambda font: font.fname, reverse=True)
             if font.style == "normal" and font.weight in (400, "normal", "regular", "book")
             and font.name != LAST and not any(part in font.name for part in BITMAPS)}
    return dict(sorted(found.items(), key=lambda font: (font[0] != FIRST, "Sans" not in font[0], font)))


@functools.cache
def _characters(path: str) -> frozenset[int]:
    """The code points that a font file has; none where it cannot be read or drawn."""
    from matplotlib.font_manager import get_font

    try:
        font = get_font(path)
    except (OSError, RuntimeError):  # a file that has gone, or that FreeType does not understand
        return frozenset()
    return frozenset(font.get_charmap()) if font.scalable else frozenset()
