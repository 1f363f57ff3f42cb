"""TMX files (translation memories): sentence pairs, and the slots of translations.

Languages are chosen by `xml:lang`, ignoring case; "en" matches "en-US" too. Where none are named, the file must have
exactly two, and the header says which is the source (otherwise it is the first). A unit gives a pair for each of its
variants in the target language; of several in the source language it uses the first.

When translations are written back, the content of a segment is replaced as a whole, inline tags included. A unit
without the target language gets a variant of it as its last, if the languages are named. All other bytes stay, in the
file's own encoding.

The parser is expat: it works on blocks, reports byte offsets and never uses the network. A file that declares entities
is refused, because they can expand without bound or name other files; a reference to a DTD is allowed and not followed.
Inside a segment, the native codes in <bpt>, <ept>, <it>, <ph> and <ut> are dropped; the content of other elements, such
as <hi>, is text.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import NamedTuple, NoReturn
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from regard.data.sources.text import (
    DataError,
    DocumentParts,
    InputFile,
    Location,
    SentencePair,
    SkipCallback,
    TargetSlot,
    printable,
    read_head,
)

NATIVE_CODES = {"bpt", "ept", "it", "ph", "ut"}


@dataclass
class TmxVariant:
    """The text of a unit in one language."""

    language: str
    line: int
    begin: int = -1
    """The byte where the content of its segment begins; -1 where it has none."""
    end: int = -1
    parts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.parts)


@dataclass
class TmxUnit:
    """One thing said in several languages."""

    line: int
    begin: int
    end: int = -1
    """The byte of its end tag."""
    variants: list[TmxVariant] = field(default_factory=list)


class TmxParser:
    """A file that is fed block by block, and gives units as they are complete."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.source_language: str | None = None
        """What the header says."""
        self.encoding: str | None = None
        """What the file says of itself."""
        self.seen = 0
        """All units that begin before this byte are given."""
        self._ready: list[TmxUnit] = []
        self._unit: TmxUnit | None = None
        self._variant: TmxVariant | None = None
        self._segment: TmxVariant | None = None
        self._inside = 0  # elements open inside the segment,
        self._codes = 0  # and those of them from the first native code on
        self._elements = 0
        self._parser = self._made()

    def feed(self, block: bytes) -> list[TmxUnit]:
        """The units that are complete now. An empty block is the end of the file."""
        try:
            self._parser.Parse(block, not block)
        except expat.ExpatError as error:
            raise DataError(f"{self.name}:{error.lineno}: column {error.offset + 1}: This is not well-formed XML "
                            f"({expat.ErrorString(error.code)}). Mend the file, or export it again.") from error
        except DataError:
            raise  # of a handler below
        except (LookupError, ValueError) as error:
            raise DataError(f"{self.name}:1: Its encoding cannot be read ({error}). Convert it to UTF-8.") from error
        ready, self._ready = self._ready, []
        return ready

    def _made(self) -> expat.XMLParserType:
        parser = expat.ParserCreate()
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.CharacterDataHandler = self._characters
        # They say nothing, but where they stand the content of a segment may begin.
        parser.CommentHandler = parser.StartCdataSectionHandler = self._anything
        parser.ProcessingInstructionHandler = self._anything
        parser.XmlDeclHandler = self._declaration
        parser.EntityDeclHandler = self._entity
        parser.SkippedEntityHandler = self._unknown
        return parser

    def _declaration(self, version: str, encoding: str | None, standalone: int) -> None:
        self.encoding = encoding

    def _entity(self, name: str, *_: object) -> NoReturn:
        raise DataError(f'{self._here()}: The file declares an entity, "{printable(name)}". Entities can name other files, '
                        "or grow without end, so they are not read. Write the text itself where it is used.")

    def _unknown(self, name: str, *_: object) -> NoReturn:
        raise DataError(f'{self._here()}: The entity "{printable(name)}" is not known. Write the text itself in its place.')

    def _here(self) -> str:
        return f"{self.name}:{self._parser.CurrentLineNumber}"

    def _anything(self, *_: object) -> None:
        if self._segment is not None and self._segment.begin < 0:
            self._segment.begin = self._parser.CurrentByteIndex

    def _start(self, element: str, attributes: dict[str, str]) -> None:
        self._anything()
        self._elements += 1
        if self._elements == 1 and element != "tmx":
            raise DataError(f"{self._here()}: The file is no TMX: it begins with <{printable(element)}>. Give a TMX file.")
        if self._segment is not None:
            self._inside += 1
            self._codes += element in NATIVE_CODES or self._codes > 0
        elif element == "header":
            self.source_language = attributes.get("srclang")
        elif element == "tu":
            self._unit = TmxUnit(self._parser.CurrentLineNumber, self._parser.CurrentByteIndex)
        elif element == "tuv" and self._unit is not None:
            language = attributes.get("xml:lang") or attributes.get("lang")
            if not language:
                raise DataError(f"{self._here()}: A <tuv> does not say its language. Give it an xml:lang.")
            self._variant = TmxVariant(language, self._parser.CurrentLineNumber)
        elif element == "seg" and self._variant is not None:
            if self._variant.end >= 0:
                raise DataError(f"{self._here()}: A second <seg> in one <tuv>. Remove one of them.")
            self._segment = self._variant
        if self._unit is None:
            self.seen = self._parser.CurrentByteIndex

    def _end(self, element: str) -> None:
        self._anything()
        if self._inside:
            self._inside, self._codes = self._inside - 1, max(0, self._codes - 1)
        elif element == "seg" and self._segment is not None:
            self._segment.end, self._segment = self._parser.CurrentByteIndex, None
        elif element == "tuv" and self._variant is not None and self._unit is not None and self._segment is None:
            self._unit.variants.append(self._variant)
            self._variant = None
        elif element == "tu" and self._unit is not None and self._variant is None:
            self._unit.end = self.seen = self._parser.CurrentByteIndex
            self._ready.append(self._unit)
            self._unit = None

    def _characters(self, text: str) -> None:
        self._anything()
        if self._segment is not None and not self._codes:
            self._segment.parts.append(text)


