"""Configs of tokenizers: read from TOML by their kind, strictly."""

import pytest

from regard import config, toml
from regard.data.tokenizer.training import BpeConfig, BytesConfig, CharactersConfig, TokenizerConfig, UnigramConfig


@pytest.mark.parametrize("settings", [
    UnigramConfig(vocabulary=4000, coverage=1.0, split_digits=True), BpeConfig(normalisation="nfc", sentences=5),
    CharactersConfig(vocabulary=300), CharactersConfig(), BytesConfig(normalisation="line"),
])
def test_a_config_is_written_and_read(settings):
    read = toml.parse_document(config.to_toml({"tokenizer": settings}), "train.toml")
    assert config.read_config(TokenizerConfig, read, ("tokenizer",)) == settings


def test_all_that_is_wrong_is_told():
    text = '[tokenizer]\nkind = "unigram"\nvocabulary = 10\nnormalisation = "nfkc"\ncoverag = 1.0\n'
    with pytest.raises(ValueError, match="vocabulary") as error:
        config.read_config(TokenizerConfig, toml.parse_document(text, "train.toml"), ("tokenizer",))
    for part in ("train.toml:3", "at least 262", "train.toml:4", '"nfc"', "train.toml:5", 'did you mean "coverage"?'):
        assert part in str(error.value)
