"""The attention of a step, in Triton: the definition, whatever the sizes, and keys stay where they lie."""

import pytest
import torch

pytest.importorskip("triton")

from interpreting import only_interpreted  # noqa: F401

from regard.kernels import decode_attention

pytestmark = pytest.mark.thorough

DTYPES = [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)]


def attended(query, keys, values, scale):
    """(H, D), (H, n, D), (H, n, E) -> (H, E), in float64."""
    query, keys, values = (part.double() for part in (query, keys, values))
    weights = (torch.einsum("hd,hnd->hn", query, keys) * scale).softmax(-1)
    return torch.einsum("hn,hne->he", weights, values)


def check_own(dtype, tolerance, device="cpu", heads=4, key_heads=2, width=5, value_width=3, places=37):
    """Two families of three rows, whose tokens lie in any row of their family."""
    rows, each, shared = 6, 3, heads // key_heads
    positions = torch.tensor([0, 0, 0, 33, 33, 33], device=device)
    query, key, value, keys, values = (torch.randn(*shape, dtype=torch.float32).to(device, dtype) for shape in (
        (rows, 2 * heads, width), (rows, key_heads, width), (rows, key_heads, value_width),
        (rows, key_heads, places, width), (rows, key_heads, places, value_width)))
    query = query[:, heads:]  # rows that are apart
    table = torch.randint(0, each, (rows, places), dtype=torch.int32) + torch.tensor([[0]] * 3 + [[3]] * 3).int()
    table = table.to(device)
    for row, here in enumerate(positions.tolist()):
        keys[row, :, here:], values[row, :, here:] = torch.nan, torch.inf  # nobody reads what is not there
    before = keys.clone(), values.clone()
    found = decode_attention.self_attention_step(query, key, value, keys, values, table, positions, 0.3)
    for row, here in enumerate(positions.tolist()):
        lying = [table[row, c] for c in range(here)]
        mine = [torch.stack([*(old[lies, :, c] for c, lies in enumerate(lying)), new[row]], 1)
                for old, new in zip(before, (key, value), strict=True)]
        expected = attended(query[row], *(part.repeat_interleave(shared, 0) for part in mine), 0.3)
        assert (found[row].double() - expected).abs().max() <= tolerance
        assert torch.equal(keys[row, :, here], key[row])
        assert torch.equal(values[row, :, here], value[row])
        assert torch.equal(keys[row, :, :here], before[0][row, :, :here])


def check_context(dtype, tolerance, device="cpu", heads=4, key_heads=2, width=5, value_width=3, places=35):
    each, lengths = 2, [0, 35, 7]
    query = torch.randn(6, heads, width).to(device, dtype)
    beside = torch.randn(3, places, key_heads * (width + value_width)).to(device, dtype)
    keys, values = beside.split([key_heads * width, key_heads * value_width], dim=-1)
    keys, values = keys.unflatten(-1, (key_heads, width)), values.unflatten(-1, (key_heads, value_width))
    for context, count in enumerate(lengths):
        beside[context, count:] = torch.nan
    found = decode_attention.cross_attention_step(query, keys, values, torch.tensor(lengths, device=device), each, 0.3)
    for row in range(6):
        count = lengths[row // each]
        mine = [part[row // each, :count].transpose(0, 1).repeat_interleave(heads // key_heads, 0)
                for part in (keys, values)]
        expected = attended(query[row], *mine, 0.3) if count else torch.zeros(heads, value_width, device=device)
        assert (found[row].double() - expected).abs().max() <= tolerance


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_self_attention_is_the_definition(dtype, tolerance):
    check_own(dtype, tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_cross_attention_is_the_definition(dtype, tolerance):
    check_context(dtype, tolerance)


@pytest.mark.parametrize("width", [1, 8, 130])
def test_heads_of_any_width(width):
    check_own(torch.float32, 1e-5, heads=1, key_heads=1, width=width, value_width=width)
    check_context(torch.float32, 1e-5, heads=1, key_heads=1, width=width, value_width=width)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("width", [3, 64, 256])
def test_on_a_gpu_it_is_the_definition(dtype, tolerance, width):
    check_own(dtype, tolerance, "cuda", width=width, value_width=width + 1 if width < 64 else width)
    check_context(dtype, tolerance, "cuda", width=width, value_width=width + 1 if width < 64 else width)
