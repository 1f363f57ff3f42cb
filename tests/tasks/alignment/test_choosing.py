"""The choice of layer, head and offset: found again in weights that were made so that one is right."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from regard.data import phrasebook
from regard.data.tokenizer.interface import Word
from regard.reference.statistics import held_out_log_likelihood as by_definition
from regard.reference.statistics import normalize_columns
from regard.tasks.alignment import (
    CANDIDATE_OFFSETS,
    CANDIDATE_ROUNDS,
    SHARE_SMOOTHING,
    AlignmentConfig,
    PairAttention,
    alignment_candidates,
    choose_alignment,
    link_log_probability,
    strongest_source_words,
)

LAYERS, HEADS = 3, 2
PAIRS = [*phrasebook.pairs(150, seed=5, max_words=8)]


def tokens(offsets):
    """A token for each word."""
    return [Word(start, end, number, number) for number, (start, end) in enumerate(offsets)]


def looked(pair, right, noise=0.3, heads=HEADS):
    """Looks at anything, but those of the right place, which are more often at the words that belong to each."""
    source, target = tokens(pair.source_offsets), tokens(pair.target_offsets)
    cross = 3 * torch.randn(LAYERS, heads, len(target) + 1, len(source) + 1, dtype=torch.float64)
    for number in range(heads) if right.head is None else [right.head]:
        for s, t in pair.alignment:
            row = t + right.offset
            if row >= 0 and torch.rand(()) > noise:
                cross[right.layer, number, row, s] += 9
    return PairAttention(torch.softmax(cross, -1), pair.source, source, pair.target, target)


@pytest.mark.parametrize("offset", CANDIDATE_OFFSETS)
@pytest.mark.parametrize("head", [None, 1])
def test_the_place_that_is_right_is_found(offset, head):
    right = AlignmentConfig(layer=1, head=head, offset=offset)
    assert replace(choose_alignment(looked(pair, right) for pair in PAIRS), rounds=1) == right


def test_a_layer_of_one_head_is_its_mean():
    right = AlignmentConfig(layer=2, offset=1)
    assert replace(choose_alignment(looked(pair, right, heads=1) for pair in PAIRS), rounds=1) == right
    assert alignment_candidates(1, 1) == [AlignmentConfig(layer=0, offset=offset, rounds=rounds)
                                for rounds in CANDIDATE_ROUNDS for offset in CANDIDATE_OFFSETS]


def test_more_rounds_where_words_look_at_neighbours():
    """Every other word looks at the one in front of its own more than at its own."""
    sharp = [looked(pair, AlignmentConfig(layer=0), noise=0.0, heads=1) for pair in PAIRS]
    sharp = [found._replace(cross=(found.cross[:1] == found.cross[:1].amax(-1, keepdim=True)).double())
             for found in sharp]
    blurred = []
    for found in sharp:
        cross = found.cross.clone()
        cross[..., ::2, :-1] = 0.4 * cross[..., ::2, :-1] + 0.6 * cross[..., ::2, 1:]
        blurred.append(found._replace(cross=cross))
    assert [choose_alignment(found).rounds for found in (sharp, blurred)] == [1, 3]


def test_rare_words_do_not_win():
    """One head looks at words that are met once, another finds what belongs together half of the time."""
    right = AlignmentConfig(layer=0, head=0)
    pairs = []
    for number, pair in enumerate(PAIRS):
        found = looked(pair, right, noise=0.5)
        place = len(pair.source)
        text, rare = f"{pair.source} rare{number}", Word(place + 1, place + len(f" rare{number}"), len(found.source),
                                                         len(found.source))
        cross = torch.cat([found.cross, found.cross[..., -1:]], -1)
        cross[0, 1, :, rare.first_token] = 30
        pairs.append(found._replace(cross=cross, text=text, source=[*found.source, rare]))
    assert choose_alignment(pairs).head != 1


def test_candidates_are_in_the_order_of_what_they_point_at():
    found = looked(PAIRS[0], AlignmentConfig(layer=0))
    for place, one in zip(alignment_candidates(LAYERS, HEADS), strongest_source_words(found), strict=True):
        layer = found.cross[place.layer]
        weights = (layer.mean(0) if place.head is None else layer[place.head])[:, :len(found.source)]
        rows = [min(max(row + place.offset, 0), len(found.target)) for row in range(len(found.target))]
        assert one.tolist() == normalize_columns(weights[rows].numpy(), SHARE_SMOOTHING, place.rounds).argmax(-1).tolist()


def test_scores_are_the_definition():
    generator = np.random.default_rng(0)
    for _ in range(20):
        counts = generator.integers(1, 5, 6)
        sentences = np.repeat(np.arange(6), counts)
        source, target = generator.integers(0, 4, (2, counts.sum()))
        links = [[(s, t) for s, t, k in zip(source, target, sentences, strict=True) if k == number]
                 for number in range(6)]
        assert link_log_probability(source, target, sentences) == pytest.approx(by_definition(links), rel=1e-12)


def test_nothing_to_choose_from():
    empty = PairAttention(torch.zeros(2, 2, 1, 1), "", [], "", [])
    assert choose_alignment([empty]) == AlignmentConfig(layer=0)
    with pytest.raises(ValueError, match="`pairs` must be at least one, but is none"):
        choose_alignment([])
