"""The command `regard`: its options, its subcommands, and how it ends.

Each command is a module of this package, which imports torch and the library inside its functions, so that
`regard --help` answers at once. Help is plain text: rich's panels take twice as long to import, and text that a user
types is never read as markup.

Exit codes: 0 done, 1 the work failed, 2 the call or its input was wrong, 130 interrupted (Ctrl-C).
"""

import logging
import os
import re
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from regard.cli import (
    classify,
    compare,
    complete,
    config,
    data,
    demo,
    evaluate,
    export,
    fill,
    info,
    label,
    look,
    predict,
    serve,
    train,
    translate,
)
from regard.cli.failures import OUTPUT, report_failures
from regard.cli.options import ExamplesGroup, PanelCommand, with_examples

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The folder of the installed package."""

SECTIONS = {"Start": ("demo",), "Train": ("train", "data"),
            "Use": ("translate", "complete", "fill", "classify", "label", "predict", "serve"),
            "Look and compare": ("look", "evaluate", "compare"), "Tools": ("info", "config", "export")}
"""Sections of `regard --help`; a command that is in none of them is listed with the last."""
SIMILAR_COMMANDS = {
    "fit": "train", "finetune": "train", "generate": "complete", "forecast": "predict", "infer": "translate",
    "inference": "translate", "decode": "translate", "eval": "evaluate", "test": "evaluate", "score": "evaluate",
    "bleu": "evaluate", "show": "look", "visualize": "look", "attention": "look", "plot": "look", "convert": "export",
    "tag": "label", "annotate": "label", "mask": "fill", "check": "data check", "phrasebook": "data phrasebook",
    "tour": "demo --tour", "version": "--version", "help": "--help",
}
"""Commands of other programs, and the one that a user of those may be looking for."""
DOCUMENTATION = "docs/index.md in the source folder"
GPU_FOLDER, DEVICE_FOLDER = Path("/proc/driver/nvidia/gpus"), Path("/dev")
"""Where NVIDIA's driver lists its GPUs, and where the system has their device files."""


class SectionedGroup(ExamplesGroup):
    """A group of commands whose help lists them by sections, in plain text."""

    def command_sections(self) -> dict[str, list[str]]:
        """The sections of SECTIONS, with the commands that exist."""
        placed = {name for names in SECTIONS.values() for name in names}
        sections = {title: [name for name in names if name in self.commands] for title, names in SECTIONS.items()}
        sections[[*SECTIONS][-1]] += [name for name in self.commands if name not in placed]
        return sections

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, and where the documentation is."""
        super().format_epilog(ctx, formatter)
        formatter.write(f"\nDocumentation: {DOCUMENTATION}\n")

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a full disk or too little memory ends it with one message."""
        with report_failures(lambda: ctx.invoked_subcommand):
            return super().invoke(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; for the name that another program uses, the error names ours."""
        similar = SIMILAR_COMMANDS.get(args[0])
        if similar is not None and args[0] not in self.commands and not ctx.resilient_parsing:
            ctx.fail(f"No such command '{args[0]}'. Did you mean 'regard {similar}'?")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="regard",
    cls=SectionedGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,  # a bug shows the plain traceback, without the values of local variables
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data.app, name="data")
for command in (demo.demo, train.train, translate.translate, complete.complete, fill.fill, classify.classify,
                label.label, predict.predict, serve.serve, evaluate.evaluate, compare.compare, look.look, info.info,
                export.export,
                config.config):
    app.command(cls=PanelCommand)(command)


def _show_version(value: bool) -> None:
    if value:
        for line in version_lines():
            typer.echo(line)
        raise typer.Exit


def version_lines() -> list[str]:
    """The versions of regard, Python and torch, and the device that `--device auto` would choose.

    torch is not imported, which would take a second: its version is read from its metadata, and GPUs are found by the
    files of NVIDIA's driver.
    """
    from importlib import metadata

    from regard import __version__

    try:
        torch = f"torch {metadata.version('torch')}"
    except metadata.PackageNotFoundError:
        torch = "torch is not installed: pip install torch"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    names = _gpu_names()
    if names and "+cpu" in torch:
        device = f"CPU, {cores} core{'' if cores == 1 else 's'}; {', '.join(names)} is not used: this torch is for CPUs"
    else:
        device = ", ".join(names) or f"CPU, {cores} core{'' if cores == 1 else 's'}"
    return [f"regard {__version__}", f"Python {sys.version.split()[0]}", torch, f"Device: {device}"]


def _gpu_names() -> list[str]:
    """The NVIDIA GPUs of this machine, as far as CUDA_VISIBLE_DEVICES shows them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.split(",")[0].strip() in ("", "-1"):
        return []
    names = []
    for path in sorted(GPU_FOLDER.glob("*/information")):
        found = re.search(r"^Model:\s*(.+)$", path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        names.append(found[1].strip() if found else "NVIDIA GPU")
    names = names or ["NVIDIA GPU" for path in DEVICE_FOLDER.glob("nvidia[0-9]*")]
    return names if visible is None else names[:len(visible.split(","))]


@app.callback()
@with_examples("""
    regard demo -o my-model                    # train a small translator
    regard translate my-model "The black cat sleeps."
    regard look my-model "The black cat sleeps."
    regard train pairs.tsv -o another-model    # train on your own data
    regard translate --help                    # all options, more examples
""")
def regard(
    version: Annotated[bool, typer.Option(
        "--version", "-V", help="Show the versions of regard, Python and torch, and the device.",
        callback=_show_version, is_eager=True)] = False,
) -> None:
    """Train sequence models on your own data, use them, and see what they attend to."""


def run() -> None:
    """Run the command line and end the process; the entry point of the script."""
    # Idle threads spin for a while and then sleep. With the long default spin time, training is many times slower on a
    # machine that is busy with other work. Both variables are read when torch is imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    # Large tensors get pages of 2 MiB where Linux offers them: a search may spend a fifth of its time on page faults.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    # A closed stream (`>&-`) is None in Python, and every write to it would be a traceback.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 (open until the process ends)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    warnings.showwarning = _show_warning
    if logging.lastResort is not None:  # warnings of the library go to stderr
        logging.getLogger("regard").addHandler(logging.lastResort)
    try:
        try:
            app(prog_name="regard")
        finally:
            # Flush here, where a broken pipe can be handled, and not at exit.
            sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe, as `| head` does
        _silence(sys.stdout, sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:  # of stdout: errors of other files have a name, and `report_failures` reports them
        from regard.storage.filesystem import describe_os_error

        _silence(sys.stdout)
        try:
            print(f"Error: {describe_os_error(error, OUTPUT)}", file=sys.stderr, flush=True)
        except OSError:  # there is nobody to tell
            _silence(sys.stderr)
        sys.exit(1)


def _silence(*streams: TextIO) -> None:
    """Redirect streams to the null device, so that the interpreter's flush at exit cannot fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _show_warning(message: Warning | str, category: type[Warning], filename: str, lineno: int,
                  file: TextIO | None = None, line: str | None = None) -> None:
    """Print a notice about an old name as one line, and other warnings as Python does."""
    if issubclass(category, FutureWarning) and str(filename).startswith(PACKAGE):
        print(f"Note: {message}", file=file or sys.stderr)
    else:
        print(warnings.formatwarning(message, category, filename, lineno, line), end="", file=file or sys.stderr)
