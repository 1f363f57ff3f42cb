"""Texts translated so that their placeholders are kept, as many and in the same order, whatever the model does.

    whole       the text as it is: a model that saw placeholders in training knows them
    stand-ins   with a short code in place of each, which many models copy
    placed      without them, which are put back where the words beside them were translated to
    pieces      what stands between the placeholders, each by itself
    source      not at all: the text stays as it is

Each way is tried on what the one before it has lost a placeholder of, or added one to. Codes make a poor text of one
with tags, X1bigX2, so that one goes to the next way at once; that is left out where nothing tells which words belong
together. The lines of a text are translated by themselves, each to one line, and the white space around each stays.
Nothing but the text of a translation is looked at, so anything that translates will do. It does not know files.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from regard.data.doctor.characters import is_blank
from regard.tasks.alignment.words import Alignment
from regard.tasks.placeholders.finding import Hidden, cut_lines, joined, pieces, placeholders
from regard.tasks.placeholders.placed import placed
from regard.tasks.placeholders.placeless import OPEN, Placeless

# What ends a line or a column somewhere; and what no text of XML holds.
_SPACING = re.compile("[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]+")
_NO_TEXT = re.compile("[\0-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


class Found(Protocol):
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


Translated = TypeVar("Translated", bound=Found)
Ask = Callable[[list[str]], Sequence[Translated]]
"""Gives the translations of texts, in their order."""
Align = Callable[[list[str], list[Translated]], Sequence[Alignment]]
"""Tells of texts and their translations which words belong together, as `Translator.align`."""


@dataclass(frozen=True)
class Kept:
    """A translation with all placeholders of its source."""

    text: str
    score: float
    """Where several texts were translated for it, the lowest of theirs; 0 where none was."""
    cut: bool
    how: str
    """The way that it came about; of several lines the last that was needed."""


class _Answer(NamedTuple):
    """A translation, and which of its words belong to which of the source, where that was asked for."""

    text: str
    alignment: Alignment | None


class _Plan(NamedTuple):
    """What is asked for a line, and what is made of the answers: None where a placeholder is lost."""

    asked: list[str]
    """The first begins the line, the others stand within it."""
    join: Callable[[list[_Answer]], str | None]


def kept(texts: Sequence[str], ask: Ask[Translated], align: Align[Translated] | None = None,
         within: Ask[Translated] | None = None) -> list[Kept]:
    """The translation of each text. Of one that is blank it is empty.

    Args:
        align: for what was asked of `ask`, and what it gave. Without it no placeholder is put where its neighbours are.
        within: as `ask`, for pieces that do not begin a line, where that makes a difference.
    """
    cut = [cut_lines(text) for text in texts]
    lines = dict.fromkeys(line.strip() for parts in cut for line in parts[::2] if not is_blank(line))
    known = _lines(list(lines), ask, align, within)
    return [_together(parts, known) for parts in cut]


def _together(parts: list[str], known: dict[str, Kept]) -> Kept:
    """A text of its lines, every second part of which is a line break."""
    found = [known[line.strip()] for line in parts[::2] if not is_blank(line)]
    if not found:
        return Kept("", 0.0, False, "whole")
    text = "".join(part if number % 2 or is_blank(part) else _edged(part, known[part.strip()].text)
                   for number, part in enumerate(parts))
    last = max(found, key=lambda one: list(ALIGNED_WAYS).index(one.how))
    whole = "".join(parts)
    if len(found) > 1 and placeholders(text) != placeholders(whole):  # one has come about between two lines
        return Kept(whole, 0.0, False, "source")
    return Kept(text, min(one.score for one in found), any(one.cut for one in found), last.how)


def _edged(line: str, text: str) -> str:
    """A translation with the white space that is around its source."""
    inner = line.strip()
    begin = line.index(inner)
    return f"{line[:begin]}{text}{line[begin + len(inner):]}"


def _lines(lines: list[str], ask: Ask[Translated], align: Align[Translated] | None,
           within: Ask[Translated] | None) -> dict[str, Kept]:
    """The translations of different lines that are not blank."""
    known = dict[str, Kept]()
    for how, planned in (WAYS if align is None else ALIGNED_WAYS).items():
        plans = {line: planned(line) for line in lines if line not in known}
        alike = 1 if within else None  # where it makes no difference, all are asked for together
        answers = _answers([text for plan in plans.values() for text in plan.asked[:alike]], ask)
        others = _answers([text for plan in plans.values() for text in plan.asked[1:]], within) if within else answers
        looked = dict[str, Alignment]()
        if how == "placed" and align is not None and answers:
            looked = dict(zip(answers, align(list(answers), list(answers.values())), strict=True))
        for line, plan in plans.items():
            found = [(others if number else answers)[text] for number, text in enumerate(plan.asked)]
            text = plan.join([_Answer(_one_line(one.text), looked.get(text))
                              for text, one in zip(plan.asked, found, strict=True)])
            if text is not None and placeholders(text) == placeholders(line):
                score = min((one.score for one in found), default=0.0)
                known[line] = Kept(text, score, any(one.cut for one in found), how)
    return known


def _answers(texts: Sequence[str], ask: Ask[Translated]) -> dict[str, Translated]:
    """The translation of each text, each asked for once."""
    different = list(dict.fromkeys(texts))
    return dict(zip(different, ask(different) if different else [], strict=True))


def _one_line(text: str) -> str:
    """What a model wrote, as every format can hold it."""
    return _NO_TEXT.sub("", _SPACING.sub(" ", text)).strip()


def _whole(line: str) -> _Plan:
    if placeholders(line) and not any(piece.core for piece in pieces(line)):
        return _Plan([], lambda found: line)  # without words there is nothing to translate
    return _Plan([line], lambda found: found[0].text)


def _stand_ins(line: str) -> _Plan:
    hidden = Hidden.of(line)
    if hidden is None or not hidden.placeholders:
        return _Plan([], lambda found: None)
    return _Plan([hidden.text], lambda found: hidden.shown(found[0].text))


def _untagged_stand_ins(line: str) -> _Plan:
    if any(mark.kind == OPEN for mark in Placeless.of(line).marks):
        return _Plan([], lambda found: None)
    return _stand_ins(line)


def _placed(line: str) -> _Plan:
    bare = Placeless.of(line)
    if not bare.marks or not any(map(str.isalpha, bare.text)):
        return _Plan([], lambda found: None)
    return _Plan([bare.text], lambda found: _put_back(bare, found[0]))


def _put_back(bare: Placeless, answer: _Answer) -> str | None:
    """A translation with its placeholders; None where its aligned words are not all that is left of its text."""
    alignment = answer.alignment
    if alignment is None or "".join(alignment.target) != "".join(answer.text.split()):
        return None
    return placed(bare, alignment)


def _pieces(line: str) -> _Plan:
    parts = pieces(line)
    return _Plan([part.core for part in parts if part.core], lambda found: joined(parts, [one.text for one in found]))


def _source(line: str) -> _Plan:
    return _Plan([], lambda found: line)


WAYS: dict[str, Callable[[str], _Plan]] = {"whole": _whole, "stand-ins": _stand_ins, "pieces": _pieces,
                                           "source": _source}
"""From the one that reads best to the one that cannot fail."""
ALIGNED_WAYS = {"whole": _whole, "stand-ins": _untagged_stand_ins, "placed": _placed, "pieces": _pieces,
                "source": _source}
"""Those where something tells which words belong together."""
