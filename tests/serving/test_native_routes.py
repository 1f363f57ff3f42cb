"""Our own routes against the plain calls: n-best, scores, alignment, glossary, prefix, sampling, traces, the page."""

import base64
import json
import logging
import re

import numpy as np
import pytest
import texting
from served import ask, save_translator

from regard.serving.server import BackgroundServer
from regard.tasks.heads import measure_heads
from regard.tasks.placeholder_translation import translate_with_placeholders
from regard.tasks.search import Beam, Sampling
from regard.tasks.traces import trace_forced, trace_generated

TEXT = "the dog sees a cat."
RAW = {"text": TEXT, "source": "en", "target": "fr", "keep_placeholders": False, "max_length": 12}


def translate(address, **fields):
    found = ask(address, "/api/v1/translate", {**RAW, **fields})
    assert found.status == 200, found.body
    return found.json["translations"]


def test_the_n_best_with_scores_and_alignment_are_those_of_the_plain_call(address):
    [found] = translate(address, nbest=3, scores=True, align=True)
    task = texting.translator()
    [best] = task.search([TEXT], Beam(beams=5, nbest=3, max_length=12))
    for table, one in zip([found, *found["alternatives"]], [best, *best.alternatives], strict=True):
        assert (table["text"], table["cut"]) == (one.text, one.cut)
        assert table["score"] == pytest.approx(one.score, abs=1e-5)
        words = [(word["text"], word["start"], word["end"]) for word in table["words"]]
        assert words == [word[:3] for word in one.words]
        assert [word["score"] for word in table["words"]] == pytest.approx([word.score for word in one.words], abs=1e-4)
        want = task.align([TEXT], [one])[0].table()
        assert table["alignment"]["source"] == want["source"]
        assert table["alignment"]["target"] == want["target"]


def test_sampling_depends_on_the_seed_and_the_text_only(address):
    sampling = {"temperature": 0.8, "top_p": 0.9, "seed": 7}
    found = translate(address, text=["a cat.", TEXT, "a cat."], nbest=2, sampling=sampling)
    want = texting.translator().search(["a cat.", TEXT], Sampling(num_samples=2, max_length=12, **sampling))
    assert found[0]["text"] == found[2]["text"]
    for table, one in zip(found, want, strict=False):
        assert [table["text"], *(other["text"] for other in table["alternatives"])] == [
            one.text, *(other.text for other in one.alternatives)]
    assert translate(address, sampling={**sampling, "seed": 8})[0]["text"] != found[1]["text"]


def test_prefix_and_glossary(address):
    task, glossary = texting.translator(), {"dog": ["chien", "chienne"]}
    [found] = translate(address, prefix="le", glossary=glossary, max_length=20)
    [want] = task.search([TEXT], Beam(beams=5, max_length=20), prefix="le", glossary=glossary)
    assert found["text"] == want.text
    assert found["text"].startswith("le")
    assert "chien" in found["text"]


def test_placeholders_are_kept_by_default_and_alignments_count_in_the_whole_text(address):
    text = "the dog.\n\n  a %s cat."
    found = ask(address, "/api/v1/translate", {"text": text, "source": "en", "target": "fr", "align": True}).json
    [one], task = found["translations"], texting.translator()
    want = translate_with_placeholders([text], lambda some: task.search(some, Beam(beams=5)), task.align)[0]
    assert (one["text"], one["strategy"]) == (want.text, want.strategy)
    assert "%s" in one["text"]
    for side, whole in (("source", text), ("target", one["text"])):
        words = one["alignment"][side]
        assert all(whole[word["start"]:word["end"]] == word["text"] for word in words)
        assert [word["start"] for word in words] == sorted(word["start"] for word in words)
    lines = [len(text.split("\n")[0])]
    source = one["alignment"]["source"]
    first = {number for number, word in enumerate(source) if word["end"] <= lines[0]}
    targets = {number for number, word in enumerate(one["alignment"]["target"])
               if word["end"] <= len(one["text"].split("\n")[0])}
    assert all((link["source"] in first) == (link["target"] in targets) for link in one["alignment"]["links"])


