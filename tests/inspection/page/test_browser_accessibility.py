"""The page for everybody: axe finds no violation in any view, light or dark, and keys reach everything."""

import browser_visits
import pytest
import reading_examples
import trace_examples

from regard.inspection.page.server import PageServer

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]
AXE = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe-playwright-python")


@pytest.fixture(scope="module")
def served():
    traces = [trace_examples.translation(), trace_examples.translation(seed=7, title="another")]
    with PageServer(traces, what_if=lambda question: trace_examples.translation(seed=3)) as server:
        yield server.address


def assert_no_violation(page):
    found = AXE.Axe().run(page)
    told = [f"{one['id']}: {one['help']}: {node['html'][:200]}" for one in found.response["violations"]
            for node in one["nodes"]]
    assert not told, "\n".join(told)


@pytest.mark.thorough
@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_no_violation(chromium, served, dark):
    with browser_visits.visiting(chromium, served, dark=dark) as visit:
        for view in browser_visits.VIEWS:
            page = visit.open(view)
            page.wait_for_timeout(150)
            assert_no_violation(page)
        page = visit.open("read", matrix="yes", row=1, column=2)
        page.wait_for_selector(".weights li")
        page.locator("details.table summary").first.click()
        page.wait_for_selector("details.table table")
        assert_no_violation(page)
        page = visit.open("heads")
        page.locator("button.card").first.click()
        page.wait_for_selector("dialog[open] .facts strong")
        assert_no_violation(page)


@pytest.mark.thorough
@pytest.mark.parametrize(("dark", "size"), [(False, (1440, 900)), (True, (390, 844))])
def test_axe_finds_no_violation_in_what_is_read(chromium, tmp_path, dark, size):
    path = tmp_path / "page.html"
    path.write_text(reading_examples.html(reading_examples.with_influence()), encoding="utf-8")
    picture = tmp_path / "image.html"
    picture.write_text(reading_examples.html(reading_examples.image()[0]), encoding="utf-8")
    with browser_visits.visiting(chromium, path.as_uri(), dark=dark, size=size) as visit:
        for show in ("mattered", "looked", "both"):
            page = visit.open("read", show=show, word="t2")
            page.wait_for_selector('.w[aria-pressed="true"]')
            page.wait_for_timeout(200)  # transitions
            assert_no_violation(page)
        page = visit.open("search")
        assert_no_violation(page)
    with browser_visits.visiting(chromium, picture.as_uri(), dark=dark, size=size) as visit:
        visit.open("read").wait_for_selector("canvas.picture")
        assert_no_violation(visit.page)


@pytest.mark.thorough
@pytest.mark.parametrize(("dark", "size"), [(True, (1440, 900)), (False, (390, 844))])
@pytest.mark.parametrize("name", ["predicted", "labelled", "in_groups", "classified", "patched"])
def test_axe_finds_no_violation_in_a_text(chromium, filed, name, dark, size):
    with browser_visits.visiting(chromium, filed(getattr(reading_examples, name)()), dark=dark, size=size) as visit:
        for state in ({}, {"word": "t2"}, {"word": "s1"}):
            page = visit.open("read", **state)
            page.wait_for_selector(".w, canvas.picture")
            page.wait_for_timeout(200)  # transitions
            assert_no_violation(page)
            assert page.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0


@pytest.mark.thorough
def test_axe_finds_no_violation_in_an_answer(chromium, served):
    with browser_visits.visiting(chromium, served) as visit:
        page = visit.open("try")
        page.locator("form.try-form button.strong").click()
        page.wait_for_selector(".result h2")
        page.wait_for_timeout(150)
        assert_no_violation(page)


def test_axe_would_find_one(chromium, served):
    visit = browser_visits.Visit(chromium, served)
    page = visit.open("read", matrix="yes")
    page.evaluate("() => { const button = document.createElement('button'); document.body.append(button); }")
    with pytest.raises(AssertionError, match="button-name"):
        assert_no_violation(page)
    visit.close()


@pytest.mark.thorough
def test_every_control_is_reached_by_the_tab_key(chromium, served):
    with browser_visits.visiting(chromium, served) as visit:
        page = visit.open("read", matrix="yes")
        browser_visits.until(page, "() => document.querySelector('.chart-frame')")
        seen = set()
        for _ in range(40):
            page.keyboard.press("Tab")
            seen.add(page.evaluate("() => document.activeElement.className || document.activeElement.localName"))
        assert {"chart-frame", "select", "mini"} <= seen
        assert any(name.startswith("w") for name in seen)


def test_the_theme_can_be_changed(chromium, served):
    with browser_visits.visiting(chromium, served) as visit:
        page = visit.open("read", matrix="yes")
        light = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        page.get_by_role("button", name="Dark").click()
        dark = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        assert light != dark
        page.get_by_role("button", name="Light").click()
        assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == light


@pytest.mark.thorough
def test_a_narrow_screen_does_not_scroll_sideways(chromium, served):
    with browser_visits.visiting(chromium, served, size=(380, 700)) as visit:
        for view in browser_visits.VIEWS:
            page = visit.open(view)
            page.wait_for_timeout(100)
            assert page.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0


def tab_to(page, script, most=80):
    """Press the Tab key until what has the focus is wanted."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if page.evaluate(f"() => {{ const one = document.activeElement; return {script}; }}"):
            return
    raise AssertionError(f"the Tab key does not reach {script}")


def test_a_path_of_the_tree_is_chosen_by_keys_alone(chromium, served):
    with browser_visits.visiting(chromium, served) as visit:
        page = visit.open("search")
        tab_to(page, "one.getAttribute('role') === 'treeitem'")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        assert page.locator(".below h2").inner_text() == "Le noir chat dort."
        assert "node=13" in page.url
        page.keyboard.press("ArrowLeft")
        page.keyboard.press(" ")
        assert page.locator(".below h2").inner_text() == "Le"
        assert "node=0" in page.url


def test_a_head_is_enlarged_and_put_back_by_keys_alone(chromium, served):
    with browser_visits.visiting(chromium, served) as visit:
        page = visit.open("heads")
        tab_to(page, "one.className === 'card'")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.wait_for_selector("dialog[open] .facts strong")
        assert page.locator("dialog h2").inner_text() == "reads, layer 1, head 1 encoder.0.self, head 1"
        page.keyboard.press("Escape")
        assert page.locator("dialog[open]").count() == 0
        assert "head 1" in page.evaluate("() => document.activeElement.textContent")


@pytest.mark.thorough
def test_a_model_is_asked_by_keys_alone(chromium, served):
    with browser_visits.visiting(chromium, served) as visit:
        page = visit.open("try")
        tab_to(page, "one.localName === 'button' && one.textContent === 'black'")
        page.keyboard.press("Enter")  # the word becomes a field in its place, and typing replaces it
        page.keyboard.type("white")
        assert page.get_by_label("Text", exact=True).input_value() == "The white cat sleeps."
        page.keyboard.press("Enter")
        page.wait_for_selector(".result h2")


@pytest.mark.thorough
def test_the_focus_stays_where_it_was_when_a_choice_is_made(chromium, served):
    with browser_visits.visiting(chromium, served) as visit:
        page = visit.open("compare")
        for label in ("Attention", "Head", "Scale"):
            page.get_by_label(label, exact=True).last.focus()
            page.keyboard.press("ArrowUp" if label == "Attention" else "ArrowDown")
            page.wait_for_timeout(100)
            held = page.evaluate("() => document.activeElement.labels?.[0].textContent")
            assert held == label
