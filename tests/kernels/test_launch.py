"""Where kernels of our own can run, and that nothing is launched for nothing."""

import pytest
import torch

from regard.kernels import launch
from regard.kernels.launch import usable

pytestmark = pytest.mark.thorough

CPU, GPU = torch.device("cpu"), torch.device("cuda")


class OnGPU(torch.Tensor):
    """A tensor that says that it is on a GPU."""

    is_cuda = True


def there(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype).as_subclass(OnGPU)


def test_kernels_are_for_gpus_or_for_the_interpreter(monkeypatch):
    monkeypatch.setattr(launch, "installed", lambda: True)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert "GPUs" in launch.why_not(CPU)
    assert launch.why_not(GPU) is None
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert launch.why_not(CPU) is None


def test_without_triton_there_are_none(monkeypatch):
    monkeypatch.setattr(launch, "installed", lambda: False)
    assert "not installed" in launch.why_not(GPU)
    assert not usable(there(2))


def test_an_empty_grid_launches_nothing(monkeypatch):
    launched = []
    monkeypatch.setattr(launch, "_run", lambda *given: launched.append(given))
    launch.launch("kernel", (3, 0), 1)
    assert launched == []
    launch.launch("kernel", (3, 2), 1, SIZE=4)
    assert launched == [("kernel", (3, 2), (1,), {"SIZE": 4})]


def test_sizes_are_powers_of_two():
    assert [launch.next_power_of_2(count) for count in (1, 2, 3, 5, 64, 65)] == [1, 2, 4, 8, 64, 128]


def test_what_is_asked_of_tensors(monkeypatch):
    monkeypatch.setattr(launch, "installed", lambda: True)
    assert usable(there(2), there(3, dtype=torch.bfloat16))
    assert not usable(there(2), torch.zeros(2))
    assert not usable(there(2), there(2, dtype=torch.double))
    assert not usable(there(2), there(0))


def test_inside_of_a_compiler_the_plain_way_is_taken(monkeypatch):
    monkeypatch.setattr(launch, "installed", lambda: True)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not usable(there(2))


class Squared(torch.autograd.Function):
    """A gradient that is written out."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @launch.once_differentiable
    def backward(ctx, above):
        return 2.0 * ctx.saved_tensors[0] * above


def test_a_gradient_that_is_written_out_is_no_constant():
    """Of torch's own, the penalty would have no gradient here, and nobody would be told."""
    x = torch.tensor(3.0, requires_grad=True)
    assert torch.autograd.grad(Squared.apply(x), x) == (torch.tensor(6.0),)
    with pytest.raises(ValueError, match="`create_graph` must be False"):
        torch.autograd.grad(Squared.apply(x), x, create_graph=True)


@pytest.mark.gpu
def test_on_a_gpu():
    assert usable(torch.zeros(2, device="cuda"))
    assert not usable(torch.zeros(2, device="cuda", dtype=torch.double))
