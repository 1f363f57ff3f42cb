"""Configs of tokenizers: read from TOML by their kind, strictly."""

import pytest

from regard import config, toml
from regard.data.tokenizer.training import BpeConfig, BytesConfig, CharactersConfig, TokenizerConfig, UnigramConfig


@pytest.mark.parametrize("settings", [
    UnigramConfig(vocab_size=4000, character_coverage=1.0, split_digits=True), BpeConfig(normalization="nfc", input_sentence_size=5),
    CharactersConfig(vocab_size=300), CharactersConfig(), BytesConfig(normalization="line"),
])
def test_a_config_is_written_and_read(settings):
    read = toml.parse_document(config.to_toml({"tokenizer": settings}), "train.toml")
    assert config.read_config(TokenizerConfig, read, ("tokenizer",)) == settings


def test_all_that_is_wrong_is_told():
    text = '[tokenizer]\nkind = "unigram"\nvocab_size = 10\nnormalization = "nfkc"\ncharacter_coverag = 1.0\n'
    with pytest.raises(ValueError, match="vocab_size") as error:
        config.read_config(TokenizerConfig, toml.parse_document(text, "train.toml"), ("tokenizer",))
    for part in ("train.toml:3", "at least 262", "train.toml:4", '"nfc"', "train.toml:5", 'did you mean "character_coverage"?'):
        assert part in str(error.value)
