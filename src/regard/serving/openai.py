"""The routes of OpenAI's API for language models: /v1/models and /v1/completions, also as a stream.

A model of regard completes text; it has no chat template, so /v1/chat/completions answers 400 and says so. Fields that
would change the text and that a model of regard does not have are refused rather than ignored.
"""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from regard.serving.context import ServerContext
from regard.serving.engine import Ticket
from regard.serving.jobs import JobContext, engine_errors, note_ticket, search, submit, unless_gone
from regard.serving.models import ServedModel
from regard.serving.openapi import body_schema, error_responses
from regard.serving.requests import HttpError, check_texts, facts_of, read_object, validate
from regard.tasks.completer import Completion
from regard.tasks.search import GREEDY, DecodingStrategy, Sampling

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default."""
MAX_CHOICES = 16
MAX_TOKENS = 4096
MAX_STOPS = 4
TAGS: list[Any] = ["OpenAI"]


class CompletionFields(BaseModel):
    """The fields of /v1/completions."""

    model_config = ConfigDict(extra="ignore")
    model: str = Field(max_length=200)
    prompt: str | list[str] = Field("", description="A text, or a list of texts. Token ids are not accepted.")
    max_tokens: int | None = Field(DEFAULT_MAX_TOKENS, ge=0, le=MAX_TOKENS)
    temperature: float | None = Field(1.0, ge=0, le=2, description="0 is greedy search.")
    top_p: float | None = Field(1.0, gt=0, le=1)
    top_k: int | None = Field(None, ge=1, le=1_000_000, description="Not of OpenAI: sample from the most probable.")
    min_p: float | None = Field(None, ge=0, lt=1, description="Not of OpenAI: see regard complete --min-p.")
    n: int | None = Field(1, ge=1, le=MAX_CHOICES)
    best_of: int | None = Field(None, ge=1, le=MAX_CHOICES)
    stream: bool | None = False
    stream_options: dict[str, Any] | None = None
    logprobs: int | None = Field(None, ge=0, le=5, description="Log-probabilities of the generated tokens.")
    echo: bool | None = False
    stop: str | list[str] | None = None
    seed: int | None = Field(None, ge=0, lt=1 << 63)
    suffix: str | None = None
    presence_penalty: float | None = 0.0
    frequency_penalty: float | None = 0.0
    logit_bias: dict[str, float] | None = None
    user: str | None = None

    def strategy(self) -> DecodingStrategy:
        """Greedy search for temperature 0, sampling otherwise; without a seed the samples differ each time."""
        length = DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        if self.temperature == 0:
            if (self.n or 1) > 1:
                raise HttpError(400, "n must be 1 for temperature 0: greedy search finds one text.", param="n")
            return type(GREEDY)(beams=1, length_penalty="none", max_length=length)
        return Sampling(num_samples=self.n or 1, temperature=1.0 if self.temperature is None else self.temperature,
                        top_p=None if self.top_p in (None, 1.0) else self.top_p, top_k=self.top_k, min_p=self.min_p,
                        seed=secrets.randbits(62) if self.seed is None else self.seed, max_length=length)

    def stops(self) -> list[str]:
        """The texts at which a completion ends."""
        found = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(found) > MAX_STOPS or not all(0 < len(one) <= 1000 for one in found):
            raise HttpError(400, f"stop must be at most {MAX_STOPS} texts that are not empty.", param="stop")
        return found

    def check(self) -> None:
        """Refuse what is not supported."""
        for name in ("suffix", "presence_penalty", "frequency_penalty", "logit_bias"):
            if getattr(self, name) not in (None, 0.0, "", {}):
                raise HttpError(400, f"{name} is not supported. Leave it out.", param=name)
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise HttpError(400, "best_of is not supported. Leave it out.", param="best_of")
        if self.stream and self.logprobs is not None:
            raise HttpError(400, "A stream has no log-probabilities: leave out logprobs or stream.", param="logprobs")


def add_routes(app: FastAPI, server: ServerContext) -> None:
    """Add the routes to an application."""
    @app.get("/v1/models", tags=TAGS, summary="The language models that are served")
    async def models(request: Request) -> Response:
        server.authorize(request)
        return JSONResponse({"object": "list", "data": [_model_table(one) for one in _completers(server).values()]})

    @app.get("/v1/models/{model}", tags=TAGS, summary="One language model", responses=error_responses(401, 404))
    async def model(request: Request, model: str) -> Response:
        server.authorize(request)
        return JSONResponse(_model_table(_find_model(server, model)))

    @app.post("/v1/completions", tags=TAGS, summary="Complete a text",
              openapi_extra=body_schema(CompletionFields), responses=error_responses(400, 401, 404, 429, 504))
    async def completions(request: Request) -> Response:
        server.authorize(request)
        given = validate(CompletionFields, await read_object(request))
        model, stops = _find_model(server, given.model), given.stops()
        given.check()
        prompts = [given.prompt] if isinstance(given.prompt, str) else given.prompt
        if not prompts:
            raise HttpError(400, "prompt must have at least one text.", param="prompt")
        check_texts(prompts, server.settings, facts_of(request), "prompt")
        job, head = server.job(request), _head("cmpl", model)
        if given.stream:
            events = _Stream(model, job, prompts, given, head)
            return StreamingResponse(events.events(), media_type="text/event-stream",
                                     headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        return JSONResponse(await unless_gone(request, _complete(model, job, prompts, given, stops, head)))

    @app.post("/v1/chat/completions", tags=TAGS, summary="Not supported: the models have no chat template",
              responses=error_responses(400, 401))
    async def chat(request: Request) -> Response:
        server.authorize(request)
        raise HttpError(400, "The models of this server complete text and have no chat template. Use /v1/completions "
                        "with a prompt.", code="unsupported")


def _completers(server: ServerContext) -> dict[str, ServedModel]:
    return server.catalog.completers


def _find_model(server: ServerContext, name: str) -> ServedModel:
    found = _completers(server).get(name)
    if found is None:
        names = ", ".join(_completers(server)) or "none"
        raise HttpError(404, f"There is no language model of this name. This server has: {names}.",
                        code="model_not_found", param="model")
    return found


def _model_table(model: ServedModel) -> dict[str, Any]:
    return {"id": model.name, "object": "model", "created": 0, "owned_by": "regard"}


def _head(prefix: str, model: ServedModel) -> dict[str, Any]:
    return {"id": f"{prefix}-{secrets.token_hex(12)}", "object": "text_completion", "created": int(time.time()),
            "model": model.name}


def cut_at_stop(text: str, stops: Sequence[str]) -> str | None:
    """The text before the first of the stops; None if it has none of them."""
    places = [place for place in map(text.find, stops) if place >= 0]
    return text[:min(places)] if places else None


async def _complete(model: ServedModel, job: JobContext, prompts: Sequence[str], given: CompletionFields,
                    stops: Sequence[str], head: dict[str, Any]) -> dict[str, Any]:
    found: list[Completion] = await search(model, job, prompts, given.strategy())
    choices = list[dict[str, Any]]()
    for prompt, best in zip(prompts, found, strict=True):
        for one in (best, *best.alternatives):
            shorter = cut_at_stop(one.text, stops)
            text = one.text if shorter is None else shorter
            choices.append({"index": len(choices), "text": f"{prompt}{text}" if given.echo else text,
                            "logprobs": None if given.logprobs is None else _log_probabilities(one, len(text)),
                            "finish_reason": "length" if one.cut and shorter is None else "stop"})
    read = sum(len(one.prompt_ids) for one in found)
    written = sum(len(one.ids) for best in found for one in (best, *best.alternatives))
    return {**head, "choices": choices, "usage": _usage(read, written)}


def _usage(read: int, written: int) -> dict[str, int]:
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def _log_probabilities(found: Completion, length: int) -> dict[str, Any]:
    """The generated tokens with their log-probabilities, up to a length of the text."""
    assert found.tokenizer is not None
    tokens, offsets, place = found.tokenizer.pieces(list(found.ids)), list[int](), 0
    for number in range(len(tokens)):
        offsets.append(min(place, length))
        place = len(found.tokenizer.decode(list(found.ids[:number + 1])))
    return {"tokens": tokens, "token_logprobs": list(found.log_probabilities[:len(tokens)]), "top_logprobs": None,
            "text_offset": offsets}


class _Stream:
    """Completions as server-sent events: each has a part of one text with its index, or says why that text ended."""

    def __init__(self, model: ServedModel, job: JobContext, prompts: Sequence[str], given: CompletionFields,
                 head: dict[str, Any]) -> None:
        self.job, self.given, self.head, self.stops = job, given, head, given.stops()
        self.prompts, self.choices = prompts, given.n or 1  # choice c of prompt p has the index p·choices + c
        self.sent, self.ended = [""] * len(prompts) * self.choices, [False] * len(prompts) * self.choices
        self.loop, self.queue = asyncio.get_running_loop(), asyncio.Queue[tuple[int, str] | None]()
        self.ticket: Ticket = submit(model, job, prompts, given.strategy(), on_text=self._told)
        self.ticket.add_done_callback(lambda ticket: self._put(None))

    def _told(self, number: int, text: str) -> None:
        """Called by the engine's thread."""
        self._put((number, text))

    def _put(self, item: tuple[int, str] | None) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.queue.put_nowait, item)

    async def events(self) -> AsyncIterator[str]:
        """All events; leaving early, because the client is gone, cancels the ticket."""
        try:
            if self.given.echo:
                for number in range(len(self.sent)):
                    yield self._event(number, self.prompts[number // self.choices], None)
            while (item := await self.queue.get()) is not None:
                for event in self._grow(*item, final=False):
                    yield event
                if all(self.ended):
                    self.ticket.cancel()
                    break
            else:
                for event in self._finish():
                    yield event
            yield "data: [DONE]\n\n"
        finally:
            self.ticket.cancel()
            note_ticket(self.ticket, self.job.facts)

    def _grow(self, number: int, text: str, *, final: bool) -> list[str]:
        """The event for a text that has become longer; a beginning of a stop is held back."""
        if self.ended[number]:
            return []
        shorter = cut_at_stop(text, self.stops)
        shown = text if shorter is None else shorter
        if shorter is None and not final:
            held = max((size for stop in self.stops for size in range(1, len(stop))
                        if shown.endswith(stop[:size])), default=0)
            shown = shown[:len(shown) - held]
        events, sent = [], self.sent[number]
        if len(shown) > len(sent) and shown.startswith(sent):
            self.sent[number] = shown
            events.append(self._event(number, shown[len(sent):], None))
        if shorter is not None:
            self.ended[number] = True
            events.append(self._event(number, "", "stop"))
        return events

    def _finish(self) -> list[str]:
        """The last events: what was held back, and why each text ended; or an error."""
        try:
            with engine_errors():
                found = cast(list[Completion], self.ticket.result(0))
        except HttpError as error:
            table = {"error": {"message": error.message, "type": "server_error", "code": error.status, "param": None}}
            return [f"data: {json.dumps(table)}\n\n"]
        events = []
        everything = [one for best in found for one in (best, *best.alternatives)]
        for number, one in enumerate(everything):
            events += self._grow(number, one.text, final=True)
            if not self.ended[number]:
                events.append(self._event(number, "", "length" if one.cut else "stop"))
        if (self.given.stream_options or {}).get("include_usage") is True:
            usage = _usage(sum(len(one.prompt_ids) for one in found), sum(len(one.ids) for one in everything))
            events.append(f"data: {json.dumps({**self.head, 'choices': [], 'usage': usage})}\n\n")
        return events

    def _event(self, number: int, text: str, reason: str | None) -> str:
        choice = {"index": number, "text": text, "logprobs": None, "finish_reason": reason}
        return f"data: {json.dumps({**self.head, 'choices': [choice]})}\n\n"
