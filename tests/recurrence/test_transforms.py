"""Recurrence under the transforms of torch: torch.func, torch.compile, and the meta device."""

import pytest
import torch

import regard
from regard import Padding

CELLS = ["rnn", "lstm", "gru", "mut1", "mut2", "mut3"]


@pytest.fixture(autouse=True)
def fresh_compiler():
    """Each case compiles anew, and the compiler gives up after eight."""
    torch._dynamo.reset()


def network(cell, **options):
    return regard.Recurrence(8, cell=cell, **options).double()


def loss_of(module):
    def loss(parameters, x, lengths=None):
        given = (x,) if lengths is None else (x, Padding(lengths))
        return torch.func.functional_call(module, parameters, given).square().sum()

    return loss


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("direction", ["forward", "both"])
def test_gradients_by_torch_func(cell, direction):
    module, x = network(cell, direction=direction), torch.randn(3, 40, 8, dtype=torch.float64)
    parameters, loss = dict(module.named_parameters()), loss_of(module)
    lengths = torch.tensor([40, 7, 0])
    found = torch.func.grad(loss)(parameters, x, lengths)
    loss(parameters, x, lengths).backward()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad)


@pytest.mark.parametrize("cell", CELLS)
def test_per_sample_gradients_of_padded_rows(cell):
    module, x = network(cell), torch.randn(3, 9, 8, dtype=torch.float64)
    parameters, loss, lengths = dict(module.named_parameters()), loss_of(module), torch.tensor([9, 4, 1])
    one = lambda parameters, x, length: loss(parameters, x[None], length[None])  # noqa: E731
    found = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0, 0))(parameters, x, lengths)
    for row in range(3):
        module.zero_grad()
        one(parameters, x[row], lengths[row]).backward()
        for name, parameter in module.named_parameters():
            torch.testing.assert_close(found[name][row], parameter.grad)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("padded", [False, True])
def test_training_compiles_into_one_graph(cell, padded):
    module, x, lengths = network(cell), torch.randn(2, 5, 8, dtype=torch.float64), torch.tensor([5, 3])
    given = (x, Padding(lengths)) if padded else (x,)
    compiled = torch.compile(lambda: module(*given).square().sum(), fullgraph=True, backend="aot_eager")
    compiled().backward()
    found = {name: parameter.grad for name, parameter in module.named_parameters()}
    module.zero_grad()
    module(*given).square().sum().backward()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad)


@pytest.mark.parametrize("cell", CELLS)
def test_the_meta_device(cell):
    with torch.device("meta"):
        module, x = regard.Recurrence(8, cell=cell), torch.randn(2, 40, 8)
    output = module(x)
    assert output.shape == (2, 40, 8)
    assert output.device.type == "meta"
    output.sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_a_whole_recurrent_model_compiles():
    model = regard.build("seq2seq-attention-tiny", source_vocab_size=20, target_vocab_size=20).eval()  # no dropout
    source, target = regard.Tokens.of([[1, 2, 3], [4, 5]]), regard.Tokens.of([[1, 2], [3, 4]])
    compiled = torch.compile(lambda: model(source, target).square().sum(), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(), model(source, target).square().sum(), atol=1e-4, rtol=1e-4)
