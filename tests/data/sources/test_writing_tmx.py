"""TMX files with anything in them, written back with any targets: every byte outside of the targets is as it was."""

import html
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from regard.data.sources import text as inputs
from regard.data.sources.formats import read_pairs, read_sources, write_translations

LETTERS = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff")
PARTS = ["<", ">", "&", "]]>", "&lt;", '"', "'", "\n", "\t", "\r", "\u2028", "\x85", "</seg>", "<!--", "é", "😀", " ",
         "€"]
TEXTS = st.lists(st.sampled_from(PARTS) | st.text(LETTERS, max_size=4), max_size=5).map("".join)
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
    parts = draw(st.lists(INLINE | TEXTS.map(lambda text: (said(text), text)), max_size=3))
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
        targets = data.draw(st.lists(TEXTS, min_size=len(slots), max_size=len(slots)))
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
    assert [pair[:2] for pair in read_pairs([output])] == [(slot[0], new) for slot, new in zip(slots, targets, strict=True)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TEXTS)
def test_lxml_reads_what_is_written(tmp_path, text):
    etree = pytest.importorskip("lxml.etree")
    path, output = tmp_path / "in.tmx", tmp_path / "out.tmx"
    output.unlink(missing_ok=True)
    path.write_text("<tmx><body><tu a='1'><tuv xml:lang='en'><seg>x</seg></tuv><tuv xml:lang='de'><seg/></tuv></tu>"
                    "</body></tmx>", encoding="utf-8")
    write_translations(path, [text], output)
    assert ["".join(seg.itertext()) for seg in etree.parse(str(output)).iter("seg")] == ["x", text]
