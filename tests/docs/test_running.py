"""Every block of code of the pages runs: commands in bash, Python in one namespace a page, from top to bottom.

A newcomer begins with the tutorial, in an empty folder. The how-to pages go on in the folder that it leaves.
"""

import re
import shlex
import shutil

import pytest
from paged import DOCS, blocks, pages
from trained import TINY
from typed import shell

# Commands that something else runs, and what.
RUN_ELSEWHERE = {
    "python -m pip install -c constraints.txt .": "`make test` installs so, with the tools for development",
}
# Besides `regard`: what a shell always has.
ORDINARY = {"cut", "head", "printf", "sed"}
# Added to every training, so that it is short, unless the page sets the same key.
STEPS = {"training.schedule.max_steps": 4, "training.validation.every": 4, "training.validation.max_examples": 2,
         "training.validation.metric": "loss", "training.log_every": 1}
SMALL = {key: value for key, value in TINY.items() if key.startswith(("model.", "tokenizer."))}
"""The model of a translation where the page does not choose one."""
CHOOSES_MODEL = ("--task", "--from", "--recipe", "--layers", "--width", "--dropout", "--vocab-size")
# Fewer pairs, since a model that has learned next to nothing writes long outputs; and few steps.
FEWER = {r"(phrasebook -n )\d+(.* --split test)": r"\g<1>4\2", r"(phrasebook -n )\d{4,}": r"\g<1>60",
         r"(--steps |\bsteps=)\d+": r"\g<1>4"}
LANGUAGES = {"sh", "python", "math", "text", ""}
BEGIN = "tutorial.md"
pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def run():
    with shell() as run:
        yield run


@pytest.fixture(scope="module")
def newcomer(run, tmp_path_factory):
    """The folder of someone who has gone through the tutorial."""
    folder = tmp_path_factory.mktemp("newcomer")
    assert_it_runs(BEGIN, run, folder)
    return folder


def assert_it_runs(name, run, folder):
    """Do what a page says, block after block, in a folder."""
    names = {}
    for block in blocks((DOCS / name).read_text(encoding="utf-8")):
        where = f"docs/{name}:{block.line}"
        if block.language == "sh":
            result = run(script(block.code, where), folder)
            assert result.returncode == 0, f"{where}\n{result.stdout}\n{result.stderr}"
        elif block.language == "python" and not block.included:
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(folder)
                code = "\n" * block.line + shortened(block.code)  # so that an error has the line of the page
                exec(compile(code, f"docs/{name}", "exec"), names)


def script(code, where):
    """The lines of a block that are run, each short."""
    lines = []
    for line in code.replace("\\\n", " ").splitlines():
        if line in RUN_ELSEWHERE or not line.strip():
            continue
        for part in re.split(r" \| ", line):
            assert shlex.split(part)[0] in {"regard", *ORDINARY}, f"{where}: nothing runs `{line}`"
        line = shortened(line)
        if line.startswith("regard train "):
            chosen = any(f"{name} " in line for name in CHOOSES_MODEL)
            given = {} if "--resume" in line else {**STEPS, **({} if chosen else SMALL)}
            if "--steps " in line:
                del given["training.schedule.max_steps"]
            short = "".join(f" --set {key}={value}" for key, value in given.items() if f"--set {key}=" not in line)
            line = line.replace("regard train", f"regard train{short}", 1)
        lines.append(line)
    return "\n".join(lines)


def shortened(code):
    """The code with fewer pairs and steps."""
    for large, small in FEWER.items():
        code = re.sub(large, small, code)
    return code


def test_every_block_has_a_language_that_is_known():
    for page in pages():
        for block in blocks(page.read_text(encoding="utf-8")):
            assert block.language in LANGUAGES, f"{page}:{block.line}: {block.language}"


def test_the_table_names_no_command_that_is_gone():
    found = [block for page in pages() for block in blocks(page.read_text(encoding="utf-8"))]
    lines = {line for block in found if block.language == "sh" for line in block.code.splitlines()}
    assert set(RUN_ELSEWHERE) <= lines
    assert all(any(re.search(large, block.code) for block in found) for large in FEWER)


def test_a_newcomer_comes_to_the_end(newcomer):
    """From an empty folder to a translator, its scores, and a page that shows where it looked."""
    assert (newcomer / "model" / "model.safetensors").is_file()
    assert "<html" in (newcomer / "page.html").read_text(encoding="utf-8")


OTHERS = [str(page.relative_to(DOCS)) for page in pages() if page.relative_to(DOCS).name != BEGIN
          and any(block.language in ("sh", "python") and not block.included for block in blocks(page.read_text()))]


@pytest.mark.parametrize("name", OTHERS)
def test_the_page_runs(name, run, newcomer, tmp_path):
    folder = tmp_path / "here"
    shutil.copytree(newcomer, folder)
    assert_it_runs(name, run, folder)
