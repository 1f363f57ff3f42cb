"""Gradient flow: how much of a gradient arrives k steps earlier.

    dh_T / dh_{T-k} = J_T J_{T-1} .. J_{T-k+1},  J_t = dh_t / dh_{t-1}         gradient_flow
    dL / dh_{T-k}                                                              loss_flow

For the vanilla RNN J = diag(tanh') W_hh, and without a non-linearity the product is W_hh^k. In the end the largest
*eigenvalue* in modulus decides: above 1 the gradient explodes, below 1 it vanishes. A largest singular value above 1
is necessary for growth, not sufficient: with a non-normal matrix that has σ > 1 and ρ < 1 the gradient grows first,
then vanishes.

Autograd computes everything, step by step, for any cell and any forward `Recurrence`, with the memory of one step.

Legend: B rows, N tokens, D input width, H hidden width, S width of the whole state.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from regard.mixer import RowState
from regard.recurrence.cells import Cell, CellState
from regard.recurrence.scan import Recurrence

StepFunction = Callable[[Tensor, CellState], CellState]


def gradient_flow(network: Cell | Recurrence, x: Tensor, state: CellState | RowState | None = None) -> Tensor:
    """The spectral norms (largest singular values) of dh_N / ds_{N-k}, k = 0 .. N: x (B, N, D) -> (N + 1, B).

    h is the hidden vector, of the last layer where there are several; s is the whole state: h alone for most cells,
    (h, c) for the LSTM, whose gradients travel through c. A `Recurrence` must be a forward one, without dropout.
    """
    step, where, states = _run_forward(network, x, state)
    (B, N), H = x.shape[:2], states[-1][where].shape[-1]
    # Row b of the batch becomes H rows, each with one row of the identity as the gradient of its hidden vector.
    gradients = [torch.zeros_like(memory).repeat_interleave(H, 0) for memory in states[-1]]
    gradients[where] = torch.eye(H, dtype=x.dtype, device=x.device).repeat(B, 1)
    norms = [_spectral_norms(gradients, B)]
    for t in reversed(range(N)):
        before = tuple(memory.repeat_interleave(H, 0) for memory in states[t])
        gradients = _step_backward(step, x[:, t].repeat_interleave(H, 0), before, gradients)
        norms.append(_spectral_norms(gradients, B))
    return torch.stack(norms)


def loss_flow(network: Cell | Recurrence, x: Tensor, loss: Callable[[Tensor], Tensor],
              state: CellState | RowState | None = None) -> Tensor:
    """The norms of dL / ds_{N-k}, k = 0 .. N: x (B, N, D) -> (N + 1, B), where L = loss(h), h (B, N, H) -> a number.

    The gradient that arrives at a state is that of its own step's h and of all later steps.
    """
    step, where, states = _run_forward(network, x, state)
    hidden = torch.stack([memories[where] for memories in states[1:]], 1).requires_grad_()
    with torch.enable_grad():
        (own_BNH,) = torch.autograd.grad(loss(hidden), hidden)
    gradients, norms = [torch.zeros_like(memory) for memory in states[-1]], []
    for t in reversed(range(x.shape[1])):
        gradients[where] = gradients[where] + own_BNH[:, t]
        norms.append(torch.cat(gradients, -1).norm(dim=-1))
        gradients = _step_backward(step, x[:, t], states[t], gradients)
    norms.append(torch.cat(gradients, -1).norm(dim=-1))
    return torch.stack(norms)


def _run_forward(network: Cell | Recurrence, x: Tensor,
                 state: CellState | RowState | None) -> tuple[StepFunction, int, list[CellState]]:
    """One step of the network, the index of the last layer's hidden vector in a state, and all states s_0 .. s_N."""
    def step(x: Tensor, state: CellState) -> CellState:
        if isinstance(network, Recurrence):
            return network.step(x.unsqueeze(1), RowState(state))[1].tensors
        return network(x, state)

    if isinstance(network, Recurrence):
        where, first = -network.scans[-1].memories, network.start(len(x)).tensors
    else:
        where, first = 0, network.initial(len(x))
    if state is not None:
        first = state.tensors if isinstance(state, RowState) else state
    states = [tuple(memory.detach() for memory in first)]
    with torch.no_grad():
        for t in range(x.shape[1]):
            states.append(step(x[:, t], states[-1]))
    return step, where, states


def _step_backward(step: StepFunction, x: Tensor, before: CellState, gradients: list[Tensor]) -> list[Tensor]:
    """The gradients of the state before a step, from those of the state after it."""
    before = tuple(memory.detach().requires_grad_() for memory in before)
    with torch.enable_grad():
        after = step(x.detach(), before)
    return list(torch.autograd.grad(after, before, gradients))


def _spectral_norms(gradients: list[Tensor], rows: int) -> Tensor:
    """The spectral norm of each row's matrix (H, S), given as (B·H, width) for each memory."""
    return torch.linalg.matrix_norm(torch.cat(gradients, -1).unflatten(0, (rows, -1)), ord=2)
