"""Many texts at once: what may be given, and batches of rows of like lengths, with the results in the order given.

A batch is limited by its tokens, those that fill it up among them, so that memory does not grow with what is given. The
longest rows come first: what does not fit into memory fails at once. It knows neither models nor tokenizers.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from regard import checks

TOKENS = 4096
"""Of a batch."""
Row = TypeVar("Row")
Result = TypeVar("Result")


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
