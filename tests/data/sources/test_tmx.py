"""TMX files as pairs: which variants of a unit are source and target, and what is told of the others."""

import pytest

from regard.data.sources import tmx
from regard.data.sources.text import InputFile, Location, SentencePair, TargetSlot


def document(*units, srclang="en"):
    """Units as lists of (language, text); each on a line of its own, from line 2."""
    header = f'<header srclang="{srclang}"/>' if srclang else ""
    variants = [[f'<tuv xml:lang="{language}"><seg>{text}</seg></tuv>' for language, text in unit] for unit in units]
    body = "\n".join(f"<tu>{''.join(several)}</tu>" for several in variants)
    return f'<tmx version="1.4">{header}<body>\n{body}\n</body></tmx>'


def pairs(path, source=None, target=None):
    left = []
    found = list(tmx.read_pairs(InputFile(path), source, target, lambda where, reason: left.append((where.line, reason))))
    return [pair[:2] for pair in found], left


def test_two_languages_need_no_names(file):
    path = file("a.tmx", document([("EN", "one"), ("fr", "un")], [("fr", "deux"), ("en-US", "two")]))
    assert pairs(path) == ([("one", "un"), ("two", "deux")], [])
    assert next(tmx.read_pairs(InputFile(path), None, None, print)) == SentencePair("one", "un", Location(path, 2))


@pytest.mark.parametrize("srclang", ["", "*all*"])
def test_without_a_word_in_the_header_the_first_language_is_the_source(file, srclang):
    path = file("a.tmx", document([("fr", "un"), ("en", "one")], [("en", "two"), ("fr", "deux")], srclang=srclang))
    assert pairs(path)[0] == [("un", "one"), ("deux", "two")]


def test_a_third_language_without_names(file, refused):
    path = file("a.tmx", document([("en", "one"), ("fr", "un")], [("en", "one"), ("de", "eins")]))
    assert refused(lambda: pairs(path)).startswith('a.tmx:3: A third language, "de", besides "en" and "fr".')
    assert pairs(path, "EN", "de") == ([("one", "eins")], [(2, "no target language")])


@pytest.mark.parametrize(("source", "target", "expected"), [
    ("en", "pt", [("color", "cor")]),
    ("en_us", "PT-br", [("color", "cor")]),
    ("pt", "en", [("cor", "color"), ("cor", "colour")]),
    ("en", "en-GB", [("color", "colour")]),
    ("en-GB", "en", [("colour", "color")]),
    ("en-US", "en-GB", [("color", "colour")]),
])
def test_languages_and_their_regions(file, source, target, expected):
    path = file("a.tmx", document([("en-US", "color"), ("en-GB", "colour"), ("pt-BR", "cor")]))
    assert pairs(path, source, target)[0] == expected


def test_a_language_is_not_its_prefix(file, refused):
    path = file("a.tmx", document([("eng", "a"), ("de", "b")]))
    message = refused(lambda: pairs(path, "en", "de"))
    assert message == ('a.tmx: No unit has both a source in "en" and a target in "de". The languages found: "eng", '
                       '"de". Name two of them.')


def test_several_variants_of_a_language(file):
    several = [("en", "1"), ("de", "a"), ("de", "b"), ("en", "2")]
    path = file("a.tmx", document(several, [("en", "3")], [("de", "c")], []))
    assert pairs(path, "en", "de") == ([("1", "a"), ("1", "b")],
                                       [(2, "another source"), (3, "no target language"), (4, "no source language"),
                                        (5, "no source language")])


def test_a_variant_without_a_segment_says_nothing(file):
    path = file("b.tmx", '<tmx><tu><tuv lang="en"><seg>1</seg></tuv><tuv lang="de"/></tu>'
                         '<tu><tuv lang="en"><seg>2</seg></tuv><tuv lang="de"><seg/></tuv></tu></tmx>')
    assert pairs(path, "en", "de") == ([("2", "")], [(1, "no target language")])


def slots(path, *names):
    pieces = list(tmx.parse_document(InputFile(path), *(names or (None, None))))
    joined = b"".join(piece.raw if isinstance(piece, TargetSlot) else piece for piece in pieces)
    return [piece for piece in pieces if isinstance(piece, TargetSlot)], joined


def test_pieces_are_the_file(file):
    text = "\ufeff" + document([("en", "1"), ("de", "<b>a</b>")], [("en", "2")], [("de", "c")],
                               [("en", "3"), ("de", "")])
    path = file("a.tmx", text)
    found, joined = slots(path, "en", "de")
    assert joined == text.encode()
    assert [(slot.source, slot.target, slot.raw) for slot in found] == \
        [("1", "a", b"<b>a</b>"), ("2", "", b""), ("3", "", b"")]
    assert found[1].write("zwei") == b'<tuv xml:lang="de"><seg>zwei</seg></tuv>'
    assert [slot.source for slot in slots(path)[0]] == ["1", "3"]  # without names nothing is added


def test_an_empty_segment_is_opened(file):
    path = file("a.tmx", document([("en", "1"), ("de", "X")]).replace("<seg>X</seg>", "<seg/>"))
    (slot,), _ = slots(path)
    assert (slot.target, slot.raw, slot.write("a<b")) == ("", b"/>", b">a&lt;b</seg>")


def test_what_xml_cannot_say(file, refused):
    (slot,), _ = slots(file("a.tmx", document([("en", "1"), ("de", "X")])))
    for text in ("\x01", "a\ud800", "\ufffe", "\0"):
        message = refused(lambda text=text: slot.write(text))
        assert message.startswith(f"a.tmx:2: A target with U+{ord(text[-1]):04X} cannot be written")
