"""Tokenizers of every kind that is our own, small, made once; and texts of all of Unicode."""

import pytest
from hypothesis import strategies as st

from regard.data import phrasebook
from regard.data.tokenizer.training import BpeConfig, BytesConfig, CharactersConfig, UnigramConfig, train_tokenizer

KINDS = {
    "unigram": UnigramConfig(vocab_size=700),
    "unigram-exact": UnigramConfig(vocab_size=700, normalization="exact", character_coverage=1.0),
    "bpe": BpeConfig(vocab_size=700),
    "bpe-nfc": BpeConfig(vocab_size=700, normalization="nfc"),
    "characters": CharactersConfig(),
    "characters-line": CharactersConfig(vocab_size=280, normalization="line"),
    "bytes": BytesConfig(),
}
# What tokenizers and editors trip over.
TRAPS = (
    "<s>", "</s>", "<pad>", "<unk>", "<mask>", "<0x41>", "[SEP]", "▁", "▁▁", "▅", "⁇",
    " ", "  ", "\t", "\n", "\r\n", "\x00", "\x0b", "\x0c", "\x1c", "\x7f", "\x85", "\xa0", "\u2007", "\u202f",
    "\u2028", "\u3000", "\u200b", "\u200d", "\ufeff", "e\u0301", "\u0301", "q\u0307\u0323", "\u1100\u1161\u11a8",
    "\uac00\u11a8", "\u212b", "\uf900", "\u0dd9\u0dcf\u0dca", "\u0958", "\U0002f800", "\ufb01", "x²",
    "👨\u200d👩\u200d👧", "🇫🇷", "👍🏽", "שָׁלוֹם", "السلام", "नमस्ते", "สวัสดี", "你好", "한국어",
    "\ufffd", "\ufffe", "\uffff", "\U0010ffff", "\U000e0001", "\ue000", "the big dog", "l'homme", "don't", "3.5", "...",
)


@pytest.fixture(scope="session")
def traps():
    """What tokenizers and editors trip over."""
    return TRAPS


@pytest.fixture(scope="session")
def texts():
    """A strategy: texts of all planes, mixed with the traps, without surrogates, which no text can hold."""
    return st.lists(st.one_of(st.sampled_from(TRAPS), st.text(max_size=6)), max_size=8).map("".join)


@pytest.fixture(scope="session")
def corpus():
    """Lines of English and French, and some that look like what tokenizers write."""
    pairs = [*phrasebook.pairs(300, seed=1)]
    odd = ["a </s> is <pad> no <mask> token", "▁ and ▅ and <0x41>", "語言 is 語言", "1999 2000 2001"]
    return [text for pair in pairs for text in (pair.source, pair.target)] + odd * 3


@pytest.fixture(scope="session")
def tokenizers(corpus):
    """Every kind by its name."""
    return {name: train_tokenizer(corpus, config).tokenizer for name, config in KINDS.items()}


@pytest.fixture(scope="session", params=KINDS)
def tokenizer(request, tokenizers):
    """One kind after the other."""
    return tokenizers[request.param]
