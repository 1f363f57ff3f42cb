"""Judging: sums over labels as torch has them, and a model that is left as it was."""

import torch
from torch import nn

from regard.tokens import IGNORED_LABEL
from regard.training.tasks.common import MetricSums, evaluation_mode


def test_every_part_is_as_it_was():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 2))
    model.train()
    model[0].eval()
    state = torch.get_rng_state()
    with evaluation_mode(model):
        assert not model[1].training
        assert not model(torch.ones(1, 2)).requires_grad
    assert (model.training, model[0].training, model[1].training) == (True, False, True)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()


def test_means_over_all_labels_that_count():
    output = nn.Linear(3, 5)
    features, labels = torch.randn(4, 6, 3), torch.randint(5, (4, 6))
    labels[:, 4:] = IGNORED_LABEL
    sums = MetricSums(torch.device("cpu"))
    with evaluation_mode(output):
        for rows in (slice(0, 1), slice(1, 4)):
            sums.evaluate(features[rows], output, labels[rows])
    logits, wanted = output(features).detach()[:, :4].reshape(-1, 5), labels[:, :4].reshape(-1)
    assert abs(sums.loss - float(nn.functional.cross_entropy(logits, wanted))) < 1e-6
    assert abs(sums.accuracy - float((logits.argmax(-1) == wanted).float().mean())) < 1e-6
