"""`regard export`: export a model for other programs, and verify the export.

It opens the model, calls `regard.tasks.export`, and prints the result of the comparison.
"""

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import (
    DATA_PANEL,
    OUTPUT_PANEL,
    TASK_COMMANDS,
    JsonReportOption,
    ModelArgument,
    complete_names,
    open_task,
    with_examples,
)
from regard.cli.output import fail, write_json
from regard.terminal import Terminal, escape_unprintable

if TYPE_CHECKING:
    from regard.tasks.export import ExportReport


@with_examples("""
    regard export model --to ctranslate2 -o model-ct2 --quantization int8
    regard export model --to onnx -o model-onnx
    regard export model --to huggingface -o model-hf     # for transformers
    regard export model --to ctranslate2 -o model-ct2 --check sentences.txt
""")
def export(
    model: ModelArgument,
    to: Annotated[str, typer.Option(
        "--to", metavar="TARGET", show_default=False, rich_help_panel=OUTPUT_PANEL,
        autocompletion=complete_names("ctranslate2", "onnx", "huggingface"),
        help="Format: ctranslate2, onnx or huggingface (for the package transformers).")],
    output: Annotated[str, typer.Option(
        "-o", "--output", metavar="FOLDER", show_default=False, rich_help_panel=OUTPUT_PANEL,
        help="Folder of the exported model: a new one, or that of an earlier export.")],
    quantization: Annotated[str, typer.Option(
        "--quantization", metavar="NAME", rich_help_panel=OUTPUT_PANEL,
        autocompletion=complete_names("float32", "float16", "bfloat16", "int8"),
        help="Weights of a CTranslate2 model: float32, float16, bfloat16 or int8.")] = "float32",
    check: Annotated[str | None, typer.Option(
        "--check", metavar="FILE", rich_help_panel=DATA_PANEL, show_default="random token ids",
        help="Sentences, one per line, on which both models are compared; the first 100 are used.")] = None,
    as_json: JsonReportOption = False,
) -> None:
    """Export a model to CTranslate2, ONNX or Hugging Face transformers.

    The exported model is run and its outputs are compared with those of the original. If they differ, nothing is
    written and the exit code is 1. If the target format does not support the model, the error names the config keys
    that are the reason.
    """
    from regard import checks
    from regard.tasks import export as exporting

    try:
        checks.pick("--to", to, exporting.TARGETS)
    except ValueError as error:
        fail(str(error))
    task = open_task(model, "cpu", *TASK_COMMANDS, "Embedder")
    try:
        texts = [] if check is None else _read_sentences(check)
        report = exporting.export(task, to, output, quantization=quantization, texts=texts,
                                  origin=exporting.model_identity(model))
    except ValueError as error:
        fail(str(error))
    except exporting.ExportError as error:
        fail(str(error), 1)
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
        "Folder": folder,
        "Files": ", ".join(report.files),
        "Compared": f"{found.numbers:,} {found.what} for {found.rows} {'input' if found.rows == 1 else 'inputs'}, "
                    f"computed by {report.program} and by regard",
        "Difference": f"at most {found.difference:.1e}, {found.mean:.1e} on average (tolerance {found.tolerance:.1e})",
    }
    if found.same is not None:
        rows["Greedy search"] = f"same output for {found.same} of {found.rows} inputs"
    terminal.table({name: escape_unprintable(value) for name, value in rows.items()})
    for note in report.notes:
        terminal.text(note)
