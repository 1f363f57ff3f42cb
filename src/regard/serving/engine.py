"""The serving engine: many requests at once over one model, in one process, without a web framework.

    engine = ServingEngine(translator)
    ticket = engine.submit(["Good morning."], Beam(beams=5), deadline=30)      returns at once
    ticket.result()                                                            [Translation('Bonjour.', ...)]
    engine.close()

On a CPU a model has a worker for each core: a thread with batches of its own, which computes alone. Threads that share
operations wait for each other, many times longer where other programs need the cores too. A very small model spends
most of a step in Python, of which one thread runs at a time: it has one worker, whose operations the cores share. So
has a model on a GPU.

Between two steps a worker lets waiting texts join a batch as long as the token budget has room, removes those that have
finished, were cancelled or are too late, and answers each as soon as it has finished: no text waits for a batch to
fill, or for its neighbours (`regard.decoding.live_search`). Texts whose strategies are
equal share a batch, apart from maximum lengths, seeds and prefixes; batches take turns, a step each. Storage is
allocated by the power of two of a row's maximum length, so a short text never shares storage with a long one, and long
texts have at most half of the token budget, so that short ones always find room soon. Requests take turns in the queue,
one text each, so that a request of many texts delays none of one text.

A result is what the plain call gives (`translator.search(texts, strategy)`), whatever else is running: the same text,
and each log-probability within 1e-5. They are not equal bit for bit, on a CPU either: a matrix product rounds a row
differently if it has other numbers of rows. If the model fails on a batch, its texts
are run again in halves until the failing text is alone; the engine keeps serving.
"""

import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch

from regard import allocation, checks
from regard.decoding.request import Hypothesis, InvalidLogitsError
from regard.kernels.packed_linear import packed_linear_layers
from regard.serving.text_jobs import SearchRow, ServedTask, TextJob, can_stream, served_task
from regard.tasks.completer import Completer, Completion
from regard.tasks.search import DecodingStrategy
from regard.tasks.translator import GlossaryLike, Translation, Translator

__all__ = ["CancelledError", "DeadlineError", "EngineLoad", "ModelError", "QueueFullError", "ServingEngine", "Ticket"]

CPU_TOKEN_BUDGET, GPU_TOKEN_BUDGET = 1 << 16, 1 << 19
"""Tokens, hypotheses times storage, that run at once: on a CPU some 250 hypotheses, with more a step takes longer."""
MIN_PARAMETERS = 4_000_000
"""A model on a CPU with fewer parameters has one worker."""
MEMORY_SHARE = 4
"""The tokens that run at once may take one part in this many of the free memory of a GPU."""
SHORT_CAPACITY = 256
"""Rows with more storage count as long."""
RATE_SECONDS = 10.0
"""The rate of finished texts is measured over about the last seconds in which the engine was busy."""
STOP_SECONDS = 5.0
"""How long the end of the interpreter waits for a step of the model."""
MODEL_ERRORS = (ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, OSError, RuntimeError,
                TypeError, ValueError)
"""What a model, or a function of the caller, may raise. It fails the requests that it concerns."""


class QueueFullError(RuntimeError):
    """Too many texts are waiting; `retry_after` is an estimate of the seconds until there is room."""

    def __init__(self, waiting: int, most: int, retry_after: float) -> None:
        super().__init__(f"{waiting:,} of at most {most:,} texts are waiting. Try again in {retry_after:.1f} s.")
        self.retry_after = retry_after


class DeadlineError(RuntimeError):
    """The time limit of a request has passed, in the queue or while it was generated."""


class ModelError(RuntimeError):
    """The model failed on a text: its parameters are not finite, or there is not enough memory."""


class EngineLoad(NamedTuple):
    """What an engine is doing, and what it has done."""

    queued: int
    """Texts that wait."""
    running: int
    """Texts that are being generated."""
    rows: int
    """Hypotheses of all batches."""
    tokens: int
    """Tokens of all results, alternatives included."""
    requests: int
    """Requests that were answered."""
    seconds_busy: float
    """The seconds of all workers in which they had something to do."""
    steps: int
    """Steps of all batches."""
    step_rows: int = 0
    """Hypotheses of all these steps; divided by `steps` it is the mean size of a batch."""


