"""The entries of PO files: what gettext's tools read, in the same words; what they refuse, with its line."""

import random
import shutil
import subprocess

import pytest

from regard.data.sources.po import escape_string, read_entries
from regard.data.sources.text import DataError, InputFile

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
