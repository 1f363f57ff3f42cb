"""Screenshots for docs/, where a live page cannot be: two models, a long text, and the translator, in a browser.

    python docs/pictures.py MODEL [OTHER] [-o docs/pictures]

It also saves the trace of the live pages (live.py), beside the folder of the pictures: docs/traces/cat.safetensors.

MODEL and OTHER are translators from English to French that were trained on the phrasebook (`regard demo -o MODEL`;
`regard train` with another recipe makes OTHER). It needs playwright and Chromium. The same model gives the same
pictures, as far as the fonts of the machine are the same.
"""

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

import regard
from regard.data import phrasebook
from regard.inspection.page.server import PageServer
from regard.inspection.trace import Trace
from regard.tasks.traces import INFLUENCE_LIMIT, trace_forced, trace_translation
from regard.tasks.translator import Translator

TEXT = "The black cat sees a small dog."
README_TEXT = "The two cats slept in the garden."
"""The demo's model leaves out "two"."""
SENTENCES = 150
"""The number of sentences of the long text."""
WIDTH, HEIGHT = 1200, 900


def main() -> int:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    arguments.add_argument("model", type=Path)
    arguments.add_argument("other", type=Path, nargs="?")
    arguments.add_argument("-o", "--output", type=Path, default=Path(__file__).parent / "pictures")
    given = arguments.parse_args()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        print("playwright is missing: pip install 'regard[peers]'", file=sys.stderr)
        return 2
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        print("Chromium is missing: on Debian, apt-get install chromium", file=sys.stderr)
        return 2
    given.output.mkdir(exist_ok=True)
    names = [given.model, *([] if given.other is None else [given.other])]
    tasks = [regard.load(name) for name in names]
    traces = [trace_translation(task, TEXT, name=name.name, influence_limit=INFLUENCE_LIMIT)
              for task, name in zip(tasks, names, strict=True)]
    kept = given.output.resolve().parent / "traces"
    kept.mkdir(exist_ok=True)
    traces[0].save(kept / "cat.safetensors")
    long = long_trace(tasks[0], given.model.name)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        first = trace_translation(tasks[0], README_TEXT, name=names[0].name, influence_limit=INFLUENCE_LIMIT)
        with PageServer([first]) as server:
            shoot(browser, server.address + "#view=read", given.output / "read.png")
        with PageServer(traces) as server:
            state = "#view=compare" + ("&trace2=1" if len(traces) > 1 else "&head2=1")
            shoot(browser, server.address + state, given.output / "pair.png")
        with PageServer([long]) as server:
            attention, head = local_head(long)
            state = f"#view=map&attention={attention}&head={head}"
            shoot(browser, server.address + state, given.output / "long.png", wait=4000)
        shoot_translator(browser, given.model, given.output / "serve.png")
        browser.close()
    return 0


def long_trace(translator: Translator, name: str) -> Trace:
    """Many sentences and their translations as one text each."""
    pairs = [*phrasebook.pairs(SENTENCES, seed=3, split="test")]
    source, target = (" ".join(side) for side in zip(*((pair.source, pair.target) for pair in pairs), strict=True))
    return trace_forced(translator, source, target, name=name)


def local_head(trace: Trace) -> tuple[int, int]:
    """The decoder head with the most weight on the last 20 tokens: its band is visible at any zoom."""
    found = []
    for number, one in enumerate(trace.attentions):
        if one.kind == "self" and one.name.startswith("decoder"):
            rows = range(20, one.rows, 50)
            near = sum(one.look.rows(row)[:, row - 20:row + 1].sum(-1) for row in rows)
            found.append((float(near.max()), number, int(near.argmax())))
    return max(found)[1:]


def shoot_translator(browser: Any, model: Path, path: Path) -> None:
    """Take a screenshot of the page of `regard serve`, with the alternatives of a word."""
    from regard.serving.server import BackgroundServer

    with BackgroundServer([str(model)]) as server:
        page = browser.new_page(viewport={"width": WIDTH - 200, "height": 720})
        page.goto(server.address)
        page.locator("#text").fill(TEXT)
        page.locator("#result .word").nth(3).click()
        page.wait_for_selector("#popover section:nth-of-type(2) .alternative")
        page.wait_for_timeout(1500)
        page.screenshot(path=str(path))
        page.close()
    _reduce_colours(path)


def shoot(browser: Any, address: str, path: Path, *, wait: int = 800) -> None:
    """Take one screenshot, in a window as high as the page, with scales and notes."""
    page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
    page.goto(address)
    page.wait_for_timeout(wait)
    page.set_viewport_size({"width": WIDTH, "height": page.evaluate("() => document.documentElement.scrollHeight")})
    page.wait_for_timeout(wait)
    page.screenshot(path=str(path))
    page.close()
    if path.stem != "long":  # its map has more colours than a palette
        _reduce_colours(path)
    else:
        print(path)


def _reduce_colours(path: Path) -> None:
    """Save a screenshot again with a palette, which makes it small."""
    from PIL import Image

    Image.open(path).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    print(path)


if __name__ == "__main__":
    sys.exit(main())
