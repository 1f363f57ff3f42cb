"""Characters and bytes: one id each, and bytes for a character that has none."""

import pytest

from regard.data.tokenizer.subwords import FIRST_BYTE, FIRST_PIECE, ByteTokenizer, CharacterTokenizer, byte_ids


def test_a_character_has_its_id_or_its_bytes():
    tokenizer = CharacterTokenizer(["a", " ", "é"])
    assert tokenizer.encode("a é") == [FIRST_PIECE, FIRST_PIECE + 1, FIRST_PIECE + 2]
    assert tokenizer.encode("axe\u0301語") == [FIRST_PIECE, *byte_ids("x"), FIRST_PIECE + 2, *byte_ids("語")]
    assert tokenizer.size == FIRST_PIECE + 3


def test_bytes_are_the_text_as_utf8():
    tokenizer = ByteTokenizer()
    assert tokenizer.encode("né\n") == [FIRST_BYTE + value for value in "né\n".encode()]
    assert tokenizer.size == FIRST_PIECE
    assert ByteTokenizer("line").decode(ByteTokenizer("line").encode(" a \n b")) == "a b"


@pytest.mark.parametrize("characters", [["ab"], ["a", "a"], ["▁"], [""]])
def test_what_are_no_characters(characters):
    with pytest.raises(ValueError, match="`characters` must be single characters other than ▁, each of them once"):
        CharacterTokenizer(characters)
