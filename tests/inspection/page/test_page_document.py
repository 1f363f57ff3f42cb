"""The page as a document: data forms, size limits, the bundle of script and style, and one self-contained file."""

import base64
import gzip
import hashlib
import json
import random
import re

import numpy as np
import pytest
import reading_examples
import torch
import trace_examples
from refusals import assert_named

from regard.attention.look import Look
from regard.attention.mask import Causal, Window
from regard.attention.score import Bilinear
from regard.inspection.page import document, tiles
from regard.inspection.page import document as bundles
from regard.inspection.page.document import page_html
from regard.inspection.records import WeightMatrix
from regard.inspection.trace import Trace
from regard.inspection.trace_format import AlignmentPointer, SearchNode, TracedAttention, TracedSearch, TraceSide


def unpacked(text, kind, *shape):
    return np.frombuffer(base64.b64decode(text), dtype=kind).reshape(shape).astype(np.float64)


def unpacked_weights(text):
    """Numbers of which the upper three bytes are there."""
    bytes_ = np.frombuffer(base64.b64decode(text), dtype="u1").reshape(-1, 3)
    return np.concatenate([np.zeros((len(bytes_), 1), "u1"), bytes_], 1).copy().view("<f4").astype(np.float64)[:, 0]


def alone(look, name="one"):
    """A trace of one attention."""
    rows, columns = look.weights().shape[-2:]
    sides = {"a": TraceSide(("x",) * rows), "b": TraceSide(("y",) * columns)}
    return Trace(sides, (TracedAttention(name, "a", "b", look),))


def only(table):
    return table["traces"][0]["attentions"][0]["data"]


