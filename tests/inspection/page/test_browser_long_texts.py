"""Long texts: an overview at once, and exact weights where one zooms in; from a file, and served."""

import contextlib
import time

import browser_visits
import psutil
import pytest
import trace_examples

from regard.inspection.page.server import PageServer

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]
COUNT = 4096
PLACES = ((17, 3), (2048, 2000), (4095, 0), (4000, 4000))
CLOSE = 6e-5
"""Four decimals are shown."""


@pytest.fixture(scope="module")
def trace():
    return trace_examples.long(COUNT)


@pytest.fixture(scope="module")
def file(trace, filed):
    return filed(trace)


def weight_at(page, row, column):
    """The weight that the page tells, when one goes there."""
    page.get_by_label("Row", exact=True).fill(str(row))
    page.get_by_label("Column", exact=True).fill(str(column))
    page.get_by_role("button", name="Go there").click()
    browser_visits.until(page, "() => /\\d|masked/.test(document.querySelector('.readout strong')?.textContent ?? '')",
                         None,
                   40)
    told = page.locator(".readout").inner_text()
    assert told.startswith(f"w{row} → w{column}:")
    return browser_visits.number(page.locator(".readout strong").inner_text())


def assert_seen(page, seconds=60):
    """The map has been drawn: its pixels have many colours."""
    browser_visits.until(page, """() => {
        const canvas = document.querySelector(".chart-frame canvas");
        if (!canvas) return false;
        const pen = new OffscreenCanvas(200, 200).getContext("2d", { willReadFrequently: true });
        const [wide, high] = [canvas.width / 3, canvas.height / 3];
        pen.drawImage(canvas, wide, high, wide, high, 0, 0, 200, 200);
        const { data } = pen.getImageData(0, 0, 200, 200);
        const seen = new Set();
        for (let i = 0; i < data.length; i += 4) seen.add((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]);
        return seen.size > 8;
    }""", None, seconds)


def memory():
    """Bytes of the largest process that shows a page."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # one that has just ended
            if "--type=renderer" in process.cmdline():
                found.append(process.memory_info().rss)
    return max(found)


@pytest.mark.thorough
def test_a_long_text_opens_as_a_map(chromium, file):
    with browser_visits.visiting(chromium, file, offline=True) as visit:
        visit.open()
        visit.page.wait_for_selector("#view.map")
        assert_seen(visit.page)
        assert "4,096" in visit.page.locator("#view").inner_text()


@pytest.mark.thorough
@pytest.mark.parametrize("where", ["file", "served"])
def test_zoomed_weights_equal_those_of_python(chromium, trace, file, where):
    weights = trace.attentions[0].look
    with (PageServer([trace]) as server,
          browser_visits.visiting(chromium, file if where == "file" else server.address) as visit):
        page = visit.open("map", attention=0, head=1)
        for row, column in PLACES:
            want = float(weights.rows(row)[1, column])
            assert weight_at(page, row, column) == pytest.approx(want, abs=2 * CLOSE)
        asked = [url for url in visit.asked if "map.json" in url]
        assert bool(asked) == (where == "served")


@pytest.mark.thorough
def test_the_map_moves_and_zooms_by_keys_and_wheel(chromium, file):
    with browser_visits.visiting(chromium, file, size=(1200, 500)) as visit:
        page = visit.open("map")
        assert_seen(page)
        where = page.locator(".where")
        whole = where.inner_text()
        frame = page.locator(".chart-frame").first
        frame.focus()
        page.keyboard.press("+")
        page.keyboard.press("+")
        zoomed = where.inner_text()
        assert zoomed != whole
        page.keyboard.press("ArrowDown")
        assert where.inner_text() != zoomed
        page.keyboard.press("0")
        assert where.inner_text() == whole
        box = frame.bounding_box()
        page.mouse.move(box["x"] + 300, box["y"] + 100)
        page.mouse.wheel(0, 60)  # scrolls the page
        browser_visits.until(page, "() => scrollY > 0")
        assert where.inner_text() == whole
        page.keyboard.down("Control")
        page.mouse.wheel(0, -480)
        page.keyboard.up("Control")
        browser_visits.until(page, "(before) => document.querySelector('.where').textContent !== before", whole)


def test_a_file_without_room_has_an_overview_and_says_so(chromium, filed):
    trace = trace_examples.long(1500)
    with browser_visits.visiting(chromium, filed(trace, size_limit=200_000, file="mine.safetensors")) as visit:
        page = visit.open("map")
        assert_seen(page)
        assert "regard look mine.safetensors" in page.locator("#view").inner_text()


@pytest.mark.thorough
def test_what_if_of_a_long_text_shows_what_changed(chromium):
    """Too long for maps by words: those of a head, as they are served and as they come with the answer."""
    with (PageServer([trace_examples.long(1500)], what_if=lambda question: trace_examples.long(1500, seed=1)) as server,
          browser_visits.visiting(chromium, server.address) as visit):
        page = visit.open("try")
        page.locator("form.try-form button.strong").click()
        page.wait_for_selector(".result h2")
        assert_seen(page)
        assert page.locator(".result .chart-frame").count() == 3
        assert "text, layer 1, head 0" in page.locator(".result").inner_text()


@pytest.mark.slow
def test_16384_tokens(chromium, filed):
    """A picture 5 s after it is opened, in less than 500 MB, at 30 frames a second."""
    address = filed(trace_examples.long(16_384, heads=8, width=64))
    with browser_visits.visiting(chromium, address, offline=True) as visit:
        began = time.monotonic()
        visit.page.goto(address, wait_until="commit")
        assert_seen(visit.page, 60)
        assert time.monotonic() - began < 5
        largest = memory()
        visit.page.locator(".chart-frame").first.focus()
        for _ in range(3):
            visit.page.keyboard.press("+")
            visit.page.wait_for_timeout(500)
            largest = max(largest, memory())
        assert largest < 500e6
        frames = visit.page.evaluate("""async () => {
            const [frame, began] = [document.querySelector(".chart-frame"), performance.now()];
            let count = 0;
            while (performance.now() < began + 3000) {
                await new Promise((done) => requestAnimationFrame(done));
                count += 1;
                const key = count % 8 < 4 ? "ArrowRight" : "ArrowDown";
                if (count % 4 === 0) frame.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
            }
            return count / 3;
        }""")
        assert frames > 30
