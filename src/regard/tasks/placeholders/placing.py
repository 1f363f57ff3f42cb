"""Where placeholders belong in the translation of a text without them: where the words beside them were translated to.

    h_t = Σ_s ±a_ts            + for words s that a mark encloses, or for the one that it left behind; − for others
    h_t = Σ_s ±a_ts 2^-d_s     of a mark that left nothing: + for words in front of it, − for those behind it, with d_s
                               words between
    score of a place = Σ_(t in front of it) h_t; of one where something opens, the negative

a_ts is the weight of the link between the words t and s. Of all ways to put the marks between the words of the
translation, in their order, with a word in each tag and between others, the one with the highest sum is taken.
A mark that left a word behind opens and closes, and what is between belongs to it. What stood at an end of the text
stays at that end, and what stood in front of its last signs stays in front of such. It does not know what translates,
what aligns, and how a text is written: that is for `regard.tasks.placeholders.placed`.

Legend: s, t words of source and translation; g the place in front of word g of the translation.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from regard.tasks.alignment.words import Alignment, Link
from regard.tasks.placeholders.placeless import ALONE, CLOSE, OPEN, STAND_IN, WORD, Mark, Placeless

APOSTROPHES = "'’"
_UNLINKED = 0.05
"""What it costs to enclose a word that belongs to none."""
_NEIGHBOURS = 0.01
"""How much the words beside a mark that left a word behind count, where nothing was made of that word."""
_NOWHERE = float("-inf")


class Span(NamedTuple):
    """The words of a translation that a mark takes the place of, from the first to the one behind the last."""

    first: int
    behind: int


def places(bare: Placeless, alignment: Alignment) -> list[Span] | None:
    """Where each mark belongs; None where there are not enough words to put them between."""
    found = highest(_rows(bare, _Looked.of(alignment)))
    if found is None:
        return None
    remaining = iter(found)
    return [Span(place, next(remaining) if mark.kind == WORD else place)
            for mark, place in ((mark, next(remaining)) for mark in bare.marks)]


@dataclass(frozen=True)
class _Looked:
    """What is known of both texts."""

    alignment: Alignment
    links: tuple[Link, ...]
    signs: tuple[list[bool], list[bool]]
    """Which words of source and translation have neither letters nor digits."""

    @classmethod
    def of(cls, alignment: Alignment) -> "_Looked":
        """The links as they are, but of last signs and of stand-ins, which the texts themselves say more of."""
        signs = tuple([not any(map(str.isalnum, word)) for word in side]
                      for side in (alignment.source, alignment.target))
        copied = _same(alignment.source, alignment.target)
        sure = dict(copied)
        for back in range(1, 1 + min(_run(reversed(side)) for side in signs)):
            sure[len(alignment.target) - back] = len(alignment.source) - back
        links = [link for link in alignment.links if link.target not in sure and link.source not in copied.values()]
        links += [Link(source, target, 1.0) for target, source in sure.items()]
        return cls(alignment, tuple(links), (signs[0], signs[1]))

    @property
    def count(self) -> int:
        """Of words of the translation."""
        return len(self.alignment.target)

    def enclosing(self, start: int, end: int) -> list[float]:
        """What is gained where a span ends behind each place, rather than at the beginning."""
        spans = self.alignment.source_spans
        gains = [-_UNLINKED] * self.count
        for link in self.links:
            inside = spans[link.source].start < end and start < spans[link.source].end
            gains[link.target] += link.weight if inside else -link.weight
        return _sums(gains)

    def beside(self, start: int, end: int) -> list[float]:
        """What is gained at each place by standing behind what was in front."""
        spans = self.alignment.source_spans
        front = [number for number, span in enumerate(spans) if span.end <= start]
        back = [number for number, span in enumerate(spans) if span.start >= end]
        near = {number: 0.5 ** away for away, number in enumerate(reversed(front))}
        near |= {number: -(0.5 ** away) for away, number in enumerate(back)}
        gains = [0.0] * self.count
        for link in self.links:
            gains[link.target] += link.weight * near.get(link.source, 0.0)
        return _sums(gains)


class Row(NamedTuple):
    """The scores of one place to be found, and whether it must be behind the one before."""

    scores: list[float]
    apart: bool


def _rows(bare: Placeless, looked: _Looked) -> list[Row]:
    """One for each mark, and two for one that left a word."""
    rows = list[Row]()
    for number, mark in enumerate(bare.marks):
        apart = number > 0 and _apart(bare, number)
        if mark.kind == ALONE:
            rows.append(Row(_alone(mark, looked), apart))
        elif mark.kind == WORD:
            inside, beside = looked.enclosing(mark.start, mark.end), looked.beside(mark.start, mark.end)
            opening = [_NEIGHBOURS * near - score for score, near in zip(inside, beside, strict=True)]
            rows += [Row(opening, apart), Row(inside, False)]
        else:
            rows.append(Row(_tag(bare, mark, looked), apart))
    return rows


def _apart(bare: Placeless, number: int) -> bool:
    """Whether a word is to be between a mark and the one before: in a tag, and between two that enclose nothing."""
    before, mark = bare.marks[number - 1], bare.marks[number]
    if {before.kind, mark.kind}.isdisjoint((OPEN, CLOSE)):
        return any(map(str.isalnum, bare.text[before.end:mark.start]))
    return mark.partner == number - 1


def _alone(mark: Mark, looked: _Looked) -> list[float]:
    signs, count = looked.signs, looked.count
    left = sum(span.end <= mark.start for span in looked.alignment.source_spans)  # words in front of it
    if all(signs[0][left:]):
        return _only(count, count - min(len(signs[0]) - left, _run(reversed(signs[1]))))
    if all(signs[0][:left]):
        return _only(count, min(left, _run(signs[1])))
    scores = looked.beside(mark.start, mark.end)
    return [_NOWHERE if _elided(looked.alignment, g) else score for g, score in enumerate(scores)]


def _tag(bare: Placeless, mark: Mark, looked: _Looked) -> list[float]:
    other = bare.marks[mark.partner]
    start, end = min(mark.start, other.start), max(mark.end, other.end)
    if not bare.text[:start] and not bare.text[end:]:
        return _only(looked.count, 0 if mark.kind == OPEN else looked.count)
    inside = looked.enclosing(start, end)
    return inside if mark.kind == CLOSE else [-score for score in inside]


def _same(source: Sequence[str], target: Sequence[str]) -> dict[int, int]:
    """For each stand-in of the translation that of the source, where the model has copied all of them."""
    there = [[number for number, word in enumerate(side) if word == STAND_IN] for side in (target, source)]
    return dict(zip(*there, strict=True)) if len(there[0]) == len(there[1]) else {}


def _only(count: int, place: int) -> list[float]:
    """The scores of what can be at one place alone."""
    return [0.0 if g == place else _NOWHERE for g in range(count + 1)]


def _sums(gains: Sequence[float]) -> list[float]:
    sums = [0.0]
    for gain in gains:
        sums.append(sums[-1] + gain)
    return sums


def _run(signs: Iterable[bool]) -> int:
    """How many there are before the first that is none."""
    return sum(1 for _ in takewhile(bool, signs))


def highest(rows: Sequence[Row]) -> list[int] | None:
    """The places, never falling, that together have the highest score; the first of equals."""
    if not rows:
        return []
    total, ways = list(rows[0].scores), list[list[int]]()
    for scores, apart in rows[1:]:
        best, way, at = list[float](), list[int](), 0
        for g, score in enumerate(scores):
            last = g - 1 if apart else g
            at = last if last >= 0 and total[last] > total[at] else at
            best.append(score + total[at] if last >= 0 else _NOWHERE)
            way.append(at)
        total = best
        ways.append(way)
    place = max(range(len(total)), key=lambda g: (total[g], -g))
    if total[place] == _NOWHERE:
        return None
    places = [place]
    for way in reversed(ways):
        places.append(way[places[-1]])
    return places[::-1]


def _elided(alignment: Alignment, g: int) -> bool:
    """Whether an apostrophe holds the words of this place together."""
    if not 0 < g < len(alignment.target) or has_space(alignment, g):
        return False
    return alignment.target[g - 1][-1:] in APOSTROPHES or alignment.target[g][:1] in APOSTROPHES


def has_space(alignment: Alignment, g: int) -> bool:
    """Whether there is white space in front of word g. At both ends there is none."""
    inner = 0 < g < len(alignment.target)
    return inner and alignment.target_spans[g - 1].end < alignment.target_spans[g].start
