"""Words as a picture can show them: what cannot be seen is named, and what is too long is cut.

    word("chat")          chat
    word(" the\u200b")    ␣the‹U+200B›
    word("")              ∅
    sentence("a  b\n")    a  b‹U+000A›

Joiners stay where they join, so emoji and Persian words keep their form; alone they are named, as are controls, marks
of direction, blanks that are no spaces, and halves of surrogate pairs. So a picture holds no character that a renderer
would obey or that XML forbids. It does not know fonts, nor escape anything.
"""

import math
import unicodedata
from collections.abc import Sequence

from regard.inspection.unseen import CIRCLE, EMPTY, MORE, SPACE, named, seen, variant

ROOM = 24
"""Columns of a word; what is wider is cut."""
FLAG = "\U0001f3f4"
JOINERS = "\u200c\u200d"
LONGEST = 16
"""Code points in one place: a letter with all its marks, or emoji that are joined."""


def word(text: str, room: int = ROOM) -> str:
    """A word or a token, in which spaces count."""
    return _cut(_places(text, SPACE), room) or EMPTY


def sentence(text: str, room: int) -> str:
    """A title, in which spaces are spaces."""
    return _cut(_places(text, " "), room)


def step_of(count: int, most: int, size: int = 1) -> int:
    """Which of so many words, `size` in a cell, are named where there is room for `most`: each, each second, ..."""
    return max(size, math.ceil(count / most))


def labels(words: Sequence[str], size: int, most: int) -> tuple[list[float], list[str]]:
    """Where words stand among cells of `size` words each, and their names: with positions where not all are named."""
    step = step_of(len(words), most, size)
    chosen = range(0, len(words), step)
    return ([(number + 0.5) / size - 0.5 for number in chosen],
            [word(words[number]) if step == 1 else f"{number} {word(words[number])}" for number in chosen])


def thinned(rows: int, columns: int, size: int, most: int) -> list[str]:
    """How many words are named, where not all are."""
    steps = {"row": step_of(rows, most, size), "column": step_of(columns, most, size)}
    parts = [f"one {what} in {step}" for what, step in steps.items() if step > 1]
    return [f"{' and '.join(parts)} {'are' if len(parts) > 1 else 'is'} named"] if parts else []


def width(text: str) -> int:
    """How many columns a text takes, as far as Unicode says."""
    return sum(_columns(char) for char in text)


def _places(text: str, space: str) -> list[str]:
    """What is drawn, place by place."""
    places: list[str] = []
    open_ = False  # whether the last place takes marks and joiners
    characters = unicodedata.normalize("NFC", text)
    for number, char in enumerate(characters):
        following = characters[number + 1:number + 2]
        if unicodedata.category(char) == "Zs":
            places.append(space)
            open_ = False
        elif open_ and (_modifies(char, places[-1]) or (char in JOINERS and seen(following))):
            places[-1] = _more(places[-1], char)
        elif not seen(char) or (open_ and variant(char)):
            places.append(named(char))
            open_ = False
        elif open_ and (_is_mark(char) or characters[number - 1] == "\u200d"):
            places[-1] = _more(places[-1], char)
        else:
            places.append(CIRCLE + char if _is_mark(char) else char)
            open_ = True
    return places


def _modifies(char: str, place: str) -> bool:
    """Whether a character changes the one before: a variant, a skin tone, or a tag of a flag."""
    if "\U000e0020" <= char <= "\U000e007f":
        return place.startswith(FLAG)
    return "\U0001f3fb" <= char <= "\U0001f3ff" or (variant(char) and not variant(place[-1]))


def _is_mark(char: str) -> bool:
    return unicodedata.category(char) in ("Mn", "Me", "Mc")


def _more(place: str, char: str) -> str:
    if len(place) < LONGEST:
        return place + char
    return place if place.endswith(MORE) else place + MORE


def _columns(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _cut(places: list[str], room: int) -> str:
    if sum(map(width, places)) <= room:
        return "".join(places)
    kept, used = [], 1
    for place in places:
        used += width(place)
        if used > room:
            break
        kept.append(place)
    return "".join(kept) + MORE
