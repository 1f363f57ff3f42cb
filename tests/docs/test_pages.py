"""The pages hang together: the contents have all of them, links lead somewhere, pictures are there and small."""

import contextlib
import os
import re
import shutil
import subprocess
import sys

import browser_visits
import pytest
import yaml
from paged import DOCS, ROOT, addresses, blocks, pages, prose
from scripted import script

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
LARGEST = 1_000_000
"""Bytes of all pictures together."""
COLUMNS = 120
# Of where and by whom this is worked on the pages say nothing.
UNSAID = re.compile(r"/(?:tmp|work|home|root)/|\bissue|\bsession|\bhelper|PyPI|pip install regard\b", re.IGNORECASE)
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def texts():
    """Every page of the site by its path, the generated ones too."""
    made = {f"reference/{name}.md": text for name, text in script("reference").pages().items()}
    return {str(page.relative_to(DOCS)): page.read_text(encoding="utf-8") for page in pages()} | made


def entries(nav):
    """The paths of a table of contents."""
    for entry in nav:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            yield from entries(value) if isinstance(value, list) else [value]


def test_the_contents_have_every_page_once(texts):
    named = list(entries(SITE["nav"]))
    assert sorted(named) == sorted(texts)


def test_links_lead_somewhere(texts):
    for name, text in texts.items():
        for target in LINK.findall(prose(text)):
            if target.startswith("https://"):
                continue
            path, _, address = target.partition("#")
            place = (DOCS / name).parent / path if path else DOCS / name
            found = str(place.resolve().relative_to(DOCS))
            assert found in texts or place.is_file(), f"{name}: {target}"
            if address:
                assert address in addresses(texts[found]), f"{name}: {target}"


