"""Words as labels in a terminal or a picture: invisible characters are shown by code point, long words truncated.

    word_label("chat")           chat
    word_label(" the\u200b")     ␣the‹U+200B›
    word_label("")               ∅
    text_label("a  b\n", 40)     a  b‹U+000A›

Joiners stay where they join, so emoji and Persian words keep their form; elsewhere they are shown by code point, as are
control characters, direction marks, blanks that are not spaces, and surrogate halves. So a picture holds no character
that a renderer would interpret or that XML forbids. This file does not know fonts, and escapes nothing.
"""

import math
import unicodedata
from collections.abc import Sequence

SPACE, EMPTY, ELLIPSIS, CIRCLE = "␣", "∅", "…", "◌"
INVISIBLE = "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"
"""Printable, as Unicode says, and not seen."""


def is_visible(char: str) -> bool:
    """Whether a character can be seen, and is none that a terminal or a renderer obeys. A mark is seen, a space not."""
    return bool(char) and char.isprintable() and char not in INVISIBLE and char != " "


def code_point(char: str) -> str:
    """What is shown for a character that is not seen."""
    return f"‹U+{ord(char):04X}›"


def is_variation_selector(char: str) -> bool:
    """Whether a character only chooses the form of the one before. A second one chooses nothing, and hides text."""
    return "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef"


# ---- signs: Words as a picture can show them: what cannot be seen is named, and what is too long is cut.
#
#     word("chat")          chat
#     word(" the​")    ␣the‹U+200B›
#     word("")              ∅
#     sentence("a  b
# ")    a  b‹U+000A›
#
# Joiners stay where they join, so emoji and Persian words keep their form; alone they are named, as are controls, marks
# of direction, blanks that are no spaces, and halves of surrogate pairs. So a picture holds no character that a renderer
# would obey or that XML forbids. It does not know fonts, nor escape anything.

MAX_COLUMNS = 24
"""Columns of a word; what is wider is cut."""
BLACK_FLAG = "\U0001f3f4"
JOINERS = "\u200c\u200d"
MAX_CLUSTER = 16
"""Code points in one place: a letter with all its marks, or emoji that are joined."""


def word_label(text: str, room: int = MAX_COLUMNS) -> str:
    """A word or a token, in which spaces count."""
    return _truncate(_clusters(text, SPACE), room) or EMPTY


def text_label(text: str, room: int) -> str:
    """A title, in which spaces are spaces."""
    return _truncate(_clusters(text, " "), room)


def label_step(count: int, most: int, size: int = 1) -> int:
    """Which of so many words, `size` in a cell, are named where there is room for `most`: each, each second, ..."""
    return max(size, math.ceil(count / most))


def axis_labels(words: Sequence[str], size: int, most: int) -> tuple[list[float], list[str]]:
    """Where words stand among cells of `size` words each, and their names: with positions where not all are named."""
    step = label_step(len(words), most, size)
    chosen = range(0, len(words), step)
    return ([(number + 0.5) / size - 0.5 for number in chosen],
            [word_label(words[number]) if step == 1 else f"{number} {word_label(words[number])}" for number in chosen])


def describe_label_step(rows: int, columns: int, size: int, most: int) -> list[str]:
    """How many words are named, where not all are."""
    steps = {"row": label_step(rows, most, size), "column": label_step(columns, most, size)}
    parts = [f"one {what} in {step}" for what, step in steps.items() if step > 1]
    return [f"{' and '.join(parts)} {'are' if len(parts) > 1 else 'is'} named"] if parts else []


def display_width(text: str) -> int:
    """How many columns a text takes, as far as Unicode says."""
    return sum(_char_width(char) for char in text)


def _clusters(text: str, space: str) -> list[str]:
    """What is drawn, place by place."""
    places: list[str] = []
    open_ = False  # whether the last place takes marks and joiners
    characters = unicodedata.normalize("NFC", text)
    for number, char in enumerate(characters):
        following = characters[number + 1:number + 2]
        if unicodedata.category(char) == "Zs":
            places.append(space)
            open_ = False
        elif open_ and (_modifies(char, places[-1]) or (char in JOINERS and is_visible(following))):
            places[-1] = _extend(places[-1], char)
        elif not is_visible(char) or (open_ and is_variation_selector(char)):
            places.append(code_point(char))
            open_ = False
        elif open_ and (_is_mark(char) or characters[number - 1] == "\u200d"):
            places[-1] = _extend(places[-1], char)
        else:
            places.append(CIRCLE + char if _is_mark(char) else char)
            open_ = True
    return places


def _modifies(char: str, place: str) -> bool:
    """Whether a character changes the one before: a variant, a skin tone, or a tag of a flag."""
    if "\U000e0020" <= char <= "\U000e007f":
        return place.startswith(BLACK_FLAG)
    return "\U0001f3fb" <= char <= "\U0001f3ff" or (is_variation_selector(char) and not is_variation_selector(place[-1]))


def _is_mark(char: str) -> bool:
    return unicodedata.category(char) in ("Mn", "Me", "Mc")


def _extend(place: str, char: str) -> str:
    if len(place) < MAX_CLUSTER:
        return place + char
    return place if place.endswith(ELLIPSIS) else place + ELLIPSIS


def _char_width(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _truncate(places: list[str], room: int) -> str:
    if sum(map(display_width, places)) <= room:
        return "".join(places)
    kept, used = [], 1
    for place in places:
        used += display_width(place)
        if used > room:
            break
        kept.append(place)
    return "".join(kept) + ELLIPSIS
