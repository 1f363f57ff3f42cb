"""The page as one HTML file: its script, its style, and a JSON document with one trace or two.

Each attention of a trace is embedded in one of these forms:

    weights      all weights: small ones
    projected    queries and keys, from which the page computes the weights of any window; with an overview
    overview     means of blocks: for what does not fit into the size limit
    served       nothing: the page requests windows from its server

The file needs no network, and its content security policy allows nothing but its own script and style, by their hashes.
The JavaScript modules are concatenated: every `import` names what it takes from an earlier module, `export` stands only
before declarations, and no two modules declare the same top-level name; what breaks these rules is reported.
"""

import base64
import functools
import hashlib
import html
import json
import re
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any, NamedTuple

from torch import Tensor

from regard import checks
from regard.inspection import trace_format
from regard.inspection.page import tiles
from regard.inspection.page.tiles import projected_forms
from regard.inspection.trace import Trace
from regard.inspection.trace_format import TracedAttention

VERSION = 1
MAX_WEIGHTS = 1_000_000
"""Weights of an attention that are written out."""
SIZE_LIMIT = 64 << 20
"""Bytes of all numbers of a file, as text."""
OVERVIEW_BLOCKS = (512, 256, 128, 64)
"""Blocks of an overview, at most so many high and wide: the most whose share of the room is at most one in FOUR."""
OVERVIEW_SHARE = 4
VISIBLE_ERROR = 5e-5
"""A difference that no weight on the page shows: it has four decimals."""
JsonObject = dict[str, Any]
DataForm = Callable[[TracedAttention, int], JsonObject]
"""What the numbers of an attention become, where so many bytes are left."""


def embedded_document(traces: Sequence[Trace], title: str = "", room: int = SIZE_LIMIT, file: str | None = None) -> JsonObject:
    """The document of a page that has all it shows with it; `file` is where the trace is, for who wants to see more."""
    table = _make_document(traces, title, served=False, tables=trace_tables(traces, room))
    return table if file is None else {**table, "file": file}


def served_document(traces: Sequence[Trace], title: str = "", room: int = SIZE_LIMIT) -> JsonObject:
    """The document of a page that asks for what is large."""
    tables = _fill_tables(traces, room, _small_or(lambda attention, left: {"kind": "served"}))
    return _make_document(traces, title, served=True, tables=tables)


def trace_tables(traces: Sequence[Trace], room: int = SIZE_LIMIT) -> list[JsonObject]:
    """Each trace with its numbers, as much of them as there is room for."""
    return _fill_tables(traces, room, _small_or(_reduced))


