"""Two tokenizers, or one for both sides: files, hashes, and what a model reads of source and target."""

import pytest

from regard.data.tokenizer.interface import PairTokenizer, hash_files
from regard.data.tokenizer.subwords import ByteTokenizer
from regard.special_tokens import SpecialTokens


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
