"""PO files: entries, pairs, and translations written back."""

import ast
import random
import re
import shutil
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from regard.data.sources import po
from regard.data.sources.formats import read_sources, write_translations
from regard.data.sources.po import escape_string, parse_document, read_entries
from regard.data.sources.text import DataError, InputFile, ReadLog, TargetSlot

HEADER = 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n"Plural-Forms: {};\\n"\n\n'
FILES = 'msgid "a file"\nmsgid_plural "%d files"\n'


def pairs(path):
    left = []
    found = po.read_pairs(InputFile(path), lambda where, reason: left.append((where.line, reason)), ReadLog())
    return [pair[:2] for pair in found], left


def test_which_entries_are_pairs(file):
    path = file("a.po", """msgid "one"
msgstr "eins"

msgctxt "c"
msgid "two"
msgstr ""

#, fuzzy
msgid "three"
msgstr "vier"

#~ msgid "four"
#~ msgstr "vier"
""")
    found, left = pairs(path)
    assert found == [("one", "eins"), ("two", "")]
    assert left == [(9, "fuzzy"), (12, "obsolete")]
    again = list(po.read_pairs(InputFile(path), print, ReadLog()))
    assert [str(pair.location).rpartition("/")[2] for pair in again][:2] == ["a.po:1", "a.po:5"]


def test_comments_at_the_end_are_no_entry_that_is_left_out(file):
    assert pairs(file("a.po", 'msgid "one"\nmsgstr "eins"\n\n#, fuzzy\n')) == ([("one", "eins")], [])


def test_the_header_is_no_pair_but_an_empty_id_with_a_context_is_one(file):
    path = file("a.po", HEADER.format("nplurals=2; plural=n != 1") + 'msgctxt "c"\nmsgid ""\nmsgstr "x"\n')
    assert pairs(path) == ([("", "x")], [])


@pytest.mark.parametrize(("forms", "sources"), [
    ("nplurals=2; plural=n != 1", ["a file", "%d files"]),
    ("nplurals=2; plural=(n > 1)", ["a file", "%d files"]),
    ("nplurals=1; plural=0", ["%d files"]),
    ("nplurals=3; plural=n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2",
     ["a file", "%d files", "%d files"]),
    ("nplurals=4; plural=(n%100==1 ? 1 : n%100==2 ? 2 : n%100==3 || n%100==4 ? 3 : 0)",
     ["%d files", "a file", "%d files", "%d files"]),
    ("nplurals=INTEGER; plural=EXPRESSION", ["a file", "%d files"]),
])
def test_plural_forms(file, forms, sources):
    strings = "".join(f'msgstr[{index}] "{index}"\n' for index in range(len(sources)))
    path = file("a.po", HEADER.format(forms) + FILES + strings)
    assert pairs(path)[0] == [(source, str(index)) for index, source in enumerate(sources)]
    slots = [piece for piece in po.parse_document(InputFile(path)) if isinstance(piece, TargetSlot)]
    assert [slot.source for slot in slots] == sources


def test_without_a_header_the_first_form_is_for_one(file):
    assert pairs(file("a.po", f'{FILES}msgstr[0] "0"\nmsgstr[1] "1"\n'))[0] == [("a file", "0"), ("%d files", "1")]


@pytest.mark.parametrize("forms", ["2; plural=n !== 1", "2; plural=n % 0", "2; plural=__import__",
                                   f"{'9' * 5000}; plural=n"])
def test_plural_forms_that_cannot_be_computed(file, refused, forms):
    path = file("a.po", HEADER.format(f"nplurals={forms}"))
    assert refused(lambda: pairs(path)).startswith("a.po:2: Plural-Forms cannot be evaluated")


@pytest.mark.parametrize("charset", ["ISO-8859-1", "KOI8-R", "utf-16"])
def test_another_charset_is_refused_by_name(file, refused, charset):
    path = file("a.po", HEADER.format("").replace("UTF-8", charset))
    assert refused(lambda: pairs(path)) == \
        f'a.po:2: The charset is "{charset}", but only UTF-8 is read. Convert the file: msgconv -t UTF-8.'


