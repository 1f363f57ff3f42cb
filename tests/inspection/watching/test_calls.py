"""Calls of torch's functions are told to who listens, once each; afterwards torch is as it was."""

import threading

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.functional import scaled_dot_product_attention as imported

from regard.inspection.foreign import FUSED, SOFTMAX, ListeningMode, listen_by_name, running_module

X = torch.randn(1, 2, 3, 4)
CALLS = {
    "fused": (FUSED, lambda: F.scaled_dot_product_attention(X, X, X)),
    "of functional": (SOFTMAX, lambda: F.softmax(X, dim=-1)),
    "of torch": (SOFTMAX, lambda: torch.softmax(input=X, dim=-1)),
    "of a module": (SOFTMAX, lambda: nn.Softmax(dim=-1)(X)),
    "method": (SOFTMAX, lambda: X.softmax(-1)),
    "imported": (FUSED, lambda: imported(X, X, X)),
}
OWN_NAME = ("imported", "method")


def functions():
    return F.scaled_dot_product_attention, F.softmax, torch.softmax, Tensor.softmax


@pytest.mark.parametrize("call", sorted(CALLS))
@pytest.mark.parametrize("way", [listen_by_name, ListeningMode])
def test_every_call_is_told_once(way, call):
    name, run = CALLS[call]
    plain, before, told = run(), functions(), []
    with way(lambda *one: told.append(one)):
        result = run()
    assert functions() == before
    assert torch.equal(result, plain)
    expected = [] if way is listen_by_name and call in OWN_NAME else [name]
    assert [one[0] for one in told] == expected
    for one in told:
        assert one[3] is result
    run()
    assert len(told) == len(expected)


def test_listeners_end_in_any_order():
    before, first, second = functions(), [], []
    one, other = listen_by_name(lambda *told: first.append(told)), listen_by_name(lambda *told: second.append(told))
    one.__enter__()
    other.__enter__()
    F.softmax(X, dim=-1)
    one.__exit__(None, None, None)
    F.softmax(X, dim=-1)
    other.__exit__(None, None, None)
    F.softmax(X, dim=-1)
    assert (len(first), len(second)) == (1, 2)
    assert functions() == before


def test_an_exception_puts_everything_back():
    before = functions()
    with pytest.raises(RuntimeError), listen_by_name(lambda *told: None):
        raise RuntimeError
    assert functions() == before


class Asks(nn.Module):
    """A module that asks, below and above others, which one runs."""

    def __init__(self, known, inner=None):
        super().__init__()
        self.known, self.inner, self.found = known, inner, []

    def forward(self):
        self.found.append(running_module(self.known))
        if self.inner is not None:
            self.inner()
        self.found.append(running_module(self.known))


def test_the_innermost_of_the_modules_that_are_known():
    known: set[int] = set()
    stranger = Asks(known)
    inner = Asks(known, stranger)
    outer = Asks(known, inner)
    known |= {id(inner), id(outer)}
    outer()
    assert outer.found == [outer, outer]
    assert inner.found == stranger.found == [inner, inner]
    assert running_module(known) is None


def test_what_runs_in_one_thread_is_not_what_runs_in_another():
    known: set[int] = set()
    found = []

    class Waits(nn.Module):
        def forward(self):
            thread = threading.Thread(target=lambda: found.append(running_module(known)))
            thread.start()
            thread.join()

    module = Waits()
    known.add(id(module))
    module()
    assert found == [None]
