r"""Words as labels in a terminal or a picture: invisible characters are shown by code point, long words truncated.

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
"""What is shown for a space, for an empty word, for truncated text, and below a combining mark without a letter."""
INVISIBLE = "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"
"""Characters that are printable according to Unicode, and invisible."""
MAX_COLUMNS = 24
"""The width of a word label in columns."""
BLACK_FLAG = "\U0001f3f4"
JOINERS = "\u200c\u200d"
MAX_CLUSTER = 16
"""The number of code points of one cluster: a letter with its marks, or joined emoji."""


def is_visible(char: str) -> bool:
    """Whether a character is visible, and not a control character. A combining mark is visible, a space is not."""
    return bool(char) and char.isprintable() and char not in INVISIBLE and char != " "


def code_point(char: str) -> str:
    """The code point of an invisible character, as a label."""
    return f"‹U+{ord(char):04X}›"


def is_variation_selector(char: str) -> bool:
    """Whether a character selects the form of the one before. A second one has no effect, and could hide data."""
    return "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef"


def word_label(text: str, width: int = MAX_COLUMNS) -> str:
    """The label of a word or a token; spaces are shown."""
    return _truncate(_clusters(text, SPACE), width) or EMPTY


def text_label(text: str, width: int) -> str:
    """The label of a title or a sentence; spaces stay spaces."""
    return _truncate(_clusters(text, " "), width)


def label_step(count: int, limit: int, size: int = 1) -> int:
    """Every how many words one is labelled, if there is room for `limit` labels and a cell has `size` words."""
    return max(size, math.ceil(count / limit))


def axis_labels(words: Sequence[str], size: int, limit: int) -> tuple[list[float], list[str]]:
    """Positions of labels among cells of `size` words, and their texts; with word numbers if not every word has one."""
    step = label_step(len(words), limit, size)
    labelled = range(0, len(words), step)
    texts = [word_label(words[number]) for number in labelled]
    return ([(number + 0.5) / size - 0.5 for number in labelled],
            texts if step == 1 else [f"{number} {text}" for number, text in zip(labelled, texts, strict=True)])


def describe_label_step(rows: int, columns: int, size: int, limit: int) -> list[str]:
    """A note on how many words are labelled, if not all are."""
    steps = {"row": label_step(rows, limit, size), "column": label_step(columns, limit, size)}
    parts = [f"one {what} in {step}" for what, step in steps.items() if step > 1]
    return [f"{' and '.join(parts)} {'are' if len(parts) > 1 else 'is'} labelled"] if parts else []


def display_width(text: str) -> int:
    """The width of a text in terminal columns, according to Unicode."""
    return sum(_char_width(char) for char in text)


def _clusters(text: str, space: str) -> list[str]:
    """The clusters that are drawn, each one character with its marks, or a code point."""
    clusters: list[str] = []
    open_ = False  # whether the last cluster takes marks and joiners
    characters = unicodedata.normalize("NFC", text)
    for number, char in enumerate(characters):
        following = characters[number + 1:number + 2]
        if unicodedata.category(char) == "Zs":
            clusters.append(space)
            open_ = False
        elif open_ and (_modifies(char, clusters[-1]) or (char in JOINERS and is_visible(following))):
            clusters[-1] = _extend(clusters[-1], char)
        elif not is_visible(char) or (open_ and is_variation_selector(char)):
            clusters.append(code_point(char))
            open_ = False
        elif open_ and (_is_mark(char) or characters[number - 1] == "\u200d"):
            clusters[-1] = _extend(clusters[-1], char)
        else:
            clusters.append(CIRCLE + char if _is_mark(char) else char)
            open_ = True
    return clusters


def _modifies(char: str, cluster: str) -> bool:
    """Whether a character modifies the one before: a variation selector, a skin tone, or a tag of a flag."""
    if "\U000e0020" <= char <= "\U000e007f":
        return cluster.startswith(BLACK_FLAG)
    if "\U0001f3fb" <= char <= "\U0001f3ff":
        return True
    return is_variation_selector(char) and not is_variation_selector(cluster[-1])


def _is_mark(char: str) -> bool:
    return unicodedata.category(char) in ("Mn", "Me", "Mc")


def _extend(cluster: str, char: str) -> str:
    if len(cluster) < MAX_CLUSTER:
        return cluster + char
    return cluster if cluster.endswith(ELLIPSIS) else cluster + ELLIPSIS


def _char_width(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _truncate(clusters: list[str], width: int) -> str:
    if sum(map(display_width, clusters)) <= width:
        return "".join(clusters)
    kept, used = [], 1
    for cluster in clusters:
        used += display_width(cluster)
        if used > width:
            break
        kept.append(cluster)
    return "".join(kept) + ELLIPSIS
