"""config.toml of a model's folder: all of it comes back, and every mistake is named with its line."""

import pytest
from texting import LABELS, RECORD
from tiny import LANGUAGE, READING

from regard.special_tokens import SpecialTokens
from regard.tasks.task import ModelDescription, checked_record, read_description
from regard.toml import ConfigError, parse_document

SPECIAL = SpecialTokens(end=(2,), padding=0)


def test_all_of_it_comes_back():
    whole = ModelDescription(READING["first"], SPECIAL, LABELS, "f" * 64, checked_record(RECORD))
    assert read_description(parse_document(whole.text(), "config.toml")) == whole
    bare = ModelDescription(LANGUAGE["attention"], SPECIAL)
    assert read_description(parse_document(bare.text(), "config.toml")) == bare


def test_a_tokenizer_of_which_nothing_is_told_but_its_sha256():
    given = ModelDescription(LANGUAGE["attention"], SPECIAL, tokenizer="f" * 64)
    found = read_description(parse_document(given.text(), "config.toml"))
    assert found == given
    assert found.record == {}


def test_a_tokenizer_must_have_its_sha256():
    text = ModelDescription(LANGUAGE["attention"], SPECIAL).text()
    with pytest.raises(ConfigError, match=r'"sha256" in \[tokenizer\]: expected the sha256 of the tokenizer'):
        read_description(parse_document(text + '\n[tokenizer]\nkind = "bpe"\n', "config.toml"))


def test_all_mistakes_are_told_at_once_with_their_lines():
    text = ModelDescription(LANGUAGE["attention"], SPECIAL).text().replace("tie_word_embeddings = true", "tie_word_embedings = true")
    text = "data = 3\n" + text + "\n[trainig]\nseed = 1\n"
    lines = {word: text[:text.index(word)].count("\n") + 1 for word in ("data", "tie_word_embedings", "trainig")}
    with pytest.raises(ConfigError) as error:
        read_description(parse_document(text, "config.toml"))
    assert [*error.value.problems] == [
        f'config.toml:{lines["data"]}: "data": expected a table, but got 3',
        f'config.toml:{lines["tie_word_embedings"]}: unknown key "tie_word_embedings" in [model]; '
        'did you mean "tie_word_embeddings"?',
        f'config.toml:{lines["trainig"]}: unknown table "trainig"; did you mean "training"?',
    ]
