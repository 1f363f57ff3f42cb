"""From a request to the engine and back: submit texts, wait without blocking, cancel when the client is gone.

    translate_texts      as `regard translate` does: line by line, placeholders and tags kept
    search               as `Translator.search` does: what the model itself generates
    align_texts          word alignments, computed beside the engine

Every function is a coroutine. An engine works in its own thread and tells a future of the event loop when it is done.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from starlette.requests import Request

from regard import allocation
from regard.serving.engine import DeadlineError, QueueFullError, Ticket
from regard.serving.models import ServedDirection, ServedModel
from regard.serving.requests import CLIENT_CLOSED, HttpError, RequestFacts
from regard.tasks.alignment import Alignment
from regard.tasks.markup import HtmlText
from regard.tasks.placeholder_translation import (
    PlaceholderTranslation,
    StepResult,
    combine_alternatives,
    placeholder_steps,
)
from regard.tasks.search import Beam, DecodingStrategy
from regard.tasks.translator import GlossaryLike

BEAMS = 5
"""The beam size of translations, as of `regard translate`."""
MAX_SUBMITTED = 64
"""Texts of one request that wait in the queue at a time: a long request leaves room for others."""
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class JobContext:
    """A request while it is worked on."""

    facts: RequestFacts
    deadline: float
    """The moment, of `time.monotonic`, at which it is given up."""
    pool: ThreadPoolExecutor
    """Threads for alignments and traces."""

    @property
    def seconds_left(self) -> float:
        """The seconds until the deadline."""
        return self.deadline - time.monotonic()


async def unless_gone(request: Request, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """The result of the work, which is cancelled as soon as the client closes the connection."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
            raise HttpError(CLIENT_CLOSED, "The client closed the connection.")
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def finished(ticket: Ticket, job: JobContext) -> list[Any]:
    """The results of a ticket; cancelling this coroutine cancels the ticket."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def wake(_: Ticket) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(done.set)

    ticket.add_done_callback(wake)
    try:
        await done.wait()
    except asyncio.CancelledError:
        ticket.cancel()
        raise
    note_ticket(ticket, job.facts)
    with engine_errors():
        return list(ticket.result(0))


def note_ticket(ticket: Ticket, facts: RequestFacts) -> None:
    """Add what a ticket measured to the facts of its request: the first waiting times, all tokens."""
    facts.tokens += ticket.tokens
    if facts.queued_seconds is None:
        facts.queued_seconds, facts.first_token_seconds = ticket.queued_seconds, ticket.first_token_seconds


@contextmanager
def engine_errors() -> Iterator[None]:
    """Turn the errors of an engine into those of HTTP."""
    try:
        yield
    except QueueFullError as error:
        raise HttpError(429, "The server is busy. Try again later.", retry_after=error.retry_after) from None
    except (DeadlineError, TimeoutError):
        raise HttpError(504, "The request took longer than the server allows.") from None
    except CancelledError:
        raise HttpError(503, "The server is stopping.", retry_after=1) from None
    except ValueError as error:
        raise HttpError(400, str(error)) from None
    except (MemoryError, RuntimeError) as error:
        if not allocation.is_out_of_memory(error):
            raise
        raise HttpError(400, "The request needs more memory than there is. Use shorter texts or fewer "
                        "beams.") from None


def submit(model: ServedModel, job: JobContext, texts: Sequence[str], strategy: DecodingStrategy, *,
           prefix: str | Sequence[str] = "", glossary: GlossaryLike | None = None, to: str | None = None,
           on_text: Callable[[int, str], None] | None = None) -> Ticket:
    """Submit texts to the engine of a model; an HttpError if it refuses them."""
    job.facts.model = model.name
    with engine_errors():
        if job.seconds_left <= 0:
            raise DeadlineError
        return model.engine.submit(texts, strategy, prefix=prefix, glossary=glossary, to=to, deadline=job.seconds_left,
                                   on_text=on_text)


async def search(model: ServedModel, job: JobContext, texts: Sequence[str], strategy: DecodingStrategy, *,
                 prefix: str | Sequence[str] = "", glossary: GlossaryLike | None = None,
                 to: str | None = None) -> list[Any]:
    """What the model generates for each text, as `Translator.search` and `Completer.search` do."""
    results = list[Any]()
    for start in range(0, len(texts), MAX_SUBMITTED):
        part = slice(start, start + MAX_SUBMITTED)
        ticket = submit(model, job, texts[part], strategy, prefix=prefix if isinstance(prefix, str) else prefix[part],
                        glossary=glossary, to=to)
        results += await finished(ticket, job)
    return results


async def in_thread(job: JobContext, work: Callable[[], ResultT]) -> ResultT:
    """Run a function in a thread of the pool, for at most the time that the request has."""
    loop = asyncio.get_running_loop()
    with engine_errors():
        return await asyncio.wait_for(loop.run_in_executor(job.pool, work), max(0.001, job.seconds_left))


async def align_texts(direction: ServedDirection, job: JobContext, texts: Sequence[str],
                      translations: Sequence[Any]) -> list[Alignment]:
    """The word alignment of each text with its translation: a result of the search, or a text."""
    def work() -> list[Alignment]:
        with direction.model.lock:
            inspector = direction.inspector()
            if all(isinstance(one, str) for one in translations):
                return [inspector.aligned(text, one) for text, one in zip(texts, translations, strict=True)]
            return inspector.align(list(texts), list(translations))

    return await in_thread(job, work)


@dataclass(frozen=True)
class TranslationOrder:
    """How texts are translated."""

    strategy: DecodingStrategy = Beam(beams=BEAMS)  # noqa: RUF009 (a frozen value)
    prefix: str = ""
    glossary: GlossaryLike | None = None
    html: bool = False
    """Whether the texts are HTML."""


async def translate_texts(direction: ServedDirection, job: JobContext, texts: Sequence[str],
                          order: TranslationOrder) -> list[PlaceholderTranslation]:
    """The translation of each text, line by line, with all placeholders and tags of the source."""
    if not order.html:
        return await _translate_plain(direction, job, texts, order)
    pages = [HtmlText.of(text) for text in texts]
    found = iter(await _translate_plain(direction, job, [text for page in pages for text in page.texts], order))
    results = []
    for page in pages:
        parts = [next(found) for _ in page.texts]
        whole = page.join([part.text for part in parts])
        others = dict.fromkeys(page.join(some) for some in combine_alternatives(parts))
        results.append(PlaceholderTranslation(
            whole, min((part.score for part in parts), default=0.0), any(part.cut for part in parts),
            parts[-1].strategy if parts else "whole", tuple(one for one in others if one != whole)))
    return results


async def _translate_plain(direction: ServedDirection, job: JobContext, texts: Sequence[str],
                           order: TranslationOrder) -> list[PlaceholderTranslation]:
    steps = placeholder_steps(texts, aligned=direction.model.attends, inner=bool(order.prefix))
    strategy = order.strategy
    try:
        step = next(steps)
        while True:
            prefix = "" if step.inner else order.prefix
            found = await search(direction.model, job, step.texts, strategy, prefix=prefix, glossary=order.glossary,
                                 to=direction.to)
            alignments = await align_texts(direction, job, step.texts, found) if step.align else ()
            step = steps.send(StepResult(found, alignments))
            if isinstance(strategy, Beam):  # only lines that were translated whole have alternatives
                strategy = replace(strategy, nbest=1)
    except StopIteration as end:
        return list(end.value)
