"""Pages in a real browser: every view opens, and the numbers that it shows are those of Python."""

import re

import browser_visits
import pytest
import torch
import trace_examples

from regard.attention.mask import Causal
from regard.inspection.page.server import PageServer
from regard.inspection.records import WeightMatrix
from regard.inspection.trace import Trace, select_map
from regard.inspection.trace_format import TracedAttention, TraceSide

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]
CLOSE = 6e-5
"""Four decimals are shown."""


@pytest.fixture(scope="module")
def trace():
    return trace_examples.translation()


@pytest.fixture(scope="module")
def file(trace, filed):
    return filed(trace)


@pytest.fixture
def visit(chromium, file):
    with browser_visits.visiting(chromium, file, offline=True) as found:
        yield found


@pytest.mark.thorough
def test_every_view_opens_from_a_disk_without_a_network(visit):
    titles = {}
    for view in browser_visits.VIEWS[:-1]:
        page = visit.open(view)
        titles[view] = page.locator('[role="tab"][aria-selected="true"]').inner_text()
        assert page.locator("#view").inner_text().strip()
        assert page.locator(".wrong").count() == 0
    assert titles == {"read": "Read", "heads": "Heads", "search": "Search", "try": "Try", "compare": "Compare"}
    assert page.title() == "The black cat sleeps."
    assert page.locator("h1").inner_text() == "The black cat sleeps."


def test_without_a_view_it_is_read(visit):
    visit.open()
    visit.page.wait_for_selector("#view.read")
    assert visit.page.locator("#tab-read").get_attribute("aria-selected") == "true"


@pytest.mark.thorough
@pytest.mark.parametrize("attention", [0, 2, 5])
def test_tokens_in_the_table_have_the_weights_of_the_trace(visit, trace, attention):
    one = trace.attentions[attention]
    rows, columns = trace.sides[one.queries].tokens, trace.sides[one.keys].tokens
    want = one.look.weights()
    for head in (0, 3):
        visit.page.goto("about:blank")
        page = visit.open("read", matrix="yes", attention=attention, head=head, units="tokens")
        names, found = browser_visits.table(page)
        assert (names, [name for name, _ in found]) == (list(columns), list(rows))
        got = torch.tensor([[browser_visits.number(cell) for cell in cells] for _, cells in found])
        torch.testing.assert_close(got, want[head], atol=CLOSE, rtol=0)
    if attention == 2:
        assert found[0][1][1:] == ["masked"] * 5


def test_words_have_the_weights_of_their_tokens(visit, trace):
    names, found = browser_visits.table(visit.open("read", matrix="yes"))
    best = select_map(trace)
    want = best.weights()
    assert names[:-1] == list(best.columns)  # the end of the source is no word, and is shown too
    assert names[-1] == "</s>"
    got = torch.tensor([[browser_visits.number(cell) for cell in cells] for _, cells in found])
    torch.testing.assert_close(got[:len(best.rows), :-1], want, atol=CLOSE, rtol=0)


def test_pointing_at_a_cell_tells_its_weight(visit, trace):
    page = visit.open("read", matrix="yes", attention=5, head=2, units="tokens")
    browser_visits.until(page, "() => document.querySelector('.keyline')?.textContent")
    frame = page.locator(".chart-frame").first
    frame.focus()
    weights = trace.attentions[5].look.weights()[2]
    row = column = 0
    page.keyboard.press("ArrowRight")
    for key, down, across in (("ArrowDown", 1, 0), ("ArrowRight", 0, 1), ("ArrowDown", 1, 0)):
        page.keyboard.press(key)
        row, column = row + down, column + across
    told = page.locator(".readout").inner_text()
    value = browser_visits.number(page.locator(".readout strong").inner_text())
    names = [(i, j) for i, left in enumerate(trace_examples.TARGET) for j, right in enumerate(trace_examples.SOURCE)
             if told.startswith(f"{left} → {right}:")]
    assert len(names) == 1
    assert value == pytest.approx(float(weights[names[0]]), abs=CLOSE)
    assert (row, column) == (2, 1)
    browser_visits.until(page, "() => document.querySelector('[aria-live=polite].visually-hidden').textContent !== ''")


