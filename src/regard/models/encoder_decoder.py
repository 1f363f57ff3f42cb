"""Encoder, decoder, and both together: tokens to states, tokens to logits, source and target to logits.

    Encoder           ids ── embedding ── (front) ── block ── … ── (norm) ──► states (B, N, D)
    Decoder           ids ── embedding ── block ── … ── (norm) ── output ──► logits (B, N, V)
                                            ▲ cross-attention to the encoded source, where there is one
    EncoderDecoder    source ── Encoder ──► memory;  target, memory ── Decoder ──► logits

In an encoder every token attends to all others; in a decoder to itself and those before it. The front of an encoder is
another stack before its own, such as convolutions that read the neighbours of each token. The blocks may have any
mixer (in a decoder: any that can be computed step by step), so with self-attention an `EncoderDecoder` is the
Transformer of Vaswani et al. 2017 (algorithm 8 of Phuong and Hutter 2022). The two embeddings and the output layer may
share one table (section 3.4 of the paper). These models do not know what their ids mean, nor how the next one is
chosen.

Legend: B rows, N tokens, n new tokens, D width, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from regard import checks
from regard.attention.look import Look, Tap, in_this_thread
from regard.blocks.stack import Stack, StackConfig, StackState
from regard.config import Config, integer, renamed
from regard.mixer import CompositeState, RowState
from regard.models.contract import AnyMemory, Memory, PackedMemory, Step
from regard.models.embedding import Embedding, EmbeddingConfig, make_output_layer
from regard.tokens import AnyTokens, PackedTokens


class Encoder(nn.Module):
    """Tokens to the states of all tokens.

    Args:
        embedding: ids to vectors.
        stack: the layers.
        front: layers before these; None for none.
    """

    def __init__(self, embedding: Embedding, stack: Stack, front: Stack | None = None) -> None:
        super().__init__()
        self.embedding, self.front, self.stack = embedding, front, stack
        self.width = embedding.width

    def encode(self, tokens: AnyTokens) -> AnyMemory:
        """Encode the tokens. Rows that are padded on the left come out padded on the right."""
        tokens = tokens.right()
        states = self.states(tokens)
        if isinstance(tokens, PackedTokens):
            return PackedMemory(states, tokens.lengths)
        return Memory(states, tokens.lengths)

    def states(self, tokens: AnyTokens) -> Tensor:
        """(B, N, D): each state at the position of its token."""
        x = self.embedding(tokens.ids, tokens.positions, tokens.segments)
        if self.front is not None:
            x = self.front(x, tokens.present)
        return self.stack(x, tokens.present)

    def forward(self, tokens: AnyTokens) -> Tensor:
        """The states (B, N, D)."""
        return self.states(tokens)


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(Config):
    """Config of an encoder; models that contain one add their keys."""

    kind: ClassVar[str] = "encoder"
    vocab_size: int = integer(minimum=1, old="vocabulary")
    """Size of the vocabulary; the tokenizer determines it."""
    width: int = integer(minimum=1)
    """Width of the model (d_model): features of each token."""
    embedding: EmbeddingConfig = EmbeddingConfig()
    """Token and position embedding."""
    front: StackConfig | None = None
    """Layers before the others, such as convolutions over the neighbours of each token; none without this table."""
    stack: StackConfig
    """The layers."""

    def build(self) -> nn.Module:
        """Build the model with new parameters."""
        return self.encoder()

    def encoder(self) -> Encoder:
        """Build the encoder alone."""
        return Encoder(self.embedding.build(self.vocab_size, self.width), self.stack.build(self.width, causal=False),
                       None if self.front is None else self.front.build(self.width, causal=False))

    def parameters(self) -> int:
        """The number of parameters of the model."""
        stacks = [self.stack, *([] if self.front is None else [self.front])]
        return (self.embedding.parameters(self.vocab_size, self.width)
                + sum(stack.parameters(self.width, causal=False) for stack in stacks))

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Pairs of a key and the reason why its value conflicts with another."""
        yield from ((f"embedding.{key}", why) for key, why in self.embedding.clashes(self.width))
        for name, stack in (("front", self.front), ("stack", self.stack)):
            if stack is not None:
                yield from ((f"{name}.{key}", why) for key, why in stack.clashes(self.width, causal=False))
                if stack.cross is not None:
                    yield f"{name}.cross", "an encoder has no source to attend to"


