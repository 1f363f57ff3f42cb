"""Back-propagation through time written out: the steps of each recurrent cell, and their derivatives.

    forward     step after step, into storage that is allocated once
    backward    the steps in reverse; the gradients of the weights are one product over all tokens at the end

Autograd records one operation (`scan_through_time`) instead of ten a step. Every rule goes backward by the chain rule
of its cell's equation, from the last step to the first; d_h, updated in place, is the gradient of the hidden vector of
the rows that a step has read. Rows that ended before it wait, with the gradient of their final state, until their last
step is reached.

    a = the pre-activation of a gate        d_x = dL/dx
    lerp(a, b, z) = a + z⊙(b - a)           σ'(a) = σ(1-σ)           tanh'(a) = 1 - tanh²

The steps write into views of the storage; without gradients to come they share the storage of one step. The gradient
cannot itself be differentiated. A rule knows tensors only: no modules, no layers, no padding.

Legend: R tokens (all steps), n rows of a step, H width, G gates.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from regard import checks

Tensors = Sequence[Tensor]
Sizes = tuple[int, ...]
"""How many rows each step reads; the sizes never grow."""
Forward = tuple[Tensor, list[Tensor], list[Tensor]]
"""hidden (R, H); the final state of each row, a tensor for each memory; what the backward pass needs."""
Backward = tuple[Tensor, list[Tensor], list[Tensor]]
"""The gradients of the projected inputs, of the weights and of the initial state."""

d_sigmoid = torch.ops.aten.sigmoid_backward.grad_input
d_tanh = torch.ops.aten.tanh_backward.grad_input
"""(gradient of the result, result, *, grad_input) -> gradient of the pre-activation."""


class BPTTRule(ABC):
    """A cell over time, and its derivative."""

    memories = 1
    """The number of tensors in the state."""

    @abstractmethod
    def forward(self, projected: Tensor, weights: Tensors, state: Tensors, sizes: Sizes, keep: bool) -> Forward:
        """Run all steps. With `keep` there will be a backward pass."""

    @abstractmethod
    def backward(self, weights: Tensors, state: Tensors, hidden: Tensor, kept: Tensors, sizes: Sizes,
                 d_hidden: Tensor, d_final: Tensors) -> Backward:
        """Run all steps in reverse; `d_final` is overwritten."""


class RNNRule(BPTTRule):
    """h' = tanh(a), or a: d_a = d_h⊙(1 - h'²); d_h = d_a W."""

    def __init__(self, linear: bool) -> None:
        self.linear = linear

    def forward(self, projected: Tensor, weights: Tensors, state: Tensors, sizes: Sizes, keep: bool) -> Forward:
        (W,), (h,) = weights, state
        hidden = torch.empty_like(projected)
        for p, out in zip(projected.split(sizes), hidden.split(sizes), strict=True):
            h = torch.addmm(p, h[:len(p)], W.t(), out=out)
            if not self.linear:
                h.tanh_()
        return hidden, [last_states(hidden, sizes).clone()], []

    def backward(self, weights: Tensors, state: Tensors, hidden: Tensor, kept: Tensors, sizes: Sizes,
                 d_hidden: Tensor, d_final: Tensors) -> Backward:
        (W,), (d_h_all,) = weights, d_final
        d_a_all = torch.empty_like(hidden)
        for d_y, y, d_a in _reversed(sizes, d_hidden, hidden, d_a_all):
            d_h = d_h_all[:len(d_y)]
            if self.linear:
                torch.add(d_h, d_y, out=d_a)
            else:
                d_tanh(d_h.add_(d_y), y, grad_input=d_a)
            torch.mm(d_a, W, out=d_h)
        return d_a_all, [d_a_all.t() @ previous_states(state[0], hidden, sizes)], [d_h_all]


class LSTMRule(BPTTRule):
    """d_c += d_h⊙o⊙(1 - tanh(c')²); d_i = d_c⊙g; d_f = d_c⊙c; d_o = d_h⊙tanh(c'); d_g = d_c⊙i; d_c = d_c⊙f."""

    memories = 2

    def forward(self, projected: Tensor, weights: Tensors, state: Tensors, sizes: Sizes, keep: bool) -> Forward:
        (W,), (h, c) = weights, state
        H = W.shape[1]
        hidden = projected.new_empty(len(projected), H)
        gates, cells, tanh_cells = (_storage(projected, width, sizes, keep) for width in (4 * H, H, H))
        bounded, new = _columns(gates, sizes, keep, 0, 3 * H), _columns(gates, sizes, keep, 3 * H, 4 * H)
        parts = [_columns(gates, sizes, keep, k * H, (k + 1) * H) for k in range(3)]
        for p, out, gate, sigma, g, i, f, o, cell, tanh_c in zip(
                projected.split(sizes), hidden.split(sizes), _steps(gates, sizes, keep), bounded, new, *parts,
                _steps(cells, sizes, keep), _steps(tanh_cells, sizes, keep), strict=True):
            n = len(p)
            torch.addmm(p, h[:n], W.t(), out=gate)
            sigma.sigmoid_()
            c = torch.mul(f, c[:n], out=cell).addcmul_(i, g.tanh_())
            h = torch.mul(o, torch.tanh(c, out=tanh_c), out=out)
        final_c = last_states(cells, sizes).clone() if keep else cells
        return hidden, [last_states(hidden, sizes).clone(), final_c], [gates, cells, tanh_cells] if keep else []

    def backward(self, weights: Tensors, state: Tensors, hidden: Tensor, kept: Tensors, sizes: Sizes,
                 d_hidden: Tensor, d_final: Tensors) -> Backward:
        (W,), (d_h_all, d_c_all), (gates, cells, tanh_cells) = weights, d_final, kept
        H = W.shape[1]
        d_gates, before = torch.empty_like(gates), previous_states(state[1], cells, sizes)
        scratch = torch.empty_like(d_h_all)
        for d_y, gate, d_gate, c, tanh_c in _reversed(sizes, d_hidden, gates, d_gates, before, tanh_cells):
            n = len(d_y)
            d_h, d_c, spare = d_h_all[:n], d_c_all[:n], scratch[:n]
            i, f, o, g = gate.split(H, 1)
            d_i, d_f, d_o, d_g = d_gate.split(H, 1)
            torch.mul(d_h.add_(d_y), tanh_c, out=d_o)
            d_c.add_(d_tanh(d_h.mul_(o), tanh_c, grad_input=spare))
            torch.mul(d_c, g, out=d_i)
            torch.mul(d_c, c, out=d_f)
            d_sigmoid(d_gate[:, :3 * H], gate[:, :3 * H], grad_input=d_gate[:, :3 * H])
            d_tanh(torch.mul(d_c, i, out=spare), g, grad_input=d_g)
            d_c.mul_(f)
            torch.mm(d_gate, W, out=d_h)
        return d_gates, [d_gates.t() @ previous_states(state[0], hidden, sizes)], [d_h_all, d_c_all]


class GatedRule(BPTTRule):
    """GRU, MUT1, MUT2 and MUT3: h' = lerp(h, h~, z), or lerp(h~, h, z) in the GRU; h~ = tanh(p_h + W_hh (r⊙h)).

    d_z = ±d_h⊙(h~ - h); d_h~ = d_h⊙z and d_h = d_h⊙(1-z) (the other way round in the GRU); d_s = d_ah W_hh for
    s = r⊙h; d_r = d_s⊙h; d_h += d_s⊙r; then what the gates r and z have read.

    Args:
        keeps: whether z keeps the old state (GRU) or lets the new one in (MUT).
        update: what z reads beside x: "hidden", "tanh" (tanh h, MUT3) or "nothing" (MUT1: `project` applies σ).
    """

    def __init__(self, keeps: bool, update: str) -> None:
        self.keeps, self.update = keeps, update

    def forward(self, projected: Tensor, weights: Tensors, state: Tensors, sizes: Sizes, keep: bool) -> Forward:
        (W,), (h,) = weights, state
        H = W.shape[1]
        hidden = projected.new_empty(len(projected), H)
        gates, scaled = _storage(projected, 3 * H, sizes, keep), _storage(projected, H, sizes, keep)
        tanh_hidden = _storage(projected, H if self.update == "tanh" else 0, sizes, keep)
        together = 2 * H if self.update == "hidden" else H  # the gates that read h, and are computed in one product
        read = _columns(gates, sizes, keep, 0, together)
        parts = [_columns(gates, sizes, keep, k * H, (k + 1) * H) for k in range(3)]
        for p, out, now, r, z, candidate, s, tanh_h in zip(
                projected.split(sizes), hidden.split(sizes), read, *parts, _steps(scaled, sizes, keep),
                _steps(tanh_hidden, sizes, keep), strict=True):
            h = h[:len(p)]
            torch.addmm(p[:, :together], h, W[:together].t(), out=now).sigmoid_()
            if self.update == "tanh":
                torch.addmm(p[:, H:2 * H], torch.tanh(h, out=tanh_h), W[H:2 * H].t(), out=z).sigmoid_()
            elif self.update == "nothing":
                z.copy_(p[:, H:2 * H])
            torch.addmm(p[:, 2 * H:], torch.mul(r, h, out=s), W[-H:].t(), out=candidate).tanh_()
            h = torch.lerp(candidate, h, z, out=out) if self.keeps else torch.lerp(h, candidate, z, out=out)
        return hidden, [last_states(hidden, sizes).clone()], [gates, scaled, tanh_hidden] if keep else []

    def backward(self, weights: Tensors, state: Tensors, hidden: Tensor, kept: Tensors, sizes: Sizes,
                 d_hidden: Tensor, d_final: Tensors) -> Backward:
        (W,), (d_h_all,), (gates, scaled, tanh_hidden) = weights, d_final, kept
        H = W.shape[1]
        together = 2 * H if self.update == "hidden" else H
        d_gates, before = torch.empty_like(gates), previous_states(state[0], hidden, sizes)
        first, second = torch.empty_like(d_h_all), torch.empty_like(d_h_all)
        for d_y, gate, d_gate, h, tanh_h in _reversed(sizes, d_hidden, gates, d_gates, before, tanh_hidden):
            n = len(d_y)
            d_h, part, d_s = d_h_all[:n], first[:n], second[:n]
            r, z, candidate = gate.split(H, 1)
            d_r, d_z, d_candidate = d_gate.split(H, 1)
            torch.mul(d_h.add_(d_y), z, out=part)
            old, new = (h, candidate) if self.keeps else (candidate, h)
            torch.mul(d_h, torch.sub(old, new, out=d_s), out=d_z)
            d_h.sub_(part)  # d_h is now d_h⊙(1-z), and part d_h⊙z
            if self.keeps:
                d_h, part = part, d_h
            d_tanh(part, candidate, grad_input=d_candidate)
            torch.mm(d_candidate, W[-H:], out=d_s)
            torch.mul(d_s, h, out=d_r)
            d_h.addcmul_(d_s, r)
            d_sigmoid(d_gate[:, :together], gate[:, :together], grad_input=d_gate[:, :together])
            torch.addmm(d_h, d_gate[:, :together], W[:together], out=d_h_all[:n])
            if self.update == "tanh":
                torch.mm(d_sigmoid(d_z, z, grad_input=d_z), W[H:2 * H], out=d_s)
                d_h_all[:n].add_(d_tanh(d_s, tanh_h, grad_input=d_s))
        d_W = [d_gates[:, :together].t() @ before, d_gates[:, 2 * H:].t() @ scaled]
        if self.update == "tanh":
            d_W.insert(1, d_gates[:, H:2 * H].t() @ tanh_hidden)
        return d_gates, [torch.cat(d_W)], [d_h_all]


class ResetAfterRule(BPTTRule):
    """torch's GRU: q = W_hh h + b_hh; h~ = tanh(p_h + r⊙q): d_r = d_ah⊙q; d_q = d_ah⊙r. Else as `GatedRule`."""

    def forward(self, projected: Tensor, weights: Tensors, state: Tensors, sizes: Sizes, keep: bool) -> Forward:
        (W, bias), (h,) = weights, state
        H = W.shape[1]
        hidden = projected.new_empty(len(projected), H)
        gates, inner = _storage(projected, 3 * H, sizes, keep), _storage(projected, H, sizes, keep)
        for p, out, gate, q in zip(projected.split(sizes), hidden.split(sizes), _steps(gates, sizes, keep),
                                   _steps(inner, sizes, keep), strict=True):
            h = h[:len(p)]
            r, z, candidate = gate.split(H, 1)
            torch.addmm(p[:, :2 * H], h, W[:2 * H].t(), out=gate[:, :2 * H]).sigmoid_()
            torch.addmm(bias, h, W[2 * H:].t(), out=q)
            torch.addcmul(p[:, 2 * H:], r, q, out=candidate).tanh_()
            h = torch.lerp(candidate, h, z, out=out)
        return hidden, [last_states(hidden, sizes).clone()], [gates, inner] if keep else []

    def backward(self, weights: Tensors, state: Tensors, hidden: Tensor, kept: Tensors, sizes: Sizes,
                 d_hidden: Tensor, d_final: Tensors) -> Backward:
        (W, _), (d_h_all,), (gates, inner) = weights, d_final, kept
        H = W.shape[1]
        d_gates, d_inner = torch.empty_like(gates), torch.empty_like(inner)
        before = previous_states(state[0], hidden, sizes)
        scratch = torch.empty_like(d_h_all)
        for d_y, gate, d_gate, h, q, d_q in _reversed(sizes, d_hidden, gates, d_gates, before, inner, d_inner):
            d_h, d_kept = d_h_all[:len(d_y)], scratch[:len(d_y)]
            r, z, candidate = gate.split(H, 1)
            d_r, d_z, d_candidate = d_gate.split(H, 1)
            torch.mul(d_h.add_(d_y), torch.sub(h, candidate, out=d_q), out=d_z)
            torch.mul(d_h, z, out=d_kept)
            d_tanh(d_h.sub_(d_kept), candidate, grad_input=d_candidate)
            torch.mul(d_candidate, q, out=d_r)
            torch.mul(d_candidate, r, out=d_q)
            d_sigmoid(d_gate[:, :2 * H], gate[:, :2 * H], grad_input=d_gate[:, :2 * H])
            torch.addmm(d_kept, d_gate[:, :2 * H], W[:2 * H], out=d_h).addmm_(d_q, W[2 * H:])
        d_W = torch.cat([d_gates[:, :2 * H].t() @ before, d_inner.t() @ before])
        return d_gates, [d_W, d_inner.sum(0)], [d_h_all]


class _ThroughTime(torch.autograd.Function):
    """All steps of a cell as one operation of autograd."""

    @staticmethod
    def forward(ctx: Any, rule: BPTTRule, sizes: Sizes, keep: bool, projected: Tensor,
                *given: Tensor) -> tuple[Tensor, ...]:
        weights, state = given[:-rule.memories], given[-rule.memories:]
        with torch.autocast(projected.device.type, enabled=False):
            hidden, final, kept = rule.forward(projected, weights, state, sizes, keep)
        ctx.rule, ctx.sizes, ctx.count = rule, sizes, len(weights)
        ctx.save_for_backward(*given, hidden, *kept)
        return hidden, *final

    @staticmethod
    def backward(ctx: Any, d_hidden: Tensor, *d_final: Tensor) -> tuple[Any, ...]:
        if torch.is_grad_enabled():  # torch would silently treat the gradient as a constant
            expected = '"loop" for second derivatives (create_graph=True)'
            raise checks.wrong("backend", expected, '"bptt"')
        saved = ctx.saved_tensors
        given = ctx.count + ctx.rule.memories
        weights, state, hidden, kept = saved[:ctx.count], saved[ctx.count:given], saved[given], saved[given + 1:]
        with torch.autocast(hidden.device.type, enabled=False):
            d_projected, d_weights, d_state = ctx.rule.backward(
                weights, state, hidden, kept, ctx.sizes, d_hidden, [gradient.clone() for gradient in d_final])
        return None, None, None, d_projected, *d_weights, *d_state


def scan_through_time(rule: BPTTRule, sizes: Sizes, keep: bool, projected: Tensor,
                      *weights_and_state: Tensor) -> tuple[Tensor, ...]:
    """Run all steps of a cell: the hidden vector of every token, (R, H), and the final state of each row.

    Args:
        sizes: how many rows each step reads.
        keep: whether there will be a backward pass.
        projected: what of the cell's equation depends on the inputs alone, (R, G·H).
        weights_and_state: the weights that the rule reads, then the initial state, (sizes[0], H) for each memory.
    """
    results: tuple[Tensor, ...] = _ThroughTime.apply(rule, sizes, keep, projected, *weights_and_state)
    return results


def previous_states(first: Tensor, steps: Tensor, sizes: Sizes) -> Tensor:
    """The state before each token: `first` at the first step, and the row's last entry of `steps` (R, H) after that."""
    starts = [0, *accumulate(sizes)]
    if sizes[-1] == sizes[0]:
        return torch.cat([first, steps[:starts[-2]]])
    return torch.cat([first, *(steps[start:start + n] for start, n in zip(starts, sizes[1:], strict=False))])


def last_states(steps: Tensor, sizes: Sizes) -> Tensor:
    """The entry of each row's last token in `steps` (R, H), as (sizes[0], H)."""
    starts = [0, *accumulate(sizes)]
    ends = [steps[start + after:start + n]
            for start, n, after in zip(starts, sizes, [*sizes[1:], 0], strict=False) if n > after]
    return ends[0] if len(ends) == 1 else torch.cat(ends[::-1])


def _storage(like: Tensor, width: int, sizes: Sizes, keep: bool) -> Tensor:
    """Storage for all steps, (R, width), or for one step, (sizes[0], width), that they share."""
    return like.new_empty(len(like) if keep else sizes[0], width)


def _steps(storage: Tensor, sizes: Sizes, keep: bool) -> Sequence[Tensor]:
    """The part of each step in the storage."""
    return storage.split(sizes) if keep else [storage[:n] for n in sizes]


def _columns(storage: Tensor, sizes: Sizes, keep: bool, start: int, stop: int) -> Sequence[Tensor]:
    """Some columns of the part of each step."""
    return _steps(storage[:, start:stop], sizes, keep)


def _reversed(sizes: Sizes, *tensors: Tensor) -> "zip[tuple[Tensor, ...]]":
    """The steps of each tensor (R, width), from the last to the first."""
    return zip(*(reversed(tensor.split(sizes)) for tensor in tensors), strict=True)
