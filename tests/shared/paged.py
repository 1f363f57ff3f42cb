"""The pages of docs/: which there are, their blocks of code in order, their links and headings."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
GENERATED = DOCS / "reference"
BLOCK = re.compile(r"^(?P<asked><!-- code: [^\n]* -->\n)?```(?P<language>\w*)\n(?P<code>.*?)^```$",
                   re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A block of code of a page."""

    language: str
    code: str
    line: int
    included: bool
    """Whether it is code of the source, which tests of its own run."""


def pages():
    """All pages that people wrote."""
    return sorted(page for page in DOCS.rglob("*.md") if GENERATED not in page.parents)


def blocks(text):
    """The blocks of a page, in order. A line of a note is as one that stands by itself."""
    return [Block(found["language"], found["code"], text[:found.start()].count("\n") + 1, bool(found["asked"]))
            for found in BLOCK.finditer(text)]


def prose(text):
    """A page without its blocks."""
    return BLOCK.sub("", text)


def slug(heading):
    """The address that a heading has on its page."""
    given = re.search(r"\{#([\w-]+)\}\s*$", heading)
    if given:
        return given[1]
    plain = re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower()
    return re.sub(r"[-\s]+", "-", plain)


def addresses(text):
    """The addresses of all headings of a page."""
    return {slug(found) for found in re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE)}