@dataclass(frozen=True)
class DecoderState(CompositeState):
    """The state of a decoder for each row."""

    stack: StackState
    positions: Tensor
    """(B,): the number of tokens that each row has consumed."""
    with_cross: bool
    """Whether steps return the cross-attention weights."""

    def memories(self) -> tuple[Tensor, ...]:
        """The state tensors of the mixers, block after block, (B, ...) each, where their size is fixed."""
        return tuple(tensor for states in self._row_states() for state in states for tensor in state.tensors)

    def with_memories(self, memories: Sequence[Tensor]) -> "DecoderState":
        """The same state with other tensors, in the order of `memories()`."""
        left, blocks = iter(memories), []
        for block, states in zip(self.stack.blocks, self._row_states(), strict=True):
            mixer, *feed_forward = (RowState(tuple(next(left) for _ in state.tensors)) for state in states)
            blocks.append(replace(block, mixer=mixer, feed_forward=feed_forward[0] if feed_forward else None))
        return replace(self, stack=StackState(tuple(blocks)))

    def _row_states(self) -> list[list[RowState]]:
        """The states of each block's mixer, and of its feed-forward layer where that has one."""
        found = [[state for state in (block.mixer, block.feed_forward) if state is not None]
                 for block in self.stack.blocks]
        for state in (one for states in found for one in states):
            if not isinstance(state, RowState):
                raise checks.wrong("state", "a state of recurrences or convolutions, which has a fixed size",
                                   f"one with a {type(state).__name__}, which grows with the tokens")
        return found


class Decoder(nn.Module):
    """Tokens to logits; each token sees itself, those before it, and the encoded source where there is one."""

    def __init__(self, embedding: Embedding, stack: Stack, output: nn.Linear) -> None:
        super().__init__()
        self.embedding, self.stack, self.output = embedding, stack, output

    @property
    def attends(self) -> bool:
        """Whether its blocks have cross-attention to a source."""
        return any(block.cross is not None for block in self.stack.blocks)

    def states(self, tokens: AnyTokens, memory: AnyMemory | None = None) -> Tensor:
        """(B, N, D): the input of the output layer."""
        self._check_memory(memory)
        x = self.embedding(tokens.ids, tokens.positions, tokens.segments)
        if memory is None:
            return self.stack(x, tokens.present)
        return self.stack(x, tokens.present, memory.states, memory.mask_for(tokens))

    def forward(self, tokens: AnyTokens, memory: AnyMemory | None = None) -> Tensor:
        """Compute the logits (B, N, V) of all positions."""
        return self.output(self.states(tokens, memory))

    def start(self, memory: Memory | None, rows: int, capacity: int, with_cross: bool) -> DecoderState:
        """The state before the first token. The memory is projected here, once, for every block."""
        self._check_memory(memory)
        limit = self.embedding.limit
        if limit is not None and capacity > limit:
            remedy = "Generate fewer tokens, or use a model with more positions."
            raise checks.wrong("capacity", f"at most {limit:,}, the number of positions of the model", capacity, remedy)
        stack = (self.stack.start(rows, capacity) if memory is None
                 else self.stack.start(rows, capacity, memory.states, memory.lengths))
        positions = torch.zeros(rows, dtype=torch.long, device=self.output.weight.device)
        return DecoderState(stack, positions, with_cross)

    def step(self, state: DecoderState, ids: Tensor, lengths: Tensor | None = None) -> Step:
        """Consume the next tokens (B, n), of which row b has lengths[b]; those after them are ignored."""
        looks: list[Look] = []
        with self.collect_looks(looks if state.with_cross else None):
            x, after = self.step_features(state, ids, lengths)
        cross = torch.stack([look.weights() for look in looks], dim=1) if looks else None
        return Step(self.output(x), after, cross)

    def step_features(self, state: DecoderState, ids: Tensor,
                      lengths: Tensor | None = None) -> tuple[Tensor, DecoderState]:
        """Like `step` without the logits: the input of the output layer, (B, n, D), and the next state."""
        count = ids.shape[1]
        positions_BN = state.positions.unsqueeze(-1) + torch.arange(count, device=ids.device)
        if lengths is not None:  # padding needs no position, and may not ask for one beyond the last
            positions_BN = torch.minimum(positions_BN, (state.positions + lengths - 1).clamp(min=0).unsqueeze(-1))
        x, stack = self.stack.step(self.embedding(ids, positions_BN), state.stack, lengths=lengths)
        return x, DecoderState(stack, state.positions + (count if lengths is None else lengths), state.with_cross)

    @contextmanager
    def collect_looks(self, looks: list[Look] | None) -> Iterator[None]:
        """Collect the cross-attention of the blocks, the lowest first."""
        with ExitStack() as listening:
            for block in self.stack.blocks if looks is not None else ():
                if looks is not None and block.cross is not None:
                    tap: Tap = block.cross.tap  # type: ignore[union-attr, assignment]
                    listening.enter_context(tap.listen(in_this_thread(looks.append)))
            yield

    def _check_memory(self, memory: AnyMemory | None) -> None:
        if self.attends and memory is None:
            raise checks.wrong("memory", "the result of encode(...), for a decoder with cross-attention", None)
        if not self.attends and memory is not None:
            raise checks.wrong("memory", "None for a decoder without cross-attention", "given")


