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

from regard.data.languages import LanguagePair, normalize_code
from regard.data.sources.text import (
    MAX_LINE_BYTES,
    DataError,
    DocumentParts,
    InputFile,
    Location,
    ReadLog,
    SentencePair,
    SkipCallback,
    TargetSlot,
    printable,
    read_head,
    too_long_error,
)

MAX_DEPTH = 1000
"""Elements inside each other, at most."""
NATIVE_CODES = {"bpt", "ept", "it", "ph", "ut"}
# XML 1.0 cannot represent most control characters, halves of surrogate pairs, U+FFFE and U+FFFF.
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_UTF16_STARTS = {b"\xff\xfe": "utf-16-le", b"<\0": "utf-16-le", b"\xfe\xff": "utf-16-be", b"\0<": "utf-16-be"}


@dataclass
class TmxVariant:
    """The text of a unit in one language."""

    language: str
    line: int
    begin: int = -1
    """The offset of the content of its segment in the file; -1 without a segment."""
    end: int = -1
    parts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.parts)


@dataclass
class TmxUnit:
    """A translation unit: one text in several languages."""

    line: int
    begin: int
    end: int = -1
    """The offset of its end tag in the file."""
    variants: list[TmxVariant] = field(default_factory=list)


class TmxParser:
    """An incremental parser: it is fed blocks of a file and returns the units that are complete."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.source_language: str | None = None
        """The source language that the header declares."""
        self.encoding: str | None = None
        """The encoding that the file declares."""
        self.done = 0
        """All units that begin before this offset have been returned."""
        self._ready: list[TmxUnit] = []
        self._unit: TmxUnit | None = None
        self._variant: TmxVariant | None = None
        self._segment: TmxVariant | None = None
        self._inside = 0  # open elements inside the segment
        self._codes = 0  # those of them at or inside a native code
        self._elements = 0
        self._depth = 0  # open elements
        self._bytes = 0  # of all blocks
        self._parser = self._create_parser()

    def feed(self, block: bytes) -> list[TmxUnit]:
        """Parse a block; returns the units that it completes. An empty block is the end of the file."""
        try:
            self._parser.Parse(block, not block)
        except expat.ExpatError as error:
            raise DataError(f"{self.name}:{error.lineno}: column {error.offset + 1}: This is not well-formed XML "
                            f"({expat.ErrorString(error.code)}). Fix the file, or export it again.") from error
        except DataError:
            raise  # raised by a handler below
        except (LookupError, ValueError) as error:
            raise DataError(f"{self.name}:1: Its encoding cannot be read ({error}). Convert it to UTF-8.") from error
        self._bytes += len(block)
        if self._bytes - self.done > MAX_LINE_BYTES + len(block):
            raise too_long_error(Location(self.name, self._parser.CurrentLineNumber), "entry", MAX_LINE_BYTES)
        ready, self._ready = self._ready, []
        return ready

    def _create_parser(self) -> expat.XMLParserType:
        parser = expat.ParserCreate()
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.CharacterDataHandler = self._characters
        # They carry no text, but the content of a segment may begin with them.
        parser.CommentHandler = parser.StartCdataSectionHandler = self._mark_begin
        parser.ProcessingInstructionHandler = self._mark_begin
        parser.XmlDeclHandler = self._declaration
        parser.EntityDeclHandler = self._entity
        parser.SkippedEntityHandler = self._unknown
        return parser

    def _declaration(self, version: str, encoding: str | None, standalone: int) -> None:
        self.encoding = encoding

    def _entity(self, name: str, *_: object) -> NoReturn:
        raise DataError(f'{self._here()}: The file declares an entity, "{printable(name)}". Entities can name other '
                        "files, or expand without bound, so they are refused. Replace the entity by its text.")

    def _unknown(self, name: str, *_: object) -> NoReturn:
        raise DataError(f'{self._here()}: The entity "{printable(name)}" is unknown. Replace it by its text.')

    def _here(self) -> str:
        return f"{self.name}:{self._parser.CurrentLineNumber}"

    def _mark_begin(self, *_: object) -> None:
        if self._segment is not None and self._segment.begin < 0:
            self._segment.begin = self._parser.CurrentByteIndex

    def _start(self, element: str, attributes: dict[str, str]) -> None:
        self._mark_begin()
        self._elements, self._depth = self._elements + 1, self._depth + 1
        if self._depth > MAX_DEPTH:
            raise DataError(f"{self._here()}: More than {MAX_DEPTH:,} elements are inside each other. Export the file "
                            "again.")
        if self._elements == 1 and element != "tmx":
            raise DataError(f"{self._here()}: This is not a TMX file: it begins with <{printable(element)}>.")
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
                raise DataError(f"{self._here()}: A <tuv> has no language. Add an xml:lang.")
            self._variant = TmxVariant(language, self._parser.CurrentLineNumber)
        elif element == "seg" and self._variant is not None:
            if self._variant.end >= 0:
                raise DataError(f"{self._here()}: A second <seg> in one <tuv>. Remove one of them.")
            self._segment = self._variant
        if self._unit is None:
            self.done = self._parser.CurrentByteIndex

    def _end(self, element: str) -> None:
        self._mark_begin()
        self._depth -= 1
        if self._inside:
            self._inside, self._codes = self._inside - 1, max(0, self._codes - 1)
        elif element == "seg" and self._segment is not None:
            self._segment.end, self._segment = self._parser.CurrentByteIndex, None
        elif element == "tuv" and self._variant is not None and self._unit is not None and self._segment is None:
            self._unit.variants.append(self._variant)
            self._variant = None
        elif element == "tu" and self._unit is not None and self._variant is None:
            self._unit.end = self.done = self._parser.CurrentByteIndex
            self._ready.append(self._unit)
            self._unit = None

    def _characters(self, text: str) -> None:
        self._mark_begin()
        if self._segment is not None and not self._codes:
            self._segment.parts.append(text)


def read_pairs(input: InputFile, source: str | None, target: str | None,
               skipped: SkipCallback, log: ReadLog) -> Iterator[SentencePair]:
    """The pairs of a file; `skipped` is called for every unit or variant that gives none."""
    languages, units = _LanguagePair(input.name, source, target), TmxParser(input.name)
    for block in chain(input.blocks(), [b""]):
        for unit in units.feed(block):
            first, others = languages.choose(unit, units.source_language, skipped)
            if first is None or not others:
                missing = "no source language" if first is None else "no target language"
                skipped(Location(input.name, unit.line), missing)
                continue
            for other in others:
                yield SentencePair(first.text, other.text, Location(input.name, unit.line))
    languages.check()
    codes = normalize_code(languages.source), normalize_code(languages.target)
    if codes[0] and codes[1]:
        log.languages[input.name] = LanguagePair(codes[0], codes[1])


def parse_document(input: InputFile, source: str | None, target: str | None) -> DocumentParts:
    """The slots of a file: segments in the target language, or the positions where they will be added."""
    languages, units, window = _LanguagePair(input.name, source, target), TmxParser(input.name), _ByteWindow()
    head, blocks = read_head(input.blocks(), _UTF16_STARTS)
    for block in chain([head] if head else [], blocks, [b""]):
        window.data += block
        for unit in units.feed(block):
            codec, location = _file_codec(head, units.encoding), Location(input.name, unit.line)
            first, others = languages.choose(unit, units.source_language, lambda location, reason: None)
            if first is None:
                continue
            for span in _target_spans(unit, others, target, window, codec):
                yield window.take_until(span.begin)
                write = partial(_encode_target, location, codec, span)
                yield TargetSlot(first.text, span.target, location, window.take_until(span.end), write)
        yield window.take_until(units.done)
    yield bytes(window.data)


class _ByteWindow:
    """The bytes of a file that are read and not yet written."""

    def __init__(self) -> None:
        self.data, self.begin = bytearray(), 0

    def between(self, begin: int, end: int) -> bytes:
        """The bytes between two offsets of the file, which must be in the window."""
        return bytes(self.data[begin - self.begin:end - self.begin])

    def take_until(self, offset: int) -> bytes:
        """Take the bytes before an offset out of the window."""
        taken = self.between(self.begin, offset)
        del self.data[:offset - self.begin]
        self.begin = offset
        return taken


class _TargetSpan(NamedTuple):
    """The range of bytes that a target occupies, or will occupy."""

    begin: int
    end: int
    target: str
    before: str = ""
    after: str = ""
    """The markup around a target that has no element yet."""


class _LanguagePair:
    """Selects the source and target variants of units. Without given languages it learns them from the file."""

    def __init__(self, name: str, source: str | None, target: str | None) -> None:
        self.name, self.named = name, source is not None
        self.source, self.target = _normalise_language(source), _normalise_language(target)
        self.found: dict[str, None] = {}
        self.pairs = 0

    def choose(self, unit: TmxUnit, declared: str | None,
               skipped: SkipCallback) -> tuple[TmxVariant | None, list[TmxVariant]]:
        """The first variant in the source language, and all in the target language."""
        sources, targets = list[TmxVariant](), list[TmxVariant]()
        for variant in unit.variants:
            if variant.begin < 0:
                continue  # it has no segment
            language = _normalise_language(variant.language)
            self.found[variant.language] = None
            if not self.named:
                self._learn(language, declared, variant)
            if self._is_target(language):
                targets.append(variant)
            elif _language_matches(language, self.source):
                sources.append(variant)
        for variant in sources[1:]:
            skipped(Location(self.name, variant.line), "another source")
        self.pairs += bool(sources and targets)
        return (sources[0] if sources else None), targets

    def check(self) -> None:
        """Raise an error at the end of the file if no unit had both languages; it names the languages found."""
        if self.found and not self.pairs:
            found = ", ".join(f'"{printable(language)}"' for language in list(self.found)[:20])
            raise DataError(f'{self.name}: No unit has both a source in "{printable(self.source)}" and a target in '
                            f'"{printable(self.target)}". Choose two of its languages with --source and --target: '
                            f'{found}.')

    def _learn(self, language: str, declared: str | None, variant: TmxVariant) -> None:
        if not self.source:
            self.source = language if not declared or declared.lower() == "*all*" else _normalise_language(declared)
        if _language_matches(language, self.source) or language == self.target:
            return
        if self.target:
            raise DataError(f'{self.name}:{variant.line}: A third language, "{printable(variant.language)}", after '
                            f'"{printable(self.source)}" and "{printable(self.target)}". Choose two of them with '
                            '--source and --target.')
        self.target = language

    def _is_target(self, language: str) -> bool:
        """Whether a language is the target. If both names match it, as pt and pt-BR do, the longer one decides."""
        if not _language_matches(language, self.target) or language == self.source:
            return False
        return not _language_matches(language, self.source) or len(self.target) > len(self.source)


def _normalise_language(language: str | None) -> str:
    return (language or "").lower().replace("_", "-")


def _language_matches(language: str, wanted: str) -> bool:
    return bool(wanted) and (language == wanted or language.startswith(f"{wanted}-"))


def _target_spans(unit: TmxUnit, others: list[TmxVariant], target: str | None, window: _ByteWindow,
                  codec: str) -> Iterator[_TargetSpan]:
    """The ranges of a unit's targets; or where one can be added, if it has none and its language is known."""
    if not others and target is not None:
        yield _TargetSpan(unit.end, unit.end, "", f"<tuv xml:lang={quoteattr(target)}><seg>", "</seg></tuv>")
    empty = "/>".encode(codec)
    for variant in others:
        begin, end = variant.begin, variant.end
        if begin == end and window.between(begin - len(empty), begin) == empty:  # <seg/>
            yield _TargetSpan(begin - len(empty), end, "", ">", "</seg>")
        else:
            yield _TargetSpan(begin, end, variant.text)


def _encode_target(location: Location, codec: str, span: _TargetSpan, text: str) -> bytes:
    bad = _NOT_IN_XML.search(text)
    if bad:
        raise DataError(f"{location}: A target with U+{ord(bad[0]):04X} cannot be written: XML cannot represent it.")
    content = escape(text, {"\r": "&#13;"})
    return f"{span.before}{content}{span.after}".encode(codec, "xmlcharrefreplace")


def _file_codec(head: bytes, declared: str | None) -> str:
    """The encoding of a file, from its first bytes or from its declaration."""
    return _UTF16_STARTS.get(head[:2]) or declared or "utf-8"
