"""Models of sentencepiece: only those that change no text, however many texts, and whatever is asked at once."""

import io
import pickle
import threading

import pytest
import sentencepiece

from regard.data.tokenizer.subwords import MULTITHREADED, SentencePieceTokenizer


def foreign(**options):
    """A model as others train them."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a text of words", "another text"] * 20), model_writer=written, minloglevel=2,
        hard_vocab_limit=False, vocab_size=300, **options)
    return written.getvalue()


OURS = {"byte_fallback": True, "pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3, "control_symbols": ["<mask>"],
        "normalization_rule_name": "identity", "add_dummy_prefix": False, "remove_extra_whitespaces": False}


def test_a_model_with_our_layout_is_taken():
    tokenizer = SentencePieceTokenizer(foreign(**OURS), "unigram", "line")
    assert tokenizer.decode(tokenizer.encode("a  ﬁne text")) == "a ﬁne text"


@pytest.mark.parametrize("change", [
    {"byte_fallback": False}, {"pad_id": 3, "eos_id": 0}, {"control_symbols": []}, {"add_dummy_prefix": True},
    {"normalization_rule_name": "nmt_nfkc"}, {"remove_extra_whitespaces": True},
])
def test_a_model_that_would_change_text_is_refused(change):
    with pytest.raises(ValueError, match="`data` must be a model that regard trained, but is one of another layout"):
        SentencePieceTokenizer(foreign(**(OURS | change)), "unigram", "line")


@pytest.mark.parametrize("data", [b"", b"junk", pickle.dumps([1, 2, 3])])
def test_what_is_no_model(data, capfd):
    with pytest.raises(ValueError, match="`data` must be a model of sentencepiece"):
        SentencePieceTokenizer(data, "unigram", "line")
    assert capfd.readouterr().err == ""


def test_what_it_was_trained_as_must_be_known(tokenizers):
    with pytest.raises(ValueError, match='`model` must be one of "unigram", "bpe", but is "bep"'):
        SentencePieceTokenizer(tokenizers["bpe"].data, "bep", "line")


def test_several_threads_give_what_one_gives(tokenizers, corpus):
    texts = (corpus * (MULTITHREADED // len(corpus) + 1))[:MULTITHREADED + 7]
    for name in ("unigram", "bpe"):
        assert tokenizers[name].encode_batch(texts) == [tokenizers[name].encode(text) for text in texts]


def test_threads_may_share_a_tokenizer(tokenizers, corpus):
    tokenizer, results = tokenizers["unigram"], {}

    def work(number):
        results[number] = [(tokenizer.encode(text), tokenizer.sample(text, alpha=0.1 + number % 2, seed=0))
                           for text in corpus[:150]]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results[0] == results[2] != results[1] == results[3]


def test_it_can_be_sent_to_another_process(tokenizers, corpus):
    for tokenizer in tokenizers.values():
        other = pickle.loads(pickle.dumps(tokenizer))
        assert other.encode_batch(corpus[:5]) == tokenizer.encode_batch(corpus[:5])
        assert other.sha256 == tokenizer.sha256


def test_a_line_of_a_megabyte(tokenizers):
    for text in ("the big dog " * 80_000, "x" * 1_000_000, "語" * 300_000):
        for name in ("unigram", "bpe"):
            ids = tokenizers[name].encode(text)
            assert tokenizers[name].decode(ids) == text.strip()
