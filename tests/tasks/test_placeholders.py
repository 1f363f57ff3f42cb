"""Placeholders: what is one, and texts without them."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.tasks.placeholders import (
    ALONE,
    CLOSE,
    OPEN,
    STAND_IN,
    WORD,
    CodedText,
    StrippedText,
    TextPiece,
    find_placeholders,
    join_pieces,
    split_at_placeholders,
    split_lines,
    split_pieces,
)

SIGNS = st.text("%s{}$<>/ab1 &;#x@.:w'-(n)d\n", max_size=24)


@pytest.mark.parametrize(("text", "want"), [
    ("open %s now", ["%s"]),
    ("%(name)d of %1$s, %-5.2f %05d %lu %@ %%", ["%(name)d", "%1$s", "%-5.2f", "%05d", "%lu", "%@", "%%"]),
    ("%1 and %L2", ["%1", "%L2"]),
    ("%APPDATA% or $HOME", ["%APPDATA%", "$HOME"]),
    ("{name} {0} {} {{x}} ${x} %{y} {0:.2f}", ["{name}", "{0}", "{}", "{{x}}", "${x}", "%{y}", "{0:.2f}"]),
    ("{n, plural, one {# file} other {# files}}!", ["{n, plural, one {# file} other {# files}}"]),
    ('<b>x</b> <a href="https://a.b/{0}">q</a><br/>', ["<b>", "</b>", '<a href="https://a.b/{0}">', "</a>", "<br/>"]),
    ("<!-- a %s --> &amp; &#160; &#xA0;", ["<!-- a %s -->", "&amp;", "&#160;", "&#xA0;"]),
    ("see https://x.org/a?b=%s. Or (www.a.de), me@a.org!", ["https://x.org/a?b=%s", "www.a.de", "me@a.org"]),
    ("100% sure, 50%. 3%, $5, 5 < 6 and 7 > 3, A & B; a@b", []),
    ("", []),
])
def test_what_is_found(text, want):
    assert find_placeholders(text) == want
    assert "".join("".join(piece) for piece in split_pieces(text)) == text
    texts, marks = split_at_placeholders(text)
    assert marks == want
    assert "".join(one + mark for one, mark in zip(texts, [*marks, ""], strict=True)) == text


@pytest.mark.parametrize("part", ["{", "{a", "{{}", "%", "a.", "<a", "<!--", "http://", "a@", "%(", "%0", "0", "&a",
                                  "$a"])
def test_long_texts_take_little_time(part):
    begin = time.process_time()
    find_placeholders(f"%{part * 100_000}")
    assert time.process_time() - begin < 2.0


def test_codes_stand_for_placeholders():
    hidden = CodedText.of("{a}: <b>no</b>")
    assert hidden.text == "X1: X2noX3"
    assert hidden.restore("X1 : X2nonX3 !") == "{a} : <b>non</b> !"
    for lost in ("X1 X2", "X1 X3 X2", "X1 X2 X3 X3", "X1 X2 X34", "x1 x2 x3", ""):
        assert hidden.restore(lost) is None
    assert CodedText.of("X2 of {a}").text == "X2 of Q1"
    assert CodedText.of("X1 Q1 Z1 K1 J1 W1 {a}") is None


def test_pieces_leave_signs_and_space_where_they_are():
    assert split_pieces("Delete {n} files? ") == [TextPiece("", "Delete", " "), TextPiece("{n}"),
                                                  TextPiece(" ", "files?", " ")]
    assert split_pieces("(%s), 5") == [TextPiece("("), TextPiece("%s"), TextPiece("), 5")]


def test_what_looks_like_a_placeholder_goes():
    parts = split_pieces("open {n} files")
    assert join_pieces(parts, ["ouvrir", "fichiers"]) == "ouvrir {n} fichiers"
    assert join_pieces(parts, ["ou{x}vrir {", "{{}a} <b>"]) == "ouvrir { {n} "
    assert join_pieces(split_pieces("a%sb"), ["100%", "s"]) == "100%ss"  # %%s would be another
    assert join_pieces(split_pieces("ahttp://x"), ["n"]) == "nhttp://x"


@given(SIGNS, st.lists(SIGNS, min_size=30, max_size=30))
def test_joined_texts_have_the_placeholders_of_the_source(text, cores):
    parts = split_pieces(text)
    assert "".join("".join(part) for part in parts) == text
    found = join_pieces(parts, cores)
    assert found is None or find_placeholders(found) == find_placeholders(text)


@given(SIGNS)
def test_hidden_and_shown_is_the_text(text):
    hidden = CodedText.of(text)
    assert hidden.restore(hidden.text) in (text, None)  # None where a digit follows a code
    assert CodedText.of("say {a} and %s").restore("say X1 and X2") == "say {a} and %s"


@given(SIGNS)
def test_lines_are_cut_between_placeholders(text):
    parts = split_lines(text)
    assert "".join(parts) == text
    assert len(parts) % 2 == 1
    assert [one for line in parts[::2] for one in find_placeholders(line)] == find_placeholders(text)


def test_lines_and_their_breaks():
    assert split_lines("a\r\nb\n\nc <a\nb> d\n") == ["a", "\r\n", "b", "\n", "", "\n", "c <a\nb> d", "\n", ""]


PLACELESS_SIGNS = st.text("%s{}$<>/ab1 &;#x@.:w'-(n)d\n,!\"", max_size=30)
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


@given(st.one_of(PLACELESS_SIGNS, TAGGED))
def test_nothing_is_lost(line):
    bare = StrippedText.of(line)
    placeholders = find_placeholders(line)
    assert [one for mark in bare.marks for one in placeholders if one in mark.text] or not placeholders
    whole = sorted("".join(mark.text for mark in bare.marks) + bare.text)
    stand_ins = sum(mark.kind == WORD for mark in bare.marks)
    assert [one for one in whole if not one.isspace()] == sorted(
        [one for one in line if not one.isspace()] + [*STAND_IN] * stand_ins)
    starts = [mark.start for mark in bare.marks]
    assert starts == sorted(starts)
    assert all(0 <= mark.start <= mark.end <= len(bare.text) for mark in bare.marks)
    assert bare.text == bare.text.rstrip()
