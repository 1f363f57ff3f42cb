"""The small lexicon: few words, the whole grammar."""

import pytest

from regard.data import phrasebook
from regard.data.phrasebook.lexicon import full_lexicon, small_lexicon


def test_it_is_a_part_of_the_lexicon_with_every_kind_of_noun():
    small, whole = small_lexicon(), full_lexicon()
    assert set(small.nouns) < set(whole.nouns)
    assert set(small.verbs) < set(whole.verbs)
    assert {noun.kind for noun in small.nouns} == {noun.kind for noun in whole.nouns}


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_sentences_of_every_split_and_length_can_be_made_of_it(split):
    pairs = [*phrasebook.pairs(1500, seed=4, split=split, clauses=(1, 3), words="few")]
    words = {word.lower() for pair in pairs for word in pair.source_words}
    assert 250 < len(words) < 450
    lengths = sorted(len(pair.source_words) for pair in pairs)
    assert lengths[0] < 8
    assert lengths[-1] > 35
    wider = {word.lower() for pair in phrasebook.pairs(1500, seed=4, split=split, clauses=(1, 3))
             for word in pair.source_words}
    assert len(wider) > 2 * len(words)


def test_an_unknown_lexicon_is_refused():
    with pytest.raises(ValueError, match='"few"'):
        next(phrasebook.pairs(1, words="some"))
