"""The pages hang together: the contents have all of them, links lead somewhere, pictures are there and small."""

import re
import shutil
import subprocess

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


def test_the_road_has_equation_code_picture_and_result(texts):
    steps = [name for name in texts if name.startswith("road/") and not name.endswith("index.md")]
    assert len(steps) == 13
    for name in steps:
        headings = re.findall(r"^## (.*)$", prose(texts[name]), re.MULTILINE)
        assert headings == ["Equation", "Code", "Picture", "Measured"], name
        parts = dict(zip(headings, re.split(r"^## .*$", texts[name], flags=re.MULTILINE)[1:], strict=True))
        assert "```text" in parts["Equation"], name
        assert any(block.included for block in blocks(parts["Code"])), name
        assert "![" in parts["Picture"], name
        assert re.search(r"`(?:python benchmarks|regard )|RESULTS", parts["Measured"]), f"{name}: no command"


def test_every_road_result_is_in_the_results():
    """Numbers with a fraction in the tables of `Measured` stand in benchmarks/RESULTS.md, or are rounded from there."""
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8").replace(",", "")
    there = [float(number) for number in re.findall(r"\d+\.\d+", results)]
    for page in pages():
        if page.parent.name == "road":
            measured = page.read_text(encoding="utf-8").partition("## Measured")[2].replace(",", "")
            for number in re.findall(r"(?<![\d.])\d+\.\d+", measured):
                places = len(number.partition(".")[2])
                assert any(round(one, places) == float(number) for one in there), f"{page.name}: {number}"


def test_lines_are_short_and_say_nothing_of_the_workplace():
    for page in pages():
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            assert not UNSAID.search(line) or page.name == "log.md", f"{page}:{number}: {line}"
            if page.parent.name in ("road", "howto") and not line.startswith(("|", "![", "<!--", "    ")):
                assert len(line) <= COLUMNS + 20, f"{page}:{number}"


def test_the_site_needs_no_network():
    assert SITE["theme"]["font"] is False
    for name in SITE["extra_css"]:
        assert "url(" not in (DOCS / name).read_text(encoding="utf-8")
    assert "extra_javascript" not in SITE
    assert SITE["plugins"] == ["search"]  # "offline" would ask another server for a script


def test_make_builds_the_site_from_fresh_pages():
    """Only what make would run: code and reference first, then the builder, which stops at a warning."""
    plan = subprocess.run(["make", "-n", "-B", "docs"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert plan.returncode == 0, plan.stderr
    places = [plan.stdout.index(part) for part in ("docs/included.py", "docs/reference.py", "zensical build")]
    assert places == sorted(places)
    assert "--strict" in plan.stdout


def test_the_site_is_built(tmp_path):
    """With the builder, where it is installed: every page is there, and asks nobody else for anything."""
    zensical = shutil.which("zensical")
    if zensical is None:
        pytest.skip("zensical, of the extra `docs`, is not installed")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    shutil.copytree(DOCS, tmp_path / "docs", ignore=shutil.ignore_patterns("reference", "*.py"))
    (tmp_path / "docs" / "reference").mkdir()
    for name, text in script("reference").pages().items():
        (tmp_path / "docs" / "reference" / f"{name}.md").write_text(text, encoding="utf-8")
    done = subprocess.run([zensical, "build", "--strict"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in entries(SITE["nav"]):
        page = (tmp_path / "build" / "site" / name).with_suffix(".html").read_text(encoding="utf-8")
        assert not re.search(r'<(?:script|img|link)[^>]*(?:src|href)="?https?:', page), name
