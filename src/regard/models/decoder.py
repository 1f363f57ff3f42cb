"""The decoder: tokens to the logits of the token after each of them, all at once or step by step.

    ids ── embedding ── x ── block ── block ── … ── (norm) ── output ──► logits (B, N, V)
                               ▲        ▲
                               └────────┴── the memory of a source, where the blocks look at one

A token sees itself and those before it. Alone it is a language model; with an encoder it translates. Its blocks may
have any mixer that can go step by step. It does not know what its ids mean, nor how the next one is chosen.

Legend: B rows, N tokens, n new tokens, D width, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from regard import checks
from regard.attention.look import Look
from regard.blocks.stack import Stack, StackState
from regard.mixer import Rows, RowState, indices
from regard.models.contract import AnyMemory, AnyTokens, Memory, Step
from regard.models.embedding import Embedding


@dataclass(frozen=True)
class DecoderState:
    """What a decoder remembers of each row."""

    stack: StackState
    positions: Tensor
    """(B,): how many tokens each row has read."""
    watched: bool
    """Whether steps give the cross-attention weights."""

    def pick(self, rows: Rows) -> "DecoderState":
        """The state of these rows, in storage of its own; a row may be picked more than once."""
        return DecoderState(self.stack.pick(rows), self.positions[indices(rows, self.positions)], self.watched)

    def put(self, rows: Rows, other: "DecoderState") -> "DecoderState":
        """Replace these rows by the rows of another state."""
        positions = self.positions.index_copy(0, indices(rows, self.positions), other.positions)
        return DecoderState(self.stack.put(rows, other.stack), positions, self.watched)

    def copy(self) -> "DecoderState":
        """The same, in storage of its own."""
        return DecoderState(self.stack.copy(), self.positions.clone(), self.watched)

    def memories(self) -> tuple[Tensor, ...]:
        """What the mixers remember, block after block, (B, ...) each, where it does not grow with the tokens."""
        return tuple(tensor for mixer in self._mixers() for tensor in mixer.tensors)

    def remembering(self, memories: Sequence[Tensor]) -> "DecoderState":
        """The same state with other memories, in the order of `memories`."""
        left, blocks = list(memories), []
        for block, mixer in zip(self.stack.blocks, self._mixers(), strict=True):
            own, left = left[:len(mixer.tensors)], left[len(mixer.tensors):]
            blocks.append(replace(block, mixer=RowState(tuple(own))))
        return replace(self, stack=StackState(tuple(blocks)))

    def _mixers(self) -> list[RowState]:
        mixers = [block.mixer for block in self.stack.blocks]
        for mixer in mixers:
            if not isinstance(mixer, RowState):
                raise checks.wrong("state", "of recurrences or convolutions, which remember equally much at all times",
                                   f"one with a {type(mixer).__name__}, which grows with the tokens")
        return mixers


class Decoder(nn.Module):
    """Tokens to logits, each from itself, those before it, and a memory where the blocks look at one."""

    def __init__(self, embedding: Embedding, stack: Stack, output: nn.Linear) -> None:
        super().__init__()
        self.embedding, self.stack, self.output = embedding, stack, output

    @property
    def attends(self) -> bool:
        """Whether it looks at the memory of a source."""
        return any(block.cross is not None for block in self.stack.blocks)

    def states(self, tokens: AnyTokens, memory: AnyMemory | None = None) -> Tensor:
        """(B, N, D): what the output layer reads."""
        self._check_memory(memory)
        x = self.embedding(tokens.ids, tokens.positions, tokens.segments)
        if memory is None:
            return self.stack(x, tokens.present)
        return self.stack(x, tokens.present, memory.states, memory.seen_by(tokens))

    def forward(self, tokens: AnyTokens, memory: AnyMemory | None = None) -> Tensor:
        """The logits (B, N, V) of all positions."""
        return self.output(self.states(tokens, memory))

    def start(self, memory: Memory | None, rows: int, capacity: int, watched: bool) -> DecoderState:
        """The state before the first token. The memory is projected here, once, for every block."""
        self._check_memory(memory)
        limit = self.embedding.limit
        if limit is not None and capacity > limit:
            remedy = "Ask for fewer tokens, or use a model with other positions."
            raise checks.wrong("capacity", f"at most {limit}, the positions that the model knows", capacity, remedy)
        stack = (self.stack.start(rows, capacity) if memory is None
                 else self.stack.start(rows, capacity, memory.states, memory.lengths))
        positions = torch.zeros(rows, dtype=torch.long, device=self.output.weight.device)
        return DecoderState(stack, positions, watched)

    def advance(self, state: DecoderState, ids: Tensor, lengths: Tensor | None = None) -> Step:
        """The next tokens (B, n), of which row b has lengths[b]; what stands behind those is not read."""
        looks = list[Look]()
        with self._listening(looks if state.watched else None):
            x, after = self.read(state, ids, lengths)
        cross = torch.stack([look.weights() for look in looks], dim=1) if looks else None
        return Step(self.output(x), after, cross)

    def read(self, state: DecoderState, ids: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, DecoderState]:
        """As `advance`, without the logits: what the output layer reads, (B, n, D), and the state after it."""
        count = ids.shape[1]
        positions_BN = state.positions.unsqueeze(-1) + torch.arange(count, device=ids.device)
        if lengths is not None:  # what is not there needs no position, and may not ask for one that does not exist
            positions_BN = torch.minimum(positions_BN, (state.positions + lengths - 1).clamp(min=0).unsqueeze(-1))
        x, stack = self.stack.step(self.embedding(ids, positions_BN), state.stack, lengths=lengths)
        return x, DecoderState(stack, state.positions + (count if lengths is None else lengths), state.watched)

    @contextmanager
    def _listening(self, looks: list[Look] | None) -> Iterator[None]:
        """Collect what the blocks look at in the memory, the lowest first."""
        with ExitStack() as listening:
            for block in self.stack.blocks if looks is not None else ():
                if looks is not None and block.cross is not None:
                    listening.enter_context(block.cross.tap.listen(looks.append))  # type: ignore[union-attr, operator]
            yield

    def _check_memory(self, memory: AnyMemory | None) -> None:
        if self.attends and memory is None:
            raise checks.wrong("memory", "given to a decoder that looks at a source", None, "encode(...) makes it.")
        if not self.attends and memory is not None:
            raise checks.wrong("memory", "None for a decoder that looks at no source", "given")
