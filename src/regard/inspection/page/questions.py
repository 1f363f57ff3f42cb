"""Questions that a page asks, read strictly: for a window of a map, and "what if".

Whatever comes in is of the right types and sizes, or refused with a reason that may be shown. It knows neither HTTP nor
models.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn
from urllib.parse import parse_qsl

from regard import checks
from regard.inspection.trace.trace import Trace

TEXT = 20_000
"""Characters of a text in a question."""
BEAMS = 64
NUMBERS = ("trace", "attention", "head", "top", "left", "rows", "columns", "size")
FIELDS = {"text": str, "prefix": str, "beams": int, "choice": int, "trace": int}


@dataclass(frozen=True)
class Question:
    """What if: another text, a beginning that what is written must have, and which of the results is shown."""

    text: str
    prefix: str = ""
    beams: int | None = None
    """None for as many as before."""
    choice: int = 0
    """The best is 0."""
    trace: int = 0
    """Of two models, which."""


WhatIf = Callable[[Question], Trace]


class RefusedError(ValueError):
    """A request that is not answered, with its status of HTTP."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def numbers(query: str) -> dict[str, int]:
    """The numbers of a question for a window, all of them and nothing else."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, max_num_fields=len(NUMBERS))
    except ValueError:
        pairs = []
    found = {name: int(text) for name, text in pairs if text.isascii() and text.isdigit() and len(text) <= 9}
    if len(pairs) != len(NUMBERS) or sorted(found) != sorted(NUMBERS):
        raise RefusedError(400, f"A window is asked for with whole numbers {', '.join(NUMBERS)}.")
    return found


def question(body: bytes) -> Question:
    """What is asked, of the right types and sizes."""
    try:
        table = json.loads(body.decode("utf-8"), parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise RefusedError(400, "A question is a JSON object in UTF-8.") from None
    if not isinstance(table, dict) or table.get("text") is None or set(table) - set(FIELDS):
        raise RefusedError(400, f"A question is a JSON object with a text, and no other keys than {', '.join(FIELDS)}.")
    given = {name: value for name, value in table.items() if value is not None}
    for name, value in given.items():
        if type(value) is not FIELDS[name]:
            raise checks.wrong(name, "text" if FIELDS[name] is str else "a whole number", f"{value!r:.60}")
        if isinstance(value, str) and len(value) > TEXT:
            raise checks.wrong(name, f"at most {TEXT:,} characters long", f"{len(value):,} long")
        if isinstance(value, str) and any("\ud800" <= char <= "\udfff" for char in value):
            raise checks.wrong(name, "text of whole characters", "text with half a surrogate pair")
    for name, least, most in (("beams", 1, BEAMS), ("choice", 0, BEAMS - 1), ("trace", 0, 1)):
        if not least <= given.get(name, least) <= most:
            raise checks.wrong(name, f"from {least} to {most}", given[name])
    return Question(**given)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")
