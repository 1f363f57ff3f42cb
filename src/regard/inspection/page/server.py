"""The page served to this machine alone, over HTTP on 127.0.0.1.

    GET  /TOKEN/                  the page
    GET  /TOKEN/map.json?…        block means of a window of one head, or its weights
    POST /TOKEN/translate.json    another trace: of another text, after a beginning, or of another result

Other programs on the machine, and pages of other sites in the same browser, can send requests to a port too. So an
address holds a random token, which is not told to anybody; a request must name this host, and may not come from another
origin; answers are HTML once and JSON otherwise, never of a type that somebody else chose; what comes in is limited in
size, in time and in number. A policy lets the page ask this server and nobody else.

It does not know models: whoever starts it gives a function that answers "what if".
"""

import io
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit

from regard import checks
from regard.inspection.page import document
from regard.inspection.page.bundle import bundle
from regard.inspection.page.maps import Maps, Window
from regard.inspection.page.questions import RefusedError, WhatIf, numbers, question
from regard.inspection.trace.trace import Trace

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")
LONGEST = 1 << 20
"""Bytes of a request."""
SECONDS = 30
"""That a request may take to come in, and an answer to be taken."""
ABREAST = 64
"""Connections at once; a browser opens six. One more is closed at once."""


class PageServer:
    """Traces on a port of this machine.

    Args:
        traces: one, or two to be compared.
        title: above all.
        what_if: answers questions; a ValueError of it is told to whoever asked.
        port: 0 for any that is free.
    """

    def __init__(self, traces: Sequence[Trace], *, title: str = "", what_if: WhatIf | None = None,
                 port: int = 0) -> None:
        if not 0 <= port < 1 << 16:
            raise checks.wrong("port", "from 0 to 65535", port)
        self.traces, self.what_if, self.maps = list(traces), what_if, Maps()
        table = document.served(self.traces, title)
        table["asks"] = what_if is not None
        parts = bundle()
        # The page's own policy and that of the answer are the same, but for what only an answer may say.
        policy = parts.policy("connect-src 'self'")
        self.policy = f"{policy}; frame-ancestors 'none'"
        self.html = parts.page(table["title"], document.dumps(table), policy).encode()
        self.token, self.asking = secrets.token_urlsafe(24), threading.Lock()
        self.http = _Http((HOST, port), type("Handler", (_Handler,), {"page": self}))
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.http.server_address[1])

    @property
    def address(self) -> str:
        """What a browser opens. Whoever has it may ask."""
        return f"http://{HOST}:{self.port}/{self.token}/"

    def run(self, waiting: Callable[[], None] = lambda: None) -> None:
        """Answer until interrupted (Ctrl-C); `waiting` is called where the end has to wait for an answer of a model."""
        try:
            self.http.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            pass
        finally:
            if self.asking.locked():
                waiting()
            self._close()

    def __enter__(self) -> Self:
        """Answer in a thread of its own until the block ends."""
        self._thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self.http.shutdown()
        self._close()
        if self._thread is not None:
            self._thread.join()

    def _close(self) -> None:
        """Take no more questions, and end when nothing is being computed."""
        self.http.server_close()
        self.maps.close()
        with self.asking:
            self.what_if = None

    def map(self, query: str) -> dict[str, Any]:
        """The answer to a question for a window."""
        asked = numbers(query)
        trace = _picked("trace", self.traces, asked["trace"])
        attention = _picked("attention", trace.attentions, asked["attention"])
        window = Window(asked["top"], asked["left"], asked["rows"], asked["columns"])
        found = self.maps.window(attention, asked["head"], window, asked["size"])
        finite = found[found.isfinite()]
        lowest, highest = (finite.min().item(), finite.max().item()) if finite.numel() else (None, None)
        return {"rows": found.shape[0], "columns": found.shape[1], "size": asked["size"],
                "values": document.packed(found), "smallest": lowest, "largest": highest}

    def translate(self, body: bytes) -> dict[str, Any]:
        """The answer to "what if"."""
        wanted = question(body)
        _picked("trace", self.traces, wanted.trace)
        with self.asking:  # one at a time: a model has the machine for itself
            if self.what_if is None:
                raise RefusedError(404, "There is no model here to ask, only traces. `regard look MODEL TEXT` has one.")
            return {"trace": document.with_numbers([self.what_if(wanted)])[0]}


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = os.name == "posix"  # elsewhere it would let another program listen too
    request_queue_size = ABREAST

    def __init__(self, *given: Any) -> None:
        self.free = threading.Semaphore(ABREAST)
        super().__init__(*given)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self.free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):  # whoever asked has gone
            super().handle_error(request, client_address)


