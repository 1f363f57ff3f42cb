"""TMX files: units, pairs, and translations written back."""

import html
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from regard.data.sources import text as inputs
from regard.data.sources import tmx
from regard.data.sources.formats import read_pairs, read_sources, write_translations
from regard.data.sources.text import DataError, InputFile, Location, ReadLog, SentencePair, TargetSlot
from regard.data.sources.tmx import TmxParser


def document(*units, srclang="en"):
    """Units as lists of (language, text); each on a line of its own, from line 2."""
    header = f'<header srclang="{srclang}"/>' if srclang else ""
    variants = [[f'<tuv xml:lang="{language}"><seg>{text}</seg></tuv>' for language, text in unit] for unit in units]
    body = "\n".join(f"<tu>{''.join(several)}</tu>" for several in variants)
    return f'<tmx version="1.4">{header}<body>\n{body}\n</body></tmx>'


def pairs(path, source=None, target=None):
    left = []
    found = tmx.read_pairs(InputFile(path), source, target,
                           lambda where, reason: left.append((where.line, reason)), ReadLog())
    return [pair[:2] for pair in found], left


def test_two_languages_need_no_names(file):
    path = file("a.tmx", document([("EN", "one"), ("fr", "un")], [("fr", "deux"), ("en-US", "two")]))
    assert pairs(path) == ([("one", "un"), ("two", "deux")], [])
    assert next(tmx.read_pairs(InputFile(path), None, None, print, ReadLog())) == \
        SentencePair("one", "un", Location(path, 2))


@pytest.mark.parametrize("srclang", ["", "*all*"])
def test_without_a_word_in_the_header_the_first_language_is_the_source(file, srclang):
    path = file("a.tmx", document([("fr", "un"), ("en", "one")], [("en", "two"), ("fr", "deux")], srclang=srclang))
    assert pairs(path)[0] == [("un", "one"), ("deux", "two")]


def test_a_third_language_without_names(file, refused):
    path = file("a.tmx", document([("en", "one"), ("fr", "un")], [("en", "one"), ("de", "eins")]))
    assert refused(lambda: pairs(path)).startswith('a.tmx:3: A third language, "de"')
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
    assert message.startswith('a.tmx: No unit has both a source in "en" and a target in "de".')
    assert message.endswith(': "eng", "de".')


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


BODY = """<tmx version="1.4"><header srclang="en"><note>a tu: &lt;tu&gt;</note></header><body>
<tu tuid="1"><note>n</note><tuv xml:lang="en"><prop type="x">p</prop><seg a='>"' b="'/">A &amp; B &#228;</seg></tuv>
<tuv lang="de"><seg ><bpt>&lt;b&gt;</bpt>fett<ept>x</ept> <hi>und <ph>c<sub>s</sub>c</ph>so</hi><it/>!</seg></tuv></tu>
<tu><tuv lang="EN"><seg/></tuv><tuv xml:lang="de"><seg></seg></tuv><tuv xml:lang="fr"/></tu>
<tu><tuv lang="en"><seg><!-- c -->x<![CDATA[<&]]></seg></tuv><tuv xml:lang="de"><seg><?p i?>\u2028ä😀</seg></tuv></tu>
</body></tmx>"""
TEXTS = [[("en", "A & B ä"), ("de", "fett und so!")], [("EN", ""), ("de", ""), ("fr", "")],
         [("en", "x<&"), ("de", "\u2028ä\U0001f600")]]


def units(data, size=1 << 20):
    reader = TmxParser("a.tmx")
    found = [unit for place in range(0, len(data), size) for unit in reader.feed(data[place:place + size])]
    return found + reader.feed(b"")


@pytest.mark.parametrize("codec", ["utf-8", "utf-16", "utf-16-le", "iso-8859-1"])
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_texts_and_places(codec, size):
    name = codec.removesuffix("-le")
    data = f'<?xml version="1.0" encoding="{name}"?>{BODY}'.encode(codec, "xmlcharrefreplace")
    plain = codec if codec != "utf-16" else "utf-16-le"
    found = units(data, size)
    assert [[(variant.language, variant.text) for variant in unit.variants] for unit in found] == TEXTS
    assert [unit.line for unit in found] == [2, 4, 5]
    raw = [[data[v.begin:v.end].decode(plain) for v in unit.variants if v.begin >= 0] for unit in found]
    assert raw[0][0] == ("A &amp; B &#228;")
    assert raw[0][1][:5] + raw[0][1][-6:] == "<bpt><it/>!"
    assert raw[1] == ["", ""]
    assert raw[2][0] == "<!-- c -->x<![CDATA[<&]]>"
    assert raw[2][1].startswith("<?p i?>")
    slash = found[1].variants[0].begin
    assert data[:slash].decode(plain).endswith("<seg/>")
    assert all(data[unit.end:].decode(plain).startswith("</tu>") for unit in found)


