"""Code that the pages show, taken from the source by its name: what is shown is what runs.

    python docs/included.py             brings the blocks of all pages up to date
    python docs/included.py --check     changes nothing; exit code 1 where a block is not the code of its file

A page asks for a function, a class or a method with a comment, and the block below it is filled in:

    <!-- code: regard.reference.recurrence.rnn_step -->
    ```python
    ...
    ```

The comment may name several, with commas between. It reads files as texts, and imports nothing of them; it does not
know what the pages are about.
"""

import argparse
import ast
import re
import sys
import textwrap
from pathlib import Path

DOCS = Path(__file__).resolve().parent
SOURCE = DOCS.parent / "src"
BLOCK = re.compile(r"^<!-- code: (?P<names>[\w., ]+) -->\n```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
ASKED = re.compile(r"^<!-- code:.*$", re.MULTILINE)


def main() -> int:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    arguments.add_argument("--check", action="store_true", help="change nothing, and fail where something would change")
    given = arguments.parse_args()
    late = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        fresh = filled(text)
        if fresh != text:
            late.append(page.relative_to(DOCS.parent))
            if not given.check:
                page.write_text(fresh, encoding="utf-8")
    told = "not the code of the source; run python docs/included.py" if given.check else "brought up to date"
    for page in late:
        print(f"{page}: {told}")
    return 1 if late and given.check else 0


def pages() -> list[Path]:
    """All pages, those that are generated left out."""
    return sorted(page for page in DOCS.rglob("*.md") if page.parent != DOCS / "reference")


def filled(text: str) -> str:
    """The page with the code of now in its blocks."""
    if len(ASKED.findall(text)) != len(BLOCK.findall(text)):
        raise ValueError("a comment that asks for code must have a block of Python right below it")
    return BLOCK.sub(lambda found: f"<!-- code: {found['names']} -->\n```python\n{code(found['names'])}```", text)


def code(names: str) -> str:
    """The source of one name or of several, with two empty lines between them."""
    return "\n\n".join(source(name.strip()) for name in names.split(","))


def source(name: str) -> str:
    """The source of a function, a class or a method, as it stands in its file, moved to the left."""
    module, path = name.split("."), None
    while module and path is None:
        module = module[:-1]
        tried = SOURCE.joinpath(*module).with_suffix(".py")
        path = tried if module and tried.is_file() else None
    if path is None:
        raise ValueError(f"there is no file for the name {name}")
    text = path.read_text(encoding="utf-8")
    body, found = ast.parse(text).body, None
    for part in name.split(".")[len(module):]:
        found = next((node for node in body if getattr(node, "name", None) == part), None)
        if not isinstance(found, ast.FunctionDef | ast.ClassDef):
            raise ValueError(f"{path.relative_to(SOURCE)} defines no {part}, which {name} asks for")
        body = found.body
    assert found is not None
    first = min([found.lineno, *(one.lineno for one in found.decorator_list)])
    return textwrap.dedent("\n".join(text.split("\n")[first - 1:found.end_lineno])) + "\n"


if __name__ == "__main__":
    sys.exit(main())
