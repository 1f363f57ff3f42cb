"""The benchmark of claims about a GPU, at sizes for a CPU: that every part runs, and that its arithmetic is right.

What it measures here means nothing. The other benchmarks are scripts that nobody but a person runs.
"""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from regard.kernels import launch
from regard.tokens import IGNORED_LABEL
from regard.training.loss import rdrop_loss

FOLDER = Path(__file__).parents[2] / "benchmarks"
PARTS = ("additive", "scans", "maps", "dot", "normalisers", "packed", "training", "decoding")
NEEDED = {"training": "transformers", "decoding": "transformers", "scans": "triton", "maps": "triton",
          "packed": "triton"}


@pytest.fixture(scope="module")
def on_gpu():
    """The parts by name, and `rows`; the names of the benchmarks are gone afterwards."""
    before = set(sys.modules)
    sys.path.insert(0, str(FOLDER))
    yield SimpleNamespace(**{name: _Late(name) for name in ("rows", *PARTS)})
    sys.path.remove(str(FOLDER))
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(FOLDER)):
            del sys.modules[name]


class _Late:
    """A module of `on_gpu`, imported when it is used."""

    def __init__(self, name):
        self.__dict__["module"] = name

    def __getattr__(self, name):
        return getattr(importlib.import_module(f"on_gpu.{self.__dict__['module']}"), name)


@pytest.fixture
def setting(on_gpu):
    return on_gpu.rows.Setting(torch.device("cpu"), tiny=True)


def called(*words, limit=60):
    """What the script prints, a line each, and how it ends."""
    found = subprocess.run([sys.executable, str(FOLDER / "gpu.py"), *words], capture_output=True, text=True,
                           env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, timeout=limit, check=False)
    return found.stdout.splitlines(), found


def test_the_limit_is_the_longest_of_the_three(on_gpu):
    cost = on_gpu.rows.Cost
    assert cost(products=787e12).least() == (1000.0, "products")
    assert cost(products=787e12, bytes=2 * 4.27e12).least() == (2000.0, "bytes")
    assert cost(products=787e12, bytes=4.27e12, special=3 * 4.13e12).least() == (3000.0, "tanh, exp")


def test_the_share_of_additive_attention(on_gpu):
    """A pass of B 32, N 1,024, D 256 takes 2.1 ms of tanh, and there are two."""
    least, name = on_gpu.additive._cost(32, 1024, 256).least()
    assert (round(least / 2, 1), name) == (2.1, "tanh, exp")
    gpu = on_gpu.rows.Setting(torch.device("cuda"), tiny=False)
    made = on_gpu.rows.row("work", "who", 2 * least, gpu, cost=on_gpu.additive._cost(32, 1024, 256))
    assert made.share == pytest.approx(0.5)
    assert "50.0% (tanh, exp)" in made.cells()


def test_who_cannot_run_says_why_and_the_others_are_measured(on_gpu, setting):
    def refuses():
        raise ValueError("no such thing")

    rows = on_gpu.rows.measured("work", {"first": lambda: torch.ones(3), "second": refuses}, setting, base="first",
                                goal="soon")
    assert [row.who for row in rows] == ["first", "second"]
    assert rows[0].ms > 0
    assert (rows[0].against, rows[0].goal, rows[0].note) == (1.0, "soon", "")
    assert (rows[1].ms, rows[1].against, rows[1].note) == (None, None, "ValueError: no such thing")


def test_what_nobody_expects_is_not_hidden(on_gpu, setting):
    with pytest.raises(KeyError):
        on_gpu.rows.measured("work", {"first": lambda: {}["a"]}, setting, base="first")


def test_a_table_leaves_out_what_no_row_has(on_gpu):
    row, table = on_gpu.rows.Row, on_gpu.rows.Table
    made = table("title", "a", [row("work", "a", 2.0), row("work", "b", 1234.5, against=617.25)])
    title, _, header, _, first, second = str(made).splitlines()
    assert title == "title"
    assert [cell.strip() for cell in header.strip("|").split("|")] == ["work", "by", "ms", "time against a"]
    assert [cell.strip() for cell in first.strip("|").split("|")] == ["work", "a", "2.000", ""]
    assert [cell.strip() for cell in second.strip("|").split("|")] == ["work", "b", "1,234", "617.25"]
    assert json.loads(made.json("part"))["rows"][1]["ms"] == 1234.5


def test_the_rival_learns_the_same_agreement(on_gpu):
    """R-Drop in the plain loop is the loss that ours is trained with."""
    states, output = torch.randn(2, 3, 5, 8), nn.Linear(8, 11)
    labels = torch.randint(0, 11, (3, 5))
    labels[0, 3:] = IGNORED_LABEL
    ours = rdrop_loss(states, output, labels, 0.1, on_gpu.training.AGREEMENT)

    def logits(*given):
        assert [len(tensor) for tensor in given] == [6, 6, 6]
        return output(states.flatten(0, 1))

    theirs = on_gpu.training.agreeing(logits, [labels, labels[:, 0], labels, labels], 0.1)
    torch.testing.assert_close(theirs, ours.total / ours.tokens)


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_every_part_runs(on_gpu, setting, part):
    if part in NEEDED:
        pytest.importorskip(NEEDED[part])
    if NEEDED.get(part) == "triton" and not launch.interpreted():
        pytest.skip("the kernels are compiled here")
    tables = list(getattr(on_gpu, part).tables(setting))
    assert tables
    for table in tables:
        assert str(table).count("\n") == 3 + len(table.rows)
        lost = [row.who for row in table.rows if row.ms is None]
        assert set(lost) <= {"torch, varlen_attn"}, "which is for GPUs"
        assert any(row.who.startswith("regard") and row.ms > 0 for row in table.rows if row.ms is not None)


@pytest.mark.thorough
def test_the_script_prints_an_object_a_line():
    lines, found = called("--tiny", "--json", "dot")
    assert found.returncode == 0, found.stderr
    head, *tables = map(json.loads, lines)
    assert head["command"] == "python benchmarks/gpu.py --tiny --json dot"
    assert len(tables) == 4
    assert all(table["part"] == "dot" and table["rows"] for table in tables)


@pytest.mark.thorough
def test_a_part_that_fails_leaves_the_others():
    lines, found = called("--tiny", "--limit", "0.05", "dot", "additive")
    assert found.returncode == 1
    assert [line for line in lines if "failed" in line] == [
        f"{part} failed: it took more than 0.05 s" for part in ("dot", "additive")]


@pytest.mark.thorough
def test_a_part_is_called_by_its_name():
    _, found = called("--tiny", "dott")
    assert found.returncode == 2
    assert "unknown part 'dott'" in found.stderr


@pytest.mark.thorough
def test_without_a_gpu_nothing_is_measured():
    lines, found = called()
    assert (found.returncode, len(lines)) == (0, 1)
    assert "there is none" in lines[0]
