"""What the commands that use a model share: its device, its task, texts from arguments or from standard input, results.

Results go to stdout as UTF-8 with LF, whatever the system prefers; where stdout is a terminal, what it would obey is
written out. A text that a model cannot take is named on stderr, its line is empty, and the others are done. Torch is
imported inside the functions. It knows no command by itself.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

from regard.cli.data import escaped

if TYPE_CHECKING:
    from regard.tasks.task import Task

COMMANDS = {"Translator": "translate", "Completer": "complete", "Filler": "fill", "Classifier": "classify"}
"""The command that uses a task."""
AUTO = "auto"
BLOCK = 2000
"""Texts that are done together, at most."""
Model = Annotated[str, typer.Argument(metavar="MODEL", help="The folder of a model.", show_default=False)]
Texts = Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Texts; without any, or with -, the lines of "
                                                   "standard input.", show_default=False)]
Device = Annotated[str, typer.Option("--device", metavar="NAME", help="cpu, cuda, or auto: a GPU where there is one.")]
Json = Annotated[bool, typer.Option("--json", help="A JSON object on each line.")]
Given = TypeVar("Given")
Done = TypeVar("Done")


def fail(message: str, code: int = 2) -> NoReturn:
    """Say on stderr what is wrong, and end: with 2 where the call or its input was, with 1 where the work failed."""
    say(f"Error: {message}")
    raise typer.Exit(code)


def say(message: str) -> None:
    """A message on stderr, in which nothing is obeyed by a terminal."""
    typer.echo("\n".join(map(escaped, message.split("\n"))), err=True)


def chosen(device: str) -> str:
    """The device of this name; for auto a GPU where there is one."""
    import torch

    if device != AUTO:
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


def opened(folder: str, device: str, *wanted: str) -> "Task":
    """The task in a folder, which must be one of these by the names of their classes."""
    from regard.tasks.loading import load

    try:
        task = load(folder, device=chosen(device))
    except ValueError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{folder}: {error.strerror}")
    name = type(task).__name__
    if name not in wanted:
        command = f" `regard {COMMANDS[name]}` uses it." if name in COMMANDS else ""
        fail(f"{folder}: This command needs a {' or a '.join(wanted)}, but this is a {name}.{command}")
    return task


def blocks(texts: Sequence[str] | None) -> Iterator[list[str]]:
    """The texts of the call; or the lines of standard input, as many at a time as are there already."""
    from regard.data.pair import DataError
    from regard.data.sources.inputs import STANDARD_INPUT, Input
    from regard.data.sources.lines import chunks

    if texts and list(texts) != [STANDARD_INPUT]:
        yield list(texts)
        return
    try:
        for _, text in chunks(Input(STANDARD_INPUT)):
            lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
            for first in range(0, len(lines), BLOCK):
                yield lines[first:first + BLOCK]
    except DataError as error:
        fail(str(error))


def each(given: Iterable[list[Given]], work: Callable[[list[Given]], Sequence[Done]],
         name: Callable[[int, Given], str]) -> Iterator[tuple[Given, Done | None]]:
    """What `work` makes of every one, block by block; None for one that cannot be done, which is named on stderr.

    Where there was one, the command ends with 1 after the last.
    """
    before, failed = 0, False
    for block in given:
        for number, (one, done) in enumerate(zip(block, _done(block, work), strict=True), before + 1):
            if isinstance(done, ValueError):
                failed = True
                say(f"Error: {name(number, one)}: {done}")
            yield one, None if isinstance(done, ValueError) else done
        before += len(block)
        sys.stdout.flush()
    if failed:
        raise typer.Exit(1)


def numbered(number: int, text: object) -> str:
    """A text of several, as a message names it."""
    return f"text {number}"


def write(text: str) -> None:
    """A result on one line of stdout."""
    line = text.replace("\r", " ").replace("\n", " ")
    write_whole(line)


def write_whole(text: str) -> None:
    """A result of one line or several, and the end of the last."""
    write_part(f"{text}\n")


def write_part(text: str) -> None:
    """A part of a result, as it is."""
    if sys.stdout.isatty():
        text = "\n".join("".join(char if char >= " " and not "\x7f" <= char < "\xa0" else escaped(char)
                                 for char in line) for line in text.split("\n"))
    sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace"))


def write_json(table: Any) -> None:
    """A result as JSON on one line."""
    sys.stdout.buffer.write(json.dumps(table, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")


def _done(block: list[Given], work: Callable[[list[Given]], Sequence[Done]]) -> Sequence[Done | ValueError]:
    """All at once; where that fails, each half by itself, to find out which it is."""
    try:
        return work(block)
    except ValueError as error:
        if len(block) == 1:
            return [error]
    half = len(block) // 2
    return [*_done(block[:half], work), *_done(block[half:], work)]
