"""What the page is made of: small, in one order, typed, and without anything that could run a text as code."""

import re
import shutil
import subprocess

import pytest
from noded import ASSETS

from regard.inspection.page.document import load_bundle

MODULES = sorted(path.name for path in ASSETS.glob("*.js"))
TYPES = ["--allowJs", "--checkJs", "--noEmit", "--strict", "--noUnusedLocals", "--noUnusedParameters", "--skipLibCheck",
         "--target", "es2023", "--module", "esnext", "--moduleResolution", "bundler",
         "--lib", "es2023,dom,dom.iterable"]
typed = pytest.mark.skipif(shutil.which("tsc") is None, reason="no tsc here; npm install -g typescript@5.9 brings it")


def test_the_page_is_under_100_kilobytes():
    assert sum(len(part.encode()) for part in load_bundle()) < 100_000


def test_every_module_is_in_the_order():
    assert sorted((ASSETS / "order.txt").read_text().split()) == MODULES


@pytest.mark.parametrize("name", [*MODULES, "style.css", "types.d.ts"])
def test_a_file_says_what_it_is_for_and_is_short(name):
    lines = (ASSETS / name).read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 400
    assert lines[0].startswith(("// ", "/* "))
    assert max(len(line) for line in lines if not line.startswith("import ")) <= 120


FORBIDDEN = {
    "a text becomes markup":
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|srcdoc",
    "a text becomes code": r"\beval\b|new Function|setTimeout\(\s*[\"'`]|javascript:|import\(\s*[^\"]",
    "a style in markup, which the policy forbids": r"setAttribute\(\s*[\"']style|[{,] ?style: ",
    "an address": r"https?://(?!www\.w3\.org/2000/svg\")|wss?://|XMLHttpRequest|WebSocket|EventSource|sendBeacon",
    "something kept in the browser": r"localStorage|sessionStorage|indexedDB|document\.cookie",
}


@pytest.mark.parametrize("what", sorted(FORBIDDEN))
def test_nothing_dangerous_is_written(what):
    found = [f"{name}: {line}" for name in MODULES for line in (ASSETS / name).read_text(encoding="utf-8").splitlines()
             if re.search(FORBIDDEN[what], line)]
    assert found == []


@pytest.mark.parametrize(("what", "line"), [
    ("a text becomes markup", "room.innerHTML = token;"),
    ("a text becomes code", "setTimeout('go()', 3)"),
    ("a style in markup, which the policy forbids", 'make("p", { style: "x" })'),
    ("an address", 'fetch("https://example.org")'),
    ("something kept in the browser", "localStorage.theme = 1"),
])
def test_what_is_dangerous_would_be_found(what, line):
    assert re.search(FORBIDDEN[what], line)


@typed
def test_types_are_right_and_a_wrong_one_is_found(tmp_path):
    folder = shutil.copytree(ASSETS, tmp_path / "assets")
    (folder / "wrong.js").write_text('import { seen } from "./text.js";\nseen(7);\n')
    files = [*sorted(path.name for path in folder.glob("*.js")), "types.d.ts"]
    done = subprocess.run(["tsc", *TYPES, *files], capture_output=True, text=True, check=False, cwd=folder)
    complaints = [line for line in done.stdout.splitlines() if "error" in line]
    assert [line.partition(":")[0] for line in complaints] == ["wrong.js(2,6)"], done.stdout


def lightness(colour):
    """Relative luminance, as WCAG has it."""
    parts = [int(colour[at:at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize(("ink", "paper"), [
    ("ink", "paper"), ("ink", "raised"), ("ink", "tint"), ("soft", "paper"), ("soft", "raised"), ("accent", "paper"),
    ("accent", "raised"), ("accent", "tint"), ("on-accent", "accent"), ("wrong", "paper"), ("gone", "paper"),
    ("new", "paper"),
])
def test_texts_stand_out_from_what_is_behind_them(theme, ink, paper):
    rules = (ASSETS / "style.css").read_text(encoding="utf-8").split("}")
    rule = next(one for one in rules if f"color-scheme: {theme}" in one)
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", rule))
    high, low = sorted((lightness(colours[ink]), lightness(colours[paper])), reverse=True)
    assert (high + 0.05) / (low + 0.05) >= 4.5
