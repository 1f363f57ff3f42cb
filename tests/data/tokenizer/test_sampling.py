"""Sampling draws every way to cut a word as often as it should, and the same for the same seed."""

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.tokenizer.subwords import BpeSampler, ScoredPiece, UnigramSampler, byte_ids

PIECES = {piece: ScoredPiece(300 + at, score) for at, (piece, score) in enumerate([
    (" ", -3.0), ("a", -2.0), ("b", -2.5), ("c", -4.0), (" a", -2.2), ("ab", -1.5), ("bc", -3.5), ("abc", -4.5)])}


def ways(word):
    """Every way to cut a word into the pieces, by trying all."""
    if not word:
        yield ()
    for end in range(1, len(word) + 1):
        if word[:end] in PIECES:
            yield from ((word[:end], *rest) for rest in ways(word[end:]))


@pytest.mark.parametrize("alpha", [0.0, 0.2, 1.0, 3.0])
def test_unigram_probabilities_are_those_of_all_ways(alpha):
    sampler, source, draws = UnigramSampler(PIECES), random.Random(0), 20_000
    weight = {way: math.exp(alpha * sum(PIECES[piece].score for piece in way)) for way in ways(" abcab")}
    assert len(weight) == 12
    names = {piece.id: text for text, piece in PIECES.items()}
    seen = Counter(tuple(names[id_] for id_ in sampler.sample_word(" abcab", alpha, source)) for _ in range(draws))
    assert {*seen} <= {*weight}
    for way, share in weight.items():
        expected = draws * share / sum(weight.values())
        assert abs(seen[way] - expected) < 5 * math.sqrt(expected) + 5


def test_bpe_without_dropout_merges_the_best_first():
    names = {piece.id: text for text, piece in PIECES.items()}
    assert [names[id_] for id_ in BpeSampler(PIECES).sample_word(" abc", 0.0, random.Random(0))] == [" ", "abc"]
    assert [names[id_] for id_ in BpeSampler(PIECES).sample_word("bcab", 0.0, random.Random(0))] == ["bc", "ab"]


def test_bpe_leaves_a_merge_out_as_often_as_asked():
    sampler, source = BpeSampler(PIECES), random.Random(0)
    kept = sum(len(sampler.sample_word("ab", 0.3, source)) == 1 for _ in range(10_000))
    assert abs(kept - 7_000) < 5 * math.sqrt(10_000 * 0.3 * 0.7)


@pytest.mark.parametrize("kind", [UnigramSampler, BpeSampler])
def test_what_has_no_piece_is_bytes(kind):
    assert kind(PIECES).sample_text(" é", 0.5, random.Random(0)) == [PIECES[" "].id, *byte_ids("é")]
    assert kind({}).sample_text(" é", 0.5, random.Random(0)) == [*byte_ids(" "), *byte_ids("é")]


@pytest.mark.parametrize("kind", [UnigramSampler, BpeSampler])
def test_what_was_drawn_before_changes_nothing(kind):
    used, text = kind(PIECES), " abcab abc ab" * 3
    for alpha in (0.9, 0.2, 0.5):
        for seed in range(20):
            used.sample_text(text, alpha, random.Random(seed))
    for seed in range(20):
        assert used.sample_text(text, 0.5, random.Random(seed)) == kind(PIECES).sample_text(text, 0.5, random.Random(seed))


@given(data=st.data(), alpha=st.floats(0, 0.99), seed=st.integers())
def test_every_sample_is_the_normalised_text(tokenizer, texts, data, alpha, seed):
    text = data.draw(texts)
    ids = tokenizer.sample(text, alpha=alpha, seed=seed)
    assert tokenizer.decode(ids) == tokenizer.normalise(text)
    assert tokenizer.sample(text, alpha=alpha, seed=seed) == ids


def test_samples_differ_by_seed_and_less_so_towards_the_best(tokenizers, corpus):
    for name, most, least in (("unigram", 0.1, 50.0), ("bpe", 0.5, 0.0)):
        tokenizer, text = tokenizers[name], corpus[0]
        assert len({tuple(tokenizer.sample(text, alpha=most, seed=seed)) for seed in range(20)}) > 10
        assert {tuple(tokenizer.sample(text, alpha=least, seed=seed)) for seed in range(20)} == {
            tuple(tokenizer.encode(text))}


def test_bpe_without_dropout_and_unigram_at_its_best_are_encode(tokenizers, corpus):
    """Our way through the pieces is that of sentencepiece: equal, or where two ways are equally good, as good."""
    bpe, unigram = tokenizers["bpe"], tokenizers["unigram"]
    assert [bpe.sample(text, alpha=0, seed=0) for text in corpus] == bpe.encode_batch(corpus)
    score = unigram._processor.get_score
    for text, best in zip(corpus, unigram.encode_batch(corpus), strict=True):
        ours = unigram.sample(text, alpha=1e4, seed=0)
        assert sum(map(score, ours)) == pytest.approx(sum(map(score, best)), abs=1e-3)


@pytest.mark.parametrize(("alpha", "message"), [
    (-0.1, "`alpha` must be a number, at least 0"), (float("nan"), "`alpha` must be a number"), (True, "but is True"),
    ("1", "but is '1'"),
])
def test_what_is_no_strength(tokenizer, alpha, message):
    with pytest.raises(ValueError, match=message):
        tokenizer.sample("a", alpha=alpha, seed=0)


def test_a_probability_of_one_would_leave_out_everything(tokenizers):
    with pytest.raises(ValueError, match=r"`alpha` must be a number, at least 0 and below 1, but is 1\.0 instead"):
        tokenizers["bpe"].sample("a", alpha=1.0, seed=0)
    assert tokenizers["unigram"].sample("a", alpha=1.0, seed=0)


def test_what_is_no_seed(tokenizers):
    with pytest.raises(ValueError, match=r"`seed` must be a whole number, but is 0\.5"):
        tokenizers["unigram"].sample("a", alpha=1.0, seed=0.5)
