"""Heads in a browser: roles and costs of the model, the score of a weight by dimension, and heads on a phone."""

from dataclasses import replace

import browser_visits
import pytest
import reading_examples
import trace_examples
from reading_examples import LOOKED

from regard.inspection.page.server import PageServer
from regard.inspection.trace import Trace
from regard.inspection.trace_format import (
    MeasuredAttention,
    MeasuredHead,
    MeasuredHeads,
    TracedAttention,
    TraceSide,
)

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]
PHONE = (390, 844)


def measured():
    """Roles and costs of the 24 heads of the translation; no two costs are alike."""
    trace, attentions, cost = trace_examples.translation(), [], 0.0
    for number, one in enumerate(trace.attentions):
        names = ("first", "gold") if one.name.endswith("cross") else ("itself", "previous")
        heads = []
        for head in range(one.heads):
            cost = round((cost + 0.0731) % 0.5 - 0.01, 4)
            scores = {names[0]: 0.9 - 0.1 * head, names[1]: 0.05 + 0.02 * number}
            heads.append(MeasuredHead(cost, 0.02, scores, names[0] if head < 2 else None))
        attentions.append(MeasuredAttention(one.name, {names[0]: 0.2, names[1]: 0.1}, tuple(heads)))
    return replace(trace, heads=MeasuredHeads("<b>test</b>.tsv", 200, 1.2651, tuple(attentions)))


@pytest.fixture(scope="module")
def trace():
    return measured()


@pytest.fixture
def visit(chromium, filed, trace):
    with browser_visits.visiting(chromium, filed(trace), offline=True) as found:
        yield found


def cards(page):
    """The titles of all cards and what they say of costs and roles, in order."""
    browser_visits.until(page, "() => document.querySelectorAll('.card .cost').length === 24")
    return page.evaluate("""() => [...document.querySelectorAll("button.card")].map((card) => ({
        title: card.querySelector(".title").textContent,
        cost: parseFloat(card.querySelector(".cost").textContent.replace("cost ", "").replace("−", "-")),
        named: card.dataset.named ?? "",
        role: card.querySelector(".cost").previousElementSibling.textContent,
        shown: card.checkVisibility(),
    }))""")


def known(trace):
    """By the title of a card, what was measured of its head."""
    names = {"encoder.0.self": "reads, layer 1", "encoder.1.self": "reads, layer 2", "decoder.0.self":
             "own words, layer 1", "decoder.1.self": "own words, layer 2", "decoder.0.cross": "source, layer 1",
             "decoder.1.cross": "source, layer 2"}
    return {f"{names[one.name]}, head {number}": head for one in trace.heads.attentions
            for number, head in enumerate(one.heads)}


def test_each_head_has_its_role_and_its_cost(visit, trace):
    page = visit.open("heads")
    found, wanted = cards(page), known(trace)
    assert [one["title"] for one in found] == list(wanted)  # by place in the model
    for one in found:
        head = wanted[one["title"]]
        assert one["cost"] == pytest.approx(head.cost, abs=5e-5)
        name = {"first": "first token", "itself": "itself"}
        if head.role:
            assert one["named"] == name[head.role]
            assert one["role"] == f"{name[head.role]} {round(100 * head.roles[head.role])}\N{NO-BREAK SPACE}%"
        else:
            assert (one["named"], one["role"][0], one["role"][-1]) == ("", "(", ")")
    told = page.locator(".tally").inner_text()
    assert "200 sentences of <b>test</b>.tsv" in told
    assert "1.265 nats" in told
    assert "itself (8)" in told


