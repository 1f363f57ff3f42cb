"""Weights between words, and links by shares of them; loops and the reference as the oracle."""

import pytest
import texting
import torch
from tiny import TRANSLATING, built

from regard.data.tokenizer.interface import Span, Word
from regard.decoding.forced import with_cross
from regard.decoding.request import Hypothesis
from regard.inspection.trace import word_weights
from regard.reference import statistics as reference
from regard.tasks.alignment import (
    MIN_LINK_SHARE,
    SHARE_SMOOTHING,
    Alignment,
    AlignmentConfig,
    attention_shares,
    find_links,
    word_alignment_weights,
)
from regard.tasks.load import make_task
from regard.tokens import Tokens


def by_hand(weights, source, target):
    """The definition, one word after another."""
    result = []
    for word in target:
        rows = range(word.first_token, word.last_token + 1)
        result.append([sum(sum(float(weights[row, column]) for row in rows) / len(rows)
                           for column in range(other.first_token, other.last_token + 1)) for other in source])
    return torch.tensor(result, dtype=torch.float64).reshape(len(target), len(source))


def test_tokens_become_words():
    weights = torch.rand(4, 5, dtype=torch.float64)
    source = [Word(0, 1, 0, 0), Word(1, 2, 1, 3)]  # token 4 is the end, and no word
    target = [Word(0, 1, 0, 1), Word(1, 2, 2, 2), Word(2, 3, 3, 3)]
    torch.testing.assert_close(word_weights(weights, source, target), by_hand(weights, source, target))
    assert word_weights(weights, [], target).shape == (3, 0)
    assert word_weights(weights, source, []).shape == (0, 2)


def test_a_layer_is_asked_for_or_points_most_clearly():
    cross = torch.softmax(torch.randn(3, 2, 4, 5, dtype=torch.float64), -1)
    cross[1] = torch.softmax(9 * torch.randn(2, 4, 5, dtype=torch.float64)[:1], -1)
    words = [Word(place, place + 1, place, place) for place in range(4)]
    for asked, layer in ((None, 1), (0, 0), (2, 2), (-1, 2)):
        want = by_hand(cross[layer].mean(0), words, words)
        where = None if asked is None else AlignmentConfig(layer=asked)
        torch.testing.assert_close(word_alignment_weights(cross, words, words, where), want)
    assert word_alignment_weights(cross, [], words).shape == (4, 0)
    for wrong in (3, -4):
        with pytest.raises(ValueError, match="`layer` must be one of the 3 layers"):
            word_alignment_weights(cross, words, words, AlignmentConfig(layer=wrong))
    with pytest.raises(ValueError, match="`head` must be one of the 2 heads of a layer, from 0, but is 2"):
        word_alignment_weights(cross, words, words, AlignmentConfig(layer=0, head=2))


@pytest.mark.parametrize("offset", [-2, -1, 0, 1, 2])
def test_one_head_and_the_look_some_steps_later(offset):
    cross = torch.rand(2, 3, 5, 4, dtype=torch.float64)  # 4 tokens, and the step behind them
    source, target = [Word(0, 1, 0, 1), Word(1, 2, 2, 2)], [Word(0, 1, 0, 0), Word(1, 2, 1, 2), Word(2, 3, 3, 3)]
    rows = [min(max(token + offset, 0), 4) for token in range(4)]
    want = by_hand(cross[1, 2][rows], source, target)
    where = AlignmentConfig(layer=1, head=2, offset=offset)
    torch.testing.assert_close(word_alignment_weights(cross, source, target, where), want)
    torch.testing.assert_close(word_weights(cross, source, target, offset)[1, 2], want)


@pytest.mark.parametrize("wrong", [{"layer": True}, {"layer": 1.5}, {"layer": 0, "head": -1}, {"layer": 0, "offset": 3},
                                   {"layer": 0, "offset": -3}])
def test_no_place_to_read_at(wrong):
    with pytest.raises(ValueError, match=f'"{[*wrong][-1]}": expected a whole number'):
        AlignmentConfig(**wrong)


@pytest.mark.parametrize("given", [None, "le gros chien dort."])
def test_a_translation_and_where_it_looked(given):
    task, text = texting.translator(pair=texting.separate), "the big dog sleeps."
    found = task.aligned(text, given, layer=0)
    both = task.tokenizer
    ids = both.target.encode(given) if given else [*task.translate(text).ids]
    written = both.target.decode(ids)
    assert found.source == ("the", "big", "dog", "sleeps", ".")
    assert found.target == tuple(written[word.start:word.end] for word in both.target.decoded_words(ids))
    memory = task.model.encode(Tokens(torch.tensor(both.encode_sources([text]))))
    (read,) = with_cross(task.model, memory, [Hypothesis(ids, [0.0] * len(ids), 0.0, None)], prompts=[[2]])
    want = by_hand(read.cross[0].mean(0), both.source.words(text), both.target.decoded_words(ids))
    torch.testing.assert_close(found.weights.double(), want, rtol=0, atol=1e-6)
    assert float(found.weights.sum(-1).max()) < 1.0  # the rest is on the end of the source


