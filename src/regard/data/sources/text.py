"""Text files: from a path to bytes, lines, sentence pairs and the slots of a document.

    InputFile(path).blocks()          bytes of a file, a pipe or standard input, decompressed if it is gzip
    read_lines(input)                 its lines, strictly UTF-8
    read_aligned_lines(a, b)          pairs of two plain files: line n of one belongs to line n of the other

Gzip is recognised by its first bytes, so the name may lack `.gz`. Only LF and CRLF end a line: U+2028, U+0085, vertical
tabs, form feeds and a lone CR are part of it (`str.splitlines` and Python's text mode disagree, and break the alignment
of two files). A byte order mark at the start is not text. Bytes that are not UTF-8, NULs, UTF-16, UTF-32 and files
whose only line ends are lone CRs are refused, with file, line and byte; the lines before the bad one are yielded first.
Blocks are decoded and split whole, so memory does not grow with the file. A line longer than a limit is refused as soon
as the limit is reached: a small gzip file can unpack to a line that no memory holds.

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

from regard.data.languages import LanguagePair

BLOCK_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 24
"""Bytes of a line, or of one entry of a file, at most: 16 MiB."""
MAX_RUNNING_TEXT_BYTES = 1 << 27
"""The same for running text, which may have no line breaks at all (text8 is one line of 100 MB): 128 MiB."""
STANDARD_INPUT = "-"
BOM = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"
_OTHER_COMPRESSIONS = {b"BZh91AY&SY": "bzip2", b"\xfd7zXZ\0": "xz", b"PK\x03\x04": "zip", b"\x28\xb5\x2f\xfd": "zstd"}
_WIDE_BOMS = {b"\xff\xfe\0\0": "UTF-32LE", b"\0\0\xfe\xff": "UTF-32BE", b"\xff\xfe": "UTF-16LE",
              b"\xfe\xff": "UTF-16BE"}
_NO_SUCH_FILE = "There is no such file. Check the name."
_ERRNO_MESSAGES = {errno.ENOENT: _NO_SUCH_FILE, errno.ENOTDIR: _NO_SUCH_FILE,
                   errno.EACCES: "No permission to read it. Ask its owner, or `chmod +r`.",
                   errno.EISDIR: "This is a folder. Name the files in it."}


class DataError(ValueError):
    """Data that cannot be read as expected; the message says the file, the line, what is wrong, and what to do."""


class Location(NamedTuple):
    """A line of a file, counted from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class SentencePair(NamedTuple):
    """A source text, its target text, and the location of the source."""

    source: str
    target: str
    location: Location


class TextLine(NamedTuple):
    """A line of text and its location."""

    text: str
    location: Location


class LabelledText(NamedTuple):
    """A text, its label, and its location."""

    text: str
    label: str
    location: Location


SkipCallback = Callable[[Location, str], None]
"""Called for every entry that a reader skips, with its location and the reason."""


