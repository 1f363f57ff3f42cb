"""Words of a text, spans of decoded ids, and pairs of tokenizers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import phrasebook
from regard.data.tokenizer.interface import PairTokenizer, Span, Tokenizer, Word, find_units, group_tokens, hash_files
from regard.data.tokenizer.subwords import ByteTokenizer
from regard.special_tokens import SpecialTokens


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
    assert group_tokens("a  b ", [Span(0, 1), Span(1, 2), Span(2, 4), Span(4, 5)]) == [Word(0, 1, 0, 0),
                                                                                       Word(3, 4, 1, 3)]
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


def test_a_digest_depends_on_names_lengths_and_bytes_but_not_on_order():
    one = hash_files({"a": b"1", "b": b"2"})
    assert one == hash_files({"b": b"2", "a": b"1"})
    others = [{"a": b"12"}, {"a": b"2", "b": b"1"}, {"a": b"1", "c": b"2"}, {"a": b"1"}, {"a": b"1\nb", "": b"2"}]
    assert len({one, *map(hash_files, others)}) == len(others) + 1


def test_every_tokenizer_has_a_hash_of_its_own(tokenizers):
    assert len({tokenizer.sha256 for tokenizer in tokenizers.values()}) == len(tokenizers)
    for tokenizer in tokenizers.values():
        assert tokenizer.sha256 == hash_files(tokenizer.files())


def test_spans_by_decoding_alone_are_those_by_bytes(tokenizers, corpus):
    for tokenizer in tokenizers.values():
        for text in corpus[:20]:
            ids = tokenizer.encode(text)
            assert Tokenizer.decoded_spans(tokenizer, ids)[-1].end == len(tokenizer.decode(ids))
            pieces = [text[start:end] for start, end in Tokenizer.decoded_spans(tokenizer, ids)]
            ours = [text[start:end] for start, end in tokenizer.decoded_spans(ids)]
            assert "".join(pieces) == tokenizer.decode(ids)
            if text.isascii() and "<" not in text:
                assert pieces == ours


def test_a_joint_pair_has_the_files_of_one(tokenizers):
    one = tokenizers["unigram"]
    pair = PairTokenizer(one, one)
    assert pair.joint
    assert pair.files() == one.files()
    assert pair.sha256 == one.sha256


def test_a_separate_pair_has_the_files_of_both(tokenizers):
    pair = PairTokenizer(tokenizers["unigram"], tokenizers["bytes"])
    assert not pair.joint
    assert sorted(pair.files()) == ["tokenizer.source.model", "tokenizer.source.toml", "tokenizer.target.toml"]
    assert pair.sha256 == hash_files(pair.files())
    assert pair.sha256 != PairTokenizer(pair.target, pair.source).sha256


def test_a_source_has_an_end_behind_it_and_a_target_has_nothing_around_it(tokenizers):
    pair = PairTokenizer(tokenizers["unigram"], tokenizers["bytes"])
    texts = ["the big dog", "", "l'homme"]
    end = pair.source.special.end[0]
    assert pair.source_end == end
    assert pair.encode_sources(texts) == [[*pair.source.encode(text), end] for text in texts]
    assert pair.encode_targets(texts) == [pair.target.encode(text) for text in texts]
    assert not pair.target.special.ids() & {id_ for ids in pair.encode_targets(texts) for id_ in ids}


def test_a_source_without_an_end_is_refused():
    class Endless(ByteTokenizer):
        def __init__(self):
            super().__init__()
            self.special = SpecialTokens(padding=0)

    with pytest.raises(ValueError, match="`source` must be a tokenizer with an end"):
        PairTokenizer(Endless(), ByteTokenizer()).encode_sources(["a"])
