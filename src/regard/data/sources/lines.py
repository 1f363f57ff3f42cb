r"""From bytes to lines, strictly: UTF-8, and only LF or CRLF end a line.

U+2028, U+0085, vertical tabs, form feeds and a lone CR are part of a line (`str.splitlines` and Python's text mode
think otherwise, and two files that were aligned no longer are). A byte order mark at the start is no text. Refused,
with file, line and byte: what is not UTF-8, a NUL, UTF-16 and UTF-32; and a file whose only line ends are lone CRs. The
lines before the bad one are given first.

Whole blocks are decoded and split at once; the place of an error is looked for only where there is one. Memory does
not grow with the file: it holds a block, and the line that goes on beyond it. This file knows no format.
"""

from collections.abc import Iterator
from itertools import chain

from regard.data.pair import DataError
from regard.data.sources.inputs import Input, with_head

BOM = b"\xef\xbb\xbf"
_WIDE = {b"\xff\xfe\0\0": "UTF-32LE", b"\0\0\xfe\xff": "UTF-32BE", b"\xff\xfe": "UTF-16LE", b"\xfe\xff": "UTF-16BE"}


def lines(input: Input) -> Iterator[str]:
    """The lines, without what ends them."""
    for _, text in chunks(input):
        if "\r" in text:
            text = text.replace("\r\n", "\n")
        parts = text.split("\n")
        if not parts[-1]:
            parts.pop()
        yield from parts


def ended_lines(input: Input) -> Iterator[tuple[str, str]]:
    r"""The lines, each with what ends it: "\n", "\r\n", or nothing at the end of the file."""
    for _, text in chunks(input):
        parts = text.split("\n")
        last = parts.pop()
        for part in parts:
            yield (part[:-1], "\r\n") if part.endswith("\r") else (part, "\n")
        if last:
            yield last, ""


def marked(input: Input) -> bool:
    """Whether a byte order mark of UTF-8, which is no text, stands before the first line."""
    return with_head(input.blocks(), [BOM])[0].startswith(BOM)


def chunks(input: Input) -> Iterator[tuple[int, str]]:
    """Many lines at once with their ends, as one text, and the number of the first of them, from 1."""
    head, blocks = with_head(input.blocks(), [BOM, *_WIDE])
    for mark, encoding in _WIDE.items():
        if head.startswith(mark):
            raise DataError(f"{input.name}: It is {encoding}, not UTF-8. {_convert(encoding)}")
    before = len(BOM) if head.startswith(BOM) else 0  # bytes of the first line that are no text
    number, waiting = 1, list[bytes]()
    for block in chain([head[before:]], blocks):
        cut = block.rfind(b"\n") + 1
        if not cut:
            waiting.append(block)
            continue
        data = b"".join([*waiting, block[:cut]])
        waiting = [block[cut:]]
        yield from _decoded(input.name, data, number, before)
        number, before = number + data.count(b"\n"), 0
    data = b"".join(waiting)
    if data:
        text = list(_decoded(input.name, data, number, before))
        if number == 1 and b"\r" in data:
            raise DataError(f"{input.name}: Its lines end with a lone CR, as on very old systems; only LF and CRLF end "
                            "a line. Convert it: tr '\\r' '\\n'.")
        yield from text


def _decoded(name: str, data: bytes, number: int, before: int) -> Iterator[tuple[int, str]]:
    """The text of whole lines; where there is a bad byte, of the lines before it, and then the error."""
    reason, bad = "is not UTF-8", data.find(b"\0")
    text = ""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        bad = error.start if bad < 0 else min(bad, error.start)
    if bad < 0:
        yield number, text
        return
    if not data[bad]:
        reason = "(NUL) is not text"
    begin = data.rfind(b"\n", 0, bad) + 1
    if begin:
        yield number, data[:begin].decode("utf-8")
    line, place = number + data.count(b"\n", 0, bad), bad - begin + 1 + (0 if begin else before)
    remedy = "Delete it, or the line." if not data[bad] else "If the file is in Latin-1: iconv -f latin1 -t utf-8."
    wide = _looks_wide(data) if number == 1 and not before else ""
    if wide:
        remedy = f"The file looks like {wide}. {_convert(wide)}"
    raise DataError(f"{name}:{line}: byte {place}: 0x{data[bad]:02X} {reason}. {remedy}")


def _looks_wide(data: bytes) -> str:
    """UTF-16 without a mark: text in it has a NUL in every second byte, nearly, and none between."""
    start = data[:200]
    even, odd = start[::2].count(0), start[1::2].count(0)
    if min(even, odd) > 0 or max(even, odd) < len(start) // 4:
        return ""
    return ("UTF-16BE" if even else "UTF-16LE") if max(even, odd) else ""


def _convert(encoding: str) -> str:
    return f"Convert it: iconv -f {encoding} -t UTF-8."
