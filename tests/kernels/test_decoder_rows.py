"""What stands between matrix products, in Triton: torch's norms, and the embedding of a token at its place."""

import pytest
import torch
from torch import nn

pytest.importorskip("triton")

from interpreting import only_interpreted  # noqa: F401

from regard.kernels.decoder_rows import add_norm_rows, embed_rows, why_not_norm

pytestmark = pytest.mark.thorough

DTYPES = [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 5e-2)]
NORMS = [nn.LayerNorm(10), nn.LayerNorm(10, 1e-3, bias=False), nn.LayerNorm(10, elementwise_affine=False),
         nn.RMSNorm(10), nn.RMSNorm(10, 1e-3)]


def check(norm, dtype, tolerance, device="cpu", width=10):
    norm = norm.to(device, dtype)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    x, added = (torch.randn(3, width).to(device, dtype) for _ in range(2))
    total, output = add_norm_rows(x, added, norm)
    torch.testing.assert_close(total, x + added, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(output, norm(x + added), rtol=tolerance, atol=tolerance)
    total, output = add_norm_rows(x, None, norm)
    assert total is x
    torch.testing.assert_close(output, norm(x), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("norm", NORMS, ids=repr)
@torch.no_grad()
def test_norms_are_those_of_torch(norm, dtype, tolerance):
    check(norm, dtype, tolerance)


@torch.no_grad()
def test_a_token_and_its_place():
    table, places = torch.randn(7, 5, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    tokens, positions = torch.tensor([6, 0, 3]), torch.tensor([0, 3, 1])
    torch.testing.assert_close(embed_rows(tokens, positions, table, places, 1.7),
                               1.7 * table[tokens] + places[positions])
    torch.testing.assert_close(embed_rows(tokens, positions, table, None, 1.0), table[tokens])


def test_other_norms_are_refused():
    assert why_not_norm(nn.LayerNorm(4)) is None
    assert "BatchNorm1d" in why_not_norm(nn.BatchNorm1d(4))
    assert "LayerNorm" in why_not_norm(nn.LayerNorm((2, 4)))


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@torch.no_grad()
def test_on_a_gpu_norms_are_those_of_torch(dtype, tolerance):
    for width in (10, 512, 1500):
        check(nn.LayerNorm(width), dtype, tolerance, "cuda", width)
        check(nn.RMSNorm(width), dtype, tolerance, "cuda", width)
