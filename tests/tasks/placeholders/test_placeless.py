"""Texts without their placeholders: what a model reads, and what is put back."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.tasks.placeholders import ALONE, CLOSE, OPEN, STAND_IN, WORD, StrippedText, find_placeholders

SIGNS = st.text("%s{}$<>/ab1 &;#x@.:w'-(n)d\n,!\"", max_size=30)
TAGGED = st.lists(st.sampled_from(["<b>", "</b>", "<i>", "</i>", "<br/>", "{x}", "%s", "&quot;", "&amp;", "dog", "(",
                                   ")", " ", " ", ", ", ".", "12", ": ", "'s "]), max_size=14).map("".join)


@pytest.mark.parametrize(("line", "text", "marks"), [
    ("the dog", "the dog", []),
    # In a sentence a placeholder leaves a number,
    ("%s files", "12 files", [("%s", WORD)]),
    ("Delete {n} files?", "Delete 12 files?", [("{n}", WORD)]),
    ("See https://a.org/x.", "See 12.", [("https://a.org/x", WORD)]),
    ("{name}'s dog", "12's dog", [("{name}", WORD)]),
    ("Ouvrir %s ?", "Ouvrir 12 ?", [("%s", WORD)]),
    ("打开{name}文件", "打开12文件", [("{name}", WORD)]),
    # with what is written together with it, or stands around it,
    ("%dKB of v{n} used", "12 of 12 used", [("%dKB", WORD), ("v{n}", WORD)]),
    ('Open "{file}" now', "Open 12 now", [('"{file}"', WORD)]),
    ("the <b>{x}</b> dog", "the 12 dog", [("<b>{x}</b>", WORD)]),
    ("{first} {last} sleeps", "12 sleeps", [("{first} {last}", WORD)]),
    ("{a}, {b} and {c}", "12 and 12", [("{a}, {b}", WORD), ("{c}", WORD)]),
    # and where signs set it apart nothing,
    ("Hello, {name}!", "Hello!", [(", {name}", ALONE)]),
    ("Hello, {name}, welcome", "Hello, welcome", [(", {name}", ALONE)]),
    ("File: %s", "File", [(": %s", ALONE)]),
    ("%s: no file", "no file", [("%s:", ALONE)]),
    ("{name}, come.", "come.", [("{name},", ALONE)]),
    ("See (%s) now", "See now", [("(%s)", ALONE)]),
    ("See (%s).", "See.", [("(%s)", ALONE)]),
    ("Really? %s", "Really?", [("%s", ALONE)]),
    ("The dog. https://a.org", "The dog.", [("https://a.org", ALONE)]),
    # as tags do.
    ("<b>big</b> dog", "big dog", [("<b>", OPEN), ("</b>", CLOSE)]),
    ("A <b>dog</b>, {x}", "A dog", [("<b>", OPEN), ("</b>", CLOSE), (", {x}", ALONE)]),
    ("Say &quot;Save as&quot; now", "Say Save as now", [("&quot;", OPEN), ("&quot;", CLOSE)]),
    ("One.<br/>Two", "One. Two", [("<br/>", ALONE)]),
    ("a <br> b", "a b", [("<br>", ALONE)]),
    ("<b>big dog", "big dog", [("<b>", ALONE)]),
    ("big</b> dog", "big dog", [("</b>", ALONE)]),
    ("A &amp; B", "A B", [("&amp;", ALONE)]),
    ("<B>a <i>b</b> c</i>", "a b c", [("<B>", OPEN), ("<i>", ALONE), ("</b>", CLOSE), ("</i>", ALONE)]),
    ("<a href='x'><b>Big</b> dog</a> {x}.", "Big dog 12.",
     [("<a href='x'>", OPEN), ("<b>", OPEN), ("</b>", CLOSE), ("</a>", CLOSE), ("{x}", WORD)]),
])
def test_what_is_left(line, text, marks):
    bare = StrippedText.of(line)
    assert (bare.text, [(mark.text, mark.kind) for mark in bare.marks]) == (text, marks)
    for number, mark in enumerate(bare.marks):
        assert text[mark.start:mark.end] == (STAND_IN if mark.kind == WORD else "")
        other = bare.marks[mark.partner]
        assert other.partner == number
        assert {mark.kind, other.kind} in ({OPEN, CLOSE}, {WORD}, {ALONE})


def test_where_they_stood():
    bare = StrippedText.of("Open <b>%s big</b> files, {name}!")
    assert bare.text == "Open 12 big files!"
    assert [(mark.start, mark.end, mark.before, mark.after) for mark in bare.marks] == [
        (5, 5, " ", ""), (5, 7, " ", " "), (11, 11, "g", " "), (17, 17, "s", "!")]
    assert [mark.partner for mark in bare.marks] == [2, 1, 0, 3]


def test_none_stands_behind_a_sign_that_was_behind_it():
    for line in ("the dog (%s) <br/>.", "the dog <br/>, a cat"):
        assert [mark.start for mark in StrippedText.of(line).marks] == [7]


@pytest.mark.parametrize("line", ["a" * 40_000 + " %s", "-" * 40_000 + "x %s", "x" + " " * 40_000 + "x %s."])
def test_a_long_line_takes_no_longer_than_its_length(line):
    begin = time.process_time()
    assert len(StrippedText.of(line).marks) == 1
    assert time.process_time() - begin < 1


@given(st.one_of(SIGNS, TAGGED))
def test_nothing_is_lost(line):
    bare = StrippedText.of(line)
    assert [one for mark in bare.marks for one in find_placeholders(line) if one in mark.text] or not find_placeholders(line)
    whole = sorted("".join(mark.text for mark in bare.marks) + bare.text)
    stand_ins = sum(mark.kind == WORD for mark in bare.marks)
    assert [one for one in whole if not one.isspace()] == sorted(
        [one for one in line if not one.isspace()] + [*STAND_IN] * stand_ins)
    starts = [mark.start for mark in bare.marks]
    assert starts == sorted(starts)
    assert all(0 <= mark.start <= mark.end <= len(bare.text) for mark in bare.marks)
    assert bare.text == bare.text.rstrip()
