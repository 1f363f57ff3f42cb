"""What the literature reports for these tasks: facts to print beside what is measured here, each with its source.

These are other people's numbers, of their models, sizes and trainings. None of them was measured by this code.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Figure(NamedTuple):
    """A number from a paper."""

    task: str
    way: str
    """One of ours that is of the same kind, or "without memory"."""
    length: int | None
    """None is every length."""
    measure: str
    value: str
    """As it is printed there."""
    source: str
    model: str = ""
    """What the paper calls it, where that is another name."""


BAI, ARJOVSKY, ARORA = ("Bai, Kolter, Koltun 2018", "Arjovsky, Shah, Bengio 2016", "Arora et al. 2023")
NOTHING = "without memory"
FIGURES = (
    Figure("copy", NOTHING, 1000, "loss", "0.0204", ARJOVSKY),
    Figure("copy", "rnn", 1000, "loss", "0.020", BAI),
    Figure("copy", "lstm", 1000, "loss", "0.0204", BAI),
    Figure("copy", "gru", 1000, "loss", "0.020", BAI),
    Figure("copy", "convolution", 1000, "loss", "3.5e-5", BAI, "TCN"),
    Figure("recall", "attention", None, "accuracy", "1.00", ARORA),
    Figure("adding", NOTHING, None, "loss", "0.1767", ARJOVSKY),
)


def of(task: str) -> tuple[Figure, ...]:
    """The figures of a task."""
    return tuple(figure for figure in FIGURES if figure.task == task)


def marks(task: str, lengths: Sequence[int]) -> dict[str, dict[int, float]]:
    """What ways of a task have in the literature, at these lengths and at all others that are not longer."""
    found = dict[str, dict[int, float]]()
    for figure in of(task):
        at = lengths if figure.length is None else [figure.length]
        here = {length: float(figure.value) for length in at if length <= max(lengths)}
        if here and figure.way != NOTHING:
            found[figure.way] = here
    return found
