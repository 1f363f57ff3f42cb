"""A translation written with its placeholders: in place of words, or between two, with the spaces that belong there.

    le | gros | chien     <b> in front of gros, </b> behind it      le <b>gros</b> chien
    Ouvrir | 12 | .       %s in place of 12                         Ouvrir %s.

Spaces are those of the translation. Where it has none, between a word and a sign, those of the source decide. A tag is
next to what it encloses. Where each placeholder belongs is for `regard.tasks.placeholders.placing`.
"""

from collections.abc import Sequence

from regard.tasks.alignment.words import Alignment
from regard.tasks.placeholders.placeless import ALONE, CLOSE, CLOSING, OPEN, WORD, Mark, Placeless
from regard.tasks.placeholders.placing import APOSTROPHES, Span, has_space, places

_OPENING = "([{«“„¿¡/" + APOSTROPHES


def placed(bare: Placeless, alignment: Alignment) -> str | None:
    """A translation with the marks of its source.

    None where there are not enough words to put them between, where marks would take the place of all words although
    they are not all that there was, or where tags that enclosed words would enclose signs alone.
    """
    spans = places(bare, alignment)
    if spans is None or not _something_left(bare, spans, alignment) or not _words_in_tags(bare, spans, alignment):
        return None
    taken = {span.first: (mark.text, span.behind) for mark, span in zip(bare.marks, spans, strict=True)
             if span.first < span.behind}
    between = [(span.first, mark) for mark, span in zip(bare.marks, spans, strict=True) if span.first == span.behind]
    text, last, g = "", "", 0
    while g < len(alignment.target):
        word, behind = taken.get(g, (alignment.target[g], g + 1))
        space = " " if has_space(alignment, g) else ""
        text += _gap(last, [mark for place, mark in between if place == g], space, word) + word
        last, g = word, behind
    return text + _gap(last, [mark for place, mark in between if place == g], "", "")


def _something_left(bare: Placeless, spans: Sequence[Span], alignment: Alignment) -> bool:
    """Whether there are words beside marks, as there were in the source, if there were any."""
    here = {number for mark in bare.marks for number in range(mark.start, mark.end)}
    if not any(letter.isalpha() for number, letter in enumerate(bare.text) if number not in here):
        return True
    there = {number for span in spans for number in range(*span)}
    return any(any(map(str.isalnum, word)) for number, word in enumerate(alignment.target) if number not in there)


def _words_in_tags(bare: Placeless, spans: Sequence[Span], alignment: Alignment) -> bool:
    """Whether tags enclose words, if they did in the source: their own are none, and a placeholder's are."""
    for mark, span in zip(bare.marks, spans, strict=True):
        if mark.kind != OPEN:
            continue
        close, last = bare.marks[mark.partner], spans[mark.partner]
        if any(map(str.isalnum, bare.text[mark.start:close.start])) and not any(
                map(str.isalnum, "".join(alignment.target[span.first:last.first]))):
            return False
    return True


def _gap(before: str, marks: Sequence[Mark], space: str, after: str) -> str:
    """What stands between two words, of which one may be missing."""
    text, waiting, last = "", list[Mark](), None
    for mark in marks:
        waiting.append(mark)
        if mark.kind in (WORD, ALONE):
            text += _with_tags(_between(last, mark) if last else _left(before, mark, space), waiting[:-1]) + mark.text
            waiting, last = [], mark
    return text + _with_tags(_right(last, space, after) if last else space, waiting)


def _with_tags(space: str, tags: Sequence[Mark]) -> str:
    """Tags and a space, where it belongs: behind those that close, in front of those that open."""
    closing = "".join(tag.text for tag in tags if tag.kind == CLOSE)
    return closing + space + "".join(tag.text for tag in tags if tag.kind == OPEN)


def _left(before: str, mark: Mark, space: str) -> str:
    """The space in front of a mark."""
    if not before or mark.text[0] in CLOSING or mark.text[0].isspace():
        return ""
    if _written_together(mark, mark.before, before[-1], space):
        return ""
    return space if space or before[-1] in _OPENING else " "


def _between(one: Mark, other: Mark) -> str:
    """The space between two marks."""
    near = one.end == other.start and not (one.after.isspace() or other.before.isspace())
    return "" if near else " "


def _right(mark: Mark, space: str, after: str) -> str:
    """The space behind a mark."""
    if not after or _written_together(mark, mark.after, after[0], space):
        return ""
    return space if space or after[0] in CLOSING else " "


def _written_together(mark: Mark, was: str, now: str, space: str) -> bool:
    """Whether there is no space between a mark and what is beside it now, where there was this before."""
    if not was or was.isspace():
        return False
    return mark.glued or (not space and (was == now or (was.isalpha() and now.isalpha())))
