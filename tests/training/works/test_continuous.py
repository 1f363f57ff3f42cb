"""One continuous text: its pieces make it up, parts are exact, and its ids are those of the whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.sources.text import InputFile
from regard.data.tokenizer.subwords import ByteTokenizer
from regard.data.tokenizer.training import UnigramConfig, train_tokenizer
from regard.training.tasks.language import FILE_END, encode_pieces, read_pieces, slice_pieces

TEXT = "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n\n  Two spaces \u2581.\n"
letters = st.text(st.sampled_from("ab \n\u00e9"), max_size=30)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("texts")


@pytest.fixture(scope="module")
def subwords():
    lines = ["\n" + line for line in TEXT.split("\n")] * 20
    return train_tokenizer(lines, UnigramConfig(vocab_size=300, normalization="nfc")).tokenizer


@given(st.lists(letters, min_size=1, max_size=3))
def test_pieces_make_up_the_text(place, texts):
    inputs = []
    for number, text in enumerate(texts):
        (place / f"{number}.txt").write_bytes(text.encode())
        inputs.append(InputFile(place / f"{number}.txt"))
    found = list(read_pieces(inputs))
    assert "".join("|" if piece is FILE_END else piece for piece in found) == "|".join(texts)
    assert all(piece.count("\n") == piece.startswith("\n") for piece in found if piece is not FILE_END)


def test_line_ends_of_other_systems(place):
    (place / "crlf.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree\r\n")
    assert "".join(read_pieces([InputFile(place / "crlf.txt")])) == "one\ntwo\rthree\n"


@given(st.lists(st.none() | letters.filter(bool), max_size=8), st.integers(0, 60), st.integers(0, 60))
def test_a_part_is_a_part_of_the_characters(given, first, more):
    whole = "".join(piece for piece in given if piece is not FILE_END)
    found = list(slice_pieces(iter(given), first, first + more))
    assert "".join(piece for piece in found if piece is not FILE_END) == whole[first:first + more]
    assert found[:1] != [FILE_END]  # before the first characters nothing ends
    assert "" not in found


def test_files_that_end_inside_a_part_are_told():
    given = ["ab", FILE_END, "cd", FILE_END, "ef"]
    assert list(slice_pieces(given, 0, 4)) == ["ab", FILE_END, "cd"]
    assert list(slice_pieces(given, 1, 5)) == ["b", FILE_END, "cd", FILE_END, "e"]
    assert list(slice_pieces(given, 2, 4)) == ["cd"]


@given(letters)
def test_the_ids_are_those_of_the_whole_text(subwords, place, text):
    (place / "whole.txt").write_bytes((TEXT + text).encode())
    ids = [id_ for some in encode_pieces(subwords, read_pieces([InputFile(place / "whole.txt")])) for id_ in some]
    assert subwords.decode(ids) == subwords.normalize(TEXT + text)
    assert ids == subwords.encode(TEXT + text)


def test_between_files_stands_the_end(subwords):
    for tokenizer in (subwords, ByteTokenizer()):
        ids = list(encode_pieces(tokenizer, ["a", FILE_END, "b"]))
        assert ids == [tokenizer.encode("a"), list(tokenizer.special.end), tokenizer.encode("b")]
