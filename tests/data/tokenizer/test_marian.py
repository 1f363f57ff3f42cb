"""One side of a Marian model: the ids of `transformers`, and no special id from text."""

import io
import json
import warnings

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from regard.data.tokenizer.loading import MarianTokenizer, load_tokenizer
from regard.special_tokens import SpecialTokens


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
    assert source.normalise(text) == "The fine dog, 語."
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


def test_it_is_stored_and_comes_back(source, target):
    again = load_tokenizer(source.files(), sha256=source.sha256)
    assert again.encode("the big dog") == source.encode("the big dog")
    assert sorted(source.files()) == ["tokenizer.model", "tokenizer.toml", "tokenizer.vocab.json"]
    with pytest.raises(ValueError, match="`tokenizer` must be as it was recorded"):
        load_tokenizer(target.files(), sha256=source.sha256)


@pytest.mark.parametrize("vocabulary", [
    b"", b"[]", b"{}", b'{"a": -1}', b'{"a": "0"}', b'{"a": 0, "b": 0}', b"[" * 100_000])
def test_what_is_no_vocabulary(files, vocabulary):
    with pytest.raises(ValueError, match=r"`vocab\.json` must be a JSON table of pieces with an id each"):
        MarianTokenizer(files[0], vocabulary)


def test_what_does_not_fit(files):
    with pytest.raises(ValueError, match=r"`source.spm or target.spm` must be a model of sentencepiece"):
        MarianTokenizer(b"", files[2])
    with pytest.raises(ValueError, match="`ids` must be at least 0 and below"):
        MarianTokenizer(files[0], files[2], SpecialTokens(unknown=10**6))
    with pytest.raises(ValueError, match=r"`special.unknown` must be an id"):
        MarianTokenizer(files[0], files[2], SpecialTokens(start=0))
    with pytest.raises(ValueError, match="`piece` must be one of the 1 of the vocabulary, but is '<pad>'"):
        MarianTokenizer(files[0], b'{"</s>": 0}')
