"""PO files with anything in them, written back with any targets: every byte outside of the targets is as it was."""

import ast
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from regard.data.sources.formats import read_sources, write_translations
from regard.data.sources.po import parse_document
from regard.data.sources.text import InputFile, TargetSlot

# Any text, and more often what PO, terminals and line readers make something of.
PARTS = ['"', "\\", "\n", "\t", "\r", "\a", "%s", "#", "#~", "msgid", "\u2028", "\x85", "\x1b", "é", "😀", " "]
LETTERS = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
TEXTS = st.lists(st.sampled_from(PARTS) | st.text(LETTERS, max_size=4), max_size=5).map("".join)
NOTES = st.text(st.characters(exclude_characters="\0\n\r", exclude_categories=["Cs"]), max_size=8)
BLANK = st.sampled_from(["", " ", "\t", "  "])
STRINGS = rb'"(?:[^"\\]|\\.)*"(?:\r?\n[ \t]*"(?:[^"\\]|\\.)*")*'


def said(text):
    """A text between quotation marks, spelt letter by letter."""
    spelt = {'"': r"\"", "\\": r"\\", "\n": r"\n", "\r": r"\r", "\a": r"\a"}
    return '"' + "".join(spelt.get(letter, letter) for letter in text) + '"'


def meant(raw):
    """The text of quoted parts, which Python spells as PO does."""
    return "".join(ast.literal_eval(part.decode()) for part in re.findall(rb'"(?:[^"\\]|\\.)*"', raw))


@st.composite
def quoted(draw, end, before=""):
    """A text, and one of the many ways to write it."""
    parts = draw(st.lists(TEXTS, min_size=1, max_size=3))
    between = end + before + draw(BLANK)
    return "".join(parts), between.join(map(said, parts))


@st.composite
def files(draw):
    """The pieces of a file, of which every second is a slot: (source, target, as written)."""
    end = draw(st.sampled_from(["\n", "\r\n"]))
    found, text = [], draw(st.sampled_from(["", f"# top{end}{end}"]))
    for number in range(draw(st.integers(0, 4))):
        before = draw(st.sampled_from(["", "", "", "#~ "]))
        for mark in draw(st.lists(st.sampled_from(["# ", "#. ", "#: ", "#| msgid ", "#~| "]), max_size=3)):
            text += mark + draw(NOTES) + end
        text += draw(st.sampled_from(["", f"#, fuzzy, c-format{end}", f"#,{end}"]))
        if draw(st.booleans()):
            text += f"{before}msgctxt{draw(BLANK)}{draw(quoted(end, before))[1]}{end}"
        singular, spelt = draw(quoted(end, before))
        # a number before it keeps the msgid from being empty, as the header's is
        text += f'{before}msgid{draw(BLANK)}"{number}"{draw(BLANK)}{spelt}{draw(BLANK)}{end}'
        source = f"{number}{singular}"
        count = draw(st.sampled_from([0, 0, 1, 2, 3]))
        if count:
            plural, spelt = draw(quoted(end, before))
            text += f"{before}msgid_plural {spelt}{end}"
        for index in range(max(1, count)):
            target, spelt = draw(quoted(end, before))
            text += f"{before}msgstr{f'[{index}]' if count else ''}{draw(BLANK)}"
            if before:
                text += spelt
            else:
                found += [text, (plural if index else source, target, spelt)]
                text = ""
            text += draw(BLANK) + end
        text += draw(st.sampled_from(["", end, f"  {end}{end}"]))
    return [*found, text]


def slow(test):
    return settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])(test)


@slow
@given(files(), st.data())
def test_nothing_else_changes(tmp_path, parts, data):
    path, output = tmp_path / "in.po", tmp_path / "out.po"
    output.unlink(missing_ok=True)
    before = "".join(part if isinstance(part, str) else part[2] for part in parts)
    path.write_bytes(before.encode())
    slots = [part for part in parts if not isinstance(part, str)]
    found = [piece for piece in parse_document(InputFile(path)) if isinstance(piece, TargetSlot)]
    assert [(slot.source, slot.target, slot.raw.decode()) for slot in found] == slots
    assert [line.text for line in read_sources(path)] == [source for source, _, _ in slots]

    targets = data.draw(st.lists(TEXTS, min_size=len(slots), max_size=len(slots)))
    assert write_translations(path, targets, output) == len(slots)
    # The whole file again, with a hole for each target and nothing else left open.
    pattern = b"".join(re.escape(part.encode()) if isinstance(part, str) else b"(" + STRINGS + b")" for part in parts)
    match = re.fullmatch(pattern, output.read_bytes(), re.DOTALL)
    assert match is not None
    assert [meant(raw) for raw in match.groups()] == targets
    assert [slot.target for slot in parse_document(InputFile(output)) if isinstance(slot, TargetSlot)] == targets


@slow
@given(TEXTS)
def test_polib_reads_what_is_written(tmp_path, text):
    polib = pytest.importorskip("polib")
    path, output = tmp_path / "in.po", tmp_path / "out.po"
    output.unlink(missing_ok=True)
    path.write_text('#, fuzzy\nmsgctxt "c"\nmsgid "i"\nmsgstr ""\n', encoding="utf-8")
    write_translations(path, [text], output)
    (entry,) = polib.pofile(str(output))
    assert entry.msgstr == text.replace("\a", "\\a")  # which polib does not know
    assert (entry.msgid, entry.msgctxt, entry.flags) == ("i", "c", ["fuzzy"])
