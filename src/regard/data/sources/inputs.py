"""From a path to blocks of bytes: a file, a pipe or standard input, plain or gzip, with every failure named.

Gzip is recognised by its first bytes, so a name may lack `.gz`; a name that has it must keep its word. A name is shown
with what a terminal would obey (control characters, bytes that are no text) escaped. This file knows no lines.
"""

import errno
import os
import stat
import sys
import zlib
from collections.abc import Collection, Iterator
from io import BufferedReader
from itertools import chain
from typing import cast

from regard.data.pair import DataError

BLOCK = 1 << 20
STANDARD_INPUT = "-"
_GZIP = b"\x1f\x8b"
_OTHERS = {b"BZh91AY&SY": "bzip2", b"\xfd7zXZ\0": "xz", b"PK\x03\x04": "zip", b"\x28\xb5\x2f\xfd": "zstd"}
_ABSENT = "There is no such file. Check the name."
_REASONS = {errno.ENOENT: _ABSENT, errno.ENOTDIR: _ABSENT,
            errno.EACCES: "No permission to read it. Ask its owner, or `chmod +r`.",
            errno.EISDIR: "This is a directory. Name the files in it."}


class Input:
    """One file or standard input. What is no regular file can be read only once, and the second time says so."""

    def __init__(self, path: "str | os.PathLike[str]") -> None:
        self.path = os.fspath(path)
        self.name = "standard input" if self.path == STANDARD_INPUT else shown(self.path)
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
            raise DataError(f"{self.name}: {_REASONS[errno.EISDIR]}")
        if not os.access(self.path, os.R_OK):
            raise DataError(f"{self.name}: {_REASONS[errno.EACCES]}")
        return not stat.S_ISREG(mode)

    def _failed(self, error: OSError) -> DataError:
        return DataError(f"{self.name}: {_REASONS.get(error.errno or 0) or f'It cannot be read: {error.strerror}.'}")

    def _blocks(self) -> Iterator[bytes]:
        head, rest = with_head(self._raw(), [_GZIP, *_OTHERS])
        named = self.path.lower().endswith(".gz")
        if head.startswith(_GZIP):
            return self._unpacked(chain([head], rest))
        for mark, packer in _OTHERS.items():
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
                while block := stream.read1(BLOCK):  # what is there already, without waiting for more
                    yield block
            else:
                with open(self.path, "rb", buffering=0) as file:
                    while block := file.read(BLOCK):
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
                    text = member.decompress(data, BLOCK)
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


def with_head(blocks: Iterator[bytes], marks: Collection[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """The first bytes, enough to see with which mark they begin, and the blocks behind them."""
    head = b""
    while any(mark.startswith(head) for mark in marks):
        block = next(blocks, b"")
        if not block:
            break
        head += block
    return head, blocks


def shown(name: str) -> str:
    """A name or a text for a message: what is not printable is escaped."""
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in name)


def _escaped(letter: str) -> str:
    if "\udc80" <= letter <= "\udcff":  # a byte of a file name that was no text
        return f"\\x{ord(letter) - 0xDC00:02x}"
    return letter.encode("unicode_escape").decode("ascii")
