"""The steps of each cell over time, and their derivatives, written out. `bptt` makes one operation of them.

Notation: a = the pre-activation of a gate; d_x = dL/dx. Every rule goes backward by the chain rule of its equation in
`cell`, from the last step to the first; d_h, in place, is the gradient of the hidden vector of the rows that a step has
read (rows that ended before it wait, with the gradient of their final state, until their last step is reached).

    lerp(a, b, z) = a + z⊙(b - a)        σ'(a) = σ(1-σ)        tanh'(a) = 1 - tanh²

All storage is made once, and the steps write into views of it. Without gradients to come, the steps share the storage
of one. A rule knows tensors only: no modules, no layers.

Legend: R tokens (all steps), n rows of a step, H width, G gates.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from regard.recurrence.cells import Cell, GRUCell, LSTMCell, MUT1Cell, MUT2Cell, MUT3Cell, RNNCell

# ---- problem: What a kernel is asked: this cell, over these tokens, from this state.


def previous_states(first: Tensor, steps: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """What each token found: `first` at the first step, and what its row had in `steps` (tokens, width) after that."""
    starts = [0, *accumulate(sizes)]
    if sizes[-1] == sizes[0]:
        return torch.cat([first, steps[:starts[-2]]])
    return torch.cat([first, *(steps[start:start + n] for start, n in zip(starts, sizes[1:], strict=False))])


def last_states(steps: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """What each row has in `steps` (tokens, width) at its last token, (sizes[0], width)."""
    starts = [0, *accumulate(sizes)]
    ends = [steps[start + after:start + n]
            for start, n, after in zip(starts, sizes, [*sizes[1:], 0], strict=False) if n > after]
    return ends[0] if len(ends) == 1 else torch.cat(ends[::-1])


Tensors = Sequence[Tensor]
Sizes = tuple[int, ...]
"""How many rows each step reads."""
Forward = tuple[Tensor, list[Tensor], list[Tensor]]
"""hidden (R, H); of each memory the state of each row after its last token; what the backward needs."""
Backward = tuple[Tensor, list[Tensor], list[Tensor]]
"""The gradients of the projected inputs, of the weights and of the state."""

d_sigmoid = torch.ops.aten.sigmoid_backward.grad_input
d_tanh = torch.ops.aten.tanh_backward.grad_input
"""(gradient of the result, result, *, grad_input) -> gradient of the pre-activation."""


class BPTTRule(ABC):
    """A cell over time, and its derivative."""

    memories = 1

    @classmethod
    def of(cls, cell: Cell) -> "BPTTRule":
        """The rule for this cell."""
        return cls()

    def weights(self, cell: Cell) -> list[Tensor]:
        """The parameters that the steps read."""
        return [cell.hidden_weight]

    @abstractmethod
    def forward(self, projected: Tensor, weights: Tensors, state: Tensors, sizes: Sizes, keep: bool) -> Forward:
        """All steps. `keep`: whether there will be a backward."""

    @abstractmethod
    def backward(self, weights: Tensors, state: Tensors, hidden: Tensor, kept: Tensors, sizes: Sizes,
                 d_hidden: Tensor, d_final: Tensors) -> Backward:
        """All steps in reverse; `d_final` is written over."""


class RNNRule(BPTTRule):
    """h' = tanh(a), or a: d_a = d_h⊙(1 - h'²); d_h = d_a W."""

    def __init__(self, linear: bool) -> None:
        self.linear = linear

    @classmethod
    def of(cls, cell: Cell) -> BPTTRule:
        assert isinstance(cell, RNNCell)
        return cls(cell.activation == "linear")

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
        gates, cells, squashed = (_storage(projected, width, sizes, keep) for width in (4 * H, H, H))
        bounded, new = _columns(gates, sizes, keep, 0, 3 * H), _columns(gates, sizes, keep, 3 * H, 4 * H)
        parts = [_columns(gates, sizes, keep, k * H, (k + 1) * H) for k in range(3)]
        for p, out, gate, sigma, g, i, f, o, cell, tanh_c in zip(
                projected.split(sizes), hidden.split(sizes), _steps(gates, sizes, keep), bounded, new, *parts,
                _steps(cells, sizes, keep), _steps(squashed, sizes, keep), strict=True):
            n = len(p)
            torch.addmm(p, h[:n], W.t(), out=gate)
            sigma.sigmoid_()
            c = torch.mul(f, c[:n], out=cell).addcmul_(i, g.tanh_())
            h = torch.mul(o, torch.tanh(c, out=tanh_c), out=out)
        final_c = last_states(cells, sizes).clone() if keep else cells
        return hidden, [last_states(hidden, sizes).clone(), final_c], [gates, cells, squashed] if keep else []

    def backward(self, weights: Tensors, state: Tensors, hidden: Tensor, kept: Tensors, sizes: Sizes,
                 d_hidden: Tensor, d_final: Tensors) -> Backward:
        (W,), (d_h_all, d_c_all), (gates, cells, squashed) = weights, d_final, kept
        H = W.shape[1]
        d_gates, found = torch.empty_like(gates), previous_states(state[1], cells, sizes)
        scratch = torch.empty_like(d_h_all)
        for d_y, gate, d_gate, c, tanh_c in _reversed(sizes, d_hidden, gates, d_gates, found, squashed):
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
        keeps: whether z keeps the old (the GRU) or lets the new in.
        update: what z reads beside x: "hidden", "squashed" (tanh h, MUT3) or "nothing" (MUT1, σ being in `project`).
    """

    def __init__(self, keeps: bool, update: str) -> None:
        self.keeps, self.update = keeps, update

    @classmethod
    def of(cls, cell: Cell) -> BPTTRule:
        if isinstance(cell, GRUCell) and cell.reset == "after":
            return ResetAfterRule()
        return cls(isinstance(cell, GRUCell), {MUT1Cell: "nothing", MUT3Cell: "squashed"}.get(type(cell), "hidden"))

    def forward(self, projected: Tensor, weights: Tensors, state: Tensors, sizes: Sizes, keep: bool) -> Forward:
        (W,), (h,) = weights, state
        H = W.shape[1]
        hidden = projected.new_empty(len(projected), H)
        gates, scaled = _storage(projected, 3 * H, sizes, keep), _storage(projected, H, sizes, keep)
        squashed = _storage(projected, H if self.update == "squashed" else 0, sizes, keep)
        together = 2 * H if self.update == "hidden" else H  # the gates that read h, and are found in one product
        read = _columns(gates, sizes, keep, 0, together)
        for p, out, now, r, z, candidate, s, tanh_h in zip(
                projected.split(sizes), hidden.split(sizes), read, *(_columns(gates, sizes, keep, k * H, (k + 1) * H)
                for k in range(3)), _steps(scaled, sizes, keep), _steps(squashed, sizes, keep), strict=True):
            h = h[:len(p)]
            torch.addmm(p[:, :together], h, W[:together].t(), out=now).sigmoid_()
            if self.update == "squashed":
                torch.addmm(p[:, H:2 * H], torch.tanh(h, out=tanh_h), W[H:2 * H].t(), out=z).sigmoid_()
            elif self.update == "nothing":
                z.copy_(p[:, H:2 * H])
            torch.addmm(p[:, 2 * H:], torch.mul(r, h, out=s), W[-H:].t(), out=candidate).tanh_()
            h = torch.lerp(candidate, h, z, out=out) if self.keeps else torch.lerp(h, candidate, z, out=out)
        return hidden, [last_states(hidden, sizes).clone()], [gates, scaled, squashed] if keep else []

    def backward(self, weights: Tensors, state: Tensors, hidden: Tensor, kept: Tensors, sizes: Sizes,
                 d_hidden: Tensor, d_final: Tensors) -> Backward:
        (W,), (d_h_all,), (gates, scaled, squashed) = weights, d_final, kept
        H = W.shape[1]
        together = 2 * H if self.update == "hidden" else H
        d_gates, found = torch.empty_like(gates), previous_states(state[0], hidden, sizes)
        first, second = torch.empty_like(d_h_all), torch.empty_like(d_h_all)
        for d_y, gate, d_gate, h, tanh_h in _reversed(sizes, d_hidden, gates, d_gates, found, squashed):
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
            if self.update == "squashed":
                torch.mm(d_sigmoid(d_z, z, grad_input=d_z), W[H:2 * H], out=d_s)
                d_h_all[:n].add_(d_tanh(d_s, tanh_h, grad_input=d_s))
        d_W = [d_gates[:, :together].t() @ found, d_gates[:, 2 * H:].t() @ scaled]
        if self.update == "squashed":
            d_W.insert(1, d_gates[:, H:2 * H].t() @ squashed)
        return d_gates, [torch.cat(d_W)], [d_h_all]


