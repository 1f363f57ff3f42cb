"""One HTML file of the page's parts: its style, its modules one after another in one script, and a document.

The modules are written so that they can be put together without a tool: every `import` names what it takes from a
module that stands before, `export` stands only in front of declarations, and no two modules declare the same name at
their top. What breaks this is found here. The file needs nothing else, and a policy in it forbids everything else: its
script and its style are known to the browser by their hashes.

It does not know what a document says.
"""

import base64
import functools
import hashlib
import html
import re
from importlib import resources
from typing import NamedTuple

from regard.inspection.page import squeeze

ORDER, SKELETON, STYLE = "order.txt", "index.html", "style.css"
IMPORT = re.compile(r'^import \{([\w,\s]+)\} from "\./([\w-]+\.js)";[ \t]*\n', re.MULTILINE)
DECLARED = re.compile(r"^(export )?(?:async )?(?:function\*?|class|const|let) (\w+)")
SLOTS = ("title", "policy", "style", "page", "script")
"""What the skeleton has places for: {{title}}, …"""


class Bundle(NamedTuple):
    """The parts of the page, ready to be put together."""

    skeleton: str
    style: str
    script: str

    def policy(self, *more: str) -> str:
        """What a browser may do: run this script, use this style, and what else is allowed here."""
        own = [f"{kind}-src '{_hash(text)}'" for kind, text in (("script", self.script), ("style", self.style))]
        return "; ".join(["default-src 'none'", *own, "base-uri 'none'", "form-action 'none'", *more])

    def page(self, title: str, document: str, policy: str) -> str:
        """The HTML. The document is text without "<"."""
        assert "<" not in document
        parts = {"title": html.escape(title or "regard"), "policy": html.escape(policy), "style": self.style,
                 "page": document, "script": self.script}
        return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], self.skeleton)


@functools.cache
def bundle() -> Bundle:
    """The parts that the package has."""
    names = _asset(ORDER).split()
    return made(_asset(SKELETON), _asset(STYLE), {name: _asset(name) for name in names})


def made(skeleton: str, style: str, modules: dict[str, str]) -> Bundle:
    """The parts from what stands in the files; modules by their names, in their order."""
    slots = re.findall(r"\{\{(\w+)\}\}", skeleton)
    assert sorted(slots) == sorted(SLOTS), f"{SKELETON} must have each of {SLOTS} once, but has {slots}"
    style = squeeze.style(style)
    assert "</style" not in style.lower(), f"{STYLE} must not end itself"
    script = squeeze.script('"use strict";\n' + "".join(_joined(modules)))
    assert "</script" not in script.lower(), "a module must not end the script"
    assert "<!--" not in script, "a module must not begin a comment of HTML"
    return Bundle(skeleton, style, script)


def _joined(modules: dict[str, str]) -> list[str]:
    """The text of each module without what only a module may have."""
    owners: dict[str, str] = {}
    exported: dict[str, set[str]] = {}
    pieces = []
    for name, text in modules.items():
        for wanted, source in IMPORT.findall(text):
            assert source in exported, f"{name} imports {source}, which must stand before it"
            missing = {part.strip() for part in wanted.split(",") if part.strip()} - exported[source]
            assert not missing, f"{name} imports {sorted(missing)}, which {source} does not export"
        exported[name] = set()
        lines = []
        for line in IMPORT.sub("", text).splitlines(keepends=True):
            declared = DECLARED.match(line)
            if declared:
                other = owners.setdefault(declared[2], name)
                assert other == name, f"{declared[2]} is declared in {other} and in {name}"
                if declared[1]:
                    exported[name].add(declared[2])
                    line = line.removeprefix("export ")
            assert not line.startswith(("import ", "import{", "export ", "export{")), f"{name}: {line.strip()}"
            lines.append(line)
        pieces.append("".join(lines).strip("\n") + "\n")
    return pieces


def _asset(name: str) -> str:
    return resources.files("regard.inspection.page").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
