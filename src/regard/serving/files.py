"""Files: uploads that are translated as `regard translate` does, and downloads that nobody can guess.

    store = DownloadStore(limit=100 << 20)
    token = store.add(path, "app.fr.po")       the file is moved; GET /download_file/TOKEN returns it once
    store.take(token)                          the file, which is now removed from the store; None if it is gone

A download is removed when it was downloaded, or after ten minutes. All of them together are bounded in bytes and in
number. The store is a private folder, which is removed with the server. What a client calls its file is only used for
the format (its suffix) and for the name of the download, never as a path.
"""

import os
import re
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, cast

from regard.data.sources.formats import FORMATS, format_of
from regard.data.sources.text import DataError, Location
from regard.serving.engine import QueueFullError
from regard.serving.models import ServedDirection
from regard.serving.requests import HttpError
from regard.tasks.alignment import Alignment
from regard.tasks.documents import TextDocument
from regard.tasks.placeholder_translation import PlaceholderTranslation, translate_with_placeholders
from regard.tasks.search import Beam, DecodingStrategy
from regard.tasks.task import isolate_errors
from regard.tasks.translator import Translation

KEEP_SECONDS = 600.0
MAX_DOWNLOADS = 1000
BLOCK_SIZE = 32
"""Entries of a file that are translated together: few, so that short requests do not wait for them."""
EXPANSION = 20
"""How many times the size limit a file may have after it is decompressed."""
MAX_ENTRIES = 200_000
FILE_FORMATS = [".txt", ".tsv", ".jsonl", ".po", ".pot", ".tmx"]
"""Suffixes of the formats, which may be followed by .gz."""
_UNSAFE = re.compile(r"[^\w.() -]+")


class StoredFile(NamedTuple):
    """A file that can be downloaded."""

    path: Path
    name: str
    media_type: str
    size: int
    expires: float
    once: bool
    """Whether it is removed with the first download."""


