"""Sentences of the phrasebook with placeholders, and translations that have them at the right places.

The links of the phrasebook say where: a word that becomes a placeholder has one translation, and what stands in a tag
is translated to words that stand together.
"""

import random
from typing import NamedTuple

from regard.data import phrasebook

MARKS = ("{name}", "%s", "%(n)d", "${x}")
TAGS = (("<b>", "</b>"), ('<a href="https://a.org">', "</a>"), ("<i>", "</i>"))
KINDS = ("word", "tag", "address", "front")


class Marked(NamedTuple):
    """A sentence with a placeholder, or two, its translation, and the pair that it was made of."""

    kind: str
    source: str
    target: str
    pair: phrasebook.AlignedPair
    replaced: int | None
    """The word of the source that became a placeholder."""


def marked(count, seed=3, longest=8):
    """So many, of all kinds in turn."""
    draw, found = random.Random(seed), []
    for number, pair in enumerate(phrasebook.pairs(10 * count, split="test", max_words=longest, seed=seed)):
        kind = KINDS[len(found) % len(KINDS)]
        spans = _spans(pair)
        words = [span for span in spans if span[0] == span[1] and span[2] == span[3]
                 and len(pair.source_words[span[0]]) > 3 and pair.source_words[span[0]].isalpha()]
        if kind == "word" and words:
            first, _, other, _ = draw.choice(words)
            mark = draw.choice(MARKS)
            found.append(Marked(kind, _inside(pair.source, pair.source_offsets, first, first, mark),
                                _inside(pair.target, pair.target_offsets, other, other, mark), pair, first))
        elif kind == "tag" and spans:
            first, last, other, end = draw.choice(spans)
            tags = draw.choice(TAGS)
            found.append(Marked(kind, _inside(pair.source, pair.source_offsets, first, last, *tags),
                                _inside(pair.target, pair.target_offsets, other, end, *tags), pair, None))
        elif kind == "address":
            mark = f" https://example.org/help?page={number}"
            found.append(Marked(kind, pair.source + mark, pair.target + mark, pair, None))
        elif kind == "front":
            found.append(Marked(kind, f"%s: {pair.source}", f"%s: {pair.target}", pair, None))
        if len(found) == count:
            return found
    raise AssertionError("too few pairs")


def _spans(pair):
    """(first, last, first, last) words of both sides that are linked with each other alone, and not with all."""
    found, count = [], len(pair.source_words) - 1
    for first in range(count):
        for last in range(first, min(count, first + count - 1)):
            there = [target for source, target in pair.alignment if first <= source <= last]
            begin, end = min(there, default=0), max(there, default=-1)
            inside = {target: [source for source, other in pair.alignment if other == target]
                      for target in range(begin, end + 1)}
            if there and all(sources and first <= min(sources) <= max(sources) <= last for sources in inside.values()):
                found.append((first, last, begin, end))
    return found


def _inside(text, offsets, first, last, mark, closing=None):
    """The text with a mark in place of some of its words, or with tags around them."""
    begin, end = offsets[first][0], offsets[last][1]
    return text[:begin] + (mark if closing is None else mark + text[begin:end] + closing) + text[end:]
