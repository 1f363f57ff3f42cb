"""CUDA graphs of a step, and pinned batches."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from learning import points
from torch import Tensor

from regard.data.batches.batch import Batch
from regard.tokens import PackedTokens, Tokens
from regard.training import engine
from regard.training.engine import GraphedCallable, iter_tensors, pin_batch


def batch():
    source = PackedTokens(torch.tensor([[5, 6, 7]]), torch.tensor([1, 2]))
    return Batch(source, Tokens(torch.tensor([[1, 2]]), torch.tensor([2])), torch.tensor([[3, 4]]), np.array([9]), 2)


def test_tensors_in_the_order_of_the_fields():
    found = list(iter_tensors((batch(), [torch.tensor(8)], "text", None, 3)))
    assert [one.tolist() for one in found] == [[[5, 6, 7]], [1, 2], [[1, 2]], [2], [[3, 4]], 8]
    assert list(iter_tensors(())) == []


def test_pinned_is_the_same_batch_elsewhere(monkeypatch):
    moved = []
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: moved.append(self) or self.clone())
    given = batch()
    found = pin_batch(given)
    assert [one.tolist() for one in iter_tensors((found,))] == [one.tolist() for one in iter_tensors((given,))]
    assert [id(one) for one in moved] == [id(one) for one in iter_tensors((given,))]
    assert type(found.source) is PackedTokens
    assert found.tokens == 2
    assert found.numbers is given.numbers
    assert pin_batch("text") == "text"
    assert pin_batch(Tokens) is Tokens  # a class has fields, and is no batch


@dataclass(frozen=True)
class Ids:
    """An argument that moves."""

    values: Tensor

    def to(self, device):
        return Ids(self.values.to(device))


@pytest.mark.gpu
def test_what_is_replayed_is_what_would_run():
    total, asked = torch.zeros((), device="cuda"), []

    def work(ids):
        asked.append(len(ids.values))
        total.add_((ids.values.to("cuda") * 2).sum())

    captured = GraphedCallable(work)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        expected = 0.0
        for turn in range(12):
            length = 3 + turn % 3
            values = torch.arange(length, dtype=torch.float32) + turn
            expected += 2 * float(values.sum())
            captured(Ids(values))
    stream.synchronize()
    assert total.item() == expected
    assert asked == [3, 4, 5] * 2  # once as it is, once to be recorded, and never again
    assert len(captured.graphs) == 3


@pytest.mark.gpu
def test_no_more_shapes_than_there_is_room_for(monkeypatch):
    monkeypatch.setattr(engine, "MAX_GRAPHS", 2)
    asked = []

    def work(batch):
        asked.append(batch.tokens)
        batch.given.mul_(2.0)  # on the device: torch warns of a recording of nothing

    captured = GraphedCallable(work)
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(4):
            for length in (1, 2, 3):
                captured(points(range(length)))
    assert len(captured.graphs) == 2
    assert asked.count(3) == 4
    assert asked.count(1) == asked.count(2) == 2
