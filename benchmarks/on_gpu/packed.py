"""Attention over packed rows of short sequences: against torch's kernel for sequences of any lengths, and padding.

The lengths are those of running text, 25 tokens in the mean. What is read and written is the limit: the pairs are few.
Padded rows are attended to under a mask, as one does without packing; to pad them is not counted.
"""

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import sized
import torch
from timing import Work
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention

import regard
from on_gpu.rows import Cost, Row, Setting, Table, measured
from regard.attention.mask_cache import Band, band_of

OURS, VARLEN, PADDED = "regard", "torch, varlen_attn", "torch, padded"


def tables(setting: Setting) -> Iterator[Table]:
    """Each sequence by itself, with and without a causal mask."""
    count, H, D = (3, 2, 16) if setting.tiny else (480, 8, 64)
    lengths = torch.tensor([len(row) for row in sized.sources(count, 100)])
    if setting.tiny:
        lengths = lengths.clamp(max=6)
    rows, N = list[Row](), int(lengths.sum())
    for causal in (False, True):
        works = {OURS: _ours(setting, lengths, H, D, causal=causal),
                 VARLEN: _varlen(setting, lengths, H, D, causal=causal),
                 PADDED: _padded(setting, lengths, H, D, causal=causal)}
        pairs = float((lengths * lengths).sum()) * H / (2 if causal else 1)
        # forward: three are read and one written; backward: five are read and three written
        cost = Cost(products=14 * pairs * D, special=2 * pairs, bytes=12 * N * H * D * setting.dtype.itemsize)
        rows += measured("causal" if causal else "no other mask", works, setting, base=OURS, cost=cost, repeats=21)
    tensors = [setting.random(1, H, N, D) for _ in range(3)]
    chosen = regard.explain(*tensors, mask=_band(setting, lengths, causal=False)).backend
    yield Table(f"{count} packed sequences, {N:,} tokens, at most {int(lengths.max())}, H {H}, d {D}, forward and "
                f"backward; chosen: {chosen}", OURS, rows)


def _ours(setting: Setting, lengths: Tensor, H: int, D: int, *, causal: bool) -> Work:
    N = int(lengths.sum())
    tensors = [setting.random(1, N, H, D).transpose(1, 2) for _ in range(3)]  # as projections leave them
    band = _band(setting, lengths, causal=causal)
    return _training(partial(regard.attend, mask=band, backend=None if setting.on_gpu else "band"), tensors)


def _band(setting: Setting, lengths: Tensor, *, causal: bool) -> Band | None:
    """What depends on the lengths alone: it is made once for all layers of a model."""
    N, mask = int(lengths.sum()), regard.Packed(lengths.to(setting.device))
    whole = mask & regard.Causal() if causal else mask
    return band_of(whole.prepare(N, N, setting.device), N, N, leading=2, device=setting.device)


def _varlen(setting: Setting, lengths: Tensor, H: int, D: int, *, causal: bool) -> Work:
    tensors = [setting.random(int(lengths.sum()), H, D) for _ in range(3)]
    ends = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)]).to(setting.device, torch.int32)
    most = int(lengths.max())
    newer = "window_size" in inspect.signature(varlen_attn).parameters
    options: dict[str, Any] = ({"window_size": (-1, 0)} if newer else {"is_causal": True}) if causal else {}

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if not setting.on_gpu:
            raise ValueError("it is for GPUs")
        output: Any = varlen_attn(query, key, value, ends, ends, most, most, **options)
        return output

    return _training(attend, tensors)


def _padded(setting: Setting, lengths: Tensor, H: int, D: int, *, causal: bool) -> Work:
    N = int(lengths.max())
    tensors = [setting.random(len(lengths), H, N, D) for _ in range(3)]
    place = torch.arange(N, device=setting.device)
    allowed = (place < lengths.to(setting.device).unsqueeze(-1))[:, None, None, :]
    if causal:
        allowed = allowed & (place <= place.unsqueeze(-1))
    matrix = allowed.expand(-1, -1, N, -1).contiguous()
    return _training(partial(scaled_dot_product_attention, attn_mask=matrix), tensors)


def _training(attend: Callable[..., Tensor], tensors: list[Tensor]) -> Work:
    upstream = torch.randn_like(tensors[0])

    def work() -> None:
        torch.autograd.grad(attend(*tensors), tensors, upstream)

    return work
