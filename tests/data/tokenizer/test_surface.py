"""Every tokenizer of our own: exact for all of Unicode, and no text makes a special id."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.tokenizer.subwords import FIRST_BYTE, FIRST_PIECE, SPACE_SYMBOL, SPECIAL_IDS, SPECIAL_PIECES


@given(data=st.data())
def test_decoding_gives_the_normalised_text(tokenizer, texts, data):
    text = data.draw(texts)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == tokenizer.normalise(text)
    assert not SPECIAL_IDS.ids().intersection(ids)
    assert max(ids, default=0) < tokenizer.size


def test_every_character_there_is(tokenizer):
    codes = [code for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    texts = ["".join(map(chr, codes[at:at + 1024])) for at in range(0, len(codes), 1024)]
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        assert tokenizer.decode(ids) == tokenizer.normalise(text)
        assert min(ids) > max(SPECIAL_IDS.ids())


@pytest.mark.parametrize("typed", [*SPECIAL_PIECES, "<0x41>", "<0xE2>", SPACE_SYMBOL, "a▁b", "▁▁", "⁇", "</s></s>", "<s>a"])
def test_what_is_typed_is_never_a_control_token(tokenizer, typed):
    for text in (typed, f"a {typed} b", f"a{typed}b"):
        ids = tokenizer.encode(text)
        assert not SPECIAL_IDS.ids().intersection(ids)
        assert tokenizer.decode(ids) == text
        sampled = tokenizer.sample(text, alpha=0.3, seed=1)
        assert not SPECIAL_IDS.ids().intersection(sampled)
        assert tokenizer.decode(sampled) == text


def test_a_script_that_was_never_seen_is_cut_into_bytes(tokenizer):
    ids = tokenizer.encode("ꦲꦏ")
    assert bytes(id_ - FIRST_BYTE for id_ in ids if FIRST_BYTE <= id_ < FIRST_PIECE).decode() == "ꦲꦏ"


@given(data=st.data())
def test_many_are_cut_as_one_is(tokenizer, texts, data):
    several = data.draw(st.lists(texts, max_size=3))
    alone = [tokenizer.encode(text) for text in several]
    assert tokenizer.encode_batch(several) == alone
    filler = ["", "the dog"] * 25  # more than are cut one by one
    assert tokenizer.encode_batch([*filler, *several])[len(filler):] == alone


@given(data=st.data())
def test_spans_point_at_the_right_characters(tokenizer, texts, data):
    text = data.draw(texts)
    ids, spans = tokenizer.encode(text), tokenizer.spans(text)
    assert len(spans) == len(ids)
    reached = last = 0
    for at, (id_, (start, end)) in enumerate(zip(ids, spans, strict=True)):
        assert last <= start <= end <= len(text)
        assert not text[reached:start].strip()  # nothing but white space, which normalising took away, is in no span
        surface = tokenizer.surfaces[id_].removeprefix(tokenizer.prefix.encode() if at == 0 else b"")
        whole = tokenizer.normalise(f"x{text[start:end]}x")[1:-1].encode()  # white space at the ends stays within
        assert surface in whole
        if spans.count((start, end)) == 1:  # not a part of a character, nor of several that changed together
            alone = all(start >= other.end or end <= other.start for other in (*spans[:at], *spans[at + 1:]))
            assert not alone or surface == whole
        reached, last = max(reached, end), start
    assert not text[reached:].strip()


def test_spans_by_hand(tokenizers):
    text = "  The  do\u0301g 語▁x"
    for name in ("unigram", "bpe"):
        tokenizer = tokenizers[name]
        shown = [(piece, text[start:end]) for piece, (start, end) in
                 zip(tokenizer.pieces(tokenizer.encode(text)), tokenizer.spans(text), strict=True)]
        assert shown[0] == ("▁The", "The")
        assert ("<0xC3>", "o\u0301") in shown
        assert ("<0xB3>", "o\u0301") in shown
        assert shown[-4:-1] == [("<0xE2>", "▁"), ("<0x96>", "▁"), ("<0x81>", "▁")]
        assert [text[word.start:word.end] for word in tokenizer.words(text)][:1] == ["The"]
    characters = tokenizers["characters"]
    assert [tuple(span) for span in characters.spans("a e\u0301")] == [(0, 1), (1, 2), (2, 4)]
    assert characters.pieces(characters.encode("a b")) == ["a", "▁", "b"]
    assert tokenizers["bytes"].spans("né") == [(0, 1), (1, 2), (1, 2)]


def test_words_of_the_raw_line(tokenizers):
    text = "The  big dog's 語言."
    for name in ("unigram", "bpe", "characters", "bytes"):
        found = [text[word.start:word.end] for word in tokenizers[name].words(text)]
        assert found in (["The", "big", "dog", "'s", "語", "言", "."], ["The", "big", "dog", "'s", "語言", "."])


@given(ids=st.data())
def test_any_ids_can_be_decoded_and_shown(tokenizer, ids):
    ids = ids.draw(st.lists(st.integers(0, tokenizer.size - 1), max_size=12))
    text, spans = tokenizer.decode(ids), tokenizer.decoded_spans(ids)
    text.encode()
    assert len(tokenizer.pieces(ids)) == len(spans) == len(ids)
    reached = 0
    for id_, (start, end) in zip(ids, spans, strict=True):
        assert start <= reached <= max(end, reached) <= len(text)
        if id_ in SPECIAL_IDS.ids():
            assert start == end
        reached = max(end, reached)
    assert reached == len(text)
    for word in tokenizer.decoded_words(ids):
        assert 0 <= word.start < word.end <= len(text)


def test_special_ids_are_skipped_and_belong_to_no_word(tokenizers):
    tokenizer = tokenizers["unigram"]
    ids = [SPECIAL_IDS.start, *tokenizer.encode("the dog"), SPECIAL_IDS.mask, *SPECIAL_IDS.end, SPECIAL_IDS.padding]
    assert tokenizer.decode(ids) == "the dog"
    words = tokenizer.decoded_words(ids)
    assert [("the dog"[word.start:word.end]) for word in words] == ["the", "dog"]
    assert words[0].first_token == 1
    assert words[-1].last_token == len(ids) - 4
    assert tokenizer.pieces([0, 1, 2, 3, 4, 5 + 0xE2]) == [*SPECIAL_PIECES, "<0xE2>"]


def test_bytes_that_are_no_text_become_replacement_characters(tokenizer):
    ids = [FIRST_BYTE + value for value in b"a\xff\xe2\x96b"]
    assert tokenizer.decode(ids) == "a\ufffd\ufffd\ufffdb"
    assert tokenizer.decoded_spans(ids) == [(at, at + 1) for at in range(5)]


def test_a_space_in_front_of_a_continuation_is_the_prefix_of_a_text(tokenizers):
    tokenizer = tokenizers["unigram-exact"]
    for text in (" x", "  x", "x ", " ", "\n x"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("") == []


@pytest.mark.parametrize("ids", [[-1], [10**6]])
def test_ids_that_are_none(tokenizer, ids):
    for call in (tokenizer.decode, tokenizer.pieces, tokenizer.decoded_spans):
        with pytest.raises(ValueError, match=f"`ids` must be at least 0 and below {tokenizer.size}.*{ids[0]}"):
            call(ids)


def test_what_is_no_text(tokenizer):
    for call in (tokenizer.encode, tokenizer.spans, tokenizer.words, tokenizer.normalise,
                 lambda text: tokenizer.encode_batch(["good", text]),
                 lambda text: tokenizer.sample(text, alpha=0.1, seed=0)):
        with pytest.raises(ValueError, match=r"lone surrogate U\+DC80 at character 1"):
            call("a\udc80")
        with pytest.raises(ValueError, match="`text` must be text, but is a NoneType"):
            call(None)
