"""Calls of the command line inside the test's own process, which has torch already: code, output, and what was said."""

import json

from typer.testing import CliRunner

from regard.cli.main import app


def call(*arguments, stdin=None):
    """Exit code, stdout and stderr of a call."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert "\x1b" not in result.stdout + result.stderr
    return result.exit_code, result.stdout, result.stderr


def lines(*arguments, stdin=None):
    """The lines of the output of a call in which nothing went wrong."""
    code, out, said = call(*arguments, stdin=stdin)
    assert (code, said) == (0, "")
    assert out.endswith("\n") or not out
    return out.split("\n")[:-1]


def tables(*arguments, stdin=None):
    """The JSON of each line of the output."""
    return [json.loads(line) for line in lines(*arguments, "--json", stdin=stdin)]


def idx(array):
    """An array of bytes as an IDX file."""
    return bytes((0, 0, 8, array.ndim)) + b"".join(size.to_bytes(4, "big") for size in array.shape) + array.tobytes()
