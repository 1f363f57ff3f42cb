"""The layers around the routes, each an ASGI application: observation, Host check, and the limits on bodies.

    Observer       counts and logs every request, bounds how many run, checks the Host, adds headers to every answer
    BodyLimit      reads a body within its size and time, before a route sees it; of uploads it counts the bytes
"""

import asyncio
import ipaddress
import json
import re
import socket
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.serving.metrics import ServerMetrics, log_request
from regard.serving.requests import CLIENT_CLOSED, HttpError, RequestFacts
from regard.serving.settings import ServerSettings

MAX_HEADER_BYTES = 32 << 10
UPLOAD_ROUTE = "/translate_file"
QUIET_ROUTES = ("/health", "/metrics")
"""Routes that are asked for all the time, and are not logged unless they fail."""
SEND_SECONDS = 60.0
"""Seconds in which a client must take the next part of an answer."""
DISCARDED_BYTES, DISCARD_SECONDS = 64 << 20, 2.0
"""What is read of a body that is refused, so that the client comes to read the answer."""
SECURITY_HEADERS = [
    (b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"), (b"cross-origin-resource-policy", b"same-origin"),
]
STRICT_POLICY = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
_PORT = re.compile(r":[0-9]{1,5}$")
RouteOf = Callable[[Scope], str]


def error_table(path: str, error: HttpError) -> dict[str, object]:
    """The body of an error, as the clients of the interface expect it."""
    if not path.startswith("/v1/"):
        return {"error": error.message}
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return {"error": {"message": error.message, "type": "rate_limit_error" if error.status == 429 else kind,
                      "param": error.param, "code": error.code}}


async def send_error(scope: Scope, send: Send, error: HttpError, *, close: bool = False) -> None:
    """Answer with an error."""
    body = json.dumps(error_table(scope["path"], error)).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
    if close:
        headers["connection"] = "close"
    await send({"type": "http.response.start", "status": error.status,
                "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()]})
    await send({"type": "http.response.body", "body": body})


class Observer:
    """The outermost layer."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: ServerMetrics, route_of: RouteOf) -> None:
        self.app, self.settings, self.metrics, self.route_of = app, settings, metrics, route_of
        self.running = 0
        self.hosts = {"localhost", socket.gethostname().lower(), *(host.lower() for host in settings.allowed_hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        facts = scope["regard.facts"] = RequestFacts(route=self.route_of(scope))
        status = CLIENT_CLOSED

        async def observed_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                names = {name for name, _ in message.get("headers", [])}
                own = SECURITY_HEADERS if STRICT_POLICY[0] in names else [*SECURITY_HEADERS, STRICT_POLICY]
                message = {**message, "headers": [*message.get("headers", []),
                                                  *(pair for pair in own if pair[0] not in names)]}
            async with asyncio.timeout(SEND_SECONDS):
                await send(message)

        self.running += 1
        self.metrics.in_flight.inc()
        try:
            if not self.knows_host(scope):
                raise HttpError(421, "This server does not answer to this Host. Start it with --allowed-host NAME.")
            if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADER_BYTES:
                raise HttpError(431, f"The headers are too long: at most {MAX_HEADER_BYTES:,} bytes are accepted.")
            if len(scope["query_string"]) + len(scope["path"]) > self.settings.max_body:
                raise HttpError(414, "The address is too long. Send the text in the body.")
            if self.running > self.settings.max_requests:
                raise HttpError(429, "The server is busy. Try again later.", retry_after=1)
            await self.app(scope, receive, observed_send)
        except HttpError as error:
            await send_error(scope, observed_send, error, close=True)
        except TimeoutError:  # the client does not read its answer
            status = CLIENT_CLOSED
        finally:
            self.running -= 1
            self.metrics.in_flight.dec()
            self.metrics.finish(facts, status)
            if status >= 400 or facts.route not in QUIET_ROUTES:
                log_request(facts, scope["method"], status)

    def knows_host(self, scope: Scope) -> bool:
        """Whether the Host is this server. An IP address is always: only names can be rebound to another address."""
        given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if "*" in self.hosts:
            return True
        if len(given) != 1:
            return False
        host = _PORT.sub("", given[0]).lower().rstrip(".")
        if host in self.hosts:
            return True
        try:
            ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
        except ValueError:
            return False
        return True


class BodyLimit:
    """Bounds the bytes of a body and the time in which it arrives."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self.app, self.settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its body."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        uploads = scope["path"] == UPLOAD_ROUTE and scope["method"] == "POST"
        limit = self.settings.max_upload if uploads else self.settings.max_body
        try:
            self._check_length(scope, limit)
            if uploads:
                await self.app(scope, self._counted(receive, limit), send)
                return
            body = await self._read(receive, limit)
        except HttpError as error:
            await _discard(receive)
            await send_error(scope, send, error, close=True)
            return
        await self.app(scope, _replayed(body, receive), send)

    def _check_length(self, scope: Scope, limit: int) -> None:
        """Refuse a body that announces to be too long, and one that is compressed."""
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and (len(length) > 18 or int(length) > limit):
            raise _too_large(limit)
        if headers.get(b"content-encoding", b"identity").strip().lower() not in (b"identity", b""):
            raise HttpError(415, "Compressed bodies are not accepted. Send the body as it is.")

    async def _read(self, receive: Receive, limit: int) -> bytes:
        parts, total = list[bytes](), 0
        try:
            async with asyncio.timeout(self.settings.read_timeout):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise HttpError(CLIENT_CLOSED, "The client closed the connection.")
                    parts.append(message.get("body", b""))
                    total += len(parts[-1])
                    if total > limit:
                        raise _too_large(limit)
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            raise HttpError(408, f"The body did not arrive within {self.settings.read_timeout:g} seconds.") from None

    def _counted(self, receive: Receive, limit: int) -> Receive:
        """The same messages; an HttpError when there are too many bytes, or they come too slowly."""
        total, complete = 0, False
        deadline = asyncio.get_running_loop().time() + 3 * self.settings.read_timeout

        async def counted() -> Message:
            nonlocal total, complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise HttpError(408, "The file did not arrive in time.") from None
            total += len(message.get("body", b""))
            complete = not message.get("more_body")
            if total > limit:
                raise _too_large(limit)
            return message

        return counted


def _too_large(limit: int) -> HttpError:
    return HttpError(413, f"The body is too large: at most {limit:,} bytes are accepted.")


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Messages that begin with this body."""
    sent = False

    async def replay() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def _discard(receive: Receive) -> None:
    """Read the rest of a refused body for a while: a connection that is closed before loses the answer."""
    left = DISCARDED_BYTES
    try:
        async with asyncio.timeout(DISCARD_SECONDS):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body"):
                    return
    except TimeoutError:
        return