def projections(data, part, count):
    """Queries or keys (heads, count, width): whole numbers of some bits, the lowest first, times the step of a head."""
    steps, bits, raw = data["steps"][part == "key"], data["bits"], base64.b64decode(data[part])
    length = -(-count * data["width"] * bits // 8)
    heads = []
    for head, step in enumerate(steps):
        text = "".join(f"{byte:08b}"[::-1] for byte in raw[head * length:(head + 1) * length])
        numbers = [int(text[at:at + bits][::-1], 2) for at in range(0, count * data["width"] * bits, bits)]
        heads.append([step * (one - (1 << bits) if one >> (bits - 1) else one) for one in numbers])
    assert len(raw) == length * len(steps)
    return np.array(heads).reshape(len(steps), count, data["width"])


def windowed(data, rows, columns, mask):
    """What a page computes from what is projected."""
    query, key = projections(data, "query", rows), projections(data, "key", columns)
    key = key.repeat(len(query) // data["key_heads"], axis=0)
    normalizer = unpacked(data["normalizer"], "<f4", -1, rows, 1)
    weights = np.exp(data["scale"] * query @ key.transpose(0, 2, 1) - normalizer)
    return weights if mask is None else np.where(mask.matrix(rows, columns).numpy(), weights, 0.0)


def test_a_small_attention_is_written_out():
    trace = trace_examples.translation()
    table = document.embedded_document([trace])
    assert (table["version"], table["served"], table["title"]) == (1, False, "The black cat sleeps.")
    for one, told in zip(trace.attentions, table["traces"][0]["attentions"], strict=True):
        data = told["data"]
        assert data["kind"] == "weights"
        got = unpacked_weights(data["values"]).reshape(one.look.weights().shape)
        np.testing.assert_allclose(got, one.look.weights().float().numpy(), rtol=2 ** -16, atol=0)
        assert (told["name"], told["heads"], told["queries"], told["keys"]) == (one.name, 4, one.queries, one.keys)
    assert table["traces"][0]["attentions"][2]["mask"] == "causal"
    assert table["traces"][0]["alignment"] == {"attention": 5, "head": 1, "offset": 0}
    assert table["traces"][0]["search"]["best"] == [12, 13]


@pytest.mark.parametrize("mask", [None, Causal(), Window(5, 2)])
def test_a_large_attention_can_be_computed_from_what_is_projected(mask, monkeypatch):
    monkeypatch.setattr(document, "MAX_WEIGHTS", 0)
    look = trace_examples.looks(4, 40, 50, mask=mask)
    look = Look(look.query, look.key[:2], mask=mask)
    data = only(document.embedded_document([alone(look)]))
    assert data["kind"] == "projected"
    assert data["mask"] == {None: None, "Causal()": "causal"}.get(repr(mask) if mask else None, {"left": 5, "right": 2})
    got, want = windowed(data, 40, 50, mask), look.weights().double().numpy()
    assert np.abs(got - want).max() <= 2 * data["error"] + 1e-6
    assert 0 < data["error"] < document.VISIBLE_ERROR
    assert data["width"] == 8
    assert 10 < data["bits"] < 24
    np.testing.assert_allclose(got.sum(-1)[want.sum(-1) > 0], 1.0, atol=1e-5)


def test_precision_follows_the_size_limit(monkeypatch):
    monkeypatch.setattr(document, "MAX_WEIGHTS", 0)
    plain = trace_examples.looks(2, 40, 40)
    trace = alone(Look(plain.query * 9, plain.key))
    rooms = (1 << 20, 12_000, 5_000)
    found = {room: only(document.embedded_document([trace], size_limit=room)) for room in rooms}
    assert [found[room]["kind"] for room in found] == ["projected", "projected", "overview"]
    assert found[1 << 20]["bits"] > found[12_000]["bits"]
    assert found[1 << 20]["error"] < document.VISIBLE_ERROR < found[12_000]["error"]
    one = trace.attentions[0]
    coarser = tiles.Projection.of(one).rounded(found[1 << 20]["bits"] - 1)
    assert coarser.error(one) >= document.VISIBLE_ERROR  # as few bits as show no error


def test_a_bilinear_score_is_a_product_too(monkeypatch):
    monkeypatch.setattr(document, "MAX_WEIGHTS", 0)
    plain = trace_examples.looks(2, 9, 12)
    look = Look(plain.query, plain.key, score=Bilinear(torch.randn(2, 8, 8) / 8))
    data = only(document.embedded_document([alone(look)]))
    np.testing.assert_allclose(windowed(data, 9, 12, None), look.weights().numpy(), atol=2e-3)


@pytest.mark.parametrize("name", ["matrix", "relu", "tensor mask", "bias", "huge"])
def test_other_scores_and_normalisers_have_an_overview(name, monkeypatch):
    monkeypatch.setattr(document, "MAX_WEIGHTS", 0)
    monkeypatch.setattr(document, "OVERVIEW_BLOCKS", (4,))
    plain = trace_examples.looks(2, 9, 13)
    look = {"matrix": WeightMatrix(torch.randn(2, 9, 13)), "relu": Look(plain.query, plain.key, normalize="relu"),
            "tensor mask": Look(plain.query, plain.key, mask=torch.ones(9, 13).tril().bool()),
            "bias": Look(plain.query, plain.key, bias=torch.randn(2, 9, 13)),
            "huge": Look(plain.query * 1e6, plain.key)}[name]
    data = only(document.embedded_document([alone(look)]))
    assert data["kind"] == "overview"
    table = data["overview"]
    assert (table["size"], table["rows"], table["columns"]) == (4, 3, 4)
    got = unpacked(table["values"], "<f2", 2, 3, 4) * table["unit"]
    np.testing.assert_allclose(got[1, 2, 3], look.weights()[1, 8:, 12:].mean(), rtol=1e-3, atol=1e-3 * table["unit"])


def test_size_limit_and_alignment_first():
    looks = [trace_examples.looks(2, 6, 6, seed=seed) for seed in range(3)]
    side = {"a": TraceSide(("x",) * 6)}
    attentions = tuple(TracedAttention(f"{number}", "a", "a", look) for number, look in enumerate(looks))
    one = 4 * -(-3 * 2 * 36 // 3)
    kinds = {}
    for pointer in (None, AlignmentPointer(2)):
        table = document.embedded_document([Trace(side, attentions, alignment=pointer)], size_limit=one + 10)
        kinds[pointer] = [told["data"]["kind"] for told in table["traces"][0]["attentions"]]
    assert kinds == {None: ["weights", "overview", "overview"],
                     AlignmentPointer(2): ["overview", "overview", "weights"]}


def test_overview_is_as_fine_as_the_limit_allows(monkeypatch):
    monkeypatch.setattr(document, "MAX_WEIGHTS", 0)
    trace = alone(WeightMatrix(torch.rand(1, 600, 600)))
    for room, size in ((1 << 30, 2), (4 * 2 * 90_000 * 4 // 3 + 100, 2), (4 * 2 * 90_000, 4), (0, 16)):
        assert only(document.embedded_document([trace], size_limit=room))["overview"]["size"] == size


def test_a_page_knows_its_file():
    assert "file" not in document.embedded_document([trace_examples.one_token()])
    assert document.embedded_document([trace_examples.one_token()], file="a.safetensors")["file"] == "a.safetensors"


def test_served_documents_embed_small_attentions_only(monkeypatch):
    monkeypatch.setattr(document, "MAX_WEIGHTS", 6 * 6 * 4)
    table = document.served_document([trace_examples.translation()])
    kinds = [told["data"] for told in table["traces"][0]["attentions"]]
    assert [data["kind"] for data in kinds] == ["served", "served", "weights", "served", "weights", "served"]
    assert table["served"] is True


def test_text_of_a_document_is_inert_and_means_the_same():
    table = document.embedded_document([trace_examples.hostile()])
    text = document.dump_document(table)
    assert "<" not in text
    assert text.isascii()
    assert json.loads(text) == table
    assert json.loads(text)["traces"][0]["sides"]["<i>side</i>"]["tokens"] == list(trace_examples.HOSTILE)


def test_numbers_that_are_none_stay_so():
    data = only(document.embedded_document([trace_examples.hostile()]))
    weights = unpacked_weights(data["values"]).reshape(1, len(trace_examples.HOSTILE), len(trace_examples.HOSTILE))
    assert np.isnan(weights[0, 0, 0])
    assert weights[0, 1, 1] == 0.0
    assert weights.min() < 0 or np.nanmin(weights) == pytest.approx(-1.0, abs=0.1)


def test_numbers_are_little_endian():
    assert document.encode_numbers(torch.tensor([1.0])) == base64.b64encode(b"\0\0\x80?").decode()
    assert document.encode_numbers(torch.tensor([1.0]).half()) == base64.b64encode(b"\0<").decode()


def test_nodes_of_a_search_are_columns():
    nodes = trace_examples.tree().nodes
    told = document.embedded_document([trace_examples.translation()])["traces"][0]["search"]["nodes"]
    assert told["parent"] == [node.parent for node in nodes]
    assert told["token"] == [node.token for node in nodes]
    assert "total" not in told  # the sum of what is before it
    assert told["log_probability"] == pytest.approx([node.log_probability for node in nodes])
    for key in ("ended", "kept"):
        assert told[key] == [place for place, node in enumerate(nodes) if getattr(node, key)]


def test_totals_of_another_program_are_kept():
    nodes = (SearchNode(-1, "a", -1.0, -1.0, False, True), SearchNode(0, "b", -1.0, -7.5, True, False))
    trace = Trace({"a": TraceSide(("x",) * 3)}, (TracedAttention("one", "a", "a", trace_examples.looks(1, 3, 3)),),
                  search=TracedSearch(1, nodes, (1,)))
    assert document.embedded_document([trace])["traces"][0]["search"]["nodes"]["total"] == [-1.0, -7.5]


def test_an_attention_whose_queries_and_keys_are_smaller_is_projected():
    trace = alone(Look(torch.randn(2, 200, 8), torch.randn(2, 200, 8)))
    whole = 4 * 2 * 200 * 200
    data = only(document.embedded_document([trace]))
    assert data["kind"] == "projected"
    assert data["error"] < document.VISIBLE_ERROR
    assert len(document.dump_document(data)) < whole
    np.testing.assert_allclose(windowed(data, 200, 200, None), trace.attentions[0].look.weights().numpy(), atol=2e-4)


@pytest.mark.thorough
def test_page_of_two_thousand_tokens_is_under_10_megabytes():
    """A Transformer of the demo's size: 24 heads, 2,286 tokens on each side."""
    count, heads, width = 2286, 4, 32
    sides = {"source": TraceSide(("▁word",) * count), "target": TraceSide(("▁mot",) * count)}
    attentions = [TracedAttention(f"one.{number}", queries, keys, trace_examples.looks(heads, count, count, width=width,
                                                                                      seed=number))
                  for number, (queries, keys) in enumerate((("source", "source"), ("target", "target"),
                                                            ("target", "source")) * 2)]
    assert len(page_html([Trace(sides, tuple(attentions))])) < 10e6


def test_page_of_a_sentence_is_under_300_kilobytes():
    """24 heads, ten tokens on each side, and what a search with five beams considers; 90 KB compressed."""
    count, rng = 10, random.Random(1)
    side = TraceSide(tuple(f"▁word{at}" for at in range(count)))
    attentions = [TracedAttention(f"decoder.{number}.cross", "source", "target",
                                  trace_examples.looks(4, count, count, seed=number)) for number in range(6)]
    nodes = list[SearchNode]()
    for at in range(160):
        log, parent = -rng.random() * 9, at // 5 - 1
        total = log + (nodes[parent].total if parent >= 0 else 0.0)
        nodes.append(SearchNode(parent, f"▁token{rng.randrange(200)}", log, total, at > 120, at % 2 == 0))
    trace = Trace({"source": side, "target": side}, tuple(attentions), search=TracedSearch(5, tuple(nodes), (150,)))
    text = page_html([trace]).encode()
    assert len(text) < 285_000
    assert len(gzip.compress(text)) < 90_000


@pytest.mark.parametrize("kind", ["continued", "labelled", "image", "reading"])
def test_short_pages_of_every_kind_are_under_300_kilobytes(kind):
    made = getattr(reading_examples, kind)()
    text = reading_examples.html(made[0]) if kind == "image" else page_html([made])
    assert len(text.encode()) < 300_000
    assert len(gzip.compress(text.encode())) < 90_000


def modules_of(trace, *, asks=False, others=()):
    """The modules that the page of a trace leaves out."""
    table = document.embedded_document([trace, *others])
    if asks:
        table["asks"] = True
    facts = document.page_facts(table)
    left_out = {name for name, needed in document.OPTIONAL_MODULES.items() if not needed(facts)}
    assert document.document_bundle(table) is document.load_bundle(frozenset(left_out))
    return left_out


def test_a_page_has_only_the_modules_that_it_can_use():
    translation, text = trace_examples.translation(), trace_examples.one_token()
    assert modules_of(translation) == {"projected.js", "predictions.js", "picture.js", "shading.js", "try.js", "map.js"}
    assert modules_of(translation, asks=True) == {"picture.js"}
    assert modules_of(text) == {"projected.js", "picture.js", "comparison.js", "search_view.js", "try.js", "map.js"}
    assert modules_of(text, others=[translation]) == {"projected.js", "picture.js", "try.js", "map.js"}
    assert modules_of(trace_examples.long(300)) == {"picture.js", "search_view.js", "try.js"}
    patches = TraceSide(tuple("abcdef"), grid=(2, 3))
    image = Trace({"image": patches}, (TracedAttention("one", "image", "image", trace_examples.looks(1, 6, 6)),))
    assert modules_of(image) & {"picture.js", "shading.js"} == {"shading.js"}


def test_an_overview_has_a_map():
    side = {"a": TraceSide(("x",) * 6)}
    trace = Trace(side, (TracedAttention("one", "a", "a", trace_examples.looks(2, 6, 6)),))
    facts = document.page_facts(document.embedded_document([trace], size_limit=10))
    assert document.OPTIONAL_MODULES["map.js"](facts)


@pytest.mark.parametrize("name", sorted(document.OPTIONAL_MODULES))
def test_every_module_can_be_left_out_alone_or_with_those_that_need_it(name):
    """Only the page of a model has the view "Try", which needs the comparison."""
    needed_by = {"comparison.js": {"try.js"}, "predictions.js": {"picture.js", "shading.js"}}
    without = {name, *needed_by.get(name, ())}
    assert len(document.load_bundle(frozenset(without)).script) < len(document.load_bundle().script)


def test_the_policy_of_a_page_is_read_from_it():
    table = document.embedded_document([trace_examples.hostile()])
    page = page_html([trace_examples.hostile()]).encode()
    assert document.page_policy(page) == document.document_bundle(table).policy()


def test_two_traces_at_most():
    trace = trace_examples.one_token()
    both = document.embedded_document([trace, trace])
    assert (len(both["traces"]), both["title"]) == (2, "x")
    for traces in ([], [trace] * 3):
        assert_named(lambda traces=traces: document.embedded_document(traces), ["`traces`", str(len(traces))])


def test_page_of_a_look_that_no_file_can_hold():
    look = trace_examples.looks(1, 3000, 3000, width=2, score=lambda query, key: query @ key.mT)
    data = only(document.served_document([Trace({"a": TraceSide(("x",) * 3000)},
                                                (TracedAttention("one", "a", "a", look),))]))
    assert data == {"kind": "served"}


def test_a_model_without_attention_has_no_page():
    with pytest.raises(ValueError, match="no attention"):
        document.embedded_document([Trace({"text": TraceSide(("a",))})])


SKELETON = "<title>{{title}}</title><meta {{policy}}><style>{{style}}</style><x>{{page}}</x><script>{{script}}</script>"
MODULES = {"a.js": "// A\nexport const one = 1;\nexport function two() {\n  return one;\n}\n",
           "b.js": 'import {\n  one,\n  two,\n} from "./a.js";\n\nclass Three {}\nexport async function four() {}\n'}


def made(**changes):
    return bundles.make_bundle(SKELETON, changes.pop("style", "a { b: c }"), MODULES | changes.pop("modules", {}))


def test_modules_become_one_script():
    assert made().script == ('"use strict";\n// A\nconst one = 1;\nfunction two() {\n  return one;\n}\nclass Three {}\n'
                             "async function four() {}\n")


@pytest.mark.parametrize(("name", "text", "said"), [
    ("c.js", "const one = 2;\n", "one is declared in a.js and in c.js"),
    ("c.js", 'import { one } from "./d.js";\n', "d.js, which must come before"),
    ("c.js", 'import { six } from "./a.js";\n', "six"),
    ("c.js", 'import { Three } from "./b.js";\n', "Three"),
    ("c.js", 'import * as all from "./a.js";\n', "import"),
    ("c.js", 'import { one as uno } from "./a.js";\n', "one as uno"),
    ("c.js", "export default 3;\n", "export default"),
    ("c.js", "export { five };\n", "export"),
    ("c.js", 'const text = "</SCRIPT>";\n', "must not contain </script"),
    ("c.js", 'const text = "<!--";\n', "must not contain <!--"),
])
def test_module_rules_are_checked(name, text, said):
    with pytest.raises(AssertionError, match=re.escape(said)):
        made(modules={name: text})


def test_a_style_cannot_end_itself():
    with pytest.raises(AssertionError, match="must not contain </style"):
        made(style="</style><script>")


def test_skeleton_has_every_placeholder_once():
    with pytest.raises(AssertionError, match="once"):
        bundles.make_bundle(SKELETON.replace("{{page}}", ""), "", MODULES)


def test_the_policy_knows_script_and_style_by_their_hashes():
    parts = made()
    script, style = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
                     for text in (parts.script, parts.style))
    assert parts.policy() == (f"default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; "
                              "base-uri 'none'; form-action 'none'")
    assert parts.policy("connect-src 'self'").endswith("; connect-src 'self'")
    assert "unsafe" not in parts.policy()


def test_titles_are_escaped_and_nothing_is_put_in_twice():
    page = made(style="{{script}}").page('</title><script>"', '{"a":"{{script}}"}', "p")
    assert "<title>&lt;/title&gt;&lt;script&gt;&quot;</title>" in page
    assert page.count("const one") == 1
    assert '{"a":"{{script}}"}' in page
    with pytest.raises(AssertionError):
        made().page("", '"</script>"', "")


def test_a_page_without_a_title_has_one():
    assert "<title>regard</title>" in made().page("", "{}", "")


def test_the_package_has_the_parts():
    parts = bundles.load_bundle()
    assert "innerHTML" not in parts.script
    assert not re.search(r"https?://(?!www\.w3\.org/)", parts.script + parts.style)  # only names of namespaces
    assert bundles.load_bundle() is parts


SCRIPT = re.compile(r"<script[^>]*>(.*?)</script>", re.DOTALL)


def test_one_file_has_everything():
    text = page_html([trace_examples.translation()])
    document, script = SCRIPT.findall(text)
    assert json.loads(document)["title"] == "The black cat sleeps."
    assert "src=" not in re.sub(SCRIPT, "", text)
    assert "href=" not in re.sub(SCRIPT, "", text)
    assert len(script) > 10_000
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)[1].replace("&#x27;", "'")
    assert "default-src 'none'" in policy
    assert "connect-src" not in policy  # a file asks nobody


def test_typed_text_is_not_markup():
    text = page_html([trace_examples.hostile()])
    assert len(SCRIPT.findall(text)) == 2
    assert "alert(1)</script>" not in text
    assert "<img" not in text
    assert "<title>&lt;script&gt;alert(&quot;title&quot;)&lt;/script&gt;</title>" in text


def test_the_same_traces_give_the_same_bytes():
    assert page_html([trace_examples.translation()]) == page_html([trace_examples.translation()])