BOMB = "<!DOCTYPE tmx [<!ENTITY a 'ha'>" + "".join(
    f"<!ENTITY {chr(98 + i)} '{f'&{chr(97 + i)};' * 10}'>" for i in range(9)) + "]>"
SECRET = '<!DOCTYPE tmx [<!ENTITY x SYSTEM "file:///etc/passwd">]>'
SEGMENT = '<tmx><body><tu><tuv xml:lang="en"><seg>{}</seg></tuv></tu></body></tmx>'


@pytest.mark.parametrize(("data", "message"), [
    (BOMB + SEGMENT.format("&j;"), 'a.tmx:1: The file declares an entity, "a".'),
    (SECRET + SEGMENT.format("&x;"), 'a.tmx:1: The file declares an entity, "x".'),
    (SECRET + SEGMENT.format(""), 'a.tmx:1: The file declares an entity, "x".'),
    ('<!DOCTYPE tmx [<!ENTITY % p SYSTEM "http://127.0.0.1:9/p"> %p;]>' + SEGMENT.format(""),
     'a.tmx:1: The file declares an entity, "p".'),
    ('<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n' + SEGMENT.format("&nbsp;"), 'a.tmx:2: The entity "nbsp" is unknown.'),
    (SEGMENT.format("&nbsp;"), "a.tmx:1: column 40: This is not well-formed XML (undefined entity)."),
    (SEGMENT.format("a\0b"), "a.tmx:1: column 41: This is not well-formed XML"),
    (SEGMENT.format("\n</oh>"), "a.tmx:2: column 3: This is not well-formed XML (mismatched tag)."),
    (SEGMENT.format("")[:-9], "This is not well-formed XML"),
    ("", "a.tmx:1: column 1: This is not well-formed XML (no element found)."),
    ("<xliff/>", "a.tmx:1: This is not a TMX file: it begins with <xliff>."),
    ("<tmx><tu>\n<tuv><seg/></tuv></tu></tmx>", "a.tmx:2: A <tuv> has no language."),
    ('<tmx><tu><tuv lang="x"><seg/>\n<seg/></tuv></tu></tmx>', "a.tmx:2: A second <seg> in one <tuv>."),
    ('<?xml version="1.0" encoding="klingon"?><tmx/>', "a.tmx:1: Its encoding cannot be read"),
])
def test_what_is_refused(data, message):
    for size in (1, 1 << 20):
        with pytest.raises(DataError) as error:
            units(data.encode(), size)
        assert message in str(error.value)


def test_bytes_that_are_no_text():
    with pytest.raises(DataError, match=r"a.tmx:1: column \d+: This is not well-formed XML \(not well-formed"):
        units(SEGMENT.format("\xff").encode("latin-1"))


def test_a_dtd_may_be_named_and_is_not_read():
    (unit,) = units(('<!DOCTYPE tmx SYSTEM "http://127.0.0.1:9/tmx14.dtd">' + SEGMENT.format("a &lt; b")).encode())
    assert unit.variants[0].text == "a < b"


def test_a_multibyte_encoding_that_expat_cannot_read():
    with pytest.raises(DataError, match=r"a\.tmx:1: Its encoding cannot be read"):
        units(f'<?xml version="1.0" encoding="shift_jis"?>{SEGMENT.format("a")}'.encode())


def test_elements_inside_a_segment_may_have_any_name():
    (unit,) = units(SEGMENT.format("a<seg>b</seg><tu>c</tu><ph><seg>d</seg></ph>e").encode())
    assert [variant.text for variant in unit.variants] == ["abce"]


def test_the_same_texts_as_lxml():
    etree = pytest.importorskip("lxml.etree")
    ours = [variant for unit in units(BODY.encode()) for variant in unit.variants if variant.begin >= 0]
    for seg, variant in zip(etree.fromstring(BODY.encode()).iterfind(".//tuv[seg]"), ours, strict=True):
        for code in seg.xpath(".//bpt|.//ept|.//ph|.//it|.//comment()|.//processing-instruction()"):
            tail = code.tail or ""
            code.clear() if isinstance(code.tag, str) else setattr(code, "text", "")
            code.tail = tail
        assert "".join(seg.find("seg").itertext()) == variant.text


LETTERS = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff")
PARTS = ["<", ">", "&", "]]>", "&lt;", '"', "'", "\n", "\t", "\r", "\u2028", "\x85", "</seg>", "<!--", "é", "😀", " ",
         "€"]
