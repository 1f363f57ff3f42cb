"""How right links between words are, against links that people, or a grammar, have made.

    AER = 1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|)        (Och and Ney 2003)

A are the links that were found, S the sure ones, P those that are possible, all sure ones among them; each a sum over
all sentences. Where all links are sure, it is 1 less the F-score. It is for measuring: nothing is chosen by it.
"""

from collections.abc import Collection, Sequence

from regard import checks
from regard.data.tokenizer.words import Span
from regard.tasks.alignment.words import Alignment

Links = Collection[tuple[int, int]]
"""(word of the source, word of the target), from 0."""


def error_rate(found: Sequence[Links], sure: Sequence[Links], possible: Sequence[Links] | None = None) -> float:
    """The alignment error rate of links, sentence by sentence; 0 where there are none, and none should be.

    Args:
        possible: links that are neither wrong nor missed; the sure ones are always among them.
    """
    allowed = sure if possible is None else possible
    for name, given in (("sure", sure), ("possible", allowed)):
        if len(given) != len(found):
            raise checks.wrong(name, f"links for each of {len(found):,} sentences", f"for {len(given):,}")
    right = both = 0
    for links, certain, other in zip(map(set, found), map(set, sure), map(set, allowed), strict=True):
        right += len(links & certain) + len(links & (certain | other))
        both += len(links) + len(certain)
    return 1 - right / both if both else 0.0


def between(alignment: Alignment, source: Sequence[tuple[int, int]], target: Sequence[tuple[int, int]]) -> Links:
    """The links of an alignment between other words of the same texts, given as (start, end) of their characters: those
    that share a character with linked words."""
    sides = zip((alignment.source_spans, alignment.target_spans), (source, target), strict=True)
    sources, targets = ([_within(span, words) for span in spans] for spans, words in sides)
    return {(one, other) for link in alignment.links for one in sources[link.source] for other in targets[link.target]}


def _within(span: Span, words: Sequence[tuple[int, int]]) -> list[int]:
    return [number for number, (start, end) in enumerate(words) if start < span.end and span.start < end]
