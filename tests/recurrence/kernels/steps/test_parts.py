"""The parts of the kernels, each in a kernel of its own: tanh to the last digits, products of odd sizes."""

import numpy as np
import pytest
import torch
from recurrent import normal

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
parts = pytest.importorskip("regard.kernels.recurrence.triton_steps")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@triton.jit
def squash(x, y, SIZE: tl.constexpr):  # noqa: N803
    place = tl.arange(0, SIZE)
    tl.store(y + place, parts.tanh(tl.load(x + place)))


@triton.jit
def multiply(a, b, out, rows, columns, DEPTH: tl.constexpr, BLOCK: tl.constexpr, COUNT: tl.constexpr):  # noqa: N803
    row, column = tl.arange(0, BLOCK), tl.arange(0, BLOCK)
    place = out + row[:, None] * columns + column[None, :]
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    first, second, third, fourth = parts.products(
        a, row * DEPTH, row < rows, b, column * DEPTH, column < columns, columns * DEPTH, COUNT, BLOCK, BLOCK, DEPTH,
        BLOCK, "tf32x3")
    first = parts.product(first, a, row * DEPTH, row < rows, b, column * DEPTH, column < columns, DEPTH, BLOCK,
                          "tf32x3")
    tl.store(place, first, mask=mask)
    tl.store(place + rows * columns, second, mask=mask)
    tl.store(place + 2 * rows * columns, third, mask=mask)
    tl.store(place + 3 * rows * columns, fourth, mask=mask)


def test_tanh():
    large, small = np.linspace(-20.0, 20.0, 2000), np.logspace(-30, 0, 2090)
    ends = [0.0, -0.0, np.inf, -np.inf, 0.125, -0.125]
    x = torch.from_numpy(np.concatenate([large, small, ends])).float().to(DEVICE)
    y = torch.empty_like(x)
    squash[(1,)](x, y, SIZE=4096)
    truth = x.double().tanh()
    assert len(x) == 4096
    assert ((y.double() - truth).abs() <= 5e-7 * truth.abs()).all()
    assert torch.equal(y[-6:-2].cpu(), torch.tensor([0.0, 0.0, 1.0, -1.0]))


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize(("rows", "columns", "depth"), [(1, 1, 1), (16, 16, 32), (5, 7, 37)])
def test_products(rows, columns, depth, count):
    """The first one is added to itself. What lies behind the numbers is not read."""
    a, b = normal(rows, depth, dtype=torch.float32), normal(4 * columns, depth, seed=1, dtype=torch.float32)
    truth = (a.double() @ b.double().T).unflatten(1, (4, columns)).transpose(0, 1)
    truth[0] *= 2.0
    truth[count:] = 0.0
    behind = torch.full((1, depth), torch.nan)
    out = torch.full((4, rows, columns), torch.nan, device=DEVICE)
    b[count * columns:] = torch.nan
    multiply[(1,)](torch.cat([a, behind]).to(DEVICE), torch.cat([b, behind]).to(DEVICE), out, rows, columns,
                   DEPTH=depth, BLOCK=16, COUNT=count)
    assert (out.cpu() - truth).abs().max() < 1e-5 * truth.abs().max().clamp(min=1.0)