def test_heads_are_sorted_and_filtered(visit, trace):
    page = visit.open("heads", sort="cost")
    found, wanted = cards(page), known(trace)
    assert [one["cost"] for one in found] == sorted((head.cost for head in wanted.values()), reverse=True)
    assert {one["title"] for one in found} == set(wanted)
    page.get_by_label("Sort by").select_option("role")
    browser_visits.until(page, "() => document.querySelectorAll('section.layer').length === 3")
    assert [title.split(" ", 1)[0] for title in page.locator("section.layer h2").all_inner_texts()] == [
        "itself", "first", "no"]
    scores = [one["role"] for one in cards(page)][:8]
    assert scores == sorted(scores, reverse=True)
    page.get_by_label("Show", exact=True).select_option("first token")
    assert "named=first+token" in page.url
    assert [one["named"] == "first token" for one in cards(page)] == [one["shown"] for one in cards(page)]
    assert page.locator("section.layer h2:visible").count() == 1
    page.reload()  # a link opens the same
    assert sum(one["shown"] for one in cards(page)) == 4


def test_a_head_shows_all_its_scores(visit, trace):
    page = visit.open("heads", attention=5, head=1, large="yes")
    page.wait_for_selector("dialog[open] table.roles")
    head = trace.heads.attentions[5].heads[1]
    rows = page.locator("table.roles tr").evaluate_all(
        "(all) => all.map((row) => [...row.children].map((cell) => cell.textContent))")
    assert rows == [["first token", f"{head.roles['first']:.4f}", "0.2000"],
                    ["gold links", f"{head.roles['gold']:.4f}", "0.1000"]]
    assert page.locator("table.roles tr.strong").count() == 1
    assert f"{head.cost:.4f}" in page.locator("dialog[open]").inner_text().replace("−", "-")


def test_without_a_measurement_the_page_says_how_to_make_one(chromium, filed):
    with browser_visits.visiting(chromium, filed(trace_examples.translation())) as visit:
        page = visit.open("heads")
        assert "regard look MODEL --heads DATA" in page.locator(".tally").inner_text()
        assert page.get_by_label("Sort by").count() == 0


def click_cell(page, row, column):
    """Select a cell of the map in the dialog by keys, and pick it."""
    page.locator("dialog .chart-frame").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    for _ in range(row):
        page.keyboard.press("ArrowDown")
    for _ in range(column - 1):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")


def open_score(visit, head):
    """The page with the score of one weight of a head in the dialog."""
    page = visit.open("heads", attention=5, head=head, large="yes")
    page.wait_for_selector("dialog[open] .facts strong")
    click_cell(page, 3, 4)
    page.wait_for_selector("dialog .score li")
    return page


def test_the_score_of_a_weight_by_dimension(chromium):
    trace = trace_examples.translation()
    look = trace.attentions[5].look
    with (PageServer([trace]) as server, browser_visits.visiting(chromium, server.address) as visit):
        page = open_score(visit, head=2)
        assert page.locator("dialog .score h3").inner_text() == "▁dort → eps"
        products = [float(look.query[2, 3, d]) * float(look.key[2, 4, d]) for d in range(8)]
        order = sorted(range(8), key=lambda d: -abs(products[d]))
        told = page.locator("dialog .score li").evaluate_all(
            "(all) => all.map((one) => [one.children[0].textContent, one.children[2].textContent])")
        assert [name for name, _ in told] == [f"dimension {d}" for d in order]
        values = [browser_visits.number(value) for _, value in told]
        assert values == pytest.approx([products[d] for d in order], abs=6e-5)
        signs = page.locator("dialog .score li .bar").evaluate_all("(all) => all.map((one) => one.className)")
        assert signs == ["bar below" if products[d] < 0 else "bar" for d in order]
        total, score = (browser_visits.number(text) for text in page.locator(".score .sum strong").all_inner_texts())
        assert total == pytest.approx(sum(products), abs=6e-5)
        assert score == pytest.approx(sum(products) * 8 ** -0.5, abs=6e-5)
        assert f"{float(look.weights()[2, 3, 4]):.4f}" in page.locator(".score .sum").inner_text()