class ResetAfterRule(BPTTRule):
    """torch's GRU: q = W_hh h + b_hh; h~ = tanh(p_h + r⊙q): d_r = d_ah⊙q; d_q = d_ah⊙r. Else as `GatedRule`."""

    def weights(self, cell: Cell) -> list[Tensor]:
        assert isinstance(cell, GRUCell)
        return [cell.hidden_weight, cell.hidden_bias]

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
        d_gates, d_inner, found = torch.empty_like(gates), torch.empty_like(inner), previous_states(state[0], hidden, sizes)
        scratch = torch.empty_like(d_h_all)
        for d_y, gate, d_gate, h, q, d_q in _reversed(sizes, d_hidden, gates, d_gates, found, inner, d_inner):
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
        d_W = torch.cat([d_gates[:, :2 * H].t() @ found, d_inner.t() @ found])
        return d_gates, [d_W, d_inner.sum(0)], [d_h_all]


RULES: dict[type[Cell], type[BPTTRule]] = {RNNCell: RNNRule, LSTMCell: LSTMRule, GRUCell: GatedRule, MUT1Cell: GatedRule,
                                       MUT2Cell: GatedRule, MUT3Cell: GatedRule}
"""The rule of each cell. A subclass of a cell may compute something else, and has none."""


def _storage(like: Tensor, width: int, sizes: Sizes, keep: bool) -> Tensor:
    """Room for all steps, (R, width), or for one, (sizes[0], width), that they share."""
    return like.new_empty(len(like) if keep else sizes[0], width)


def _steps(storage: Tensor, sizes: Sizes, keep: bool) -> Sequence[Tensor]:
    """The place of each step in it."""
    return storage.split(sizes) if keep else [storage[:n] for n in sizes]


def _columns(storage: Tensor, sizes: Sizes, keep: bool, start: int, stop: int) -> Sequence[Tensor]:
    """Some columns of the place of each step."""
    return _steps(storage[:, start:stop], sizes, keep)


def _reversed(sizes: Sizes, *tensors: Tensor) -> "zip[tuple[Tensor, ...]]":
    """The steps from the last to the first, of each tensor (R, width)."""
    return zip(*(reversed(tensor.split(sizes)) for tensor in tensors), strict=True)