@pytest.mark.parametrize("charset", ["utf-8", "UTF8", "CHARSET", "ASCII"])
def test_these_charsets_are_read(file, charset):
    path = file("a.po", HEADER.format("").replace("UTF-8", charset) + 'msgid "ä"\nmsgstr "b"\n')
    assert pairs(path)[0] == [("ä", "b")]


def test_pieces_are_the_file(file):
    text = HEADER.format("nplurals=2; plural=n != 1") + \
        '#, fuzzy\nmsgid "a"\nmsgstr  "b"  \n#~ msgid "c"\n#~ msgstr "d"\n# e'
    pieces = list(po.parse_document(InputFile(file("a.po", text))))
    assert b"".join(piece.raw if isinstance(piece, TargetSlot) else piece for piece in pieces) == text.encode()
    assert [(piece.source, piece.target) for piece in pieces if isinstance(piece, TargetSlot)] == [("a", "b")]


FULL = r'''# A translator's comment
#. an extracted one
#: src/a.c:7
#, fuzzy, c-format
#| msgid "before"
msgctxt "menu"
msgid "one\t\"two\"\\ \x41\101\a"
msgid_plural ""
"many "  "more"
"\n"

msgstr[0]   "eins"
  msgstr[1] ""
"zwei"
# about nothing
#~ msgid "old"
#~ msgstr ""
#~ "alt"

#~| msgid "x"
#~ maybe
msgid
"last"
msgstr"letzte"'''


def read(path):
    return list(read_entries(InputFile(path)))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_an_entry_of_every_kind(file, end):
    data = FULL.replace("\n", end)
    first, old, last = read(file("a.po", data))
    assert (first.context.text, first.id.text, first.plural.text) == ("menu", 'one\t"two"\\ AA\a', "many more\n")
    assert [string.text for string in first.strings] == ["eins", "zwei"]
    assert (first.flags, first.obsolete, first.id.line) == ({"fuzzy", "c-format"}, False, 7)
    text = "".join(first.raw)
    assert [text[string.begin:string.end] for string in first.strings] == ['"eins"', f'""{end}"zwei"']
    assert (old.id.text, old.strings[0].text, old.obsolete, old.id.line) == ("old", "alt", True, 16)
    assert (last.id.text, last.strings[0].text, last.obsolete, last.flags) == ("last", "letzte", False, set())
    assert "".join(line for entry in (first, old, last) for line in entry.raw) == data


@pytest.mark.parametrize(("text", "line", "reason"), [
    ('msgstr "a"\n', 1, "msgstr does not belong here"),
    ('msgid "a"\nmsgstr[0] "a"\n', 2, "msgstr[0] does not belong here"),
    ('msgid "a"\nmsgid_plural "b"\nmsgstr "a"\n', 3, "msgstr does not belong here"),
    ('msgid "a"\nmsgid_plural "b"\nmsgstr[1] "a"\n', 3, "msgstr[1] does not belong here"),
    ('msgid "a"\nmsgid_plural "b"\nmsgstr[0] "a"\nmsgstr[0] "b"\n', 4, "msgstr[0] does not belong here"),
    ('msgid "a"\nmsgstr "a"\nmsgstr "b"\n', 3, "msgstr does not belong here"),
    ('msgid "a"\nmsgid "a"\nmsgstr "b"\n', 2, "msgid does not belong here"),
    ('msgid[0] "a"\nmsgstr "b"\n', 1, "msgid[0] does not belong here"),
    ('msgid "a"\nmsgctxt "b"\nmsgstr "b"\n', 2, "msgctxt does not belong here"),
    ('msgid_plural "b"\nmsgid "a"\n', 1, "msgid_plural does not belong here"),
    ('# all is well\nmsgid "a"\n', 2, "A msgid without a msgstr"),
    ('msgid "a"\nmsgstr "b"\nmsgctxt "c"\n', 3, "A msgctxt without a msgstr"),
    (f'msgid "a"\nmsgid_plural "b"\nmsgstr[{"9" * 5000}] "c"\n', 3, "msgstr does not belong here"),
    ('msgid "a"\nmsgstr "b\n', 2, "is not between quotation marks"),
    ('msgid "a"\nmsgstr "b"c"\n', 2, "is not between quotation marks"),
    ('msgid a\nmsgstr "b"\n', 1, "a is not between quotation marks"),
    ('"a"\n', 1, '"a" is neither a comment nor'),
    ('msgid "a"\nmsgstr "b"\n# c\n"d"\n', 4, '"d" is neither a comment nor'),
    ('msgidx "a"\n', 1, 'msgidx "a" is neither a comment nor'),
    ("\n\n<html>\x1b[31m\n", 3, r"<html>\x1b[31m is neither a comment nor"),
    ('msgid "a\\q"\nmsgstr "b"\n', 1, "\\q is not an escape"),
    ('msgid "a\\0"\nmsgstr "b"\n', 1, "\\0 is not an escape"),
    ('msgid "a\\377"\nmsgstr "b"\n', 1, "\\377 is not an escape"),
    ('msgid "a"\n#~ msgstr "b"\n', 2, "Some lines of this entry are obsolete"),
    ('#~ msgid "a"\n#~ msgstr ""\n"b"\n', 3, "Some lines of this entry are obsolete"),
    ('#~ msgid "a"\nmsgstr "b"\n', 2, "Some lines of this entry are obsolete"),
])
def test_what_is_no_entry(file, refused, text, line, reason):
    path = file("a.po", text)
    message = refused(lambda: read(path))
    assert message.startswith(f"a.po:{line}: ")
    assert reason in message


