"""The ways: equal but for the way, none sees the future, and convolution sees the first token."""

import pytest
import torch

from regard.comparison.memory import MEMORY_MIXERS, MemoryModel, build_model
from regard.comparison.memory_tasks import MEMORY_TASKS, make_task


@pytest.mark.parametrize("way", MEMORY_MIXERS)
@pytest.mark.parametrize("name", MEMORY_TASKS)
def test_every_way_reads_every_task_and_has_as_many_parameters_as_it_may(name, way):
    made = make_task(name, 16)
    model = build_model(made, way, 12_000)
    batch = made.batch(2, torch.Generator().manual_seed(0))
    outputs = model(batch.inputs)
    assert outputs.shape == (2, made.tokens, made.outputs)
    width = model.output.in_features
    counts = [sum(parameter.numel() for parameter in MemoryModel(made, MEMORY_MIXERS[way], size).parameters())
              for size in (width, width + 8)]
    assert counts[0] <= 12_000 < counts[1]
    assert counts[0] == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("way", MEMORY_MIXERS)
def test_no_way_sees_the_future_and_all_see_the_first_token(way):
    made = make_task("copy", 200)
    model = build_model(made, way, 60_000).double().eval()
    inputs = made.batch(1, torch.Generator().manual_seed(0)).inputs
    x = model.read(inputs).detach().requires_grad_()
    outputs = model.output(model.stack(x))
    (late,) = torch.autograd.grad(outputs[0, 100].sum(), x, retain_graph=True)
    assert not late[0, 101:].any()
    (early,) = torch.autograd.grad(outputs[0, -1].sum(), x)
    assert early[0, 0].any()


@pytest.mark.parametrize(("tokens", "layers"), [(5, 1), (6, 2), (14, 2), (15, 3), (1044, 8)])
def test_convolution_is_as_deep_as_it_must_be_and_no_deeper(tokens, layers):
    model = build_model(make_task("adding", tokens), "convolution", 200_000)
    assert len(model.stack.blocks) == layers
    assert model.seen >= 1.5 * tokens > 1 + 7 * (2 ** (layers - 1) - 1)


def test_what_is_wrong_is_said():
    with pytest.raises(ValueError, match=r"`parameters` must be at least .* for convolution and 40 tokens"):
        build_model(make_task("copy", 20), "convolution", 100)
    with pytest.raises(ValueError, match="Did you mean \"convolution\""):
        build_model(make_task("copy", 20), "convolutions", 10_000)
