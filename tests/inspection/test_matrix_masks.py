"""A matrix is recognised as what it means, and as nothing else."""

import pytest
import torch

from regard.attention.mask import BoolMask, Causal
from regard.inspection import records
from regard.inspection.records import recognize_mask


@pytest.mark.parametrize("rows", [1, 2, 1024])
@pytest.mark.parametrize(("n", "N"), [(1, 1), (3, 3), (5, 5), (2, 5), (5, 2)])
def test_causal_masks_and_none(n, N, rows, monkeypatch):
    monkeypatch.setattr(records, "ROWS_COMPARED", rows)
    causal = Causal().matrix(n, N)
    found = recognize_mask(causal.expand(3, n, N))
    assert found is None if causal.all() else type(found) is Causal
    assert recognize_mask(torch.ones(1, n, N, dtype=torch.bool)) is None
    for row, column in ((0, 0), (n - 1, N - 1), (n - 1, 0)):
        changed = causal.clone()
        changed[row, column] ^= True
        found = recognize_mask(changed)
        assert found is None if changed.all() else type(found) is BoolMask
        if found is not None:
            assert torch.equal(found.tensor, changed)
