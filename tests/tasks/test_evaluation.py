"""All that is told of a translator or a classifier, put together from the parts."""

import math

import pytest
import texting
import torch
from texting import LABELS

from regard.tasks import evaluation
from regard.tasks.evaluation import corpus_scores, evaluate_classifier, evaluate_translator, scores_by_length


def test_a_translator():
    task, pairs = texting.translator(), texting.pairs()[:8]
    found = evaluate_translator(task, pairs, beams=2, lowercase=True)
    sources, targets = zip(*pairs, strict=True)
    made = [one.text for one in task.translate(sources, beams=2, length_penalty="mean")]
    assert found.hypotheses == tuple(made)
    assert found.scores == corpus_scores(made, targets, lowercase=True)
    assert found.by_length == tuple(scores_by_length(sources, made, targets, lowercase=True))
    assert found.loss.tokens == evaluation.translation_loss(task, pairs).tokens
    assert 0 <= found.cut <= len(pairs)
    with pytest.raises(ValueError, match="`pairs` must be at least one text"):
        evaluate_translator(task, [])


def test_a_classifier():
    task = texting.classifier()
    texts = [source for source, _ in texting.pairs()[:9]]
    best = [labels[0] for labels in task.classify(texts)]
    right = evaluate_classifier(task, texts, [label.name for label in best])
    assert (right.examples, right.correct, right.accuracy) == (9, 9, 1.0)
    assert right.loss == pytest.approx(-sum(math.log(label.probability) for label in best) / 9)
    wrong = [LABELS[(LABELS.index(label.name) + 1) % 3] for label in best]
    assert evaluate_classifier(task, texts, wrong).accuracy == 0.0
    with pytest.raises(ValueError, match="`labels` must be labels of the model, cold, hot, warm, but is 'tepid'"):
        evaluate_classifier(task, texts, ["tepid"] * 9)
    for texts_, names in ((texts, ["hot"]), ([], [])):
        with pytest.raises(ValueError, match="`labels` must be one for each"):
            evaluate_classifier(task, texts_, names)


def test_images():
    task, images = texting.seer(), torch.randint(0, 256, (6, 1, 8, 8), dtype=torch.uint8)
    names = [labels[0].name for labels in task.classify(images)]
    assert evaluate_classifier(task, images, names).correct == 6
