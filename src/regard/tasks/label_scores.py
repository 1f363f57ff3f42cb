"""Scores of labels: accuracy, precision, recall and F1 of each label and of spans, and the confusion matrix.

    scores = LabelScores(("B-LOC", "I-LOC", "O"))
    scores.add(expected, predicted)                       the label numbers of one sequence, for each of them
    scores.accuracy, scores.f1, scores.by_label(), scores.by_span(), scores.confusion
    groups = parse_merge("H=HGI,E=EB,C=*").groups_of(scores.rows)
    scores.for_groups(groups)                             empty scores of groups of labels
    merge_probabilities(probabilities, labels, groups)    the names and the probabilities of the groups

Precision is the fraction of what was predicted that is correct, recall the fraction of what is correct that was
predicted, F1 their harmonic mean; each is 0 where it would be 0/0. `f1` is that of all spans for labels of an IOB
scheme, and else the mean over the labels that occur (macro F1). Spans count as correct if type, start and end are
correct (conlleval). An expected label that the model does not have is never predicted: its tokens are wrong, unless a
merge puts it into one group with a label that the model has. The probability of a group is the sum of those of its
labels, so the most probable group may be another than that of the most probable label.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard import checks
from regard.data.spans import find_spans, is_span_scheme

REST = "*"
"""In a merge: all labels that no other group has."""


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
        labels: the names of the model's labels, by their numbers.
        unknown: labels of the data that the model does not have; their numbers follow.
    """

    def __init__(self, labels: Sequence[str], unknown: Sequence[str] = ()) -> None:
        self.labels, self.rows = tuple(labels), (*labels, *unknown)
        self.has_spans = is_span_scheme(self.labels)
        self.counts: NDArray[np.int64] = np.zeros((len(self.rows), len(self.labels)), np.int64)
        """(expected, predicted): a row for each label of `rows`, a column for each of `labels`."""
        self._spans: dict[str, Counter[str]] = {name: Counter() for name in ("correct", "expected", "predicted")}

    def add(self, expected: Iterable[int], predicted: Iterable[int]) -> None:
        """Add the numbers of the expected and the predicted labels of a sequence."""
        right, guessed = (np.asarray([*numbers] if not isinstance(numbers, np.ndarray) else numbers, np.int64)
                          for numbers in (expected, predicted))
        if right.shape != guessed.shape:
            raise checks.wrong("predicted", f"as many labels as expected, {len(right)}", len(guessed))
        np.add.at(self.counts, (right, guessed), 1)
        if self.has_spans:
            both = [{*find_spans([self.rows[number] for number in numbers.tolist()])} for numbers in (right, guessed)]
            for name, spans in zip(self._spans, (both[0] & both[1], *both), strict=True):
                self._spans[name].update(span.label for span in spans)

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return int(self.counts.sum())

    @property
    def correct(self) -> int:
        """The number of tokens whose label is correct."""
        return int(np.trace(self.counts))

    @property
    def accuracy(self) -> float:
        """The fraction of correct labels; 0 without tokens."""
        return self.correct / max(1, self.tokens)

    @property
    def unknown(self) -> dict[str, int]:
        """The number of tokens of each label that the model does not have."""
        numbers = range(len(self.labels), len(self.rows))
        return {self.rows[at]: int(self.counts[at].sum()) for at in numbers}

    @property
    def confusion(self) -> list[list[int]]:
        """A row for each expected label, a column for each predicted one, both in the order of `rows`."""
        return np.pad(self.counts, ((0, 0), (0, len(self.rows) - len(self.labels)))).tolist()

    def by_label(self) -> list[LabelScore]:
        """The scores of each label, those last that the model does not have."""
        square = np.array(self.confusion).reshape(len(self.rows), len(self.rows))
        return [LabelScore.of(label, int(square[at, at]), int(square[at].sum()), int(square[:, at].sum()))
                for at, label in enumerate(self.rows)]

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

    def for_groups(self, groups: Mapping[str, str]) -> "LabelScores":
        """Empty scores of groups of these labels.

        Args:
            groups: the name of the group of each label of `rows`.
        """
        own = dict.fromkeys(groups[label] for label in self.labels)
        others = dict.fromkeys(groups[label] for label in self.rows)
        found = LabelScores([*own], [group for group in others if group not in own])
        found.has_spans = False
        return found


class LabelGroups(NamedTuple):
    """Groups of labels, as a user names them."""

    members: Mapping[str, str]
    """What is named in each group, and the name of the group: labels, or several labels of one character each."""
    rest: str | None
    """The group of all other labels; None if they stay as they are."""
    argument: str = "merge"
    """What errors call the groups."""

    def groups_of(self, labels: Sequence[str]) -> dict[str, str]:
        """The group of each of these labels."""
        found = dict[str, str]()
        for member, group in self.members.items():
            for label in [member] if member in labels else member:
                if found.setdefault(label, group) != group:
                    raise checks.wrong(self.argument, "groups of which no two have the same label",
                                       f"{label!r} in {found[label]!r} and {group!r}")
        return {label: found.get(label, label if self.rest is None else self.rest) for label in labels}

    def unknown(self, labels: Sequence[str]) -> list[str]:
        """The labels that are named and not among these; a name is read as single characters if one of them is."""
        named = (label for member in self.members
                 for label in ([member] if member in labels or not {*member} & {*labels} else member))
        return [label for label in dict.fromkeys(named) if label not in labels]


def merge_probabilities(probabilities: Tensor, labels: Sequence[str],
                        groups: Mapping[str, str]) -> tuple[list[str], Tensor]:
    """The names of the groups of labels and their probabilities, each the sum over its labels.

    Args:
        probabilities: (..., labels).
        groups: the name of the group of each of the labels.
    """
    names = [*dict.fromkeys(groups[label] for label in labels)]
    numbers = torch.tensor([names.index(groups[label]) for label in labels], device=probabilities.device)
    merged = probabilities.new_zeros(*probabilities.shape[:-1], len(names))
    return names, merged.index_add_(-1, numbers, probabilities)


def parse_merge(text: str, argument: str = "merge") -> LabelGroups:
    """Groups of labels, from text such as "H=HGI,E=EB,C=*" or "noun=NOUN+PROPN".

    Labels are joined by +, which may be left out where all are single characters. * stands for all labels that no other
    group has; without it they stay as they are.

    Args:
        argument: what errors call the text.
    """
    groups, rest = dict[str, str](), None
    example = "such as H=HGI,E=EB,C=* or noun=NOUN+PROPN"
    for part in text.split(","):
        name, equals, members = (piece.strip() for piece in part.partition("="))
        if not (name and equals and members):
            raise checks.wrong(argument, f"groups of labels, {example}", repr(text))
        if members == REST:
            if rest is not None:
                raise checks.wrong(argument, f"groups of labels, at most one of them of all other labels ({REST})",
                                   repr(text))
            rest = name
            continue
        for member in members.split("+"):
            if not member or groups.setdefault(member, name) != name:
                raise checks.wrong(argument, f"groups of labels, each label in one of them only, {example}", repr(text))
    return LabelGroups(groups, rest, argument)
