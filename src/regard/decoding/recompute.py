"""Searches that decode all tokens anew at each step, for models whose steps would skip what a user attached to them.

`decode` calls every module of a decoder, with its forward hooks. A step calls the method `step` of blocks, mixers and
attention layers instead, where torch runs no hooks. So a decoder with hooks on such a module, or with another `forward`
than its class had when `step` was written, is searched by `decode`: slower, and with the same numbers as `decode`.

    model = honour_hooks(model)         the model itself, or a model with the same interface that decodes anew
    why_no_steps(model)                 what is in the way of its own steps; None if nothing is

Legend: B rows, C capacity, T tokens so far, n tokens of a chunk, L layers, H heads, N states of a source, V vocabulary.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.attention.look import Look
from regard.decoding.cuda_graph import all_modules
from regard.kernels.launch import has_global_hooks
from regard.mixer import Rows, row_indices
from regard.models.contract import GenerativeModel, Memory, Step
from regard.models.encoder_decoder import Decoder
from regard.tokens import Tokens


def honour_hooks(model: GenerativeModel) -> GenerativeModel:
    """The model, or one that decodes anew at each step if the steps of the model would skip hooks."""
    return model if why_no_steps(model) is None else RecomputingModel(model)


def why_no_steps(model: object) -> str | None:
    """Why the steps of a model differ from its `decode`; None if they do not."""
    decoder = getattr(model, "decoder", None)
    if not isinstance(decoder, Decoder):  # recurrent decoders decode by steps
        return None
    if has_global_hooks():
        return "there are hooks on all modules"
    for module in all_modules(decoder):
        if not hasattr(type(module), "step"):
            continue
        if module._forward_hooks or module._forward_pre_hooks:
            return f"a {type(module).__name__} has forward hooks"
        if "forward" in vars(module) or _forward_is_newer(type(module)):  # type: ignore[arg-type]
            return f"a {type(module).__name__} has another forward function"
    return None


@cache
def _forward_is_newer(kind: type) -> bool:
    """Whether a subclass overrides `forward` and not `step`."""
    homes = [next(number for number, base in enumerate(kind.__mro__) if name in vars(base))
             for name in ("forward", "step")]
    return homes[0] < homes[1]


@dataclass(frozen=True)
class RecomputingState:
    """The tokens of each row so far, and its source."""

    ids: Tensor
    """(B, C)"""
    positions: Tensor
    """(B,): the number of tokens of each row."""
    memory: Memory | None
    with_cross: bool

    def pick(self, rows: Rows) -> "RecomputingState":
        """The state of these rows."""
        index = row_indices(rows, self.ids)
        memory = None if self.memory is None else self.memory.pick(index)
        return RecomputingState(self.ids[index], self.positions[index], memory, self.with_cross)

    def put(self, rows: Rows, other: "RecomputingState") -> "RecomputingState":
        """Replace these rows by the rows of another state."""
        index = row_indices(rows, self.ids)
        memory = None
        if self.memory is not None and other.memory is not None:
            memory = _put_memory(self.memory, index, other.memory)
        return RecomputingState(self.ids.index_copy(0, index, other.ids),
                                self.positions.index_copy(0, index, other.positions), memory, self.with_cross)

    def copy(self) -> "RecomputingState":
        """A copy in storage of its own."""
        return self.pick(torch.arange(len(self.ids)))


def _put_memory(mine: Memory, index: Tensor, theirs: Memory) -> Memory:
    """The memory with some rows replaced; the shorter states are padded."""
    longest = max(mine.states.shape[1], theirs.states.shape[1])
    parts = []
    for memory in (mine, theirs):
        count = memory.states.shape[1]
        lengths = memory.lengths
        if lengths is None:
            lengths = torch.full((memory.rows,), count, device=memory.states.device)
        parts.append((pad(memory.states, (0, 0, 0, longest - count)), lengths))
    (states, lengths), (new_states, new_lengths) = parts
    summary = mine.summary
    if summary is not None and theirs.summary is not None:
        summary = summary.index_copy(0, index, theirs.summary)
    return Memory(states.index_copy(0, index, new_states), lengths.index_copy(0, index, new_lengths), summary)


class RecomputingModel:
    """A model with a `Decoder` whose steps decode all tokens anew."""

    def __init__(self, model: Any) -> None:
        self.model, self.training = model, model.training

    def start(self, memory: Memory | None = None, *, rows: int | None = None, capacity: int,
              cross: bool = False) -> RecomputingState:
        """The state before the first token."""
        positions = self.model.start(memory, rows=rows, capacity=capacity, cross=cross).positions  # checks arguments
        return RecomputingState(positions.new_zeros(len(positions), capacity), positions, memory, cross)

    def step(self, state: RecomputingState, ids: Tensor, lengths: Tensor | None = None) -> Step:
        """Consume the next tokens (B, n), of which row b has lengths[b]."""
        count = torch.full_like(state.positions, ids.shape[1]) if lengths is None else lengths
        chunk = torch.arange(ids.shape[1], device=ids.device)
        places_Bn = state.positions.unsqueeze(-1) + chunk
        row_Bn = torch.arange(len(ids), device=ids.device).unsqueeze(-1).expand_as(places_Bn)
        is_token_Bn = chunk < count.unsqueeze(-1)
        ids_BC, after_B = state.ids.clone(), state.positions + count
        ids_BC[row_Bn[is_token_Bn], places_Bn[is_token_Bn]] = ids[is_token_Bn]
        longest = max(1, int(after_B.max()))
        looks = list[Look]()
        with self.model.decoder.collect_looks(looks if state.with_cross else None):
            logits_BTV = self.model.decode(Tokens(ids_BC[:, :longest], after_B), state.memory)
        at_Bn = places_Bn.clamp(max=longest - 1)
        cross = None
        if looks:
            cross_BTLHN = torch.stack([look.weights() for look in looks], dim=1).permute(0, 3, 1, 2, 4)
            cross = cross_BTLHN[row_Bn, at_Bn].permute(0, 2, 3, 1, 4)
        return Step(logits_BTV[row_Bn, at_Bn], replace(state, ids=ids_BC, positions=after_B), cross)
