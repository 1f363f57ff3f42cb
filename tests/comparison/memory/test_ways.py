"""The ways: equal but for the way, none sees the future, and convolution sees the first token."""

import pytest
import torch

from regard.comparison.memory.tasks import TASKS, task
from regard.comparison.memory.ways import WAYS, Reader, reader


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", TASKS)
def test_every_way_reads_every_task_and_has_as_many_parameters_as_it_may(name, way):
    made = task(name, 16)
    model = reader(made, way, 12_000)
    batch = made.batch(2, torch.Generator().manual_seed(0))
    outputs = model(batch.inputs)
    assert outputs.shape == (2, made.tokens, made.outputs)
    width = model.output.in_features
    counts = [sum(parameter.numel() for parameter in Reader(made, WAYS[way], size).parameters())
              for size in (width, width + 8)]
    assert counts[0] <= 12_000 < counts[1]
    assert counts[0] == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("way", WAYS)
def test_no_way_sees_the_future_and_all_see_the_first_token(way):
    made = task("copy", 200)
    model = reader(made, way, 60_000).double().eval()
    inputs = made.batch(1, torch.Generator().manual_seed(0)).inputs
    x = model.read(inputs).detach().requires_grad_()
    outputs = model.output(model.stack(x))
    (late,) = torch.autograd.grad(outputs[0, 100].sum(), x, retain_graph=True)
    assert not late[0, 101:].any()
    (early,) = torch.autograd.grad(outputs[0, -1].sum(), x)
    assert early[0, 0].any()


@pytest.mark.parametrize(("tokens", "layers"), [(5, 1), (6, 2), (14, 2), (15, 3), (1044, 8)])
def test_convolution_is_as_deep_as_it_must_be_and_no_deeper(tokens, layers):
    model = reader(task("adding", tokens), "convolution", 200_000)
    assert len(model.stack.blocks) == layers
    assert model.seen >= 1.5 * tokens > 1 + 7 * (2 ** (layers - 1) - 1)


def test_what_is_wrong_is_said():
    with pytest.raises(ValueError, match=r"`parameters` must be at least .* for convolution and 40 tokens"):
        reader(task("copy", 20), "convolution", 100)
    with pytest.raises(ValueError, match="Did you mean \"convolution\""):
        reader(task("copy", 20), "convolutions", 10_000)
