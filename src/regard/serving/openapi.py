"""The OpenAPI description of routes that read their bodies themselves, and a page of it without scripts."""

import html
from typing import Any

from pydantic import BaseModel

STATUS_TEXTS = {400: "The request is wrong; the message says what and where.", 401: "The API key is missing or wrong.",
                403: "The API key is missing or wrong.", 404: "There is no such thing.",
                408: "The body came too slowly.", 413: "The body is too large.", 415: "The body is of another type.",
                429: "The server is busy, or the rate limit is reached; Retry-After says when to try again.",
                503: "The server is stopping.", 504: "The request took longer than the server allows."}
ERROR_SCHEMA = {"type": "object", "required": ["error"], "properties": {"error": {}}}
PAGE_STYLE = (":root{color-scheme:light dark;--paper:#fbfaf7;--ink:#1f1d1a;--line:#e2ded5;--link:#0b625d}"
              "@media (prefers-color-scheme:dark){:root{--paper:#15171b;--ink:#e9e6df;--line:#333740;--link:#76cfc4}}"
              "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;"
              "background:var(--paper);color:var(--ink)}a{color:var(--link)}"
              "code{font:14px/1.4 monospace;overflow-wrap:anywhere}"
              "h2{margin-top:2.5rem;border-top:1px solid var(--line);padding-top:1rem}")


def inline_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of a model without references."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})

    def resolve(value: Any) -> Any:
        if isinstance(value, dict):
            if "$ref" in value:
                return resolve(definitions[value["$ref"].rpartition("/")[2]])
            return {name: resolve(inner) for name, inner in value.items()}
        return [resolve(inner) for inner in value] if isinstance(value, list) else value

    found: dict[str, Any] = resolve(schema)
    return found


def body_schema(model: type[BaseModel], *, form: bool = False) -> dict[str, Any]:
    """The description of a body: JSON, and if wanted also a form."""
    content = {"application/json": {"schema": inline_schema(model)}}
    if form:
        content["application/x-www-form-urlencoded"] = {"schema": _form_schema(inline_schema(model))}
    return {"requestBody": {"required": True, "content": content}}


def _form_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """The same fields as texts: a form has no lists and no null."""
    fields = dict[str, Any]()
    for name, field in schema["properties"].items():
        options = [one for one in field.get("anyOf", [field]) if one.get("type") not in ("null", "array")]
        fields[name] = {key: value for key, value in options[0].items() if key != "default"} if options else {}
    return {**schema, "properties": fields}


def json_response(model: type[BaseModel], *, array: bool = False) -> dict[int | str, dict[str, Any]]:
    """The description of an answer with status 200."""
    schema = inline_schema(model)
    return {200: {"description": "Done.", "content": {"application/json": {
        "schema": {"type": "array", "items": schema} if array else schema}}}}


def error_responses(*codes: int) -> dict[int | str, dict[str, Any]]:
    """The descriptions of errors; every route may also answer 408, 413, 415, 421 and 429."""
    return {code: {"description": STATUS_TEXTS[code], "content": {"application/json": {"schema": ERROR_SCHEMA}}}
            for code in sorted({*codes, 408, 413, 415, 429})}


def description_page(description: dict[str, Any]) -> str:
    """The description as HTML without scripts: routes, fields and statuses."""
    parts = ["<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport "
             f"content='width=device-width, initial-scale=1'><title>{html.escape(description['info']['title'])}"
             f"</title><style>{PAGE_STYLE}</style><h1>{html.escape(description['info']['title'])}</h1>"
             f"<p>{html.escape(description['info'].get('description', ''))}</p>"
             "<p>As OpenAPI: <a href='openapi.json'>openapi.json</a></p>"]
    for path, methods in description["paths"].items():
        for method, route in methods.items():
            parts.append(f"<h2><code>{method.upper()} {html.escape(path)}</code></h2>"
                         f"<p>{html.escape(route.get('summary', ''))}</p>"
                         f"<p>{html.escape(route.get('description', ''))}</p>{_fields(route)}<ul>")
            parts += [f"<li><code>{html.escape(code)}</code> {html.escape(answer.get('description', ''))}</li>"
                      for code, answer in route.get("responses", {}).items()]
            parts.append("</ul>")
    return "".join(parts)


def _fields(route: dict[str, Any]) -> str:
    content = route.get("requestBody", {}).get("content", {})
    kinds = " or ".join(f"<code>{html.escape(kind)}</code>" for kind in content)
    schema: dict[str, Any] = next((one["schema"] for one in content.values()), {})
    rows = []
    for name, field in schema.get("properties", {}).items():
        options = field.get("anyOf", [field])
        types = " | ".join(str(one.get("type", "any")) for one in options)
        required = ", required" if name in schema.get("required", []) else ""
        rows.append(f"<li><code>{html.escape(name)}</code> ({html.escape(types)}{required}) "
                    f"{html.escape(str(field.get('description', '')))}</li>")
    return f"<p>Body: {kinds}</p><ul>{''.join(rows)}</ul>" if rows else ""
