"""API keys and rate limits.

A key file has a line for each key: a name, the sha256 of the key in hexadecimal, and if wanted its own limit, in
requests a minute. Empty lines and lines that begin with # are skipped.

    alice  sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
    batch  sha256:60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752  600

The file does not tell the keys: they are random (`make_key`), so nobody finds them from their hashes. A key that a
client sends is hashed and compared with all hashes in constant time.
"""

import hashlib
import hmac
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from regard import checks

PREFIX = "rg-"
"""Keys begin with this, so that tools that search for secrets recognise them."""
HASH_PREFIX = "sha256:"
KEY_BYTES = 32
MAX_FILE_BYTES = 1 << 20
MAX_BUCKETS = 10_000
"""Clients whose rates are counted; the one that was not seen for the longest time is forgotten first."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HASH = re.compile(r"[0-9a-f]{64}")


class ApiKey(NamedTuple):
    """A key of the file; the key itself is not known."""

    name: str
    sha256: bytes
    rate_limit: int | None
    """Requests a minute; None for the limit of the server."""


@dataclass(frozen=True)
class ApiKeys:
    """The keys that are accepted."""

    keys: tuple[ApiKey, ...]

    @classmethod
    def read(cls, path: str) -> "ApiKeys":
        """The keys of a file; a ValueError names the file and the line."""
        try:
            data = Path(path).read_bytes()
            lines = data.decode("utf-8").splitlines()
        except OSError as error:
            raise ValueError(f"{path}: The file cannot be read: {error.strerror}.") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: byte {error.start}: This is not UTF-8.") from error
        if len(data) > MAX_FILE_BYTES:
            raise ValueError(f"{path}: A key file has at most {MAX_FILE_BYTES:,} bytes.")
        found = dict[str, ApiKey]()
        for number, line in enumerate(lines, 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            key = _parse_line(words, f"{path}:{number}")
            if key.name in found:
                raise ValueError(f"{path}:{number}: The name {key.name} is there twice.")
            found[key.name] = key
        if not found:
            raise ValueError(f"{path}: There is no key in it. Make one: regard serve --make-key NAME >> {path}")
        return cls(tuple(found.values()))

    def find(self, given: str | None) -> ApiKey | None:
        """The key that a client sent; None if it is none of these. All of them are compared."""
        digest = hashlib.sha256((given or "").encode("utf-8", "surrogatepass")).digest()
        found = None
        for key in self.keys:
            if hmac.compare_digest(digest, key.sha256):
                found = key
        return found


def _parse_line(words: list[str], place: str) -> ApiKey:
    name, digest, *rest = [*words, ""] if len(words) == 1 else words
    digest = digest.lower().removeprefix(HASH_PREFIX)
    if not _NAME.fullmatch(name) or not _HASH.fullmatch(digest) or len(rest) > 1:
        raise ValueError(f"{place}: A line has a name, sha256: with 64 hexadecimal digits, and possibly the requests a "
                         "minute. `regard serve --make-key NAME` prints such a line.")
    if rest and not (rest[0].isascii() and rest[0].isdigit() and 0 < int(rest[0]) < 10**9):
        raise ValueError(f"{place}: The requests a minute must be a whole number, at least 1, but are {rest[0]!r:.20}.")
    return ApiKey(name, bytes.fromhex(digest), int(rest[0]) if rest else None)


def make_key(name: str) -> tuple[str, str]:
    """A new random key, and its line for the key file."""
    if not _NAME.fullmatch(name):
        raise checks.wrong("--make-key", "a name of letters, digits, dots, hyphens and underscores", repr(name))
    key = PREFIX + secrets.token_urlsafe(KEY_BYTES)
    return key, f"{name} {HASH_PREFIX}{hashlib.sha256(key.encode()).hexdigest()}"


class RateLimiter:
    """Token buckets: each client may send a number of requests a minute, at once or spread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._buckets = OrderedDict[str, tuple[float, float]]()

    def wait(self, client: str, per_minute: int) -> float:
        """Count a request; 0 if it is allowed, otherwise the seconds until the next one is."""
        now = self.clock()
        left, then = self._buckets.pop(client, (float(per_minute), now))
        left = min(per_minute, left + (now - then) * per_minute / 60)
        allowed = left >= 1
        self._buckets[client] = (left - 1 if allowed else left, now)
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        return 0.0 if allowed else (1 - left) * 60 / per_minute


def bearer_token(headers: Mapping[str, str]) -> str | None:
    """The key in the header `Authorization: Bearer KEY`; None without it."""
    kind, _, value = headers.get("authorization", "").partition(" ")
    return value.strip() or None if kind.lower() == "bearer" else None
