"""The command `regard`: its options, its subcommands, and how it ends.

Each command is a module of this package, which imports torch and the library inside its functions, so that
`regard --help` answers at once. Help is plain text: rich's panels take twice as long to import, and text that a user
types is never read as markup.

Exit codes: 0 done, 1 the work failed, 2 the call or its input was wrong, 130 interrupted (Ctrl-C).
"""

import errno
import os
import sys
import warnings
from typing import Annotated, TextIO

import typer

from regard.cli import classify, compare, complete, data, demo, evaluate, export, fill, look, train, translate
from regard.cli.options import PanelCommand

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The folder of the installed package."""

app = typer.Typer(
    name="regard",
    help="Sequence models from the recurrent network to the Transformer.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,  # a bug shows the plain traceback, without the values of local variables
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data.app, name="data")
for command in (demo.demo, train.train, translate.translate, complete.complete, fill.fill, classify.classify,
                evaluate.evaluate, compare.compare, look.look, export.export):
    app.command(cls=PanelCommand)(command)


def _show_version(value: bool) -> None:
    if value:
        from regard import __version__

        typer.echo(f"regard {__version__}")
        raise typer.Exit


@app.callback()
def regard(
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Sequence models from the recurrent network to the Transformer."""


def run() -> None:
    """Run the command line and end the process; the entry point of the script."""
    # Idle threads spin for a while and then sleep. With the long default spin time, training is many times slower on a
    # machine that is busy with other work. The variable is read when torch is imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    # A closed stream (`>&-`) is None in Python, and every write to it would be a traceback.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 (open until the process ends)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    warnings.showwarning = _show_warning
    try:
        try:
            app(prog_name="regard")
        finally:
            # Flush here, where a broken pipe can be handled, and not at exit.
            sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe, as `| head` does
        _silence(sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename:  # errors of other files are reported by the command
            raise
        _silence(sys.stdout.fileno())
        print(f"Error: could not write the output: {error.strerror}", file=sys.stderr)
        sys.exit(1)


def _silence(descriptor: int) -> None:
    """Redirect a descriptor to the null device, so that the interpreter's flush at exit cannot fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _show_warning(message: Warning | str, category: type[Warning], filename: str, lineno: int,
                  file: TextIO | None = None, line: str | None = None) -> None:
    """Print a notice about an old name as one line, and other warnings as Python does."""
    if issubclass(category, FutureWarning) and str(filename).startswith(PACKAGE):
        print(f"Note: {message}", file=file or sys.stderr)
    else:
        print(warnings.formatwarning(message, category, filename, lineno, line), end="", file=file or sys.stderr)
