"""Tokenizers come back from their files as they were, and no other is taken in their place."""

import pickle

import pytest

from regard.data.tokenizer.interface import PairTokenizer
from regard.data.tokenizer.loading import load_pair_tokenizer, load_tokenizer
from regard.data.tokenizer.subwords import CharactersRecord, SentencePieceRecord, hash_data, pack_files


def test_a_tokenizer_comes_back_as_it_was(tokenizer, corpus):
    again = load_tokenizer(tokenizer.files(), sha256=tokenizer.sha256)
    assert type(again) is type(tokenizer)
    assert again.files() == tokenizer.files()
    texts = [*corpus[:30], "  e\u0301 ▁語 \n"]
    assert again.encode_batch(texts) == tokenizer.encode_batch(texts)
    assert again.normalise(texts[-1]) == tokenizer.normalise(texts[-1])
    assert again.sample(texts[0], alpha=0.3, seed=5) == tokenizer.sample(texts[0], alpha=0.3, seed=5)


def test_another_tokenizer_is_refused_by_its_hash(tokenizers):
    mine, other = tokenizers["unigram"], tokenizers["unigram-exact"]
    with pytest.raises(ValueError, match=f"`tokenizer` must be as it was recorded, with sha256 {mine.sha256}.*another"):
        load_tokenizer(other.files(), sha256=mine.sha256)
    mixed = {**mine.files(), "tokenizer.model": tokenizers["bpe"].files()["tokenizer.model"]}
    with pytest.raises(ValueError, match=r"`tokenizer.model` must be as it was recorded.*restore the one"):
        load_tokenizer(mixed)


@pytest.mark.parametrize("joint", [True, False])
def test_a_pair_comes_back_as_it_was(tokenizers, joint):
    source, target = tokenizers["unigram"], tokenizers["unigram" if joint else "characters"]
    pair = PairTokenizer(source, target)
    again = load_pair_tokenizer({**pair.files(), "config.toml": b""}, sha256=pair.sha256)
    assert again.joint == joint
    assert again.files() == pair.files()
    with pytest.raises(ValueError, match="`tokenizer` must be as it was recorded"):
        load_pair_tokenizer(PairTokenizer(tokenizers["bpe"], tokenizers["bpe"]).files(), sha256=pair.sha256)


def test_sides_that_were_swapped_are_refused(tokenizers):
    pair = PairTokenizer(tokenizers["unigram"], tokenizers["bpe"])
    with pytest.raises(ValueError, match="`tokenizer` must be as it was recorded"):
        load_pair_tokenizer(PairTokenizer(pair.target, pair.source).files(), sha256=pair.sha256)


def test_half_a_pair(tokenizers):
    files = PairTokenizer(tokenizers["unigram"], tokenizers["bpe"]).files()
    del files["tokenizer.target.toml"]
    with pytest.raises(ValueError, match=r"`files` must be with tokenizer\.target\.toml"):
        load_pair_tokenizer(files)


@pytest.mark.parametrize("data", [b"", pickle.dumps(print), b"junk"])
def test_what_is_no_model_is_refused_even_with_its_hash(data):
    record = SentencePieceRecord(model="bpe", normalisation="line", sha256=hash_data(data))
    with pytest.raises(ValueError, match="`data` must be a model of sentencepiece"):
        load_tokenizer(pack_files("tokenizer", record, {"model": data}))


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'["ab"]', pickle.dumps(print), b"[" * 100_000])
def test_what_are_no_characters_is_refused_even_with_its_hash(data):
    record = CharactersRecord(normalisation="nfc", sha256=hash_data(data))
    with pytest.raises(ValueError, match=r"must be (a JSON array of characters|single characters)"):
        load_tokenizer(pack_files("tokenizer", record, {"json": data}))
