"""Our subwords in the package `tokenizers`: the same ids for the same texts, and the same texts for the same ids."""

import json

import pytest
import texting
from hypothesis import given
from hypothesis import strategies as st

from regard.data.tokenizer.subwords import ByteTokenizer
from regard.data.tokenizer.training import BpeConfig, UnigramConfig, train_tokenizer
from regard.storage.huggingface.tokenizer_json import (
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE,
    encode_texts,
    is_exportable,
    tokenizer_files,
)

tokenizers = pytest.importorskip("tokenizers")
TEXTS = [*(text for pair in texting.pairs() for text in pair), "", " ", "naïve  日本 🙂", "a\tb\r\nc\u3000d", "e\u0301",
         " two  spaces ", "10\u00a0% \u202f!", "\u2028x\u0085", "a\x1cb\x1fc"]
PLAIN = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="<\u2581"), max_size=12)


def sentences():
    return [text for pair in texting.pairs() for text in pair]


@pytest.fixture(scope="module", params=["line", "nfc", "exact"])
def tokenizer(request):
    return train_tokenizer(sentences(), UnigramConfig(vocab_size=400, normalization=request.param)).tokenizer


def test_ids_and_texts(tokenizer):
    data = tokenizer_files(tokenizer)[TOKENIZER_FILE]
    ids = encode_texts(data, TEXTS)
    assert ids == tokenizer.encode_batch(TEXTS)
    inner = tokenizers.Tokenizer.from_buffer(data)
    assert [inner.decode([2, *one, 3]) for one in ids] == [tokenizer.decode(one) for one in ids]


@given(PLAIN)
def test_any_text(text):
    own = texting.joint().source
    assert encode_texts(tokenizer_files(own)[TOKENIZER_FILE], [text]) == [own.encode(text)]


def test_what_stands_behind_a_text():
    own = texting.joint().source
    inner = tokenizers.Tokenizer.from_buffer(tokenizer_files(own, end=3)[TOKENIZER_FILE])
    assert inner.encode("the dog").ids == [*own.encode("the dog"), 3]
    assert inner.get_vocab_size() == own.size


def test_transformers_reads_it(tmp_path):
    transformers = pytest.importorskip("transformers")
    own = texting.joint().source
    for name, data in tokenizer_files(own, end=3).items():
        (tmp_path / name).write_bytes(data)
    read = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert read("Où est la gare ?")["input_ids"] == [*own.encode("Où est la gare ?"), 3]
    assert (read.pad_token_id, read.unk_token_id, read.bos_token_id, read.eos_token_id, read.mask_token_id) == (
        0, 1, 2, 3, 4)
    assert read.decode(own.encode("le chien dort."), skip_special_tokens=True) == "le chien dort."
    assert json.loads((tmp_path / TOKENIZER_CONFIG_FILE).read_text())["tokenizer_class"] == "PreTrainedTokenizerFast"


def test_which_fit():
    assert is_exportable(texting.tokenizer())
    assert not is_exportable(texting.characters())
    assert not is_exportable(ByteTokenizer())
    assert not is_exportable(train_tokenizer(sentences(), BpeConfig(vocab_size=400)).tokenizer)
