"""The server as a process: sockets, signals, slow clients; and in a thread, for a notebook.

    run_server(context, socket)                 until SIGTERM, which drains; a second one ends the process at once
    with BackgroundServer(["model"]) as server:
        server.address                          "http://127.0.0.1:40213"

SIGTERM and SIGINT close the listening socket, let requests in flight finish, and end the server. SIGHUP loads the
models again. uvicorn bounds the size of headers, but not the time in which they arrive: `GuardedProtocol` does.
"""

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, Self

import torch
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from regard import allocation
from regard.serving.app import create_app
from regard.serving.context import ServerContext
from regard.serving.engine import ServingEngine
from regard.serving.limits import MAX_HEADER_BYTES
from regard.serving.metrics import LOGGER
from regard.serving.models import ModelCatalog, parse_model
from regard.serving.settings import ServerSettings

KEEP_ALIVE_SECONDS = 30
BACKLOG = 1024


class GuardedProtocol(H11Protocol):
    """uvicorn's protocol, with a limit on open connections and on the time in which the headers of a request arrive."""

    read_timeout = 20.0
    max_connections = 4096
    refused: Callable[[], None] = staticmethod(lambda: None)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, unless there are too many."""
        self._headers_timer: asyncio.TimerHandle | None = None
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            self.refused()
            transport.abort()
            return
        self._await_headers()

    def data_received(self, data: bytes) -> None:
        """Pass bytes on, and watch how long the headers of the next request take."""
        if self.cycle is None or self.cycle.response_complete:
            self._await_headers()
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._headers_arrived()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timer."""
        self._headers_arrived()
        super().connection_lost(exc)

    def _await_headers(self) -> None:
        if self._headers_timer is None:
            self._headers_timer = self.loop.call_later(self.read_timeout, self._headers_late)

    def _headers_arrived(self) -> None:
        if self._headers_timer is not None:
            self._headers_timer.cancel()
            self._headers_timer = None

    def _headers_late(self) -> None:
        self._headers_timer = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()


class SignalServer(uvicorn.Server):
    """uvicorn's server with our signals: it ends with exit code 0 after a drain, and reloads."""

    def __init__(self, config: uvicorn.Config, context: ServerContext, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.context, self.ready = context, ready
        self._tasks = set[asyncio.Task[None]]()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and tell it."""
        await super().startup(sockets)
        self.ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals while the server runs, if this is the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        handlers: dict[int, Any] = {signal.SIGTERM: self.handle_exit, signal.SIGINT: self.handle_exit}
        if hasattr(signal, "SIGHUP"):
            handlers[signal.SIGHUP] = lambda number, frame: loop.call_soon_threadsafe(self.start_reload)
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain; the second time, end the process at once."""
        if self.should_exit:
            os._exit(130 if sig == signal.SIGINT else 1)
        self.should_exit = True

    def start_reload(self) -> None:
        """Load the models again beside the requests."""
        task = asyncio.get_running_loop().create_task(self.context.reload())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def open_socket(host: str, port: int) -> socket.socket:
    """A listening socket; an OSError if the address is not free or not of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only for sockets that name TCP: with it, the body of an answer waits for the
    # acknowledgement of its headers, which a client may delay by 40 ms.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(BACKLOG)
        found.setblocking(False)
    except OSError:
        found.close()
        raise
    return found


def socket_address(listening: socket.socket) -> str:
    """The address of a socket as a URL."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def make_server(context: ServerContext, ready: Callable[[], None] = lambda: None) -> SignalServer:
    """A server that is not running yet."""
    settings = context.settings
    protocol = type("ConfiguredProtocol", (GuardedProtocol,), {
        "read_timeout": settings.read_timeout, "max_connections": settings.max_connections,
        "refused": staticmethod(context.metrics.refused.inc)})
    config = uvicorn.Config(create_app(context), http=protocol, ws="none", loop="asyncio", lifespan="on",
                            log_config=None, access_log=False, server_header=False, proxy_headers=True,
                            forwarded_allow_ips="127.0.0.1", timeout_keep_alive=KEEP_ALIVE_SECONDS,
                            timeout_graceful_shutdown=settings.drain_timeout,  # type: ignore[arg-type]
                            h11_max_incomplete_event_size=MAX_HEADER_BYTES + settings.max_body)
    return SignalServer(config, context, ready)


def run_server(context: ServerContext, listening: socket.socket, ready: Callable[[], None] = lambda: None) -> None:
    """Serve until SIGTERM or SIGINT; `ready` is called when requests are answered."""
    _allow_many_files(2 * context.settings.max_connections)
    allocation.keep_heap_small()
    server = make_server(context, ready)
    try:
        server.run(sockets=[listening])
    finally:
        LOGGER.info("stopped")
        context.close()


def _allow_many_files(count: int) -> None:
    """Raise the limit on open files, which is 1,024 on many systems, as far as this process may."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def load_catalog(models: Sequence[str], settings: ServerSettings) -> ModelCatalog:
    """The models of a server with their engines."""
    threads = settings.threads or max(1, torch.get_num_threads() // len(models))
    make_engine = partial(ServingEngine, max_queued=settings.max_queue, threads=threads)
    return ModelCatalog.load([parse_model(one) for one in models], make_engine, device=settings.device)


class BackgroundServer:
    """A server in a thread of this process, for a notebook or a test; a context manager.

    Args:
        models: as for `regard serve`: folders, or "en-fr=FOLDER". A `ModelCatalog` is used as it is.
        settings: fields of `ServerSettings`; the port is any free one by default.
    """

    def __init__(self, models: Sequence[str] | ModelCatalog, **settings: Any) -> None:
        given = ServerSettings(**{"port": 0, **settings})
        catalog = models if isinstance(models, ModelCatalog) else load_catalog(models, given)
        self.context = ServerContext(given, catalog)
        self._socket = open_socket(given.host, given.port)
        self.address = socket_address(self._socket)
        """The address of the server, such as "http://127.0.0.1:40213"."""
        self._ready = threading.Event()
        self.server = make_server(self.context, self._ready.set)
        self._thread = threading.Thread(target=self.server.run, args=([self._socket],), name="regard-serve",
                                        daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(30):
            raise RuntimeError("The server did not start within 30 seconds.")
        return self

    def __exit__(self, *details: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Finish requests in flight, and stop."""
        self.server.should_exit = True
        self._thread.join()
        self.context.close()
