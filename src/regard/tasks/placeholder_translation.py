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

    h_t = Σ_s ±a_ts           + for words s that a mark encloses, or for its stand-in; − for others
    h_t = Σ_s ±a_ts 2^-d_s    for a mark without a stand-in: + for words before it, − for words after it, with d_s words
                              between
    score of a place = Σ h_t over the words t before it; for an opening mark, the negative

Of all ways to put the marks between the words of the translation, in their order, with a word in each tag, the one with
the highest sum wins. A mark at an end of the text stays there, and a mark before the last signs stays before such.

`placeholder_steps` is a generator: it yields texts to be translated and is sent their translations, so a server can
wait for many texts at once. `translate_with_placeholders` runs it with functions.

Legend: s, t words of source and translation; g the place before word g of the translation.
"""

import re
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple, TypeVar

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
from regard.tasks.search import GeneratedText

APOSTROPHES = "'’"
_OPENING_SIGNS = "([{«“„¿¡/" + APOSTROPHES
_SPACING = re.compile("[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]+")  # ends a line or a column in some format
_CONTROL = re.compile("[\0-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")  # not allowed in XML
_UNLINKED_COST = 0.05
"""The cost of enclosing a word without a link."""
_NEIGHBOUR_WEIGHT = 0.01
"""The weight of the neighbours of a mark whose stand-in was not translated."""
_NOWHERE = float("-inf")


TranslatedT = TypeVar("TranslatedT", bound=GeneratedText)
TranslateFunction = Callable[[list[str]], Sequence[TranslatedT]]
"""Returns the translations of texts, in their order."""
AlignTexts = Callable[[list[str], list[TranslatedT]], Sequence[Alignment]]
"""Aligns texts with their translations, as `Translator.align` does."""


@dataclass(frozen=True)
class PlaceholderTranslation:
    """A translation with all placeholders of its source."""

    text: str
    score: float
    """The lowest score of the translated parts; 0 if nothing was translated."""
    cut: bool
    strategy: str
    """The strategy that worked; for several lines the last one that was needed."""
    alternatives: tuple[str, ...] = ()
    """Other translations with all placeholders, from the alternatives of the lines that were translated whole."""


class PlaceholderStep(NamedTuple):
    """Texts that must be translated before the next step."""

    texts: list[str]
    inner: bool
    """Whether the texts are pieces that do not begin a line."""
    align: bool
    """Whether their alignments are needed too."""


class StepResult(NamedTuple):
    """The translations of the texts of a step, in their order, and their alignments if the step needs them."""

    translations: Sequence[GeneratedText]
    alignments: Sequence[Alignment] = ()


class _TranslatedPart(NamedTuple):
    """A translation, and its alignment if it was computed."""

    text: str
    alignment: Alignment | None


class _LinePlan(NamedTuple):
    """The texts to translate for a line, and a function that joins them: None if a placeholder is lost."""

    texts: list[str]
    """The first begins the line, the others do not."""
    join: Callable[[list[_TranslatedPart]], str | None]


def translate_with_placeholders(texts: Sequence[str], translate: TranslateFunction[TranslatedT],
                                align: AlignTexts[TranslatedT] | None = None,
                                translate_inner: TranslateFunction[TranslatedT] | None = None,
                                ) -> list[PlaceholderTranslation]:
    """The translation of each text; that of a blank text is empty.

    Args:
        align: aligns texts with the results of `translate`. Without it the strategy `placed` is skipped.
        translate_inner: as `translate`, for pieces that do not begin a line, if that makes a difference.
    """
    steps = placeholder_steps(texts, aligned=align is not None, inner=translate_inner is not None)
    try:
        step = next(steps)
        while True:
            work = translate_inner if step.inner and translate_inner is not None else translate
            found = list(work(step.texts))
            alignments = align(step.texts, found) if step.align and align is not None else ()
            step = steps.send(StepResult(found, alignments))
    except StopIteration as end:
        return end.value


def placeholder_steps(texts: Sequence[str], *, aligned: bool, inner: bool,
                      ) -> Generator[PlaceholderStep, StepResult, list[PlaceholderTranslation]]:
    """The steps of `translate_with_placeholders`, whose result the generator returns.

    Args:
        aligned: whether alignments can be computed. Without them the strategy `placed` is skipped.
        inner: whether pieces that do not begin a line are translated in steps of their own.
    """
    split = [split_lines(text) for text in texts]
    lines = dict.fromkeys(line.strip() for parts in split for line in parts[::2] if not is_blank(line))
    known = yield from _line_steps(list(lines), aligned, inner)
    return [_join_lines(parts, known) for parts in split]


def _join_lines(parts: list[str], known: dict[str, PlaceholderTranslation]) -> PlaceholderTranslation:
    """The translation of a text from those of its lines; every second part is a line break."""
    found = [known[line.strip()] for line in parts[::2] if not is_blank(line)]
    if not found:
        return PlaceholderTranslation("", 0.0, False, "whole")
    text = _with_lines(parts, [one.text for one in found])
    last = max(found, key=lambda one: list(ALIGNED_STRATEGIES).index(one.strategy))
    placeholders = find_placeholders("".join(parts))
    if len(found) > 1 and find_placeholders(text) != placeholders:  # a new one between two lines
        return PlaceholderTranslation("".join(parts), 0.0, False, "source")
    others = dict.fromkeys(_with_lines(parts, some) for some in combine_alternatives(found))
    return PlaceholderTranslation(text, min(one.score for one in found), any(one.cut for one in found), last.strategy,
                                  tuple(one for one in others if one != text
                                        and (len(found) == 1 or find_placeholders(one) == placeholders)))


def combine_alternatives(parts: Sequence[PlaceholderTranslation]) -> list[list[str]]:
    """Alternatives of a text from those of its parts: number k has the k-th of each part, or its best one."""
    count = max((len(part.alternatives) for part in parts), default=0)
    return [[part.alternatives[number] if number < len(part.alternatives) else part.text for part in parts]
            for number in range(count)]


def _with_lines(parts: Sequence[str], translated: Sequence[str]) -> str:
    """A text with its line breaks and blank lines, and with other lines translated."""
    remaining = iter(translated)
    return "".join(part if number % 2 or is_blank(part) else _with_outer_space(part, next(remaining))
                   for number, part in enumerate(parts))


def _with_outer_space(line: str, text: str) -> str:
    """A translation with the white space around its source."""
    inner = line.strip()
    begin = line.index(inner)
    return f"{line[:begin]}{text}{line[begin + len(inner):]}"


def _line_steps(lines: list[str], aligned: bool, inner: bool,
                ) -> Generator[PlaceholderStep, StepResult, dict[str, PlaceholderTranslation]]:
    """The translations of distinct lines that are not blank."""
    known = dict[str, PlaceholderTranslation]()
    for strategy, make_plan in (ALIGNED_STRATEGIES if aligned else STRATEGIES).items():
        plans = {line: make_plan(line) for line in lines if line not in known}
        first = 1 if inner else None  # otherwise all texts are translated together
        align = strategy == "placed"
        outer, alignments = yield from _one_step([text for plan in plans.values() for text in plan.texts[:first]],
                                                 False, align)
        others = outer
        if inner:
            others, _ = yield from _one_step([text for plan in plans.values() for text in plan.texts[1:]], True, False)
        for line, plan in plans.items():
            found = [(others if number else outer)[text] for number, text in enumerate(plan.texts)]
            joined = plan.join([_TranslatedPart(_one_line(one.text), alignments.get(text))
                                for text, one in zip(plan.texts, found, strict=True)])
            if joined is not None and find_placeholders(joined) == find_placeholders(line):
                score = min((one.score for one in found), default=0.0)
                more = _kept_alternatives(line, joined, found) if strategy == "whole" else ()
                known[line] = PlaceholderTranslation(joined, score, any(one.cut for one in found), strategy, more)
    return known


def _kept_alternatives(line: str, best: str, found: Sequence[GeneratedText]) -> tuple[str, ...]:
    """The alternatives of a line that have all its placeholders, each once."""
    wanted, others = find_placeholders(line), [_one_line(one.text) for some in found for one in some.alternatives]
    return tuple(one for one in dict.fromkeys(others) if one != best and find_placeholders(one) == wanted)


def _one_step(texts: Sequence[str], inner: bool, align: bool,
              ) -> Generator[PlaceholderStep, StepResult, tuple[dict[str, GeneratedText], dict[str, Alignment]]]:
    """The translations and alignments of distinct texts; no step if there are none."""
    distinct = list(dict.fromkeys(texts))
    if not distinct:
        return {}, {}
    result = yield PlaceholderStep(distinct, inner, align)
    return (dict(zip(distinct, result.translations, strict=True)),
            dict(zip(distinct, result.alignments, strict=True)) if align else {})


def _one_line(text: str) -> str:
    """A generated text without characters that some format cannot hold."""
    return _CONTROL.sub("", _SPACING.sub(" ", text)).strip()


def _plan_whole(line: str) -> _LinePlan:
    if find_placeholders(line) and not any(piece.core for piece in split_pieces(line)):
        return _LinePlan([], lambda found: line)  # no words to translate
    return _LinePlan([line], lambda found: found[0].text)


def _plan_codes(line: str) -> _LinePlan:
    coded = CodedText.of(line)
    if coded is None or not coded.placeholders:
        return _LinePlan([], lambda found: None)
    return _LinePlan([coded.text], lambda found: coded.restore(found[0].text))


def _plan_codes_without_tags(line: str) -> _LinePlan:
    if any(mark.kind == OPEN for mark in StrippedText.of(line).marks):
        return _LinePlan([], lambda found: None)
    return _plan_codes(line)


def _plan_placement(line: str) -> _LinePlan:
    stripped = StrippedText.of(line)
    if not stripped.marks or not any(map(str.isalpha, stripped.text)):
        return _LinePlan([], lambda found: None)
    return _LinePlan([stripped.text], lambda found: _restore(stripped, found[0]))


def _restore(stripped: StrippedText, part: _TranslatedPart) -> str | None:
    """A translation with its placeholders; None if its aligned words are not its whole text."""
    alignment = part.alignment
    if alignment is None or "".join(alignment.target) != "".join(part.text.split()):
        return None
    return restore_placeholders(stripped, alignment)


def _plan_pieces(line: str) -> _LinePlan:
    pieces = split_pieces(line)
    return _LinePlan([piece.core for piece in pieces if piece.core],
                     lambda found: join_pieces(pieces, [one.text for one in found]))


def _plan_source(line: str) -> _LinePlan:
    return _LinePlan([], lambda found: line)


STRATEGIES: dict[str, Callable[[str], _LinePlan]] = {
    "whole": _plan_whole, "stand-ins": _plan_codes, "pieces": _plan_pieces, "source": _plan_source,
}
"""From the one that reads best to the one that cannot fail."""
ALIGNED_STRATEGIES = {
    "whole": _plan_whole, "stand-ins": _plan_codes_without_tags, "placed": _plan_placement, "pieces": _plan_pieces,
    "source": _plan_source,
}
"""The strategies with an alignment."""


# Placeholders put back into a translation

def restore_placeholders(stripped: StrippedText, alignment: Alignment) -> str | None:
    """A translation of a stripped text with its marks: instead of their stand-ins, or between two words.

        le | gros | chien     <b> before gros, </b> after it      le <b>gros</b> chien
        Ouvrir | 12 | .       %s instead of 12                    Ouvrir %s.

    Spaces are those of the translation; between a word and a sign, where it has none, those of the source decide. A tag
    adjoins what it encloses.

    None if there are not enough words to put the marks between, if marks would replace all words although the source
    has others, or if tags that enclosed words would enclose only signs.
    """
    ranges = place_marks(stripped, alignment)
    if ranges is None or not _words_remain(stripped, ranges, alignment) or not _words_in_tags(stripped, ranges,
                                                                                              alignment):
        return None
    placed = list(zip(stripped.marks, ranges, strict=True))
    replaced = {words.first: (mark.text, words.end) for mark, words in placed if words.first < words.end}
    between = [(words.first, mark) for mark, words in placed if words.first == words.end]
    text, last, g = "", "", 0
    while g < len(alignment.target):
        word, end = replaced.get(g, (alignment.target[g], g + 1))
        space = " " if _has_space(alignment, g) else ""
        text += _gap_text(last, [mark for place, mark in between if place == g], space, word) + word
        last, g = word, end
    return text + _gap_text(last, [mark for place, mark in between if place == g], "", "")


class WordRange(NamedTuple):
    """The words of a translation that a mark replaces; an empty range is a place between two words."""

    first: int
    end: int


def _words_remain(stripped: StrippedText, ranges: Sequence[WordRange], alignment: Alignment) -> bool:
    """Whether words remain beside the marks, if there were any in the source."""
    stand_ins = {number for mark in stripped.marks for number in range(mark.start, mark.end)}
    if not any(letter.isalpha() for number, letter in enumerate(stripped.text) if number not in stand_ins):
        return True
    replaced = {number for words in ranges for number in range(*words)}
    return any(any(map(str.isalnum, word)) for number, word in enumerate(alignment.target) if number not in replaced)


def _words_in_tags(stripped: StrippedText, ranges: Sequence[WordRange], alignment: Alignment) -> bool:
    """Whether tags enclose words, if they did in the source. A stand-in counts as a word."""
    for mark, words in zip(stripped.marks, ranges, strict=True):
        if mark.kind != OPEN:
            continue
        close, last = stripped.marks[mark.partner], ranges[mark.partner]
        if any(map(str.isalnum, stripped.text[mark.start:close.start])) and not any(
                map(str.isalnum, "".join(alignment.target[words.first:last.first]))):
            return False
    return True


def _gap_text(before: str, marks: Sequence[PlaceholderMark], space: str, after: str) -> str:
    """The text between two words, of which one may be missing."""
    text, waiting, last = "", list[PlaceholderMark](), None
    for mark in marks:
        waiting.append(mark)
        if mark.kind in (WORD, ALONE):
            gap = _space_between(last, mark) if last else _space_before(before, mark, space)
            text += _with_tags(gap, waiting[:-1]) + mark.text
            waiting, last = [], mark
    return text + _with_tags(_space_after(last, space, after) if last else space, waiting)


def _with_tags(space: str, tags: Sequence[PlaceholderMark]) -> str:
    """Tags and a space: after closing tags, before opening ones."""
    closing = "".join(tag.text for tag in tags if tag.kind == CLOSE)
    return closing + space + "".join(tag.text for tag in tags if tag.kind == OPEN)


def _space_before(before: str, mark: PlaceholderMark, space: str) -> str:
    if not before or mark.text[0] in CLOSING_SIGNS or mark.text[0].isspace():
        return ""
    if _adjoins(mark, mark.before, before[-1], space):
        return ""
    return space if space or before[-1] in _OPENING_SIGNS else " "


def _space_between(one: PlaceholderMark, other: PlaceholderMark) -> str:
    adjacent = one.end == other.start and not (one.after.isspace() or other.before.isspace())
    return "" if adjacent or other.text[0] in CLOSING_SIGNS else " "


def _space_after(mark: PlaceholderMark, space: str, after: str) -> str:
    if not after or _adjoins(mark, mark.after, after[0], space):
        return ""
    return space if space or after[0] in CLOSING_SIGNS else " "


def _adjoins(mark: PlaceholderMark, old: str, new: str, space: str) -> bool:
    """Whether a mark adjoins its new neighbour without a space, given its old neighbour in the source."""
    if not old or old.isspace():
        return False
    return mark.glued or (not space and (old == new or (old.isalpha() and new.isalpha())))


# Where the marks belong

def place_marks(stripped: StrippedText, alignment: Alignment) -> list[WordRange] | None:
    """The place of each mark in the translation; None if there are not enough words to put them between."""
    found = best_places(_placement_scores(stripped, _AlignmentView.of(alignment)))
    if found is None:
        return None
    remaining = iter(found)
    return [WordRange(place, next(remaining) if mark.kind == WORD else place)
            for mark, place in ((mark, next(remaining)) for mark in stripped.marks)]


@dataclass(frozen=True)
class _AlignmentView:
    """An alignment with corrected links."""

    alignment: Alignment
    links: tuple[Link, ...]
    signs: tuple[list[bool], list[bool]]
    """Which words of source and translation have neither letters nor digits."""

    @classmethod
    def of(cls, alignment: Alignment) -> "_AlignmentView":
        """Replace the links of last signs and copied stand-ins, which are certain from the texts."""
        signs = tuple([not any(map(str.isalnum, word)) for word in side]
                      for side in (alignment.source, alignment.target))
        copied = _copied_stand_ins(alignment.source, alignment.target)
        certain = dict(copied)
        for back in range(1, 1 + min(_leading_run(reversed(side)) for side in signs)):
            certain[len(alignment.target) - back] = len(alignment.source) - back
        links = [link for link in alignment.links if link.target not in certain and link.source not in copied.values()]
        links += [Link(source, target, 1.0) for target, source in certain.items()]
        return cls(alignment, tuple(links), (signs[0], signs[1]))

    @property
    def count(self) -> int:
        """The number of words of the translation."""
        return len(self.alignment.target)

    def enclosing(self, start: int, end: int) -> list[float]:
        """For each place the score of enclosing the words before it, for source characters from start to end."""
        spans = self.alignment.source_spans
        gains = [-_UNLINKED_COST] * self.count
        for link in self.links:
            inside = spans[link.source].start < end and start < spans[link.source].end
            gains[link.target] += link.weight if inside else -link.weight
        return _prefix_sums(gains)

    def beside(self, start: int, end: int) -> list[float]:
        """For each place the score of standing after the words that were before the mark."""
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
    """The score of each place for one end of a mark, and whether it must come after the previous end."""

    scores: list[float]
    apart: bool


def _placement_scores(stripped: StrippedText, view: _AlignmentView) -> list[PlacementScores]:
    """One for each mark, and two for one with a stand-in, which begins and ends."""
    rows = list[PlacementScores]()
    for number, mark in enumerate(stripped.marks):
        apart = number > 0 and _must_be_apart(stripped, number)
        if mark.kind == ALONE:
            rows.append(PlacementScores(_single_mark_scores(mark, view), apart))
        elif mark.kind == WORD:
            inside, beside = view.enclosing(mark.start, mark.end), view.beside(mark.start, mark.end)
            opening = [_NEIGHBOUR_WEIGHT * near - score for score, near in zip(inside, beside, strict=True)]
            rows += [PlacementScores(opening, apart), PlacementScores(inside, False)]
        else:
            rows.append(PlacementScores(_tag_scores(stripped, mark, view), apart))
    return rows


def _must_be_apart(stripped: StrippedText, number: int) -> bool:
    """Whether a word must stand between a mark and the one before: inside a tag, and between two single marks."""
    before, mark = stripped.marks[number - 1], stripped.marks[number]
    if {before.kind, mark.kind}.isdisjoint((OPEN, CLOSE)):
        return any(map(str.isalnum, stripped.text[before.end:mark.start]))
    return mark.partner == number - 1


def _single_mark_scores(mark: PlaceholderMark, view: _AlignmentView) -> list[float]:
    signs, count = view.signs, view.count
    left = sum(span.end <= mark.start for span in view.alignment.source_spans)  # words before the mark
    if all(signs[0][left:]):
        return _fixed_place(count, count - min(len(signs[0]) - left, _leading_run(reversed(signs[1]))))
    if all(signs[0][:left]):
        return _fixed_place(count, min(left, _leading_run(signs[1])))
    scores = view.beside(mark.start, mark.end)
    return [_NOWHERE if _is_elision(view.alignment, g) else score for g, score in enumerate(scores)]


def _tag_scores(stripped: StrippedText, mark: PlaceholderMark, view: _AlignmentView) -> list[float]:
    other = stripped.marks[mark.partner]
    start, end = min(mark.start, other.start), max(mark.end, other.end)
    if not stripped.text[:start] and not stripped.text[end:]:
        return _fixed_place(view.count, 0 if mark.kind == OPEN else view.count)
    inside = view.enclosing(start, end)
    return inside if mark.kind == CLOSE else [-score for score in inside]


def _copied_stand_ins(source: Sequence[str], target: Sequence[str]) -> dict[int, int]:
    """The source word of each stand-in of the translation, if the model copied all of them."""
    places = [[number for number, word in enumerate(side) if word == STAND_IN] for side in (target, source)]
    return dict(zip(*places, strict=True)) if len(places[0]) == len(places[1]) else {}


def _fixed_place(count: int, place: int) -> list[float]:
    """The scores of a mark that can stand at one place only."""
    return [0.0 if g == place else _NOWHERE for g in range(count + 1)]


def _prefix_sums(gains: Sequence[float]) -> list[float]:
    sums = [0.0]
    for gain in gains:
        sums.append(sums[-1] + gain)
    return sums


def _leading_run(signs: Iterable[bool]) -> int:
    """The number of True values at the beginning."""
    return sum(1 for _ in takewhile(bool, signs))


def best_places(rows: Sequence[PlacementScores]) -> list[int] | None:
    """The non-decreasing places with the highest total score, by dynamic programming; the first of equals."""
    if not rows:
        return []
    total, paths = list(rows[0].scores), list[list[int]]()
    for scores, apart in rows[1:]:
        best, path, at = list[float](), list[int](), 0
        for g, score in enumerate(scores):
            last = g - 1 if apart else g
            at = last if last >= 0 and total[last] > total[at] else at
            best.append(score + total[at] if last >= 0 else _NOWHERE)
            path.append(at)
        total = best
        paths.append(path)
    place = max(range(len(total)), key=lambda g: (total[g], -g))
    if total[place] == _NOWHERE:
        return None
    places = [place]
    for path in reversed(paths):
        places.append(path[places[-1]])
    return places[::-1]


def _is_elision(alignment: Alignment, g: int) -> bool:
    """Whether an apostrophe joins the words at this place."""
    if not 0 < g < len(alignment.target) or _has_space(alignment, g):
        return False
    return alignment.target[g - 1][-1:] in APOSTROPHES or alignment.target[g][:1] in APOSTROPHES


def _has_space(alignment: Alignment, g: int) -> bool:
    """Whether white space precedes word g; there is none at both ends."""
    inner = 0 < g < len(alignment.target)
    return inner and alignment.target_spans[g - 1].end < alignment.target_spans[g].start
