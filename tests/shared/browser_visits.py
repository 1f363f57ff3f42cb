"""A real browser for tests of the page. Whatever it complains of, and whomever it asks, is written down."""

import contextlib
import shutil
import time
from urllib.parse import urlencode

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
VIEWS = ("read", "heads", "search", "try", "compare", "map")


_shared = {"users": 0}


@contextlib.contextmanager
def browser():
    """Chromium without a window, one for each process: Playwright's synchronous API cannot be started inside itself.

    A fixture of one package may still have it open while a test of another runs; the last one to leave closes it.
    """
    from playwright.sync_api import sync_playwright

    if not _shared["users"]:
        path = next(filter(None, map(shutil.which, CHROMIUM)))
        _shared["playwright"] = sync_playwright().start()
        _shared["browser"] = _shared["playwright"].chromium.launch(executable_path=path, args=["--no-sandbox"])
    _shared["users"] += 1
    try:
        yield _shared["browser"]
    finally:
        _shared["users"] -= 1
        if not _shared["users"]:
            _shared.pop("browser").close()
            _shared.pop("playwright").stop()


class Visit:
    """One tab. `complaints` are errors and warnings of its console, errors of scripts, and dialogs."""

    def __init__(self, chromium, address, *, offline=False, dark=False, size=(1200, 900)):
        self.context = chromium.new_context(offline=offline, color_scheme="dark" if dark else "light",
                                            viewport={"width": size[0], "height": size[1]})
        self.page, self.address = self.context.new_page(), address
        self.complaints, self.asked = [], []
        self.page.on("console", self._told)
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("dialog", self._dialog)
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.set_default_timeout(20_000)

    def _told(self, message):
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def _dialog(self, dialog):
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def open(self, view="", **state):
        """Show a view, with what else its address says."""
        given = ({"view": view} if view else {}) | state
        self.page.goto(f"{self.address}#{urlencode(given)}")
        if view:
            self.page.wait_for_selector(f"#view.{view}")
        return self.page

    def strangers(self):
        """Requests to anybody but the page's own place."""
        place = self.address.rsplit("/", 1)[0]
        return [address for address in self.asked if not address.startswith((place, "data:"))]

    def close(self):
        self.context.close()


@contextlib.contextmanager
def visiting(chromium, address, **options):
    """A visit at the end of which nobody has complained, and nobody else was asked."""
    visit = Visit(chromium, address, **options)
    try:
        yield visit
        assert visit.complaints == []
        assert visit.strangers() == []
    finally:
        visit.close()


def until(page, script, argument=None, seconds=20):
    """Wait for a function of the page to give something. The page's policy forbids what would wait inside of it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if page.evaluate(script, argument):
            return
        page.wait_for_timeout(20)
    raise AssertionError(f"waited {seconds} s for {script}")


def table(page):
    """The table of a view, opened: the names above it, and for each row its name and its cells."""
    page.locator("details.table summary").first.click()
    page.wait_for_selector("details.table table tbody tr")
    return page.evaluate("""() => {
        const table = document.querySelector("details.table table");
        const columns = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent);
        const rows = [...table.querySelectorAll("tbody tr")].map((row) =>
            [row.querySelector("th").textContent, [...row.querySelectorAll("td")].map((cell) => cell.textContent)]);
        return [columns, rows];
    }""")


def number(text):
    """What a number on the page says."""
    return 0.0 if text == "masked" else float(text.replace("−", "-").replace("∞", "inf").replace(",", ""))
