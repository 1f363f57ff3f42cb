"""How regard tells a user that an argument is wrong.

One form of message for the whole package: the name of the argument, what was expected, what came, and the nearest
valid name where there is one. It knows nothing of attention, models or files; it only words the error.
"""

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

# ---- rules: Rules say what may be written: each turns the log-probabilities of the next token into others.
#
#     rule(log-probabilities (R, V), what is written so far) -> log-probabilities (R, V)
#
# A rule may lower a log-probability, to −∞ where it forbids a token; it never raises one, because searches stop when no
# continuation can win any more, and count on it that one never gains. What is left is not normalised again: a hypothesis
# keeps the probabilities that the model gave. A rule remembers nothing, since hypotheses change places between steps;
# what it needs is read off what is written. It knows neither models nor searches.
#
# Legend: B rows, N tokens in front of them, R hypotheses, t tokens written so far, n of a sequence, W sequences of the
# text, V vocabulary; T = N + t.


def whole_number(argument: str, value: object, least: int = 0) -> int:
    """A whole number, at least `least`; a ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise wrong(argument, f"a whole number, at least {least}", repr(value))
    return value


Value = TypeVar("Value")


def wrong(argument: str, expected: str, got: object, remedy: str = "") -> ValueError:
    """The error for an argument that is not what it must be; the caller raises it."""
    return ValueError(f"`{argument}` must be {expected}, but is {got} instead.{' ' + remedy if remedy else ''}")


def nearest(name: str, valid: Iterable[str]) -> str:
    """A sentence that offers the valid name closest to `name`, or nothing when none is close."""
    close = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.5)
    return f'Did you mean "{close[0]}"?' if close else ""


def pick(argument: str, name: str, table: Mapping[str, Value]) -> Value:
    """The entry of `table` called `name`; an unknown name is an error that lists the valid ones."""
    if name in table:
        return table[name]
    expected = "one of " + ", ".join(f'"{valid}"' for valid in table)
    raise wrong(argument, expected, f'"{name}"', nearest(name, table))


def probability(argument: str, value: object) -> None:
    """Refuse what is no probability below 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < 1.0:
        raise wrong(argument, "a probability, at least 0 and below 1", repr(value))


def kind(value: object) -> tuple[str, str]:
    """What a value is, and what to do where a class was given in the place of an instance."""
    if isinstance(value, type):
        return f"the class {value.__name__}", f"Make one of it: {value.__name__}(...)."
    return f"a {type(value).__name__}", ""


def shape(tensor: object) -> str:
    """The shape of a tensor as users write it: (2, 3, 4)."""
    return str(tuple(tensor.shape))  # type: ignore[attr-defined]
