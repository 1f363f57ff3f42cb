"""Scores of labels, against counting by hand."""

import random

import pytest
import torch

from regard.data.spans import find_spans
from regard.tasks.label_scores import LabelScores, merge_probabilities, parse_merge

LABELS = ("B-X", "I-X", "O", "B-Y", "I-Y")


def counted(pairs, label):
    """Precision, recall and F1 of a label over (expected, predicted)."""
    right = sum(one == other == label for one, other in pairs)
    predicted, expected = (sum(pair[side] == label for pair in pairs) for side in (1, 0))
    precision, recall = (right / total if total else 0.0 for total in (predicted, expected))
    return precision, recall, 2 * precision * recall / (precision + recall) if right else 0.0


def drawn(labels, count=30, unknown=()):
    chance = random.Random(3)
    lengths = [chance.randrange(0, 12) for _ in range(count)]
    return [([chance.choice((*labels, *unknown)) for _ in range(length)],
             [chance.choice(labels) for _ in range(length)]) for length in lengths]


def scored(labels, sequences, unknown=()):
    scores = LabelScores(labels, unknown)
    for expected, predicted in sequences:
        scores.add([scores.rows.index(label) for label in expected], [labels.index(label) for label in predicted])
    return scores


def test_labels_and_confusion():
    sequences = drawn(LABELS)
    scores, pairs = scored(LABELS, sequences), [pair for one in sequences for pair in zip(*one, strict=True)]
    assert scores.tokens == len(pairs)
    assert scores.accuracy == pytest.approx(sum(one == other for one, other in pairs) / len(pairs))
    for label, score in zip(LABELS, scores.by_label(), strict=True):
        assert (score.precision, score.recall, score.f1) == pytest.approx(counted(pairs, label))
    assert scores.macro_f1 == pytest.approx(sum(counted(pairs, label)[2] for label in LABELS) / 5)
    assert scores.confusion == [[pairs.count((one, other)) for other in LABELS] for one in LABELS]


def test_spans_are_correct_if_type_and_both_ends_are():
    sequences = drawn(LABELS)
    scores = scored(LABELS, sequences)
    spans = [{(number, span) for number, one in enumerate(sequences) for span in find_spans(one[side])}
             for side in (0, 1)]
    right = len(spans[0] & spans[1])
    assert right > 0
    assert scores.spans.precision == pytest.approx(right / len(spans[1]))
    assert scores.spans.recall == pytest.approx(right / len(spans[0]))
    assert scores.f1 == scores.spans.f1 == pytest.approx(2 * right / (len(spans[0]) + len(spans[1])))
    by_type = {one.label: one.expected for one in scores.by_span()}
    assert by_type == {kind: sum(span.label == kind for _, span in spans[0]) for kind in "XY"}


def test_labels_that_the_model_does_not_have_are_wrong():
    sequences = drawn(("H", "E"), unknown=("Q", "Z"))
    scores = scored(("H", "E"), sequences, ("Q", "Z"))
    pairs = [pair for one in sequences for pair in zip(*one, strict=True)]
    assert scores.unknown == {name: sum(one == name for one, _ in pairs) for name in ("Q", "Z")}
    assert scores.accuracy == pytest.approx(sum(one == other for one, other in pairs) / len(pairs))
    assert len(scores.confusion) == len(scores.confusion[0]) == 4
    assert sum(map(sum, scores.confusion)) == len(pairs)


def test_merged_labels():
    labels, text = tuple("HGIEBLST"), "H=HGI,E=EB,C=*"
    scores = LabelScores(labels, ("Q",))
    groups = {**dict.fromkeys("HGI", "H"), **dict.fromkeys("EB", "E"), **dict.fromkeys("LSTQ", "C")}
    assert parse_merge(text).groups_of(scores.rows) == groups
    merged = scores.for_groups(groups)
    assert (merged.rows, merged.tokens, merged.has_spans) == (("H", "E", "C"), 0, False)
    only = LabelScores(("B-X", "O"), ("Q",)).for_groups({"B-X": "B-X", "O": "O", "Q": "other"})
    assert (only.labels, only.rows, only.has_spans) == (("B-X", "O"), ("B-X", "O", "other"), False)


def test_probabilities_of_groups_are_sums():
    probabilities = torch.rand(3, 5, 4, dtype=torch.float64).softmax(-1)
    names, merged = merge_probabilities(probabilities, tuple("HEGB"), {"H": "a", "E": "b", "G": "a", "B": "c"})
    assert names == ["a", "b", "c"]
    torch.testing.assert_close(merged[..., 0], probabilities[..., 0] + probabilities[..., 2])
    torch.testing.assert_close(merged[..., 1:], probabilities[..., [1, 3]])


def test_groups_of_longer_labels():
    groups = parse_merge("noun=NOUN+PROPN, other = *")
    assert groups.groups_of(("NOUN", "PROPN", "VERB")) == {"NOUN": "noun", "PROPN": "noun", "VERB": "other"}
    assert parse_merge("noun=NOUN+PROPN").groups_of(("NOUN", "VERB")) == {"NOUN": "noun", "VERB": "VERB"}
    assert parse_merge("a=NOUN+VERP").unknown(("NOUN",)) == ["VERP"]
    assert parse_merge("a=HGX").unknown(("H", "G", "E")) == ["X"]


@pytest.mark.parametrize("text", ["", "H", "H=", "=HG", "H=*,C=*", "H=A+,C=B"])
def test_wrong_groups_are_refused(text):
    with pytest.raises(ValueError, match="`merge`"):
        parse_merge(text)


def test_a_label_in_two_groups_is_refused():
    with pytest.raises(ValueError, match="'G'"):
        parse_merge("H=HG,E=EG").groups_of(tuple("HGE"))


def test_without_tokens_everything_is_zero():
    scores = LabelScores(LABELS)
    scores.add([], [])
    assert (scores.tokens, scores.accuracy, scores.f1, scores.macro_f1) == (0, 0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="predicted"):
        scores.add([1], [])