# ---- tmx: TMX files (translation memories): pairs to learn from, and the places of translations to be written.
#
# Languages are chosen by `xml:lang`, without regard to case; "en" takes "en-US" too. Where none are named, the file must
# have exactly two, and the header says which is the source (else it is the first). A unit gives a pair for each of its
# variants in the target language; of several in the source language it gives the first. What a unit lacks is told.
#
# Written back, the content of a segment is replaced whole, inline tags included. A unit without the target language gets
# a variant of it, as its last, where the languages are named. All else stays, byte for byte, in the file's own encoding.

# XML 1.0 has no way to say these: most control characters, halves of surrogate pairs, two that are no characters.
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_UTF16_STARTS = {b"\xff\xfe": "utf-16-le", b"<\0": "utf-16-le", b"\xfe\xff": "utf-16-be", b"\0<": "utf-16-be"}


def read_pairs(input: InputFile, source: str | None, target: str | None, left_out: SkipCallback) -> Iterator[SentencePair]:
    """The pairs of a file."""
    languages, units = _LanguagePair(input.name, source, target), TmxParser(input.name)
    for block in chain(input.blocks(), [b""]):
        for unit in units.feed(block):
            first, others = languages.choose(unit, units.source_language, left_out)
            if first is None or not others:
                left_out(Location(input.name, unit.line), "no source language" if first is None else "no target language")
                continue
            for other in others:
                yield SentencePair(first.text, other.text, Location(input.name, unit.line))
    languages.check()


def pieces(input: InputFile, source: str | None, target: str | None) -> DocumentParts:
    """The translations of a file, or the places where they will be."""
    languages, units, window = _LanguagePair(input.name, source, target), TmxParser(input.name), _ByteWindow()
    head, blocks = read_head(input.blocks(), _UTF16_STARTS)
    for block in chain([head] if head else [], blocks, [b""]):
        window.data += block
        for unit in units.feed(block):
            codec, where = _file_codec(head, units.encoding), Location(input.name, unit.line)
            first, others = languages.choose(unit, units.source_language, lambda where, reason: None)
            if first is None:
                continue
            for place in _target_spans(unit, others, target, window, codec):
                yield window.until(place.begin)
                write = partial(_encode_target, where, codec, place)
                yield TargetSlot(first.text, place.target, where, window.until(place.end), write)
        yield window.until(units.seen)
    yield bytes(window.data)