def test_the_trace_has_the_attention_of_the_plain_call(address):
    [found] = translate(address, trace=True)
    task = texting.translator()
    [best] = task.search([TEXT], Beam(beams=5, max_length=12))
    want = trace_generated(task, TEXT, best)
    assert [one["name"] for one in found["trace"]["attentions"]] == [one.name for one in want.attentions]
    for table, one in zip(found["trace"]["attentions"], want.attentions, strict=True):
        values = np.frombuffer(base64.b64decode(table["data"]["values"]), "<f4")
        assert values == pytest.approx(one.look.weights().numpy().ravel(), abs=1e-5)


def test_the_attention_page_has_its_own_policy_and_no_network(address):
    url = ask(address, "/api/v1/look", {"text": TEXT, "source": "en", "target": "fr", "beams": 2}).json["url"]
    page = ask(address, url)
    assert page.status == 200
    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(rb"(?:src|href)=.?https?:", page.body)
    assert ask(address, url).status == 200
    assert ask(address, "/look/other").status == 404
    assert ask(address, url.replace("/look/", "/download_file/") + "/x").status == 404


def shown_trace(address, **fields):
    """The trace of a page of attention."""
    found = ask(address, "/api/v1/look", {"text": TEXT, "source": "en", "target": "fr", **fields})
    assert found.status == 200, found.body
    page = ask(address, found.json["url"]).body.decode()
    [trace] = json.loads(re.search(r'<script type="application/json" id="page">(.*?)</script>', page)[1])["traces"]
    return trace


def test_the_attention_page_shows_exactly_the_translation_that_was_chosen(address):
    task = texting.translator()
    [best] = task.search([TEXT], Beam(beams=5, nbest=5))
    results = {one.text: one for one in reversed([best, *best.alternatives])}  # of equal texts the best
    other = "le chien"  # no result of the search, so it is read as it is
    for text, want in (*((text, trace_generated(task, TEXT, one)) for text, one in results.items()),
                       (other, trace_forced(task, TEXT, other))):
        trace = shown_trace(address, translation=text)
        assert trace["sides"]["target"]["tokens"] == list(want.sides["target"].tokens)
        assert len(trace["influence"]["values"]) == len(want.sides["target"].tokens)
        for table, one in zip(trace["attentions"], want.attentions, strict=True):
            upper = np.frombuffer(base64.b64decode(table["data"]["values"]), "u1").reshape(-1, 3)  # of four bytes
            values = np.pad(upper, ((0, 0), (1, 0))).view("<f4").ravel()
            assert values == pytest.approx(one.look.weights().numpy().ravel(), abs=2e-5)
    wrong = ask(address, "/api/v1/look", {"text": TEXT, "source": "en", "target": "fr", "translation": other,
                                          "choice": 1})
    assert (wrong.status, "choice" in wrong.json["error"]) == (400, True)


