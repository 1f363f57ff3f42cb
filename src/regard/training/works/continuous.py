r"""One continuous text from several files: in pieces, in part, and as ids.

    pieces(inputs)                    "First line", "\nSecond line", "\n", END, "Another file", ...
    part(pieces, first, last)         the same from one character up to another
    encoded(tokenizer, pieces)        their ids: those of the whole text, as if it had been cut at once

The text is as it stands in the files, line ends with it; CRLF becomes LF. Between two files stands the end id. A piece
begins with the line end that is in front of it: no token reaches over one, so pieces can be cut one by one, and the
space that subword tokenizers set in front of a text can be taken away again where the text only goes on. It does not
know what is learned from the text.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from regard import checks
from regard.data.sources.inputs import Input
from regard.data.sources.lines import chunks
from regard.data.tokenizer.contract import Tokenizer
from regard.data.tokenizer.settings import TokenizerConfig
from regard.data.tokenizer.surface import SurfaceTokenizer
from regard.training.works.files import blocks

Pieces = Iterator[str | None]
END: Final = None
"""What stands between two files."""
BREAK = "\n"
BLOCK = 4096
"""Pieces that are encoded in one go."""


def pieces(inputs: Sequence[Input]) -> Iterator[str | None]:
    """The text of all files."""
    for number, input in enumerate(inputs):
        if number:
            yield END
        before, line = "", ""
        for _, text in chunks(input):
            *whole, line = text.replace("\r\n", BREAK).split(BREAK)
            for one in whole:
                yield before + one
                before = BREAK
        if before or line:
            yield before + line


def part(given: Iterable[str | None], first: int, last: int) -> Iterator[str | None]:
    """The characters from `first` up to `last`, which is not among them."""
    at = 0
    for piece in given:
        if piece is END:
            if first < at < last:
                yield END
            continue
        inside = piece[max(0, first - at):max(0, last - at)]
        at += len(piece)
        if inside:
            yield inside
        if at >= last:
            return


def encoded(tokenizer: Tokenizer, given: Iterable[str | None]) -> Iterator[list[int]]:
    """The ids of the text, some at a time."""
    for block in blocks(given, BLOCK):
        ids = iter(tokenizer.encode_many([piece for piece in block if piece is not END]))
        for piece in block:
            yield list(tokenizer.special.end[:1]) if piece is END else _going_on(tokenizer, piece, next(ids))


def check_normalisation(config: TokenizerConfig) -> None:
    """Refuse a tokenizer that would take the line ends away."""
    if config.normalisation == "line":
        raise checks.wrong("tokenizer.normalisation", '"nfc" or "exact" for a continuous text', '"line"',
                           "It would make all of the text one line.")


def _going_on(tokenizer: Tokenizer, piece: str, ids: list[int]) -> list[int]:
    """The ids of a piece, without the space in front of it where it goes on after a line end."""
    if not isinstance(tokenizer, SurfaceTokenizer) or not tokenizer.prefix or not piece.startswith(BREAK):
        return ids
    assert tokenizer.surfaces[ids[0]] == tokenizer.prefix.encode(), "no token reaches over a line end"
    return ids[1:]
