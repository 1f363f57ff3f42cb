"""The command `regard` as a person meets it: run as a process, with its exit code and both streams."""

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import regard

LIMIT = 0.3
"""Seconds for --help and --version, on a machine that imports typer in TYPER_SECONDS."""
TYPER_SECONDS = 0.08
REGARD = [sys.executable, "-m", "regard"]
# Output is buffered for users; a variable of the machine that turns it off would hide what happens at the last flush.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def call(*arguments, command=REGARD, **environment):
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=60, env={**ENVIRONMENT, **environment}
    )


def extra(body):
    """A call of the command line with one more command, `extra`, whose body is given."""
    code = f"from regard.cli import main\n@main.app.command()\ndef extra():\n    {body}\nmain.run()"
    return [sys.executable, "-c", code, "extra"]


def processor_seconds(command):
    """The processor time of a command."""
    before = os.times()
    assert call(command=command).returncode == 0
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def assert_quick(command):
    """The command takes less than LIMIT in one of ten tries.

    Other programs slow a processor down too, for some time: so each try is compared with an import just before it.
    """
    tries = []
    for _ in range(10):
        slowness = max(1.0, processor_seconds([sys.executable, "-c", "import typer"]) / TYPER_SECONDS)
        tries.append(processor_seconds(command) / slowness)
        if tries[-1] < LIMIT:
            return
    pytest.fail(f"{min(tries):.2f} s at best")


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_answers_at_once(option):
    assert_quick([*REGARD, option])


@pytest.mark.thorough
@pytest.mark.parametrize("option", ["--help", "--version", "-h", "-V"])
def test_answers_without_torch(option):
    code = f"""
import sys
from regard.cli import main
sys.argv = ["regard", {option!r}]
try:
    main.run()
except SystemExit as end:
    sys.exit(end.code or int("torch" in sys.modules or "rich" in sys.modules))
"""
    assert call(command=[sys.executable, "-c", code]).returncode == 0


def test_version():
    first, python, torch, device = call("--version").stdout.splitlines()
    assert first == f"regard {regard.__version__}"
    assert python == f"Python {sys.version.split()[0]}"
    assert torch == f"torch {metadata.version('torch')}"
    assert device.startswith("Device: ")


def test_help_names_the_commands():
    result = call("--help")
    assert result.stderr == ""
    assert "demo" in result.stdout


def test_the_script_is_the_same_as_the_module():
    script = Path(sys.executable).with_name("regard")
    assert call("--help", command=[script]).stdout == call("--help").stdout


def test_no_command_shows_the_help_and_is_a_wrong_call():
    result = call()
    assert result.returncode == 2
    assert "demo" in result.stdout + result.stderr


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["dmeo"], "Did you mean 'demo'?"),
        (["nothing-like-it"], "nothing-like-it"),
        (["--verison"], "--version"),
        (["demo", "--no-such-option"], "--no-such-option"),
        (["demo", "too-much"], "too-much"),
    ],
)
def test_a_wrong_call_says_what_and_offers_the_nearest(arguments, said):
    result = call(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert said in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("text", ["[/bold]", "[red]x", ":smile:", "\x1b[31mred"])
def test_what_a_user_types_is_not_markup(text):
    result = call(text)
    assert result.returncode == 2
    assert "\x1b" not in result.stderr
    assert text.replace("\x1b", "\\x1b") in result.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("environment", [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}, {"NO_COLOR": "1"}])
def test_help_is_plain_text_everywhere(environment):
    result = call("--help", **environment)
    assert result.returncode == 0
    assert result.stdout.isascii()
    assert "\x1b" not in result.stdout


def test_a_narrow_terminal():
    assert call("--help", COLUMNS="20").returncode == 0


@pytest.mark.thorough
@pytest.mark.parametrize("lines", [0, 1, 100_000])
def test_a_reader_that_leaves(lines):
    """`regard ... | head`, for output that fits the buffer, and for output that does not."""
    command = extra(f"print('line\\n' * {lines}, end='')")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT)
    process.stdout.close()
    with process.stderr as stream:
        said = stream.read()
    assert process.wait(timeout=60) == (1 if lines else 0)
    assert said == b""


def test_an_interrupt_ends_without_a_traceback():
    result = call(command=extra("raise KeyboardInterrupt"))
    assert result.returncode == 130
    assert result.stderr == ""


def test_a_closed_output_is_not_an_error():
    result = subprocess.run(
        [*REGARD, "--version"], stderr=subprocess.PIPE, timeout=60, env=ENVIRONMENT, preexec_fn=lambda: os.close(1)
    )
    assert result.returncode == 0
    assert result.stderr == b""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize("lines", [1, 100_000])
def test_a_full_disk_is_one_line(lines):
    command = extra(f"print('line\\n' * {lines})")
    with open("/dev/full", "w") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, env=ENVIRONMENT)
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "No space left on device" in result.stderr


def test_a_bug_is_not_hidden():
    """Only what a user can cause is worded; an error in the code keeps its traceback."""
    result = call(command=extra("[][1]"))
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert "IndexError" in result.stderr


def test_an_error_of_a_file_is_one_line():
    result = call(command=extra("open('/no/such/file')"))
    assert result.returncode == 1
    assert result.stderr == "Error: /no/such/file: No such file or directory.\n"
