"""Spans in sequences of labels: the entities of IOB schemes by conlleval's rule, and runs of equal labels.

    find_spans(["B-PER", "I-PER", "O", "B-LOC"])     [LabelSpan("PER", 0, 2), LabelSpan("LOC", 3, 4)]
    find_runs(["C", "H", "H", "C"])                  [LabelSpan("C", 0, 1), LabelSpan("H", 1, 3), LabelSpan("C", 3, 4)]

A label of an IOB scheme is O, or a prefix, a hyphen and a type: B- begins a span, I- continues it; IOBES also has E-
for its last token and S- for a span of one token (BILOU calls them L- and U-). Labels need not follow each other
properly: conlleval (Tjong Kim Sang and Buchholz 2000) starts a span at B- and S-, at any label after O, E- or S-, and
wherever the type changes; so an I- without a B- before it begins a span too, as in the scheme IOB1. Such spans are
counted, because they may be mistakes.

This module knows labels, not models.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

OUTSIDE = "O"
_SCHEME_LABEL = re.compile(r"([BIESLU])-(.+)")
_ALIASES = {"L": "E", "U": "S"}
_BARE_LABELS = frozenset("BIOES")


class LabelSpan(NamedTuple):
    """The tokens from `start` up to, but not including, `end`, which share a label or are one entity of a type."""

    label: str
    start: int
    end: int


class _Tag(NamedTuple):
    """A label of an IOB scheme."""

    prefix: str
    type: str


def is_span_scheme(labels: Collection[str]) -> bool:
    """Whether these are the labels of an IOB scheme: O and prefixes with types, or B, I, O without types."""
    if any(_SCHEME_LABEL.fullmatch(label) for label in labels):
        return all(label == OUTSIDE or _SCHEME_LABEL.fullmatch(label) for label in labels)
    return {"B", "I", OUTSIDE} <= {*labels} <= _BARE_LABELS


def find_spans(labels: Sequence[str]) -> list[LabelSpan]:
    """The spans of a sequence of IOB labels, by conlleval's rule."""
    return [span for span, _ in _spans(labels)]


def count_irregular(labels: Sequence[str]) -> int:
    """The number of spans that do not begin with B- or S-."""
    return sum(not regular for _, regular in _spans(labels))


def _spans(labels: Sequence[str]) -> Iterator[tuple[LabelSpan, bool]]:
    """Each span, and whether it begins with B- or S-."""
    start, before = 0, _Tag(OUTSIDE, "")
    for at, tag in enumerate([*map(_parse_tag, labels), _Tag(OUTSIDE, "")]):
        begins = tag.prefix != OUTSIDE and (tag.prefix in "BS" or before.prefix in (OUTSIDE, "E", "S")
                                            or tag.type != before.type)
        if before.prefix != OUTSIDE and (begins or tag.prefix == OUTSIDE):
            yield LabelSpan(before.type, start, at), _parse_tag(labels[start]).prefix in "BS"
        if begins:
            start = at
        before = tag


def _parse_tag(label: str) -> _Tag:
    found = _SCHEME_LABEL.fullmatch(label)
    if found is None:
        return _Tag(label if label in _BARE_LABELS else OUTSIDE, "")
    return _Tag(_ALIASES.get(found[1], found[1]), found[2])


def find_runs(labels: Sequence[str]) -> list[LabelSpan]:
    """The longest runs of equal labels."""
    starts = [at for at, label in enumerate(labels) if not at or label != labels[at - 1]]
    return [LabelSpan(labels[start], start, end)
            for start, end in zip(starts, [*starts[1:], len(labels)], strict=False)]
