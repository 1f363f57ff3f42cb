"""Steps back that are followed on a CPU: the texts of hypotheses that have changed places at every token."""

import math

import pytest
import torch

pytest.importorskip("triton")

from regard.decoding.request import Hypothesis
from regard.decoding.search_state import read_pool
from regard.kernels.decoding import BackPointers, PoolBuffers


def test_texts_are_found_by_steps_back():
    """Row 1 has two hypotheses, "ab" and "cd"; at its third token both continue the second one."""
    tokens = torch.tensor([[[1, 2, 3], [4, 5, 6]], [[10, 11, 12], [13, 14, 15]]], dtype=torch.int32)
    parents = torch.tensor([[[0, 0, 0], [0, 0, 1]], [[0, 1, 1], [0, 0, 1]]], dtype=torch.int32)
    logs = -tokens.double() / 10
    whole = torch.int32
    pool = PoolBuffers(torch.tensor([[-1.0, -2.0], [-3.0, -math.inf]]).double(),
                 torch.tensor([[0, 1], [0, 1]], dtype=whole), torch.tensor([[3, 3], [4, 0]], dtype=whole),
                 torch.tensor([[-2, 1], [0, -1]], dtype=whole), torch.tensor([[0, 0], [2, 0]], dtype=whole),
                 torch.tensor([[0.0, 0.0], [-0.5, 0.0]]).double())

    def old(row, came, length):
        assert (row, came, length) == (0, 1, 3)
        return [7, 8, 2], [-0.1, -0.2, -0.3]

    found = read_pool(BackPointers(tokens, logs, parents), pool, old)
    assert found == [
        [Hypothesis([7, 8], [-0.1, -0.2, -0.3], -1.0, 2), Hypothesis([1, 5, 6], [-0.1, -0.5, -0.6], -2.0, None)],
        [Hypothesis([10, 14, 12], [-1.0, -1.4, -1.2, -0.5], -3.0, 2)]]


def test_nothing_written_gives_nothing():
    steps = BackPointers(*(torch.zeros(1, 1, 2, dtype=kind) for kind in (torch.int32, torch.float64, torch.int32)))
    nothing = torch.zeros(1, 1, dtype=torch.int32)
    pool = PoolBuffers(torch.tensor([[-math.inf]]), nothing + 1, nothing, nothing - 1, nothing, nothing.double())
    assert read_pool(steps, pool, lambda *given: pytest.fail("nobody asks")) == [[]]