@pytest.mark.parametrize("attention", [0, 1])
def test_a_score_that_is_no_product_says_so(chromium, attention):
    with (PageServer([trace_examples.hostile()]) as server,
          browser_visits.visiting(chromium, server.address) as visit):
        page = visit.open("heads", attention=attention, head=0, large="yes")
        page.wait_for_selector("dialog[open] .facts p")
        assert "NaN" not in page.locator("dialog .facts").inner_text()
        click_cell(page, 1, 1)
        browser_visits.until(page, "() => document.querySelector('dialog .score h3')")
        browser_visits.until(page, "() => document.querySelector('dialog .score .quiet')")
        part = ("without the queries and keys", "is not a dot product")[attention]
        assert part in page.locator("dialog .score").inner_text()


def test_a_file_says_how_to_get_the_score(visit):
    page = visit.open("heads", attention=5, head=2, large="yes")
    page.wait_for_selector("dialog[open] .facts strong")
    click_cell(page, 1, 1)
    assert "regard look MODEL TEXT" in page.locator("dialog .score").inner_text()


def test_pinned_tokens_and_places_of_a_map_have_scores_too(chromium):
    trace = trace_examples.long(150)
    look = trace.attentions[0].look
    with (PageServer([trace]) as server, browser_visits.visiting(chromium, server.address) as visit):
        page = visit.open("map", attention=0, head=1)
        page.get_by_label("Row", exact=True).fill("70")
        page.get_by_label("Column", exact=True).fill("30")
        page.get_by_role("button", name="Go there").click()
        page.locator(".chart-frame").focus()
        page.keyboard.press("Enter")
        page.wait_for_selector(".score .sum strong")
        want = float((look.query[1, 70].double() * look.key[1, 30].double()).sum())
        told = page.locator(".score .sum strong").first.inner_text()
        assert browser_visits.number(told) == pytest.approx(want, abs=6e-5)
    with (PageServer([trace_examples.translation()]) as server,
          browser_visits.visiting(chromium, server.address) as visit):
        page = visit.open("read", matrix="yes", units="tokens", attention=5, head=2, row=3, column=4)
        page.wait_for_selector(".matrix .score .sum strong")
        assert page.locator(".matrix .score h3").inner_text() == "▁dort → eps"


