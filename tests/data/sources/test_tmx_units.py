"""The units of TMX files: where each segment stands, in any encoding and cut anywhere; and what XML can hide."""

import pytest

from regard.data.sources.text import DataError
from regard.data.sources.tmx import TmxParser

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
