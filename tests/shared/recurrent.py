"""What the tests of recurrence share: every cell with random weights, and the oracle's answer for it."""

import numpy as np
import torch
from hypothesis import strategies as st

from regard.recurrence.cells import make_cell
from regard.reference import recurrence as oracle

KINDS = {"rnn": {}, "rnn linear": {"activation": "linear"}, "lstm": {}, "gru": {}, "gru after": {"reset": "after"},
         "mut1": {}, "mut2": {}, "mut3": {}}
"""Every cell, with its options."""
NATIVE = ("rnn", "lstm", "gru after")
"""Those that torch has."""
BACKENDS = [(kind, backend) for kind in KINDS for backend in ("loop", "bptt", "native")
            if backend != "native" or kind in NATIVE]

kinds = st.sampled_from(list(KINDS))
seeds = st.integers(0, 2**31 - 1)
widths = st.integers(1, 4)


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def randomize(module, seed=0, scale=1.0):
    """Random weights of the module, in float64."""
    module.double()
    for i, parameter in enumerate(module.parameters()):
        parameter.data = scale * normal(*parameter.shape, seed=seed + 1000 + i)
    return module


def make(kind, input_width, width, seed=0):
    """The cell with random weights, in float64."""
    return randomize(make_cell(kind.split()[0], input_width, width, **KINDS[kind]), seed)


def options(kind):
    """What a `Recurrence` takes to be of this kind."""
    return {"cell": kind.split()[0], **KINDS[kind]}


def step_of(kind, cell):
    """The oracle's step with the cell's weights: (x, state) -> state; the state is h, or (h, c)."""
    named = {name: tensor.detach().double().numpy() for name, tensor in cell.named().items()}
    if kind == "rnn linear":
        return lambda x, h: named["W_xh"] @ x + named["W_hh"] @ h + named["b_h"]
    if kind == "gru after":
        zeros = np.zeros(2 * cell.width)
        weights, hidden, bias = (parameter.detach().double().numpy() for parameter in
                                 (cell.input_weight, cell.hidden_weight, cell.bias))
        second = np.concatenate([zeros, named["b_hh"]])
        return lambda x, h: oracle.gru_step_torch(x, h, W_ih=weights, W_hh=hidden, b_ih=bias, b_hh=second)
    step = getattr(oracle, f"{kind}_step")
    return lambda x, state: step(x, state, **named)


def oracle_scan(kind, cell, xs, memories, reverse=False):
    """What the oracle makes of one sequence (N, D): its hidden vectors (N, H), and the memories after it."""
    state = tuple(memories) if len(memories) > 1 else memories[0]
    scan = oracle.scan_reverse if reverse else oracle.scan
    states = scan(step_of(kind, cell), xs, state)
    end = state if not states else states[0 if reverse else -1]
    hidden = np.array([oracle.hidden_state(s) for s in states]).reshape(len(states), cell.width)
    return hidden, end if isinstance(end, tuple) else (end,)


def oracle_layers(kind, recurrence, xs, memories):
    """The same for all layers and directions of a recurrence; `memories` are in the order of its states."""
    ways = {"forward": (False,), "backward": (True,), "both": (False, True)}[recurrence.direction]
    cells, after = list(recurrence.cells), []
    for layer in range(recurrence.layers):
        results = []
        for way, reverse in enumerate(ways):
            cell = cells[layer * len(ways) + way]
            own, memories = memories[:cell.memories], memories[cell.memories:]
            hidden, end = oracle_scan(kind, cell, xs, own, reverse)
            results.append(hidden)
            after += end
        xs = np.concatenate(results, -1)
    return xs, after


def assert_close(ours, theirs, tolerance=1e-12):
    """Equal to 1e-12, relative to the largest number."""
    ours, theirs = (torch.as_tensor(tensor).detach() for tensor in (ours, theirs))
    assert ours.shape == theirs.shape
    if ours.numel():
        error, scale = (ours.double() - theirs.double()).abs().max(), theirs.double().abs().max().clamp(min=1.0)
        assert error <= tolerance * scale, f"off by {float(error):.1e}"