class ReadLog:
    """What readers learn about their files besides the texts: notes for the user, and languages."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.languages: dict[str, LanguagePair] = {}
        """The languages of files that tell them, by file name."""

    def note(self, text: str) -> None:
        """Add a note; the same one only once, since files are read several times."""
        if text not in self.notes:
            self.notes.append(text)


@dataclass(frozen=True)
class TargetSlot:
    """The part of a document that holds one target."""

    source: str
    target: str
    """The present target; may be empty."""
    location: Location
    """The location of the source."""
    raw: bytes
    """The slot as it is in the file."""
    write: Callable[[str], bytes]
    """Encodes another target; raises a DataError if the format cannot represent it."""


DocumentParts = Iterator[bytes | TargetSlot]
"""All parts of a file in order: bytes that stay as they are, and slots."""


class InputFile:
    """One file or standard input. A pipe can be read only once; the second attempt is an error."""

    def __init__(self, path: "str | os.PathLike[str]") -> None:
        self.path = os.fspath(path)
        self.name = "standard input" if self.path == STANDARD_INPUT else printable(self.path)
        self.single_pass = self.path == STANDARD_INPUT or self._is_stream()
        self._started = False

    def blocks(self) -> Iterator[bytes]:
        """The content, decompressed if it is gzip, in blocks of about 1 MiB."""
        if self.single_pass and self._started:
            raise DataError(f"{self.name}: A pipe can be read only once. Save it to a file first.")
        self._started = True
        head, rest = read_head(self._raw_blocks(), [_GZIP, *_OTHER_COMPRESSIONS])
        if head.startswith(_GZIP):
            return self._decompress(chain([head], rest))
        for mark, compression in _OTHER_COMPRESSIONS.items():
            if head.startswith(mark):
                raise DataError(f"{self.name}: The file is compressed with {compression}. Decompress it, or use gzip.")
        if self.path.lower().endswith(".gz"):
            raise DataError(f"{self.name}: The name says gzip, but the content is not. Rename or download it again.")
        return chain([head], rest)

    def _is_stream(self) -> bool:
        try:
            mode = os.stat(self.path).st_mode
        except OSError as error:
            raise self._read_error(error) from error
        except ValueError as error:  # a NUL in the name
            raise DataError(f"{self.name}: No file can have this name ({error}).") from error
        if stat.S_ISDIR(mode):
            raise DataError(f"{self.name}: {_ERRNO_MESSAGES[errno.EISDIR]}")
        if not os.access(self.path, os.R_OK):
            raise DataError(f"{self.name}: {_ERRNO_MESSAGES[errno.EACCES]}")
        return not stat.S_ISREG(mode)

    def _read_error(self, error: OSError) -> DataError:
        reason = _ERRNO_MESSAGES.get(error.errno or 0) or f"The file cannot be read: {error.strerror}."
        return DataError(f"{self.name}: {reason}")

    def _raw_blocks(self) -> Iterator[bytes]:
        try:
            if self.path == STANDARD_INPUT:
                if sys.stdin is None:
                    raise DataError(f"{self.name}: The stream is closed. Pipe something in, or name a file.")
                stream = cast(BufferedReader, sys.stdin.buffer)
                while block := stream.read1(BLOCK_BYTES):  # what is available, without waiting for more
                    yield block
            else:
                with open(self.path, "rb", buffering=0) as file:
                    while block := file.read(BLOCK_BYTES):
                        yield block
        except OSError as error:
            raise self._read_error(error) from error

    def _decompress(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        """Decompress the members of a gzip file; only padding zeros may follow the last one."""
        member, count = zlib.decompressobj(31), 0
        for data in blocks:
            while data:
                if member.eof:
                    data = data.lstrip(b"\0")
                    if not data:
                        break
                    if not _GZIP.startswith(data[:2]):
                        raise DataError(f"{self.name}: The gzip data is followed by something that is not gzip. "
                                        "Download the file again, or compress it again.")
                    member = zlib.decompressobj(31)
                try:
                    content = member.decompress(data, BLOCK_BYTES)
                except zlib.error as error:
                    raise DataError(f"{self.name}: The gzip data is damaged after {count:,} decompressed bytes "
                                    f"({error}). Download the file again.") from error
                count += len(content)
                if content:
                    yield content
                data = member.unconsumed_tail or member.unused_data
        if not member.eof:
            raise DataError(f"{self.name}: The gzip data ends too early, after {count:,} decompressed bytes: the file "
                            "is truncated. Download it again.")


def read_head(blocks: Iterator[bytes], marks: Collection[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """The first bytes, enough to tell which of the marks they begin with, and the remaining blocks."""
    head = b""
    while any(mark.startswith(head) for mark in marks):
        block = next(blocks, b"")
        if not block:
            break
        head += block
    return head, blocks


def printable(name: str) -> str:
    """A name or a text for a message, with unprintable characters escaped: a terminal would obey some of them."""
    return "".join(letter if letter.isprintable() else _escape_character(letter) for letter in name)


def _escape_character(letter: str) -> str:
    if "\udc80" <= letter <= "\udcff":  # a byte of a file name that is not text
        return f"\\x{ord(letter) - 0xDC00:02x}"
    return letter.encode("unicode_escape").decode("ascii")


def read_lines(input: InputFile) -> Iterator[str]:
    """The lines of a file, without their ends."""
    for text in decode_chunks(input):
        if "\r" in text:
            text = text.replace("\r\n", "\n")
        parts = text.split("\n")
        if not parts[-1]:
            parts.pop()
        yield from parts


def read_lines_with_ends(input: InputFile) -> Iterator[tuple[str, str]]:
    r"""The lines of a file, each with its end: "\n", "\r\n", or nothing at the end of the file."""
    for text in decode_chunks(input):
        parts = text.split("\n")
        last = parts.pop()
        for part in parts:
            yield (part[:-1], "\r\n") if part.endswith("\r") else (part, "\n")
        if last:
            yield last, ""


def has_bom(input: InputFile) -> bool:
    """Whether the file begins with the byte order mark of UTF-8."""
    return read_head(input.blocks(), [BOM])[0].startswith(BOM)


def decode_chunks(input: InputFile, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[str]:
    """The text of a file in chunks of whole lines with their ends. A line over the limit is a DataError."""
    head, blocks = read_head(input.blocks(), [BOM, *_WIDE_BOMS])
    for mark, encoding in _WIDE_BOMS.items():
        if head.startswith(mark):
            raise DataError(f"{input.name}: The file is {encoding}, not UTF-8. {_iconv_hint(encoding)}")
    skipped = len(BOM) if head.startswith(BOM) else 0  # bytes of the first line that are not text
    number, pending, size = 1, list[bytes](), 0  # `size` is that of the line that is not yet complete
    for block in chain([head[skipped:]], blocks):
        end = block.rfind(b"\n") + 1
        if not end:
            pending.append(block)
            size += len(block)
            if size > max_line_bytes:
                raise too_long_error(Location(input.name, number), "line", max_line_bytes)
            continue
        size = len(block) - end
        data = b"".join([*pending, block[:end]])
        pending = [block[end:]]
        yield from _decode_lines(input.name, data, number, skipped)
        number, skipped = number + data.count(b"\n"), 0
    data = b"".join(pending)
    if data:
        chunks = list(_decode_lines(input.name, data, number, skipped))
        if number == 1 and b"\r" in data:
            raise DataError(f"{input.name}: Its lines end with a lone CR, as on very old systems; only LF and CRLF end "
                            "a line. Convert it: tr '\\r' '\\n'.")
        yield from chunks


def too_long_error(location: Location, noun: str, limit: int) -> DataError:
    """The error for a line or an entry of more bytes than the limit; the caller raises it."""
    return DataError(f"{location}: The {noun} is longer than {limit >> 20} MiB. Split it, or remove it.")


def _decode_lines(name: str, data: bytes, number: int, skipped: int) -> Iterator[str]:
    """The text of whole lines, the first of which has this number. Lines before a bad byte are yielded first."""
    bad, text = data.find(b"\0"), ""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        bad = error.start if bad < 0 else min(bad, error.start)
    if bad < 0:
        yield text
        return
    begin = data.rfind(b"\n", 0, bad) + 1
    if begin:
        yield data[:begin].decode("utf-8")
    line, column = number + data.count(b"\n", 0, bad), bad - begin + 1 + (0 if begin else skipped)
    if data[bad]:
        reason, remedy = "is not UTF-8", "If the file is in Latin-1: iconv -f latin1 -t utf-8."
    else:
        reason, remedy = "(NUL) is not text", "Delete it, or the line."
    encoding = _guess_utf16(data) if number == 1 and not skipped else ""
    if encoding:
        remedy = f"The file looks like {encoding}. {_iconv_hint(encoding)}"
    raise DataError(f"{name}:{line}: byte {column}: 0x{data[bad]:02X} {reason}. {remedy}")


def _guess_utf16(data: bytes) -> str:
    """The name of UTF-16 without a mark: nearly every second byte is a NUL, and none of the others."""
    start = data[:200]
    even, odd = start[::2].count(0), start[1::2].count(0)
    if min(even, odd) > 0 or max(even, odd) < len(start) // 4:
        return ""
    return ("UTF-16BE" if even else "UTF-16LE") if max(even, odd) else ""


def _iconv_hint(encoding: str) -> str:
    return f"Convert it: iconv -f {encoding} -t UTF-8."


def read_aligned_lines(sources: InputFile, targets: InputFile) -> Iterator[SentencePair]:
    """The lines of two files as pairs. Files of different lengths are an error, raised at the end."""
    number, name = 0, sources.name
    together = zip_longest(read_lines(sources), read_lines(targets))
    for number, (source, target) in enumerate(together, 1):
        if source is None or target is None:
            break
        yield SentencePair(source, target, Location(name, number))
    else:
        return
    longer, shorter = (sources, targets) if target is None else (targets, sources)
    total = number + sum(1 for _ in together)
    raise DataError(f"{longer.name} has {_line_count(total)}, but {shorter.name} has {_line_count(number - 1)}. Line n "
                    "of one must belong to line n of the other: find the line that only one of them has.")


def read_text_lines(input: InputFile) -> Iterator[TextLine]:
    """The lines of one file with their locations; empty lines are included."""
    name = input.name
    for number, text in enumerate(read_lines(input), 1):
        yield TextLine(text, Location(name, number))


def parse_document(input: InputFile) -> DocumentParts:
    """The slots of a plain file: its lines of sources become as many lines of targets, with the same ends."""
    for number, (text, end) in enumerate(read_lines_with_ends(input), 1):
        location = Location(input.name, number)
        yield TargetSlot(text, "", location, b"", partial(encode_line, location))
        yield end.encode("ascii")


def encode_line(location: Location, text: str) -> bytes:
    """A target as one line of a file; a DataError if it would become two."""
    if "\n" in text or text.endswith("\r"):
        raise DataError(f"{location}: The translation has a line break, which a line cannot hold. Use JSONL.")
    return encode_text(location, text)


def encode_text(location: Location, text: str) -> bytes:
    """A target in UTF-8; a DataError for what no text file can hold."""
    if "\0" in text:
        raise DataError(f"{location}: The translation has a NUL character, which a text file cannot hold.")
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(f"{location}: The translation has half a surrogate pair at character {error.start + 1}, which "
                        "UTF-8 cannot encode.") from error


def _line_count(count: int) -> str:
    return f"{count:,} line{'s' * (count != 1)}"
