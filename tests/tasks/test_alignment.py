"""Weights between words: sums over the tokens of the source, means over those of the target, loops as the oracle."""

import pytest
import texting
import torch
from tiny import TRANSLATING, built

from regard.data.tokenizer.words import Span, Word
from regard.decoding.cross import with_cross
from regard.decoding.hypothesis import Hypothesis
from regard.models.contract import Tokens
from regard.tasks.alignment import Alignment, aligned_words, word_weights
from regard.tasks.loading import fitting


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
        torch.testing.assert_close(aligned_words(cross, words, words, asked), want)
    assert aligned_words(cross, [], words).shape == (4, 0)
    for wrong in (3, -4, True, 1.0):
        with pytest.raises(ValueError, match="`layer` must be one of the 3 layers"):
            aligned_words(cross, words, words, wrong)


@pytest.mark.parametrize("given", [None, "le gros chien dort."])
def test_a_translation_and_where_it_looked(given):
    task, text = texting.translator(pair=texting.separate), "the big dog sleeps."
    found = task.aligned(text, given, layer=0)
    both = task.tokenizer
    ids = both.target.encode(given) if given else [*task.translate(text).ids]
    written = both.target.decode(ids)
    assert found.source == ("the", "big", "dog", "sleeps", ".")
    assert found.target == tuple(written[word.start:word.end] for word in both.target.decoded_words(ids))
    memory = task.model.encode(Tokens(torch.tensor(both.source_ids([text]))))
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
    config = replace(TRANSLATING["seq2seq"], source_vocabulary=both.source.size, target_vocabulary=both.target.size)
    task = fitting(built(config), config, tokenizer=both)
    with pytest.raises(ValueError, match="`model` must be one that attends to its memory"):
        task.aligned("the dog", "le chien")


def spans(*places):
    return tuple(Span(*place) for place in places)


def test_a_link_is_to_the_word_that_is_looked_at_most():
    weights = torch.tensor([[0.1, 0.6, 0.2], [0.5, 0.3, 0.1], [0.2, 0.7, 0.0], [0.0, 0.0, 0.0]])
    found = Alignment(("a", "b", "c"), ("d", "e", "f", "g"), weights, spans((0, 1), (2, 3), (4, 5)),
                      spans((0, 1), (1, 2), (2, 3), (4, 5)))
    assert [(link.source, link.target) for link in found.links] == [(0, 1), (1, 0), (1, 2)]
    assert [link.weight for link in found.links] == pytest.approx([0.5, 0.6, 0.7])
    assert found.pharaoh() == "0-1 1-0 1-2"
    table = found.table()
    assert table["target"][3] == {"text": "g", "start": 4, "end": 5}
    assert table["links"][0] == {"source": 0, "target": 1, "weight": pytest.approx(0.5)}
    assert Alignment((), ("d",), torch.zeros(1, 0), (), spans((0, 1))).pharaoh() == ""


def test_several_at_once_are_as_each_alone():
    task = texting.translator(pair=texting.separate)
    texts = ["the big dog sleeps.", "no", "", "Emma sees  a cat, we sing."]
    translations = task.translate(texts, beams=2, limit=7)
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
