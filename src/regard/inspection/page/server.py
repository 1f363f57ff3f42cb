"""The page served to this machine alone, over HTTP on 127.0.0.1.

    GET  /TOKEN/                  the page
    GET  /TOKEN/map.json?…        block means of a window of one head, or its weights
    GET  /TOKEN/score.json?…      the score of one weight by dimension
    POST /TOKEN/translate.json    another trace: of another text, with a given prefix, or of another hypothesis
    POST /TOKEN/influence.json    the influence of some words of a trace, such as those of a group

Other programs on this machine, and pages of other sites in the same browser, can also send requests to a port. So the
address holds a random token; a request must name this host and must not come from another origin; answers are HTML or
JSON only; requests are checked strictly and limited in size, time and number. A content security policy lets the page
send requests to this server only. The server does not know models: its caller passes a function for what-if requests,
and a trace can have one for the influence of its words (`Trace.leave_out`).
"""

import io
import json
import math
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NoReturn, Self
from urllib.parse import parse_qsl, urlsplit

from regard import allocation, checks
from regard.attention.score import as_score
from regard.inspection.page import document
from regard.inspection.page.document import document_bundle
from regard.inspection.page.tiles import TileCache, TileWindow
from regard.inspection.records import AttentionRecord, WeightMatrix
from regard.inspection.trace import LeaveOut, Trace
from regard.inspection.trace_format import TracedAttention

HOST = "127.0.0.1"
HOST_NAMES = (HOST, "localhost")
MAX_REQUEST_BYTES = 1 << 20
TIMEOUT_SECONDS = 30
"""The time in which a request must arrive, and an answer must be received."""
MAX_CONNECTIONS = 64
"""The number of simultaneous connections; a browser opens six. Further ones are closed at once."""
MAX_CHARACTERS = 20_000
"""The number of characters of a text in a request."""
MAX_BEAMS = 64
MAX_KEPT = 256
"""The number of answers whose influence can be refined, the latest ones."""
WINDOW_FIELDS = ("trace", "attention", "head", "top", "left", "rows", "columns", "size")
SCORE_FIELDS = ("trace", "attention", "head", "row", "column")
WHAT_IF_FIELDS = {"text": str, "prefix": str, "beams": int, "choice": int, "trace": int}


@dataclass(frozen=True)
class WhatIfRequest:
    """A request of the view "Try": another text, a prefix of the output, or another hypothesis."""

    text: str
    prefix: str = ""
    beams: int | None = None
    """The beam size; None for the same as before."""
    choice: int = 0
    """The rank of the hypothesis to show; 0 is the best."""
    trace: int = 0
    """The number of the model, if there are two."""


@dataclass(frozen=True)
class InfluenceRequest:
    """A request for the influence of some words of the input."""

    trace: int = 0
    """The number of the trace: those of the page come first, then the answers to what-if requests."""
    words: tuple[int, ...] | None = None
    """The numbers of the words; None for all, in groups if there are many."""


WhatIf = Callable[[WhatIfRequest], Trace]


class RefusedRequestError(ValueError):
    """A request that is refused, with its HTTP status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def parse_numbers(query: str, fields: Sequence[str] = WINDOW_FIELDS) -> dict[str, int]:
    """The whole numbers of a request: all fields, and no others."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, max_num_fields=len(fields))
    except ValueError:
        pairs = []
    found = {name: int(text) for name, text in pairs if text.isascii() and text.isdigit() and len(text) <= 9}
    if len(pairs) != len(fields) or sorted(found) != sorted(fields):
        raise RefusedRequestError(400, f"The address needs the whole numbers {', '.join(fields)}.")
    return found


def parse_what_if(body: bytes) -> WhatIfRequest:
    """A what-if request, with types and sizes checked."""
    given = _json_object(body, WHAT_IF_FIELDS, "with a text and ")
    if "text" not in given:
        raise RefusedRequestError(400, "The body must be a JSON object with a text.")
    for name, value in given.items():
        if type(value) is not WHAT_IF_FIELDS[name]:
            raise checks.wrong(name, "text" if WHAT_IF_FIELDS[name] is str else "a whole number", f"{value!r:.60}")
        if isinstance(value, str) and len(value) > MAX_CHARACTERS:
            raise checks.wrong(name, f"a text of at most {MAX_CHARACTERS:,} characters", f"one of {len(value):,}")
        if isinstance(value, str) and any("\ud800" <= char <= "\udfff" for char in value):
            raise checks.wrong(name, "a text without unpaired surrogates", "one with them")
    for name, least, most in (("beams", 1, MAX_BEAMS), ("choice", 0, MAX_BEAMS - 1), ("trace", 0, 1)):
        if not least <= given.get(name, least) <= most:
            raise checks.wrong(name, f"from {least} to {most}", given[name])
    return WhatIfRequest(**given)


