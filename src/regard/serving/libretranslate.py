"""The routes of LibreTranslate's API, which its clients use unchanged.

    POST /translate          q (a text, or in JSON a list), source or "auto", target, format, alternatives, api_key
    POST /detect             q
    GET  /languages          the languages and the directions
    POST /translate_file     file, source, target; then GET /download_file/TOKEN
    GET  /frontend/settings, /health, /spec

Fields come as JSON, as a form or in the query string. Errors are {"error": "..."}.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Literal
from urllib.parse import quote

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field
from starlette.background import BackgroundTask
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response

from regard.serving.context import MAX_UPLOADS, ServerContext
from regard.serving.files import FILE_FORMATS, FileTranslation, download_name, upload_suffix
from regard.serving.jobs import BEAMS, JobContext, TranslationOrder, engine_errors, translate_texts, unless_gone
from regard.serving.models import AUTO, ServedDirection
from regard.serving.openapi import body_schema, error_responses, json_response
from regard.serving.requests import HttpError, check_texts, facts_of, read_fields, validate
from regard.tasks.placeholder_translation import PlaceholderTranslation
from regard.tasks.search import Beam

MAX_ALTERNATIVES = 20
FILE_TIME = 10.0
"""How many times the time limit of a request a file may take."""
COPY_BYTES = 1 << 20
TAGS: list[Any] = ["LibreTranslate"]


class TranslateFields(BaseModel):
    """The fields of /translate."""

    model_config = ConfigDict(extra="ignore")
    q: str | list[str] = Field(description="A text, or a list of texts.")
    source: str = Field(max_length=40, description='The language of the text, or "auto".', examples=["en"])
    target: str = Field(max_length=40, description="The language of the translation.", examples=["fr"])
    format: Literal["text", "html"] = Field("text", description="html keeps tags and translates the text in them.")
    alternatives: int = Field(0, ge=0, le=MAX_ALTERNATIVES, description="Other translations of each text, at most.")
    api_key: str | None = None


class DetectFields(BaseModel):
    """The fields of /detect."""

    model_config = ConfigDict(extra="ignore")
    q: str = Field(description="A text.")
    api_key: str | None = None


class DetectedLanguage(BaseModel):
    """A language and how sure it is, in percent."""

    confidence: int
    language: str


class TranslateAnswer(BaseModel):
    """The answer of /translate; lists for a list of texts."""

    translatedText: str | list[str]  # noqa: N815 (LibreTranslate's name)
    detectedLanguage: DetectedLanguage | list[DetectedLanguage] | None = None  # noqa: N815
    alternatives: list[str] | list[list[str]] | None = None


def add_routes(app: FastAPI, server: ServerContext) -> None:
    """Add the routes to an application."""
    settings = server.settings

    @app.post("/translate", tags=TAGS, summary="Translate texts", openapi_extra=body_schema(TranslateFields, form=True),
              responses={**json_response(TranslateAnswer), **error_responses(400, 403, 413, 429, 504)})
    async def translate(request: Request) -> Response:
        fields = await read_fields(request)
        server.authorize(request, fields.get("api_key"))
        _require(fields, "q", "source", "target")
        given = validate(TranslateFields, fields)
        texts = [given.q] if isinstance(given.q, str) else given.q
        check_texts(texts, settings, facts_of(request))
        return JSONResponse(await unless_gone(request, _translate(server, server.job(request), given, texts)))

    @app.post("/detect", tags=TAGS, summary="Identify the language of a text",
              openapi_extra=body_schema(DetectFields, form=True),
              responses={**json_response(DetectedLanguage, array=True), **error_responses(400, 403, 413, 429)})
    async def detect(request: Request) -> Response:
        fields = await read_fields(request)
        server.authorize(request, fields.get("api_key"))
        _require(fields, "q")
        given = validate(DetectFields, fields)
        check_texts([given.q], settings, facts_of(request))
        return JSONResponse([_detected(*one) for one in server.catalog.identify(given.q)])

    @app.get("/languages", tags=TAGS, summary="The languages that are served")
    async def languages() -> Response:
        return JSONResponse(server.catalog.languages)

    @app.get("/frontend/settings", tags=TAGS, summary="Limits and defaults")
    async def frontend_settings() -> Response:
        return JSONResponse(_frontend_settings(server))

    @app.get("/health", tags=TAGS, summary="Whether the server works")
    async def health() -> Response:
        return JSONResponse({"status": "ok"})

    @app.post("/translate_file", tags=TAGS, summary="Translate a file",
              openapi_extra={"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": {
                  "type": "object", "required": ["file", "source", "target"], "properties": {
                      "file": {"type": "string", "format": "binary"}, "source": {"type": "string"},
                      "target": {"type": "string"}, "api_key": {"type": "string"}}}}}}},
              responses=error_responses(400, 403, 413, 429, 504))
    async def translate_file(request: Request) -> Response:
        if server.uploads >= MAX_UPLOADS:
            raise HttpError(429, "The server is busy with other files. Try again later.", retry_after=10)
        server.uploads += 1
        try:
            fields = await read_fields(request, files=True)
            server.authorize(request, fields.get("api_key"))
            return JSONResponse({"translatedFileUrl": await _translate_file(server, request, fields)})
        finally:
            server.uploads -= 1
            await request.close()

    @app.api_route("/download_file/{token}/{name}", methods=["GET", "HEAD"], include_in_schema=False)
    async def download_file(request: Request, token: str, name: str) -> Response:
        found = server.downloads.take(token, keep=request.method == "HEAD")
        if found is None or not found.once:
            raise HttpError(404, "The file is not there: it was downloaded, or ten minutes have passed.")
        gone = BackgroundTask(found.path.unlink, missing_ok=True) if request.method == "GET" else None
        return FileResponse(found.path, filename=found.name, media_type=found.media_type, background=gone,
                            headers={"Cache-Control": "no-store"})


def _require(fields: dict[str, Any], *names: str) -> None:
    for name in names:
        if fields.get(name) in (None, ""):
            raise HttpError(400, f"Invalid request: missing {name} parameter")


async def _translate(server: ServerContext, job: JobContext, given: TranslateFields,
                     texts: Sequence[str]) -> dict[str, Any]:
    """The answer to /translate: texts of one language are translated together."""
    detected = [server.catalog.identify_source(text, given.target) if given.source == AUTO else (given.source, 1.0)
                for text in texts]
    groups = dict[str, list[int]]()
    for number, (code, _) in enumerate(detected):
        groups.setdefault(code, []).append(number)
    nbest = given.alternatives + 1
    order = TranslationOrder(Beam(beams=max(BEAMS, nbest), nbest=nbest), html=given.format == "html")
    routed = {code: _route(server, code, given.target) for code in groups}
    found = dict[int, PlaceholderTranslation]()
    for code, numbers in groups.items():
        results = await translate_texts(routed[code], job, [texts[number] for number in numbers], order)
        found.update(zip(numbers, results, strict=True))
    answers = [found[number] for number in range(len(texts))]
    several = isinstance(given.q, list)
    table: dict[str, Any] = {"translatedText": _one_or_many([one.text for one in answers], several)}
    if given.source == AUTO:
        table["detectedLanguage"] = _one_or_many([_detected(*one) for one in detected], several)
    if given.alternatives:
        others = [list(one.alternatives[:given.alternatives]) for one in answers]
        table["alternatives"] = _one_or_many(others, several)
    return table


def _one_or_many(values: list[Any], several: bool) -> Any:
    return values if several else values[0]


def _detected(language: str, share: float) -> dict[str, Any]:
    return {"confidence": round(100 * share), "language": language}


def _route(server: ServerContext, source: str, target: str) -> ServedDirection:
    with engine_errors():
        return server.catalog.route(source, target)


def _frontend_settings(server: ServerContext) -> dict[str, Any]:
    settings, pair = server.settings, server.catalog.default_pair()
    source, target = pair or ("", "")
    detects = len(server.catalog.sources) > 1
    return {
        "apiKeys": server.keys is not None, "keyRequired": server.keys is not None, "suggestions": False,
        "charLimit": settings.max_characters, "batchLimit": settings.max_batch, "fileSizeLimit": settings.max_file_size,
        "filesTranslation": pair is not None, "frontendTimeout": 300, "supportedFilesFormat": FILE_FORMATS,
        "language": {"source": {"code": AUTO if detects else source, "name": "Auto Detect" if detects else source},
                     "target": {"code": target, "name": target}},
    }


async def _translate_file(server: ServerContext, request: Request, fields: dict[str, Any]) -> str:
    """Translate an uploaded file, and return the address of the result."""
    upload = fields.get("file")
    if not isinstance(upload, UploadFile) or not upload.filename:
        raise HttpError(400, "Invalid request: missing file parameter")
    _require(fields, "source", "target")
    if not isinstance(fields["source"], str) or not isinstance(fields["target"], str):
        raise HttpError(400, "Invalid request: source and target must be language codes")
    suffix, facts = upload_suffix(upload.filename), facts_of(request)
    loop, source = asyncio.get_running_loop(), fields["source"]
    path = server.downloads.new_path(suffix)
    try:
        head = await loop.run_in_executor(None, _copy_upload, upload, path)
        if source == AUTO:
            source = server.catalog.identify_source(head, fields["target"])[0]
        direction = _route(server, source, fields["target"])
        facts.model, facts.texts = direction.model.name, 1
        job = server.job(request, FILE_TIME)
        work = FileTranslation(direction, path, server.downloads.new_path(suffix), deadline=job.deadline,
                               max_bytes=server.settings.max_file_size)
        try:
            await unless_gone(request, _in_pool(server, work))
        finally:
            work.cancel()
        facts.texts, facts.characters = work.entries, work.characters
        name = download_name(upload.filename, direction.pair.target)
        token = server.downloads.add(work.output, name)
    finally:
        path.unlink(missing_ok=True)
    return f"{request.base_url}download_file/{token}/{quote(name)}"


async def _in_pool(server: ServerContext, work: FileTranslation) -> None:
    with engine_errors():
        await asyncio.get_running_loop().run_in_executor(server.file_pool, work.run)


def _copy_upload(upload: UploadFile, path: Any) -> str:
    """Write an upload to a path, and return its beginning."""
    upload.file.seek(0)
    head = upload.file.read(COPY_BYTES)
    with open(path, "xb") as file:
        block = head
        while block:
            file.write(block)
            block = upload.file.read(COPY_BYTES)
    return head[:4000].decode("utf-8", "ignore")
