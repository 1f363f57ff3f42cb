"""The page as one HTML file: its script, its style, and a JSON document with one trace or two.

Each attention of a trace is embedded in one of these forms:

    weights      all weights: small ones
    projected    queries and keys, from which the page computes the weights of any window; with an overview: where that
                 is smaller
    overview     means of blocks: for what does not fit into the size limit
    served       nothing: the page requests windows from its server

The file needs no network, and its content security policy allows nothing but its own script and style, by their hashes.
The JavaScript modules are concatenated as they are written: every `import` names what it takes from an earlier module,
`export` stands only before declarations, and no two modules declare the same top-level name; what breaks these rules is
reported.
"""

import base64
import bisect
import functools
import hashlib
import html
import json
import re
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from regard import checks
from regard.inspection import trace_format
from regard.inspection.page import tiles
from regard.inspection.trace import Trace
from regard.inspection.trace_format import TracedAttention

VERSION = 1
MAX_WEIGHTS = 1_000_000
"""The number of weights up to which an attention is embedded whole."""
SIZE_LIMIT = 64 << 20
"""The number of bytes of all numbers in a file, as text."""
SMALL_WEIGHTS = 20_000
"""The number of weights up to which an attention is embedded whole even if its queries and keys are smaller."""
OVERVIEW_BLOCKS, OVERVIEW_SHARE = (512, 256, 128, 64), 4
"""An overview has at most this many blocks in each direction: the most that take one part in 4 of the space left."""
MAX_OVERVIEW, LONG_SIDE = 1 << 18, 4000
"""The overview of an attention without a side of more than 4,000 tokens takes at most this number of bytes, as text."""
SMALL_DIFFERENCE = 1e-4
"""Of a sum of log-probabilities from the sum of its parts, which are rounded."""
VISIBLE_ERROR = 5e-5
"""A difference that the page, which shows four decimals, does not show."""
MAX_ERROR = 1e-2
"""An attention whose weights would differ by more has an overview alone."""
PROJECTED_BITS = range(10, 25)
"""The numbers of bits that a query or key may have."""
PACKED_AT_ONCE = 1 << 18
"""The number of queries or keys that are packed at once, a multiple of 8."""
ORDER_FILE, SKELETON_FILE, STYLE_FILE = "order.txt", "index.html", "style.css"
IMPORT_STATEMENT = re.compile(r'^import \{([\w,\s]+)\} from "\./([\w-]+\.js)";[ \t]*\n', re.MULTILINE)
DECLARATION = re.compile(r"^(export )?(?:async )?(?:function\*?|class|const|let) (\w+)")
LONG_TEXT = 120
"""Tokens of a side above which the page has a map of any size, and shades words in the place of ribbons."""
SLOTS = ("title", "policy", "style", "page", "script")
"""The placeholders of the skeleton: {{title}}, …"""
JsonObject = dict[str, Any]
DataForm = Callable[[TracedAttention, int], JsonObject]
"""From an attention and the number of bytes left to its data."""


def page_html(traces: Sequence[Trace], *, title: str = "", size_limit: int = SIZE_LIMIT,
              file: str | None = None) -> str:
    """The HTML of one trace, or of two to compare.

    Args:
        traces: one or two.
        title: the title of the page; by default the titles of the traces.
        size_limit: the number of bytes of all numbers. What does not fit is embedded as means of blocks, and the page
            says so.
        file: the name of the trace file, which the page shows where it has only an overview.
    """
    document = embedded_document(traces, title, size_limit, file)
    bundle = document_bundle(document)
    return bundle.page(document["title"], dump_document(document), bundle.policy())


def embedded_document(traces: Sequence[Trace], title: str = "", size_limit: int = SIZE_LIMIT,
                      file: str | None = None) -> JsonObject:
    """The document of a page that contains all its data."""
    document = _make_document(traces, title, served=False, tables=trace_tables(traces, size_limit))
    return document if file is None else {**document, "file": file}


def served_document(traces: Sequence[Trace], title: str = "", size_limit: int = SIZE_LIMIT) -> JsonObject:
    """The document of a page that requests large attentions from its server."""
    tables = _fill_tables(traces, size_limit, _served)
    return _make_document(traces, title, served=True, tables=tables)