class EncoderDecoder(nn.Module):
    """An encoder-decoder: an encoder of the source, and a decoder whose blocks attend to the encoder's states.

    With attention as the mixer of both it is the Transformer; recurrence and convolution fit too. `regard.build` makes
    one from a recipe.

    Args:
        encoder: source ids to states.
        decoder: target ids and the encoder's states to logits; its blocks have cross-attention.
    """

    def __init__(self, encoder: Encoder, decoder: Decoder) -> None:
        super().__init__()
        if not decoder.attends:
            raise checks.wrong("decoder", "a decoder with cross-attention", "one without")
        self.encoder, self.decoder = encoder, decoder

    def encode(self, tokens: AnyTokens) -> AnyMemory:
        """Encode the source."""
        return self.encoder.encode(tokens)

    def decode(self, tokens: AnyTokens, memory: AnyMemory) -> Tensor:
        """Compute the logits (B, n, V) of all target positions."""
        return self.decoder(tokens, memory)

    @property
    def output(self) -> nn.Linear:
        """The layer that turns features into logits."""
        return self.decoder.output

    def features(self, source: AnyTokens, target: AnyTokens) -> Tensor:
        """Compute the input of the output layer, (B, n, D)."""
        return self.decode_features(target, self.encode(source))

    def decode_features(self, target: AnyTokens, memory: AnyMemory) -> Tensor:
        """Like `decode` without the logits: the input of the output layer, (B, n, D)."""
        return self.decoder.states(target, memory)

    def forward(self, source: AnyTokens, target: AnyTokens) -> Tensor:
        """Compute the logits (B, n, V) of all target positions at once, for training."""
        return self.output(self.features(source, target))

    def start(self, memory: Memory | None = None, *, rows: int | None = None, capacity: int,
              cross: bool = False) -> DecoderState:
        """Return the state before the first token, for `capacity` tokens a row; `cross` requests the weights."""
        if memory is None:
            raise checks.wrong("memory", "the result of encode(...)", None)
        if rows is not None and rows != memory.rows:
            raise checks.wrong("rows", f"the number of rows of the memory, {memory.rows}", rows,
                               "Repeat rows with memory.pick(...).")
        return self.decoder.start(memory, memory.rows, capacity, cross)

    def step(self, state: DecoderState, ids: Tensor, lengths: Tensor | None = None) -> Step:
        """Consume the next token of every row, or a chunk of them, (B, n)."""
        return self.decoder.step(state, ids, lengths)


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderConfig(Config):
    """Config of an encoder-decoder, such as the Transformer."""

    kind: ClassVar[str] = "encoder-decoder"
    source_vocab_size: int = integer(minimum=1, old="source_vocabulary")
    """Size of the source vocabulary; the tokenizer determines it."""
    target_vocab_size: int = integer(minimum=1, old="target_vocabulary")
    """Size of the target vocabulary; the tokenizer determines it."""
    width: int = integer(minimum=1)
    """Width of the model (d_model): features of each token."""
    share_embeddings: bool = renamed(False, old="shared")
    """Whether source and target share one embedding table."""
    tie_word_embeddings: bool = renamed(True, old="tied")
    """Whether the output layer uses the target's embedding table as its weights."""
    output_bias: bool = False
    """Whether the output layer has a bias."""
    embedding: EmbeddingConfig = EmbeddingConfig()
    """Token and position embedding of both sides."""
    encoder: StackConfig
    """The layers of the encoder."""
    decoder: StackConfig
    """The layers of the decoder."""

    def build(self) -> EncoderDecoder:
        """Build the model with new parameters."""
        source = self.embedding.build(self.source_vocab_size, self.width)
        target = self.embedding.build(self.target_vocab_size, self.width)
        if self.share_embeddings:
            source.tokens.weight = target.tokens.weight
        last = make_output_layer(self.width, self.target_vocab_size, bias=self.output_bias,
                                 tied=target if self.tie_word_embeddings else None)
        return EncoderDecoder(Encoder(source, self.encoder.build(self.width, causal=False)),
                              Decoder(target, self.decoder.build(self.width, causal=True), last))

    def parameters(self) -> int:
        """The number of parameters of the model."""
        total = (self.encoder.parameters(self.width, causal=False)
                 + self.decoder.parameters(self.width, causal=True))
        for vocab_size in (self.source_vocab_size, self.target_vocab_size):
            total += self.embedding.parameters(vocab_size, self.width)
        if self.share_embeddings:
            total -= self.source_vocab_size * (self.width - (self.embedding.position_width or 0))
        if not self.tie_word_embeddings:
            total += self.target_vocab_size * self.width
        return total + self.output_bias * self.target_vocab_size

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Pairs of a key and the reason why its value conflicts with another."""
        yield from ((f"embedding.{key}", why) for key, why in self.embedding.clashes(self.width))
        yield from ((f"encoder.{key}", why) for key, why in self.encoder.clashes(self.width, causal=False))
        yield from ((f"decoder.{key}", why) for key, why in self.decoder.clashes(self.width, causal=True))
        if self.encoder.cross is not None:
            yield "encoder.cross", "an encoder has no source to attend to"
        if self.decoder.cross is None:
            yield "decoder", "the table cross is missing: the decoder must attend to the source"
        if self.share_embeddings and self.source_vocab_size != self.target_vocab_size:
            sizes = f"{self.source_vocab_size} and {self.target_vocab_size}"
            yield "share_embeddings", f"both vocabularies must have one size, but they have {sizes}"
        if self.tie_word_embeddings and self.embedding.position_width:
            yield "tie_word_embeddings", "with concatenated positions, the embedding is narrower than the output layer"