def parse_influence(body: bytes) -> InfluenceRequest:
    """A request for the influence of words, with types checked; the trace knows how many words there are."""
    given = _json_object(body, ("trace", "words"))
    trace, words = given.get("trace", 0), given.get("words")
    if type(trace) is not int or trace < 0:
        raise checks.wrong("trace", "a whole number from 0", f"{trace!r:.60}")
    if words is not None and (not isinstance(words, list) or not words or any(type(one) is not int for one in words)):
        raise checks.wrong("words", "an array of whole numbers", f"{words!r:.60}")
    return InfluenceRequest(trace, None if words is None else tuple(dict.fromkeys(words)))


def _json_object(body: bytes, keys: Iterable[str], needs: str = "") -> dict[str, Any]:
    """The JSON object of a request without other keys; keys with null are left out."""
    try:
        table = json.loads(body.decode("utf-8"), parse_constant=_refuse_json_constant)
    except (ValueError, RecursionError):
        raise RefusedRequestError(400, "The body must be a JSON object in UTF-8.") from None
    if not isinstance(table, dict) or set(table) - set(keys):
        raise RefusedRequestError(400, f"The body must be a JSON object {needs}with no keys other than "
                                       f"{', '.join(keys)}.")
    return {name: value for name, value in table.items() if value is not None}


def _refuse_json_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


