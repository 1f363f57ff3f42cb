"""Many texts at once: what may be given, and batches of rows of like lengths, with the results in the order given.

A batch is limited by its tokens, those that fill it up among them, so that memory does not grow with what is given. The
longest rows come first: what does not fit into memory fails at once. A method that is written for several texts takes
one too, and then gives one result, by `one_or_several`. It knows neither models nor tokenizers.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from regard import checks

TOKENS = 4096
"""Of a batch."""
Row = TypeVar("Row")
Result = TypeVar("Result")
Options = ParamSpec("Options")


class Bound(Protocol[Options, Result]):
    """A method that gives a result for one text, and for several a list of them."""

    @overload
    def __call__(self, texts: str, /, *args: Options.args,  # type: ignore[overload-overlap]
                 **options: Options.kwargs) -> Result: ...
    @overload
    def __call__(self, texts: Sequence[str], /, *args: Options.args, **options: Options.kwargs) -> list[Result]: ...


class Method(Protocol[Options, Result]):
    """Such a method in its class."""

    def __get__(self, instance: object, owner: type | None = None) -> Bound[Options, Result]:
        """That of an instance."""


def one_or_several(method: Callable[Concatenate[Any, Sequence[str], Options], list[Result]]) -> Method[Options, Result]:
    """A method of several texts that takes one as well. What is no text it refuses by the name of the argument."""
    argument = method.__code__.co_varnames[1]

    @functools.wraps(method)
    def given(self: Any, texts: Any, /, *args: Options.args, **options: Options.kwargs) -> Any:
        results = method(self, as_texts(argument, texts), *args, **options)
        return results[0] if isinstance(texts, str) else results

    return given  # type: ignore[return-value]


def as_texts(argument: str, given: object) -> list[str]:
    """One text, or several, as a list; a ValueError for anything else."""
    if isinstance(given, str):
        return [given]
    if not isinstance(given, Sequence) or isinstance(given, bytes):
        raise checks.wrong(argument, "a text, or a list of texts", *checks.kind(given))
    for number, text in enumerate(given):
        if not isinstance(text, str):
            got = f"a list with {checks.kind(text)[0]} at {number}"
            raise checks.wrong(argument, "a text, or a list of texts", got)
    return list(given)


def which(number: int, texts: Sequence[object]) -> str:
    """The end of a message about one of several texts, which says which; nothing where there is only one."""
    return f" in text {number}" if len(texts) > 1 else ""


def batches(lengths: Sequence[int], tokens: int = TOKENS) -> Iterator[list[int]]:
    """The numbers of rows of these lengths, batch by batch, the longest first; a row that is too long is alone."""
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    batch: list[int] = []
    for number in order:
        if batch and (len(batch) + 1) * lengths[batch[0]] > tokens:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


def in_batches(rows: Sequence[Row], lengths: Sequence[int], work: Callable[[list[Row]], Sequence[Result]],
               tokens: int = TOKENS) -> list[Result]:
    """What `work` makes of each row, given some of them at a time; in the order of the rows."""
    results: dict[int, Result] = {}
    for numbers in batches(lengths, tokens):
        results |= zip(numbers, work([rows[number] for number in numbers]), strict=True)
    return [results[number] for number in range(len(rows))]
