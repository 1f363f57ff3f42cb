"""The alignment error rate: against the reference sentence by sentence, and by hand over several."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data import phrasebook
from regard.data.tokenizer.interface import Word
from regard.reference.statistics import alignment_error_rate
from regard.tasks.alignment import Alignment, find_links, links_between
from regard.tasks.alignment import alignment_error_rate as error_rate

LINKS = st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=8)


@given(LINKS, LINKS, LINKS)
def test_one_sentence(found, sure, possible):
    if found or sure:
        assert error_rate([found], [sure], [possible]) == pytest.approx(alignment_error_rate(found, sure, possible))
        assert error_rate([found], [sure]) == pytest.approx(alignment_error_rate(found, sure, sure))


def test_sums_over_sentences():
    found, sure = [[(0, 0), (1, 1)], [(0, 0)], []], [[(0, 0)], [(0, 1), (1, 1)], []]
    assert error_rate(found, sure) == pytest.approx(1 - 2 * 1 / (3 + 3))
    assert error_rate([[]], [[]]) == 0
    assert error_rate([[]], [[(0, 0)]]) == 1
    for wrong in ({"sure": sure[:2]}, {"sure": sure, "possible": sure[:1]}):
        with pytest.raises(ValueError, match="must be links for each of 3 sentences, but is for"):
            error_rate(found, **wrong)


def test_shares_are_right_where_the_largest_weight_is_not():
    """Looks as models have them: every third word looks at the word before, and after, its own more than at its own."""
    largest, found, gold = [], [], []
    for pair in phrasebook.pairs(100, split="test", max_words=10):
        own = torch.zeros(len(pair.target_words), len(pair.source_words))
        for s, t in pair.alignment:
            own[t, s] = 1
        own /= own.sum(-1, keepdim=True)
        weights = own.clone()
        weights[::3] = 0.3 * own[::3] + 0.5 * own.roll(-1, 0)[::3] + 0.2 * own.roll(1, 0)[::3]
        largest.append({(s, t) for t, s in enumerate(weights.argmax(-1).tolist())})
        found.append(find_links(weights, 3))
        gold.append(pair.alignment)
    assert error_rate(found, gold) < 0.1 < 0.25 < error_rate(largest, gold)


def test_links_between_other_words():
    """A tokenizer may have made one word of two: its links are those of both."""
    (pair,) = phrasebook.pairs(1, seed=3, max_words=6)
    starts, ends = zip(*pair.target_offsets, strict=True)
    source = [Word(start, end, number, number) for number, (start, end) in enumerate(pair.source_offsets)]
    target = [Word(starts[0], ends[1], 0, 0), *(Word(start, end, number, number) for number, (start, end) in
                                                enumerate(pair.target_offsets[2:], 1))]
    weights = torch.zeros(len(target), len(source))
    weights[0, 0] = weights[1, 2] = 1
    alignment = Alignment.of(pair.source, source, pair.target, target, weights)
    assert links_between(alignment, pair.source_offsets, pair.target_offsets) == {(0, 0), (0, 1), (2, 2)}
