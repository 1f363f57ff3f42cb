"""What the rows and columns of looks are: tokens, of sides with names. And from both, a trace.

    encoder.self      source, source        in a model that has both
    decoder.self      target, target
    decoder.cross     target, source
    any other         text, text            or image, of a model that reads patches

A task knows more: its texts, what was written, and which attention shows best which word is which (`About`). Where
nobody knows the tokens, they are called by their numbers. It does not know how looks were made.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from regard import checks
from regard.inspection.seen import rows as seen_rows
from regard.inspection.trace.parts import AnyLook, Attention, Pointer, Search, Side, Written, shape
from regard.inspection.trace.trace import Trace
from regard.inspection.watching.names import CROSS, SELF, Place
from regard.models.vision import Patches

AnySide = Side | Sequence[str]


@dataclass(frozen=True)
class Best:
    """The attention that shows best which word is which, by name; its head (None for their mean) and its offset."""

    attention: str
    head: int | None = None
    offset: int = 0


@dataclass(frozen=True)
class About:
    """What is known of a sequence, or a pair of them, that a model has read."""

    sides: Mapping[str, Side] = field(default_factory=dict)
    between: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """The sides of queries and keys, by part and kind of attention: {"decoder.cross": ("target", "source")}."""
    title: str = ""
    written: Written | None = None
    best: Best | None = None
    search: Search | None = None


def patches(model: nn.Module) -> Side | None:
    """The side of an image, for a model that reads images as patches; None for others."""
    found = next((module for module in model.modules() if isinstance(module, Patches)), None)
    if found is None:
        return None
    down, across = (pixels // found.patch for pixels in found.size)
    tokens = [f"{row + 1}, {column + 1}" for row in range(down) for column in range(across)]
    lead = 0 if found.token is None else 1
    return Side((*["[class]"] * lead, *tokens), grid=(down, across), lead=lead)


def traced(looks: Mapping[str, AnyLook], places: Mapping[str, Place], about: About, title: str | None, model: str,
           tokens: Mapping[str, AnySide]) -> Trace:
    """The trace of one sequence: its looks (heads, queries, keys) by name, and the tokens of the sides."""
    sides = dict(about.sides) | {name: _side(name, one) for name, one in tokens.items()}
    crossed = any(_kind(places[name], look) == CROSS for name, look in looks.items())
    attentions, used = [], set[str]()
    for name, look in looks.items():
        place, kind = places[name], _kind(places[name], look)
        queries, keys = about.between.get(f"{place.part}.{kind}") or _between(place, kind, crossed, about)
        look = seen_rows.first(look, *(len(sides[side].tokens) if side in tokens else None for side in (queries, keys)))
        queries, keys = (_called(side, size, sides, tokens)
                         for side, size in zip((queries, keys), shape(look)[-2:], strict=True))
        used |= {queries, keys}
        attentions.append(Attention(name, queries, keys, look, place.layer, kind))
    for name in tokens:
        if name not in used:
            remedy = checks.nearest(name, used) or f"There are: {', '.join(sorted(used))}."
            raise checks.wrong(name, "a side that some attention looks from or at", "unknown", remedy)
    return Trace(sides, tuple(attentions), about.title if title is None else title, model, about.written,
                 _pointer(about.best, attentions), about.search)


def _between(place: Place, kind: str, crossed: bool, about: About) -> tuple[str, str]:
    """The sides of an attention of which nobody says more than where it is."""
    if kind == CROSS:
        return "target", "source"
    whole = "image" if "image" in about.sides else "text"
    side = whole if not crossed else "source" if "encoder" in place.name.lower() else "target"
    return side, side


def _called(side: str, count: int, sides: dict[str, Side], given: Mapping[str, AnySide]) -> str:
    """The name of the side with so many tokens; one of numbers is made where there is none."""
    if side in sides and (len(sides[side].tokens) == count or side in given):
        return side
    name = side if side not in sides else f"{side} of {count}"
    sides.setdefault(name, Side(tuple(map(str, range(count)))))
    return name


def _kind(place: Place, look: AnyLook) -> str:
    rows, columns = shape(look)[-2:]
    return place.kind or (SELF if rows == columns else CROSS)


def _pointer(best: Best | None, attentions: Sequence[Attention]) -> Pointer | None:
    for number, one in enumerate(attentions):
        if best is not None and one.name == best.attention:
            return Pointer(number, best.head, best.offset if abs(best.offset) < one.rows else 0)
    return None


def _side(name: str, one: AnySide) -> Side:
    if isinstance(one, Side):
        return one
    if isinstance(one, str) or not isinstance(one, Sequence) or not all(isinstance(token, str) for token in one):
        raise checks.wrong(name, "tokens, a list of strings, or a Side", f"{one!r:.80}")
    return Side(tuple(one))
