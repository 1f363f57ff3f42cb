"""What a page shows, as JSON: the headers of one trace or two, and for each attention its numbers in some form.

    weights      all of them: small ones
    projected    queries and keys, from which the page computes the weights of any window; with an overview
    overview     means of blocks: what is left where there is no room for more
    served       nothing here: the page asks for windows

A file has room for so many bytes. What shows which word is which comes first, then the smaller ones. It does not know
HTML, nor who asks for the document.
"""

import base64
import json
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from regard import checks
from regard.inspection.page import maps
from regard.inspection.page.projecting import forms
from regard.inspection.trace import header as trace_header
from regard.inspection.trace import tensors as trace_tensors
from regard.inspection.trace.parts import Attention
from regard.inspection.trace.trace import Trace

VERSION = 1
SMALL = 1_000_000
"""Weights of an attention that are written out."""
ROOM = 64 << 20
"""Bytes of all numbers of a file, as text."""
COARSE = (512, 256, 128, 64)
"""Blocks of an overview, at most so many high and wide: the most whose share of the room is at most one in FOUR."""
FOUR = 4
EXACT = 5e-5
"""A difference that no weight on the page shows: it has four decimals."""
Table = dict[str, Any]
Data = Callable[[Attention, int], Table]
"""What the numbers of an attention become, where so many bytes are left."""


def embedded(traces: Sequence[Trace], title: str = "", room: int = ROOM, file: str | None = None) -> Table:
    """The document of a page that has all it shows with it; `file` is where the trace is, for who wants to see more."""
    table = _document(traces, title, served=False, tables=with_numbers(traces, room))
    return table if file is None else {**table, "file": file}


def served(traces: Sequence[Trace], title: str = "", room: int = ROOM) -> Table:
    """The document of a page that asks for what is large."""
    tables = _tables(traces, room, _weights_or(lambda attention, left: {"kind": "served"}))
    return _document(traces, title, served=True, tables=tables)


def with_numbers(traces: Sequence[Trace], room: int = ROOM) -> list[Table]:
    """Each trace with its numbers, as much of them as there is room for."""
    return _tables(traces, room, _weights_or(_reduced))


def dumps(document: Table) -> str:
    """The document as text that may stand in HTML: in ASCII, and without "<"."""
    return json.dumps(document, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def packed(numbers: Tensor) -> str:
    """Numbers in little-endian order, as base64."""
    array = numbers.detach().cpu().contiguous().numpy()
    return base64.b64encode(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()).decode("ascii")


def _document(traces: Sequence[Trace], title: str, *, served: bool, tables: list[Table]) -> Table:
    if not 1 <= len(traces) <= 2:
        raise checks.wrong("traces", "one, or two to be compared", len(traces))
    if not all(trace.attentions for trace in traces):
        raise ValueError("There is nothing to see: this model has no attention.")
    title = title or " · ".join(dict.fromkeys(trace.title for trace in traces if trace.title))
    return {"version": VERSION, "served": served, "title": title, "traces": tables}


def _tables(traces: Sequence[Trace], room: int, data: Data) -> list[Table]:
    tables = [_header(trace) for trace in traces]
    waiting = [(trace.alignment is None or trace.alignment.attention != number, _size(one), place, number)
               for place, trace in enumerate(traces) for number, one in enumerate(trace.attentions)]
    left = room
    for _, _, place, number in sorted(waiting):
        made = data(traces[place].attentions[number], left)
        left -= sum(len(part) for part in _texts(made))
        tables[place]["attentions"][number]["data"] = made
    return tables


def _header(trace: Trace) -> Table:
    """What a file of the trace says in its header."""
    facts = [_facts(one) for one in trace.attentions]
    return json.loads(trace_header.dumps(trace.sides, trace.attentions, facts, title=trace.title, model=trace.model,
                                         written=trace.written, alignment=trace.alignment, search=trace.search))


def _facts(attention: Attention) -> Table:
    """Score, normaliser and mask by their names; nothing where one of them has no name that a file could hold."""
    try:
        return trace_tensors.taken(attention.look, attention.name)[0]
    except ValueError:  # too large for a file, and not for a page
        return {}


def _weights_or(otherwise: Data) -> Data:
    def data(attention: Attention, left: int) -> Table:
        if _size(attention) <= SMALL and _as_text(4 * _size(attention)) <= left:
            return {"kind": "weights", "values": packed(attention.look.weights().float())}
        return otherwise(attention, left)

    return data


def _reduced(attention: Attention, left: int) -> Table:
    """A large attention in a file: as exact as is seen, where there is room for it."""
    size, found = _coarse(attention, left), None
    blocks = attention.heads * -(-attention.rows // size) * -(-attention.columns // size)
    for form in forms(attention):
        if _as_text(form.nbytes) + _as_text(4 * blocks) > left:
            break
        normalizers, means = form.summed(size)
        error = form.error(attention, normalizers)
        found = {"kind": "projected", "query": packed(form.query), "key": packed(form.key), "scale": form.scale,
                 "normalizer": packed(normalizers), "width": form.query.shape[-1], "key_heads": len(form.key),
                 "mask": _facts(attention).get("mask"), "error": error, "overview": _overview(means, size)}
        if error < EXACT:
            break
    return found or {"kind": "overview", "overview": _overview(attention.look.block_map(size), size)}


def _coarse(attention: Attention, left: int) -> int:
    """The size of the blocks of an overview, where so many bytes are left."""
    sizes = [maps.overview_size(attention, most) for most in COARSE]
    fitting = (size for size in sizes if FOUR * _as_text(4 * attention.heads * -(-attention.rows // size) *
                                                         -(-attention.columns // size)) <= left)
    return next(fitting, sizes[-1])


def _overview(means: Tensor, size: int) -> Table:
    return {"size": size, "rows": means.shape[-2], "columns": means.shape[-1], "values": packed(means.float())}


def _size(attention: Attention) -> int:
    return attention.heads * attention.rows * attention.columns


def _as_text(count: int) -> int:
    """How many characters so many bytes become."""
    return 4 * -(-count // 3)


def _texts(table: Table) -> list[str]:
    found = []
    for value in table.values():
        found += _texts(value) if isinstance(value, dict) else [value] if isinstance(value, str) else []
    return found
