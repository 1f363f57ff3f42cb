"""The language model: it reads a text and says what comes next.

    ids ── Decoder ──► logits of the token after each

A stack of causal blocks is GPT (Radford et al. 2019; algorithm 10 of Phuong and Hutter 2022); with recurrence as the
mixer it is the recurrent language model, many-to-many. There is no source and no memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from regard import checks
from regard.blocks.stack import StackConfig
from regard.config import Config, whole
from regard.models.contract import AnyTokens, Memory, Step
from regard.models.decoder import Decoder, DecoderState
from regard.models.embedding import EmbeddingConfig, output


class LanguageModel(nn.Module):
    """A decoder alone."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        if decoder.attends:
            raise checks.wrong("decoder", "one without cross-attention: there is no source", "one with it")
        self.decoder = decoder

    def decode(self, tokens: AnyTokens, memory: None = None) -> Tensor:
        """The logits (B, N, V) of all positions."""
        return self.decoder(tokens, memory)

    @property
    def output(self) -> nn.Linear:
        """The layer that makes logits of features."""
        return self.decoder.output

    def features(self, tokens: AnyTokens) -> Tensor:
        """What the output layer reads, (B, N, D)."""
        return self.decoder.states(tokens)

    def forward(self, tokens: AnyTokens) -> Tensor:
        """The logits of all positions: what training asks for."""
        return self.output(self.features(tokens))

    def start(self, memory: Memory | None = None, *, rows: int | None = None, capacity: int,
              cross: bool = False) -> DecoderState:
        """The state before the first token, for `rows` texts of at most `capacity` tokens."""
        if rows is None:
            raise checks.wrong("rows", "how many texts are written", None)
        return self.decoder.start(memory, rows, capacity, cross)

    def step(self, state: DecoderState, ids: Tensor, lengths: Tensor | None = None) -> Step:
        """The next token of every row, or a chunk of them: (B, n)."""
        return self.decoder.advance(state, ids, lengths)

    def read(self, state: DecoderState, ids: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, DecoderState]:
        """As `step`, without the logits: the features (B, n, D), and the state after them.

        It is how a text is learned from that is longer than what fits into one pass.
        """
        return self.decoder.read(state, ids, lengths)


@dataclass(frozen=True, kw_only=True)
class LanguageConfig(Config):
    """A language model, as a table of a config file. `tied`: the output layer's weights are the embedding's table."""

    kind: ClassVar[str] = "language"
    vocabulary: int = whole(least=1)
    width: int = whole(least=1)
    tied: bool = True
    output_bias: bool = False
    embedding: EmbeddingConfig = EmbeddingConfig()
    stack: StackConfig

    def build(self) -> LanguageModel:
        """The model, with new parameters."""
        embedding = self.embedding.build(self.vocabulary, self.width)
        last = output(self.width, self.vocabulary, bias=self.output_bias, tied=embedding if self.tied else None)
        return LanguageModel(Decoder(embedding, self.stack.build(self.width, causal=True), last))

    def parameters(self) -> int:
        """How many learned numbers the model has."""
        last = (0 if self.tied else self.vocabulary * self.width) + self.output_bias * self.vocabulary
        return self.embedding.parameters(self.vocabulary, self.width) + self.stack.parameters(self.width) + last

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """What does not go together: key, and why."""
        yield from ((f"embedding.{key}", why) for key, why in self.embedding.clashes(self.width))
        yield from ((f"stack.{key}", why) for key, why in self.stack.clashes(self.width, causal=True))
        if self.stack.cross is not None:
            yield "stack.cross", "a language model has no source to look at"
        if self.tied and self.embedding.beside:
            yield "tied", "a table that has positions beside it is narrower than the output layer"