def test_lines_end_only_where_they_end(file):
    inside = "a\u2028b\x85c\vd"
    (entry,) = read(file("a.po", f'msgid "{inside}"\nmsgstr "{inside}"\n'))
    assert (entry.id.text, entry.strings[0].text, entry.strings[0].line) == (inside, inside, 2)


def test_a_file_of_comments_alone(file):
    (entry,) = read(file("a.po", "# a\n\n#~ b\n"))
    assert (entry.id, entry.strings, "".join(entry.raw)) == (None, [], "# a\n\n#~ b\n")
    assert read(file("b.po", "")) == []


def test_a_long_string_takes_no_longer_than_it_must(file):
    long = '\\"x' * 300_000
    (entry,) = read(file("a.po", f'msgid "{long}"\nmsgstr ""\n'))
    assert entry.id.text == '"x' * 300_000


def test_the_same_strings_as_polib(file):
    polib = pytest.importorskip("polib")
    text = FULL
    for unknown, known in (("\\x41\\101\\a", ""), ('"  "more', '"\n"more'), ('msgstr"', 'msgstr "'),
                           ("msgid\n", 'msgid ""\n'), ("#~ maybe\n", "")):
        text = text.replace(unknown, known)  # to polib
    path = file("a.po", text)
    theirs = polib.pofile(path)
    ours = {entry.id.text: entry for entry in read(path)}
    assert len(theirs) == len(ours) == 3
    for entry in theirs:
        mine = ours[entry.msgid]
        assert [string.text for string in mine.strings] == (list(entry.msgstr_plural.values()) or [entry.msgstr])
        assert (mine.context and mine.context.text) == entry.msgctxt
        assert (mine.plural.text if mine.plural else "") == entry.msgid_plural
        assert (mine.obsolete, mine.flags) == (bool(entry.obsolete), set(entry.flags))


@pytest.mark.skipif(shutil.which("msgfmt") is None, reason="gettext is not installed")
def test_what_gettext_refuses_is_refused(file):
    """Random damage to a good file: whatever we read, msgfmt reads too."""
    chance = random.Random(7)
    text = FULL.partition("#~")[0] + FULL.partition("maybe\n")[2]
    text = text.replace('#| msgid "before"\n', "").replace('\n"\\n"', "")
    for _ in range(60):
        place = chance.randrange(len(text))
        more = chance.choice(["", "", '"', "\\", "\n", "[0]", 'msgid "q"\n', 'msgstr "q"\n'])
        path = file("a.po", text[:place] + more + text[place + chance.randrange(4):])
        try:
            read(path)
        except DataError:
            continue
        done = subprocess.run(["msgfmt", "-o", "/dev/null", path], capture_output=True, timeout=60)
        assert done.returncode == 0, (done.stderr, text[max(0, place - 20):place + 20])


def test_escapes_go_both_ways(file):
    text = '\a\b\f\n\r\t\v\\"\x1b é\u2028'
    (entry,) = read(file("a.po", f'msgid "{escape_string(text)}"\nmsgstr ""\n'))
    assert entry.id.text == text


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