def test_scale_and_weight_are_in_sight_while_the_map_is(chromium, filed):
    """A map that is higher than the window: at its top, what is said of it stands at the lower edge of the window."""
    count = 30
    tall = Trace({"a": TraceSide(tuple(f"w{number}" for number in range(count)))},
                 (TracedAttention("one", "a", "a", trace_examples.looks(1, count, count, mask=Causal())),))
    with browser_visits.visiting(chromium, filed(tall), size=(1200, 700)) as visit:
        page = visit.open("read", matrix="yes")
        browser_visits.until(page, "() => document.querySelector('.legend canvas')")
        box = page.locator(".chart-frame canvas").first.bounding_box()
        assert box["y"] < 600
        assert box["y"] + box["height"] > 800
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 120)
        for part in (".readout strong", ".legend canvas", ".swatches"):
            seen = page.locator(part).first.bounding_box()
            assert 0 < seen["y"] < seen["y"] + seen["height"] <= 700
            shown = page.evaluate("""([x, y, part]) => document.elementFromPoint(x, y)?.closest(part) !== null""",
                                  [seen["x"] + seen["width"] / 2, seen["y"] + seen["height"] / 2, part.split()[0]])
            assert shown


@pytest.mark.parametrize("options", [{}, {"mask": Causal()}])
def test_the_legend_names_only_what_occurs(chromium, filed, options):
    made = Trace({"a": TraceSide(("x", "y", "z"))},
                 (TracedAttention("one", "a", "a", trace_examples.looks(1, 3, 3, **options)),))
    with browser_visits.visiting(chromium, filed(made)) as visit:
        page = visit.open("read", matrix="yes")
        browser_visits.until(page, "() => document.querySelector('.legend canvas')")
        assert page.locator(".swatches li").all_inner_texts() == (["masked"] if options else [])


@pytest.mark.parametrize("signed", [False, True])
def test_signed_maps_are_said_to_be_no_probabilities(chromium, filed, signed):
    weights = torch.tensor([[[0.75, -0.25 if signed else 0.25], [0.4, 0.6]]])
    made = Trace({"a": TraceSide(("x", "y"))}, (TracedAttention("one", "a", "a", WeightMatrix(weights)),))
    with browser_visits.visiting(chromium, filed(made)) as visit:
        page = visit.open("read", matrix="yes")
        browser_visits.until(page, "() => document.querySelector('.legend canvas')")
        assert ("not probabilities" in page.locator(".legend figcaption").first.inner_text()) is signed
        page = visit.open("heads")
        browser_visits.until(page, "() => /strongest/.test(document.querySelector('.card')?.textContent ?? '')")
        told = page.locator(".card").first.inner_text()
        assert ("looks at" in told) is not signed
        assert "not probabilities" in page.locator("main").inner_text()
        page = visit.open("read")
        page.locator(".shaded .w").first.hover()
        browser_visits.until(page, "() => document.querySelector('.detail').textContent !== ''")
        shares = "x 0.75" if signed else "x 75 %, y 25 %"
        assert page.locator(".detail").inner_text() == f"x looked at {shares}."
        assert "NaN" not in told


@pytest.mark.thorough
def test_the_mouse_points_too(visit, trace):
    page = visit.open("read", matrix="yes", attention=5, head=0, units="tokens")
    browser_visits.until(page, "() => document.querySelector('.keyline')?.textContent")
    page.locator(".chart-frame").first.scroll_into_view_if_needed()
    box = page.locator(".chart-frame canvas").first.bounding_box()
    weights, seen = trace.attentions[5].look.weights()[0], set()
    for part in range(30):
        page.mouse.move(box["x"] + box["width"] * (0.1 + part / 60), box["y"] + box["height"] * (0.35 + part / 60))
        told = page.locator(".readout").inner_text()
        for i, left in enumerate(trace_examples.TARGET):
            for j, right in enumerate(trace_examples.SOURCE):
                if told.startswith(f"{left} → {right}:"):
                    seen.add((i, j))
                    value = browser_visits.number(page.locator(".readout strong").inner_text())
                    assert value == pytest.approx(float(weights[i, j]), abs=CLOSE)
    assert len(seen) > 3


