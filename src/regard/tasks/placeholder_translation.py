"""Translate texts so that their placeholders are kept, as many and in the same order, whatever the model writes.

    whole       the text as it is: a model that saw placeholders in training knows them
    stand-ins   each placeholder replaced by a short code, which many models copy
    placed      without the placeholders, which are put back next to the words that their neighbours were translated to
    pieces      the text between the placeholders, each piece by itself
    source      the untranslated text

Each strategy is tried on the lines for which the one before lost or added a placeholder. A text with tags skips
stand-ins, which make poor text of it (X1bigX2). Without an alignment `placed` is skipped. Lines are translated one by
one, and the white space around each is kept.

Where a placeholder belongs, by the alignment (a_ts is the weight of the link between words t and s):

    h_t = sum over s of +-a_ts          + for words s that a mark encloses, or for its stand-in; - for others
    h_t = sum over s of +-a_ts 2^-d_s   for a mark without a stand-in: + for words before it, - for words after it, with
                                        d_s words between
    score of a place = sum of h_t over the words t before it; for an opening mark, the negative

Of all ways to put the marks between the words of the translation, in their order, the one with the highest sum wins.

Legend: s, t words of source and translation; g the place before word g of the translation.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple, Protocol, TypeVar

from regard.data.filters import is_blank
from regard.tasks.alignment import Alignment, Link
from regard.tasks.placeholders import (
    ALONE,
    CLOSE,
    CLOSING_SIGNS,
    OPEN,
    STAND_IN,
    WORD,
    CodedText,
    PlaceholderMark,
    StrippedText,
    find_placeholders,
    join_pieces,
    split_lines,
    split_pieces,
)

# What ends a line or a column somewhere; and what no text of XML holds.
_SPACING = re.compile("[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]+")
_CONTROL = re.compile("[\0-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


class TranslatedText(Protocol):
    """What is needed of a translation."""

    @property
    def text(self) -> str:
        """As the model wrote it."""

    @property
    def score(self) -> float:
        """By which the search ranked it."""

    @property
    def cut(self) -> bool:
        """The model did not come to an end."""


TranslatedT = TypeVar("TranslatedT", bound=TranslatedText)
TranslateFunction = Callable[[list[str]], Sequence[TranslatedT]]
"""Gives the translations of texts, in their order."""
AlignTexts = Callable[[list[str], list[TranslatedT]], Sequence[Alignment]]
"""Tells of texts and their translations which words belong together, as `Translator.align`."""


@dataclass(frozen=True)
class PlaceholderTranslation:
    """A translation with all placeholders of its source."""

    text: str
    score: float
    """Where several texts were translated for it, the lowest of theirs; 0 where none was."""
    cut: bool
    how: str
    """The way that it came about; of several lines the last that was needed."""


class _TranslatedPart(NamedTuple):
    """A translation, and which of its words belong to which of the source, where that was asked for."""

    text: str
    alignment: Alignment | None


class _LinePlan(NamedTuple):
    """What is asked for a line, and what is made of the answers: None where a placeholder is lost."""

    asked: list[str]
    """The first begins the line, the others stand within it."""
    join: Callable[[list[_TranslatedPart]], str | None]


def translate_with_placeholders(texts: Sequence[str], ask: TranslateFunction[TranslatedT], align: AlignTexts[TranslatedT] | None = None,
         within: TranslateFunction[TranslatedT] | None = None) -> list[PlaceholderTranslation]:
    """The translation of each text. Of one that is blank it is empty.

    Args:
        align: for what was asked of `ask`, and what it gave. Without it no placeholder is put where its neighbours are.
        within: as `ask`, for pieces that do not begin a line, where that makes a difference.
    """
    cut = [split_lines(text) for text in texts]
    lines = dict.fromkeys(line.strip() for parts in cut for line in parts[::2] if not is_blank(line))
    known = _translate_lines(list(lines), ask, align, within)
    return [_join_lines(parts, known) for parts in cut]


def _join_lines(parts: list[str], known: dict[str, PlaceholderTranslation]) -> PlaceholderTranslation:
    """A text of its lines, every second part of which is a line break."""
    found = [known[line.strip()] for line in parts[::2] if not is_blank(line)]
    if not found:
        return PlaceholderTranslation("", 0.0, False, "whole")
    text = "".join(part if number % 2 or is_blank(part) else _with_outer_space(part, known[part.strip()].text)
                   for number, part in enumerate(parts))
    last = max(found, key=lambda one: list(ALIGNED_STRATEGIES).index(one.how))
    whole = "".join(parts)
    if len(found) > 1 and find_placeholders(text) != find_placeholders(whole):  # one has come about between two lines
        return PlaceholderTranslation(whole, 0.0, False, "source")
    return PlaceholderTranslation(text, min(one.score for one in found), any(one.cut for one in found), last.how)


def _with_outer_space(line: str, text: str) -> str:
    """A translation with the white space that is around its source."""
    inner = line.strip()
    begin = line.index(inner)
    return f"{line[:begin]}{text}{line[begin + len(inner):]}"


def _translate_lines(lines: list[str], ask: TranslateFunction[TranslatedT], align: AlignTexts[TranslatedT] | None,
           within: TranslateFunction[TranslatedT] | None) -> dict[str, PlaceholderTranslation]:
    """The translations of different lines that are not blank."""
    known = dict[str, PlaceholderTranslation]()
    for how, planned in (STRATEGIES if align is None else ALIGNED_STRATEGIES).items():
        plans = {line: planned(line) for line in lines if line not in known}
        alike = 1 if within else None  # where it makes no difference, all are asked for together
        answers = _translate_once([text for plan in plans.values() for text in plan.asked[:alike]], ask)
        others = _translate_once([text for plan in plans.values() for text in plan.asked[1:]], within) if within else answers
        looked = dict[str, Alignment]()
        if how == "placed" and align is not None and answers:
            looked = dict(zip(answers, align(list(answers), list(answers.values())), strict=True))
        for line, plan in plans.items():
            found = [(others if number else answers)[text] for number, text in enumerate(plan.asked)]
            text = plan.join([_TranslatedPart(_one_line(one.text), looked.get(text))
                              for text, one in zip(plan.asked, found, strict=True)])
            if text is not None and find_placeholders(text) == find_placeholders(line):
                score = min((one.score for one in found), default=0.0)
                known[line] = PlaceholderTranslation(text, score, any(one.cut for one in found), how)
    return known


def _translate_once(texts: Sequence[str], ask: TranslateFunction[TranslatedT]) -> dict[str, TranslatedT]:
    """The translation of each text, each asked for once."""
    different = list(dict.fromkeys(texts))
    return dict(zip(different, ask(different) if different else [], strict=True))


def _one_line(text: str) -> str:
    """What a model wrote, as every format can hold it."""
    return _CONTROL.sub("", _SPACING.sub(" ", text)).strip()


def _plan_whole(line: str) -> _LinePlan:
    if find_placeholders(line) and not any(piece.core for piece in split_pieces(line)):
        return _LinePlan([], lambda found: line)  # without words there is nothing to translate
    return _LinePlan([line], lambda found: found[0].text)


def _plan_codes(line: str) -> _LinePlan:
    hidden = CodedText.of(line)
    if hidden is None or not hidden.placeholders:
        return _LinePlan([], lambda found: None)
    return _LinePlan([hidden.text], lambda found: hidden.shown(found[0].text))


def _plan_codes_without_tags(line: str) -> _LinePlan:
    if any(mark.kind == OPEN for mark in StrippedText.of(line).marks):
        return _LinePlan([], lambda found: None)
    return _plan_codes(line)


def _plan_placement(line: str) -> _LinePlan:
    bare = StrippedText.of(line)
    if not bare.marks or not any(map(str.isalpha, bare.text)):
        return _LinePlan([], lambda found: None)
    return _LinePlan([bare.text], lambda found: _restore(bare, found[0]))


def _restore(bare: StrippedText, answer: _TranslatedPart) -> str | None:
    """A translation with its placeholders; None where its aligned words are not all that is left of its text."""
    alignment = answer.alignment
    if alignment is None or "".join(alignment.target) != "".join(answer.text.split()):
        return None
    return restore_placeholders(bare, alignment)


def _plan_pieces(line: str) -> _LinePlan:
    parts = split_pieces(line)
    return _LinePlan([part.core for part in parts if part.core], lambda found: join_pieces(parts, [one.text for one in found]))


def _plan_source(line: str) -> _LinePlan:
    return _LinePlan([], lambda found: line)


STRATEGIES: dict[str, Callable[[str], _LinePlan]] = {"whole": _plan_whole, "stand-ins": _plan_codes, "pieces": _plan_pieces,
                                           "source": _plan_source}
"""From the one that reads best to the one that cannot fail."""


# ---- placed: A translation written with its placeholders: in place of words, or between two, with the spaces that belong there.
#
#     le | gros | chien     <b> in front of gros, </b> behind it      le <b>gros</b> chien
#     Ouvrir | 12 | .       %s in place of 12                         Ouvrir %s.
#
# Spaces are those of the translation. Where it has none, between a word and a sign, those of the source decide. A tag is
# next to what it encloses. Where each placeholder belongs is for `regard.tasks.placeholder_translation`.


def restore_placeholders(bare: StrippedText, alignment: Alignment) -> str | None:
    """A translation with the marks of its source.

    None where there are not enough words to put them between, where marks would take the place of all words although
    they are not all that there was, or where tags that enclosed words would enclose signs alone.
    """
    spans = place_marks(bare, alignment)
    if spans is None or not _words_remain(bare, spans, alignment) or not _words_in_tags(bare, spans, alignment):
        return None
    taken = {span.first: (mark.text, span.behind) for mark, span in zip(bare.marks, spans, strict=True)
             if span.first < span.behind}
    between = [(span.first, mark) for mark, span in zip(bare.marks, spans, strict=True) if span.first == span.behind]
    text, last, g = "", "", 0
    while g < len(alignment.target):
        word, behind = taken.get(g, (alignment.target[g], g + 1))
        space = " " if has_space(alignment, g) else ""
        text += _gap_text(last, [mark for place, mark in between if place == g], space, word) + word
        last, g = word, behind
    return text + _gap_text(last, [mark for place, mark in between if place == g], "", "")


ALIGNED_STRATEGIES = {"whole": _plan_whole, "stand-ins": _plan_codes_without_tags, "placed": _plan_placement, "pieces": _plan_pieces,
                "source": _plan_source}
"""Those where something tells which words belong together."""


# ---- placing: Where placeholders belong in the translation of a text without them: where the words beside them were translated to.
#
#     h_t = Σ_s ±a_ts            + for words s that a mark encloses, or for the one that it left behind; − for others
#     h_t = Σ_s ±a_ts 2^-d_s     of a mark that left nothing: + for words in front of it, − for those behind it, with d_s
#                                words between
#     score of a place = Σ_(t in front of it) h_t; of one where something opens, the negative
#
# a_ts is the weight of the link between the words t and s. Of all ways to put the marks between the words of the
# translation, in their order, with a word in each tag and between others, the one with the highest sum is taken.
# A mark that left a word behind opens and closes, and what is between belongs to it. What stood at an end of the text
# stays at that end, and what stood in front of its last signs stays in front of such. It does not know what translates,
# what aligns, and how a text is written: that is for `regard.tasks.placeholder_translation`.
#
# Legend: s, t words of source and translation; g the place in front of word g of the translation.

APOSTROPHES = "'’"
_UNLINKED_COST = 0.05
"""What it costs to enclose a word that belongs to none."""
_NEIGHBOUR_WEIGHT = 0.01
"""How much the words beside a mark that left a word behind count, where nothing was made of that word."""
_NOWHERE = float("-inf")


class WordRange(NamedTuple):
    """The words of a translation that a mark takes the place of, from the first to the one behind the last."""

    first: int
    behind: int


def place_marks(bare: StrippedText, alignment: Alignment) -> list[WordRange] | None:
    """Where each mark belongs; None where there are not enough words to put them between."""
    found = best_places(_placement_scores(bare, _AlignmentView.of(alignment)))
    if found is None:
        return None
    remaining = iter(found)
    return [WordRange(place, next(remaining) if mark.kind == WORD else place)
            for mark, place in ((mark, next(remaining)) for mark in bare.marks)]


@dataclass(frozen=True)
class _AlignmentView:
    """What is known of both texts."""

    alignment: Alignment
    links: tuple[Link, ...]
    signs: tuple[list[bool], list[bool]]
    """Which words of source and translation have neither letters nor digits."""

    @classmethod
    def of(cls, alignment: Alignment) -> "_AlignmentView":
        """The links as they are, but of last signs and of stand-ins, which the texts themselves say more of."""
        signs = tuple([not any(map(str.isalnum, word)) for word in side]
                      for side in (alignment.source, alignment.target))
        copied = _copied_stand_ins(alignment.source, alignment.target)
        sure = dict(copied)
        for back in range(1, 1 + min(_leading_run(reversed(side)) for side in signs)):
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
        gains = [-_UNLINKED_COST] * self.count
        for link in self.links:
            inside = spans[link.source].start < end and start < spans[link.source].end
            gains[link.target] += link.weight if inside else -link.weight
        return _prefix_sums(gains)

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
        return _prefix_sums(gains)


class PlacementScores(NamedTuple):
    """The scores of one place to be found, and whether it must be behind the one before."""

    scores: list[float]
    apart: bool


def _placement_scores(bare: StrippedText, looked: _AlignmentView) -> list[PlacementScores]:
    """One for each mark, and two for one that left a word."""
    rows = list[PlacementScores]()
    for number, mark in enumerate(bare.marks):
        apart = number > 0 and _must_be_apart(bare, number)
        if mark.kind == ALONE:
            rows.append(PlacementScores(_single_mark_scores(mark, looked), apart))
        elif mark.kind == WORD:
            inside, beside = looked.enclosing(mark.start, mark.end), looked.beside(mark.start, mark.end)
            opening = [_NEIGHBOUR_WEIGHT * near - score for score, near in zip(inside, beside, strict=True)]
            rows += [PlacementScores(opening, apart), PlacementScores(inside, False)]
        else:
            rows.append(PlacementScores(_tag_scores(bare, mark, looked), apart))
    return rows


def _must_be_apart(bare: StrippedText, number: int) -> bool:
    """Whether a word is to be between a mark and the one before: in a tag, and between two that enclose nothing."""
    before, mark = bare.marks[number - 1], bare.marks[number]
    if {before.kind, mark.kind}.isdisjoint((OPEN, CLOSE)):
        return any(map(str.isalnum, bare.text[before.end:mark.start]))
    return mark.partner == number - 1


def _single_mark_scores(mark: PlaceholderMark, looked: _AlignmentView) -> list[float]:
    signs, count = looked.signs, looked.count
    left = sum(span.end <= mark.start for span in looked.alignment.source_spans)  # words in front of it
    if all(signs[0][left:]):
        return _fixed_place(count, count - min(len(signs[0]) - left, _leading_run(reversed(signs[1]))))
    if all(signs[0][:left]):
        return _fixed_place(count, min(left, _leading_run(signs[1])))
    scores = looked.beside(mark.start, mark.end)
    return [_NOWHERE if _is_elision(looked.alignment, g) else score for g, score in enumerate(scores)]


def _tag_scores(bare: StrippedText, mark: PlaceholderMark, looked: _AlignmentView) -> list[float]:
    other = bare.marks[mark.partner]
    start, end = min(mark.start, other.start), max(mark.end, other.end)
    if not bare.text[:start] and not bare.text[end:]:
        return _fixed_place(looked.count, 0 if mark.kind == OPEN else looked.count)
    inside = looked.enclosing(start, end)
    return inside if mark.kind == CLOSE else [-score for score in inside]


def _copied_stand_ins(source: Sequence[str], target: Sequence[str]) -> dict[int, int]:
    """For each stand-in of the translation that of the source, where the model has copied all of them."""
    there = [[number for number, word in enumerate(side) if word == STAND_IN] for side in (target, source)]
    return dict(zip(*there, strict=True)) if len(there[0]) == len(there[1]) else {}


def _fixed_place(count: int, place: int) -> list[float]:
    """The scores of what can be at one place alone."""
    return [0.0 if g == place else _NOWHERE for g in range(count + 1)]


def _prefix_sums(gains: Sequence[float]) -> list[float]:
    sums = [0.0]
    for gain in gains:
        sums.append(sums[-1] + gain)
    return sums


def _leading_run(signs: Iterable[bool]) -> int:
    """How many there are before the first that is none."""
    return sum(1 for _ in takewhile(bool, signs))


def best_places(rows: Sequence[PlacementScores]) -> list[int] | None:
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


def _is_elision(alignment: Alignment, g: int) -> bool:
    """Whether an apostrophe holds the words of this place together."""
    if not 0 < g < len(alignment.target) or has_space(alignment, g):
        return False
    return alignment.target[g - 1][-1:] in APOSTROPHES or alignment.target[g][:1] in APOSTROPHES


def has_space(alignment: Alignment, g: int) -> bool:
    """Whether there is white space in front of word g. At both ends there is none."""
    inner = 0 < g < len(alignment.target)
    return inner and alignment.target_spans[g - 1].end < alignment.target_spans[g].start


_OPENING_SIGNS = "([{«“„¿¡/" + APOSTROPHES


def _words_remain(bare: StrippedText, spans: Sequence[WordRange], alignment: Alignment) -> bool:
    """Whether there are words beside marks, as there were in the source, if there were any."""
    here = {number for mark in bare.marks for number in range(mark.start, mark.end)}
    if not any(letter.isalpha() for number, letter in enumerate(bare.text) if number not in here):
        return True
    there = {number for span in spans for number in range(*span)}
    return any(any(map(str.isalnum, word)) for number, word in enumerate(alignment.target) if number not in there)


def _words_in_tags(bare: StrippedText, spans: Sequence[WordRange], alignment: Alignment) -> bool:
    """Whether tags enclose words, if they did in the source: their own are none, and a placeholder's are."""
    for mark, span in zip(bare.marks, spans, strict=True):
        if mark.kind != OPEN:
            continue
        close, last = bare.marks[mark.partner], spans[mark.partner]
        if any(map(str.isalnum, bare.text[mark.start:close.start])) and not any(
                map(str.isalnum, "".join(alignment.target[span.first:last.first]))):
            return False
    return True


