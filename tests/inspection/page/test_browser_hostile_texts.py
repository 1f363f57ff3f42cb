"""What happened to users of other pages: markup as tokens, one token, very many, other scripts, no probabilities."""

import math

import browser_visits
import pytest
import torch
import trace_examples

from regard.attention.look import Look
from regard.inspection.page.server import PageServer
from regard.inspection.records import WeightMatrix
from regard.inspection.trace import Trace
from regard.inspection.trace_format import GeneratedTokens, SearchNode, TracedAttention, TracedSearch, TraceSide

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]
ELEMENTS = """() => [...document.querySelectorAll("*")].map((one) => one.localName)"""
LEFT_OUT = ("img", "iframe", "object", "embed", "link", "base", "b", "i")
"""What no part of the page is made of."""


@pytest.fixture(scope="module")
def hostile(filed):
    return filed(trace_examples.hostile())


@pytest.fixture(scope="module")
def served():
    with PageServer([trace_examples.hostile()], what_if=lambda question: trace_examples.hostile()) as server:
        yield server.address


@pytest.mark.thorough
@pytest.mark.parametrize("where", ["file", "served"])
def test_markup_in_tokens_titles_and_names_is_inert(chromium, hostile, served, where):
    with browser_visits.visiting(chromium, hostile if where == "file" else served) as visit:
        for view in browser_visits.VIEWS[:-1] if where == "file" else browser_visits.VIEWS:  # a file has no map of it
            page = visit.open(view)
            page.wait_for_timeout(150)
            found = page.evaluate(ELEMENTS)
            assert not set(found) & set(LEFT_OUT)
            assert found.count("script") == 2
            assert page.evaluate("() => [...document.querySelectorAll('*')].flatMap((one) => [...one.attributes])"
                                 ".filter((one) => /^on|^src|^href/.test(one.name)).length") == 0
        assert page.locator("h1").inner_text() == '<script>alert("title")</script>'
        assert page.title() == '<script>alert("title")</script>'


def test_markup_is_shown_as_what_it_is(chromium, hostile):
    with browser_visits.visiting(chromium, hostile) as visit:
        names, rows = browser_visits.table(visit.open("read", matrix="yes", attention=1, head=0))
    for token in trace_examples.HOSTILE[:4]:
        shown = token.replace(" ", "␣")
        assert shown in names
        assert shown in [name for name, _ in rows]


def test_answers_of_a_model_are_inert(chromium, served):
    with browser_visits.visiting(chromium, served) as visit:
        page = visit.open("try")
        page.get_by_label("Text", exact=True).fill("<img src=x onerror=alert(1)>")
        page.locator("form.try-form button.strong").click()
        page.wait_for_selector(".result h2")
        assert "img" not in page.evaluate(ELEMENTS)


def test_invisible_characters_have_symbols(chromium, hostile):
    with browser_visits.visiting(chromium, hostile) as visit:
        names, _ = browser_visits.table(visit.open("read", matrix="yes", attention=1, head=0))
        page = visit.page
        named = dict(zip(trace_examples.HOSTILE, names, strict=True))
        assert named["\u200b"] == "‹U+200B›"
        assert named["שלום"] == "שלום"
        assert named["👩‍👩‍👧"] == "👩‍👩‍👧"
        assert all(name.strip() for name in names)
        assert "\x00" not in named["\x00\x07"]
        assert "\u202e" not in "".join(names)  # what would turn the line around
        assert len(set(names)) == len(names)
        isolated = page.evaluate("() => [...document.querySelectorAll('details.table th')].every((cell) =>"
                                 " !cell.textContent || cell.querySelector('bdi'))")
        assert isolated


