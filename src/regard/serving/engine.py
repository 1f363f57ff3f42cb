"""An engine that runs one request after another, in a thread of its own."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import Any, NamedTuple

from regard.tasks.completer import Completer
from regard.tasks.search import DecodingStrategy
from regard.tasks.translator import GlossaryLike, Translator


class QueueFullError(RuntimeError):
    """The queue has no room; `retry_after` estimates in how many seconds it has."""

    def __init__(self, retry_after: float = 1.0) -> None:
        super().__init__("The queue is full.")
        self.retry_after = retry_after


class DeadlineError(RuntimeError):
    """The time limit of a request passed."""


class EngineLoad(NamedTuple):
    """What an engine is doing, and has done."""

    queued: int
    running: int
    rows: int
    tokens: int
    requests: int
    seconds_busy: float
    steps: int


class Ticket:
    """A submitted request."""

    def __init__(self, work: Callable[[Translator | Completer], list[Any]], count: int, deadline: float | None) -> None:
        self.work, self.count, self.started = work, count, time.monotonic()
        self.deadline = None if deadline is None else self.started + deadline
        self.queued_seconds: float | None = None
        self.first_token_seconds: float | None = None
        self.total_seconds: float | None = None
        self.tokens = 0
        self._found: list[Any] | BaseException | None = None
        self._event, self._lock, self._callbacks = threading.Event(), threading.Lock(), list[Callable[[Ticket], None]]()

    @property
    def done(self) -> bool:
        """Whether there is a result or an error."""
        return self._event.is_set()

    def finish(self, found: list[Any] | BaseException) -> None:
        """Set the result."""
        with self._lock:
            if self.done:
                return
            self._found, self.total_seconds = found, time.monotonic() - self.started
            self._event.set()
        for function in self._callbacks:
            function(self)

    def result(self, timeout: float | None = None) -> list[Any]:
        """The results, one for each text."""
        if not self._event.wait(timeout):
            raise TimeoutError
        if isinstance(self._found, BaseException):
            raise self._found
        assert self._found is not None
        return self._found

    def cancel(self) -> None:
        """Give up."""
        self.finish(CancelledError())

    def add_done_callback(self, function: Callable[["Ticket"], None]) -> None:
        """Call a function when there is a result."""
        with self._lock:
            if not self.done:
                self._callbacks.append(function)
                return
        function(self)


class ServingEngine:
    """One request after another."""

    def __init__(self, task: Translator | Completer, *, max_queued: int = 256, token_budget: int | None = None,
                 threads: int | None = None) -> None:
        self.task, self.max_queued = task, max_queued
        self._queue: queue.SimpleQueue[Ticket | None] = queue.SimpleQueue()
        self._queued = self._running = self._tokens = self._requests = 0
        self._busy = 0.0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def submit(self, texts: Sequence[str], strategy: DecodingStrategy, *, prefix: str | Sequence[str] = "",
               glossary: GlossaryLike | None = None, to: str | None = None, deadline: float | None = None,
               on_text: Callable[[int, str], None] | None = None) -> Ticket:
        """Queue texts."""
        def work(task: Translator | Completer) -> list[Any]:
            if isinstance(task, Translator):
                return task.search(texts, strategy, prefix=prefix, glossary=glossary)
            if on_text is not None:
                for number, text in enumerate(texts):
                    so_far = ""
                    for piece in task.stream(text, strategy):
                        so_far += piece
                        on_text(number, so_far)
                        if ticket.done:
                            raise CancelledError
            return list(task.search(texts, strategy))

        if isinstance(self.task, Translator):
            self.task.check_search(strategy, glossary=glossary)
        with self._lock:
            if self._queued + len(texts) > self.max_queued:
                raise QueueFullError
            self._queued += len(texts)
        ticket = Ticket(work, len(texts), deadline)
        self._queue.put(ticket)
        return ticket

    def _run(self) -> None:
        while (ticket := self._queue.get()) is not None:
            with self._lock:
                self._queued -= ticket.count
            if ticket.done:
                continue
            begun = time.monotonic()
            if ticket.deadline is not None and begun > ticket.deadline:
                ticket.finish(DeadlineError("The time limit passed."))
                continue
            ticket.queued_seconds = begun - ticket.started
            self._running = ticket.count
            try:
                found = ticket.work(self.task)
            except (ValueError, RuntimeError, MemoryError, CancelledError) as error:
                ticket.finish(error)
            else:
                ticket.tokens = sum(len(one.ids) for one in found)
                ticket.first_token_seconds = time.monotonic() - ticket.started
                self._tokens += ticket.tokens
                self._requests += 1
                ticket.finish(found)
            self._running = 0
            self._busy += time.monotonic() - begun

    def close(self, *, drain: bool = True, timeout: float | None = None) -> None:
        """Stop."""
        self._queue.put(None)
        self._thread.join(timeout)

    def replace(self, task: Translator | Completer) -> None:
        """Use another model for new requests."""
        self.task = task

    @property
    def load(self) -> EngineLoad:
        """What it is doing."""
        return EngineLoad(self._queued, self._running, self._running, self._tokens, self._requests, self._busy,
                          self._requests)