class PageServer:
    """A server that shows traces on a port of this machine.

    Args:
        traces: one, or two to compare.
        title: the title of the page.
        what_if: makes the trace of a what-if request; the message of its ValueError is sent to the page.
        port: 0 for any free port.
    """

    def __init__(self, traces: Sequence[Trace], *, title: str = "", what_if: WhatIf | None = None,
                 port: int = 0) -> None:
        if not 0 <= port < 1 << 16:
            raise checks.wrong("port", "from 0 to 65535", port)
        self.traces, self.what_if, self.tiles = list(traces), what_if, TileCache()
        self.leave_out: dict[int, LeaveOut] = {}
        self.sent = 0  # the number of traces that were sent, those of the page first
        table = document.served_document(self.traces, title)
        table["asks"] = what_if is not None
        for trace, one in zip(self.traces, table["traces"], strict=True):
            self._keep(trace, one)
        bundle = document_bundle(table)
        # The policy in the page and in the HTTP header differ only in what a page must not contain.
        policy = bundle.policy("connect-src 'self'")
        self.policy = f"{policy}; frame-ancestors 'none'"
        self.html = bundle.page(table["title"], document.dump_document(table), policy).encode()
        self.token, self.model_lock = secrets.token_urlsafe(24), threading.Lock()
        self.http = _PageHttpServer((HOST, port), type("Handler", (_PageRequestHandler,), {"page": self}))
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return int(self.http.server_address[1])

    @property
    def address(self) -> str:
        """The address of the page, with the token that allows requests."""
        return f"http://{HOST}:{self.port}/{self.token}/"

    def run(self, waiting: Callable[[], None] = lambda: None) -> None:
        """Serve until interrupted (Ctrl-C); `waiting` is called if the shutdown has to wait for the model."""
        try:
            self.http.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            pass
        finally:
            if self.model_lock.locked():
                waiting()
            self._close()

    def __enter__(self) -> Self:
        """Serve in a thread until the block ends."""
        self._thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self.http.shutdown()
        self._close()
        if self._thread is not None:
            self._thread.join()

    def _close(self) -> None:
        """Refuse further requests, and wait for running computations."""
        self.http.server_close()
        self.tiles.close()
        with self.model_lock:
            self.what_if = None
            self.leave_out.clear()

    def map(self, query: str) -> dict[str, Any]:
        """The answer to a request for a window."""
        wanted = parse_numbers(query)
        attention = self._attention(wanted)
        window = TileWindow(wanted["top"], wanted["left"], wanted["rows"], wanted["columns"])
        found = self.tiles.window(attention, wanted["head"], window, wanted["size"])
        finite = found[found.isfinite()]
        lowest, highest = (finite.min().item(), finite.max().item()) if finite.numel() else (None, None)
        return {"rows": found.shape[0], "columns": found.shape[1], "size": wanted["size"],
                "values": document.encode_numbers(found), "smallest": lowest, "largest": highest}

    def score(self, query: str) -> dict[str, Any]:
        """The answer to a request for the score of one weight: its parts, or the reason why there are none."""
        wanted = parse_numbers(query, SCORE_FIELDS)
        attention = self._attention(wanted)
        parts = self.tiles.score(attention, wanted["head"], wanted["row"], wanted["column"])
        if parts is None:
            return {"reason": _no_product(attention.look)}
        if not all(map(math.isfinite, (parts.score, parts.weight))):
            return {"reason": "The score of this weight is not finite."}
        return {**parts._asdict(), "product": parts.product, "score": parts.score}

    def _attention(self, wanted: dict[str, int]) -> TracedAttention:
        trace = _pick_item("trace", self.traces, wanted["trace"])
        found: TracedAttention = _pick_item("attention", trace.attentions, wanted["attention"])
        return found

    def _keep(self, trace: Trace, table: dict[str, Any]) -> None:
        """Give a trace a number, and keep what computes its influence, if it has that."""
        number = self.sent
        self.sent += 1
        if trace.leave_out is not None:
            self.leave_out[number] = trace.leave_out
            table |= {"number": number, "refines": True}
        if number - MAX_KEPT >= len(self.traces):
            self.leave_out.pop(number - MAX_KEPT, None)

    def influence(self, body: bytes) -> dict[str, Any]:
        """The answer to a request for the influence of words."""
        request = parse_influence(body)
        with self.model_lock:
            compute = self.leave_out.get(request.trace)
            if compute is None:
                raise RefusedRequestError(404, "The model of this trace is not at hand. To leave out words run: "
                                               "regard look MODEL TEXT")
            return {"influence": asdict(compute(request.words))}

    def translate(self, body: bytes) -> dict[str, Any]:
        """The answer to a what-if request."""
        request = parse_what_if(body)
        _pick_item("trace", self.traces, request.trace)
        with self.model_lock:  # one at a time: a model uses the whole machine
            if self.what_if is None:
                raise RefusedRequestError(404, "This page shows stored traces, without a model. For another text run: "
                                               "regard look MODEL TEXT")
            trace = self.what_if(request)
            [table] = document.trace_tables([trace])
            self._keep(trace, table)
            return {"trace": table}


class _PageHttpServer(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = os.name == "posix"  # on Windows it would let another program listen too
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, *given: Any) -> None:
        self.slots = threading.Semaphore(MAX_CONNECTIONS)
        super().__init__(*given)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self.slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):  # the client is gone
            super().handle_error(request, client_address)


