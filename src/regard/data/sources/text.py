"""Text files: from a path to bytes, lines, sentence pairs and the slots of a document.

    InputFile(path).blocks()          bytes of a file, a pipe or standard input, decompressed if it is gzip
    read_lines(input)                 its lines, strictly UTF-8
    read_aligned_lines(a, b)          pairs of two plain files: line n of one belongs to line n of the other

Gzip is recognised by its first bytes, so the name may lack `.gz`. Only LF and CRLF end a line: U+2028, U+0085, vertical
tabs, form feeds and a lone CR are part of it (`str.splitlines` and Python's text mode disagree, and break the alignment
of two files). A byte order mark at the start is not text. Bytes that are not UTF-8, NULs, UTF-16, UTF-32 and files
whose only line ends are lone CRs are refused, with file, line and byte; the lines before the bad one are yielded first.
Blocks are decoded and split whole, so memory does not grow with the file. Every message begins with the location, and
escapes what a terminal would obey.

To write translations back, a format splits a file into parts: bytes that stay, and `TargetSlot`s, which may change.
"""

import errno
import os
import stat
import sys
import zlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from itertools import chain, zip_longest
from typing import NamedTuple, cast


class DataError(ValueError):
    """Data that cannot be read as what it should be: the file, the line, what is wrong, and what to do."""


