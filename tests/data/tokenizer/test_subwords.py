"""Lossless tokenizers: round trips, spans, normalisation, and subword sampling."""

import io
import math
import pickle
import random
import sys
import threading
import unicodedata
from collections import Counter

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from regard.data.tokenizer.subwords import (
    FIRST_BYTE,
    FIRST_PIECE,
    MULTITHREADED,
    NORMALIZATIONS,
    SPACE_SYMBOL,
    SPECIAL_IDS,
    SPECIAL_PIECES,
    BpeSampler,
    ByteTokenizer,
    CharacterTokenizer,
    ScoredPiece,
    SentencePieceTokenizer,
    UnigramSampler,
    byte_ids,
    trace_normalization,
)


@given(data=st.data())
def test_decoding_gives_the_normalised_text(tokenizer, texts, data):
    text = data.draw(texts)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == tokenizer.normalize(text)
    assert not SPECIAL_IDS.ids().intersection(ids)
    assert max(ids, default=0) < tokenizer.size


@pytest.mark.thorough
def test_every_character_there_is(tokenizer):
    codes = [code for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    texts = ["".join(map(chr, codes[at:at + 1024])) for at in range(0, len(codes), 1024)]
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        assert tokenizer.decode(ids) == tokenizer.normalize(text)
        assert min(ids) > max(SPECIAL_IDS.ids())


@pytest.mark.parametrize("typed",
                         [*SPECIAL_PIECES, "<0x41>", "<0xE2>", SPACE_SYMBOL, "a▁b", "▁▁", "⁇", "</s></s>", "<s>a"])
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
        whole = tokenizer.normalize(f"x{text[start:end]}x")[1:-1].encode()  # white space at the ends stays within
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
    for call in (tokenizer.encode, tokenizer.spans, tokenizer.words, tokenizer.normalize,
                 lambda text: tokenizer.encode_batch(["good", text]),
                 lambda text: tokenizer.sample(text, alpha=0.1, seed=0)):
        with pytest.raises(ValueError, match=r"lone surrogate U\+DC80 at character 1"):
            call("a\udc80")
        with pytest.raises(ValueError, match="`text` must be text, but is a NoneType"):
            call(None)


def foreign(**options):
    """A model as others train them."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a text of words", "another text"] * 20), model_writer=written, minloglevel=2,
        hard_vocab_limit=False, vocab_size=300, **options)
    return written.getvalue()


OURS = {"byte_fallback": True, "pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3, "control_symbols": ["<mask>"],
        "normalization_rule_name": "identity", "add_dummy_prefix": False, "remove_extra_whitespaces": False}


def test_a_model_with_our_layout_is_taken():
    tokenizer = SentencePieceTokenizer(foreign(**OURS), "unigram", "line")
    assert tokenizer.decode(tokenizer.encode("a  ﬁne text")) == "a ﬁne text"


@pytest.mark.parametrize("change", [
    {"byte_fallback": False}, {"pad_id": 3, "eos_id": 0}, {"control_symbols": []}, {"add_dummy_prefix": True},
    {"normalization_rule_name": "nmt_nfkc"}, {"remove_extra_whitespaces": True},
])
def test_a_model_that_would_change_text_is_refused(change):
    with pytest.raises(ValueError, match="`data` must be a model that regard trained, but is one of another layout"):
        SentencePieceTokenizer(foreign(**(OURS | change)), "unigram", "line")


@pytest.mark.parametrize("data", [b"", b"junk", pickle.dumps([1, 2, 3])])
def test_what_is_no_model(data, capfd):
    with pytest.raises(ValueError, match="`data` must be a sentencepiece model"):
        SentencePieceTokenizer(data, "unigram", "line")
    assert capfd.readouterr().err == ""


def test_what_it_was_trained_as_must_be_known(tokenizers):
    with pytest.raises(ValueError, match='`model` must be one of "unigram", "bpe", but is "bep"'):
        SentencePieceTokenizer(tokenizers["bpe"].data, "bep", "line")


def test_several_threads_give_what_one_gives(tokenizers, corpus):
    texts = (corpus * (MULTITHREADED // len(corpus) + 1))[:MULTITHREADED + 7]
    for name in ("unigram", "bpe"):
        assert tokenizers[name].encode_batch(texts) == [tokenizers[name].encode(text) for text in texts]


def test_threads_may_share_a_tokenizer(tokenizers, corpus):
    tokenizer, results = tokenizers["unigram"], {}

    def work(number):
        results[number] = [(tokenizer.encode(text), tokenizer.sample(text, alpha=0.1 + number % 2, seed=0))
                           for text in corpus[:150]]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results[0] == results[2] != results[1] == results[3]


def test_it_can_be_sent_to_another_process(tokenizers, corpus):
    for tokenizer in tokenizers.values():
        other = pickle.loads(pickle.dumps(tokenizer))
        assert other.encode_batch(corpus[:5]) == tokenizer.encode_batch(corpus[:5])
        assert other.sha256 == tokenizer.sha256


@pytest.mark.thorough
def test_a_line_of_a_megabyte(tokenizers):
    for text in ("the big dog " * 80_000, "x" * 1_000_000, "語" * 300_000):
        for name in ("unigram", "bpe"):
            ids = tokenizers[name].encode(text)
            assert tokenizers[name].decode(ids) == text.strip()


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


NAMES = [*NORMALIZATIONS]
NO_BREAK = "\xa0\u2007\u202f"


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_a_result_is_its_own_result(name, texts, data):
    text = data.draw(texts)
    normalise = NORMALIZATIONS[name]
    assert normalise(normalise(text)) == normalise(text)


@given(data=st.data())
def test_each_rule_by_another_road(texts, data):
    text = data.draw(texts)
    composed = unicodedata.normalize("NFC", text)
    blank = [" " if c.isspace() and c not in NO_BREAK else c for c in composed]
    assert NORMALIZATIONS["exact"](text) == text
    assert NORMALIZATIONS["nfc"](text) == composed
    assert NORMALIZATIONS["line"](text) == " ".join(filter(None, "".join(blank).split(" ")))


@pytest.mark.thorough
def test_white_space_is_what_python_says_less_the_no_break_spaces():
    folded = {chr(code) for code in range(sys.maxunicode + 1)
              if not 0xD800 <= code < 0xE000 and NORMALIZATIONS["line"](f"a{chr(code)}b") == "a b"}
    assert folded == {c for c in map(chr, range(sys.maxunicode + 1)) if c.isspace()} - {*NO_BREAK}


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_the_trace_has_the_same_text_and_points_at_its_characters(name, texts, data):
    text = data.draw(texts)
    traced = trace_normalization(name, text)
    assert traced.text == NORMALIZATIONS[name](text)
    assert len(traced.spans) == len(traced.text)
    reached = 0
    for at, (start, end) in enumerate(traced.spans):
        assert 0 <= start < end <= len(text)
        together = [other for other, span in enumerate(traced.spans) if span == (start, end)]
        part = "".join(traced.text[other] for other in together)
        assert part == " " or NORMALIZATIONS["exact" if name == "exact" else "nfc"](text[start:end]) == part
        assert together == [*range(together[0], together[-1] + 1)]
        if at == together[0]:
            skipped = text[reached:start]
            assert not skipped or (name == "line" and skipped.isspace())
            assert start >= reached
            reached = end
    assert not text[reached:] or (name == "line" and text[reached:].isspace())


@pytest.mark.parametrize(("text", "result", "spans"), [
    ("e\u0301a", "éa", [(0, 2), (2, 3)]),
    ("\u1100\u1161\u11a8\u1100", "각\u1100", [(0, 3), (3, 4)]),
    ("a \t b", "a b", [(0, 1), (1, 4), (4, 5)]),
    ("  e\u0301 \n", "é", [(2, 4)]),
    ("q\u0307\u0323x", "q\u0323\u0307x", [(0, 3), (0, 3), (0, 3), (3, 4)]),
    ("n\xa0!", "n\xa0!", [(0, 1), (1, 2), (2, 3)]),
    (" \t\n", "", []),
])
def test_examples(text, result, spans):
    traced = trace_normalization("line", text)
    assert (traced.text, [tuple(span) for span in traced.spans]) == (result, spans)


def test_groups_are_cut_where_nothing_changes_across(traps):
    for one in traps:
        for other in traps:
            text = f"e\u0301{one}{other}\u0323{one}\u1161"
            assert trace_normalization("nfc", text).text == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize("name", NAMES)
def test_a_lone_surrogate_is_refused_by_its_place(name):
    for call in (NORMALIZATIONS[name], lambda text: trace_normalization(name, text)):
        with pytest.raises(ValueError, match=r"`text` must be text of whole characters.*U\+D800 at character 3"):
            call("abc\ud800")
        with pytest.raises(ValueError, match="`text` must be text, but is a bytes"):
            call(b"abc")


PIECES = {piece: ScoredPiece(300 + at, score) for at, (piece, score) in enumerate([
    (" ", -3.0), ("a", -2.0), ("b", -2.5), ("c", -4.0), (" a", -2.2), ("ab", -1.5), ("bc", -3.5), ("abc", -4.5)])}


def ways(word):
    """Every way to cut a word into the pieces, by trying all."""
    if not word:
        yield ()
    for end in range(1, len(word) + 1):
        if word[:end] in PIECES:
            yield from ((word[:end], *rest) for rest in ways(word[end:]))


@pytest.mark.parametrize("alpha", [0.0, 0.2, 1.0, 3.0])
def test_unigram_probabilities_are_those_of_all_ways(alpha):
    sampler, source, draws = UnigramSampler(PIECES), random.Random(0), 20_000
    weight = {way: math.exp(alpha * sum(PIECES[piece].score for piece in way)) for way in ways(" abcab")}
    assert len(weight) == 12
    names = {piece.id: text for text, piece in PIECES.items()}
    seen = Counter(tuple(names[id_] for id_ in sampler.sample_word(" abcab", alpha, source)) for _ in range(draws))
    assert {*seen} <= {*weight}
    for way, share in weight.items():
        expected = draws * share / sum(weight.values())
        assert abs(seen[way] - expected) < 5 * math.sqrt(expected) + 5


def test_bpe_without_dropout_merges_the_best_first():
    names = {piece.id: text for text, piece in PIECES.items()}
    assert [names[id_] for id_ in BpeSampler(PIECES).sample_word(" abc", 0.0, random.Random(0))] == [" ", "abc"]
    assert [names[id_] for id_ in BpeSampler(PIECES).sample_word("bcab", 0.0, random.Random(0))] == ["bc", "ab"]


def test_bpe_leaves_a_merge_out_as_often_as_asked():
    sampler, source = BpeSampler(PIECES), random.Random(0)
    kept = sum(len(sampler.sample_word("ab", 0.3, source)) == 1 for _ in range(10_000))
    assert abs(kept - 7_000) < 5 * math.sqrt(10_000 * 0.3 * 0.7)


@pytest.mark.parametrize("kind", [UnigramSampler, BpeSampler])
def test_what_has_no_piece_is_bytes(kind):
    assert kind(PIECES).sample_text(" é", 0.5, random.Random(0)) == [PIECES[" "].id, *byte_ids("é")]
    assert kind({}).sample_text(" é", 0.5, random.Random(0)) == [*byte_ids(" "), *byte_ids("é")]


@pytest.mark.parametrize("kind", [UnigramSampler, BpeSampler])
def test_what_was_drawn_before_changes_nothing(kind):
    used, text = kind(PIECES), " abcab abc ab" * 3
    for alpha in (0.9, 0.2, 0.5):
        for seed in range(20):
            used.sample_text(text, alpha, random.Random(seed))
    for seed in range(20):
        assert used.sample_text(text, 0.5, random.Random(seed)) == kind(PIECES).sample_text(text, 0.5,
                                                                                            random.Random(seed))


@given(data=st.data(), alpha=st.floats(0, 0.99), seed=st.integers())
def test_every_sample_is_the_normalised_text(tokenizer, texts, data, alpha, seed):
    text = data.draw(texts)
    ids = tokenizer.sample(text, alpha=alpha, seed=seed)
    assert tokenizer.decode(ids) == tokenizer.normalize(text)
    assert tokenizer.sample(text, alpha=alpha, seed=seed) == ids


def test_samples_differ_by_seed_and_less_so_towards_the_best(tokenizers, corpus):
    for name, most, least in (("unigram", 0.1, 50.0), ("bpe", 0.5, 0.0)):
        tokenizer, text = tokenizers[name], corpus[0]
        assert len({tuple(tokenizer.sample(text, alpha=most, seed=seed)) for seed in range(20)}) > 10
        assert {tuple(tokenizer.sample(text, alpha=least, seed=seed)) for seed in range(20)} == {
            tuple(tokenizer.encode(text))}


def test_bpe_without_dropout_and_unigram_at_its_best_are_encode(tokenizers, corpus):
    """Our way through the pieces is that of sentencepiece: equal, or where two ways are equally good, as good."""
    bpe, unigram = tokenizers["bpe"], tokenizers["unigram"]
    assert [bpe.sample(text, alpha=0, seed=0) for text in corpus] == bpe.encode_batch(corpus)
    score = unigram._processor.get_score
    for text, best in zip(corpus, unigram.encode_batch(corpus), strict=True):
        ours = unigram.sample(text, alpha=1e4, seed=0)
        assert sum(map(score, ours)) == pytest.approx(sum(map(score, best)), abs=1e-3)


@pytest.mark.parametrize(("alpha", "message"), [
    (-0.1, "`alpha` must be a number, at least 0"), (float("nan"), "`alpha` must be a number"), (True, "but is True"),
    ("1", "but is '1'"),
])
def test_what_is_no_strength(tokenizer, alpha, message):
    with pytest.raises(ValueError, match=message):
        tokenizer.sample("a", alpha=alpha, seed=0)


def test_a_probability_of_one_would_leave_out_everything(tokenizers):
    with pytest.raises(ValueError, match=r"`alpha` must be a number, at least 0 and below 1, but is 1\.0 instead"):
        tokenizers["bpe"].sample("a", alpha=1.0, seed=0)
    assert tokenizers["unigram"].sample("a", alpha=1.0, seed=0)


def test_what_is_no_seed(tokenizers):
    with pytest.raises(ValueError, match=r"`seed` must be a whole number, but is 0\.5"):
        tokenizers["unigram"].sample("a", alpha=1.0, seed=0.5)
