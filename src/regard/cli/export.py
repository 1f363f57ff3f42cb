"""`regard export`: a model for other programs, compared with ours on the spot.

It opens the model, hands it to `regard.tasks.export`, and tells what came of the comparison.
"""

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli import options
from regard.cli import terminal as models
from regard.cli.terminal import Terminal, escape_unprintable

if TYPE_CHECKING:
    from regard.tasks.export import ExportReport


def export(
    model: options.ModelArgument,
    to: Annotated[str, typer.Option("--to", metavar="TARGET", help="ctranslate2, onnx or huggingface.",
                                    show_default=False)],
    output: Annotated[str, typer.Option("-o", "--output", metavar="FOLDER", help="Where it is written: a folder that "
                      "is not there yet, or that an export was written to before.", show_default=False)],
    quantization: Annotated[str, typer.Option("--quantization", metavar="NAME", help="As what numbers matrices are "
                            "stored: float32, float16, bfloat16 or int8; others than float32 for ctranslate2 "
                            "alone.")] = "float32",
    check: Annotated[str | None, typer.Option("--check", metavar="FILE", help="Sentences, one on each line, of which "
                     "the first hundred are given to both models.", show_default="ids drawn at random")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
) -> None:
    """Write a model for CTranslate2, ONNX or the package transformers.

    The other program runs what was written, on the spot, and what it says is compared with what our own model says.
    Where they differ there is no folder, and the exit code is 1. A model that the target cannot hold is refused, with
    the keys of its config that are in the way.
    """
    from regard.tasks import export as exporting

    task = options.open_task(model, "cpu", *options.TASK_COMMANDS, "Embedder")
    try:
        texts = [] if check is None else _read_sentences(check)
        report = exporting.export(task, to, output, quantization=quantization, texts=texts,
                                  origin=exporting.model_identity(model))
    except ValueError as error:
        models.fail(str(error))
    except exporting.ExportError as error:
        models.fail(str(error), 1)
    except OSError as error:
        models.fail(f"{error.filename or output}: {error.strerror}", 1)
    if as_json:
        models.write_json({**asdict(report), "folder": output})
    else:
        _draw_report(report, output, Terminal.of(sys.stdout))


def _read_sentences(path: str) -> list[str]:
    """The sentences of a file."""
    from regard.data.sources import formats

    return [line.text for line in formats.read_texts([path], format="plain")]


def _draw_report(report: "ExportReport", folder: str, terminal: Terminal) -> None:
    found = report.comparison
    rows = {
        "folder": folder,
        "files": ", ".join(report.files),
        "compared": f"{found.numbers:,} {found.what} of {found.rows} rows, run by {report.program}",
        "difference": f"{found.difference:.1e} at most, {found.mean:.1e} on average (allowed: {found.tolerance:.1e})",
    }
    if found.same is not None:
        rows["greedy search"] = f"the same after {found.same} of {found.rows} rows"
    width = max(map(len, rows))
    for key, value in rows.items():
        terminal.text(f"{key.ljust(width)}  {escape_unprintable(value)}")
    for note in report.notes:
        terminal.text(note)