def trace_tables(traces: Sequence[Trace], size_limit: int = SIZE_LIMIT) -> list[JsonObject]:
    """Each trace with its data, as much of it as the limit allows, in the forms of the page."""
    return _fill_tables(traces, size_limit, _embedded)


def plain_table(trace: Trace, size_limit: int = SIZE_LIMIT) -> JsonObject:
    """A trace for other programs: the header of its file, weights in float32, overviews of what does not fit."""
    [table] = _fill_tables([trace], size_limit, _plain, short=False)
    return table


def dump_document(document: JsonObject) -> str:
    """The document as JSON that is safe inside HTML: ASCII, without "<"."""
    return json.dumps(document, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def encode_numbers(numbers: Tensor) -> str:
    """Little-endian numbers as base64."""
    array = numbers.detach().cpu().contiguous().numpy()
    return base64.b64encode(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()).decode("ascii")


def _make_document(traces: Sequence[Trace], title: str, *, served: bool, tables: list[JsonObject]) -> JsonObject:
    if not 1 <= len(traces) <= 2:
        raise checks.wrong("traces", "one trace, or two to compare", len(traces))
    if not all(trace.attentions for trace in traces):
        raise ValueError("This model has no attention, so there is nothing to show.")
    title = title or " · ".join(dict.fromkeys(trace.title for trace in traces if trace.title))
    return {"version": VERSION, "served": served, "title": title, "traces": tables}


def _fill_tables(traces: Sequence[Trace], size_limit: int, form: DataForm, *, short: bool = True) -> list[JsonObject]:
    """The headers of the traces, with the data of each attention: the alignment first, then from small to large.

    Args:
        short: whether the headers have the short form of the page.
    """
    tables = [_page_header(trace) if short else _file_header(trace) for trace in traces]
    order = sorted((trace.alignment is None or trace.alignment.attention != number, attention.weight_count, place,
                    number) for place, trace in enumerate(traces) for number, attention in enumerate(trace.attentions))
    left = size_limit
    for _, _, place, number in order:
        data = form(traces[place].attentions[number], left)
        left -= _length(data)
        tables[place]["attentions"][number]["data"] = data
    return tables


def _file_header(trace: Trace) -> JsonObject:
    """The header of the trace file."""
    found: JsonObject = json.loads(trace_format.dump_header(trace, [_attention_facts(one) for one in trace.attentions]))
    return found


def _page_header(trace: Trace) -> JsonObject:
    """The header of the trace file, with six digits of each number and a shorter form of the search."""
    header = trace_format.dump_header(trace, [_attention_facts(one) for one in trace.attentions])
    table: JsonObject = json.loads(header, parse_float=lambda text: float(f"{float(text):.6g}"))
    if table.get("search"):
        table["search"]["nodes"] = _node_columns(table["search"]["nodes"], table["search"]["best"])
    return table


def _node_columns(nodes: list[JsonObject], best: list[int]) -> JsonObject:
    """The nodes of a search as one list for each key, which is a third of the size; the script puts them together.

    Only the results have scores, which they are ranked by.
    """
    columns: JsonObject = {key: [node[key] for node in nodes] for key in ("parent", "token", "log_probability")}
    columns |= {key: [place for place, node in enumerate(nodes) if node[key]] for key in ("ended", "kept")}
    scores = {str(place): nodes[place]["score"] for place in best if nodes[place].get("score") is not None}
    if scores:
        columns["score"] = scores
    sums = [node["total"] - node["log_probability"] - (nodes[node["parent"]]["total"] if node["parent"] >= 0 else 0.0)
            for node in nodes]
    if any(abs(difference) > SMALL_DIFFERENCE for difference in sums):  # a trace of another program
        columns["total"] = [node["total"] for node in nodes]
    return columns


def _attention_facts(attention: TracedAttention) -> JsonObject:
    """The names of score, normaliser and mask; empty if a file could not hold them."""
    try:
        return trace_format.record_tensors(attention.look, attention.name)[0]
    except ValueError:  # too large for a file, but not for a page
        return {}


def _whole(attention: TracedAttention, left: int) -> JsonObject | None:
    """All weights of an attention that is small enough."""
    if attention.weight_count > MAX_WEIGHTS or _base64_length(3 * attention.weight_count) > left:
        return None
    return {"kind": "weights", "values": _encode_weights(attention.look.weights().float())}


def _plain(attention: TracedAttention, left: int) -> JsonObject:
    """All weights in float32, or an overview."""
    if attention.weight_count > MAX_WEIGHTS or _base64_length(4 * attention.weight_count) > left:
        return _overview_alone(attention, left)
    return {"kind": "weights", "values": encode_numbers(attention.look.weights().float())}


def _embedded(attention: TracedAttention, left: int) -> JsonObject:
    """The smallest form that is as exact as the page shows, or an overview."""
    whole = _whole(attention, left)
    if whole is None:
        return _reduced(attention, left)
    smaller = None if attention.weight_count <= SMALL_WEIGHTS else _projected(attention, left)
    return smaller if smaller and smaller["error"] < VISIBLE_ERROR and _length(smaller) < _length(whole) else whole


def _served(attention: TracedAttention, left: int) -> JsonObject:
    """All weights of a small attention; of a large one, the page requests windows."""
    return _whole(attention, left) or {"kind": "served"}


def _length(data: JsonObject) -> int:
    """The number of characters of all texts of some data."""
    return sum(map(len, _strings(data)))


def _reduced(attention: TracedAttention, left: int) -> JsonObject:
    """A large attention: projected as exactly as is visible, if there is enough space, or an overview."""
    return _projected(attention, left) or _overview_alone(attention, left)


def _overview_alone(attention: TracedAttention, left: int) -> JsonObject:
    """Means of blocks, and nothing else."""
    size = _overview_block(attention, left)
    return {"kind": "overview", "overview": _overview(attention.look.block_map(size), size)}


def _projected(attention: TracedAttention, left: int) -> JsonObject | None:
    """Queries and keys of as few bits as show no error, or of as many as there is space for."""
    size, projection = _overview_block(attention, left), tiles.Projection.of(attention)
    if projection is None:
        return None
    space = left - _overview_length(attention, size)
    fitting = [bits for bits in PROJECTED_BITS if _base64_length(projection.nbytes(bits)) <= space]
    if not fitting:
        return None

    def shows_no_error(bits: int) -> bool:
        return projection.rounded(bits).error(attention) < VISIBLE_ERROR

    exact = bisect.bisect_left(fitting[:-1], True, key=shows_no_error)  # the last, if none of these is exact
    rounded = projection.rounded(fitting[exact])
    error = rounded.error(attention)
    if error > MAX_ERROR:
        return None
    normalizers, means = rounded.normalizers_and_means(size)
    query, key = (_encode_bits(part, rounded.bits) for part in (rounded.query, rounded.key))
    return {"kind": "projected", "query": query, "key": key, "bits": rounded.bits, "steps": rounded.steps,
            "scale": rounded.scale, "normalizer": encode_numbers(normalizers), "width": rounded.query.shape[-1],
            "key_heads": len(rounded.key), "mask": _attention_facts(attention).get("mask"), "error": error,
            "overview": _overview(means, size)}


def _encode_weights(weights: Tensor) -> str:
    """The upper three bytes of float32, rounded, as base64: the relative error, 2⁻¹⁷, is not visible on the page."""
    bits = weights.detach().cpu().contiguous().numpy().astype("<f4", copy=False).view("<u4")
    rounded = np.where(np.isfinite(bits.view("<f4")), bits + np.uint32(0x80), bits)
    return base64.b64encode(rounded.view("u1").reshape(-1, 4)[:, 1:].tobytes()).decode("ascii")


def _encode_bits(numbers: Tensor, bits: int) -> str:
    """Whole numbers (heads, ...) by their lower bits, the lowest first, as base64; each head begins with a new byte."""
    packed = []
    for head in numbers:
        array = head.reshape(-1).numpy().astype("<i4", copy=False)
        for first in range(0, len(array), PACKED_AT_ONCE):
            single = np.unpackbits(array[first:first + PACKED_AT_ONCE].view("u1").reshape(-1, 4), axis=1,
                                   bitorder="little")
            packed.append(np.packbits(single[:, :bits].reshape(-1), bitorder="little").tobytes())
    return base64.b64encode(b"".join(packed)).decode("ascii")


def _overview_block(attention: TracedAttention, left: int) -> int:
    """The block size of an overview."""
    sizes = [tiles.overview_block_size(attention, blocks) for blocks in OVERVIEW_BLOCKS]
    large = max(attention.rows, attention.columns) > LONG_SIDE
    most = left // OVERVIEW_SHARE if large else min(left // OVERVIEW_SHARE, MAX_OVERVIEW)
    return next((size for size in sizes if _overview_length(attention, size) <= most), sizes[-1])


def _overview_length(attention: TracedAttention, size: int) -> int:
    return _base64_length(2 * attention.heads * -(-attention.rows // size) * -(-attention.columns // size))


def _overview(means: Tensor, size: int) -> JsonObject:
    """Means of blocks in half precision, as parts of the largest one: they may be very small."""
    finite = means[means.isfinite()]
    unit = float(finite.abs().max()) if finite.numel() else 0.0
    return {"size": size, "rows": means.shape[-2], "columns": means.shape[-1], "unit": unit or 1.0,
            "values": encode_numbers((means.double() / (unit or 1.0)).half())}


def _base64_length(count: int) -> int:
    """The number of characters of this number of bytes in base64."""
    return 4 * -(-count // 3)


def _strings(table: JsonObject) -> list[str]:
    found = []
    for value in table.values():
        found += _strings(value) if isinstance(value, dict) else [value] if isinstance(value, str) else []
    return found


class PageBundle(NamedTuple):
    """The parts of the page that do not depend on the traces."""

    skeleton: str
    style: str
    script: str

    def policy(self, *directives: str) -> str:
        """The content security policy: this script, this style, and further directives."""
        own = [f"{kind}-src '{_hash(text)}'" for kind, text in (("script", self.script), ("style", self.style))]
        return "; ".join(["default-src 'none'", *own, "base-uri 'none'", "form-action 'none'", *directives])

    def page(self, title: str, document: str, policy: str) -> str:
        """The HTML. The document is text without "<"."""
        assert "<" not in document
        parts = {"title": html.escape(title or "regard"), "policy": html.escape(policy), "style": self.style,
                 "page": document, "script": self.script}
        return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], self.skeleton)


class PageFacts(NamedTuple):
    """What the modules of a page depend on."""

    asks: bool
    """Whether a model answers to other texts, which may be long."""
    image: bool
    long: bool
    """Whether a side has more tokens than the view "Read" shows as words with ribbons."""
    paragraph: bool
    """Whether some trace is neither an image nor a pair of texts: the view "Read" shows it as one text."""
    search: bool
    several: bool
    """Whether there are two heads or two traces to compare."""
    forms: frozenset[str]
    """The forms of the data of all attentions."""


def _shades_words(page: PageFacts) -> bool:
    """Whether the view "Read" shows some text as a paragraph whose words are shaded."""
    return page.asks or page.long or page.paragraph or "overview" in page.forms


OPTIONAL_MODULES: dict[str, Callable[[PageFacts], bool]] = {
    "predictions.js": lambda page: page.image or _shades_words(page),
    "projected.js": lambda page: page.asks or "projected" in page.forms,
    "picture.js": lambda page: page.image,
    "shading.js": _shades_words,
    "comparison.js": lambda page: page.asks or page.several,
    "search_view.js": lambda page: page.asks or page.search,
    "try.js": lambda page: page.asks,
    "map.js": lambda page: page.asks or page.long or "overview" in page.forms,
}
"""The modules that a page contains only if it can use them; the others are in every page."""


def page_facts(document: JsonObject) -> PageFacts:
    """What the modules of the page of a document depend on."""
    traces = document["traces"]
    attentions = [one for trace in traces for one in trace["attentions"]]
    sides = [side for trace in traces for side in trace["sides"].values()]
    return PageFacts(asks=bool(document.get("asks")), image=any(map(_has_image, traces)),
                     long=any(len(side["tokens"]) > LONG_TEXT for side in sides),
                     paragraph=not all(_has_image(trace) or _reads_pair(trace) for trace in traces),
                     search=any(trace.get("search") for trace in traces),
                     several=sum(one["heads"] for one in attentions) > 1,
                     forms=frozenset(one["data"]["kind"] for one in attentions))


def _has_image(trace: JsonObject) -> bool:
    return any("grid" in side for side in trace["sides"].values())


def _reads_pair(trace: JsonObject) -> bool:
    """Whether the first map that the page shows goes from one text to another, as in `pairedSides` of read.js."""
    attentions, pointer = trace["attentions"], trace.get("alignment")
    crossing = [one for one in attentions if one["queries"] != one["keys"]]
    one = attentions[pointer["attention"]] if pointer else [*attentions, *crossing][-1]
    rows, columns = (len(trace["sides"][one[key]]["tokens"]) for key in ("queries", "keys"))
    return bool(one["queries"] != one["keys"] and not (one.get("kind") == "self" and rows == columns))


def document_bundle(document: JsonObject) -> PageBundle:
    """The bundle of a document: the modules that its page can use."""
    facts = page_facts(document)
    return load_bundle(frozenset(name for name, needed in OPTIONAL_MODULES.items() if not needed(facts)))


@functools.cache
def load_bundle(without: frozenset[str] = frozenset()) -> PageBundle:
    """The bundle of the package's assets, without some modules."""
    names = [name for name in _read_asset(ORDER_FILE).split() if name not in without]
    return make_bundle(_read_asset(SKELETON_FILE), _read_asset(STYLE_FILE), {name: _read_asset(name) for name in names})


def page_policy(page: bytes) -> str:
    """The content security policy that a page contains, for the header of its response."""
    found = re.search(rb'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert found is not None
    return html.unescape(found[1].decode("ascii"))


def make_bundle(skeleton: str, style: str, modules: dict[str, str]) -> PageBundle:
    """A bundle of a skeleton, a style sheet, and JavaScript modules by name, in order."""
    slots = re.findall(r"\{\{(\w+)\}\}", skeleton)
    assert sorted(slots) == sorted(SLOTS), f"{SKELETON_FILE} must have each of {SLOTS} once, but has {slots}"
    assert "</style" not in style.lower(), f"{STYLE_FILE} must not contain </style"
    script = '"use strict";\n' + "".join(_concatenate(modules))
    assert "</script" not in script.lower(), "a module must not contain </script"
    assert "<!--" not in script, "a module must not contain <!--"
    return PageBundle(skeleton, style, script)


def _concatenate(modules: dict[str, str]) -> list[str]:
    """The text of each module without its imports and exports."""
    owners: dict[str, str] = {}
    exported: dict[str, set[str]] = {}
    pieces = []
    for name, text in modules.items():
        for wanted, source in IMPORT_STATEMENT.findall(text):
            assert source in exported, f"{name} imports {source}, which must come before it"
            missing = {part.strip() for part in wanted.split(",") if part.strip()} - exported[source]
            assert not missing, f"{name} imports {sorted(missing)}, which {source} does not export"
        exported[name] = set()
        lines = []
        for line in IMPORT_STATEMENT.sub("", text).splitlines(keepends=True):
            declared = DECLARATION.match(line)
            if declared:
                other = owners.setdefault(declared[2], name)
                assert other == name, f"{declared[2]} is declared in {other} and in {name}"
                if declared[1]:
                    exported[name].add(declared[2])
                    line = line.removeprefix("export ")
            assert not line.startswith(("import ", "import{", "export ", "export{")), f"{name}: {line.strip()}"
            lines.append(line)
        pieces.append("".join(lines).strip("\n") + "\n")
    return pieces


def _read_asset(name: str) -> str:
    return resources.files("regard.inspection.page").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
