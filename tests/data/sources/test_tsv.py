"""Tab-separated pairs and labelled texts."""

import pytest

from regard.data.sources import tsv
from regard.data.sources.text import DataError, InputFile, Location, SentencePair, TargetSlot
from regard.data.sources.tsv import read_labelled_texts


def pairs(path, source=None, target=None):
    return list(tsv.read_pairs(InputFile(path), source, target))


def test_two_columns(file):
    path = file("a.tsv", 'one\tun\r\n"two"\t "deux\n\t\nthree\u2028\ttrois')
    assert pairs(path) == [SentencePair("one", "un", Location(path, 1)),
                           SentencePair('"two"', ' "deux', Location(path, 2)),
                           SentencePair("", "", Location(path, 3)),
                           SentencePair("three\u2028", "trois", Location(path, 4))]


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


def read_of_labelled(path, data):
    path.write_bytes(data)
    return list(read_labelled_texts(InputFile(path)))


def test_lines(tmp_path):
    path = tmp_path / "a.tsv"
    found = read_of_labelled(path, '"Quoted",\tgood \r\n\tempty\n two  spaces \t\u00e9\n'.encode())
    assert [(one.text, one.label, one.location.line) for one in found] == [
        ('"Quoted",', "good", 1), ("", "empty", 2), (" two  spaces ", "\u00e9", 3)]
    assert str(found[2].location) == f"{path}:3"


@pytest.mark.parametrize(("data", "message"), [
    (b"a\tb\nno tab\n", r"a.tsv:2: 1 column instead of 2: a text, a tab, a label"),
    (b"a\tb\tc\n", "a.tsv:1: 3 columns instead of 2"),
    (b"a\tb\n\n", "a.tsv:2: 1 column instead of 2"),
    (b"a\t \n", "a.tsv:1: There is no label after the tab"),
    (b"a\tb\n\xff\tc\n", "a.tsv:2: byte 1: 0xFF is not UTF-8"),
])
def test_a_bad_line_is_named(tmp_path, data, message):
    with pytest.raises(DataError, match=message):
        read_of_labelled(tmp_path / "a.tsv", data)
