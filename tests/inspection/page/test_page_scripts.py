"""The page's JavaScript, run by Node: numbers, tiles, words, trees; and rules for its source files."""

import base64
import gzip
import math
import random
import re
import shutil
import subprocess
import sys
import unicodedata
from itertools import pairwise

import node_scripts
import numpy as np
import pytest
import torch
import trace_examples
from node_scripts import ASSETS

from regard.attention.look import Look
from regard.attention.mask import Causal, Window
from regard.inspection import heads, labels
from regard.inspection.page.document import document_bundle, embedded_document
from regard.inspection.records import WeightMatrix

MODULES = sorted(path.name for path in ASSETS.glob("*.js"))
TYPES = ["--allowJs", "--checkJs", "--noEmit", "--strict", "--noUnusedLocals", "--noUnusedParameters", "--skipLibCheck",
         "--target", "es2023", "--module", "esnext", "--moduleResolution", "bundler",
         "--lib", "es2023,dom,dom.iterable"]
typed = pytest.mark.skipif(shutil.which("tsc") is None, reason="no tsc here; npm install -g typescript@5.9 brings it")


def test_script_and_style_of_a_translation_are_under_265_kilobytes():
    """Those of all pages together have no limit: no page has all of them."""
    text = "".join(document_bundle(embedded_document([trace_examples.translation()]))).encode()
    assert len(text) < 265_000
    assert len(gzip.compress(text)) < 80_000


def test_every_module_is_in_the_order():
    assert sorted((ASSETS / "order.txt").read_text().split()) == MODULES


@pytest.mark.parametrize("name", [*MODULES, "style.css", "types.d.ts"])
def test_a_file_says_what_it_is_for(name):
    lines = (ASSETS / name).read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 800
    assert lines[0].startswith(("// ", "/* "))
    assert max(len(line) for line in lines if not line.startswith("import ")) <= 120


FORBIDDEN = {
    "a text becomes markup":
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|srcdoc",
    "a text becomes code": r"\beval\b|new Function|setTimeout\(\s*[\"'`]|javascript:|import\(\s*[^\"]",
    "a style in markup, which the policy forbids": r"setAttribute\(\s*[\"']style|[{,] ?style: ",
    "an address": r"https?://(?!www\.w3\.org/2000/svg\")|wss?://|XMLHttpRequest|WebSocket|EventSource|sendBeacon",
    "something kept in the browser": r"localStorage|sessionStorage|indexedDB|document\.cookie",
}


@pytest.mark.parametrize("what", sorted(FORBIDDEN))
def test_nothing_dangerous_is_written(what):
    found = [f"{name}: {line}" for name in MODULES for line in (ASSETS / name).read_text(encoding="utf-8").splitlines()
             if re.search(FORBIDDEN[what], line)]
    assert found == []


@pytest.mark.parametrize(("what", "line"), [
    ("a text becomes markup", "room.innerHTML = token;"),
    ("a text becomes code", "setTimeout('go()', 3)"),
    ("a style in markup, which the policy forbids", 'make("p", { style: "x" })'),
    ("an address", 'fetch("https://example.org")'),
    ("something kept in the browser", "localStorage.theme = 1"),
])
def test_what_is_dangerous_would_be_found(what, line):
    assert re.search(FORBIDDEN[what], line)


@typed
def test_types_are_right_and_a_wrong_one_is_found(tmp_path):
    folder = shutil.copytree(ASSETS, tmp_path / "assets")
    (folder / "wrong.js").write_text('import { visibleText } from "./text.js";\nvisibleText(7);\n')
    files = [*sorted(path.name for path in folder.glob("*.js")), "types.d.ts"]
    done = subprocess.run(["tsc", *TYPES, *files], capture_output=True, text=True, check=False, cwd=folder)
    complaints = [line for line in done.stdout.splitlines() if "error" in line]
    assert [line.partition(":")[0] for line in complaints] == ["wrong.js(2,13)"], done.stdout