def test_nothing_to_align():
    task = texting.translator()
    found = task.aligned("", "")
    assert (found.source, found.target, found.weights.shape) == ((), (), (0, 0))
    with pytest.raises(ValueError, match="`text` must be a text, but is a list"):
        task.aligned(["a"])


def test_a_model_that_looks_at_nothing():
    from dataclasses import replace

    both = texting.joint()
    config = replace(TRANSLATING["seq2seq"], source_vocab_size=both.source.size, target_vocab_size=both.target.size)
    task = make_task(built(config), config, tokenizer=both)
    with pytest.raises(ValueError, match="`model` must be one that attends to its memory"):
        task.aligned("the dog", "le chien")


def spans(*places):
    return tuple(Span(*place) for place in places)


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_links_are_the_best_shares_either_way(rounds):
    """As loops over the shares of the reference find them."""
    faint = 0
    for _ in range(20):
        weights = torch.softmax(3 * torch.randn(5, 8, dtype=torch.float64), -1)[:, :7]
        share = reference.normalize_columns(weights.numpy(), SHARE_SMOOTHING, rounds)
        torch.testing.assert_close(attention_shares(weights, rounds), torch.from_numpy(share), rtol=1e-12, atol=0)
        best = {(max(range(7), key=lambda s, t=t: share[t, s]), t) for t in range(5)}
        best |= {(s, max(range(5), key=lambda t, s=s: share[t, s])) for s in range(7)}
        assert find_links(weights, rounds) == {(s, t) for s, t in best if share[t, s] >= MIN_LINK_SHARE}
        faint += len(best) - len(find_links(weights, rounds))
    assert faint


def test_a_word_that_many_look_at_leaves_them_their_own():
    """The article looks at its noun more than at the article, and the full stop at the last word; not so the others."""
    weights = torch.tensor([[0.2, 0.8, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.6, 0.4]])
    assert find_links(weights) == {(0, 0), (1, 1), (2, 2), (3, 3)}
    weights = torch.tensor([[0.99, 0.01], [0.995, 0.005]])  # what nobody looks at gains nothing by that
    assert find_links(weights) == {(0, 0), (0, 1)}


def test_links_of_an_alignment():
    weights = torch.tensor([[0.1, 0.6, 0.1], [0.5, 0.3, 0.1], [0.2, 0.7, 0.0], [0.0, 0.0, 0.0]])
    found = Alignment(("a", "b", "c"), ("d", "e", "f", "g"), weights, spans((0, 1), (2, 3), (4, 5)),
                      spans((0, 1), (1, 2), (2, 3), (4, 5)))
    assert [(link.source, link.target) for link in found.links] == [(0, 1), (1, 2), (2, 0)]
    assert [link.weight for link in found.links] == pytest.approx([0.5, 0.7, 0.1])
    assert found.pharaoh() == "0-1 1-2 2-0"
    several = torch.softmax(3 * torch.randn(20, 4, 3), -1)
    for weights in several:
        links = found._replace(weights=weights, rounds=9).links
        assert {(link.source, link.target) for link in links} == find_links(weights, 9)
    assert any(find_links(weights, 9) != find_links(weights) for weights in several)
    table = found.table()
    assert table["target"][3] == {"text": "g", "start": 4, "end": 5}
    assert table["links"][0] == {"source": 0, "target": 1, "weight": pytest.approx(0.5)}
    assert Alignment((), ("d",), torch.zeros(1, 0), (), spans((0, 1))).pharaoh() == ""


def test_several_at_once_are_as_each_alone():
    task = texting.translator(pair=texting.separate)
    texts = ["the big dog sleeps.", "no", "", "Emma sees  a cat, we sing."]
    translations = task.translate(texts, beams=2, max_length=7)
    found = task.align(texts, translations, layer=0)
    for text, one, alignment in zip(texts, translations, found, strict=True):
        (alone,) = task.align([text], [one], layer=0)
        assert alignment[:2] + alignment[3:] == alone[:2] + alone[3:]
        torch.testing.assert_close(alignment.weights, alone.weights, rtol=0, atol=1e-6)
        assert [text[begin:end] for begin, end in alignment.source_spans] == [*alignment.source]
        assert [one.text[begin:end] for begin, end in alignment.target_spans] == [*alignment.target]
    assert found[3].source == ("Emma", "sees", "a", "cat", ",", "we", "sing", ".")
    assert task.align([], []) == []
    for wrong in (translations[:2], translations[0]):
        with pytest.raises(ValueError, match="`translations` must be one for each text, 4"):
            task.align(texts, wrong)