class Location(NamedTuple):
    """A line of a file, from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class SentencePair(NamedTuple):
    """A source and its target, as they stand in the data."""

    source: str
    target: str
    where: Location


class TextLine(NamedTuple):
    """A line of text."""

    text: str
    where: Location


# ---- slots: What writing back needs of a format: the file as pieces, of which only the slots, where targets stand, may change.
#
# All bytes of a file are in its pieces, in order. So what is not a slot is written as it was read. This file knows no
# format.

SkipCallback = Callable[[Location, str], None]
"""Told of everything that a file has and a reader does not give: where it stands, and why."""


@dataclass(frozen=True)
class TargetSlot:
    """The place of one target."""

    source: str
    target: str
    """What stands there now; empty where nothing does."""
    where: Location
    """Of the source."""
    raw: bytes
    """The place as it stands in the file."""
    write: Callable[[str], bytes]
    """How the file says another target. A DataError where the format has no way to say it."""


DocumentParts = Iterator[bytes | TargetSlot]


# ---- inputs: From a path to blocks of bytes: a file, a pipe or standard input, plain or gzip, with every failure named.
#
# Gzip is recognised by its first bytes, so a name may lack `.gz`; a name that has it must keep its word. A name is shown
# with what a terminal would obey (control characters, bytes that are no text) escaped. This file knows no lines.

BLOCK_BYTES = 1 << 20
STANDARD_INPUT = "-"
_GZIP = b"\x1f\x8b"
_OTHER_COMPRESSIONS = {b"BZh91AY&SY": "bzip2", b"\xfd7zXZ\0": "xz", b"PK\x03\x04": "zip", b"\x28\xb5\x2f\xfd": "zstd"}
_NO_SUCH_FILE = "There is no such file. Check the name."
_ERRNO_MESSAGES = {errno.ENOENT: _NO_SUCH_FILE, errno.ENOTDIR: _NO_SUCH_FILE,
            errno.EACCES: "No permission to read it. Ask its owner, or `chmod +r`.",
            errno.EISDIR: "This is a directory. Name the files in it."}


class InputFile:
    """One file or standard input. What is no regular file can be read only once, and the second time says so."""

    def __init__(self, path: "str | os.PathLike[str]") -> None:
        self.path = os.fspath(path)
        self.name = "standard input" if self.path == STANDARD_INPUT else printable(self.path)
        self.once = self.path == STANDARD_INPUT or self._is_stream()
        self._spent = False

    def blocks(self) -> Iterator[bytes]:
        """The content, unpacked where it is gzip, in blocks of about 1 MiB."""
        if self.once and self._spent:
            raise DataError(f"{self.name}: It was read already, and can be read only once. Save it to a file first.")
        self._spent = True
        return self._blocks()

    def _is_stream(self) -> bool:
        try:
            mode = os.stat(self.path).st_mode
        except OSError as error:
            raise self._failed(error) from error
        except ValueError as error:  # a NUL in the name
            raise DataError(f"{self.name}: No file can have this name ({error}).") from error
        if stat.S_ISDIR(mode):
            raise DataError(f"{self.name}: {_ERRNO_MESSAGES[errno.EISDIR]}")
        if not os.access(self.path, os.R_OK):
            raise DataError(f"{self.name}: {_ERRNO_MESSAGES[errno.EACCES]}")
        return not stat.S_ISREG(mode)

    def _failed(self, error: OSError) -> DataError:
        return DataError(f"{self.name}: {_ERRNO_MESSAGES.get(error.errno or 0) or f'It cannot be read: {error.strerror}.'}")

    def _blocks(self) -> Iterator[bytes]:
        head, rest = read_head(self._raw(), [_GZIP, *_OTHER_COMPRESSIONS])
        named = self.path.lower().endswith(".gz")
        if head.startswith(_GZIP):
            return self._unpacked(chain([head], rest))
        for mark, packer in _OTHER_COMPRESSIONS.items():
            if head.startswith(mark):
                raise DataError(f"{self.name}: It is packed with {packer}. Unpack it, or pack it with gzip.")
        if named:
            raise DataError(f"{self.name}: The name says gzip, but the content is not. Rename it, or fetch it again.")
        return chain([head], rest)

    def _raw(self) -> Iterator[bytes]:
        try:
            if self.path == STANDARD_INPUT:
                if sys.stdin is None:
                    raise DataError(f"{self.name}: It is closed. Pipe something in, or name a file.")
                stream = cast(BufferedReader, sys.stdin.buffer)
                while block := stream.read1(BLOCK_BYTES):  # what is there already, without waiting for more
                    yield block
            else:
                with open(self.path, "rb", buffering=0) as file:
                    while block := file.read(BLOCK_BYTES):
                        yield block
        except OSError as error:
            raise self._failed(error) from error

    def _unpacked(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        """The members of a gzip file, one after another; zeros may fill it up behind them, and nothing else."""
        member, given = zlib.decompressobj(31), 0
        for data in blocks:
            while data:
                if member.eof:
                    data = data.lstrip(b"\0")
                    if not data:
                        break
                    if not _GZIP.startswith(data[:2]):
                        raise DataError(f"{self.name}: Something that is not gzip stands behind the gzip data. "
                                        "Fetch the file again, or pack it again.")
                    member = zlib.decompressobj(31)
                try:
                    text = member.decompress(data, BLOCK_BYTES)
                except zlib.error as error:
                    raise DataError(f"{self.name}: The gzip data is damaged after {given:,} unpacked bytes ({error}). "
                                    "Fetch the file again.") from error
                given += len(text)
                if text:
                    yield text
                data = member.unconsumed_tail or member.unused_data
        if not member.eof:
            raise DataError(f"{self.name}: The gzip data ends too early, after {given:,} unpacked bytes: the file is "
                            "cut off. Fetch it again.")


def read_head(blocks: Iterator[bytes], marks: Collection[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """The first bytes, enough to see with which mark they begin, and the blocks behind them."""
    head = b""
    while any(mark.startswith(head) for mark in marks):
        block = next(blocks, b"")
        if not block:
            break
        head += block
    return head, blocks


def printable(name: str) -> str:
    """A name or a text for a message: what is not printable is escaped."""
    return "".join(letter if letter.isprintable() else _escape_character(letter) for letter in name)


def _escape_character(letter: str) -> str:
    if "\udc80" <= letter <= "\udcff":  # a byte of a file name that was no text
        return f"\\x{ord(letter) - 0xDC00:02x}"
    return letter.encode("unicode_escape").decode("ascii")


# ---- lines: From bytes to lines, strictly: UTF-8, and only LF or CRLF end a line.
#
# U+2028, U+0085, vertical tabs, form feeds and a lone CR are part of a line (`str.splitlines` and Python's text mode
# think otherwise, and two files that were aligned no longer are). A byte order mark at the start is no text. Refused,
# with file, line and byte: what is not UTF-8, a NUL, UTF-16 and UTF-32; and a file whose only line ends are lone CRs. The
# lines before the bad one are given first.
#
# Whole blocks are decoded and split at once; the place of an error is looked for only where there is one. Memory does
# not grow with the file: it holds a block, and the line that goes on beyond it. This file knows no format.

BOM = b"\xef\xbb\xbf"
_WIDE_BOMS = {b"\xff\xfe\0\0": "UTF-32LE", b"\0\0\xfe\xff": "UTF-32BE", b"\xff\xfe": "UTF-16LE", b"\xfe\xff": "UTF-16BE"}


def read_lines(input: InputFile) -> Iterator[str]:
    """The lines, without what ends them."""
    for _, text in decode_chunks(input):
        if "\r" in text:
            text = text.replace("\r\n", "\n")
        parts = text.split("\n")
        if not parts[-1]:
            parts.pop()
        yield from parts


def read_lines_with_ends(input: InputFile) -> Iterator[tuple[str, str]]:
    r"""The lines, each with what ends it: "\n", "\r\n", or nothing at the end of the file."""
    for _, text in decode_chunks(input):
        parts = text.split("\n")
        last = parts.pop()
        for part in parts:
            yield (part[:-1], "\r\n") if part.endswith("\r") else (part, "\n")
        if last:
            yield last, ""


def has_bom(input: InputFile) -> bool:
    """Whether a byte order mark of UTF-8, which is no text, stands before the first line."""
    return read_head(input.blocks(), [BOM])[0].startswith(BOM)


def decode_chunks(input: InputFile) -> Iterator[tuple[int, str]]:
    """Many lines at once with their ends, as one text, and the number of the first of them, from 1."""
    head, blocks = read_head(input.blocks(), [BOM, *_WIDE_BOMS])
    for mark, encoding in _WIDE_BOMS.items():
        if head.startswith(mark):
            raise DataError(f"{input.name}: It is {encoding}, not UTF-8. {_iconv_hint(encoding)}")
    before = len(BOM) if head.startswith(BOM) else 0  # bytes of the first line that are no text
    number, waiting = 1, list[bytes]()
    for block in chain([head[before:]], blocks):
        cut = block.rfind(b"\n") + 1
        if not cut:
            waiting.append(block)
            continue
        data = b"".join([*waiting, block[:cut]])
        waiting = [block[cut:]]
        yield from _decode_lines(input.name, data, number, before)
        number, before = number + data.count(b"\n"), 0
    data = b"".join(waiting)
    if data:
        text = list(_decode_lines(input.name, data, number, before))
        if number == 1 and b"\r" in data:
            raise DataError(f"{input.name}: Its lines end with a lone CR, as on very old systems; only LF and CRLF end "
                            "a line. Convert it: tr '\\r' '\\n'.")
        yield from text


def _decode_lines(name: str, data: bytes, number: int, before: int) -> Iterator[tuple[int, str]]:
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
    wide = _guess_utf16(data) if number == 1 and not before else ""
    if wide:
        remedy = f"The file looks like {wide}. {_iconv_hint(wide)}"
    raise DataError(f"{name}:{line}: byte {place}: 0x{data[bad]:02X} {reason}. {remedy}")


def _guess_utf16(data: bytes) -> str:
    """UTF-16 without a mark: text in it has a NUL in every second byte, nearly, and none between."""
    start = data[:200]
    even, odd = start[::2].count(0), start[1::2].count(0)
    if min(even, odd) > 0 or max(even, odd) < len(start) // 4:
        return ""
    return ("UTF-16BE" if even else "UTF-16LE") if max(even, odd) else ""


def _iconv_hint(encoding: str) -> str:
    return f"Convert it: iconv -f {encoding} -t UTF-8."


# ---- plain: Plain text: two aligned files, of which line n of one belongs to line n of the other; or one file for itself.
#
# It knows lines and nothing of what is in them: empty ones are given too.


def read_aligned_lines(sources: InputFile, targets: InputFile) -> Iterator[SentencePair]:
    """The lines of two files, side by side. That one has more is found at its end, and is an error."""
    number, name = 0, sources.name
    together = zip_longest(read_lines(sources), read_lines(targets))
    for number, (source, target) in enumerate(together, 1):
        if source is None or target is None:
            break
        yield SentencePair(source, target, Location(name, number))
    else:
        return
    longer, shorter = (sources, targets) if target is None else (targets, sources)
    longest = number + sum(1 for _ in together)
    raise DataError(f"{longer.name} has {_count_lines(longest)}, but {shorter.name} has {_count_lines(number - 1)}. Line n of one "
                    "must belong to line n of the other: find the line that only one of them has.")


def read_text_lines(input: InputFile) -> Iterator[TextLine]:
    """The lines of one file."""
    name = input.name
    for number, text in enumerate(read_lines(input), 1):
        yield TextLine(text, Location(name, number))


def parse_plain_document(input: InputFile) -> DocumentParts:
    """A file of sources becomes a file of targets: as many lines, each ended as it was."""
    for number, (text, end) in enumerate(read_lines_with_ends(input), 1):
        where = Location(input.name, number)
        yield TargetSlot(text, "", where, b"", partial(encode_line, where))
        yield end.encode("ascii")


def encode_line(where: Location, text: str) -> bytes:
    """A text as a line of a file, which must not become two."""
    if "\n" in text or text.endswith("\r"):
        raise DataError(f"{where}: A target with a line break of its own does not fit into a line. Use JSONL.")
    return encode_text(where, text)


def encode_text(where: Location, text: str) -> bytes:
    """A text in UTF-8."""
    if "\0" in text:
        raise DataError(f"{where}: A target with a NUL is not text.")
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: A target with half a surrogate pair, at character {error.start + 1}, is not text.") \
            from error


def _count_lines(count: int) -> str:
    return f"{count:,} line{'s' * (count != 1)}"
