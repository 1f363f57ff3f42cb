"""The translation units of a TMX file, each variant with the place of its segment in the bytes of the file.

The parser is expat: it reads as the bytes come, says at which byte it stands, and asks the network for nothing. A file
that declares entities is refused, since they can grow without end or name other files; a reference to a DTD is allowed,
and not followed. Inside a segment, the native codes that <bpt>, <ept>, <it>, <ph> and <ut> hold are no text and are
dropped; what other elements hold, such as <hi>, is text. It does not know which languages are wanted.
"""

from dataclasses import dataclass, field
from typing import NoReturn
from xml.parsers import expat

from regard.data.pair import DataError
from regard.data.sources.inputs import shown

CODES = {"bpt", "ept", "it", "ph", "ut"}


@dataclass
class Variant:
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
class Unit:
    """One thing said in several languages."""

    line: int
    begin: int
    end: int = -1
    """The byte of its end tag."""
    variants: list[Variant] = field(default_factory=list)


class Units:
    """A file that is fed block by block, and gives units as they are complete."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.source_language: str | None = None
        """What the header says."""
        self.encoding: str | None = None
        """What the file says of itself."""
        self.seen = 0
        """All units that begin before this byte are given."""
        self._ready: list[Unit] = []
        self._unit: Unit | None = None
        self._variant: Variant | None = None
        self._segment: Variant | None = None
        self._inside = 0  # elements open inside the segment,
        self._codes = 0  # and those of them from the first native code on
        self._elements = 0
        self._parser = self._made()

    def feed(self, block: bytes) -> list[Unit]:
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
        raise DataError(f'{self._here()}: The file declares an entity, "{shown(name)}". Entities can name other files, '
                        "or grow without end, so they are not read. Write the text itself where it is used.")

    def _unknown(self, name: str, *_: object) -> NoReturn:
        raise DataError(f'{self._here()}: The entity "{shown(name)}" is not known. Write the text itself in its place.')

    def _here(self) -> str:
        return f"{self.name}:{self._parser.CurrentLineNumber}"

    def _anything(self, *_: object) -> None:
        if self._segment is not None and self._segment.begin < 0:
            self._segment.begin = self._parser.CurrentByteIndex

    def _start(self, element: str, attributes: dict[str, str]) -> None:
        self._anything()
        self._elements += 1
        if self._elements == 1 and element != "tmx":
            raise DataError(f"{self._here()}: The file is no TMX: it begins with <{shown(element)}>. Give a TMX file.")
        if self._segment is not None:
            self._inside += 1
            self._codes += element in CODES or self._codes > 0
        elif element == "header":
            self.source_language = attributes.get("srclang")
        elif element == "tu":
            self._unit = Unit(self._parser.CurrentLineNumber, self._parser.CurrentByteIndex)
        elif element == "tuv" and self._unit is not None:
            language = attributes.get("xml:lang") or attributes.get("lang")
            if not language:
                raise DataError(f"{self._here()}: A <tuv> does not say its language. Give it an xml:lang.")
            self._variant = Variant(language, self._parser.CurrentLineNumber)
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
