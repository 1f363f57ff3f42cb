"""What the literature reports for these tasks: facts to print beside what is measured here, each with its source.

These are other people's numbers, of their models, sizes and trainings. None of them was measured by this code.
"""

from typing import NamedTuple


class Figure(NamedTuple):
    """A number from a paper."""

    task: str
    way: str
    length: str
    measure: str
    value: str
    source: str


BAI, ARJOVSKY, ARORA = ("Bai, Kolter, Koltun 2018", "Arjovsky, Shah, Bengio 2016", "Arora et al. 2023")
FIGURES = (
    Figure("copy", "without memory", "1,000", "loss", "0.0204", ARJOVSKY),
    Figure("copy", "rnn", "1,000", "loss", "0.020", BAI),
    Figure("copy", "lstm", "1,000", "loss", "0.0204", BAI),
    Figure("copy", "gru", "1,000", "loss", "0.020", BAI),
    Figure("copy", "convolution (TCN)", "1,000", "loss", "3.5e-5", BAI),
    Figure("recall", "attention", "every", "accuracy", "1.00", ARORA),
    Figure("adding", "without memory", "every", "loss", "0.1767", ARJOVSKY),
)


def of(task: str) -> tuple[Figure, ...]:
    """The figures of a task."""
    return tuple(figure for figure in FIGURES if figure.task == task)