@pytest.fixture
def phone(chromium, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(reading_examples.html(reading_examples.with_influence()), encoding="utf-8")
    with browser_visits.visiting(chromium, path.as_uri(), size=PHONE) as found:
        yield found


def box_of(page, selector):
    return page.evaluate("""(selector) => {
        const { left, top, right, bottom } = document.querySelector(selector).getBoundingClientRect();
        return [left, top, right, bottom];
    }""", selector)


def test_the_heads_of_a_phone_are_a_sheet(phone):
    page = phone.open("read")
    page.wait_for_selector(".ribbons path")
    drawn = """() => [...document.querySelectorAll(".ribbons path")].map((one) =>
        [Number(one.dataset.row), Number(one.dataset.column)])"""
    page.locator(".strip summary").click()
    left, top, right, bottom = box_of(page, ".strip")
    assert (left, right, bottom) == (0, PHONE[0], PHONE[1])
    assert top >= PHONE[1] * 0.5
    words = page.evaluate("() => document.querySelector('.line.target .w').getBoundingClientRect().bottom")
    assert words < top  # the words that it changes stay in sight
    page.locator(".mini").nth(5).click()
    browser_visits.until(page, "() => location.hash.includes('head=1')")
    assert page.locator(".strip").get_attribute("open") is not None
    flipped = LOOKED.flip(1)[:5, :5]
    assert sorted(page.evaluate(drawn)) == [[i, j] for i in range(5) for j in range(5) if flipped[i, j] >= 0.06]
    page.keyboard.press("Escape")
    assert page.locator(".strip").get_attribute("open") is None
    assert page.evaluate("() => document.activeElement.localName") == "summary"


def assert_nothing_is_wider(page):
    """No element that can be seen ends outside of the screen, except in what scrolls by itself."""
    wide = page.evaluate("""() => {
        const scrolls = (one) => one && (["auto", "scroll"].includes(getComputedStyle(one).overflowX) ||
            scrolls(one.parentElement));
        return [...document.querySelectorAll("body *")].filter((one) => {
            const { left, right, width, height } = one.getBoundingClientRect();
            return width && height && (right > innerWidth + 1 || left < -1) && !one.closest(".visually-hidden, svg") &&
                !scrolls(one.parentElement);
        }).map((one) => `${one.localName}.${one.className}`);
    }""")
    assert wide == []
    assert page.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0


@pytest.mark.thorough
def test_nothing_is_wider_than_a_phone(chromium, phone, trace):
    page = phone.open("read")
    page.wait_for_selector(".ribbons path")
    assert_nothing_is_wider(page)
    page.locator(".strip summary").click()
    assert_nothing_is_wider(page)
    with (PageServer([trace], what_if=lambda question: trace) as server,
          browser_visits.visiting(chromium, server.address, size=PHONE) as visit):
        for view in browser_visits.VIEWS:
            page = visit.open(view)
            page.wait_for_timeout(150)
            assert_nothing_is_wider(page)
        for sort in ("cost", "role"):
            page = visit.open("heads", sort=sort)
            cards(page)
            assert_nothing_is_wider(page)
        page = open_score(visit, head=2)
        assert_nothing_is_wider(page)


@pytest.mark.parametrize("size", [(1440, 900), PHONE])
def test_words_of_a_matrix_without_labels_are_told_at_a_fixed_place(chromium, filed, size):
    """A hundred words: row and column of the cell under the pointer stand in the line below the map, in sight."""
    names = [f"word{number}" for number in range(100)]
    sides = {name: TraceSide(tuple(names)) for name in ("source", "target")}
    cross = TracedAttention("decoder.0.cross", "target", "source", trace_examples.looks(1, 100, 100), 0, "cross")
    with browser_visits.visiting(chromium, filed(Trace(sides, (cross,), "hundred")), size=size) as visit:
        page = visit.open("read", matrix="yes", units="tokens")
        browser_visits.until(page, "() => document.querySelector('.matrix .keyline')?.textContent")
        page.locator(".matrix .chart-frame").scroll_into_view_if_needed()
        canvas = page.locator(".matrix .chart-frame canvas").bounding_box()
        told = set()
        for share in (0.4, 0.6, 0.8):
            y = min(canvas["y"] + canvas["height"] * share, size[1] - 150)
            page.mouse.move(canvas["x"] + canvas["width"] * share, y)
            text = page.locator(".matrix .readout").inner_text()
            assert text.startswith("word")
            assert " → word" in text
            told.add(text)
            left, top, right, bottom = box_of(page, ".matrix .readout")
            assert 0 <= left < right <= size[0]
            assert 0 <= top < bottom <= size[1]
        assert len(told) == 3


@pytest.mark.thorough
@pytest.mark.parametrize(("dark", "size"), [(False, (1440, 900)), (True, PHONE)])
def test_axe_finds_no_violation_in_heads(chromium, trace, phone, dark, size):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe-playwright-python")

    def assert_no_violation(page):
        found = axe.Axe().run(page).response["violations"]
        assert not [f"{one['id']}: {node['html'][:200]}" for one in found for node in one["nodes"]]

    with (PageServer([trace]) as server,
          browser_visits.visiting(chromium, server.address, dark=dark, size=size) as visit):
        for sort in ("place", "cost", "role"):
            page = visit.open("heads", sort=sort, named="first token" if sort == "cost" else "")
            cards(page)
            page.wait_for_timeout(200)
            assert_no_violation(page)
        page = open_score(visit, head=1)
        assert_no_violation(page)
    page = phone.open("read")
    page.wait_for_selector(".ribbons path")
    page.locator(".strip summary").click()
    page.wait_for_timeout(200)
    assert_no_violation(page)
