"""The files of the translator's page: what they may contain, and their colours."""

import re
from importlib import resources

import pytest

from regard.serving.page.static import POLICY, load_assets

ASSETS = {name: asset.body.decode() for name, asset in load_assets().items()}
MODULES = sorted(name for name in ASSETS if name.endswith(".js"))
FORBIDDEN = {
    "a text becomes markup":
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|srcdoc",
    "a text becomes code": r"\beval\b|new Function|setTimeout\(\s*[\"'`]|javascript:|import\(\s*[^\"]",
    "a style in markup, which the policy forbids": r"setAttribute\(\s*[\"']style|[{,] ?style: ",
    "an address": r"https?://(?!www\.w3\.org/2000/svg\")|wss?://|WebSocket|EventSource|sendBeacon",
}


def test_the_page_is_under_80_kilobytes():
    assert sum(len(text.encode()) for text in ASSETS.values()) < 80_000


@pytest.mark.parametrize("name", [*MODULES, "page.css"])
def test_a_file_says_what_it_is_for(name):
    lines = ASSETS[name].splitlines()
    assert len(lines) <= 300
    assert lines[0].startswith(("// ", "/* "))
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize("what", sorted(FORBIDDEN))
def test_nothing_dangerous_is_written(what):
    found = [f"{name}: {line}" for name in ASSETS for line in ASSETS[name].splitlines()
             if re.search(FORBIDDEN[what], line) and not name.endswith(".svg")]
    assert found == []


def test_every_module_is_used_and_every_import_exists():
    imported = {name for module in MODULES for name in re.findall(r'from "\./([\w.]+)"', ASSETS[module])}
    assert imported | {"main.js"} == set(MODULES)


def test_every_element_that_is_asked_for_is_there():
    known = set(re.findall(r'id="([\w-]+)"', ASSETS["index.html"]))
    asked = {name for module in MODULES for name in re.findall(r'byId\("([\w-]+)"\)', ASSETS[module])}
    assert asked <= known


def test_the_policy_allows_this_server_only():
    assert "default-src 'none'" in POLICY
    assert not re.search(r"unsafe|\*|https?:", POLICY)


def colours(style, theme):
    """The colours of a theme, with their names."""
    rule = next(rule for rule in style.split("}") if f"color-scheme: {theme};" in rule)
    return {*re.findall(r"--([\w-]+): (#[0-9a-f]{6})", rule)}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_both_pages_have_the_same_colours(theme):
    other = resources.files("regard.inspection.page").joinpath("assets", "style.css").read_text(encoding="utf-8")
    assert len(colours(ASSETS["page.css"], theme)) == 9
    assert colours(ASSETS["page.css"], theme) <= colours(other, theme)
