"""Tab-separated pairs: exactly two columns, or those chosen."""

import pytest

from regard.data.sources import tsv
from regard.data.sources.text import InputFile, Location, SentencePair, TargetSlot


def pairs(path, source=None, target=None):
    return list(tsv.read_pairs(InputFile(path), source, target))


def test_two_columns(file):
    path = file("a.tsv", 'one\tun\r\n"two"\t "deux\n\t\nthree\u2028\ttrois')
    assert pairs(path) == [SentencePair("one", "un", Location(path, 1)), SentencePair('"two"', ' "deux', Location(path, 2)),
                           SentencePair("", "", Location(path, 3)), SentencePair("three\u2028", "trois", Location(path, 4))]


def test_languages_choose_no_columns(file):
    path = file("a.tsv", "one\tun\n")
    assert pairs(path, "en", "fr") == pairs(path)


@pytest.mark.parametrize(("line", "got"), [
    ("a", "1 column"), ("a\tb\tc", "3 columns"), ("", "1 column"), ("a\t\tb", "3 columns")])
def test_a_tab_too_many_or_too_few(file, refused, line, got):
    path = file("a.tsv", f"x\ty\n{line}\n")
    for names in ((), ("en", "fr")):
        assert refused(lambda names=names: pairs(path, *names)).startswith(f"a.tsv:2: {got} instead of 2: ")


def test_chosen_columns(file, refused):
    path = file("a.tsv", "a\tb\tc\td\n")
    assert [pair[:2] for pair in pairs(path, "4", "2")] == [("d", "b")]
    assert [pair[:2] for pair in pairs(path, "1", "2")] == [("a", "b")]
    assert refused(lambda: pairs(path, "1", "5")).startswith("a.tsv:1: 4 columns, but column 5 was chosen.")


@pytest.mark.parametrize("names", [("1", "1"), ("0", "1"), ("1", "fr"), ("01", "1"), ("00", "1")])
def test_columns_that_cannot_be_chosen(names):
    with pytest.raises(ValueError, match="`source, target` must be two different columns, counted from 1"):
        tsv.parse_columns(*names)


def read(path, *names):
    return [(piece.source, piece.target, piece.raw) if isinstance(piece, TargetSlot) else piece
            for piece in tsv.parse_document(InputFile(path), *(names or (None, None))) if piece != b""]


def test_pieces(file):
    path = file("a.tsv", "one\tun\r\ntwo\n")
    assert read(path) == [b"one\t", ("one", "un", b"un"), b"\r\n", b"two\t", ("two", "", b""), b"\n"]
    path = file("b.tsv", "a\tb\tc\n")
    assert read(path, "3", "1") == [("c", "a", b"a"), b"\tb\tc", b"\n"]
    assert read(path, "1", "4") == [b"a\tb\tc\t", ("a", "", b""), b"\n"]


@pytest.mark.parametrize(("line", "names"), [
    ("a\tb\tc", (None, None)), ("a", ("1", "3")), ("a", ("2", "1")), ("a", ("3", "2"))])
def test_pieces_of_a_line_with_other_columns(file, refused, line, names):
    path = file("a.tsv", f"{line}\n")
    assert refused(lambda: tsv.parse_document(InputFile(path), *names)).startswith("a.tsv:1: ")
