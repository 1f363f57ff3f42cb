"""Words point at the right characters, and every token belongs to one of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import phrasebook
from regard.data.tokenizer.interface import Span, Word, find_units, group_tokens


def test_units_are_the_words_of_the_phrasebook():
    for pair in phrasebook.pairs(500, clauses=(1, 3)):
        assert tuple(find_units(pair.source)) == pair.source_offsets
        assert tuple(find_units(pair.target)) == pair.target_offsets


@pytest.mark.parametrize(("text", "expected"), [
    ("we're don't dogs' 'quoted'", "we|'re|don|'t|dogs|'|'|quoted|'"),
    ("L'homme qu\u2019il aujourd'hui", "L'|homme|qu\u2019|il|aujourd'hui"),
    ("3.5 1,000 1. a.b x_y", "3.5|1,000|1|.|a|.|b|x_y"),
    ("well-known - a--b", "well-known|-|a|--|b"),
    ("Stop!!! ... ?! (x)", "Stop|!!!|...|?|!|(|x|)"),
    ("你好,world", "你|好|,|world"),
    ("หมา กิน", "ห|ม|า|กิ|น"),
    ("हिन्दी भाषा", "हिन्दी|भाषा"),
    ("e\u0301te\u0301 a", "e\u0301te\u0301|a"),
    ("👨\u200d👩\u200d👧👍🏽 🇩🇪🇫🇷x", "👨\u200d👩\u200d👧|👍🏽|🇩🇪|🇫🇷|x"),
    ("نمی\u200cخواهم", "نمی\u200cخواهم"),
    ("a\xa0b\u200bc\u3000d\n", "a|b|c|d"),
    ("\u0301a", "\u0301|a"),
    ("한국어를 배워요", "한국어를|배워요"),
    ("", ""), (" \n", ""),
])
def test_units(text, expected):
    assert [text[start:end] for start, end in find_units(text)] == [part for part in expected.split("|") if part]


def test_units_that_share_a_token_are_one_word():
    assert group_tokens("ab, c", [Span(0, 1), Span(1, 3), Span(3, 5)]) == [Word(0, 3, 0, 1), Word(4, 5, 2, 2)]
    assert group_tokens("你好吗", [Span(0, 2), Span(2, 3)]) == [Word(0, 2, 0, 0), Word(2, 3, 1, 1)]


def test_the_bytes_of_a_character_are_one_word():
    assert group_tokens("你好", [Span(0, 1)] * 3 + [Span(1, 2)] * 3) == [Word(0, 1, 0, 2), Word(1, 2, 3, 5)]


def test_white_space_goes_to_the_word_that_follows_or_else_to_the_last():
    assert group_tokens("a  b ", [Span(0, 1), Span(1, 2), Span(2, 4), Span(4, 5)]) == [Word(0, 1, 0, 0), Word(3, 4, 1, 3)]
    assert group_tokens("a", [Span(0, 0), Span(0, 1)]) == [Word(0, 1, 0, 1)]
    assert group_tokens("  ", [Span(0, 1), Span(1, 2)]) == []
    assert group_tokens("", []) == []


def test_tokens_that_are_apart_belong_to_no_word():
    spans = [Span(0, 0), Span(0, 1), Span(1, 3), Span(3, 3)]
    assert group_tokens("a b", spans, [True, False, False, True]) == [Word(0, 1, 1, 1), Word(2, 3, 2, 2)]


@given(data=st.data())
def test_units_cover_all_but_white_space(texts, data):
    text = data.draw(texts)
    reached = 0
    for start, end in find_units(text):
        assert reached <= start < end
        assert not text[reached:start].replace("\u200b", "").strip()
        reached = end
    assert not text[reached:].replace("\u200b", "").strip()


@given(data=st.data())
def test_words_divide_the_tokens_of_every_tokenizer(tokenizer, texts, data):
    text = data.draw(texts)
    spans, words = tokenizer.spans(text), tokenizer.words(text)
    if words:
        tokens = [token for word in words for token in range(word.first_token, word.last_token + 1)]
        assert tokens == [*range(len(spans))]
    else:
        assert not text.replace("\u200b", "").strip()
    for word in words:
        shown = text[word.start:word.end]
        assert shown
        assert shown[0] != " "
        assert shown[-1] != " "
        within = spans[word.first_token:word.last_token + 1]
        assert min(span.start for span in within) <= word.start
        assert max(span.end for span in within) >= word.end
