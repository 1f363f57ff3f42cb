"""The README tells the truth: its commands are run, its Python is executed."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")

# Commands that something else runs, and what. Every other command must be one of `regard`, and is run here.
RUN_ELSEWHERE = {
    "python -m pip install -c constraints.txt .": "`make test` installs so, with the tools for development",
}
QUICK = "--quiet --steps 6 --set training.validation.max_examples=20"
# Commands that would take too long, and what is run in their place.
SHORTENED = {
    "regard demo -o model": f"regard data phrasebook -n 60 > few.tsv; regard train few.tsv -o model {QUICK}",
    "regard train pairs.tsv -o my-model --languages en-fr --time 10m":
        f"regard train pairs.tsv -o my-model --languages en-fr --time 10m {QUICK}",
}


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands():
    lines = "".join(blocks("sh")).replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def test_the_readme_has_commands_and_python():
    assert commands()[1].startswith("regard demo"), "after the installation the demo comes first"
    assert blocks("python")
    assert "make test" in README
    assert "make demo" in README
    assert len(README.splitlines()) <= 180


def test_the_table_names_no_command_that_is_gone():
    assert {*RUN_ELSEWHERE, *SHORTENED} <= set(commands())


@pytest.mark.parametrize("block", blocks("sh"))
def test_the_commands_work(block, tmp_path):
    """Those of a block one after another, in one folder, as a person would type them."""
    lines = [line.strip() for line in block.replace("\\\n", " ").splitlines() if line.strip()]
    script = [SHORTENED.get(line, line) for line in lines if line not in RUN_ELSEWHERE]
    for line in script:
        assert shlex.split(line)[0] == "regard", f"nothing runs `{line}`"
    itself = f"regard() {{ {shlex.quote(sys.executable)} -m regard \"$@\"; }}"
    result = subprocess.run(["bash", "-euc", "\n".join([itself, *script])], cwd=tmp_path, capture_output=True,
                            timeout=120)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("target", "runs"), [("demo", "/regard demo"), ("test", "/pytest "), ("setup", " -c constraints.txt ")]
)
def test_make_runs_what_the_readme_says(target, runs):
    """Only what make would run: -n; -B as if nothing were installed yet."""
    plan = subprocess.run(["make", "-n", "-B", target], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert plan.returncode == 0, plan.stderr
    assert runs in plan.stdout


def test_the_python_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for number, block in enumerate(blocks("python"), 1):
        exec(compile(block, f"README.md, Python block {number}", "exec"), names)
    assert "regard" in names  # there were blocks, and they used the package
