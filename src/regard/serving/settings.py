"""`ServerSettings`: everything that `regard serve` can be told, checked once before a model is loaded."""

import ipaddress
from dataclasses import dataclass

from regard import checks

LOG_FORMATS = {"text": "a line for people", "json": "a JSON object a line"}
BYTES_PER_CHARACTER = 12
"""Bytes of a character in JSON at most: two escapes of a surrogate pair."""
BODY_EXTRA = 64 << 10
"""Bytes of a body besides its texts."""


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The settings of a server; the defaults serve this machine only."""

    host: str = "127.0.0.1"
    port: int = 5000
    """0 takes any free port."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names that requests may use, besides localhost, this machine's name and IP addresses; "*" allows all."""
    cors_origins: tuple[str, ...] = ()
    """Origins of web pages that may use the server, such as "https://example.org"; none by default."""
    key_file: str | None = None
    """A file of API keys; without it no key is needed."""
    rate_limit: int | None = None
    """Requests a minute for each key, or without keys for each client address; None is unlimited."""
    max_queue: int = 512
    """Texts that may wait for each model."""
    timeout: float = 60.0
    """Seconds that a request may take."""
    drain_timeout: float = 30.0
    """Seconds that requests in flight get when the server is stopped."""
    max_characters: int = 10_000
    """Characters of all texts of a request."""
    max_batch: int = 128
    """Texts of a request."""
    max_file_size: int = 10 << 20
    """Bytes of a file."""
    log: str = "text"
    device: str = "cpu"
    threads: int | None = None
    """CPU threads of each model; by default the models share the cores."""
    read_timeout: float = 20.0
    """Seconds in which the headers of a request must arrive, and then its body."""
    max_connections: int = 4096
    """Open connections; further ones are closed at once."""
    max_requests: int = 2048
    """Requests in flight; further ones are answered 429."""

    def __post_init__(self) -> None:
        checks.pick("log", self.log, LOG_FORMATS)
        if not 0 <= checks.whole_number("port", self.port) < 1 << 16:
            raise checks.wrong("port", "from 0 to 65535", self.port)
        for name in ("max_queue", "max_characters", "max_batch", "max_file_size", "max_connections", "max_requests"):
            checks.whole_number(name, getattr(self, name), 1)
        if self.max_batch > self.max_queue:
            raise checks.wrong("max_batch", f"at most max_queue, {self.max_queue:,}", f"{self.max_batch:,}")
        for name in ("timeout", "drain_timeout", "read_timeout"):
            if not 0 < getattr(self, name) < float("inf"):
                raise checks.wrong(name, "a number of seconds above 0", getattr(self, name))
        if self.rate_limit is not None:
            checks.whole_number("rate_limit", self.rate_limit, 1)
        for origin in self.cors_origins:
            if origin != "*" and (not origin.startswith(("http://", "https://")) or origin.endswith("/")):
                raise checks.wrong("cors_origin", "an origin such as https://example.org, without a path, or *",
                                   repr(origin))
        for host in self.allowed_hosts:
            if not host or (any(sign in host for sign in "/:@ ") and not _is_address(host)):
                raise checks.wrong("allowed_host", "a host name such as translate.example.org, without scheme and "
                                   "port, or *", repr(host))

    @property
    def max_body(self) -> int:
        """Bytes of a body that is not a file."""
        return BODY_EXTRA + BYTES_PER_CHARACTER * self.max_characters

    @property
    def max_upload(self) -> int:
        """Bytes of a body with a file."""
        return BODY_EXTRA + self.max_file_size


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True
