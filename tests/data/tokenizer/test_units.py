"""Tokens with labels, and their ids."""

import itertools

import pytest
import texting

from regard.data.tokenizer.subwords import FIRST_PIECE, ByteTokenizer, CharacterTokenizer
from regard.data.tokenizer.units import TokenEncoder, overlapping_windows, token_spans, window_starts


def test_every_character_has_one_id():
    tokenizer = CharacterTokenizer("ABX")
    encoder = TokenEncoder(tokenizer, "character")
    ids, first = encoder.encode("AXB?é▁\u0301A")
    unknown = tokenizer.special.unknown
    assert ids == [FIRST_PIECE, FIRST_PIECE + 2, FIRST_PIECE + 1, unknown, unknown, unknown, unknown, FIRST_PIECE]
    assert first == list(range(8))
    assert encoder.unknown("AX?éA?") == ["?", "é"]
    assert TokenEncoder(ByteTokenizer(), "character").encode("aé").ids == [*ByteTokenizer().encode("a"), unknown]


def test_words_are_encoded_one_by_one():
    tokenizer = texting.tokenizer()
    words = ["the", "dog", "sleeps", ".", "\u00a0", "zebra"]
    ids, first = TokenEncoder(tokenizer, "word").encode(words)
    for word, start, end in zip(words, first, [*first[1:], len(ids)], strict=True):
        assert ids[start:end] == (tokenizer.encode(word) or [tokenizer.special.unknown])
    assert TokenEncoder(tokenizer, "word").encode([]) == ([], [])


def test_subwords_are_refused_for_characters():
    with pytest.raises(ValueError, match=r"tokenizer\.kind=characters"):
        TokenEncoder(texting.tokenizer(), "character")


def test_tokens_of_a_text():
    text = " The cat's  dog.\n"
    assert [text[span.start:span.end] for span in token_spans(text, "word")] == ["The", "cat's", "dog."]
    split = [text[span.start:span.end] for span in token_spans(text, "word", split_punctuation=True)]
    assert split == ["The", "cat", "'s", "dog", "."]
    assert [text[span.start:span.end] for span in token_spans(text, "character")] == list(text)
    assert token_spans("", "word") == token_spans(" ", "word") == token_spans("", "character") == []


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 100])
def test_windows_hold_every_token_and_never_too_many_ids(limit):
    for sizes in itertools.product((1, 2), repeat=5):
        first, count = [sum(sizes[:at]) for at in range(5)], sum(sizes)
        if max(sizes) > limit:
            with pytest.raises(ValueError, match=str(limit)):
                window_starts(first, count, limit)
            continue
        windows = window_starts(first, count, limit)
        assert [token for start, end in windows for token in range(start, end)] == list(range(5))
        overlapping = overlapping_windows(first, count, limit)
        assert {token for start, end in overlapping for token in range(start, end)} == set(range(5))
        for start, end in (*windows, *overlapping):
            assert sum(sizes[start:end]) <= limit
            assert start < end
    assert overlapping_windows([0, 1, 2], 3, None) == [(0, 3)]
    assert overlapping_windows([], 0, 4) == window_starts([], 0, 4) == []


def test_overlapping_windows_begin_in_the_middle_of_each_other():
    first = list(range(20))
    assert overlapping_windows(first, 20, 8) == [(0, 8), (4, 12), (8, 16), (12, 20), (16, 20)]
