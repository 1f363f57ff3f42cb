"""`regard compare --task`: recurrence, convolution and self-attention on a task of memory alone.

Nothing is read: the sequences are made by chance. A table goes to stdout (or one JSON object), a line for each training
to stderr when it ends, and into the folder of -o the table as text, all results as JSON, and the picture. How the ways
are trained and judged is the business of `regard.comparison.memory`.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from regard.cli import models
from regard.cli.terminal import Terminal

if TYPE_CHECKING:
    from regard.comparison.memory.training import Result


def compare_memory(task: str, *, ways: str | None = None, lengths: str | None = None, seeds: int = 1,
                   steps: int | None = None, parameters: int | None = None, rows: int | None = None,
                   scale: str = "quick", as_json: bool = False, output: str | None = None,
                   device: str = models.AUTO) -> None:
    """Train every way at every length, and show what came of it.

    Args:
        task: "copy", "recall" or "adding".
        ways, lengths: names and numbers with commas between them; the usual ones where not given.
        steps, parameters, rows: of each training; those of the scale where not given.
        scale: "quick" for two cores, "long" for a GPU and lengths to 1,024.
        output: a folder for the table, the results and the picture. It must not be there yet.
    """
    from dataclasses import replace

    from regard import checks
    from regard.comparison import memory
    from regard.comparison.memory.running import SCALES

    try:
        usual = checks.pick("scale", scale, SCALES).budget
        asked = {name: value for name, value in (("steps", steps), ("parameters", parameters), ("rows", rows))
                 if value is not None}
        _check_output(output)
        results = memory.run(task, memory.DEFAULT_WAYS if ways is None else _names(ways),
                             None if lengths is None else _numbers("lengths", lengths), replace(usual, **asked),
                             seeds, _device(device), scale, done=_tell)
    except ValueError as error:
        models.fail(str(error))
    if output is not None:
        _write(results, output)
    if as_json:
        models.write_json(memory.table(results))
    else:
        Terminal.of(sys.stdout).beside([memory.lines(results)])


def _tell(result: "Result") -> None:
    accuracy = "" if result.accuracy is None else f", accuracy {result.accuracy:.3f}"
    models.say(f"{result.task} {result.length}, {result.way}, seed {result.seed}: loss {result.loss:.5f} (without "
               f"memory {result.chance:.5f}){accuracy}, {result.steps} steps, {result.seconds:.1f} s")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _numbers(argument: str, text: str) -> tuple[int, ...]:
    from regard import checks

    found = []
    for part in text.split(","):
        if not part.strip().isdecimal() or not part.strip().isascii():
            raise checks.wrong(argument, "whole numbers with commas between them, such as 64,256", repr(text))
        found.append(int(part))
    return tuple(found)


def _device(name: str) -> str:
    """A device that is there; torch's own message names neither the option nor what to do."""
    import torch

    from regard import checks

    chosen = models.chosen(name)
    try:
        kind = torch.device(chosen).type
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda"):
        raise checks.wrong("device", "cpu, cuda or auto", repr(name))
    if kind == "cuda" and not torch.cuda.is_available():
        raise checks.wrong("device", "one that is there", f"{name!r}, and this machine has no GPU that torch can use",
                           "Leave it out, or choose cpu.")
    return chosen


def _check_output(output: str | None) -> None:
    """Before any work: what is written must have a place, and nothing is written over."""
    from regard.inspection.pictures import canvas

    if output is None:
        return
    if os.path.lexists(output):
        models.fail(f"{output}: It is there already, and is not written over. Choose another name.")
    if not os.path.isdir(os.path.dirname(os.path.abspath(output))):
        models.fail(f"{output}: There is no folder to make it in. Make that first.")
    canvas.library()


def _write(results: Sequence["Result"], output: str) -> None:
    from regard.comparison import memory
    from regard.comparison.memory import report

    folder = Path(output)
    try:
        folder.mkdir()
        text = "\n".join(memory.lines(results)) + "\n"
        (folder / f"{results[0].task}.txt").write_text(text, encoding="utf-8")
        written = json.dumps(memory.table(results), indent=1, ensure_ascii=False) + "\n"
        (folder / f"{results[0].task}.json").write_text(written, encoding="utf-8")
        report.save(results, folder)
    except OSError as error:
        models.fail(f"{error.filename or output}: {error.strerror}", 1)