TEXTS_WRITING_TMX = st.lists(st.sampled_from(PARTS) | st.text(LETTERS, max_size=4), max_size=5).map("".join)
BLANK = st.sampled_from(["", " ", "\n  ", "\t"])
# How a text may stand in a segment, and what of it is text.
INLINE = st.sampled_from([
    ("<bpt i='1'>&lt;b></bpt>", ""), ("<ph x='>'/>", ""), ("<hi>so</hi>", "so"), ("<!-- </seg> -->", ""),
    ("&#x41;", "A"), ("<![CDATA[<&]]>", "<&"), ("<?do </seg>?>", ""), ("<ph>a<sub>b</sub></ph>", "")])


def said(text):
    return html.escape(text).replace("\r", "&#13;")


@st.composite
def segments(draw):
    """What stands in a segment, and its text."""
    parts = draw(st.lists(INLINE | TEXTS_WRITING_TMX.map(lambda text: (said(text), text)), max_size=3))
    return "".join(raw for raw, _ in parts), "".join(text for _, text in parts)


@st.composite
def files(draw):
    """The pieces of a file, of which every second is a slot: (source, target, as written)."""
    found, text = [], "<tmx version='1.4'>\n<header srclang='en'><note>&lt;tu></note></header><body>"
    for number in range(draw(st.integers(1, 4))):
        text += draw(BLANK) + draw(st.sampled_from(["", "<!-- <tu><tuv> -->", "<?x?>"]))
        text += f"<tu tuid='{number}'{draw(BLANK)}>{draw(BLANK)}"
        text += draw(st.sampled_from(["", "<note>n</note>", "<prop type='>'>é</prop>"]))
        raw, source = draw(segments())
        first = f"<tuv xml:lang='en'{draw(BLANK)}><seg>{raw}</seg></tuv>{draw(BLANK)}"
        raw, target = draw(segments())
        attribute = draw(st.sampled_from(["", " a='>' "]))
        opening = f'<tuv {attribute}xml:lang="de-AT"><seg{draw(BLANK)}>'
        closing = f"</seg{draw(BLANK)}>{draw(BLANK)}</tuv>"
        turned = draw(st.booleans())
        found += [text + ("" if turned else first) + opening, (source, target, raw)]
        text = closing + (first if turned else "") + "</tu>"
    return [*found, f"{text}</body></tmx>\n"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(files(), st.data(), st.sampled_from(["utf-8", "utf-16-le", "utf-16-be", "iso-8859-15"]),
       st.sampled_from([5, 1 << 20]))
def test_nothing_else_changes(tmp_path, parts, data, codec, size):
    path, output = tmp_path / "in.tmx", tmp_path / "out.tmx"
    output.unlink(missing_ok=True)
    mark = "\ufeff" if codec.startswith("utf-16") else ""
    name = codec.removesuffix("-le").removesuffix("-be")
    parts = [f"{mark}<?xml version='1.0' encoding='{name}'?>" + parts[0], *parts[1:]]

    def has(text):
        """What of a text the encoding has."""
        return text.encode(codec, "ignore").decode(codec)

    parts = [has(part) if isinstance(part, str) else tuple(map(has, part)) for part in parts]
    path.write_bytes("".join(part if isinstance(part, str) else part[2] for part in parts).encode(codec))
    slots = [part for part in parts if not isinstance(part, str)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs, "BLOCK_BYTES", size)
        assert [pair[:2] for pair in read_pairs([path])] == [slot[:2] for slot in slots]
        assert [line.text for line in read_sources(path)] == [source for source, _, _ in slots]
        targets = data.draw(st.lists(TEXTS_WRITING_TMX, min_size=len(slots), max_size=len(slots)))
        assert write_translations(path, targets, output) == len(slots)
    places = iter(zip(slots, targets, strict=True))
    pattern = ""
    for part in parts:
        if isinstance(part, str):
            pattern += re.escape(part)
        else:
            (_, target, raw), new = next(places)
            pattern += f"({re.escape(raw)})" if new == target else "([^<>]*)"
    after = output.read_bytes().decode(codec)
    match = re.fullmatch(pattern, after, re.DOTALL)
    assert match is not None
    for raw, (_, target, _), new in zip(match.groups(), slots, targets, strict=True):
        assert new == target or html.unescape(raw) == new
    assert [pair[:2] for pair in read_pairs([output])] == [(slot[0], new) for slot,
                                                           new in zip(slots, targets, strict=True)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TEXTS_WRITING_TMX)
def test_lxml_reads_what_is_written(tmp_path, text):
    etree = pytest.importorskip("lxml.etree")
    path, output = tmp_path / "in.tmx", tmp_path / "out.tmx"
    output.unlink(missing_ok=True)
    path.write_text("<tmx><body><tu a='1'><tuv xml:lang='en'><seg>x</seg></tuv><tuv xml:lang='de'><seg/></tuv></tu>"
                    "</body></tmx>", encoding="utf-8")
    write_translations(path, [text], output)
    assert ["".join(seg.itertext()) for seg in etree.parse(str(output)).iter("seg")] == ["x", text]
