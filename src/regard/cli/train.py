"""`regard train`: from data to a model in one command.

It reads the arguments, hands them to `regard.training.train`, and shows what that tells. Nothing is decided here. torch
is imported inside the function, so that the help answers at once.
"""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

TASK_NAMES = ("seq2seq", "language", "masked", "classify")
Several = list[str] | None


def train(
    data: Annotated[list[str], typer.Argument(metavar="DATA", help="Pairs (TSV, JSONL, PO, TMX; or plain files in "
                    "twos: sources, then targets). For language and masked models plain text; to classify, a folder "
                    "with a folder of images for each class, two IDX files, or a TSV of text and label.")],
    output: Annotated[str, typer.Option("-o", "--output", metavar="FOLDER", help="Where the model goes.")],
    task: Annotated[str, typer.Option(metavar="NAME", help=f"What to learn: {', '.join(TASK_NAMES)}.")] = "seq2seq",
    validation: Annotated[Several, typer.Option(metavar="FILE", help="Data to judge the model by, which it does not "
                          "learn from; once for each file. Some of DATA where there is none.")] = None,
    recipe: Annotated[str | None, typer.Option(metavar="NAME", help="A recipe, such as transformer-small or "
                      "seq2seq-attention, or a TOML file with what you want to set.")] = None,
    changes: Annotated[Several, typer.Option("--set", metavar="KEY=VALUE", help="Set one key of the config, such as "
                       "training.schedule.learning_rate=5e-4; once for each.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the training in FOLDER.")] = False,
    source: Annotated[str | None, typer.Option(metavar="NAME", help="The source's column (TSV, from 1), key (JSONL) "
                      "or language (TMX).")] = None,
    target: Annotated[str | None, typer.Option(metavar="NAME", help="The target's column, key or language.")] = None,
    format: Annotated[str | None, typer.Option(metavar="NAME", help="plain, tsv, jsonl, po or tmx, whatever the names "
                      "of the files say.")] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="cpu, cuda, or auto: a GPU where there is one.")] = "auto",
    track: Annotated[bool, typer.Option("--track", help="Write curves for TensorBoard too, in FOLDER/track.")] = False,
) -> None:
    """Make a model of your own from your data.

    Everything that is not set follows from the data and the device: it is printed with the reason for each choice, and
    stored in FOLDER/config.toml. The model of the best validation score is in FOLDER; Ctrl-C saves the state and ends,
    and --resume goes on from there, exactly. Exit code 1 means that the training failed, 2 that the call or the data
    was wrong, 130 that it was interrupted.
    """
    from regard import toml
    from regard.cli.progress import progress_logger
    from regard.training import train as run
    from regard.training.logging import TensorBoardLogger
    from regard.training.loop import TrainingError
    from regard.training.tasks import interface

    try:
        given = dict(toml.parse_override(text) for text in changes or ())
        request = interface.TrainingRequest(task=task, data=tuple(data), output=Path(output), validation=tuple(validation or ()),
                              recipe=recipe, changes=given, resume=resume, source=source, target=target, format=format,
                              device=device, counted=_show_count)
        loggers: list[Any] = [progress_logger(sys.stderr)]
        if track:
            loggers.append(TensorBoardLogger(Path(output) / "track"))
        outcome = run.train(request, loggers)
    except TrainingError as error:
        _fail(str(error), 1)
    except ValueError as error:
        _fail(str(error), 2)
    except OSError as error:
        _fail(f"{error.filename or output}: {error.strerror}", 1)
    if outcome.main:
        typer.echo(outcome.folder)
    if not outcome.finished:
        raise typer.Exit(130)


def _show_count(examples: Iterable[Any]) -> Iterator[Any]:
    """The examples, and on a terminal how many there were so far."""
    shown = sys.stderr.isatty()
    count = 0
    for count, example in enumerate(examples, 1):
        if shown and count % 65536 == 0:
            sys.stderr.write(f"\r{count:,} read")
        yield example
    if shown and count >= 65536:
        sys.stderr.write("\r" + " " * 30 + "\r")


def _fail(message: str, code: int) -> NoReturn:
    sys.stderr.write(f"Error: {message}\n")
    raise typer.Exit(code)
