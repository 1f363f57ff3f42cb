"""Control tokens: ids with a name that no text encodes to, before every source."""

import io
import json

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from regard.data.languages import target_controls
from regard.data.tokenizer.interface import PairTokenizer
from regard.data.tokenizer.loading import MarianTokenizer, load_pair_tokenizer, load_tokenizer
from regard.data.tokenizer.training import add_controls

NAMES = ("<2fr>", "<2pt-BR>", "<bt>")
FORGED = ("<2fr>", "<2fr> the dog", "a<2fr>b", "<bt>", "▁<2fr>", "<2fr><2fr>", " <2pt-BR> ")


@pytest.fixture
def controlled(tokenizer):
    return tokenizer.with_controls(NAMES)


def test_controls_follow_the_pieces(tokenizer, controlled):
    assert controlled.controls == {name: tokenizer.size + at for at, name in enumerate(NAMES)}
    assert controlled.size == tokenizer.size + len(NAMES)
    assert controlled.pieces([*controlled.controls.values()]) == [*NAMES]
    assert not tokenizer.controls


@pytest.mark.parametrize("text", FORGED)
def test_text_cannot_forge_them(tokenizer, controlled, text):
    ids = controlled.encode(text)
    assert {*ids}.isdisjoint(controlled.controls.values())
    assert ids == tokenizer.encode(text)
    assert controlled.decode(ids) == controlled.normalize(text)
    for seed in range(5):
        assert {*controlled.sample(text, alpha=0.3, seed=seed)}.isdisjoint(controlled.controls.values())


@given(data=st.data())
def test_no_text_at_all_encodes_to_them(tokenizers, texts, data):
    text = data.draw(texts) + data.draw(st.sampled_from(FORGED))
    for one in tokenizers.values():
        controlled = one.with_controls(NAMES)
        assert controlled.encode(text) == one.encode(text)


def test_they_stand_for_no_text(controlled):
    ids = controlled.encode("the dog")
    first = controlled.control_id("<2fr>")
    assert controlled.decode([first, *ids, first]) == controlled.decode(ids)
    span = controlled.decoded_spans([first, *ids])[0]
    assert span.start == span.end


def test_they_are_stored(tokenizer, controlled):
    again = load_tokenizer(controlled.files(), sha256=controlled.sha256)
    assert again.controls == controlled.controls
    assert again.encode("<2fr> the dog") == controlled.encode("<2fr> the dog")
    assert controlled.sha256 != tokenizer.sha256
    assert controlled.with_controls(()).sha256 == tokenizer.sha256
    assert b"controls" not in tokenizer.files()["tokenizer.toml"]


@pytest.mark.parametrize("names", [["<2fr>", "<2fr>"], ["2fr"], ["<2 fr>"], ["<>"]])
def test_names_that_are_none(tokenizer, names):
    with pytest.raises(ValueError, match="controls"):
        tokenizer.with_controls(names)


@pytest.mark.parametrize("joint", [True, False])
def test_before_every_source(tokenizers, joint):
    one = tokenizers["unigram"]
    both = add_controls(PairTokenizer(one, one if joint else tokenizers["bpe"]), NAMES)
    assert both.joint == joint
    bound = both.with_controls("<2fr>")
    first, end = both.source.control_id("<2fr>"), both.source_end
    assert bound.encode_sources(["the dog", ""]) == [[first, *one.encode("the dog"), end], [first, end]]
    assert bound.encode_targets(["the dog"]) == both.encode_targets(["the dog"])
    assert bound.sha256 == both.sha256
    assert not load_pair_tokenizer(bound.files()).controls
    with pytest.raises(ValueError, match="<2de>"):
        both.with_controls("<2de>")


def test_a_source_without_its_language_is_refused(tokenizers):
    one = tokenizers["unigram"].with_controls(NAMES)
    with pytest.raises(ValueError, match=r"fr, pt-BR"):
        PairTokenizer(one, one).encode_sources(["the dog"])
    other = tokenizers["unigram"].with_controls(["<bt>"])  # no language to choose
    assert PairTokenizer(other, other).encode_sources(["the dog"])


def test_words_follow_the_control_tokens(tokenizers):
    one = tokenizers["unigram"].with_controls(NAMES)
    both, text = PairTokenizer(one, one).with_controls("<2fr>", "<bt>"), "the big dog sleeps."
    [ids] = both.encode_sources([text])
    for word in both.source_words(text):
        covered = one.decode(ids[word.first_token:word.last_token + 1])
        assert covered.strip() == text[word.start:word.end]


def test_those_of_marian():
    texts = ["the big dog sleeps", "le gros chien dort"] * 20
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(texts), model_writer=written, vocab_size=60,
                                             hard_vocab_limit=False, bos_id=-1, minloglevel=2)
    inner = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    names = ["</s>", "<unk>", *(inner.id_to_piece(id_) for id_ in range(2, inner.get_piece_size())), ">>fra<<",
             ">>cmn_Hans<<", "<pad>"]
    one = MarianTokenizer(written.getvalue(), json.dumps({name: at for at, name in enumerate(names)}).encode())
    assert target_controls(one.controls) == {"fra": ">>fra<<", "cmn-Hans": ">>cmn_Hans<<"}
    assert {*one.encode(">>fra<< the dog")}.isdisjoint(one.controls.values())
    bound = PairTokenizer(one, one).with_controls(">>fra<<")
    assert bound.encode_sources(["the dog"])[0][0] == one.control_id(">>fra<<")