def test_a_pinned_word_lists_its_largest_weights(visit, trace):
    page = visit.open("read", matrix="yes", attention=5, head=1, units="tokens", row=2)
    page.wait_for_selector(".weights li")
    told = page.evaluate("""() => [...document.querySelectorAll(".weights li")].map((one) =>
        [one.querySelector("bdi").textContent, one.querySelector(".number").textContent])""")
    row = trace.attentions[5].look.weights()[1, 2]
    order = [place for place in row.argsort(descending=True).tolist()[:6] if row[place] >= 0.01]  # the rest is noise
    assert [name for name, _ in told] == [trace_examples.SOURCE[place] for place in order]
    assert [browser_visits.number(value) for _, value in told] == pytest.approx([float(row[place]) for place in order],
                                                                          abs=CLOSE)
    assert "row=2" in page.url
    page.reload()
    page.wait_for_selector(".weights li")  # a link opens the same


def test_heads_have_their_entropy(visit, trace):
    page = visit.open("heads")
    browser_visits.until(page, r"""() => [...document.querySelectorAll("button.card")].slice(0, 8)
        .every((card) => /strongest/.test(card.textContent))""")
    for card in page.locator("button.card").all()[:8]:
        told = card.text_content()
        layer, head = re.search(r"reads, layer (\d), head (\d+)", told).groups()
        one = next(one for one in trace.attentions if one.name == f"encoder.{int(layer) - 1}.self")
        assert f"looks at ~{one.look.entropy()[int(head)].mean().exp():.1f} tokens" in told
        assert f"strongest {one.look.weights()[int(head)].max():.2g}" in told
    page.locator(".card").nth(1).click()
    page.wait_for_selector("dialog[open] .facts strong")
    told = browser_visits.number(page.locator("dialog .facts strong").first.inner_text())
    assert told == pytest.approx(float(trace.attentions[0].look.entropy()[1].mean()), abs=CLOSE)
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0


def test_the_tree_has_the_numbers_of_the_search(visit, trace):
    page = visit.open("search")
    ranked = [browser_visits.number(cell) for cell in page.locator(".results .number").all_inner_texts()]
    lengths = [6, 6]
    want = [trace.search.nodes[end].total / length for end, length in zip(trace.search.best, lengths, strict=True)]
    assert ranked == pytest.approx(want, abs=0.006)
    assert page.locator('[role="treeitem"]').count() == 4  # two branches of two: chains are one box
    assert "−1.1800" in page.locator("#view").inner_text()
    page.get_by_text("all, including pruned").click()
    browser_visits.until(page, "() => document.querySelectorAll('[role=treeitem]').length > 4")
    page.locator('[role="treeitem"]').last.click()
    rows = page.locator("#view table.path tr").all()
    totals = [browser_visits.number(cell) for cell in rows[2].locator("td").all_inner_texts()]
    assert rows[0].locator("td").count() == len(totals)
    assert all(any(node.total == pytest.approx(total, abs=6e-4) for node in trace.search.nodes) for total in totals)


def test_two_heads_side_by_side_and_their_difference(visit, trace):
    page = visit.open("compare", attention=5, head=0, attention2=5, head2=3)
    browser_visits.until(page, "() => document.querySelectorAll('.chart-frame').length === 3")
    weights = trace.attentions[5].look.weights()
    page.locator(".chart-frame").first.focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    values = {}
    for place, name in enumerate(("first", "second", "difference")):  # pointing at one points at all
        browser_visits.until(page, "(n) => document.querySelectorAll('.readout')[n].querySelector('strong')", place)
        readout = page.locator(".readout").nth(place)
        values[name] = (readout.inner_text().split(":")[0],
                        browser_visits.number(readout.locator("strong").inner_text()))
    assert len({told for told, _ in values.values()}) == 1
    left, right = values["first"][0].split(" → ")
    i, j = trace_examples.TARGET.index(left), trace_examples.SOURCE.index(right)
    assert values["first"][1] == pytest.approx(float(weights[0, i, j]), abs=CLOSE)
    assert values["second"][1] == pytest.approx(float(weights[3, i, j]), abs=CLOSE)
    assert values["difference"][1] == pytest.approx(float(weights[3, i, j] - weights[0, i, j]), abs=2 * CLOSE)


