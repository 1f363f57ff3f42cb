"""Texts and labels on lines: the text is as it was, the label without the space around it, and bad lines are named."""

import pytest

from regard.data.sources.text import DataError, InputFile
from regard.data.sources.tsv import read_labelled_texts


def read(path, data):
    path.write_bytes(data)
    return list(read_labelled_texts(InputFile(path)))


def test_lines(tmp_path):
    path = tmp_path / "a.tsv"
    found = read(path, '"Quoted",\tgood \r\n\tempty\n two  spaces \t\u00e9\n'.encode())
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
        read(tmp_path / "a.tsv", data)
