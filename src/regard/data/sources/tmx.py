"""TMX files (translation memories): pairs to learn from, and the places of translations to be written.

Languages are chosen by `xml:lang`, without regard to case; "en" takes "en-US" too. Where none are named, the file must
have exactly two, and the header says which is the source (else it is the first). A unit gives a pair for each of its
variants in the target language; of several in the source language it gives the first. What a unit lacks is told.

Written back, the content of a segment is replaced whole, inline tags included. A unit without the target language gets
a variant of it, as its last, where the languages are named. All else stays, byte for byte, in the file's own encoding.
"""

import re
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

from regard.data.pair import DataError, Pair, Where
from regard.data.sources.inputs import Input, shown, with_head
from regard.data.sources.slots import LeftOut, Pieces, Slot
from regard.data.sources.tmx_units import Unit, Units, Variant

# XML 1.0 has no way to say these: most control characters, halves of surrogate pairs, two that are no characters.
_UNSAYABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_WIDE = {b"\xff\xfe": "utf-16-le", b"<\0": "utf-16-le", b"\xfe\xff": "utf-16-be", b"\0<": "utf-16-be"}


def pairs(input: Input, source: str | None, target: str | None, left_out: LeftOut) -> Iterator[Pair]:
    """The pairs of a file."""
    languages, units = _Languages(input.name, source, target), Units(input.name)
    for block in chain(input.blocks(), [b""]):
        for unit in units.feed(block):
            first, others = languages.choose(unit, units.source_language, left_out)
            if first is None or not others:
                left_out(Where(input.name, unit.line), "no source language" if first is None else "no target language")
                continue
            for other in others:
                yield Pair(first.text, other.text, Where(input.name, unit.line))
    languages.check()


def pieces(input: Input, source: str | None, target: str | None) -> Pieces:
    """The translations of a file, or the places where they will be."""
    languages, units, window = _Languages(input.name, source, target), Units(input.name), _Window()
    head, blocks = with_head(input.blocks(), _WIDE)
    for block in chain([head] if head else [], blocks, [b""]):
        window.data += block
        for unit in units.feed(block):
            codec, where = _codec(head, units.encoding), Where(input.name, unit.line)
            first, others = languages.choose(unit, units.source_language, lambda where, reason: None)
            if first is None:
                continue
            for place in _places(unit, others, target, window, codec):
                yield window.until(place.begin)
                write = partial(_written, where, codec, place)
                yield Slot(first.text, place.target, where, window.until(place.end), write)
        yield window.until(units.seen)
    yield bytes(window.data)


class _Window:
    """What is read of a file and not yet given on."""

    def __init__(self) -> None:
        self.data, self.begin = bytearray(), 0

    def between(self, begin: int, end: int) -> bytes:
        """The bytes of the file between two places, which must not be given yet."""
        return bytes(self.data[begin - self.begin:end - self.begin])

    def until(self, place: int) -> bytes:
        """Give on what comes before a place."""
        given = self.between(self.begin, place)
        del self.data[:place - self.begin]
        self.begin = place
        return given


class _Place(NamedTuple):
    """Bytes of the file in which a target stands, or will stand."""

    begin: int
    end: int
    target: str
    before: str = ""
    after: str = ""
    """What is written around a target that has no element yet."""


class _Languages:
    """Which variants of a unit are source and target. Where no languages are named, it learns them from the file."""

    def __init__(self, name: str, source: str | None, target: str | None) -> None:
        self.name, self.named = name, source is not None
        self.source, self.target = _plain(source), _plain(target)
        self.there: dict[str, None] = {}
        self.pairs = 0

    def choose(self, unit: Unit, said: str | None, left_out: LeftOut) -> tuple[Variant | None, list[Variant]]:
        """The first variant in the source language, and all in the target language."""
        sources, targets = list[Variant](), list[Variant]()
        for variant in unit.variants:
            if variant.begin < 0:
                continue  # without a segment it says nothing
            language = _plain(variant.language)
            self.there[variant.language] = None
            if not self.named:
                self._learn(language, said, variant)
            if self._is_target(language):
                targets.append(variant)
            elif _within(language, self.source):
                sources.append(variant)
        for variant in sources[1:]:
            left_out(Where(self.name, variant.line), "another source")
        self.pairs += bool(sources and targets)
        return (sources[0] if sources else None), targets

    def check(self) -> None:
        """At the end: that no unit had both languages is an error, which names those that are there."""
        if self.there and not self.pairs:
            there = ", ".join(f'"{shown(language)}"' for language in list(self.there)[:20])
            raise DataError(f'{self.name}: No unit has both a source in "{shown(self.source)}" and a target in '
                            f'"{shown(self.target)}". The languages there: {there}. Name two of them.')

    def _learn(self, language: str, said: str | None, variant: Variant) -> None:
        if not self.source:
            self.source = language if not said or said.lower() == "*all*" else _plain(said)
        if _within(language, self.source) or language == self.target:
            return
        if self.target:
            raise DataError(f'{self.name}:{variant.line}: There is a third language, "{shown(variant.language)}", '
                            f'beside "{shown(self.source)}" and "{shown(self.target)}". Name source and target.')
        self.target = language

    def _is_target(self, language: str) -> bool:
        """Exactly the one named comes first; and of two that both take it, as pt and pt-BR do, the longer name."""
        if not _within(language, self.target) or language == self.source:
            return False
        return not _within(language, self.source) or len(self.target) > len(self.source)


def _plain(language: str | None) -> str:
    return (language or "").lower().replace("_", "-")


def _within(language: str, wanted: str) -> bool:
    return bool(wanted) and (language == wanted or language.startswith(f"{wanted}-"))


def _places(unit: Unit, others: list[Variant], target: str | None, window: _Window, codec: str) -> Iterator[_Place]:
    """Where the targets of a unit stand; or where one can be added, if it has none and its language is known."""
    if not others and target is not None:
        yield _Place(unit.end, unit.end, "", f"<tuv xml:lang={quoteattr(target)}><seg>", "</seg></tuv>")
    empty = "/>".encode(codec)
    for variant in others:
        begin, end = variant.begin, variant.end
        if begin == end and window.between(begin - len(empty), begin) == empty:  # <seg/>
            yield _Place(begin - len(empty), end, "", ">", "</seg>")
        else:
            yield _Place(begin, end, variant.text)


def _written(where: Where, codec: str, place: _Place, text: str) -> bytes:
    unsayable = _UNSAYABLE.search(text)
    if unsayable:
        code = f"U+{ord(unsayable[0]):04X}"
        raise DataError(f"{where}: A target with {code} cannot be written: XML has no way to say it.")
    content = escape(text, {"\r": "&#13;"})
    return f"{place.before}{content}{place.after}".encode(codec, "xmlcharrefreplace")


def _codec(head: bytes, declared: str | None) -> str:
    """How the file encodes its characters, by its first bytes, or by what it says."""
    return _WIDE.get(head[:2]) or declared or "utf-8"