class _Incoming(io.RawIOBase):
    """What a connection sends, until a moment: whoever sends a byte now and then does not keep it for ever."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.until = connection, 0.0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.connection.settimeout(max(0.001, self.until - time.monotonic()))
        return self.connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    page: PageServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "regard", ""

    def setup(self) -> None:
        super().setup()
        self.incoming = _Incoming(self.connection)
        self.rfile = io.BufferedReader(self.incoming)

    def handle_one_request(self) -> None:
        """One request, which comes in whole before its time is over; the next one has as much."""
        self.incoming.until = time.monotonic() + SECONDS
        super().handle_one_request()

    def do_GET(self) -> None:
        self._answer({"": self._page, "map.json": self._map}, "POST", ("translate.json",))

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self._answer({"translate.json": self._translate}, "GET", ("", "map.json"))

    def _answer(self, known: "dict[str, Callable[[str], None]]", other: str, others: Sequence[str]) -> None:
        try:
            self._check_sender()
            path, query = self._target()
            if path in others:
                raise RefusedError(405, f"This is asked with {other}.")
            if path not in known:
                raise RefusedError(404, "There is nothing here.")
            known[path](query)
        except RefusedError as error:
            self._refuse(error.status, str(error))
        except ValueError as error:
            self._refuse(400, str(error))
        except (MemoryError, RuntimeError) as error:  # torch says the latter, on a CPU too
            if isinstance(error, RuntimeError) and "memory" not in str(error):
                raise
            self._refuse(500, "There is not enough memory for this. Ask for a shorter text, or for fewer beams.")

    def _check_sender(self) -> None:
        """Refuse who does not speak to this host, or speaks for another page."""
        hosts = self.headers.get_all("Host", [])
        if hosts not in [[f"{name}:{self.page.port}"] for name in NAMES]:
            raise RefusedError(403, "This server answers to its own name only.")
        origin, site = self.headers.get_all("Origin", []), self.headers.get("Sec-Fetch-Site")
        if origin not in ([], [f"http://{hosts[0]}"]):
            raise RefusedError(403, "This server does not answer to other pages.")
        # A link to the page, with its token, may stand anywhere: in a terminal that is itself a page, say.
        followed = self.command == "GET" and self.headers.get("Sec-Fetch-Mode") == "navigate"
        if site is not None and site not in ("same-origin", "none") and not followed:
            raise RefusedError(403, "This server does not answer to other pages.")

    def _target(self) -> tuple[str, str]:
        """The path behind the token, and the query; no other form of a path is known."""
        parts = urlsplit(self.path)
        start = f"/{self.page.token}/"
        if not secrets.compare_digest(parts.path[:len(start)].encode("utf-8", "replace"), start.encode()):
            raise RefusedError(404, "There is nothing here.")
        return parts.path[len(start):], parts.query

    def _page(self, query: str) -> None:
        self._send(200, self.page.html, "text/html; charset=utf-8")

    def _map(self, query: str) -> None:
        self._send_json(200, self.page.map(query))

    def _translate(self, query: str) -> None:
        if self.headers.get_content_type() != "application/json":
            raise RefusedError(415, "A question is application/json.")
        length = self.headers.get("Content-Length", "")
        if self.headers.get("Transfer-Encoding") is not None or not (length.isascii() and length.isdigit()):
            raise RefusedError(411, "A question says its length.")
        if len(length) > 12 or int(length) > LONGEST:
            raise RefusedError(413, f"A question has at most {LONGEST:,} bytes.")
        self._send_json(200, self.page.translate(self.rfile.read(int(length))))

    def _refuse(self, status: int, reason: str) -> None:
        self.close_connection = True  # what else it sent is not read
        self._send_json(status, {"error": reason})

    def _send_json(self, status: int, table: dict[str, Any]) -> None:
        self._send(status, document.dumps(table).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.connection.settimeout(SECONDS)
        self.send_response(status)
        for name, value in (("Content-Type", kind), ("Content-Length", str(len(body))),
                            ("Content-Security-Policy", self.page.policy), ("X-Content-Type-Options", "nosniff"),
                            ("Referrer-Policy", "no-referrer"), ("Cache-Control", "no-store"),
                            ("Cross-Origin-Resource-Policy", "same-origin"),
                            ("Cross-Origin-Opener-Policy", "same-origin")):
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the standard library refuses is refused in JSON too, without a word of what was sent."""
        self.close_connection = True
        if not hasattr(self, "headers"):
            self.command = self.command or "GET"
        self._send_json(code, {"error": f"This is no request that is known here: {HTTPStatus(code).phrase}."})

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: addresses hold the token."""


def _picked(name: str, several: Sequence[Any], number: int) -> Any:
    if not 0 <= number < len(several):
        raise checks.wrong(name, f"from 0 to {len(several) - 1}", number)
    return several[number]