@pytest.mark.thorough
def test_weights_that_are_no_probabilities_are_shown_as_they_are(chromium, hostile):
    with browser_visits.visiting(chromium, hostile) as visit:
        page = visit.open("read", matrix="yes", attention=0, head=0)
        _, rows = browser_visits.table(page)
        keys = page.locator(".keyline .legend").first
        told, colours = keys.inner_text(), keys.get_attribute("aria-label")
    want = trace_examples.hostile().attentions[0].look.weights()[0]
    for i, (_, cells) in enumerate(rows):
        for j, cell in enumerate(cells):
            if (i, j) == (0, 0):
                assert cell == "NaN"
            elif (i, j) == (1, 1):
                assert cell == "0"
            else:
                assert browser_visits.number(cell) == pytest.approx(float(want[i, j]), abs=6e-5)
    assert "from −1 to 1" in colours
    assert "not finite" in told


def test_nothing_but_zero_is_shown_as_zero(chromium, filed):
    weights = torch.tensor([[[1e-9, 0.0], [1.0, 1e30]]])
    trace = Trace({"a": TraceSide(("x", "y"))}, (TracedAttention("one", "a", "a", WeightMatrix(weights)),))
    with browser_visits.visiting(chromium, filed(trace)) as visit:
        _, rows = browser_visits.table(visit.open("read", matrix="yes"))
    cells = [cell for _, some in rows for cell in some]
    assert cells[1] == "0"
    assert [browser_visits.number(cell) for cell in cells] == pytest.approx([1e-9, 0, 1, 1e30], rel=0.01)
    assert cells[0] not in ("0", "0.0000")


def test_a_zero_under_a_mask_that_is_a_tensor_is_not_said_to_be_a_weight(chromium, filed):
    """The page does not have such a mask: what is 0 may be masked, and that is what it says."""
    mask = torch.tensor([[True, False, True], [True, True, True], [False, True, True]])
    look = trace_examples.looks(2, 3, 3, mask=mask)
    trace = Trace({"a": TraceSide(tuple("xyz"))}, (TracedAttention("one", "a", "a", look),))
    with browser_visits.visiting(chromium, filed(trace)) as visit:
        page = visit.open("read", matrix="yes", attention=0, head=1)
        _, rows = browser_visits.table(page)
        assert "the mask is a tensor" in page.locator(".swatches").first.inner_text()
        page.locator(".chart-frame").first.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        assert page.locator(".readout").first.inner_text() == "x → y: 0 or masked"
    for allowed, want, (_, cells) in zip(mask, look.weights()[1], rows, strict=True):
        for may, weight, cell in zip(allowed, want, cells, strict=True):
            if may:
                assert browser_visits.number(cell) == pytest.approx(float(weight), abs=6e-5)
            else:
                assert cell == "0 or masked"


def test_no_small_probability_is_shown_as_zero(chromium, filed):
    logs = (-0.1, -9.0, -40.0)
    nodes = tuple(SearchNode(number - 1, token, log, sum(logs[:number + 1]), number == 2, number < 2)
                  for number, (token, log) in enumerate(zip("xyz", logs, strict=True)))
    trace = Trace({"a": TraceSide(tuple("xyz"))}, (TracedAttention("one", "a", "a", trace_examples.looks(1, 3, 3)),),
                  written=GeneratedTokens("a", logs), search=TracedSearch(1, nodes, (2,), 1234))
    with browser_visits.visiting(chromium, filed(trace)) as visit:
        page = visit.open("search")
        assert "3 continuations considered with 1 beam, and 1,234 more" in page.locator("#view").inner_text()
        assert page.locator(".board small").all_text_contents() == ["90 % ■ finished"]  # a chain, and its first token
        cells = page.locator("#view table.path tr").nth(1).locator("td").all_inner_texts()
        assert [browser_visits.number(cell) for cell in cells] == pytest.approx([math.exp(log) for log in logs],
                                                                                rel=0.01)


@pytest.mark.thorough
@pytest.mark.thorough
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, -0.0], ids=str)
def test_one_value_everywhere(chromium, value):
    """There is no range of weights to shade by; the page of a model has all views."""
    trace = Trace({"text": TraceSide(("a", "b"))},
                  (TracedAttention("self", "text", "text", WeightMatrix(torch.full((1, 2, 2), value))),), "x")
    shown = {"nan": "NaN", "inf": "∞", "-inf": "−∞"}.get(str(value), "0")
    with (PageServer([trace], what_if=lambda question: trace) as server,
          browser_visits.visiting(chromium, server.address) as visit):
        for view in browser_visits.VIEWS:
            visit.open(view)
        _, rows = browser_visits.table(visit.open("read", matrix="yes"))
    assert rows == [["a", [shown] * 2], ["b", [shown] * 2]]


