"""The loss of models that read: equal to torch's, for texts and images; with a consistency, of two passes."""

from dataclasses import dataclass

import pytest
import torch
from tiny import READING, SOURCE, VISION
from torch.nn import functional as F

from regard.tokens import IGNORED_LABEL, Tokens
from regard.training.tasks.common import FeatureObjective, model_inputs


@dataclass
class Given:
    inputs: object
    labels: torch.Tensor


def batch(kind):
    if kind == "vision class":
        images = torch.randint(256, (4, 3, 8, 12)).to(torch.uint8)
        return VISION["class"].build(), Given(images, torch.tensor([0, 4, IGNORED_LABEL, 1]))
    tokens = Tokens(torch.randint(SOURCE, (3, 5)), torch.tensor([5, 2, 1]))
    if kind == "masked":
        return READING["masked"].build(), Given(tokens, torch.tensor([[1, IGNORED_LABEL, 3, IGNORED_LABEL, 0]]).repeat(3, 1))
    return READING["mean"].build(), Given(tokens, torch.tensor([2, 0, 1]))


KINDS = ("masked", "mean", "vision class")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_it_is_the_loss_of_the_logits(kind, smoothing):
    model, given = batch(kind)
    loss = FeatureObjective(model, smoothing, 0.0)(given)
    logits = model(model_inputs(given.inputs))
    options = {"ignore_index": IGNORED_LABEL, "reduction": "sum"}
    flat, labels = logits.reshape(-1, logits.shape[-1]), given.labels.reshape(-1)
    torch.testing.assert_close(loss.total, F.cross_entropy(flat, labels, label_smoothing=smoothing, **options))
    torch.testing.assert_close(loss.nll, F.cross_entropy(flat, labels, **options).detach())
    assert int(loss.tokens) == int((labels != IGNORED_LABEL).sum())
    wanted = torch.autograd.grad(F.cross_entropy(flat, labels, label_smoothing=smoothing, **options),
                                 model.output.weight)
    torch.testing.assert_close(torch.autograd.grad(loss.total, model.output.weight), wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_passes_that_agree_cost_nothing_more(kind):
    model, given = batch(kind)  # without dropout both passes are the same
    plain, twice = (FeatureObjective(model, 0.1, weight)(given) for weight in (0.0, 5.0))
    torch.testing.assert_close(twice.total, plain.total)
    assert int(twice.tokens) == int(plain.tokens)


def test_passes_that_differ_cost_more_while_training_alone():
    model, given = batch("mean")
    model.dropout = torch.nn.Dropout(0.5)
    objective = FeatureObjective(model, 0.0, 5.0)
    loss = objective(given)
    assert float(loss.total.detach()) > float(loss.nll) + 1e-3
    objective.eval()
    passes, features = [], model.features
    model.features = lambda inputs: passes.append(inputs) or features(inputs)
    loss = objective(given)
    assert float(loss.total.detach()) == float(loss.nll)
    assert len(passes) == 1


def test_only_bytes_are_scaled():
    floats = torch.rand(2, 3)
    assert model_inputs(floats) is floats
    assert float(model_inputs(torch.tensor([255], dtype=torch.uint8))) == 1.0
