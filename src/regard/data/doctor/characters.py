"""What stands in one text: whether there is anything to read, and where the first odd character is.

Each `..._at` gives the place of the first such character, from 0, or -1. Each `no_...` tells of many texts at once that
none has any, which is the rule, without a loop in Python; it may be False where there is nothing after all. This file
knows no pairs and no limits, and not what is done about a find.
"""

import re
import unicodedata

# Nothing to see: white space and control characters, and what has no width or only blank (soft hyphen, joiners,
# zero-width space, marks of direction, the fillers of Hangul, the empty Braille cell, variation selectors, the BOM).
visible = re.compile(
    r"[^\s\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u202a-\u202e"
    r"\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb]"
).search
# Where Python and other programs would end a line, though only LF and CRLF end one here.
_BREAK = re.compile(r"[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
# Other control characters but the tab; a BOM inside the text, halves of surrogate pairs, what is no character at all.
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\ufeff\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")

# UTF-8 that was read as Latin-1 or as Windows-1252. There, the bytes 80 to 9F are these characters:
_WINDOWS = {ord(letter): byte for byte in range(0x80, 0xA0) for letter in bytes([byte]).decode("cp1252", "ignore")}
_FOLLOWS = "\x80-\xbf" + "".join(map(chr, _WINDOWS))
_START = re.compile(f"[\xc2-\xf4][{_FOLLOWS}]")  # how every sequence begins; found much faster than a sequence
_SEQUENCE = re.compile(f"[\xc2-\xdf][{_FOLLOWS}]|[\xe0-\xef][{_FOLLOWS}]{{2}}|[\xf0-\xf4][{_FOLLOWS}]{{3}}")
# Sequences that no text has: the start of quotes and dashes, and A with circumflex or tilde before a sign. Spaces,
# quotes and dashes may well follow a capital letter, so they are not among these signs.
_SIGNS = "\x80-\x9f\xa1-\xaa\xac-\xb6\xb8-\xba\xbc-\xbf€ƒ†‡ˆ‰ŠŒŽ˜šœžŸ"
_CERTAIN = re.compile(f"\xe2[\x80€][{_FOLLOWS}]|[\xc2\xc3][{_SIGNS}]")


def is_blank(text: str) -> bool:
    """Whether a text has nothing to read: empty, blank, or only characters that are not seen."""
    return visible(text) is None


def break_at(text: str) -> int:
    """Where a character stands at which other programs end a line."""
    return -1 if text.isprintable() else _first(_BREAK, text)


def no_break(texts: list[str]) -> bool:
    """See `break_at`."""
    return all(map(str.isprintable, texts)) or not _BREAK.search("".join(texts))


def control_at(text: str) -> int:
    """Where a control character stands, or another that no text should have."""
    return -1 if text.isprintable() else _first(_CONTROL, text)


def no_control(texts: list[str]) -> bool:
    """See `control_at`."""
    return all(map(str.isprintable, texts)) or not _CONTROL.search("".join(texts))


def replacement_at(text: str) -> int:
    """Where U+FFFD stands: a letter was lost there, and cannot be had back."""
    return text.find("\ufffd")


def no_replacement(texts: list[str]) -> bool:
    """See `replacement_at`."""
    return "\ufffd" not in "".join(texts)


def mojibake_at(text: str) -> int:
    """Where UTF-8 was read as Latin-1 or Windows-1252, as in "cafÃ©" for "café".

    A text is told by a sequence that nobody writes, or by being UTF-8 through and through when it is turned back; then
    by two sequences at least, or one of the letters that stand for most of Latin-1: "CAFÉ" and a no-break space could
    be turned back too.
    """
    if text.isascii() or _START.search(text) is None:
        return -1
    first = _SEQUENCE.search(text)
    if first is None:
        return -1
    certain = _CERTAIN.search(text)
    if certain:
        return certain.start()
    likely = first[0][0] in "\xc2\xc3" or _SEQUENCE.search(text, first.end()) is not None
    return first.start() if likely and _turns_back(text) else -1


def no_mojibake(texts: list[str]) -> bool:
    """See `mojibake_at`."""
    return all(map(str.isascii, texts)) or not _START.search(" ".join(texts))


def decomposed_at(text: str) -> int:
    """Where a text leaves normal form C: a letter and its accent as two characters, most often."""
    if unicodedata.is_normalized("NFC", text):
        return -1
    composed = unicodedata.normalize("NFC", text)
    pairs = enumerate(zip(text, composed, strict=False))
    return next((at for at, (have, want) in pairs if have != want), min(len(text), len(composed)))


def no_decomposed(texts: list[str]) -> bool:
    """See `decomposed_at`."""
    return unicodedata.is_normalized("NFC", " ".join(texts))


def has_composed(text: str) -> bool:
    """Whether a text has a letter with its accent in one character, which normal form D would take apart."""
    return not unicodedata.is_normalized("NFD", text)


def outer_space_at(text: str) -> int:
    """Where white space stands at the beginning, or else where it begins at the end."""
    if text == text.strip():
        return -1
    return 0 if text[0].isspace() else len(text.rstrip())


def no_outer_space(texts: list[str]) -> bool:
    """See `outer_space_at`."""
    return [*map(str.strip, texts)] == texts


def folded(text: str) -> str:
    """A text without what rarely matters: case, the kind and number of spaces, the normal form."""
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def _turns_back(text: str) -> bool:
    try:
        text.translate(_WINDOWS).encode("latin-1").decode("utf-8")
    except UnicodeError:
        return False
    return True


def _first(pattern: re.Pattern[str], text: str) -> int:
    match = pattern.search(text)
    return match.start() if match else -1