def test_one_token(chromium):
    trace = trace_examples.one_token()
    with (PageServer([trace], what_if=lambda question: trace) as server,
          browser_visits.visiting(chromium, server.address) as visit):
        for view in browser_visits.VIEWS:
            visit.open(view).wait_for_timeout(80)
            assert visit.page.locator(".wrong").count() == 0
        _, rows = browser_visits.table(visit.open("read", matrix="yes"))
    assert rows == [["x", ["1.0000"]]]


@pytest.mark.thorough
def test_96_heads(chromium, filed):
    look = trace_examples.looks(96, 6, 6, seed=4)
    trace = Trace({"a": TraceSide(tuple("abcdef"))}, (TracedAttention("wide", "a", "a", look),))
    with browser_visits.visiting(chromium, filed(trace)) as visit:
        page = visit.open("heads")
        assert page.locator("button.card").count() == 96
        page.locator("button.card").last.scroll_into_view_if_needed()
        browser_visits.until(page,
                             r"() => /strongest/.test([...document.querySelectorAll('button.card')].pop().textContent)")
        told = page.locator("button.card").last.text_content()
        assert f"looks at ~{look.entropy()[95].mean().exp():.1f} tokens" in told
        visit.page.goto("about:blank")
        _, rows = browser_visits.table(visit.open("read", matrix="yes", attention=0, head=95))
    got = torch.tensor([[browser_visits.number(cell) for cell in cells] for _, cells in rows])
    torch.testing.assert_close(got, look.weights()[95], atol=6e-5, rtol=0)


def test_an_image_is_shown_in_patches(chromium, filed):
    tokens = ("[class]", *(f"{row},{column}" for row in range(3) for column in range(4)))
    trace = Trace({"image": TraceSide(tokens, grid=(3, 4), lead=1)},
                  (TracedAttention("encoder.0.self", "image", "image", trace_examples.looks(2, 13, 13), 0, "self"),),
                  "a.png")
    with browser_visits.visiting(chromium, filed(trace)) as visit:
        page = visit.open("read", matrix="yes")
        page.wait_for_selector("canvas.patches")
        assert "3 × 4 patches" in page.locator("canvas.patches").first.get_attribute("aria-label")


@pytest.mark.thorough
def test_nothing_else_runs(chromium, hostile, served):
    """The policy holds: neither a script nor a request that somebody put in would do anything."""
    for address in (hostile, served):
        visit = browser_visits.Visit(chromium, address)
        page = visit.open("read", matrix="yes")
        page.evaluate("""() => {
            const script = document.createElement("script");
            script.textContent = "window.broken = 1";
            document.body.append(script);
            const image = document.createElement("img");
            image.src = "http://127.0.0.1:9/x.png";
            document.body.append(image);
        }""")
        page.wait_for_timeout(100)
        assert page.evaluate("() => window.broken") is None
        outside = page.evaluate("() => fetch('http://127.0.0.1:9/').then(() => 'sent', (error) => 'refused')")
        assert outside == "refused"
        assert any("Content Security Policy" in one for one in visit.complaints)
        visit.close()


def test_a_look_beyond_half_precision_is_not_rounded(chromium, filed, monkeypatch):
    monkeypatch.setattr("regard.inspection.page.document.MAX_WEIGHTS", 0)
    plain = trace_examples.looks(1, 9, 9)
    trace = Trace({"a": TraceSide(tuple("abcdefghi"))},
                  (TracedAttention("huge", "a", "a", Look(plain.query * 1e6, plain.key)),), "huge")
    with browser_visits.visiting(chromium, filed(trace)) as visit:
        page = visit.open("map")
        page.wait_for_timeout(200)
        assert "overview" in page.locator("#view").inner_text()