class _ByteWindow:
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


class _TargetSpan(NamedTuple):
    """Bytes of the file in which a target stands, or will stand."""

    begin: int
    end: int
    target: str
    before: str = ""
    after: str = ""
    """What is written around a target that has no element yet."""


class _LanguagePair:
    """Which variants of a unit are source and target. Where no languages are named, it learns them from the file."""

    def __init__(self, name: str, source: str | None, target: str | None) -> None:
        self.name, self.named = name, source is not None
        self.source, self.target = _normalise_language(source), _normalise_language(target)
        self.there: dict[str, None] = {}
        self.pairs = 0

    def choose(self, unit: TmxUnit, said: str | None, left_out: SkipCallback) -> tuple[TmxVariant | None, list[TmxVariant]]:
        """The first variant in the source language, and all in the target language."""
        sources, targets = list[TmxVariant](), list[TmxVariant]()
        for variant in unit.variants:
            if variant.begin < 0:
                continue  # without a segment it says nothing
            language = _normalise_language(variant.language)
            self.there[variant.language] = None
            if not self.named:
                self._learn(language, said, variant)
            if self._is_target(language):
                targets.append(variant)
            elif _language_matches(language, self.source):
                sources.append(variant)
        for variant in sources[1:]:
            left_out(Location(self.name, variant.line), "another source")
        self.pairs += bool(sources and targets)
        return (sources[0] if sources else None), targets

    def check(self) -> None:
        """At the end: that no unit had both languages is an error, which names those that are there."""
        if self.there and not self.pairs:
            there = ", ".join(f'"{printable(language)}"' for language in list(self.there)[:20])
            raise DataError(f'{self.name}: No unit has both a source in "{printable(self.source)}" and a target in '
                            f'"{printable(self.target)}". The languages there: {there}. Name two of them.')

    def _learn(self, language: str, said: str | None, variant: TmxVariant) -> None:
        if not self.source:
            self.source = language if not said or said.lower() == "*all*" else _normalise_language(said)
        if _language_matches(language, self.source) or language == self.target:
            return
        if self.target:
            raise DataError(f'{self.name}:{variant.line}: There is a third language, "{printable(variant.language)}", '
                            f'beside "{printable(self.source)}" and "{printable(self.target)}". Name source and target.')
        self.target = language

    def _is_target(self, language: str) -> bool:
        """Exactly the one named comes first; and of two that both take it, as pt and pt-BR do, the longer name."""
        if not _language_matches(language, self.target) or language == self.source:
            return False
        return not _language_matches(language, self.source) or len(self.target) > len(self.source)


def _normalise_language(language: str | None) -> str:
    return (language or "").lower().replace("_", "-")


def _language_matches(language: str, wanted: str) -> bool:
    return bool(wanted) and (language == wanted or language.startswith(f"{wanted}-"))


def _target_spans(unit: TmxUnit, others: list[TmxVariant], target: str | None, window: _ByteWindow, codec: str) -> Iterator[_TargetSpan]:
    """Where the targets of a unit stand; or where one can be added, if it has none and its language is known."""
    if not others and target is not None:
        yield _TargetSpan(unit.end, unit.end, "", f"<tuv xml:lang={quoteattr(target)}><seg>", "</seg></tuv>")
    empty = "/>".encode(codec)
    for variant in others:
        begin, end = variant.begin, variant.end
        if begin == end and window.between(begin - len(empty), begin) == empty:  # <seg/>
            yield _TargetSpan(begin - len(empty), end, "", ">", "</seg>")
        else:
            yield _TargetSpan(begin, end, variant.text)


def _encode_target(where: Location, codec: str, place: _TargetSpan, text: str) -> bytes:
    unsayable = _NOT_IN_XML.search(text)
    if unsayable:
        code = f"U+{ord(unsayable[0]):04X}"
        raise DataError(f"{where}: A target with {code} cannot be written: XML has no way to say it.")
    content = escape(text, {"\r": "&#13;"})
    return f"{place.before}{content}{place.after}".encode(codec, "xmlcharrefreplace")


def _file_codec(head: bytes, declared: str | None) -> str:
    """How the file encodes its characters, by its first bytes, or by what it says."""
    return _UTF16_STARTS.get(head[:2]) or declared or "utf-8"