def _gap_text(before: str, marks: Sequence[PlaceholderMark], space: str, after: str) -> str:
    """What stands between two words, of which one may be missing."""
    text, waiting, last = "", list[PlaceholderMark](), None
    for mark in marks:
        waiting.append(mark)
        if mark.kind in (WORD, ALONE):
            text += _with_tags(_space_between(last, mark) if last else _space_before(before, mark, space), waiting[:-1]) + mark.text
            waiting, last = [], mark
    return text + _with_tags(_space_after(last, space, after) if last else space, waiting)


def _with_tags(space: str, tags: Sequence[PlaceholderMark]) -> str:
    """Tags and a space, where it belongs: behind those that close, in front of those that open."""
    closing = "".join(tag.text for tag in tags if tag.kind == CLOSE)
    return closing + space + "".join(tag.text for tag in tags if tag.kind == OPEN)


def _space_before(before: str, mark: PlaceholderMark, space: str) -> str:
    """The space in front of a mark."""
    if not before or mark.text[0] in CLOSING_SIGNS or mark.text[0].isspace():
        return ""
    if _written_together(mark, mark.before, before[-1], space):
        return ""
    return space if space or before[-1] in _OPENING_SIGNS else " "


def _space_between(one: PlaceholderMark, other: PlaceholderMark) -> str:
    """The space between two marks."""
    near = one.end == other.start and not (one.after.isspace() or other.before.isspace())
    return "" if near else " "


def _space_after(mark: PlaceholderMark, space: str, after: str) -> str:
    """The space behind a mark."""
    if not after or _written_together(mark, mark.after, after[0], space):
        return ""
    return space if space or after[0] in CLOSING_SIGNS else " "


def _written_together(mark: PlaceholderMark, was: str, now: str, space: str) -> bool:
    """Whether there is no space between a mark and what is beside it now, where there was this before."""
    if not was or was.isspace():
        return False
    return mark.glued or (not space and (was == now or (was.isalpha() and now.isalpha())))
