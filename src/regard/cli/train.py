"""`regard train`: train a model from data in one command.

It reads the arguments, calls `regard.training.train`, and shows its events. torch is imported inside the function, so
that the help answers at once.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.options import AUTO_DEVICE, DeviceOption, FormatOption, SourceOption, TargetOption
from regard.cli.terminal import fail, show_count

TASK_NAMES = ("seq2seq", "language", "masked", "classify")
Several = list[str] | None


def train(
    data: Annotated[list[str], typer.Argument(metavar="DATA", help="Sentence pairs (TSV, JSONL, PO, TMX; or two plain "
                    "files: sources, then targets). For language and masked models plain text. To classify, a folder "
                    "with a folder of images for each class, two IDX files, or a TSV of text and label.")],
    output: Annotated[str, typer.Option("-o", "--output", metavar="FOLDER", help="Folder of the model.")],
    task: Annotated[str, typer.Option(metavar="NAME", help=f"What to train: {', '.join(TASK_NAMES)}.")] = "seq2seq",
    validation: Annotated[Several, typer.Option(metavar="FILE", help="Validation data; repeat for each file. By "
                          "default a fraction of DATA is held out.")] = None,
    recipe: Annotated[str | None, typer.Option(metavar="NAME", help="Recipe, such as transformer-small or "
                      "seq2seq-attention, or a TOML file with settings.")] = None,
    changes: Annotated[Several, typer.Option("--set", metavar="KEY=VALUE", help="Set a key of the config, such as "
                       "training.schedule.learning_rate=5e-4; repeat for each.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the training in FOLDER.")] = False,
    source: SourceOption = None,
    target: TargetOption = None,
    format: FormatOption = None,
    device: DeviceOption = AUTO_DEVICE,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write curves for TensorBoard, in "
                           "FOLDER/track.")] = False,
) -> None:
    """Train a model on your data.

    Everything that is not set follows from the data and the device: it is printed with the reason for each choice, and
    stored in FOLDER/config.toml. FOLDER has the model with the best validation score. Ctrl-C saves the state and ends;
    --resume continues from there, exactly. Exit code 1 means that the training failed, 2 that the call or the data was
    wrong, 130 that it was interrupted.
    """
    from regard import toml
    from regard.cli.progress import progress_logger
    from regard.training import train as training
    from regard.training.logging import TensorBoardLogger
    from regard.training.loop import TrainingError
    from regard.training.tasks.interface import TrainingRequest

    try:
        request = TrainingRequest(
            task=task, data=tuple(data), output=Path(output), validation=tuple(validation or ()), recipe=recipe,
            changes=dict(toml.parse_override(text) for text in changes or ()), resume=resume, source=source,
            target=target, format=format, device=device, progress=partial(show_count, noun="read", out=sys.stderr))
        loggers: list[Any] = [progress_logger(sys.stderr)]
        if tensorboard:
            loggers.append(TensorBoardLogger(Path(output) / "track"))
        outcome = training.train(request, loggers)
    except TrainingError as error:
        fail(str(error), 1)
    except ValueError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename or output}: {error.strerror}", 1)
    if outcome.main:
        typer.echo(outcome.folder)
    if not outcome.finished:
        raise typer.Exit(130)
