"""HTML as text to translate: which parts are sentences, and the page with those parts translated.

    page = HtmlText.of("<p>Open <b>two files</b>.</p><script>f()</script>")
    page.texts                                     ["Open <b>two files</b>."]
    page.join(["Ouvrez <b>deux fichiers</b>."])    "<p>Ouvrez <b>deux fichiers</b>.</p><script>f()</script>"

Tags of blocks (p, li, td, ...), comments, and elements whose content is not prose (script, style, code, ...) separate
sentences and stay as they are. Inside a sentence, line breaks are spaces. Tags inside a sentence lose their attributes
while it is translated, and get them back by their order: `regard.tasks.placeholder_translation` keeps the order.
Entities of letters are decoded (caf&eacute;); those of <, > and & remain placeholders, so that text never becomes
markup.
"""

import html
import re
from collections.abc import Sequence
from typing import NamedTuple

from regard.data.filters import is_blank
from regard.tasks.placeholders import split_at_placeholders

OPAQUE_ELEMENTS = ("script", "style", "code", "pre", "textarea", "svg", "math", "template", "noscript")
"""Elements whose content is not translated."""
INLINE_ELEMENTS = frozenset((
    "a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "data", "del", "dfn", "em", "font", "i", "img", "ins",
    "kbd", "label", "mark", "q", "s", "samp", "small", "span", "strike", "strong", "sub", "sup", "time", "tt", "u",
    "var", "wbr"))
"""Elements inside a sentence; all others separate sentences."""
_ATTRIBUTES = r"""(?:[^<>"']|"[^"]*"|'[^']*')*+"""
_TAG = re.compile(rf"<(/?)([A-Za-z][A-Za-z0-9:-]*)({_ATTRIBUTES})>")
_MARKUP_START = re.compile(r"<!--|<[!?]|</?[A-Za-z]")
_ENTITY = re.compile(r"&(?:[A-Za-z][A-Za-z0-9]{0,30}|#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6});")
_SPACE = re.compile(r"[ \t\r\n\f]+")
_PLAIN_TAG = re.compile(r"</?[A-Za-z][A-Za-z0-9:-]*/?>")
_MARKUP_SIGNS = frozenset("<>&")


class _Segment(NamedTuple):
    """A sentence of a page: its text with plain tags, and the tags as they were."""

    before: str
    text: str
    tags: tuple[str, ...]
    after: str


class HtmlText(NamedTuple):
    """A page or a fragment of HTML, split into what is translated and what stays."""

    parts: tuple[str | _Segment, ...]

    @classmethod
    def of(cls, text: str) -> "HtmlText":
        """Split a text. What is not valid HTML is text."""
        parts, inline, place = list[str | _Segment](), list[tuple[str, bool]](), 0

        def end_segment() -> None:
            parts.extend(_segment(inline))
            inline.clear()

        while found := _MARKUP_START.search(text, place):
            inline.append((text[place:found.start()], False))
            tag = _TAG.match(text, found.start())
            name = tag[2].lower() if tag else ""
            end = _opaque_end(text, found.start(), tag, name)
            place = end if end is not None else tag.end() if tag else found.start() + 1
            raw = text[found.start():place]
            if tag is None and end is None:  # a bare <
                inline.append((raw, False))
            elif end is None and name in INLINE_ELEMENTS:
                inline.append((raw, True))
            else:
                end_segment()
                parts.append(raw)
        inline.append((text[place:], False))
        end_segment()
        return cls(tuple(parts))

    @property
    def texts(self) -> list[str]:
        """The sentences, in order."""
        return [part.text for part in self.parts if isinstance(part, _Segment)]

    def join(self, translations: Sequence[str]) -> str:
        """The page with a translation for each of its texts."""
        remaining = iter(translations)
        return "".join(part if isinstance(part, str)
                       else f"{part.before}{_restore(part, next(remaining))}{part.after}" for part in self.parts)


def _opaque_end(text: str, start: int, tag: re.Match[str] | None, name: str) -> int | None:
    """Where a comment, a declaration or an element that is not translated ends; None if none begins here."""
    if text.startswith("<!--", start):
        end = text.find("-->", start + 4)
        return len(text) if end < 0 else end + 3
    if text.startswith(("<!", "<?"), start):
        end = text.find(">", start)
        return len(text) if end < 0 else end + 1
    if tag is None or tag[1] or name not in OPAQUE_ELEMENTS or tag[3].endswith("/"):
        return None
    closing = re.compile(rf"</{name}\s*>", re.IGNORECASE).search(text, tag.end())
    return len(text) if closing is None else closing.end()


def _segment(pieces: list[tuple[str, bool]]) -> list[str | _Segment]:
    """The parts of a sentence given as text and tags; only text if there is nothing to translate."""
    whole = "".join(raw for raw, _ in pieces)
    if not any(not is_tag and not is_blank(html.unescape(raw)) for raw, is_tag in pieces):
        return [whole] if whole else []
    text = "".join(_plain_tag(raw) if is_tag else _SPACE.sub(" ", _decode(raw)) for raw, is_tag in pieces)
    before, after = whole[:len(whole) - len(whole.lstrip())], whole[len(whole.rstrip()):]
    return [_Segment(before, text.strip(), tuple(raw for raw, is_tag in pieces if is_tag), after)]


def _plain_tag(raw: str) -> str:
    """A tag without attributes."""
    tag = _TAG.fullmatch(raw)
    assert tag is not None
    return f"<{tag[1]}{tag[2]}{'/' if tag[3].rstrip().endswith('/') else ''}>"


def _decode(text: str) -> str:
    """A text without entities, except those of signs of markup."""
    def replacement(found: re.Match[str]) -> str:
        decoded = html.unescape(found[0])
        return found[0] if decoded == found[0] or _MARKUP_SIGNS & set(decoded) else decoded

    return _escape(_ENTITY.sub(replacement, text))


def _escape(text: str) -> str:
    """A text with entities for signs of markup that are not part of an entity."""
    text = re.sub(rf"&(?!{_ENTITY.pattern[1:]})", "&amp;", text)
    return text.replace("<", "&lt;").replace(">", "&gt;")


def _restore(segment: _Segment, translation: str) -> str:
    """A translation with the original tags; the source if it does not have all of them."""
    between, marks = split_at_placeholders(translation)
    tags = iter(segment.tags)
    restored = [next(tags, "") if _PLAIN_TAG.fullmatch(mark) else _escape(mark) for mark in marks]
    if sum(map(bool, map(_PLAIN_TAG.fullmatch, marks))) != len(segment.tags):
        return _restore(segment, segment.text)
    return "".join(f"{_escape(text)}{mark}" for text, mark in zip(between, [*restored, ""], strict=True))
