"""Where kernels written in Triton run: on a GPU, in numbers that they read, if Triton is there."""

import pytest
import torch

from regard.attention.kernels import compiled
from regard.attention.kernels.compiled import usable


class OnGPU(torch.Tensor):
    """A tensor that says that it is on a GPU."""

    is_cuda = True


def there(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype).as_subclass(OnGPU)


@pytest.fixture
def _installed(monkeypatch):
    monkeypatch.setattr(compiled, "_installed", lambda: True)


@pytest.mark.usefixtures("_installed")
def test_what_it_asks_of_tensors():
    assert usable(there(2), there(3, dtype=torch.bfloat16))
    assert not usable(there(2), torch.zeros(2))
    assert not usable(there(2), there(2, dtype=torch.double))
    assert not usable(there(2), there(0))


def test_without_triton_nothing_is(monkeypatch):
    monkeypatch.setattr(compiled, "_installed", lambda: False)
    assert not usable(there(2))


@pytest.mark.usefixtures("_installed")
def test_inside_of_a_compiler_the_plain_way_is_taken(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not usable(there(2))


@pytest.mark.gpu
def test_on_a_gpu():
    assert usable(torch.zeros(2, device="cuda"))
    assert not usable(torch.zeros(2, device="cuda", dtype=torch.double))