class Ticket:
    """A request that was accepted: one or more texts, and their results when all are there."""

    def __init__(self, jobs: list[TextJob], seconds: float | None, on_text: Callable[[int, str], None] | None,
                 clock: Callable[[], float], forget: "Callable[[Ticket], None]") -> None:
        self.jobs, self.on_text = jobs, on_text
        self.queued_seconds: float | None = None
        """Seconds until the first text joined a batch."""
        self.first_token_seconds: float | None = None
        self.total_seconds: float | None = None
        self.tokens = 0
        """The number of tokens of the results, alternatives included."""
        self.waiting, self.unstarted, self.left = deque[SearchRow](), 0, len(jobs)
        self.shown = dict[int, str]()
        self._clock, self._forget, self._submitted = clock, forget, clock()
        self.expires = math.inf if seconds is None else self._submitted + seconds
        self._future: Future[list[Translation] | list[Completion]] = Future()

    @property
    def done(self) -> bool:
        """Whether it was answered, has failed or was cancelled."""
        return self._future.done()

    def result(self, timeout: float | None = None) -> list[Translation] | list[Completion]:
        """The results of all texts in their order; raises the error of a request that failed.

        Args:
            timeout: seconds to wait, after which a TimeoutError is raised; the request continues.
        """
        return self._future.result(timeout)

    def cancel(self) -> None:
        """Give the request up, unless it is done: its rows leave at the next step."""
        if self._future.cancel():
            self._forget(self)

    def add_done_callback(self, function: "Callable[[Ticket], None]") -> None:
        """Call a function when the request is done, in a thread of the engine; at once if it is done."""
        self._future.add_done_callback(lambda _: function(self))

    def elapsed(self) -> float:
        """Seconds since it was submitted."""
        return self._clock() - self._submitted

    def settle(self, error: Exception | None = None) -> None:
        """Answer with the results of all jobs, or with an error."""
        self.total_seconds = self.elapsed()
        try:
            if error is None:
                self._future.set_result([job.result for job in self.jobs])  # type: ignore[arg-type]
            else:
                self._future.set_exception(error)
        except InvalidStateError:
            pass  # cancelled meanwhile


class EngineBatch:
    """Rows that run together, and those that join them at the next step."""

    def __init__(self, served: ServedTask, row: SearchRow, isolated: bool) -> None:
        self.served, self.group, self.isolated = served, row.group, isolated
        self.live = served.live_search(row)
        self.joining = list[SearchRow]()

    @property
    def rows(self) -> list[SearchRow]:
        """All rows, whether they run already or join."""
        return [*self.live.prompts, *self.joining]


class EngineWorker:
    """The batches of one thread."""

    def __init__(self) -> None:
        self.batches = list[EngineBatch]()