def lightness(colour):
    """Relative luminance, as WCAG has it."""
    parts = [int(colour[at:at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize(("ink", "paper"), [
    ("ink", "paper"), ("ink", "raised"), ("ink", "tint"), ("soft", "paper"), ("soft", "raised"), ("accent", "paper"),
    ("accent", "raised"), ("accent", "tint"), ("on-accent", "accent"), ("wrong", "paper"), ("gone", "paper"),
    ("new", "paper"),
])
def test_texts_have_enough_contrast(theme, ink, paper):
    rules = (ASSETS / "style.css").read_text(encoding="utf-8").split("}")
    rule = next(one for one in rules if f"color-scheme: {theme}" in one)
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", rule))
    high, low = sorted((lightness(colours[ink]), lightness(colours[paper])), reverse=True)
    assert (high + 0.05) / (low + 0.05) >= 4.5


pytestmark = node_scripts.needed


def packed(numbers, kind="<f4"):
    return base64.b64encode(np.asarray(numbers).astype(kind).tobytes()).decode()


def packed_weights(weights):
    """The upper three bytes of each."""
    return base64.b64encode(np.asarray(weights).astype("<f4").view("u1").reshape(-1, 4)[:, 1:].tobytes()).decode()


def traced(rows, columns, heads, data, **more):
    """A trace of one attention; the sides are one where rows and columns are."""
    sides = {"a": {"tokens": [f"t{i}" for i in range(rows)]}, "b": {"tokens": [f"u{i}" for i in range(columns)]}}
    return {"sides": sides, "attentions": [{"name": "one", "queries": "a", "keys": "b", "heads": heads, "data": data,
                                            **more}]}


def test_every_half_is_decoded(tmp_path):
    bits = np.arange(1 << 16, dtype="<u2")
    lines = "return [...weights.halvesToFloat32(weights.decodeFloat16(given.text))].map(String);"
    told = node_scripts.run(tmp_path, ["weights"], lines, text=packed(bits, "<u2"))
    found = np.array([float(one.replace("Infinity", "inf")) for one in told])
    np.testing.assert_array_equal(found, bits.view("<f2").astype(float))


@pytest.mark.parametrize("kind", ["decodeFloat32", "decodeFloat24", "decodeFloat16"])
def test_half_a_number_is_refused(tmp_path, kind):
    lines = "try { weights[given.kind]('AAAAAAA='); } catch (error) { return error.message; }"
    assert "truncated" in node_scripts.run(tmp_path, ["weights"], lines, kind=kind)


def packed_bits(heads, bits):
    """Whole numbers of these bits, the lowest first; each head begins with a new byte."""
    raw = b""
    for head in heads:
        text = "".join(f"{int(one) & ((1 << bits) - 1):0{bits}b}"[::-1] for one in head.flatten())
        raw += bytes(int(text[at:at + 8][::-1], 2) for at in range(0, len(text), 8))
    return base64.b64encode(raw).decode()


def projected(query, key, steps, bits, allowed, kind):
    """Queries and keys as a page has them, whole numbers; the normaliser in double precision."""
    heads, _, width = query.shape
    wide = [part.double() * torch.tensor(step, dtype=torch.float64)[:, None, None]
            for part, step in zip((query, key), steps, strict=True)]
    scores = wide[0] @ wide[1].repeat_interleave(heads // len(key), 0).mT * width ** -0.5
    normalizer = scores.masked_fill(~allowed, -torch.inf).logsumexp(-1)
    return {"kind": "projected", "query": packed_bits(query, bits), "key": packed_bits(key, bits), "bits": bits,
            "steps": steps, "scale": width ** -0.5, "normalizer": packed(normalizer), "width": width,
            "key_heads": len(key), "mask": kind}


@pytest.mark.parametrize("bits", [10, 13, 18, 24])
def test_numbers_of_any_bits_are_unpacked(tmp_path, bits):
    most = (1 << (bits - 1)) - 1
    whole = torch.tensor([[most, -most, 0, 1, -1, *torch.randint(-most, most, (6,)).tolist()]])
    lines = "return [...projected.unpackBits(weights.decodeBytes(given.text), given.bits, 11, 0.5)];"
    told = node_scripts.run(tmp_path, ["weights", "projected"], lines, text=packed_bits(whole, bits), bits=bits)
    assert told == (whole[0] * 0.5).tolist()


@pytest.mark.parametrize(("rows", "columns", "key_heads", "kind"), [
    (37, 37, 4, "causal"), (9, 31, 2, None), (31, 9, 1, "causal"), (40, 40, 4, {"left": 5, "right": 2}),
    (17, 30, 2, {"left": None, "right": 3}), (1, 1, 1, None),
])
@pytest.mark.parametrize("size", [1, 4])
def test_windows_of_queries_and_keys_are_the_weights(tmp_path, rows, columns, key_heads, kind, size):
    masks = {"causal": Causal()}
    mask = None if kind is None else masks[kind] if isinstance(kind, str) else Window(kind["left"], kind["right"])
    query, key = torch.randint(-2000, 2000, (4, rows, 6)), torch.randint(-2000, 2000, (key_heads, columns, 6))
    steps = [[0.001 * (head + 1) for head in range(4)], [0.0005 * (head + 1) for head in range(key_heads)]]
    look = Look(*(part * torch.tensor(step)[:, None, None] for part, step in zip((query, key), steps, strict=True)),
                mask=mask)
    data = projected(query, key, steps, 13, look.weights()[0] > 0, kind)
    top, left = (8, 4) if min(rows, columns) > 8 else (0, 0)
    pane = {"top": top, "left": left, "rows": min(13, rows - top), "columns": min(15, columns - left)}
    lines = "const block = await new weights.EmbeddedSource([given.trace]).map(0, 0, 3, given.pane, given.size);" \
            "return { ...block, values: [...block.values] };"
    told = node_scripts.run(tmp_path, ["weights", "projected"], lines, trace=traced(rows, columns, 4, data), pane=pane,
                            size=size)
    whole = look.weights()[3:, top:top + pane["rows"], left:left + pane["columns"]]
    expected = WeightMatrix(whole).block_map(size)[0]
    assert (told["rows"], told["columns"]) == tuple(expected.shape)
    found = torch.tensor(told["values"], dtype=torch.float32).reshape(expected.shape)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["overview", "overview inside", "weights"])
@pytest.mark.parametrize("size", [2, 4, 16])
def test_means_of_weights_and_of_an_overview_are_block_maps(tmp_path, kind, size):
    weights = WeightMatrix(torch.randn(3, 37, 21))
    coarse = weights.block_map(2)
    overview = {"size": 2, "rows": coarse.shape[1], "columns": coarse.shape[2], "unit": 3.0,
                "values": packed(coarse / 3, "<f2")}
    data = {"overview": {"kind": "overview", **overview}, "overview inside": {"kind": "overview", "overview": overview},
            "weights": {"kind": "weights", "values": packed_weights(weights.weights())}}[kind]
    lines = "const pane = { top: 0, left: 0, rows: 37, columns: 21 };" \
            "const block = await new weights.EmbeddedSource([given.trace]).map(0, 0, 2, pane, given.size);" \
            "return { values: [...block.values], levels: weights.blockSizes(given.trace.attentions[0].data, 37) };"
    told = node_scripts.run(tmp_path, ["weights"], lines, trace=traced(37, 21, 3, data), size=size)
    expected = weights.block_map(size)[2]
    found = torch.tensor(told["values"], dtype=torch.float32).reshape(expected.shape)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-3)
    assert told["levels"] == ([1, 2, 4, 8, 16, 32] if kind == "weights" else [2, 4, 8, 16, 32])


def test_a_page_with_too_few_numbers_says_so(tmp_path):
    lines = "const pane = { top: 0, left: 0, rows: 2, columns: 2 };" \
            "return new weights.EmbeddedSource([given.trace]).map(0, 0, 0, pane, 1).catch((error) => error.message);"
    data = {"kind": "weights", "values": packed_weights(torch.ones(3))}
    told = node_scripts.run(tmp_path, ["weights"], lines, trace=traced(2, 2, 1, data))
    assert told == "one: expected 4 numbers, but the page has 3: write it again"


def test_words_are_means_of_rows_and_sums_of_columns(tmp_path):
    values = torch.rand(5, 4)
    down = [{"first": 0, "last": 1}, {"first": 2, "last": 2}, {"first": 3, "last": 4}]
    across = [{"first": 0, "last": 0}, {"first": 1, "last": 3}]
    lines = "return [...planes.groupTokens(new Float32Array(given.values), 4, given.down, given.across)];"
    told = node_scripts.run(tmp_path, ["planes"], lines, values=values.flatten().tolist(), down=down, across=across)
    rows = torch.stack([values[one["first"]:one["last"] + 1].mean(0) for one in down])
    expected = torch.stack([rows[:, one["first"]:one["last"] + 1].sum(1) for one in across], 1)
    torch.testing.assert_close(torch.tensor(told).reshape(3, 2), expected)


def test_rows_that_lie_later_are_those_of_the_tokens(tmp_path):
    lines = "const units = [0, 1, 2].map((i) => ({ first: i, last: i }));" \
            "return [1, 0, -1].map((offset) => planes.shiftRows(units, 3, offset).moved.map((one) => one.first));"
    assert node_scripts.run(tmp_path, ["planes"], lines) == [[1, 2], [0, 1, 2], [0, 1]]


MEASURE = """
const desk = { traces: [given.trace], source: new weights.EmbeddedSource([given.trace]) };
return heads.measureHead(desk, 0, 0, 0);
"""
PATTERNS = {
    "itself": torch.eye(8), "previous token": torch.diag(torch.ones(7), -1), "next token": torch.diag(torch.ones(7), 1),
    "first token": torch.eye(8)[:1].expand(8, 8), "even": torch.full((8, 8), 0.125),
    "": torch.eye(8).flip(0),
}


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_patterns_of_heads_are_measured(tmp_path, name):
    weights = 0.8 * PATTERNS[name] + 0.2 / 8
    trace = traced(8, 8, 1, {"kind": "weights", "values": packed_weights(weights)}, keys="a")
    told = node_scripts.run(tmp_path, ["weights", "heads"], MEASURE, trace=trace)
    assert told["name"] == name
    assert told["entropy"] == pytest.approx(float(WeightMatrix(weights.unsqueeze(0)).entropy().mean()), rel=1e-4)
    shares = {share["name"]: share["share"] for share in told["shares"]}
    assert shares["itself"] == pytest.approx(float(weights.diagonal().sum() / weights.sum()), rel=1e-4)
    before = float(weights.diagonal(-1).sum() / weights[1:].sum())
    assert shares["previous token"] == pytest.approx(before, rel=1e-4)


def test_from_one_side_to_another_there_is_a_diagonal(tmp_path):
    weights = 0.8 * torch.nn.functional.interpolate(torch.eye(5)[None, None], (5, 9))[0, 0] / 2 + 0.02
    trace = traced(5, 9, 1, {"kind": "weights", "values": packed_weights(weights)})
    assert node_scripts.run(tmp_path, ["weights", "heads"], MEASURE, trace=trace)["name"] == "diagonal ±1"


def test_position_visible_to_few_rows_names_no_head(tmp_path):
    weights = torch.softmax(torch.randn(8, 8), -1).tril()
    weights[-1] = torch.eye(8)[-1]
    trace = traced(8, 8, 1, {"kind": "weights", "values": packed_weights(weights)}, keys="a", mask="causal")
    trace["sides"]["a"]["tokens"][-1] = "</s>"
    told = node_scripts.run(tmp_path, ["weights", "heads"], MEASURE, trace=trace)
    assert not {"separators", "last token"} & {one["name"] for one in told["shares"]}


@pytest.mark.parametrize(("shape", "value", "part"), [
    ("linear", 0.25, 0.25), ("root", 0.25, 0.5), ("log", 1e-3, 0.5), ("log", 1e-9, 0), ("linear", 3, 1),
])
def test_a_scale_runs_from_zero_to_its_largest(tmp_path, shape, value, part):
    lines = "globalThis.document = { documentElement: { dataset: {} } };" \
            "const one = new scale.Scale(given.shape, 0, 1); return [one.along(given.value), one.ticks()];"
    along, ticks = node_scripts.run(tmp_path, ["scale"], lines, shape=shape, value=value)
    assert along == pytest.approx(part, abs=1e-6)
    assert ticks[-1] == {"value": 1, "at": 1}
    assert [tick["at"] for tick in ticks] == sorted(tick["at"] for tick in ticks)


def test_numbers_on_both_sides_of_zero_have_a_scale_that_is_the_same_to_both(tmp_path):
    lines = "globalThis.document = { documentElement: { dataset: {} } };" \
            "const one = new scale.Scale('linear', -2, 1);" \
            "return [one.low, one.high, one.colour(-2) === one.ramp[0], one.colour(2) === one.ramp[255]];"
    assert node_scripts.run(tmp_path, ["scale"], lines) == [-2, 2, True, True]


def test_single_position_names_a_head_before_the_diagonal(tmp_path):
    near = sum(torch.diag(torch.ones(20 - abs(step)), step) for step in (-2, -1, 0, 1, 2))
    for weights, name in ((near / near.sum(1, keepdim=True), "diagonal ±2"), (0.1 * near + torch.eye(20), "itself")):
        trace = traced(20, 20, 1, {"kind": "weights", "values": packed_weights(weights)}, keys="a")
        assert node_scripts.run(tmp_path, ["weights", "heads"], MEASURE, trace=trace)["name"] == name


def test_probability_of_a_word_is_the_product_over_its_tokens(tmp_path):
    logs = [-0.1, -2.0, -0.5]
    units = [{"first": 0, "last": 1}, {"first": 2, "last": 2}]
    lines = "return verdict.wordProbabilities({ log_probabilities: given.logs }, given.units);"
    told = node_scripts.run(tmp_path, ["verdict"], lines, logs=logs, units=units)
    assert told == pytest.approx([float(np.exp(-0.1) * np.exp(-2.0)), float(np.exp(-0.5))])


SHOWN = {
    "▁dog": "▁dog", "": "∅", "\u200b": "‹U+200B›", "a\u200db": "a\u200db", "a\u200d": "a‹U+200D›",
    "👩\u200d👧": "👩\u200d👧", "\u200d": "‹U+200D›", "a\nb": "a‹U+000A›b", "\u0000": "‹U+0000›",
    "\u001b[2J": "‹U+001B›[2J", " ": "␣", "\u00a0": "␣", "\u2003": "␣", "\u3164": "‹U+3164›",
    "\u202eabc": "‹U+202E›abc", "\u0301": "◌\u0301", "e\u0301": "e\u0301", "<script>": "<script>", "שלום": "שלום",
    "\u200f": "‹U+200F›", "\U000e0041": "‹U+E0041›", "\ufeff": "‹U+FEFF›", "👍🏽": "👍🏽", "\u2028": "‹U+2028›",
    "\ue000": "‹U+E000›", "می\u200cخواهم": "می\u200cخواهم", "❤\ufe0f\ufe0f": "❤\ufe0f‹U+FE0F›",
}
PARTS = ("a", " ", "é", "e", "\u0301", "\u200b", "\u200c", "\u200d", "\u200f", "\ufe0f", "👩", "👧", "🏽", "🏴",
         "\U000e0067", "\u2003", "\u3164", "\n", "ש", "\U000e0100", "\u20e3", "ी")
WEIGHTS = {"0.5": "0.5000", "0": "0", "1e-9": "1.00e−9", "-0.25": "−0.2500", "NaN": "NaN", "1/0": "∞",
           "0.0123": "0.0123", "0.000999": "9.99e−4"}


def test_invisible_characters_are_shown(tmp_path):
    told = node_scripts.run(tmp_path, ["text"], "return given.tokens.map(text.visibleText);", tokens=list(SHOWN))
    assert dict(zip(SHOWN, told, strict=True)) == SHOWN


def assert_as_in_pictures(tmp_path, tokens):
    """Compared in NFC, which pictures bring texts to."""
    told = node_scripts.run(tmp_path, ["text"], "return given.tokens.map(text.visibleText);", tokens=tokens)
    other = [(token, got, labels.word_label(token, 10_000)) for token, got in zip(tokens, told, strict=True)
             if unicodedata.normalize("NFC", got) != unicodedata.normalize("NFC", labels.word_label(token, 10_000))]
    assert other == []


@pytest.mark.thorough
def test_every_character_has_the_same_name_as_in_pictures(tmp_path):
    """As far as this Python knows it: another version of Unicode may have given it a shape."""
    known = [chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) not in ("Cs", "Cn")]
    assert_as_in_pictures(tmp_path, known)


def test_clusters_are_the_same_as_in_pictures(tmp_path):
    chance = random.Random(0)
    assert_as_in_pictures(tmp_path, ["".join(chance.choices(PARTS, k=chance.randint(1, 6))) for _ in range(20_000)])


def test_words_are_cut_by_code_points(tmp_path):
    side = {"tokens": ["▁👩", "‍💻", "▁ok", "</s>"], "text": "👩‍💻 ok",
            "words": [{"start": 0, "end": 3, "first": 0, "last": 1}, {"start": 4, "end": 6, "first": 2, "last": 2}]}
    told = node_scripts.run(tmp_path, ["text"], "return text.wordUnits(given.side);", side=side)
    found = [(one["name"], one["first"], one["last"]) for one in told]
    assert found == [("👩‍💻", 0, 1), ("ok", 2, 2), ("</s>", 3, 3)]


@pytest.mark.parametrize(("before", "after", "expected"), [
    ("a b c", "a x c", "a -b +x c"), ("a", "a b", "a +b"), ("a b", "", "-a -b"), ("", "a", "+a"), ("a b", "a b", "a b"),
])
def test_differences_keep_what_is_common(tmp_path, before, after, expected):
    lines = "return text.diffWords(given.before, given.after);"
    told = node_scripts.run(tmp_path, ["text"], lines, before=before.split(), after=after.split())
    signs = {"same": "", "gone": "-", "new": "+"}
    assert " ".join(signs[one["kind"]] + one["text"] for one in told) == expected


def test_nothing_but_zero_reads_as_zero(tmp_path):
    told = node_scripts.run(tmp_path, ["numbers"], f"return [{', '.join(WEIGHTS)}].map(numbers.formatWeight);")
    assert dict(zip(WEIGHTS, told, strict=True)) == WEIGHTS


def tree(seed):
    chance, nodes = random.Random(seed), []
    for number in range(60):
        parent = chance.randrange(-1, number) if number > 3 else number - 1
        total = (nodes[parent]["total"] if parent >= 0 else 0) - chance.random()
        nodes.append({"parent": parent, "token": str(number), "log_probability": -1, "total": total,
                      "ended": chance.random() < 0.2, "kept": chance.random() < 0.6})
    return {"beams": 3, "nodes": nodes, "best": [59, 3]}


LAYOUT = """
const shown = search.shownNodes(given.search, true, 1000);
const { chains, roots } = search.chainsOf(given.search, shown);
const widthOf = (i) => 10 * chains[i].nodes.length;
const { placed, lines, width } = search.placeChains(chains, roots, widthOf, 5);
const few = [...search.shownNodes(given.search, false, 1000)];
return { chains, placed, lines, width, few, path: search.pathTo(given.search, 59) };
"""


@pytest.mark.parametrize("seed", range(4))
def test_a_tree_has_a_place_for_every_node(tmp_path, seed):
    given = tree(seed)
    told = node_scripts.run(tmp_path, ["search"], LAYOUT, search=given)
    chains, nodes = told["chains"], given["nodes"]
    assert sorted(node for chain in chains for node in chain["nodes"]) == list(range(60))
    children = {number: [one for one in range(60) if nodes[one]["parent"] == number] for number in range(60)}
    for chain in chains:
        for before, after in pairwise(chain["nodes"]):
            assert children[before] == [after]  # no branch inside a chain ...
        assert len(children[chain["nodes"][-1]]) != 1  # ... and none without a reason
        parent = nodes[chain["nodes"][0]]["parent"]
        assert chain["parent"] == -1 if parent < 0 else chains[chain["parent"]]["nodes"][-1] == parent
    places = {one["chain"]: (one["x"], one["line"]) for one in told["placed"]}
    boxes = [(line, x, x + 10 * len(chains[number]["nodes"])) for number, (x, line) in places.items()]
    for at, (line, left, right) in enumerate(boxes):
        assert all(line != other or right <= start or end <= left for other, start, end in boxes[at + 1:])
        assert 0 <= line < told["lines"]
        assert right <= told["width"]
    for number, chain in enumerate(chains):
        if chain["parent"] >= 0:
            x, line = places[chain["parent"]]
            assert places[number][0] == x + 10 * len(chains[chain["parent"]]["nodes"]) + 5
            assert places[number][1] >= line
    best = [number for number, chain in enumerate(chains) if set(chain["nodes"]) & set(told["path"])]
    assert {places[number][1] for number in best} == {0}
    few = set(told["few"])
    assert set(told["path"]) <= few
    assert all(nodes[number]["parent"] in few | {-1} for number in few)


def test_a_search_of_ten_thousand_steps_is_laid_out(tmp_path):
    nodes = [{"parent": number - 1, "token": "x", "log_probability": 0, "total": 0, "ended": False, "kept": True}
             for number in range(10_000)]
    lines = "const shown = search.shownNodes(given.search, true, 3000);" \
            "return search.chainsOf(given.search, shown).chains.map((one) => one.nodes.length);"
    assert node_scripts.run(tmp_path, ["search"], lines, search={"beams": 1, "nodes": nodes, "best": []}) == [3000]


def ended(parent, token, log, total, **more):
    return {"parent": parent, "token": token, "log_probability": log, "total": total, "ended": False, "kept": True,
            **more}


SENTENCE = ["▁Les", "▁chat", "s", "▁ont", "</s>"]


def small_search():
    """Les chats ont | Les chiens | Les chats sont, with pieces of words."""
    nodes = [ended(-1, "▁Les", -0.1, -0.1), ended(0, "▁chat", -0.2, -0.3), ended(1, "s", -0.1, -0.4),
             ended(2, "▁ont", -0.3, -0.7), ended(3, "</s>", -0.1, -0.8, ended=True), ended(0, "▁ch", -1.9, -2.0),
             ended(5, "iens", -0.2, -2.2), ended(6, "</s>", -0.1, -2.3, ended=True), ended(2, "▁sont", -1.5, -1.9),
             ended(8, "</s>", -2.9, -4.8, ended=True), ended(1, "</s>", -3.0, -3.3, ended=True)]
    return {"beams": 3, "nodes": nodes, "best": [4, 7, 9]}


def test_rivals_are_the_siblings_of_the_tokens_of_a_word(tmp_path):
    units = [{"first": 0, "last": 0}, {"first": 1, "last": 2}, {"first": 3, "last": 3}]
    lines = "return search.rivalsOf(given.search, given.tokens, given.units);"
    told = node_scripts.run(tmp_path, ["search"], lines, search=small_search(), tokens=SENTENCE, units=units)
    assert [[rival["text"] for rival in word] for word in told] == [[], ["chiens", "(end)"], ["sont"]]
    assert [rival["probability"] for rival in told[1]] == pytest.approx([np.exp(-1.9), np.exp(-0.2 - 3.0)])
    assert told[1][0]["prefix"] == ["▁Les", "▁ch", "iens"]


def test_results_part_at_words(tmp_path):
    lines = "return given.search.best.map((end) => search.partingOf(given.search, end));"
    told = node_scripts.run(tmp_path, ["search"], lines, search=small_search())
    assert told[0] is None
    assert [(one["own"], one["best"]) for one in told[1:]] == [("chiens", "chats"), ("sont", "ont")]
    assert told[2]["probability"] == pytest.approx(np.exp(-1.5))
    assert told[2]["against"] == pytest.approx(np.exp(-0.3))


@pytest.mark.parametrize(("best", "by", "numbers"), [
    ([4, 7, 9], "mean log-probability", [-0.8 / 5, -2.3 / 4, -4.8 / 5]),
    ([4, 9, 7], "log-probability", [-0.8, -4.8, -2.3])])
def test_a_ranking_is_what_falls(tmp_path, best, by, numbers):
    given = {**small_search(), "best": best}
    told = node_scripts.run(tmp_path, ["search"], "return search.rankingOf(given.search);", search=given)
    assert told["name"] == by
    assert told["numbers"] == pytest.approx(numbers)
    assert told["ranks"] is (best == [4, 7, 9])  # no number falls along the other order, and the page says "with"


def test_scores_rank_results_if_the_trace_has_them(tmp_path):
    given = {**small_search(), "ranked_by": "total"}
    for end, score in zip(given["best"], (-0.8, -2.3, -4.8), strict=True):
        given["nodes"][end]["score"] = score
    told = node_scripts.run(tmp_path, ["search"], "return search.rankingOf(given.search);", search=given)
    assert told == {"name": "log-probability", "numbers": [-0.8, -2.3, -4.8], "ranks": True}


INFLUENCE = [[2.0, 0.1, None], [1.0, -0.1, 0.05], [0.1, 0.1, 0.0], [0.0, 0.14, 0.2]]


def test_influence_of_words_is_the_sum_over_tokens(tmp_path):
    trace = {"influence": {"rows": "t", "columns": "s", "tokens": [[0], [1, 2], [3]], "values": INFLUENCE}}
    target = [{"first": 0, "last": 1}, {"first": 2, "last": 2}]  # and an end token, which is no word
    source = [{"name": "a", "first": 0, "last": 0}, {"name": "b", "first": 1, "last": 2},
              {"name": ".", "first": 3, "last": 3}]
    lines = "const found = verdict.readInfluence(given.trace, given.target, given.source);" \
            "const shares = verdict.influenceShares(found.matrix);" \
            "return [[...found.matrix.values], found.idle, [...shares.values]];"
    values, idle, shares = node_scripts.run(tmp_path, ["verdict"], lines, trace=trace, target=target, source=source)
    words = [[3.0, 0.0, 0.05], [0.1, 0.1, 0.0]]
    assert values == pytest.approx([value for row in words for value in row], abs=1e-6)
    assert idle == [1]  # never 0.15 in a word or in the end; the point is punctuation
    assert shares[:3] == pytest.approx([3 / 3.05, 0, 0.05 / 3.05], abs=1e-6)
    assert shares[3:] == [0, 0, 0]  # 0.2 nats in all say nothing


def test_finer_columns_take_the_place_of_their_group(tmp_path):
    whole = {"rows": "t", "columns": "s", "tokens": [[0, 1], [2, 3], [4]],
             "values": [[1.0, 2.0, 3.0], [4.0, None, 6.0]]}
    finer = {"rows": "t", "columns": "s", "tokens": [[3], [2]], "values": [[0.5, 1.5], [0.1, 0.2]]}
    merged = node_scripts.run(tmp_path, ["refining"], "return refining.mergeInfluence(given.whole, given.finer);",
                              whole=whole, finer=finer)
    assert merged["tokens"] == [[0, 1], [2], [3], [4]]
    assert merged["values"] == [[1.0, 1.5, 0.5, 3.0], [4.0, 0.2, 0.1, 6.0]]
    alone = node_scripts.run(tmp_path, ["refining"], "return refining.mergeInfluence(null, given.finer);", finer=finer)
    assert alone == finer


def test_rivals_of_a_word_of_two_tokens_are_those_of_either(tmp_path):
    """The probability of one at the second token is that of the first token times its own."""
    tokens = ["▁a", "▁gar", "den"]
    predictions = {"side": "text", "log_probabilities": [None, math.log(0.5), math.log(0.25)],
                   "candidates": [[], ["▁gar", "▁house"], ["age", "den", "▁"], ["</s>", "▁in", "<0x0A>"]],
                   "candidate_log_probabilities": [[], [math.log(0.5), math.log(0.2)],
                                                   [math.log(0.7), math.log(0.25), math.log(0.01)],
                                                   [math.log(0.9), math.log(0.06), math.log(0.04)]]}
    units = [{"name": "a", "first": 0, "last": 0}, {"name": "garden", "first": 1, "last": 2}]
    trace = {"sides": {"text": {"tokens": tokens}}, "predictions": predictions}
    found = node_scripts.run(tmp_path, ["predictions"],
                             'return predictions.predictedWords(given.trace, "text", given.units);', trace=trace,
                             units=units)
    assert found["sure"][0] is None
    assert found["sure"][1] == pytest.approx(0.125)
    assert [one["text"] for one in found["rivals"][1]] == ["garage", "house", "gar"]
    assert [one["probability"] for one in found["rivals"][1]] == pytest.approx([0.35, 0.2, 0.005])
    assert [one["text"] for one in found["next"]] == ["(end)", "in", "↵"]


def test_a_word_that_only_ends_the_output_has_an_effect(tmp_path):
    values = [[0.0, 0.0], [0.0, 0.5]]
    trace = {"influence": {"rows": "t", "columns": "s", "tokens": [[0], [1]], "values": values}}
    source = [{"name": name, "first": at, "last": at} for at, name in enumerate("ab")]
    lines = "return verdict.readInfluence(given.trace, [{ first: 0, last: 0 }], given.source).idle;"
    assert node_scripts.run(tmp_path, ["verdict"], lines, trace=trace, source=source) == [0]


def test_a_word_that_only_makes_others_less_likely_is_not_needed(tmp_path):
    values = [[-0.4, 0.1, 0.9, -0.3], [0.1, -0.1, -0.9, 0.0]]
    trace = {"influence": {"rows": "t", "columns": "s", "tokens": [[0], [1], [2], [3]], "values": values}}
    source = [{"name": name, "first": at, "last": at} for at, name in enumerate("abc.")]
    lines = "const target = [{ first: 0, last: 0 }, { first: 1, last: 1 }];" \
            "const { idle, unneeded } = verdict.readInfluence(given.trace, target, given.source);" \
            "const reading = { source: given.source, target, attention: null, idle, unneeded, sure: null };" \
            "return [idle, unneeded, verdict.findFacts(reading).map((fact) => [fact.kind, fact.words])];"
    assert node_scripts.run(tmp_path, ["verdict"], lines, trace=trace, source=source) == [
        [1], [0], [["no effect", [1]], ["not needed", [0]]]]


def test_facts_name_what_was_not_looked_at_and_what_was_doubted(tmp_path):
    attention = [[0.9, 0.05, 0.05], [0.85, 0.1, 0.05]]
    source, target = [{"name": name} for name in ("a", "b", ",")], [{"name": name} for name in "xy"]
    lines = "const attention = { rows: 2, columns: 3, values: new Float32Array(given.attention.flat()) };" \
            "return verdict.findFacts({ ...given, attention });"
    told = node_scripts.run(tmp_path, ["verdict"], lines, attention=attention, source=source, target=target, idle=[],
                            sure=[0.9, 0.59])
    assert [(fact["kind"], fact["words"]) for fact in told] == [("not read", [1]), ("doubted", [1])]


def cut_score(pairs, links, ends, room):
    """What lines are worth: links inside, ends of sentences, and less for every pair, and for lines that are short."""
    total = 0.0
    for (a, s), (b, t) in pairs:
        total += links[b:t, a:s].sum().item() - (2 if a == s or b == t else 1)
        total -= 0.5 * (1 - max(s - a, t - b) / room) ** 2
        total += 1.5 * (s > 0 and ends["source"][s - 1]) + 1.5 * (t > 0 and ends["target"][t - 1])
    return total


def all_cuts(n, m, room):
    """Every way to cut two lines into pairs of at most so many words."""
    if (n, m) == (0, 0):
        yield []
    for a in range(max(0, n - room), n + 1):
        for b in range(max(0, m - room), m + 1):
            if (a, b) != (n, m):
                yield from ([*rest, ((a, n), (b, m))] for rest in all_cuts(a, b, room))


@pytest.mark.parametrize("seed", range(3))
def test_lines_are_cut_where_that_is_worth_most(tmp_path, seed):
    n, m, room = 4, 4, 2
    links = torch.rand(m, n, generator=torch.Generator().manual_seed(seed)).softmax(-1)
    ends = {"source": [False, seed == 1, False, True], "target": [False, True, False, True]}
    lines = "const links = { rows: 4, columns: 4, values: new Float32Array(given.links.flat()) };" \
            "const even = { source: [1, 1, 1, 1], target: [1, 1, 1, 1] };" \
            "return verdict.cutLines(even, given.ends, links, 2).map((one) => [one.source, one.target]);"
    told = node_scripts.run(tmp_path, ["verdict"], lines, links=links.tolist(), ends=ends)
    best = max(cut_score(pairs, links, ends, room) for pairs in all_cuts(n, m, room))
    assert cut_score([tuple(map(tuple, pair)) for pair in told], links, ends, room) == pytest.approx(best, abs=1e-5)
    assert [word for source, _ in told for word in range(*source)] == list(range(n))
    assert [word for _, target in told for word in range(*target)] == list(range(m))


def test_differences_are_of_the_words_that_both_have(tmp_path):
    first, second = torch.rand(3, 4), torch.rand(4, 4)
    rows, columns = [["a", "b", "c"], ["a", "x", "b", "c"]], [["p", "q", "r", "s"], ["p", "r", "t", "s"]]
    lines = "const made = [0, 1].map((k) => planes.matrixPlane('', new Float32Array(given.values[k].flat())," \
            " given.rows[k].map((name) => ({ name })), given.columns[k].map((name) => ({ name })), () => false));" \
            "const { pairs } = comparison.pairPlanes(made[0], made[1]);" \
            "const plane = planes.differencePlane(made[0], made[1], pairs);" \
            "const all = { top: 0, left: 0, rows: plane.rows, columns: plane.columns };" \
            "return [planes.namesOf(plane.rows, plane.rowName), planes.namesOf(plane.columns, plane.columnName)," \
            " [...(await plane.map(all, 1)).values]];"
    down, across, values = node_scripts.run(tmp_path, ["planes", "comparison"], lines, rows=rows, columns=columns,
                                            values=[first.tolist(), second.tolist()])
    assert (down, across) == (["a", "b", "c"], ["p", "r", "s"])
    want = [[second[rows[1].index(row), columns[1].index(column)] - first[rows[0].index(row), columns[0].index(column)]
             for column in across] for row in down]
    torch.testing.assert_close(torch.tensor(values).view(3, 3), torch.tensor(want))


def test_the_decoder_attends_to_itself_too(tmp_path):
    """Its rows are named after what it writes, its columns after what it reads: that is one sequence."""
    weights = 0.8 * torch.diag(torch.ones(7), -1) + 0.2 / 8
    trace = traced(8, 8, 1, {"kind": "weights", "values": packed_weights(weights)}, kind="self", mask="causal")
    told = node_scripts.run(tmp_path, ["weights", "heads"], MEASURE, trace=trace)
    assert told["name"] == "previous token"


@pytest.mark.parametrize(("name", "crossing", "said"), [
    ("decoder.1.cross", True, "source, layer 2"), ("encoder.0.self", True, "reads, layer 1"),
    ("decoder.cross", True, "source"),
    ("decoder.0.self", True, "own words, layer 1"), ("decoder.3.self", False, "text, layer 4"),
    ("decoder.0.self, bonus", False, "text, layer 1, bonus of a token for itself"),
    ("h.0.attn", False, "h.0.attn")])
def test_attentions_have_names_in_words(tmp_path, name, crossing, said):
    trace = {"attentions": [{"name": "decoder.0.cross" if crossing else "x"}], "sides": {"a": {"tokens": []}}}
    lines = "return planes.attentionTitle(given.trace, { name: given.name, keys: 'a' });"
    assert node_scripts.run(tmp_path, ["planes"], lines, trace=trace, name=name) == said


@pytest.mark.parametrize(("text", "direction"), [
    ("Hello", "ltr"), ("نام القط", "rtl"), ("«שלום»", "rtl"), ("123 نام", "rtl"), ("…", "ltr"), ("漢字", "ltr")])
def test_direction_is_that_of_the_first_letter(tmp_path, text, direction):
    assert node_scripts.run(tmp_path, ["text"], "return text.directionOf(given.text);", text=text) == direction


def test_zero_is_the_paper_in_both_themes(tmp_path):
    style = (ASSETS / "style.css").read_text(encoding="utf-8")
    for theme in ("light", "dark"):
        lines = "globalThis.document = { documentElement: { dataset: { theme: given.theme } } };" \
                "const scales = [new scale.Scale('linear', 0, 1), new scale.Scale('log', -1, 1)];" \
                "const pixels = new Uint32Array(1);" \
                "return scales.map((one) => (one.paint(new Float32Array(1), pixels), scale.css(pixels[0])));"
        rule = next(one for one in style.split("}") if f"color-scheme: {theme}" in one)
        paper = re.search(r"--paper: #(\w{6})", rule)[1]
        colour = "rgb({}, {}, {})".format(*(int(paper[at:at + 2], 16) for at in (0, 2, 4)))
        first, middle = node_scripts.run(tmp_path, ["scale"], lines, theme=theme)
        assert first == colour
        parts = [[int(part) for part in re.findall(r"\d+", one)] for one in (middle, colour)]
        assert max(abs(a - b) for a, b in zip(*parts, strict=True)) <= 3  # an even number of colours has no middle


def test_csv_is_quoted(tmp_path):
    told = node_scripts.run(tmp_path, ["saving"], "return saving.csvText([['a', 'b,\"c\"'], ['1', '2']]);")
    assert told == 'a,"b,""c"""\r\n1,2\r\n'


def test_roles_have_the_names_of_python(tmp_path):
    assert node_scripts.run(tmp_path, ["roles"], "return roles.ROLE_NAMES;") == heads.ROLE_NAMES


def test_the_strongest_role_is_that_of_python(tmp_path):
    rng = random.Random(3)
    cases = []
    for _ in range(20):
        names = rng.sample(sorted(heads.ROLE_NAMES), 4)
        cases.append({"head": {"roles": {name: rng.random() for name in names}},
                      "even": {name: rng.random() for name in names}})
    told = node_scripts.run(tmp_path, ["roles"], "return given.cases.map((one) => roles.rankedRoles(one)[0]);",
                            cases=cases)
    assert told == [heads.strongest_role(one["head"]["roles"], one["even"]) for one in cases]