def dump_document(document: JsonObject) -> str:
    """The document as text that may stand in HTML: in ASCII, and without "<"."""
    return json.dumps(document, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def encode_numbers(numbers: Tensor) -> str:
    """Numbers in little-endian order, as base64."""
    array = numbers.detach().cpu().contiguous().numpy()
    return base64.b64encode(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()).decode("ascii")


def _make_document(traces: Sequence[Trace], title: str, *, served: bool, tables: list[JsonObject]) -> JsonObject:
    if not 1 <= len(traces) <= 2:
        raise checks.wrong("traces", "one, or two to be compared", len(traces))
    if not all(trace.attentions for trace in traces):
        raise ValueError("There is nothing to see: this model has no attention.")
    title = title or " · ".join(dict.fromkeys(trace.title for trace in traces if trace.title))
    return {"version": VERSION, "served": served, "title": title, "traces": tables}


def _fill_tables(traces: Sequence[Trace], room: int, data: DataForm) -> list[JsonObject]:
    tables = [_trace_header(trace) for trace in traces]
    waiting = [(trace.alignment is None or trace.alignment.attention != number, _weight_count(one), place, number)
               for place, trace in enumerate(traces) for number, one in enumerate(trace.attentions)]
    left = room
    for _, _, place, number in sorted(waiting):
        made = data(traces[place].attentions[number], left)
        left -= sum(len(part) for part in _strings(made))
        tables[place]["attentions"][number]["data"] = made
    return tables


def _trace_header(trace: Trace) -> JsonObject:
    """What a file of the trace says in its header."""
    facts = [_attention_facts(one) for one in trace.attentions]
    return json.loads(trace_format.dump_header(trace, facts))


def _attention_facts(attention: TracedAttention) -> JsonObject:
    """Score, normaliser and mask by their names; nothing where one of them has no name that a file could hold."""
    try:
        return trace_format.record_tensors(attention.look, attention.name)[0]
    except ValueError:  # too large for a file, and not for a page
        return {}


def _small_or(otherwise: DataForm) -> DataForm:
    def data(attention: TracedAttention, left: int) -> JsonObject:
        if _weight_count(attention) <= MAX_WEIGHTS and _base64_length(4 * _weight_count(attention)) <= left:
            return {"kind": "weights", "values": encode_numbers(attention.look.weights().float())}
        return otherwise(attention, left)

    return data


def _reduced(attention: TracedAttention, left: int) -> JsonObject:
    """A large attention in a file: as exact as is seen, where there is room for it."""
    size, found = _overview_block(attention, left), None
    blocks = attention.heads * -(-attention.rows // size) * -(-attention.columns // size)
    for form in projected_forms(attention):
        if _base64_length(form.nbytes) + _base64_length(4 * blocks) > left:
            break
        normalizers, means = form.summed(size)
        error = form.error(attention, normalizers)
        found = {"kind": "projected", "query": encode_numbers(form.query), "key": encode_numbers(form.key), "scale": form.scale,
                 "normalizer": encode_numbers(normalizers), "width": form.query.shape[-1], "key_heads": len(form.key),
                 "mask": _attention_facts(attention).get("mask"), "error": error, "overview": _overview(means, size)}
        if error < VISIBLE_ERROR:
            break
    return found or {"kind": "overview", "overview": _overview(attention.look.block_map(size), size)}


def _overview_block(attention: TracedAttention, left: int) -> int:
    """The size of the blocks of an overview, where so many bytes are left."""
    sizes = [tiles.overview_block_size(attention, most) for most in OVERVIEW_BLOCKS]
    fitting = (size for size in sizes if OVERVIEW_SHARE * _base64_length(4 * attention.heads * -(-attention.rows // size) *
                                                         -(-attention.columns // size)) <= left)
    return next(fitting, sizes[-1])


def _overview(means: Tensor, size: int) -> JsonObject:
    return {"size": size, "rows": means.shape[-2], "columns": means.shape[-1], "values": encode_numbers(means.float())}


def _weight_count(attention: TracedAttention) -> int:
    return attention.heads * attention.rows * attention.columns


def _base64_length(count: int) -> int:
    """How many characters so many bytes become."""
    return 4 * -(-count // 3)


def _strings(table: JsonObject) -> list[str]:
    found = []
    for value in table.values():
        found += _strings(value) if isinstance(value, dict) else [value] if isinstance(value, str) else []
    return found


# ---- squeeze: Scripts and styles without what only readers need: comments, indentation, and spaces beside signs.
#
#     script("const a = [1, 2]; // two\n")     'const a=[1,2];\n'
#
# Strings, templates and regular expressions stay as they are. So do ends of lines that can end a statement. A slash with
# a space behind it divides; one without begins a regular expression: the modules are written so.
#
# It does not read the languages: names stay, and nothing is computed.

MINIFY_STRING = r'"(?:\\.|[^"\\\n])*"' + r"|'(?:\\.|[^'\\\n])*'"
# A template may hold others in its ${…}, and those none.
TEMPLATE = r"`(?:\\[\s\S]|\$\{(?:[^`{}]|`(?:\\[\s\S]|[^`\\])*`|\{[^{}]*\})*\}|[^`\\$]|\$(?!\{))*`"
PATTERN = r"/(?![/* =])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\[\n])+/"
COMMENT = r"//[^\n]*|/\*(?:[^*]|\*(?!/))*\*/"
GAP = rf"(?:\s|{COMMENT})*"
# Behind what closes, a line may end a statement; behind what opens or joins, it does not, nor behind a brace: where one
# ends a statement that is no block, the modules write a semicolon.
# Not around + and - beside their like: `a + +b` is not `a++b`.
SIGN = rf"\s*[)\]]+[ \t]*|\s*\}}{GAP}|\s*[=<>*?:&|%]+{GAP}|\s*(?<![+-])\s[+-](?>\s{GAP})(?![+-])|[ \t]*[{{(\[;,!]+{GAP}"
MARGIN = rf"[ \t]*\n{GAP}"
MINIFY_SCRIPT = re.compile(
    f"(?P<kept>{MINIFY_STRING}|{TEMPLATE}|{PATTERN})|(?P<comment>[ \\t]*(?:{COMMENT})[ \\t]*)|"
    f"(?P<sign>{SIGN})|(?P<margin>{MARGIN})")
MINIFY_STYLE = re.compile(f"(?P<kept>{MINIFY_STRING})|(?P<comment>/\\*(?:[^*]|\\*(?!/))*\\*/)|(?P<sign>\\s*[{{}};,>]\\s*|:\\s+)")


def minify_script(text: str) -> str:
    """A script that does the same."""
    return MINIFY_SCRIPT.sub(_short, text).lstrip()


def minify_style(text: str) -> str:
    """A style sheet that says the same."""
    return MINIFY_STYLE.sub(_short, text).strip()


def _short(found: re.Match[str]) -> str:
    if found["kept"] is not None:
        return found["kept"]
    if found["sign"] is not None:
        return re.sub(COMMENT, "", found["sign"]).strip()
    return "" if found["comment"] is not None else "\n"


# ---- bundle: One HTML file of the page's parts: its style, its modules one after another in one script, and a document.
#
# The modules are written so that they can be put together without a tool: every `import` names what it takes from a
# module that stands before, `export` stands only in front of declarations, and no two modules declare the same name at
# their top. What breaks this is found here. The file needs nothing else, and a policy in it forbids everything else: its
# script and its style are known to the browser by their hashes.
#
# It does not know what a document says.

ORDER_FILE, SKELETON_FILE, STYLE_FILE = "order.txt", "index.html", "style.css"
IMPORT_STATEMENT = re.compile(r'^import \{([\w,\s]+)\} from "\./([\w-]+\.js)";[ \t]*\n', re.MULTILINE)
DECLARATION = re.compile(r"^(export )?(?:async )?(?:function\*?|class|const|let) (\w+)")
SLOTS = ("title", "policy", "style", "page", "script")
"""What the skeleton has places for: {{title}}, …"""


class PageBundle(NamedTuple):
    """The parts of the page, ready to be put together."""

    skeleton: str
    style: str
    script: str

    def policy(self, *more: str) -> str:
        """What a browser may do: run this script, use this style, and what else is allowed here."""
        own = [f"{kind}-src '{_hash(text)}'" for kind, text in (("script", self.script), ("style", self.style))]
        return "; ".join(["default-src 'none'", *own, "base-uri 'none'", "form-action 'none'", *more])

    def page(self, title: str, document: str, policy: str) -> str:
        """The HTML. The document is text without "<"."""
        assert "<" not in document
        parts = {"title": html.escape(title or "regard"), "policy": html.escape(policy), "style": self.style,
                 "page": document, "script": self.script}
        return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], self.skeleton)


@functools.cache
def load_bundle() -> PageBundle:
    """The parts that the package has."""
    names = _read_asset(ORDER_FILE).split()
    return make_bundle(_read_asset(SKELETON_FILE), _read_asset(STYLE_FILE), {name: _read_asset(name) for name in names})


def make_bundle(skeleton: str, style: str, modules: dict[str, str]) -> PageBundle:
    """The parts from what stands in the files; modules by their names, in their order."""
    slots = re.findall(r"\{\{(\w+)\}\}", skeleton)
    assert sorted(slots) == sorted(SLOTS), f"{SKELETON_FILE} must have each of {SLOTS} once, but has {slots}"
    style = minify_style(style)
    assert "</style" not in style.lower(), f"{STYLE_FILE} must not end itself"
    script = minify_script('"use strict";\n' + "".join(_concatenate(modules)))
    assert "</script" not in script.lower(), "a module must not end the script"
    assert "<!--" not in script, "a module must not begin a comment of HTML"
    return PageBundle(skeleton, style, script)


def _concatenate(modules: dict[str, str]) -> list[str]:
    """The text of each module without what only a module may have."""
    owners: dict[str, str] = {}
    exported: dict[str, set[str]] = {}
    pieces = []
    for name, text in modules.items():
        for wanted, source in IMPORT_STATEMENT.findall(text):
            assert source in exported, f"{name} imports {source}, which must stand before it"
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


# ---- writing: A page as one file that needs nothing else: it works from a disk, without a network, in any browser.
#
# It puts the document of some traces into the page's parts. What is shown of them, and how, is not known here.


def page_html(traces: Sequence[Trace], *, title: str = "", room: int = SIZE_LIMIT,
         file: str | None = None) -> str:
    """The HTML of one trace, or of two to be compared.

    Args:
        title: above all; without it the titles of the traces.
        room: bytes of all numbers. What does not fit is there in means of blocks, and the page says so.
        file: the name of the trace, which the page then tells who wants to see more of it.
    """
    parts, table = load_bundle(), embedded_document(traces, title, room, file)
    return parts.page(table["title"], dump_document(table), parts.policy())