def test_every_picture_is_shown_and_has_words(texts):
    shown = {str(((DOCS / name).parent / path).resolve().relative_to(DOCS)) for name, text in texts.items()
             for words, path in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", text) if words}
    pictures = {str(path.relative_to(DOCS)) for path in (DOCS / "pictures").rglob("*.png")}
    assert shown <= pictures
    assert {path for path in pictures if "road" in path} <= shown
    assert sum((DOCS / path).stat().st_size for path in pictures) < LARGEST


def test_live_pages_are_made_from_their_traces(texts):
    """Every frame shows a page that live.py makes, in a view that it has, and says what it is."""
    made = script("live").pages()
    shown = [(name, found) for name, text in texts.items() for found in
             re.findall(r'<iframe class="live" src="([^"#]+)[^"]*"\s+title="[^"]+" loading="lazy"></iframe>', text)]
    assert len(shown) == sum(text.count("<iframe") for text in texts.values()) > 0
    for name, source in shown:
        place = ((DOCS / name).parent / source).resolve()
        assert (place.parent, place.suffix) == (DOCS / "live", ".html")
        assert place.stem in made
    assert all(len(page) < 300_000 for page in made.values())


LECTURE = ["Question", "Idea", "Equations", "Symbols and names", "Code", "Picture", "Measured", "Exercises",
           "Further reading"]


def lectures(texts):
    """The parts of every lecture by their headings."""
    for name, text in texts.items():
        if name.startswith("road/") and not name.endswith("index.md"):
            headings = re.findall(r"^## (.*)$", prose(text), re.MULTILINE)
            parts = re.split(r"^## .*$", text, flags=re.MULTILINE)[1:]
            yield name, dict(zip(headings, parts, strict=True))


def test_every_lecture_has_all_its_parts(texts):
    assert len(list(lectures(texts))) == 15
    for name, parts in lectures(texts):
        assert list(parts) == LECTURE, name
        assert parts["Question"].strip().endswith("?"), name
        assert len(re.split(r"(?<=\.)\s+", parts["Idea"].strip())) == 3, f"{name}: the idea has three sentences"
        assert "```math" in parts["Equations"], name
        assert "```text" not in texts[name], f"{name}: an equation that is not typeset"
        assert "| symbol |" in parts["Symbols and names"], name
        assert {block.included for block in blocks(parts["Code"])} == {True, False}, name
        assert re.search(r'!\[|<iframe class="live"', parts["Picture"]), name
        assert re.search(r"`(?:python benchmarks|regard )|RESULTS", parts["Measured"]), f"{name}: no command"
        exercises = re.split(r"^\d\. ", parts["Exercises"].strip(), flags=re.MULTILINE)[1:]
        assert len(exercises) in (2, 3), name
        assert all("*expect*" in one.lower() for one in exercises), name
        assert len(re.findall(r"^- .*\b(?:19|20)\d\d", parts["Further reading"], re.MULTILINE)) >= 3, name


def test_every_symbol_of_an_equation_is_in_the_table(texts):
    """A letter that only the typeset equations have would mean nothing to a newcomer."""
    for name, parts in lectures(texts):
        said = parts["Symbols and names"] + prose(parts["Equations"]) + texts["road/index.md"]
        known = set(re.findall(r"[A-Za-z]", "".join(re.findall(r"\$[^$]+\$", said))))
        equations = "".join(block.code for block in blocks(parts["Equations"]) if block.language == "math")
        bare = re.sub(r"\\(?:text|operatorname|begin|end)\{[^}]*\}|\\[A-Za-z]+", " ", equations)
        missing = set(re.findall(r"\b[A-Za-z]\b", re.sub("[_^]", " ", bare))) - known
        assert not missing, f"{name}: {sorted(missing)}"


def test_equations_have_the_form_that_code_hosts_render(texts):
    """One dollar sign on each side of an equation in a sentence, none doubled, every brace closed."""
    for name, text in texts.items():
        plain = re.sub(r"`[^`\n]*`", "", prose(text))
        assert "$$" not in plain, name
        for paragraph in re.split(r"\n\s*\n", plain):
            assert paragraph.count("$") % 2 == 0, f"{name}: {paragraph}"
        equations = [block.code for block in blocks(text) if block.language == "math"]
        for equation in [*equations, *re.findall(r"\$([^$]+)\$", plain)]:
            assert equation.count("{") == equation.count("}"), f"{name}: {equation}"
            assert equation.count(r"\begin") == equation.count(r"\end"), f"{name}: {equation}"


def test_every_measured_number_is_in_the_results(texts):
    """Numbers with a fraction under `Measured` stand in benchmarks/RESULTS.md, or are rounded from there."""
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8").replace(",", "")
    there = [float(number) for number in re.findall(r"\d+\.\d+", results)]
    for name, parts in lectures(texts):
        for number in re.findall(r"(?<![\d.])\d+\.\d+", parts["Measured"].replace(",", "")):
            places = len(number.partition(".")[2])
            assert any(round(one, places) == float(number) for one in there), f"{name}: {number}"


def test_lines_are_short_and_say_nothing_of_the_workplace():
    for page in pages():
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            assert not UNSAID.search(line) or page.name == "log.md", f"{page}:{number}: {line}"
            if page.parent.name in ("road", "howto") and not line.startswith(("|", "![", "<!--", "    ")):
                assert len(line) <= COLUMNS + (20 if page.parent.name == "howto" else 0), f"{page}:{number}"


def test_the_site_needs_no_network():
    assert SITE["theme"]["font"] is False
    for name in SITE["extra_css"]:
        assert "url(" not in (DOCS / name).read_text(encoding="utf-8")
    assert "extra_javascript" not in SITE
    # Without a script of this name the plugin `offline` would ask another server for one.
    assert SITE["extra"]["polyfills"] == ["iframe-worker.js"]
    assert "http" not in (DOCS / "iframe-worker.js").read_text(encoding="utf-8")


def test_make_builds_the_site_from_fresh_pages():
    """Only what make would run: code, reference and live pages first, then the builder, which stops at a warning."""
    plan = subprocess.run(["make", "-n", "-B", "docs"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert plan.returncode == 0, plan.stderr
    steps = ("docs/included.py", "docs/reference.py", "docs/live.py", "zensical build")
    places = [plan.stdout.index(step) for step in steps]
    assert places == sorted(places)
    assert "--strict" in plan.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built by the builder where it is installed."""
    pytest.importorskip("latex2mathml", reason="latex2mathml, of the extra `docs`, is not installed")
    beside = os.path.dirname(sys.executable)  # the environment need not be activated
    zensical = shutil.which("zensical", path=os.pathsep.join((beside, os.environ.get("PATH", ""))))
    if zensical is None:
        pytest.skip("zensical, of the extra `docs`, is not installed")
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    shutil.copytree(DOCS, folder / "docs", ignore=shutil.ignore_patterns("reference", "live", "__pycache__"))
    for made, suffix in (("reference", "md"), ("live", "html")):
        (folder / "docs" / made).mkdir()
        for name, text in script(made).pages().items():
            (folder / "docs" / made / f"{name}.{suffix}").write_text(text, encoding="utf-8")
    done = subprocess.run([zensical, "build", "--strict"], cwd=folder, capture_output=True, text=True, timeout=120,
                          env={**os.environ, "PYTHONPATH": str(folder / "docs")})
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "build" / "site"


def test_the_site_is_built_and_asks_no_other_server(site):
    for name in entries(SITE["nav"]):
        page = (site / name).with_suffix(".html").read_text(encoding="utf-8")
        assert not re.search(r'<(?:script|img|link)[^>]*(?:src|href)="?https?:', page), name
        if name.startswith("road/") and not name.endswith("index.md"):
            assert 'display="block"' in page, f"{name}: no equation"
            assert 'display="inline"' in page, f"{name}: no symbol"


def search(tab, words, result):
    """Paste words into the search, again if need be: a page that has just loaded may not listen yet."""
    from playwright.sync_api import TimeoutError as WaitedTooLong

    for _ in range(10):
        if not tab.evaluate("document.activeElement.shadowRoot?.activeElement?.tagName === 'INPUT'"):
            tab.keyboard.press("Control+k")
            tab.wait_for_timeout(1000)
        tab.keyboard.insert_text(words)
        with contextlib.suppress(WaitedTooLong):
            tab.get_by_text(result).first.wait_for(timeout=30_000)
            return
    pytest.fail(f"the search does not find {result}")


@pytest.mark.browser
@pytest.mark.timeout(900)
def test_pages_open_from_disk_and_the_search_answers(site):
    """In Chromium: no request that fails or leaves the folder, equations have a size, nothing is wider than a phone.
    The time limits are for a machine with other work: the search reads its index in a thread, which waits its turn."""
    wrong = []
    with browser_visits.browser() as chromium:
        tab = chromium.new_page(viewport={"width": 390, "height": 844})
        tab.set_default_timeout(300_000)
        tab.on("request", lambda asked: None if asked.url.startswith(("file:", "data:")) else wrong.append(asked.url))
        tab.on("requestfailed", lambda asked: wrong.append(asked.url) if "ABORTED" not in asked.failure else None)
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        for name in entries(SITE["nav"]):
            tab.goto((site / name).with_suffix(".html").as_uri())
            assert tab.evaluate("document.documentElement.scrollWidth") <= 390, f"{name} is wider than a phone"
            if name == "road/recurrence.md":
                box = tab.locator("math[display=block]").first.bounding_box()
                assert min(box["width"] / 100, box["height"] / 10) > 1
        search(tab, "rotary", "Rotary.forward")
        tab.close()
    assert not wrong
