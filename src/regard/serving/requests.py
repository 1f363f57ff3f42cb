"""What every route needs: bodies read and checked, errors with their status, and the facts that are logged.

A body is JSON, a form, or missing; fields may also stand in the query string. Bodies are bounded before they come here
(`regard.serving.limits`). Texts with unpaired surrogates are refused, since no answer could hold them.
"""

import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import Request

from regard.serving.settings import ServerSettings

MAX_DEPTH = 16
"""Arrays and objects inside each other, at most."""
MAX_FIELDS = 1000
"""Fields of a form or of a query string, at most."""
CLIENT_CLOSED = 499
"""The status, for logs only, of a request whose client is gone."""
BodyT = TypeVar("BodyT", bound=BaseModel)
_TYPE_NAME = re.compile(r"(str|int|float|bool|list)(\[.*\])?")  # pydantic names the member of a union after the field


class HttpError(Exception):
    """A request that cannot be answered, with its status and a message for the client."""

    def __init__(self, status: int, message: str, *, retry_after: float | None = None, code: str | None = None,
                 param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.retry_after = retry_after

    @property
    def headers(self) -> dict[str, str]:
        """`Retry-After` in whole seconds, at least 1; for 401 also how to authenticate."""
        found = {} if self.retry_after is None else {"Retry-After": str(max(1, math.ceil(self.retry_after)))}
        return {**found, "WWW-Authenticate": "Bearer"} if self.status == 401 else found


@dataclass
class RequestFacts:
    """What is counted and logged of a request: numbers and names, never a text, an address or a key."""

    started: float = field(default_factory=time.monotonic)
    route: str = "other"
    model: str | None = None
    key: str | None = None
    """The name of the API key."""
    texts: int = 0
    characters: int = 0
    tokens: int = 0
    queued_seconds: float | None = None
    first_token_seconds: float | None = None


def facts_of(request: Request) -> RequestFacts:
    """The facts of a request, which the outermost layer of the application has made."""
    found: RequestFacts = request.scope["regard.facts"]
    return found


def parse_json(body: bytes) -> Any:
    """The value of a JSON body; an HttpError for anything that is not strict JSON, or too deep."""
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise HttpError(400, "Invalid request: the body must be JSON in UTF-8.") from None
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise HttpError(400, f"Invalid request: the JSON is nested more than {MAX_DEPTH} levels deep.")
        level = [inner for one in level if isinstance(one, dict | list)
                 for inner in (one.values() if isinstance(one, dict) else one)]
    return value


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def content_type(request: Request) -> str:
    """The media type of the body, without parameters, in lower case."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_object(request: Request) -> dict[str, Any]:
    """The JSON object of a body."""
    if content_type(request) not in ("application/json", ""):
        raise HttpError(415, "Invalid request: send JSON, with the header Content-Type: application/json.")
    table = parse_json(await request.body())
    if not isinstance(table, dict):
        raise HttpError(400, "Invalid request: the body must be a JSON object.")
    return table


async def read_fields(request: Request, *, files: bool = False) -> dict[str, Any]:
    """The fields of a body, JSON or a form, and of the query string; those of the body win.

    Args:
        files: whether uploaded files are kept; the caller then closes the request.
    """
    fields: dict[str, Any] = _parse_query(request.scope["query_string"], "query string")
    kind = content_type(request)
    if kind == "application/json":
        return {**fields, **await read_object(request)}
    if kind == "multipart/form-data":
        found = await _read_form(request)
        if not files:
            await request.close()
        return {**fields, **{name: value for name, value in found.items() if files or isinstance(value, str)}}
    body = await request.body()
    if kind in ("application/x-www-form-urlencoded", ""):
        return {**fields, **_parse_query(body, "form")}
    if body:
        raise HttpError(415, "Invalid request: send JSON or a form.")
    return fields


async def _read_form(request: Request) -> dict[str, Any]:
    """The fields of a multipart form: texts, and uploaded files."""
    try:
        form = await request.form(max_files=1, max_fields=20, max_part_size=1 << 20)
    except (MultiPartException, HTTPException, UnicodeDecodeError) as error:
        reason = getattr(error, "message", None) or getattr(error, "detail", None) or "bad encoding"
        raise HttpError(400, f"Invalid request: {reason}") from None
    found: dict[str, Any] = {}
    for name, value in form.multi_items():
        if not isinstance(value, UploadFile):
            _check_encoding(name, value)
        found[name] = value
    return found


def _parse_query(data: bytes, name: str) -> dict[str, Any]:
    try:
        pairs = parse_qsl(data.decode("utf-8"), keep_blank_values=True, max_num_fields=MAX_FIELDS, encoding="utf-8",
                          errors="strict")
    except ValueError:
        raise HttpError(400, f"Invalid request: the {name} must be URL-encoded UTF-8.") from None
    return dict(pairs)


def validate(kind: type[BodyT], table: Mapping[str, Any]) -> BodyT:
    """The table as a model; an HttpError names the first wrong field, without its value."""
    try:
        return kind.model_validate(table)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"] if not _TYPE_NAME.fullmatch(str(part))) or "the body"
        problem = "There is no such field." if first["type"] == "extra_forbidden" else first["msg"]
        raise HttpError(400, f"Invalid request: {place}: {problem}", param=place) from None


def _check_encoding(name: str, text: str) -> None:
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise HttpError(400, f"Invalid request: {name} has an unpaired surrogate, so it is not text.", param=name)


def check_texts(texts: Sequence[str], settings: ServerSettings, facts: RequestFacts, name: str = "q") -> None:
    """Refuse too many or too long texts, and those that are not Unicode; their numbers are noted for the log."""
    facts.texts, facts.characters = len(texts), sum(map(len, texts))
    if len(texts) > settings.max_batch:
        raise HttpError(400, f"Invalid request: {name} has {len(texts):,} texts; at most {settings.max_batch:,} are "
                        "allowed in a request.", param=name)
    if facts.characters > settings.max_characters:
        raise HttpError(400, f"Invalid request: {name} has {facts.characters:,} characters; at most "
                        f"{settings.max_characters:,} are allowed in a request.", param=name)
    for text in texts:
        _check_encoding(name, text)
