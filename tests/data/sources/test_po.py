"""PO files as pairs: which entries are given, which form of a plural belongs to which source, the header."""

import pytest

from regard.data.sources import po
from regard.data.sources.text import InputFile, TargetSlot

HEADER = 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n"Plural-Forms: {};\\n"\n\n'
FILES = 'msgid "a file"\nmsgid_plural "%d files"\n'


def pairs(path):
    left = []
    found = [pair[:2] for pair in po.read_pairs(InputFile(path), lambda where, reason: left.append((where.line, reason)))]
    return found, left


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
    assert [str(pair.location).rpartition("/")[2] for pair in po.read_pairs(InputFile(path), print)][:2] == ["a.po:1", "a.po:5"]


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