class _RequestStream(io.RawIOBase):
    """The bytes of a connection up to a deadline, so that a client that sends a byte now and then does not hold it."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.deadline = connection, 0.0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.connection.settimeout(max(0.001, self.deadline - time.monotonic()))
        return self.connection.recv_into(buffer)


class _PageRequestHandler(BaseHTTPRequestHandler):
    page: PageServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "regard", ""

    def setup(self) -> None:
        super().setup()
        self.stream = _RequestStream(self.connection)
        self.rfile = io.BufferedReader(self.stream)

    def handle_one_request(self) -> None:
        """Read one request, which must arrive before the deadline; the next one gets a new deadline."""
        self.stream.deadline = time.monotonic() + TIMEOUT_SECONDS
        super().handle_one_request()

    def do_GET(self) -> None:
        known = {"": self._page, "map.json": self._map, "score.json": self._score}
        self._answer(known, "POST", ("translate.json", "influence.json"))

    do_HEAD = do_GET

    def do_POST(self) -> None:
        posted = {"translate.json": self.page.translate, "influence.json": self.page.influence}
        known = {path: partial(self._send_answer, answer) for path, answer in posted.items()}
        self._answer(known, "GET", ("", "map.json", "score.json"))

    def _answer(self, known: Mapping[str, Callable[[str], None]], other: str, others: Sequence[str]) -> None:
        try:
            self._check_sender()
            path, query = self._target()
            if path in others:
                raise RefusedRequestError(405, f"This address needs the method {other}.")
            if path not in known:
                raise RefusedRequestError(404, "There is nothing at this address.")
            known[path](query)
        except RefusedRequestError as error:
            self._refuse(error.status, str(error))
        except ValueError as error:
            self._refuse(400, str(error))
        except (MemoryError, RuntimeError) as error:  # PyTorch raises the latter, on a CPU too
            if not allocation.is_out_of_memory(error):
                raise
            self._refuse(500, allocation.describe(error, "Try a shorter text, or fewer beams."))

    def _check_sender(self) -> None:
        """Refuse a request for another host name, or from another page."""
        hosts = self.headers.get_all("Host", [])
        if hosts not in [[f"{name}:{self.page.port}"] for name in HOST_NAMES]:
            raise RefusedRequestError(403, "This server answers to its own name only.")
        origin, site = self.headers.get_all("Origin", []), self.headers.get("Sec-Fetch-Site")
        if origin not in ([], [f"http://{hosts[0]}"]):
            raise RefusedRequestError(403, "This server does not answer to other pages.")
        # A link to the page, with its token, may be anywhere, such as in a terminal inside another page.
        followed = self.command == "GET" and self.headers.get("Sec-Fetch-Mode") == "navigate"
        if site is not None and site not in ("same-origin", "none") and not followed:
            raise RefusedRequestError(403, "This server does not answer to other pages.")

    def _target(self) -> tuple[str, str]:
        """The path after the token, and the query."""
        parts = urlsplit(self.path)
        start = f"/{self.page.token}/"
        if not secrets.compare_digest(parts.path[:len(start)].encode("utf-8", "replace"), start.encode()):
            raise RefusedRequestError(404, "There is nothing at this address.")
        return parts.path[len(start):], parts.query

    def _page(self, query: str) -> None:
        self._send(200, self.page.html, "text/html; charset=utf-8")

    def _map(self, query: str) -> None:
        self._send_json(200, self.page.map(query))

    def _score(self, query: str) -> None:
        self._send_json(200, self.page.score(query))

    def _send_answer(self, answer: Callable[[bytes], dict[str, Any]], query: str) -> None:
        """Send the answer to the JSON of the request."""
        if self.headers.get_content_type() != "application/json":
            raise RefusedRequestError(415, "The body must be application/json.")
        length = self.headers.get("Content-Length", "")
        if self.headers.get("Transfer-Encoding") is not None or not (length.isascii() and length.isdigit()):
            raise RefusedRequestError(411, "The request needs a Content-Length.")
        if len(length) > 12 or int(length) > MAX_REQUEST_BYTES:
            raise RefusedRequestError(413, f"The body may have at most {MAX_REQUEST_BYTES:,} bytes.")
        self._send_json(200, answer(self.rfile.read(int(length))))

    def _refuse(self, status: int, reason: str) -> None:
        self.close_connection = True  # the rest of the request is not read
        self._send_json(status, {"error": reason})

    def _send_json(self, status: int, table: dict[str, Any]) -> None:
        self._send(status, document.dump_document(table).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.connection.settimeout(TIMEOUT_SECONDS)
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
        """Send errors of the standard library as JSON, without any part of the request."""
        self.close_connection = True
        if not hasattr(self, "headers"):
            self.command = self.command or "GET"
        self._send_json(code, {"error": f"Bad request: {HTTPStatus(code).phrase}."})

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, because addresses contain the token."""


def _no_product(record: AttentionRecord) -> str:
    """Why the score of an attention has no parts."""
    if isinstance(record, WeightMatrix):
        return "The trace has the weights of this attention, without the queries and keys that they are computed from."
    score = as_score(record.score)
    return f"The score of this attention, {score!r}, is not a dot product: it is no sum over dimensions."


def _pick_item(name: str, several: Sequence[Any], number: int) -> Any:
    if not 0 <= number < len(several):
        raise checks.wrong(name, f"from 0 to {len(several) - 1}", number)
    return several[number]
