"""The sums of columns: float64's, for any size, in one stage and in two."""

import pytest
import torch

pytest.importorskip("triton")
from regard.kernels import column_sums as columns
from regard.kernels.column_sums import column_sums, note_column_sums

pytestmark = pytest.mark.thorough

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (33, 130), (2, 5, 40), (200, 9)], ids=str)
@pytest.mark.parametrize("programs", [1, 6, 1024])
def test_it_is_the_sum(shape, dtype, programs, monkeypatch):
    monkeypatch.setattr(columns, "PROGRAMS", programs)
    x = torch.randn(shape, device=DEVICE).to(dtype)
    for wanted in (dtype, torch.float32):
        rows = x.double().flatten(0, -2)
        got = column_sums(x, wanted)
        assert got.dtype == wanted
        assert (got.double() - rows.sum(0)).abs().max() <= torch.finfo(wanted).eps * rows.abs().sum(0).max()


def test_numbers_that_are_not_in_order_in_memory():
    x = torch.randn(9, 70, device=DEVICE)
    torch.testing.assert_close(column_sums(x.t(), torch.float32), x.sum(1))
    one = torch.ones((), device=DEVICE)
    assert (column_sums(one.expand(70, 5), torch.float32) == 70).all()


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(35_000, 512), (35_000, 2048), (100_001, 37)], ids=str)
def test_large_ones_and_the_same_every_time(shape):
    x = torch.randn(shape, device="cuda").to(torch.bfloat16)
    want = x.double().sum(0)
    got = column_sums(x, torch.float32)
    assert (got.double() - want).abs().max() < 1e-5 * x.double().abs().sum(0).max()
    assert torch.equal(column_sums(x, torch.float32), got)


@pytest.mark.parametrize("sums", [torch.arange(5.0), torch.arange(10.0).view(2, 5)], ids=["found", "in part"])
def test_what_is_noted_is_not_summed_again(sums):
    sums = sums.to(DEVICE)
    x, want = torch.randn(4, 3, 5, device=DEVICE), sums if sums.dim() == 1 else sums.sum(0)
    for dtype in (torch.float32, torch.bfloat16):
        note_column_sums(x, sums)
        assert torch.equal(column_sums(x, dtype), want.to(dtype))
    torch.testing.assert_close(column_sums(x, torch.float32), x.flatten(0, 1).sum(0))  # it was taken
    note_column_sums(x, sums)
    for other in (x.clone(), x.reshape(-1, 5), x[1:], 2 * x):  # they are not what was noted
        torch.testing.assert_close(column_sums(other, torch.float32), other.flatten(0, -2).sum(0))
    x.mul_(3.0)
    torch.testing.assert_close(column_sums(x, torch.float32), x.flatten(0, 1).sum(0))
