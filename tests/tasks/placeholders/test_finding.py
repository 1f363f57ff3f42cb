"""Placeholders: what is found, hidden and cut, with what the joined text must hold for any pieces."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.tasks.placeholders import (
    CodedText,
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
    assert split_pieces("Delete {n} files? ") == [TextPiece("", "Delete", " "), TextPiece("{n}"), TextPiece(" ", "files?", " ")]
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
