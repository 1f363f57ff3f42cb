"""Checks of arguments, and the one form of error message for a wrong one.

A message has the name of the argument, what was expected, what was given, and the nearest valid name if there is one.
`plural` writes a number with its noun. `renamed_arguments` keeps the old names of arguments working. This module knows
nothing of models or files.
"""

import difflib
import functools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ParamSpec, TypeVar

Value = TypeVar("Value")
Parameters = ParamSpec("Parameters")


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


def plural(count: int, noun: str, several: str = "") -> str:
    """A number with its noun: "1 pair", "5,000 pairs"; `several` is a plural that is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else several or noun + 's'}"


def join_names(names: Sequence[str]) -> str:
    """Names in a sentence: a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def whole_number(argument: str, value: object, least: int = 0) -> int:
    """A whole number, at least `least`; a ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise wrong(argument, f"a whole number, at least {least}", repr(value))
    return value


def probability(argument: str, value: object) -> None:
    """Refuse anything but a number from 0 to below 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < 1.0:
        raise wrong(argument, "a probability, at least 0 and below 1", repr(value))


def kind(value: object) -> tuple[str, str]:
    """The type of a value with its article, and a remedy where a class was given instead of an instance."""
    if isinstance(value, type):
        return f"the class {value.__name__}", f"Pass an instance: {value.__name__}(...)."
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}", ""


def shape(tensor: object) -> str:
    """The shape of a tensor as users write it: (2, 3, 4)."""
    return str(tuple(tensor.shape))  # type: ignore[attr-defined]


def renamed_arguments(**renamed: str) -> Callable[[Callable[Parameters, Value]], Callable[Parameters, Value]]:
    """A decorator that keeps the old names of keyword arguments working: `renamed_arguments(limit="max_length")`.

    An old name is replaced by the new one with a FutureWarning. Both names in one call are a TypeError.
    """
    def decorate(function: Callable[Parameters, Value]) -> Callable[Parameters, Value]:
        @functools.wraps(function)
        def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Value:
            for old in [name for name in kwargs if name in renamed]:
                new = renamed[old]
                if new in kwargs:
                    raise TypeError(f"`{old}` is the old name of `{new}`: pass only one of them.")
                warnings.warn(f"`{old}` is now called `{new}`.", FutureWarning, stacklevel=2)
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate
