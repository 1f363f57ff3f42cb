"""The routes of regard's own API: everything that a model can tell about a translation.

    POST /api/v1/translate     n-best lists, scores, word alignment, glossary, prefix, sampling, the attention trace
    POST /api/v1/look          a page that shows where the model looks, under a random address for ten minutes
    GET  /api/v1/models        the models with their directions

With `keep_placeholders`, the default, texts are translated as by `regard translate`: line by line, with all
placeholders and tags of the source. Without it the answer is what the model itself generates for the whole text.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from regard.data.filters import is_blank
from regard.inspection.page.document import page_html, page_policy, plain_table
from regard.serving.context import ServerContext
from regard.serving.jobs import (
    BEAMS,
    JobContext,
    TranslationOrder,
    align_texts,
    engine_errors,
    in_thread,
    search,
    translate_texts,
    unless_gone,
)
from regard.serving.models import AUTO, ServedDirection, ServedModel, find_direction
from regard.serving.openapi import body_schema, error_responses, json_response
from regard.serving.requests import HttpError, check_texts, facts_of, read_object, validate
from regard.tasks.alignment import Alignment
from regard.tasks.glossary import Glossary
from regard.tasks.placeholders import split_lines
from regard.tasks.search import Beam, DecodingStrategy, Sampling
from regard.tasks.traces import INFLUENCE_LIMIT, trace_generated, trace_translation
from regard.tasks.translator import Translation

MAX_BEAMS = 64
MAX_TERMS = 1000
TRACE_BYTES = 8 << 20
"""Bytes of a trace in an answer; larger attentions are sent as means of blocks."""
MAX_TRACED_CHARACTERS = 2000
TAGS: list[Any] = ["regard"]


class SamplingFields(BaseModel):
    """Sampling instead of beam search."""

    model_config = ConfigDict(extra="forbid")
    temperature: float = Field(1.0, gt=0, le=100)
    top_k: int | None = Field(None, ge=1, le=1_000_000)
    top_p: float | None = Field(None, gt=0, le=1)
    min_p: float | None = Field(None, ge=0, lt=1)
    seed: int = Field(0, ge=0, lt=1 << 63, description="The same seed gives the same texts.")


class NativeTranslateFields(BaseModel):
    """The fields of /api/v1/translate."""

    model_config = ConfigDict(extra="forbid")
    text: str | list[str] = Field(description="A text, or a list of texts.")
    source: str = Field(AUTO, max_length=40, description='The language of the texts, or "auto".')
    target: str | None = Field(None, max_length=40, description="The language of the translations.")
    model: str | None = Field(None, max_length=200, description="A model by its name, instead of a direction.")
    format: Literal["text", "html"] = "text"
    keep_placeholders: bool = Field(True, description="Translate line by line and keep placeholders and tags. false "
                                    "returns what the model itself generates for the whole text.")
    nbest: int = Field(1, ge=1, le=MAX_BEAMS, description="Translations of each text, at most.")
    beams: int = Field(BEAMS, ge=1, le=MAX_BEAMS)
    length_penalty: Literal["none", "mean"] | float = Field("mean", description="A number is the alpha of Wu et al.")
    coverage_penalty: float | None = Field(None, ge=0, le=100)
    num_beam_groups: int = Field(1, ge=1, le=MAX_BEAMS)
    diversity_penalty: float = Field(0.5, ge=0, le=100)
    max_length: int | None = Field(None, ge=1, le=10_000)
    min_length: int = Field(0, ge=0, le=10_000)
    no_repeat_ngram_size: int | None = Field(None, ge=1, le=100)
    sampling: SamplingFields | None = None
    prefix: str = Field("", description="Text that every translation begins with.")
    glossary: dict[str, str | list[str]] | None = Field(None, description="Terms and what they must become.")
    align: bool = Field(False, description="Return the word alignment.")
    scores: bool = Field(False, description="Return the log-probability of every word; needs keep_placeholders false.")
    trace: bool = Field(False, description="Return the attention trace of the best translation of one text; needs "
                        "keep_placeholders false.")

    def strategy(self) -> DecodingStrategy:
        """The search that these fields describe."""
        lengths: dict[str, Any] = {"max_length": self.max_length, "min_length": self.min_length,
                                   "no_repeat_ngram_size": self.no_repeat_ngram_size}
        if self.sampling is not None:
            return Sampling(num_samples=self.nbest, **self.sampling.model_dump(), **lengths)
        penalty = "none" if self.length_penalty == "mean" and self.beams == 1 else self.length_penalty
        return Beam(beams=max(self.beams, self.nbest), nbest=self.nbest, length_penalty=penalty,
                    coverage_penalty=self.coverage_penalty, num_beam_groups=self.num_beam_groups,
                    diversity_penalty=self.diversity_penalty, **lengths)


class LookFields(BaseModel):
    """The fields of /api/v1/look."""

    model_config = ConfigDict(extra="forbid")
    text: str
    source: str = Field(AUTO, max_length=40)
    target: str | None = Field(None, max_length=40)
    model: str | None = Field(None, max_length=200)
    prefix: str = ""
    beams: int = Field(BEAMS, ge=1, le=MAX_BEAMS)
    choice: int = Field(0, ge=0, lt=MAX_BEAMS, description="The rank of the translation that is shown; 0 is the best.")
    translation: str | None = Field(None, min_length=1, description="The translation that is shown, instead of a "
                                    "choice: a result of the search, or any other text.")


class NativeTranslation(BaseModel):
    """A translation of one text."""

    model_config = ConfigDict(extra="allow")
    text: str
    score: float
    cut: bool
    alternatives: list[Any] = []


class NativeTranslateAnswer(BaseModel):
    """The answer of /api/v1/translate: one translation for each text."""

    model: str
    source: str
    target: str
    confidence: float | None = None
    translations: list[NativeTranslation]


def add_routes(app: FastAPI, server: ServerContext) -> None:
    """Add the routes to an application."""
    @app.post("/api/v1/translate", tags=TAGS, summary="Translate texts, with everything the model can tell",
              openapi_extra=body_schema(NativeTranslateFields),
              responses={**json_response(NativeTranslateAnswer), **error_responses(400, 401, 429, 504)})
    async def translate(request: Request) -> Response:
        server.authorize(request)
        given = validate(NativeTranslateFields, await read_object(request))
        texts = [given.text] if isinstance(given.text, str) else given.text
        facts = facts_of(request)
        _check_extras(given, server.settings.max_characters)
        check_texts([given.prefix], server.settings, facts, "prefix")
        check_texts(texts, server.settings, facts, "text")
        return JSONResponse(await unless_gone(request, _translate(server, server.job(request), given, texts)))

    @app.post("/api/v1/look", tags=TAGS, summary="Show where the model looks",
              openapi_extra=body_schema(LookFields), responses=error_responses(400, 401, 429, 504))
    async def look(request: Request) -> Response:
        server.authorize(request)
        given = validate(LookFields, await read_object(request))
        texts = [given.text, given.prefix, given.translation or ""]
        check_texts(texts, server.settings, facts_of(request), "text")
        if max(map(len, texts)) > MAX_TRACED_CHARACTERS:
            raise HttpError(400, f"Invalid request: text has more than {MAX_TRACED_CHARACTERS:,} characters.")
        if given.translation is not None and (given.choice or given.prefix):
            raise HttpError(400, "Invalid request: translation is the whole text that is shown: leave out choice and "
                            "prefix.")
        return JSONResponse({"url": await unless_gone(request, _look(server, server.job(request), given))})

    @app.get("/look/{token}", include_in_schema=False)
    async def look_page(token: str) -> Response:
        found = server.downloads.take(token, keep=True)
        if found is None or found.once:
            raise HttpError(404, "The page is not there: ten minutes have passed.")
        body = await asyncio.get_running_loop().run_in_executor(None, found.path.read_bytes)
        return Response(body, media_type="text/html; charset=utf-8", headers={
            "Content-Security-Policy": f"{page_policy(body)}; frame-ancestors 'none'", "Cache-Control": "no-store"})

    @app.get("/api/v1/models", tags=TAGS, summary="The models that are served")
    async def models(request: Request) -> Response:
        server.authorize(request)
        return JSONResponse([_model_table(one) for one in server.catalog.models])


def _model_table(model: ServedModel) -> dict[str, Any]:
    source, target = model.pairs[0] if len(model.pairs) == 1 else (None, None)
    return {"name": model.name, "task": "translation" if model.pairs else "completion", "source": source,
            "target": target, "directions": [pair._asdict() for pair in model.pairs], "parameters": model.parameters,
            "aligns": model.attends}


def _check_extras(given: NativeTranslateFields, max_characters: int) -> None:
    """Refuse fields that have no effect together, and too large glossaries."""
    if given.keep_placeholders and (given.scores or given.trace):
        raise HttpError(400, "Invalid request: scores and trace describe what the model itself generates: set "
                        "keep_placeholders to false.")
    if given.format == "html" and not given.keep_placeholders:
        raise HttpError(400, "Invalid request: format html needs keep_placeholders.")
    if given.format == "html" and given.align:
        raise HttpError(400, "Invalid request: align needs format text.")
    if given.trace and not isinstance(given.text, str):
        raise HttpError(400, "Invalid request: trace needs one text, not a list.")
    terms = given.glossary or {}
    size = sum(len(source) + sum(map(len, [target] if isinstance(target, str) else target))
               for source, target in terms.items())
    if len(terms) > MAX_TERMS or size > max_characters:
        raise HttpError(400, f"Invalid request: glossary has more than {MAX_TERMS:,} terms or {max_characters:,} "
                        "characters.")


def _choose(server: ServerContext, texts: Sequence[str], source: str, target: str | None,
            name: str | None) -> tuple[ServedDirection, float | None]:
    """The direction of texts, and how sure its source language is if it was identified, from all texts together."""
    catalog, share = server.catalog, None
    with engine_errors():
        directions = catalog.directions if name is None else catalog.directions_of(name)
        if name is not None and len(directions) == 1:
            return next(iter(directions.values())), None
        if target is None:
            raise ValueError(f"Invalid request: target is missing. Available directions: "
                             f"{', '.join(map(str, directions))}.")
        if source == AUTO:
            source, share = catalog.identify_source("\n".join(texts), target, directions)
        return find_direction(source, target, directions), share


async def _translate(server: ServerContext, job: JobContext, given: NativeTranslateFields,
                     texts: Sequence[str]) -> dict[str, Any]:
    direction, share = _choose(server, texts, given.source, given.target, given.model)
    model, pair = direction
    if given.align and not model.attends:
        raise HttpError(400, "Invalid request: align needs a model with cross-attention, but this model has none.")
    with engine_errors():
        strategy = given.strategy()
        glossary = None if given.glossary is None else Glossary(given.glossary)
    if given.keep_placeholders:
        order = TranslationOrder(strategy, given.prefix, glossary, given.format == "html")
        tables = await _translate_kept(direction, job, texts, order, given)
    else:
        tables = await _translate_raw(direction, job, texts, strategy, glossary, given)
    table = {"model": model.name, "source": pair.source, "target": pair.target, "translations": tables}
    return table if share is None else {**table, "confidence": share}


async def _translate_kept(direction: ServedDirection, job: JobContext, texts: Sequence[str], order: TranslationOrder,
                          given: NativeTranslateFields) -> list[dict[str, Any]]:
    """Translations with placeholders; an alignment joins those of the lines."""
    found = await translate_texts(direction, job, texts, order)
    tables: list[dict[str, Any]] = [{"text": one.text, "score": one.score, "cut": one.cut, "strategy": one.strategy,
                                     "alternatives": [{"text": other} for other in one.alternatives[:given.nbest - 1]]}
                                    for one in found]
    if given.align:
        for text, table in zip(texts, tables, strict=True):
            for one in (table, *table["alternatives"]):
                one["alignment"] = await _align_lines(direction, job, text, one["text"])
    return tables


async def _align_lines(direction: ServedDirection, job: JobContext, text: str, translation: str) -> dict[str, Any]:
    """The alignment of a text of several lines; positions count in the whole texts."""
    sources, targets = split_lines(text), split_lines(translation)
    table: dict[str, Any] = {"source": [], "target": [], "links": []}
    if len(sources) != len(targets):
        return table
    pairs = [(source, target) for source, target in zip(sources[::2], targets[::2], strict=True)
             if not is_blank(source) and not is_blank(target)]
    alignments = iter(await align_texts(direction, job, [one for one, _ in pairs], [one for _, one in pairs]))
    places = [0, 0]
    for number, (source, target) in enumerate(zip(sources, targets, strict=True)):
        if number % 2 == 0 and not is_blank(source) and not is_blank(target):
            _extend_alignment(table, next(alignments), (source, target), places)
        places = [places[0] + len(source), places[1] + len(target)]
    return table


def _extend_alignment(table: dict[str, Any], alignment: Alignment, lines: Sequence[str], places: Sequence[int]) -> None:
    """Append the alignment of two lines, which begin at these places of the whole texts."""
    one: dict[str, Any] = alignment.table()
    numbers = dict[str, dict[int, int]]()
    for side, line, place in zip(("source", "target"), lines, places, strict=True):
        numbers[side], end = {}, 0
        for number, word in enumerate(one[side]):
            start = line.find(word["text"], end)  # the tokenizer may have normalized the line
            if start >= 0:
                end = start + len(word["text"])
                numbers[side][number] = len(table[side])
                table[side].append({"text": word["text"], "start": start + place, "end": end + place})
    sources, targets = numbers["source"], numbers["target"]
    table["links"] += [{**link, "source": sources[link["source"]], "target": targets[link["target"]]}
                       for link in one["links"] if link["source"] in sources and link["target"] in targets]


async def _translate_raw(direction: ServedDirection, job: JobContext, texts: Sequence[str], strategy: DecodingStrategy,
                         glossary: Glossary | None, given: NativeTranslateFields) -> list[dict[str, Any]]:
    """What the model generates, with everything that was asked for."""
    found: list[Translation] = await search(direction.model, job, texts, strategy, prefix=given.prefix,
                                            glossary=glossary, to=direction.to)
    nbest = [(one, *one.alternatives)[:given.nbest] for one in found]
    alignments: list[Alignment] = []
    if given.align:
        repeated = [text for text, some in zip(texts, nbest, strict=True) for _ in some]
        alignments = await align_texts(direction, job, repeated, [one for some in nbest for one in some])
    remaining = iter(alignments)
    results = []
    for some in nbest:
        tables = list[dict[str, Any]]()
        for one in some:
            tables.append({"text": one.text, "score": one.score, "cut": one.cut})
            if given.scores:
                tables[-1]["words"] = [word._asdict() for word in one.words]
            if given.align:
                tables[-1]["alignment"] = next(remaining).table()
        results.append({**tables[0], "alternatives": tables[1:]})
    if given.trace:
        results[0]["trace"] = await _trace_table(direction, job, texts[0], found[0])
    return results


async def _trace_table(direction: ServedDirection, job: JobContext, text: str, found: Translation) -> dict[str, Any]:
    if len(text) > MAX_TRACED_CHARACTERS:
        raise HttpError(400, f"Invalid request: a traced text has at most {MAX_TRACED_CHARACTERS:,} characters.")

    def work() -> dict[str, Any]:
        with direction.model.lock:
            trace = trace_generated(direction.inspector(), text, found, name=direction.model.name)
            return plain_table(trace, TRACE_BYTES)

    return await in_thread(job, work)


async def _look(server: ServerContext, job: JobContext, given: LookFields) -> str:
    """Make a page of the attention, and return its path."""
    direction, _ = _choose(server, [given.text], given.source, given.target, given.model)
    model = direction.model
    job.facts.model = model.name

    def work() -> str:
        with model.lock:
            trace = trace_translation(direction.inspector(), given.text, beams=given.beams, choice=given.choice,
                                      prefix=given.prefix, translation=given.translation, name=model.name,
                                      influence_limit=INFLUENCE_LIMIT)
            return page_html([replace(trace, heads=model.heads)], size_limit=TRACE_BYTES)

    page = await in_thread(job, work)
    path = server.downloads.new_path(".html")
    await asyncio.get_running_loop().run_in_executor(None, path.write_bytes, page.encode())
    return f"/look/{server.downloads.add(path, 'look.html', 'text/html', once=False)}"
