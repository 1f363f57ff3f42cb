"""Live pages of attention for the site, in place of screenshots: docs/live/*.html, from the traces in docs/traces.

    python docs/live.py [-o docs/live]

The pages are made when the site is built, with the page of now, and are not kept; the traces are made by pictures.py.
Markdown shows one with <iframe class="live" src="../live/cat.html#view=heads" title="..." loading="lazy"></iframe>.
"""

import argparse
import sys
from pathlib import Path

from regard.inspection.page.document import page_html
from regard.inspection.trace import Trace

DOCS = Path(__file__).resolve().parent
PAGES = {"cat": ("cat",)}
"""By the name of a page the names of its traces: one, or two to compare."""


def main() -> int:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    arguments.add_argument("-o", "--output", type=Path, default=DOCS / "live")
    given = arguments.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (given.output / f"{name}.html").write_text(text, encoding="utf-8")
    return 0


def pages() -> dict[str, str]:
    """The HTML of every page by its name."""
    return {name: page_html([Trace.load(DOCS / "traces" / f"{trace}.safetensors") for trace in traces])
            for name, traces in PAGES.items()}


if __name__ == "__main__":
    sys.exit(main())
