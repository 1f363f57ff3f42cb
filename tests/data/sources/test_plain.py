"""Two aligned files: every pair with its place, and counts that differ named at the end."""

import pytest

from regard.data.sources import text as plain
from regard.data.sources.text import DataError, InputFile, Location, SentencePair, TargetSlot, TextLine


def pairs(first, second):
    return plain.read_aligned_lines(InputFile(first), InputFile(second))


def test_lines_side_by_side(file):
    source, target = file("a.en", "one\n\n three\u2028\n"), file("a.fr.gz", "un\r\n\u00a0\r\ntrois\r\n")
    found = list(pairs(source, target))
    assert found == [SentencePair("one", "un", Location(source, 1)), SentencePair("", "\u00a0", Location(source, 2)),
                     SentencePair(" three\u2028", "trois", Location(source, 3))]


@pytest.mark.parametrize(("first", "second", "message"), [
    ("a\n" * 1200, "b\n" * 1198, "a.en has 1,200 lines, but a.fr has 1,198 lines."),
    ("a\n", "b\nb\nb", "a.fr has 3 lines, but a.en has 1 line."),
    ("", "b\n", "a.fr has 1 line, but a.en has 0 lines."),
    ("a\u2028a\n", "b\nb\n", "a.fr has 2 lines, but a.en has 1 line."),
])
def test_different_counts_are_named_at_the_end(file, refused, first, second, message):
    one, other = file("a.en", first), file("a.fr", second)
    assert refused(lambda: pairs(one, other)).startswith(message)


def test_what_has_a_partner_is_given_before_the_counts_differ(file):
    begun = pairs(file("a.en", "1\n2\n3\n"), file("a.fr", "1\n2\n"))
    assert [next(begun).source, next(begun).source] == ["1", "2"]
    with pytest.raises(DataError):
        next(begun)


def test_a_bad_byte_on_either_side_is_named(file, refused):
    good, bad = file("a.en", b"a\nb\n"), file("a.fr", b"a\n\xff\n")
    assert refused(lambda: pairs(good, bad)).startswith("a.fr:2: byte 1: 0xFF")
    assert refused(lambda: pairs(bad, good)).startswith("a.fr:2: byte 1: 0xFF")


def test_texts(file):
    path = file("a", "one\n\ntwo")
    assert list(plain.read_text_lines(InputFile(path))) == \
        [TextLine("one", Location(path, 1)), TextLine("", Location(path, 2)), TextLine("two", Location(path, 3))]


def test_pieces_keep_the_ends(file):
    pieces = list(plain.parse_document(InputFile(file("a", "one\r\n\ntwo"))))
    assert [piece.source if isinstance(piece, TargetSlot) else piece for piece in pieces] == \
        ["one", b"\r\n", "", b"\n", "two", b""]


@pytest.mark.parametrize(("text", "reason"), [
    ("a\nb", "line break"), ("a\r", "line break"), ("\0", "NUL"), ("\ud800", "surrogate")])
def test_a_target_must_be_one_line_of_text(text, reason):
    with pytest.raises(DataError, match=f"^f:3: .*{reason}"):
        plain.encode_line(Location("f", 3), text)


def test_a_target_may_have_what_breaks_lines_elsewhere():
    assert plain.encode_line(Location("f", 1), "a\u2028\rb\x85") == "a\u2028\rb\x85".encode()