class EngineCore:
    """The queue of an engine, its workers and their turns; a thread for each calls `run`, a test may call `turn`."""

    def __init__(self, task: Translator | Completer, max_queued: int, token_budget: int | None,
                 clock: Callable[[], float], workers: int = 1) -> None:
        self.served, self.max_queued, self.clock = served_task(task), max_queued, clock
        self.token_budget = default_budget(task) if token_budget is None else token_budget
        self.condition = threading.Condition()
        self.queue = deque[Ticket]()  # requests with rows that wait
        self.active = set[Ticket]()
        self.owners = dict[TextJob, tuple[Ticket, int]]()  # the request and the number of each text
        self.workers = [EngineWorker() for _ in range(workers)]
        self.queued, self.closed, self.stopped = 0, False, False
        self.tokens, self.requests, self.steps, self.step_rows, self.seconds_busy = 0, 0, 0, 0, 0.0
        self.recent_texts, self.recent_seconds = 0.0, 0.0
        self.contexts = dict[ServedTask, ExitStack]()

    @property
    def batches(self) -> list[EngineBatch]:
        """The batches of all workers."""
        return [batch for worker in self.workers for batch in worker.batches]

    # Called by any thread

    def submit(self, jobs: list[TextJob], seconds: float | None,
               on_text: Callable[[int, str], None] | None) -> Ticket:
        """Queue a request, or answer it at once where nothing is to be generated."""
        ticket = Ticket(jobs, seconds, on_text, self.clock, self.forget)
        if len(jobs) > self.max_queued:
            raise checks.wrong("texts", f"at most {self.max_queued:,}, the texts that may wait", f"{len(jobs):,}")
        rows = [(number, job, row) for number, job in enumerate(jobs) for row in job.advance(None)]
        ticket.left = len(rows)
        if not rows:
            ticket.settle()
            return ticket
        with self.condition:
            if self.closed:
                raise RuntimeError("The engine is closed, so it takes no more requests.")
            self.check_room(len(rows))
            for number, job, row in rows:
                self.owners[job] = ticket, number
                row.separate |= on_text is not None and job.served.on_gpu
                ticket.waiting.append(row)
            ticket.unstarted = len(rows)
            self.queued += len(rows)
            self.active.add(ticket)
            self.queue.append(ticket)
            self.condition.notify_all()
        return ticket

    def check_room(self, texts: int) -> None:
        """Refuse texts for which the queue has no room."""
        if self.queued + texts > self.max_queued:  # others want the first room too: the estimate is for all that wait
            raise QueueFullError(self.queued, self.max_queued, self.estimate(max(1, self.queued)))

    def estimate(self, texts: int) -> float:
        """The seconds in which so many texts are finished, from the measured rate; 1 if nothing was measured."""
        return texts * self.recent_seconds / self.recent_texts / len(self.workers) if self.recent_texts else 1.0

    def forget(self, ticket: Ticket) -> None:
        """Remove a request that is done; rows that are running leave at the next step."""
        with self.condition:
            if ticket in self.active:
                self.active.discard(ticket)
                self.queued -= ticket.unstarted
                ticket.unstarted = 0
                ticket.waiting.clear()
                for job in ticket.jobs:
                    self.owners.pop(job, None)
                self.condition.notify_all()

    def load(self) -> EngineLoad:
        """What the engine is doing."""
        with self.condition:
            batches, queued = self.batches, self.queued
        running = {id(row.job) for batch in batches for row in batch.rows}
        return EngineLoad(queued, len(running), sum(batch.live.rows for batch in batches), self.tokens, self.requests,
                          self.seconds_busy, self.steps, self.step_rows)

    def close(self, drain: bool, timeout: float | None) -> None:
        """Take no more requests, wait for those that are active, cancel what is left, and end the thread."""
        with self.condition:
            self.closed = True
            if drain:
                self.condition.wait_for(lambda: not self.active, timeout)
            left = [*self.active]
        for ticket in left:
            ticket.cancel()
        with self.condition:
            self.stopped = True
            self.condition.notify_all()

    # Called by the thread of a worker

    def run(self, worker: EngineWorker) -> None:
        """Serve until the engine is stopped."""
        ended_well = False
        try:
            with torch.inference_mode():
                while self._wait(worker):
                    self.turn(worker)
                ended_well = True
        finally:
            worker.batches = []
            self._release_models()
            if not ended_well:
                with self.condition:
                    self.closed, left = True, [*self.active]
                for ticket in left:
                    self._fail(ticket, ModelError("The thread of the engine has ended by an error, so it serves no "
                                                  "more requests. Its message is in the log."))

    def _wait(self, worker: EngineWorker) -> bool:
        """Wait until the worker has something to do; False if the engine is stopped."""
        with self.condition:
            while not (worker.batches or self.stopped):
                self._admit(worker)
                if not worker.batches:
                    self._release_models()  # while nothing runs, the modules are as they were
                    self.condition.wait()
            return not self.stopped

    def turn(self, worker: EngineWorker | None = None) -> None:
        """Let rows join, and run one step of each batch of a worker, by default of the first one."""
        worker = self.workers[0] if worker is None else worker
        began = time.perf_counter()
        self._expire()
        self._admit(worker)
        texts = 0
        for batch in [*worker.batches]:
            texts += self._step(worker, batch)
        seconds = time.perf_counter() - began
        keep = math.exp(-seconds / RATE_SECONDS)
        with self.condition:
            worker.batches = [batch for batch in worker.batches if batch.rows]
            self._release_models()
            self.recent_texts = keep * self.recent_texts + texts
            self.recent_seconds = keep * self.recent_seconds + seconds
            self.seconds_busy += seconds
            if texts:
                self.condition.notify_all()  # there is room for others

    def _expire(self) -> None:
        """Fail requests whose time has passed."""
        now = self.clock()
        with self.condition:
            late = [ticket for ticket in self.active if ticket.expires <= now]
        for ticket in late:
            where = "in the queue" if ticket.queued_seconds is None else "while its text was generated"
            self._fail(ticket, DeadlineError(f"The time limit of {ticket.expires - now + ticket.elapsed():.3g} s has "
                                             f"passed {where}."))

    def _admit(self, worker: EngineWorker) -> None:
        """Move waiting rows into batches as long as there is room: one text of each request in turn.

        A worker takes no more than its share, so that all of them have equally many rows. An idle one leaves the first
        row to those before it: a single client is then always served by the same thread.
        """
        with self.condition:
            self.queue = deque(ticket for ticket in self.queue if ticket.waiting)  # without those that are cancelled
            number, of_each = self.workers.index(worker), [self._running(one) for one in self.workers]
            mine, running = of_each[number], [row for some in of_each for row in some]
            if not mine and not all(of_each[:number]):
                return
            used, used_by_long = (sum(self._cost(row) for row in some) for some in (
                running, [row for row in running if row.capacity > SHORT_CAPACITY]))
            waiting = sum(len(ticket.waiting) for ticket in self.queue)
            left = share = -(-(len(running) + waiting) // len(self.workers)) - len(mine)
            skipped = deque[Ticket]()
            while self.queue and left > 0:
                ticket = self.queue.popleft()
                row = ticket.waiting[0]
                cost, is_long = self._cost(row), row.capacity > SHORT_CAPACITY
                if is_long and used_by_long and used_by_long + cost > self.token_budget // 2:
                    skipped.append(ticket)  # others may pass: long ones have their share
                    continue
                if used and used + cost > self.token_budget:
                    self.queue.appendleft(ticket)
                    break
                used, used_by_long, left = used + cost, used_by_long + cost * is_long, left - 1
                self._start(worker, ticket, ticket.waiting.popleft())
                if ticket.waiting:
                    self.queue.append(ticket)
            self.queue.extendleft(reversed(skipped))
            if self.queue and left < share:
                self.condition.notify_all()  # what is left may be for the next worker

    def _running(self, worker: EngineWorker) -> list[SearchRow]:
        """The rows of a worker that were not cancelled."""
        return [row for batch in [*worker.batches] for row in batch.rows if row.job in self.owners]

    def _cost(self, row: SearchRow) -> int:
        """The tokens of a row; a long one counts as half of the budget at most, so that short ones pass it."""
        return min(row.tokens, self.token_budget // 2) if row.capacity > SHORT_CAPACITY else row.tokens

    def _start(self, worker: EngineWorker, ticket: Ticket, row: SearchRow) -> None:
        if ticket.queued_seconds is None:
            ticket.queued_seconds = ticket.elapsed()
        if not row.job.started:  # else this is a later search for the same text
            row.job.started = True
            ticket.unstarted -= 1
            self.queued -= 1
        batch = next((one for one in worker.batches
                      if one.served is row.job.served and not one.isolated and one.group == row.group), None)
        if batch is None:
            batch = EngineBatch(row.job.served, row, isolated=False)
            worker.batches.append(batch)
        batch.joining.append(row)

    def _step(self, worker: EngineWorker, batch: EngineBatch) -> int:
        """One step of a batch; the number of texts that it finished."""
        joining, batch.joining = [row for row in batch.joining if row.job in self.owners], []
        leaving = {row for row in batch.live.prompts if row.job not in self.owners}
        self._use_model(batch.served)
        try:
            memory = batch.served.encode(joining) if joining else None
        except MODEL_ERRORS as error:
            self._isolate(worker, batch, joining, error)
            joining, memory = [], None
        try:
            answered, failed = batch.live.step(joining, memory, leaving)
        except MODEL_ERRORS as error:
            rows = [*{id(row): row for row in (*batch.live.prompts, *joining) if row not in leaving}.values()]
            batch.live.prompts = []
            self._isolate(worker, batch, rows, error)
            return 0
        with self.condition:
            self.steps += 1
            self.step_rows += batch.live.step_rows
        for row, invalid in failed:
            self._fail_row(row, invalid)
        for row in joining:
            ticket, _ = self._owner(row)
            if ticket is not None and ticket.first_token_seconds is None:
                ticket.first_token_seconds = ticket.elapsed()
        self._stream(batch)
        return sum(self._answer(row, hypotheses) for row, hypotheses in answered)

    def _owner(self, row: SearchRow) -> tuple[Ticket | None, int]:
        """The request of a row and the number of its text; None if it was cancelled meanwhile."""
        return self.owners.get(row.job, (None, 0))

    def _stream(self, batch: EngineBatch) -> None:
        """Show the new text of rows that are streamed."""
        owners = {id(row): self._owner(row) for row in batch.live.prompts}
        if not any(ticket is not None and ticket.on_text is not None for ticket, _ in owners.values()):
            return
        for row, sample, token in batch.live.last_tokens():
            ticket, number = owners[id(row)]
            if ticket is not None and ticket.on_text is not None:
                row.written.setdefault(sample, []).append(token)
                self._show(ticket, number * row.samples + sample, row.job.settled_text(row, sample))

    def _show(self, ticket: Ticket, number: int, text: str) -> None:
        if ticket.on_text is None or len(text) <= len(ticket.shown.get(number, "")):
            return
        ticket.shown[number] = text
        try:
            ticket.on_text(number, text)
        except MODEL_ERRORS as error:
            self._fail(ticket, error)

    def _answer(self, row: SearchRow, hypotheses: list[Hypothesis]) -> int:
        """Take the hypotheses for a row; 1 if its text is finished."""
        job, (ticket, number) = row.job, self._owner(row)
        if ticket is None:
            return 0
        try:
            following = job.answer(row, job.served.answer(row, hypotheses))
        except ValueError as error:  # such as terms of a glossary that do not fit
            self._fail(ticket, error)
            return 0
        except MODEL_ERRORS as error:
            self._fail_row(row, error)
            return 0
        if following:
            with self.condition:
                ticket.waiting.extendleft(reversed(following))
                if ticket not in self.queue:
                    self.queue.appendleft(ticket)
                self.condition.notify_all()
        if job.result is None:
            return 0
        for sample, one in enumerate((job.result, *job.result.alternatives) if ticket.on_text is not None else ()):
            self._show(ticket, number * row.samples + sample, one.text)
        with self.condition:
            self.tokens += job.generated
            ticket.tokens += job.generated
            ticket.left -= 1
            is_done = not ticket.left
            self.requests += is_done
        if is_done:
            ticket.settle()
            self.forget(ticket)
        return 1

    def _isolate(self, worker: EngineWorker, batch: EngineBatch, rows: list[SearchRow], error: Exception) -> None:
        """After the model has failed on rows, run each half of them again; a single row fails."""
        rows = [row for row in rows if row.job in self.owners]
        if len(rows) == 1:
            self._fail_row(rows[0], error)
            return
        for some in (rows[:len(rows) // 2], rows[len(rows) // 2:]):
            if some:
                half = EngineBatch(batch.served, some[0], isolated=True)
                half.joining = some
                for row in some:
                    row.written.clear()
                with self.condition:
                    worker.batches.append(half)

    def _fail_row(self, row: SearchRow, error: Exception) -> None:
        """Fail the request of a row for which the model has failed."""
        ticket, number = self._owner(row)
        if ticket is None:
            return
        where = f"text {number + 1} of {len(ticket.jobs)}" if len(ticket.jobs) > 1 else "this text"
        reason = str(error) or type(error).__name__
        if isinstance(error, InvalidLogitsError):
            reason = "its logits are NaN, or −∞ for every token. Check its parameters, or use a wider dtype."
        elif allocation.is_out_of_memory(error):
            reason = allocation.describe(error, "Use a shorter text, or fewer beams.")
        failed = ModelError(f"The model failed on {where}: {reason}")
        failed.__cause__ = error
        self._fail(ticket, failed)

    def _fail(self, ticket: Ticket, error: Exception) -> None:
        ticket.settle(error)
        self.forget(ticket)

    def _use_model(self, served: ServedTask) -> None:
        """Pack the weights of a model until it is released."""
        with self.condition:
            if served not in self.contexts:
                self.contexts[served] = ExitStack()
                self.contexts[served].enter_context(packed_linear_layers(served.model))

    def _release_models(self) -> None:
        """Give back the modules of models that no worker uses."""
        with self.condition:
            used = {batch.served for batch in self.batches}
            for served in [one for one in self.contexts if one not in used]:
                self.contexts.pop(served).close()


def default_budget(task: Translator | Completer) -> int:
    """The token budget that suits the device of a task."""
    if task.device.type != "cuda":
        return CPU_TOKEN_BUDGET
    decoder: Any = task.model.decoder
    layers, weight = len(getattr(getattr(decoder, "stack", None), "blocks", (decoder,))), next(decoder.parameters())
    token = 2 * layers * weight.shape[-1] * weight.element_size()  # the bytes of its keys and values
    return max(1, min(GPU_TOKEN_BUDGET, torch.cuda.mem_get_info(task.device)[0] // MEMORY_SHARE // token))


class ServingEngine:
    """Serves requests from any number of threads with one model.

    Args:
        task: the model. It must not be changed, nor trained, while it is served; `replace` serves another one.
        max_queued: the number of texts that may wait; a request beyond that is refused with a `QueueFullError`.
        token_budget: the number of tokens, hypotheses times storage, that may run at once; by default what suits the
            device. A single text that needs more runs nevertheless.
        threads: the number of CPU threads; by default as many as torch uses in the thread that makes the engine.
    """

    clock: Callable[[], float] = staticmethod(time.monotonic)

    def __init__(self, task: Translator | Completer, *, max_queued: int = 256, token_budget: int | None = None,
                 threads: int | None = None) -> None:
        checks.whole_number("max_queued", max_queued, 1)
        if token_budget is not None:
            checks.whole_number("token_budget", token_budget, 1)
        if threads is not None:
            checks.whole_number("threads", threads, 1)
        threads = threads or torch.get_num_threads()
        workers = threads if _has_many_workers(task) else 1
        self._process, self._core = os.getpid(), EngineCore(task, max_queued, token_budget, self.clock, workers)
        self._threads = [threading.Thread(target=_serve, args=(self._core, worker, threads // workers),
                                          name="regard-engine", daemon=True) for worker in self._core.workers]
        for thread in self._threads:
            thread.start()
        # The threads know only the core, so an engine that nobody holds any more is stopped, as at the end of Python.
        self._stop = weakref.finalize(self, _stop, self._core, self._threads, self._process)

    def submit(self, texts: Sequence[str], strategy: DecodingStrategy, *, prefix: str | Sequence[str] = "",
               glossary: GlossaryLike | None = None, to: str | None = None, deadline: float | None = None,
               on_text: Callable[[int, str], None] | None = None) -> Ticket:
        """Queue a request, and return at once. A wrong request is refused with a ValueError.

        Args:
            texts: a text, or several. Blank ones are answered without the model.
            strategy: a `Beam` or a `Sampling`.
            prefix: the beginning of the translations: one for all, or one for each text.
            glossary: terms that must appear, for beam search.
            to: the target language, for a model with several.
            deadline: the time limit of the request in seconds from now, after which it fails with a `DeadlineError`.
            on_text: a function of a number and a text so far, for greedy search or sampling. With n samples for each
                text, sample s of text t has the number t·n + s. It is called in a thread of the engine, with whole
                characters only, and must return soon.
        """
        if self._process != os.getpid():
            raise RuntimeError("This engine belongs to the process that made it. Make one in every process.")
        self._core.check_room(1)  # before any work for the request
        served = self._core.served
        jobs = served.jobs(texts, strategy, prefix=prefix, glossary=glossary, to=to)
        if on_text is not None and (glossary is not None or not can_stream(strategy)):
            raise checks.wrong("on_text", "left out, unless the search is greedy or samples, without a glossary",
                               "given", "Other searches may still change their first token at the end.")
        return self._core.submit(jobs, deadline, on_text)

    def replace(self, task: Translator | Completer) -> None:
        """Serve new requests with another model; those that wait or run finish with the one before."""
        self._core.served = served_task(task)

    @property
    def load(self) -> EngineLoad:
        """What the engine is doing, and what it has done."""
        return self._core.load()

    def close(self, *, drain: bool = True, timeout: float | None = None) -> None:
        """Take no more requests, and end the threads.

        Args:
            drain: finish the requests that wait or run; otherwise they are cancelled.
            timeout: the most seconds to wait for them; then the others are cancelled.
        """
        self._core.close(drain, timeout)
        self._stop()

    def __enter__(self) -> "ServingEngine":
        return self

    def __exit__(self, *error: object) -> None:
        self.close(drain=error[0] is None)


def _has_many_workers(task: Translator | Completer) -> bool:
    """Whether several workers serve more requests than one whose operations the cores share."""
    return task.device.type == "cpu" and sum(one.numel() for one in task.model.parameters()) >= MIN_PARAMETERS


def _serve(core: EngineCore, worker: EngineWorker, threads: int) -> None:
    torch.set_num_threads(threads)
    core.run(worker)


def _stop(core: EngineCore, threads: list[threading.Thread], process: int) -> None:
    """End the threads after the steps that they are in: Python must not end in the middle of one."""
    if process == os.getpid():
        core.close(drain=False, timeout=None)
        end = time.monotonic() + STOP_SECONDS
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, end - time.monotonic()))
