"""The encoder: tokens to states, each of which has seen all the others.

    ids ── embedding ── x ── block ── block ── … ── (norm) ──► states (B, N, D)

It reads; what is made of the states (a translation, the token behind a mask, a label) is a model's own part. Its blocks
may have any mixer. It does not know a vocabulary of outputs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from regard.blocks.stack import Stack, StackConfig
from regard.config import Config, whole
from regard.models.contract import AnyMemory, AnyTokens, Memory, PackedMemory, PackedTokens
from regard.models.embedding import Embedding, EmbeddingConfig


class Encoder(nn.Module):
    """Tokens to a memory of their states."""

    def __init__(self, embedding: Embedding, stack: Stack) -> None:
        super().__init__()
        self.embedding, self.stack = embedding, stack
        self.width = embedding.width

    def encode(self, tokens: AnyTokens) -> AnyMemory:
        """The states of all tokens. Rows that are padded on the left come out padded on the right."""
        tokens = tokens.right()
        states = self.states(tokens)
        if isinstance(tokens, PackedTokens):
            return PackedMemory(states, tokens.lengths)
        return Memory(states, tokens.lengths)

    def states(self, tokens: AnyTokens) -> Tensor:
        """(B, N, D), every state where its token stands."""
        x = self.embedding(tokens.ids, tokens.positions, tokens.segments)
        return self.stack(x, tokens.present)

    def forward(self, tokens: AnyTokens) -> Tensor:
        """The states."""
        return self.states(tokens)


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(Config):
    """An encoder, as a table of a config file; models that are an encoder and something more add their keys."""

    kind: ClassVar[str] = "encoder"
    vocabulary: int = whole(least=1)
    width: int = whole(least=1)
    embedding: EmbeddingConfig = EmbeddingConfig()
    stack: StackConfig

    def build(self) -> nn.Module:
        """The model, with new parameters."""
        return self.encoder()

    def encoder(self) -> Encoder:
        """The encoder alone."""
        return Encoder(self.embedding.build(self.vocabulary, self.width), self.stack.build(self.width, causal=False))

    def parameters(self) -> int:
        """How many learned numbers the model has."""
        return self.embedding.parameters(self.vocabulary, self.width) + self.stack.parameters(self.width)

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """What does not go together: key, and why."""
        yield from ((f"embedding.{key}", why) for key, why in self.embedding.clashes(self.width))
        yield from ((f"stack.{key}", why) for key, why in self.stack.clashes(self.width, causal=False))
        if self.stack.cross is not None:
            yield "stack.cross", "there is no source to look at in a model that only reads"