class DownloadStore:
    """Files under random names, for a while."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit, self.clock = limit, clock
        self.folder = Path(tempfile.mkdtemp(prefix="regard-serve-"))  # only this user can enter it
        self._files = dict[str, StoredFile]()
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(one.size for one in self._files.values())

    def new_path(self, suffix: str = "") -> Path:
        """The path of a file to be written, under a random name."""
        return self.folder / f"{secrets.token_urlsafe(24)}{suffix}"

    def add(self, path: Path, name: str, media_type: str = "application/octet-stream", *, once: bool = True) -> str:
        """Keep a file, and return the token under which it can be taken; an HttpError if there is no room.

        Pages, which can be made again, give way to what is new, the oldest first.
        """
        with self._lock:
            self._remove_expired()
            size = path.stat().st_size
            pages = [token for token, one in self._files.items() if not one.once]
            while pages and (self.size + size > self.limit or len(self._files) >= MAX_DOWNLOADS):
                self._files.pop(pages.pop(0)).path.unlink(missing_ok=True)
            if self.size + size > self.limit or len(self._files) >= MAX_DOWNLOADS:
                path.unlink(missing_ok=True)
                raise HttpError(429, "Too many files wait to be downloaded. Try again later.", retry_after=60)
            token = secrets.token_urlsafe(24)
            self._files[token] = StoredFile(path, name, media_type, size, self.clock() + KEEP_SECONDS, once)
            return token

    def take(self, token: str, *, keep: bool = False) -> StoredFile | None:
        """The file of a token; a file for one download leaves the store, and the caller removes it.

        Args:
            keep: leave it in the store, for a request that only asks about it.
        """
        with self._lock:
            self._remove_expired()
            found = self._files.get(token)
            if found is not None and found.once and not keep:
                del self._files[token]
            return found

    def sweep(self) -> None:
        """Remove what has expired."""
        with self._lock:
            self._remove_expired()

    def _remove_expired(self) -> None:
        now = self.clock()
        for token in [token for token, one in self._files.items() if one.expires <= now]:
            self._files.pop(token).path.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove all files and the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def upload_suffix(name: str) -> str:
    """The suffix of a file name that tells its format; an HttpError lists those that there are."""
    lower = os.path.basename(name.replace("\\", "/")).lower()
    compressed = ".gz" if lower.endswith(".gz") else ""
    suffix = os.path.splitext(lower.removesuffix(".gz"))[1]
    if suffix not in FILE_FORMATS:
        raise HttpError(400, f"Invalid request: this file format is not supported. Supported: "
                        f"{', '.join(FILE_FORMATS)}, each also with .gz.")
    return suffix + compressed


def download_name(name: str, target: str) -> str:
    """The name of a translated file: app.po becomes app.fr.po."""
    safe = _UNSAFE.sub("_", os.path.basename(name.replace("\\", "/")))[-100:].lstrip(".") or "file.txt"
    compressed = ".gz" if safe.lower().endswith(".gz") else ""
    stem, suffix = os.path.splitext(safe[:-3] if compressed else safe)
    return f"{stem}.{target}{suffix}{compressed}"


def check_expansion(path: Path, limit: int) -> None:
    """Refuse a file that becomes too large when it is decompressed. It is read in blocks and not kept."""
    from regard.data.sources.text import InputFile

    total = 0
    for block in InputFile(str(path)).blocks():
        total += len(block)
        if total > limit:
            raise HttpError(413, f"The decompressed file is too large: at most {limit:,} bytes are accepted.")


class FileTranslation:
    """The translation of an uploaded file, in a thread of its own. `cancel` ends it at the next block."""

    def __init__(self, direction: ServedDirection, path: Path, output: Path, *, deadline: float,
                 max_bytes: int) -> None:
        self.direction, self.path, self.output = direction, path, output
        self.deadline, self.max_bytes = deadline, max_bytes
        self.strategy: DecodingStrategy = Beam(beams=5)
        self.cancelled = threading.Event()
        self.entries = self.failed = self.characters = 0

    def cancel(self) -> None:
        """Stop at the next block."""
        self.cancelled.set()

    def run(self) -> None:
        """Write the translated file; an HttpError says what is wrong with the upload."""
        kind = format_of(str(self.path), None)
        source, target = self.direction.pair if kind == "tmx" else (None, None)
        document = TextDocument(str(self.path), source=source, target=target)
        try:
            check_expansion(self.path, self.max_bytes * EXPANSION)
            document.write(document.stream(self._translate_block, self, block=BLOCK_SIZE), str(self.output))
        except DataError as error:
            self.output.unlink(missing_ok=True)
            message = str(error).replace(str(self.path), f"The {FORMATS[kind]} file")
            raise HttpError(400, f"Invalid request: {message}") from None
        except HttpError:
            self.output.unlink(missing_ok=True)
            raise

    def _translate_block(self, texts: list[str]) -> "list[PlaceholderTranslation | ValueError]":
        self.entries += len(texts)
        self.characters += sum(map(len, texts))
        if self.entries > MAX_ENTRIES:
            raise HttpError(413, f"The file has too many entries: at most {MAX_ENTRIES:,} are accepted.")
        return isolate_errors(texts, self._translate_texts)

    def _translate_texts(self, texts: list[str]) -> list[PlaceholderTranslation]:
        return translate_with_placeholders(texts, self._search, self._align if self.direction.model.attends else None)

    def _search(self, texts: list[str]) -> list[Translation]:
        """Wait for the engine; files wait also where the queue is full."""
        while True:
            left = self.deadline - time.monotonic()
            if left <= 0:
                raise HttpError(504, "The file took longer than the server allows. Split it.")
            if self.cancelled.is_set():
                raise HttpError(499, "The client closed the connection.")
            try:
                ticket = self.direction.model.engine.submit(texts, self.strategy, to=self.direction.to, deadline=left)
            except QueueFullError as error:
                self.cancelled.wait(min(error.retry_after, left, 2.0))
                continue
            return cast(list[Translation], ticket.result(left + 1))

    def _align(self, texts: list[str], found: list[Translation]) -> list[Alignment]:
        with self.direction.model.lock:
            return self.direction.inspector().align(texts, found)

    # What `regard.tasks.documents` tells about the progress

    def begin(self, done: int, total: int) -> None:
        """Nothing is shown."""

    def advance(self, done: int) -> None:
        """Nothing is shown."""

    def fail(self, location: Location, error: ValueError) -> None:
        """Count an entry that has no translation."""
        self.failed += 1
