"""What tokenizers share: special ids, hashes, and spans of what a model wrote, by decoding alone."""

from regard.data.tokenizer.interface import Tokenizer, hash_files


def test_a_digest_depends_on_names_lengths_and_bytes_but_not_on_order():
    one = hash_files({"a": b"1", "b": b"2"})
    assert one == hash_files({"b": b"2", "a": b"1"})
    others = [{"a": b"12"}, {"a": b"2", "b": b"1"}, {"a": b"1", "c": b"2"}, {"a": b"1"}, {"a": b"1\nb", "": b"2"}]
    assert len({one, *map(hash_files, others)}) == len(others) + 1


def test_every_tokenizer_has_a_hash_of_its_own(tokenizers):
    assert len({tokenizer.sha256 for tokenizer in tokenizers.values()}) == len(tokenizers)
    for tokenizer in tokenizers.values():
        assert tokenizer.sha256 == hash_files(tokenizer.files())


def test_spans_by_decoding_alone_are_those_by_bytes(tokenizers, corpus):
    for tokenizer in tokenizers.values():
        for text in corpus[:20]:
            ids = tokenizer.encode(text)
            assert Tokenizer.decoded_spans(tokenizer, ids)[-1].end == len(tokenizer.decode(ids))
            pieces = [text[start:end] for start, end in Tokenizer.decoded_spans(tokenizer, ids)]
            ours = [text[start:end] for start, end in tokenizer.decoded_spans(ids)]
            assert "".join(pieces) == tokenizer.decode(ids)
            if text.isascii() and "<" not in text:
                assert pieces == ours
