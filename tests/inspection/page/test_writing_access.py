"""The page for everybody: axe finds no violation in any view, light or dark, and keys reach everything."""

import browsing
import pytest
import traced

from regard.inspection.page.server import PageServer

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]
AXE = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe-playwright-python")


@pytest.fixture(scope="module")
def served():
    traces = [traced.translation(), traced.translation(seed=7, title="another")]
    with PageServer(traces, what_if=lambda question: traced.translation(seed=3)) as server:
        yield server.address


def assert_no_violation(page):
    found = AXE.Axe().run(page)
    told = [f"{one['id']}: {one['help']}: {node['html'][:200]}" for one in found.response["violations"]
            for node in one["nodes"]]
    assert not told, "\n".join(told)


@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_no_violation(chromium, served, dark):
    with browsing.visiting(chromium, served, dark=dark) as visit:
        for view in browsing.VIEWS:
            page = visit.open(view)
            page.wait_for_timeout(150)
            assert_no_violation(page)
        page = visit.open("alignment", row=1, column=2)
        page.wait_for_selector(".weights li")
        page.locator("details.table summary").first.click()
        page.wait_for_selector("details.table table")
        assert_no_violation(page)
        page = visit.open("heads")
        page.locator("button.card").first.click()
        page.wait_for_selector("dialog[open] .facts strong")
        assert_no_violation(page)


def test_axe_finds_no_violation_in_an_answer(chromium, served):
    with browsing.visiting(chromium, served) as visit:
        page = visit.open("what-if")
        page.locator("form.what-if button.strong").click()
        page.wait_for_selector(".result h2")
        page.wait_for_timeout(150)
        assert_no_violation(page)


def test_axe_would_find_one(chromium, served):
    visit = browsing.Visit(chromium, served)
    page = visit.open("alignment")
    page.evaluate("() => { const button = document.createElement('button'); document.body.append(button); }")
    with pytest.raises(AssertionError, match="button-name"):
        assert_no_violation(page)
    visit.close()


def test_every_control_is_reached_by_the_tab_key(chromium, served):
    with browsing.visiting(chromium, served) as visit:
        page = visit.open("alignment")
        browsing.until(page, "() => document.querySelector('.chart-frame')")
        seen = set()
        for _ in range(40):
            page.keyboard.press("Tab")
            seen.add(page.evaluate("() => document.activeElement.className || document.activeElement.localName"))
        assert {"chart-frame", "select", "word"} <= seen


def test_the_theme_can_be_changed(chromium, served):
    with browsing.visiting(chromium, served) as visit:
        page = visit.open("alignment")
        light = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        page.get_by_role("button", name="Dark").click()
        dark = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        assert light != dark
        page.get_by_role("button", name="Light").click()
        assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == light


def test_a_narrow_screen_does_not_scroll_sideways(chromium, served):
    with browsing.visiting(chromium, served, size=(380, 700)) as visit:
        for view in browsing.VIEWS:
            page = visit.open(view)
            page.wait_for_timeout(100)
            assert page.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0
