"""A step of one token in few operations, for generation.

One token is little work: the time of its step is the number of its operations. Here everything that depends on
parameters alone is computed once for many steps, and equal operations on different parts of a token are one operation:

    version 4   r, k, v are mixed together; wkv and the next state are computed together
    version 7   r, k, v, a, w, g are mixed together; r, k, v are one batched product; decay, learning rate and share
                of the first values are two batched products, with lesser ranks padded by zeros

A mixer packs its parameters at its first step of one token, and hands them on in its state. `stamp` shows whether they
have changed since: then they are packed again. (It cannot see what is written through `.data` in the middle of a
generation.) Those of version 7 take as much memory as the parameters, and as much time as two or three steps.
The recurrence is computed in float32 at least. There are no gradients here, no padding, and no tokens but one.

Legend: B rows, D width, H heads, K features of a head, L low-rank maps, R the largest of their ranks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from regard.kernels.launch import in_torch_func
from regard.kernels.linear import Linear
from regard.kernels.packed_linear import PackedForward
from regard.rwkv.wkv import MAX_LOG_DECAY, MIN_NORM, WKV4State, wkv4_token, wkv7_token

Stamp = tuple[int, ...]
_version = attrgetter("_version")


def stamp(parameters: Sequence[Tensor]) -> Stamp:
    """Numbers that change when torch writes to one of the parameters, or when its memory is replaced."""
    return (sum(map(_version, parameters)), *map(Tensor.data_ptr, parameters))


def can_pack(parameters: Iterable[Tensor], layers: Iterable[nn.Module]) -> bool:
    """Whether the layers are of the classes that are computed here, and changes of the parameters can be seen.

    torch does not count changes of tensors that were made in inference mode.
    """
    return (all(type(layer) in (Linear, nn.GroupNorm) for layer in layers)
            and not any(parameter.is_inference() for parameter in parameters))


def can_run(x: Tensor) -> bool:
    """Whether a packed step can compute these tokens, (B, n, D). A CUDA graph would not see later changes."""
    return (x.shape[1] == 1 and not torch.is_grad_enabled() and not torch._C._is_any_autocast_enabled()
            and not torch.compiler.is_compiling() and not in_torch_func()
            and not (x.is_cuda and torch.cuda.is_current_stream_capturing()))


def is_hooked(layer: nn.Module) -> bool:
    """Whether a call of a layer is more than what its class computes: it has hooks, or a forward pass of its own."""
    own = vars(layer)
    return bool(layer._forward_hooks or layer._forward_pre_hooks
                or ("forward" in own and not isinstance(own["forward"], PackedForward)))


def stack_padded(matrices: Sequence[Tensor]) -> Tensor:
    """Matrices as one tensor, (L, rows, columns), padded with zeros on the right and below."""
    rows, columns = (max(matrix.shape[dim] for matrix in matrices) for dim in (0, 1))
    return torch.stack([pad(one, (0, columns - one.shape[1], 0, rows - one.shape[0])) for one in matrices])


def stack_transposed(matrices: Sequence[Tensor]) -> Tensor:
    """Matrices of one shape, each transposed, as one tensor; `torch.stack` of views takes up to three times as long."""
    rows, columns = matrices[0].shape
    stacked = matrices[0].new_empty(len(matrices), columns, rows)
    for place, matrix in zip(stacked, matrices, strict=True):
        place.copy_(matrix.mT)
    return stacked


@dataclass(frozen=True, slots=True)
class PackedRWKV4:
    """The parameters of an `RWKV4` mixer, packed for steps of one token."""

    stamp: Stamp
    receptance: nn.Module
    key: nn.Module
    value: nn.Module
    output: nn.Module
    mixes: Tensor
    """(3, 1, D): of r, k and v."""
    decay: Tensor
    """(2, 1, D), float32 at least: 0 for the result, w for the next state."""
    bonus: Tensor
    """(2, 1, D), float32 at least: u for the result, 0 for the next state."""

    def step(self, x: Tensor, last: Tensor, state: WKV4State) -> tuple[Tensor, WKV4State]:
        """The result (B, D) of the token x (B, D) after the token `last`, and the next state."""
        x_r, x_k, x_v = torch.lerp(x, last, self.mixes).unbind()
        r, k, v = self.receptance(x_r), self.key(x_k).to(state.a.dtype), self.value(x_v).to(state.a.dtype)
        wkv, after = wkv4_token(k, v, self.decay, self.bonus, state)
        return self.output((torch.sigmoid(r) * wkv).to(x.dtype)), after


@dataclass(frozen=True, slots=True)
class PackedRWKV7:
    """The parameters of an `RWKV7` mixer, packed for steps of one token."""

    stamp: Stamp
    mixes: Tensor
    """(6, 1, D): of r, k, v, a, w and g."""
    projections: Tensor
    """(3, D, D), in × out, which a single row reads in the order of memory: of r, k and v."""
    output: Tensor
    """(D, D), in × out."""
    output_bias: Tensor | None
    first: Tensor
    """(L, D, R): the first factors of the low-rank maps to v (not in the first layer), a and w."""
    second: Tensor
    """(L, R, D): their second factors."""
    constant: Tensor
    """(L, 1, D): v0 (not in the first layer), a0 and w0."""
    g1: Tensor
    g2: Tensor
    k_k: Tensor
    """(H, 1, K), float32 at least, as the others below."""
    k_a: Tensor
    r_k: Tensor
    norm_weight: Tensor
    norm_bias: Tensor
    epsilon: float

    def step(self, x: Tensor, last: Tensor, S: Tensor, early: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """The result (B, D) of the token x (B, D) after the token `last`, the next S, and the values, (B, H, 1, K).

        Args:
            S: (B, H, K, K), values × keys, float32 at least.
            early: the values of the first layer; None in the first layer.
        """
        heads, maps = (*S.shape[:2], 1, S.shape[-1]), len(self.first)
        mixed = torch.lerp(x, last, self.mixes)
        hidden = torch.bmm(mixed[5 - maps:5], self.first)
        hidden[-1].tanh_()
        mapped, projected = torch.baddbmm(self.constant, hidden, self.second), torch.bmm(mixed[:3], self.projections)
        if x.dtype != S.dtype:
            mapped, projected = mapped.to(S.dtype), projected.to(S.dtype)
            early = None if early is None else early.to(S.dtype)
        *share, a, decay = mapped.sigmoid_().view(maps, *heads).unbind()
        r, k, own = projected.view(3, *heads).unbind()
        v = own if early is None else torch.lerp(own, early.view(heads), share[0])
        c = k * self.k_k
        c = c / torch.linalg.vector_norm(c, dim=-1, keepdim=True).clamp_min_(MIN_NORM)
        k = torch.lerp(k, k * a, self.k_a)
        y, after = wkv7_token(r, torch.exp(decay * -MAX_LOG_DECAY), k, v, c, c * a, S)
        bonus = (r * k * self.r_k).sum(-1, keepdim=True)
        normed = torch.layer_norm(y, heads[-1:], eps=self.epsilon)
        result = torch.addcmul(self.norm_bias, normed, self.norm_weight).addcmul_(bonus, v)
        y = torch.mm(torch.mm(mixed[5], self.g1).sigmoid_(), self.g2).mul_(result.view_as(x))
        y = torch.mm(y, self.output) if self.output_bias is None else torch.addmm(self.output_bias, y, self.output)
        return y, after, own