def test_what_if_in_a_file_says_what_to_do(visit):
    assert "regard look MODEL" in visit.open("try").locator("#view").inner_text()


@pytest.mark.thorough
def test_what_if_asks_the_model(chromium, trace):
    questions = []

    def answer(question):
        questions.append(question)
        if "bad" in question.text:
            raise ValueError("`text` must be good, but is bad instead.")
        return trace_examples.translation(title=question.text, seed=9)

    with PageServer([trace], what_if=answer) as server, browser_visits.visiting(chromium, server.address) as visit:
        page = visit.open("try")
        page.locator("form.try-form summary").click()
        page.get_by_label("Text", exact=True).fill("The black dog sleeps.")
        page.get_by_label("Forced prefix of the output").fill("Le chien")
        page.get_by_label("Beams").fill("3")
        page.locator("form.try-form button.strong").click()
        page.wait_for_selector(".result h2")
        assert [(one.text, one.prefix, one.beams, one.choice, one.trace) for one in questions] == [
            ("The black dog sleeps.", "Le chien", 3, 0, 0)]
        assert page.locator(".result .chart-frame").count() >= 2
        assert page.locator(".changes .after").all_inner_texts() == ["Le chat noir dort.", "The black cat sleeps."]
        page.get_by_role("button", name="Read the new one").click()
        page.wait_for_selector("#view.read")
        assert page.locator("h1").inner_text() == "The black dog sleeps."
        page = visit.open("try")
        page.locator("form.try-form summary").click()
        page.get_by_label("Text", exact=True).fill("bad")
        page.locator("form.try-form button.strong").click()
        page.wait_for_selector(".wrong")
        assert "must be good" in page.locator(".wrong").inner_text()
        assert all(url.startswith(server.address) for url in visit.asked)
        visit.complaints = [one for one in visit.complaints if "400" not in one]  # the refusal, as it should be


@pytest.mark.thorough
@pytest.mark.parametrize("state", [
    "view=nothing", "view=heads&attention=999&head=-1", "view=read&head=abc&attention=NaN", "view=%E0%A4%A",
    "=&&&", "view=__proto__", "view=read&attention=constructor", "view=map&row=-5&zoom=1e99"])
def test_a_wrong_address_shows_a_view_and_no_error(chromium, visit, state):
    with browser_visits.visiting(chromium, visit.address) as other:
        other.page.goto(f"{visit.address}#{state}")
        browser_visits.until(other.page, "() => document.querySelector('#view').innerText.length > 100")
        assert other.page.locator('[role="tab"][aria-selected="true"]').count() == 1
        assert other.complaints == []


@pytest.mark.parametrize(("old", "new"), [("alignment", "read"), ("tree", "search"), ("what-if", "try"),
                                          ("long", "read"), ("pair", "compare")])
def test_links_of_earlier_versions_open_the_same(visit, old, new):
    """A page of a short text has no map of any size, and shows what it has."""
    visit.page.goto(f"{visit.address}#view={old}")
    visit.page.wait_for_selector(f"#view.{new}")
    assert visit.page.locator('[role="tab"][aria-selected="true"]').count() == 1
    if old == "alignment":
        visit.page.wait_for_selector("details.matrix .chart-frame")


def test_tabs_are_reached_by_keys(visit):
    page = visit.open("read")
    page.locator('[role="tab"][aria-selected="true"]').focus()
    seen = []
    for _ in range(5):
        page.keyboard.press("ArrowRight")
        seen.append(page.locator('[role="tab"][aria-selected="true"]').inner_text())
    assert seen == ["Heads", "Search", "Try", "Compare", "Read"]  # and no map of so short a text
