"""The assets of the page, read once, with their types, ETags and a strict content security policy.

`index.html` is at `/`, everything else under `/assets/` with its path in the folder. The policy allows only what this
server sends: no inline script or style, no other origin.
"""

import hashlib
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

POLICY = ("default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
          "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
INDEX = "index.html"
MEDIA_TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8",
               ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml", ".png": "image/png",
               ".json": "application/json", ".woff2": "font/woff2", ".webmanifest": "application/manifest+json",
               ".ico": "image/x-icon", ".txt": "text/plain; charset=utf-8"}


class PageAsset(NamedTuple):
    """A file of the page."""

    body: bytes
    media_type: str
    etag: str


def load_assets() -> dict[str, PageAsset]:
    """All files of the folder `assets` by their paths."""
    found = {}
    for name, file in _walk(resources.files("regard.serving.page").joinpath("assets"), ""):
        suffix = name[name.rfind("."):] if "." in name else ""
        if suffix in MEDIA_TYPES:
            body = file.read_bytes()
            found[name] = PageAsset(body, MEDIA_TYPES[suffix], f'"{hashlib.sha256(body).hexdigest()[:32]}"')
    return found


def _walk(folder: Traversable, before: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{before}{entry.name}/")
        else:
            yield f"{before}{entry.name}", entry


def asset_response(request: Request, asset: PageAsset) -> Response:
    """An asset, or 304 if the client has it already."""
    headers = {"ETag": asset.etag, "Cache-Control": "no-cache", "Content-Security-Policy": POLICY,
               "Cross-Origin-Opener-Policy": "same-origin"}
    known = [one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")]
    if asset.etag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(asset.body, headers=headers, media_type=asset.media_type)
