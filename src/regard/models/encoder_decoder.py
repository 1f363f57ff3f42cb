"""The encoder-decoder without recurrence between the two: the Transformer, or any other mixer in its blocks.

    source ids ── Encoder ──► states h_1 … h_N ──┐  every decoder block looks at them: Attn(x, h)
                                                 ▼
    target ids ──────────── Decoder ─────────────────────► logits of the token after each

The two embeddings and the output layer may share one table (Vaswani et al. 2017, section 3.4). Source: the same paper,
and algorithm 8 of Phuong and Hutter 2022. It does not know how the parts are made; `regard.build` makes them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from regard import checks
from regard.blocks.stack import StackConfig
from regard.config import Config, whole
from regard.models.contract import AnyMemory, AnyTokens, Memory, Step
from regard.models.decoder import Decoder, DecoderState
from regard.models.embedding import EmbeddingConfig, output
from regard.models.encoder import Encoder


class EncoderDecoder(nn.Module):
    """An encoder, and a decoder whose blocks look at its states."""

    def __init__(self, encoder: Encoder, decoder: Decoder) -> None:
        super().__init__()
        if not decoder.attends:
            raise checks.wrong("decoder", "one with cross-attention in its blocks", "one without")
        self.encoder, self.decoder = encoder, decoder

    def encode(self, tokens: AnyTokens) -> AnyMemory:
        """The source, read once."""
        return self.encoder.encode(tokens)

    def decode(self, tokens: AnyTokens, memory: AnyMemory) -> Tensor:
        """The logits (B, n, V) of all positions."""
        return self.decoder(tokens, memory)

    @property
    def output(self) -> nn.Linear:
        """The layer that makes logits of features."""
        return self.decoder.output

    def features(self, source: AnyTokens, target: AnyTokens) -> Tensor:
        """What the output layer reads, (B, n, D)."""
        return self.decoder.states(target, self.encode(source))

    def forward(self, source: AnyTokens, target: AnyTokens) -> Tensor:
        """The logits of the target, all at once: what training asks for."""
        return self.output(self.features(source, target))

    def start(self, memory: Memory | None = None, *, rows: int | None = None, capacity: int,
              cross: bool = False) -> DecoderState:
        """The state before the first token, for at most `capacity` tokens a row; `cross` asks for the weights."""
        if memory is None:
            raise checks.wrong("memory", "what encode(...) gave", None)
        if rows is not None and rows != memory.rows:
            raise checks.wrong("rows", f"the memory's {memory.rows}", rows, "memory.pick(...) repeats rows.")
        return self.decoder.start(memory, memory.rows, capacity, cross)

    def step(self, state: DecoderState, ids: Tensor, lengths: Tensor | None = None) -> Step:
        """The next token of every row, or a chunk of them: (B, n)."""
        return self.decoder.advance(state, ids, lengths)


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderConfig(Config):
    """An encoder-decoder, as a table of a config file.

    `shared`: source and target read the same table; `tied`: the output layer's weights are the target's table.
    """

    kind: ClassVar[str] = "encoder-decoder"
    source_vocabulary: int = whole(least=1)
    target_vocabulary: int = whole(least=1)
    width: int = whole(least=1)
    shared: bool = False
    tied: bool = True
    output_bias: bool = False
    embedding: EmbeddingConfig = EmbeddingConfig()
    encoder: StackConfig
    decoder: StackConfig

    def build(self) -> EncoderDecoder:
        """The model, with new parameters."""
        source = self.embedding.build(self.source_vocabulary, self.width)
        target = self.embedding.build(self.target_vocabulary, self.width)
        if self.shared:
            source.tokens.weight = target.tokens.weight
        last = output(self.width, self.target_vocabulary, bias=self.output_bias, tied=target if self.tied else None)
        return EncoderDecoder(Encoder(source, self.encoder.build(self.width, causal=False)),
                              Decoder(target, self.decoder.build(self.width, causal=True), last))

    def parameters(self) -> int:
        """How many learned numbers the model has."""
        vocabularies = (self.source_vocabulary, self.target_vocabulary)
        tables = sum(self.embedding.parameters(vocabulary, self.width) for vocabulary in vocabularies)
        shared = self.source_vocabulary * (self.width - (self.embedding.beside or 0)) if self.shared else 0
        last = (0 if self.tied else self.target_vocabulary * self.width) + self.output_bias * self.target_vocabulary
        stacks = self.encoder.parameters(self.width) + self.decoder.parameters(self.width)
        return tables - shared + last + stacks

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """What does not go together: key, and why."""
        yield from ((f"embedding.{key}", why) for key, why in self.embedding.clashes(self.width))
        yield from ((f"encoder.{key}", why) for key, why in self.encoder.clashes(self.width, causal=False))
        yield from ((f"decoder.{key}", why) for key, why in self.decoder.clashes(self.width, causal=True))
        if self.encoder.cross is not None:
            yield "encoder.cross", "an encoder has no source to look at"
        if self.decoder.cross is None:
            yield "decoder", "a decoder looks at the source: it needs the table cross"
        if self.shared and self.source_vocabulary != self.target_vocabulary:
            sizes = f"{self.source_vocabulary} and {self.target_vocabulary}"
            yield "shared", f"one table for both needs vocabularies of one size, and they have {sizes}"
        if self.tied and self.embedding.beside:
            yield "tied", "a table that has positions beside it is narrower than the output layer"
