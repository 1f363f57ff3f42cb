"""`regard export`: export a model for other programs, and verify the export.

It opens the model, calls `regard.tasks.export`, and prints the result of the comparison.
"""

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import TASK_COMMANDS, JsonReportOption, ModelArgument, open_task
from regard.cli.terminal import Terminal, escape_unprintable, fail, write_json

if TYPE_CHECKING:
    from regard.tasks.export import ExportReport


def export(
    model: ModelArgument,
    to: Annotated[str, typer.Option("--to", metavar="TARGET", help="ctranslate2, onnx or huggingface.",
                                    show_default=False)],
    output: Annotated[str, typer.Option("-o", "--output", metavar="FOLDER", help="Folder of the export: a new one, or "
                      "one of an earlier export.", show_default=False)],
    quantization: Annotated[str, typer.Option("--quantization", metavar="NAME", help="Number format of stored "
                            "matrices: float32, float16, bfloat16 or int8; for ctranslate2 only.")] = "float32",
    check: Annotated[str | None, typer.Option("--check", metavar="FILE", help="Sentences, one on each line, to compare "
                     "both models on; the first hundred are used.", show_default="random ids")] = None,
    as_json: JsonReportOption = False,
) -> None:
    """Export a model for CTranslate2, ONNX or the package transformers.

    The target program runs the export, and its outputs are compared with those of the model. If they differ, nothing is
    written, and the exit code is 1. A model that the target does not support is refused, with the keys of its config
    that are the reason.
    """
    from regard.tasks import export as exporting

    task = open_task(model, "cpu", *TASK_COMMANDS, "Embedder")
    try:
        texts = [] if check is None else _read_sentences(check)
        report = exporting.export(task, to, output, quantization=quantization, texts=texts,
                                  origin=exporting.model_identity(model))
    except ValueError as error:
        fail(str(error))
    except exporting.ExportError as error:
        fail(str(error), 1)
    except OSError as error:
        fail(f"{error.filename or output}: {error.strerror}", 1)
    if as_json:
        write_json({**asdict(report), "folder": output})
    else:
        _draw_report(report, output, Terminal.of(sys.stdout))


def _read_sentences(path: str) -> list[str]:
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
