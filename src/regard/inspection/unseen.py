r"""Characters that nobody sees, and what is shown for them: the same in a terminal and in a picture.

    named("\u200b")    ‹U+200B›
    SPACE              ␣         any space
    EMPTY              ∅         a text without characters
    CIRCLE             ◌         below a mark that stands on nothing
    MORE               …         where something is cut

It knows characters one by one; which of them belong together is known to whoever draws.
"""

SPACE, EMPTY, MORE, CIRCLE = "␣", "∅", "…", "◌"
BLANKS = "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"
"""Printable, as Unicode says, and not seen."""


def seen(char: str) -> bool:
    """Whether a character can be seen, and is none that a terminal or a renderer obeys. A mark is seen, a space not."""
    return bool(char) and char.isprintable() and char not in BLANKS and char != " "


def named(char: str) -> str:
    """What is shown for a character that is not seen."""
    return f"‹U+{ord(char):04X}›"


def variant(char: str) -> bool:
    """Whether a character only chooses the form of the one before. A second one chooses nothing, and hides text."""
    return "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef"