@pytest.mark.thorough
def warnings_of(caplog):
    return [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_the_attention_page_has_the_heads_that_are_stored_with_the_model(tmp_path, caplog):
    folder = save_translator(tmp_path / "model")
    found = measure_heads(texting.translator(), texting.pairs()[:2], name="pairs.tsv")
    stored = found.save(folder)
    with BackgroundServer([folder]) as server:
        measured = shown_trace(server.address)["heads"]
        assert (measured["data"], measured["sentences"]) == ("pairs.tsv", 2)
        costs = [head["cost"] for one in measured["attentions"] for head in one["heads"]]
        assert costs == pytest.approx([one.cost for one in found.heads], rel=1e-5)
        table = json.loads(stored.read_bytes())
        stored.write_text(json.dumps({**table, "weights_sha256": "0" * 64}))  # measured on another model
        assert not server.context.catalog.reload()
        assert "heads" not in shown_trace(server.address)
        assert not warnings_of(caplog)
        stored.write_text("{}")
        assert not server.context.catalog.reload()  # served without it
        assert "heads" not in shown_trace(server.address)
        assert "heads.json" in warnings_of(caplog)[0].problem


@pytest.mark.parametrize(("fields", "said"), [
    ({"keep_placeholders": True, "scores": True}, "keep_placeholders"), ({"trace": True, "text": ["a"]}, "trace"),
    ({"beams": 0}, "beams"), ({"unknown": 1}, "unknown"), ({"glossary": {"": "x"}}, "entries"),
    ({"glossary": {"a": "b"}, "sampling": {}}, "glossary"), ({"target": None}, "target"), ({"model": "three"}, "model"),
    ({"num_beam_groups": 3}, "num_beam_groups"), ({"min_length": 20}, "min_length"), ({"text": None}, "text"),
    ({"sampling": {"temperature": 0}}, "temperature"), ({"format": "html"}, "html"), ({"prefix": "\udc00"}, "prefix"),
    ({"max_length": 1e400}, "JSON"), ({"length_penalty": "x"}, "length_penalty"),
])
def test_a_wrong_request_names_the_field(address, fields, said):
    body = {**RAW, **fields}
    found = ask(address, "/api/v1/translate", body)
    assert found.status == 400, found.body
    assert said in found.json["error"]


def test_models_by_name(address):
    models = ask(address, "/api/v1/models").json
    assert [(one["name"], one["task"], one["source"]) for one in models] == [
        ("one", "translation", "en"), ("two", "translation", "fr"), ("writer", "completion", None)]
    named = ask(address, "/api/v1/translate", {**RAW, "model": "two", "target": None}).json
    assert (named["source"], named["target"], named["model"]) == ("fr", "en", "two")


def test_the_description_and_its_page_load_nothing_from_elsewhere(address):
    description = ask(address, "/openapi.json").json
    assert {"/translate", "/v1/completions", "/api/v1/translate", "/metrics"} <= set(description["paths"])
    page = ask(address, "/docs")
    assert b"name=viewport" in page.body
    assert b"prefers-color-scheme:dark" in page.body
    assert b"/api/v1/translate" in page.body
    assert b"<script" not in page.body
    assert not re.search(rb"https?://", page.body)
    assert "default-src 'none'" in page.headers["content-security-policy"]


def test_the_page_and_its_assets(address):
    page = ask(address, "/")
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "unsafe" not in page.headers["content-security-policy"]
    assert not re.search(rb"https?://|<script>|<style>|style=", page.body)
    for name in re.findall(rb'(?:src|href)="(assets/[^"]+)"', page.body):
        asset = ask(address, f"/{name.decode()}")
        assert asset.status == 200
        assert asset.headers["x-content-type-options"] == "nosniff"
        again = ask(address, f"/{name.decode()}", headers={"If-None-Match": asset.headers["etag"]})
        assert (again.status, again.body) == (304, b"")
        assert ask(address, f"/{name.decode()}", method="HEAD").body == b""
    for path in ("/assets/../__init__.py", "/assets/%2e%2e/static.py", "/assets/index.html", "/assets/"):
        assert ask(address, path).status == 404


def test_alternatives_are_aligned_like_the_best(address):
    fields = {"text": "the dog sleeps\nthe cat", "source": "en", "target": "fr", "nbest": 3, "align": True}
    [best] = ask(address, "/api/v1/translate", fields).json["translations"]
    assert len(best["alternatives"]) == 2
    for one in (best, *best["alternatives"]):
        for side, text in (("source", fields["text"]), ("target", one["text"])):
            assert [text[word["start"]:word["end"]] for word in one["alignment"][side]] == [
                word["text"] for word in one["alignment"][side]]
