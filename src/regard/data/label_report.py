"""What is in data with a label for every token: lengths, labels, duplicates, overlap with validation and test data.

    report = check_labels(files, validation=files, test=files)
    report.tables()          plain values, for JSON or a table

It counts and judges nothing: `regard data check --task label` prints it. This module does not import torch.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from regard.data.filters import hash_texts
from regard.data.sources.text import Location
from regard.data.sources.token_labels import LabelledFile, LabelledSequence
from regard.data.spans import count_irregular, find_spans, is_span_scheme

PERCENTILES = (5, 50, 95, 99, 100)
FIRST = 5
"""Places that are listed of each finding."""


@dataclass
class LabelReport:
    """Counts of labelled sequences."""

    layouts: list[str] = field(default_factory=list)
    """How each file was read."""
    lengths: list[int] = field(default_factory=list)
    labels: Counter[str] = field(default_factory=Counter)
    """The number of tokens of each label."""
    tokens: Counter[str] = field(default_factory=Counter)
    """How often each distinct token occurs."""
    empty: list[Location] = field(default_factory=list)
    duplicates: list[Location] = field(default_factory=list)
    """Sequences that were there before with the same labels."""
    conflicts: list[Location] = field(default_factory=list)
    """Sequences that were there before with other labels."""
    irregular: list[Location] = field(default_factory=list)
    """Sequences with spans of an IOB scheme that do not begin with B-."""
    spans: Counter[str] = field(default_factory=Counter)
    """The number of spans of each type, for labels of an IOB scheme."""
    overlaps: dict[str, dict[str, Any]] = field(default_factory=dict)
    """For validation and test data: their size, and what they share with the training data."""
    seen: dict[int, int] = field(default_factory=dict)
    """The hash of the labels of each sequence, by the hash of its tokens."""

    def add(self, sequence: LabelledSequence) -> None:
        """Count a sequence of the training data."""
        own, labels = (hash_texts("\t".join(part)) for part in (sequence.tokens, sequence.labels))
        if own in self.seen:
            (self.duplicates if self.seen[own] == labels else self.conflicts).append(sequence.location)
        self.seen.setdefault(own, labels)
        self.lengths.append(len(sequence.tokens))
        self.labels.update(sequence.labels)
        self.tokens.update(sequence.tokens)
        self.spans.update(span.label for span in find_spans(sequence.labels))
        if count_irregular(sequence.labels):
            self.irregular.append(sequence.location)

    def compare(self, name: str, sequences: Iterable[LabelledSequence]) -> None:
        """Compare validation or test sequences with the training data."""
        count, both, first = 0, 0, list[str]()
        labels, tokens, unseen = Counter[str](), 0, Counter[str]()
        for sequence in sequences:
            count += 1
            tokens += len(sequence.tokens)
            labels.update(label for label in sequence.labels if label not in self.labels)
            unseen.update(token for token in sequence.tokens if token not in self.tokens)
            if hash_texts("\t".join(sequence.tokens)) in self.seen:
                both += 1
                first += [str(sequence.location)] if len(first) < FIRST else []
        self.overlaps[name] = {"sequences": count, "tokens": tokens, "in_training": both, "first": first,
                               "unknown_labels": dict(labels), "unknown_tokens": unseen.total()}

    def tables(self) -> dict[str, Any]:
        """The report as plain values."""
        scheme, total = is_span_scheme(self.labels), sum(self.labels.values())
        cuts: list[int] = np.percentile(self.lengths, PERCENTILES, method="nearest").tolist() if self.lengths else []
        return {
            "files": self.layouts, "sequences": len(self.lengths), "tokens": total, "distinct_tokens": len(self.tokens),
            "length": {f"{cut}%": int(value) for cut, value in zip(PERCENTILES, cuts, strict=False)},
            "labels": {label: {"tokens": count, "share": count / total} for label, count in self.labels.most_common()},
            "spans": dict(self.spans.most_common()) if scheme else None,
            "empty": _places(self.empty), "duplicates": _places(self.duplicates), "conflicts": _places(self.conflicts),
            "irregular_spans": _places(self.irregular) if scheme else None, "overlap": self.overlaps}


def _places(found: Sequence[Location]) -> dict[str, Any]:
    return {"count": len(found), "first": [str(place) for place in found[:FIRST]]}


def check_labels(files: Sequence[LabelledFile], *, validation: Sequence[LabelledFile] = (),
                 test: Sequence[LabelledFile] = ()) -> LabelReport:
    """Read all files once, and count."""
    report = LabelReport([f"{file.input.name} ({file.layout.describe()})" for file in files])
    for file in files:
        for sequence in file.read(report.empty):
            report.add(sequence)
    for name, others in (("validation", validation), ("test", test)):
        if others:
            report.compare(name, (sequence for file in others for sequence in file))
    return report
