"""What a `torch.nn.MultiheadAttention` looks at, from its inputs: a `Look` with the same weights.

Its masks say who may *not* attend, or are added; both forms are brought into those of regard. `bias_k` and
`add_zero_attn` add a key each behind those of the input. It knows this one module, and does not run it.

Legend: B rows, H heads, n queries, N keys, E width, D width of a head.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.attention.look import Look
from regard.attention.mask import Allowed, Mask


def inputs(module: nn.MultiheadAttention, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[dict[str, Any], None]:
    """The arguments of a call that say what is looked at, by name."""
    order = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask")
    given = dict(zip(order, args, strict=False)) | kwargs
    return {name: given.get(name) for name in ("query", "key", "key_padding_mask", "attn_mask")}, None


@torch.no_grad()
def look_of(module: nn.MultiheadAttention, given: dict[str, Any], norm: nn.Module | None = None) -> Look:
    """The look of a call; `norm` is applied to the input first, where the layer around the module does so."""
    query, key = given["query"], given["key"]
    padding, mask = given["key_padding_mask"], given["attn_mask"]
    same = query is key
    if query.is_nested:
        lengths = torch.tensor([len(one) for one in query.unbind()], device=query.device)
        query = key = torch.nested.to_padded_tensor(query, 0.0)
        padding = torch.arange(query.shape[1], device=query.device) >= lengths.unsqueeze(-1)
    if norm is not None:
        query = norm(query)
        key = query if same else norm(key)
    batched = query.dim() == 3
    if batched and not module.batch_first:
        query, key = query.transpose(0, 1), key.transpose(0, 1)
    query_weight, key_weight, query_bias, key_bias = _projections(module)
    q = _split(F.linear(query, query_weight, query_bias), module.num_heads)
    k = _split(F.linear(key, key_weight, key_bias), module.num_heads)
    if module.bias_k is not None:
        own = _split(module.bias_k.reshape(1, -1), module.num_heads)
        k = torch.cat([k, own.expand(*k.shape[:-2], 1, -1)], dim=-2)
    if module.add_zero_attn:
        k = F.pad(k, (0, 0, 0, 1))
    allowed, added = _masks(mask, padding, q, key.shape[-2], k.shape[-2])
    return Look(q, k, None, mask=allowed, bias=added)


def _projections(module: nn.MultiheadAttention) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Weights and biases of queries and keys."""
    together: Tensor | None = module.in_proj_weight
    biases: Tensor | None = module.in_proj_bias
    weights = (module.q_proj_weight, module.k_proj_weight) if together is None else together.chunk(3)[:2]
    query_bias, key_bias = (None, None) if biases is None else biases.chunk(3)[:2]
    return weights[0], weights[1], query_bias, key_bias


def _masks(mask: Tensor | None, padding: Tensor | None, q: Tensor, count: int,
           keys: int) -> tuple[Mask | None, Tensor | None]:
    """Who may attend, and what is added, for `count` keys of the input among all `keys`."""
    forms = []
    if mask is not None:
        if mask.dim() == 3 and q.dim() == 4:
            mask = mask.unflatten(0, (-1, q.shape[-3]))  # (B · H, n, N)
        forms.append(mask)
    if padding is not None:
        forms.append(padding[..., None, None, :] if padding.dim() == 2 else padding)
    allowed: Mask | None = None
    added: Tensor | None = None
    for form in forms:
        if form.is_floating_point() and bool(((form == 0) | (form == -torch.inf)).all()):
            form = form != 0  # torch makes numbers of flags
        if form.dtype == torch.bool:
            one = Allowed(F.pad(~form, (0, keys - count), value=True))
            allowed = one if allowed is None else allowed & one
        else:
            more = F.pad(form.to(q.dtype), (0, keys - count))
            added = more if added is None else added + more
    return allowed, added


def _split(projected: Tensor, heads: int) -> Tensor:
    """(..., N, E) -> (..., H, N, D)."""
    return projected.unflatten(-1, (heads, -1)).transpose(-3, -2)
