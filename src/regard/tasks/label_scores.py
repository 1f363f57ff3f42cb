"""Scores of labels: accuracy, precision, recall and F1 of each label and of spans, and the confusion matrix.

    scores = LabelScores(("B-LOC", "I-LOC", "O"))
    scores.add(expected, predicted)                       the label numbers of one sequence, for each of them
    scores.accuracy, scores.f1, scores.by_label(), scores.by_span(), scores.confusion
    scores.merged(parse_merge("H=HGI,E=EB,C=*", labels))  the same for groups of labels

Precision is the fraction of what was predicted that is correct, recall the fraction of what is correct that was
predicted, F1 their harmonic mean; each is 0 where it would be 0/0. `f1` is that of all spans for labels of an IOB scheme,
and else the mean over the labels that occur (macro F1). Spans count as correct if type, start and end are correct
(conlleval). An expected label that the model does not have is never predicted: its tokens are wrong.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard import checks
from regard.data.spans import find_spans, is_span_scheme

REST = "*"
"""In a merge: all labels that no other group has."""
UNKNOWN = -1
"""The number of an expected label that the model does not have."""


class LabelScore(NamedTuple):
    """The scores of one label or of one type of spans."""

    label: str
    precision: float
    recall: float
    f1: float
    expected: int
    """How many there are in the data."""
    predicted: int

    @staticmethod
    def of(label: str, correct: int, expected: int, predicted: int) -> "LabelScore":
        """The scores of these counts."""
        precision, recall = correct / max(1, predicted), correct / max(1, expected)
        f1 = 2 * correct / (expected + predicted) if correct else 0.0
        return LabelScore(label, precision, recall, f1, expected, predicted)


class LabelScores:
    """Counts of expected and predicted labels.

    Args:
        labels: the names of the labels, by their numbers.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = tuple(labels)
        self.has_spans = is_span_scheme(self.labels)
        self.counts: NDArray[np.int64] = np.zeros((len(labels) + 1, len(labels)), np.int64)
        """(expected, predicted); the last row is for labels that the model does not have."""
        self._spans: dict[str, Counter[str]] = {name: Counter() for name in ("correct", "expected", "predicted")}

    def add(self, expected: Iterable[int], predicted: Iterable[int], names: Sequence[str] | None = None) -> None:
        """Add a sequence.

        Args:
            expected, predicted: label numbers; an expected one may be UNKNOWN.
            names: the names of the expected labels, if some are UNKNOWN.
        """
        right, guessed = (np.asarray([*numbers] if not isinstance(numbers, np.ndarray) else numbers, np.int64)
                          for numbers in (expected, predicted))
        if right.shape != guessed.shape:
            raise checks.wrong("predicted", f"as many labels as expected, {len(right)}", len(guessed))
        np.add.at(self.counts, (right, guessed), 1)
        if self.has_spans:
            given = [self.labels[number] for number in right.tolist()] if names is None else names
            both = {*find_spans(given)}, {*find_spans([self.labels[number] for number in guessed.tolist()])}
            for name, spans in zip(self._spans, (both[0] & both[1], *both), strict=True):
                self._spans[name].update(span.label for span in spans)

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return int(self.counts.sum())

    @property
    def correct(self) -> int:
        """The number of tokens whose label is correct."""
        return int(np.trace(self.counts[:-1]))

    @property
    def accuracy(self) -> float:
        """The fraction of correct labels; 0 without tokens."""
        return self.correct / max(1, self.tokens)

    @property
    def unknown(self) -> int:
        """The number of tokens whose label the model does not have."""
        return int(self.counts[-1].sum())

    @property
    def confusion(self) -> list[list[int]]:
        """A row for each expected label, a column for each predicted one."""
        return self.counts[:-1].tolist()

    def by_label(self) -> list[LabelScore]:
        """The scores of each label."""
        return [LabelScore.of(label, int(self.counts[at, at]), int(self.counts[at].sum()), int(self.counts[:, at].sum()))
                for at, label in enumerate(self.labels)]

    def by_span(self) -> list[LabelScore]:
        """The scores of each type of spans."""
        types = sorted({*self._spans["expected"], *self._spans["predicted"]})
        return [LabelScore.of(one, *(self._spans[name][one] for name in self._spans)) for one in types]

    @property
    def spans(self) -> LabelScore:
        """The scores of all spans together."""
        return LabelScore.of("all", *(self._spans[name].total() for name in self._spans))

    @property
    def macro_f1(self) -> float:
        """The mean F1 of the labels that are expected or predicted somewhere."""
        found = [score.f1 for score in self.by_label() if score.expected or score.predicted]
        return sum(found) / max(1, len(found))

    @property
    def f1(self) -> float:
        """The F1 of all spans for labels of an IOB scheme, else the macro F1."""
        return self.spans.f1 if self.has_spans else self.macro_f1

    def merged(self, groups: Mapping[str, str]) -> "LabelScores":
        """The scores of groups of labels.

        Args:
            groups: the name of the group of each label.
        """
        names = tuple(dict.fromkeys(groups[label] for label in self.labels))
        found, index = LabelScores(names), [names.index(groups[label]) for label in self.labels]
        np.add.at(found.counts, np.ix_([*index, len(names)], index), self.counts)
        found.has_spans = False
        return found


def parse_merge(text: str, labels: Sequence[str]) -> dict[str, str]:
    """The group of each label, from text such as "H=HGI,E=EB,C=*" or "noun=NOUN+PROPN".

    Labels are joined by +, which may be left out where all are single characters. * stands for all labels that no other
    group has; without it they stay as they are.
    """
    groups, rest = dict[str, str](), None
    example = "such as H=HGI,E=EB,C=* or noun=NOUN+PROPN"
    for part in text.split(","):
        name, equals, members = (piece.strip() for piece in part.partition("="))
        if not (name and equals and members):
            raise checks.wrong("--merge", f"groups of labels, {example}", repr(text))
        if members == REST:
            if rest is not None:
                raise checks.wrong("--merge", f"at most one group of all other labels ({REST})", repr(text))
            rest = name
            continue
        for member in _members(members, labels):
            if member in groups:
                raise checks.wrong("--merge", "every label in one group", f"{member!r} in two")
            groups[member] = name
    return {label: groups.get(label, label if rest is None else rest) for label in labels}


def _members(text: str, labels: Sequence[str]) -> list[str]:
    found = list[str]()
    for part in text.split("+"):
        several = [part] if part in labels else list(part)
        unknown = [label for label in several if label not in labels]
        if unknown:
            raise checks.wrong("--merge", f"groups of the labels {', '.join(labels)[:200]}", repr(part))
        found += several
    return found
