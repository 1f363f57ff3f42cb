"""Two tokenizers, or one for both sides: files and hashes."""

from regard.data.tokenizer.contract import digest
from regard.data.tokenizer.pair import PairTokenizer


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
    assert pair.sha256 == digest(pair.files())
    assert pair.sha256 != PairTokenizer(pair.target, pair.source).sha256
