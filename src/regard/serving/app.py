"""The application: routes of three interfaces and the page, with limits, keys and metrics around them.

    request -> Observer (Host, count, log) -> CORS -> BodyLimit -> routes -> jobs -> engine of a model

`create_app` returns an ASGI application; `regard.serving.server` runs it with uvicorn. Nothing here runs a model:
routes wait for the engines in coroutines, so one thread serves all clients.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Scope

from regard._version import __version__
from regard.serving import libretranslate, native, openai
from regard.serving.context import ServerContext
from regard.serving.limits import BodyLimit, Observer, error_table
from regard.serving.metrics import CONTENT_TYPE
from regard.serving.openapi import description_page
from regard.serving.page import static
from regard.serving.requests import HttpError

DESCRIPTION = ("Translation and completion with models of regard. The routes of LibreTranslate and OpenAI are those of "
               "their clients; /api/v1 has everything else. A translation does not depend on other requests.")
PREFIXES = {"/download_file/": "/download_file", "/look/": "/look", "/assets/": "/assets",
            "/v1/models/": "/v1/models/{model}"}
"""Routes with a part that differs, and their names in metrics and logs."""
PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'"


def create_app(context: ServerContext) -> ASGIApp:
    """The application of a server."""
    routes = _make_routes(context)
    known = frozenset(getattr(route, "path", "") for route in _all_routes(routes))
    inner: ASGIApp = BodyLimit(routes, context.settings)
    if context.settings.cors_origins:
        inner = CORSMiddleware(inner, allow_origins=context.settings.cors_origins, allow_methods=["GET", "POST"],
                               allow_headers=["Authorization", "Content-Type"], expose_headers=["Retry-After"])

    def route_of(scope: Scope) -> str:
        path = scope["path"]
        if path in known:
            return str(path)
        return next((name for prefix, name in PREFIXES.items() if path.startswith(prefix)), "other")

    return Observer(inner, context.settings, context.metrics, route_of)


def _all_routes(app: FastAPI) -> list[Any]:
    return list(app.routes)


def _make_routes(context: ServerContext) -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        sweep = asyncio.create_task(context.sweep())
        yield
        sweep.cancel()

    app = FastAPI(title="regard", version=__version__, description=DESCRIPTION, docs_url=None, redoc_url=None,
                  openapi_url="/openapi.json", redirect_slashes=False, lifespan=lifespan)
    app.add_exception_handler(HttpError, _answer_error)
    app.add_exception_handler(HTTPException, _answer_http_exception)
    app.add_exception_handler(RequestValidationError, _answer_validation_error)
    app.add_exception_handler(Exception, _answer_failure)
    libretranslate.add_routes(app, context)
    openai.add_routes(app, context)
    native.add_routes(app, context)
    _add_own_routes(app, context)
    return app


def _add_own_routes(app: FastAPI, context: ServerContext) -> None:
    assets = static.load_assets()

    @app.get("/metrics", tags=["Operation"], summary="Metrics for Prometheus")
    async def metrics() -> Response:
        return Response(context.metrics.text(), media_type=CONTENT_TYPE)

    @app.get("/spec", include_in_schema=False)
    async def spec() -> Response:
        return JSONResponse(app.openapi())

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return Response(description_page(app.openapi()), media_type="text/html; charset=utf-8",
                        headers={"Content-Security-Policy": PAGE_POLICY})

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page(request: Request) -> Response:
        return static.asset_response(request, assets[static.INDEX])

    @app.api_route("/assets/{name:path}", methods=["GET", "HEAD"], include_in_schema=False)
    async def asset(request: Request, name: str) -> Response:
        if name not in assets or name == static.INDEX:
            raise HttpError(404, "There is no such file.")
        return static.asset_response(request, assets[name])


async def _answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HttpError)
    closing = {"Connection": "close"} if error.status in (408, 413) else {}
    return JSONResponse(error_table(request.url.path, error), error.status, headers={**error.headers, **closing})


async def _answer_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    messages = {404: "There is nothing at this address.", 405: "This address needs another method."}
    found = HttpError(error.status_code, messages.get(error.status_code, str(error.detail)))
    return JSONResponse(error_table(request.url.path, found), error.status_code, headers=error.headers)


async def _answer_validation_error(request: Request, error: Exception) -> Response:
    return JSONResponse(error_table(request.url.path, HttpError(400, "Invalid request.")), 400)


async def _answer_failure(request: Request, error: Exception) -> Response:
    found = HttpError(500, "The server failed. Its log says where.")
    return JSONResponse(error_table(request.url.path, found), 500)
