"""Language models: causal, which predict the next token, and masked, which predict hidden tokens.

    LanguageModel   ids ── Decoder ──► logits of the next token at every position
    MaskedModel     ids, some of them [MASK] ── Encoder ── W_f, GELU, norm ── output ──► logits of the token itself

A `LanguageModel` with causal self-attention is GPT (Radford et al. 2019; algorithm 10 of Phuong and Hutter 2022); with
recurrence as the mixer it is the recurrent language model. A `MaskedModel` is BERT (Devlin et al. 2019; algorithm 9).
There is no source.

Legend: B rows, N tokens, n new tokens, D width, V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from regard import checks
from regard.blocks.feed_forward import ACTIVATIONS
from regard.blocks.stack import StackConfig
from regard.blocks.sublayer import make_norm
from regard.checks import pick
from regard.config import Config, choice, integer, renamed
from regard.models.contract import AnyMemory, Memory, Step
from regard.models.embedding import EmbeddingConfig, make_output_layer
from regard.models.encoder_decoder import Decoder, DecoderState, Encoder, EncoderConfig
from regard.tokens import AnyTokens


class LanguageModel(nn.Module):
    """A causal language model: a decoder alone, which predicts the next token.

    Args:
        decoder: ids to logits; its blocks have no cross-attention.
    """

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        if decoder.attends:
            raise checks.wrong("decoder", "a decoder without cross-attention: there is no source", "one with it")
        self.decoder = decoder

    def decode(self, tokens: AnyTokens, memory: None = None) -> Tensor:
        """Compute the logits (B, N, V) of all positions."""
        return self.decoder(tokens, memory)

    @property
    def output(self) -> nn.Linear:
        """The layer that turns features into logits."""
        return self.decoder.output

    def features(self, tokens: AnyTokens) -> Tensor:
        """Compute the input of the output layer, (B, N, D)."""
        return self.decoder.states(tokens)

    def forward(self, tokens: AnyTokens) -> Tensor:
        """Compute the logits (B, N, V) of all positions at once, for training."""
        return self.output(self.features(tokens))

    def start(self, memory: Memory | None = None, *, rows: int | None = None, capacity: int,
              cross: bool = False) -> DecoderState:
        """Return the state before the first token, for `rows` texts of at most `capacity` tokens."""
        if rows is None:
            raise checks.wrong("rows", "the number of texts to generate", None)
        return self.decoder.start(memory, rows, capacity, cross)

    def step(self, state: DecoderState, ids: Tensor, lengths: Tensor | None = None) -> Step:
        """Consume the next token of every row, or a chunk of them, (B, n)."""
        return self.decoder.step(state, ids, lengths)

    def step_features(self, state: DecoderState, ids: Tensor,
                      lengths: Tensor | None = None) -> tuple[Tensor, DecoderState]:
        """Like `step` without the logits: the features (B, n, D), and the next state.

        Truncated back-propagation through time uses it for texts that are longer than one pass.
        """
        return self.decoder.step_features(state, ids, lengths)


@dataclass(frozen=True, kw_only=True)
class LanguageModelConfig(Config):
    """Config of a language model."""

    kind: ClassVar[str] = "language"
    vocab_size: int = integer(minimum=1, old="vocabulary")
    """Size of the vocabulary; the tokenizer determines it."""
    width: int = integer(minimum=1)
    """Width of the model (d_model): features of each token."""
    tie_word_embeddings: bool = renamed(True, old="tied")
    """Whether the output layer uses the embedding table as its weights."""
    output_bias: bool = False
    """Whether the output layer has a bias."""
    embedding: EmbeddingConfig = EmbeddingConfig()
    """Token and position embedding."""
    stack: StackConfig
    """The layers."""

    def build(self) -> LanguageModel:
        """Build the model with new parameters."""
        embedding = self.embedding.build(self.vocab_size, self.width)
        last = make_output_layer(self.width, self.vocab_size, bias=self.output_bias,
                                 tied=embedding if self.tie_word_embeddings else None)
        return LanguageModel(Decoder(embedding, self.stack.build(self.width, causal=True), last))

    def parameters(self) -> int:
        """The number of parameters of the model."""
        last = (0 if self.tie_word_embeddings else self.vocab_size * self.width) + self.output_bias * self.vocab_size
        stack = self.stack.parameters(self.width, causal=True)
        return self.embedding.parameters(self.vocab_size, self.width) + stack + last

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Pairs of a key and the reason why its value conflicts with another."""
        yield from ((f"embedding.{key}", why) for key, why in self.embedding.clashes(self.width))
        yield from ((f"stack.{key}", why) for key, why in self.stack.clashes(self.width, causal=True))
        if self.stack.cross is not None:
            yield "stack.cross", "a language model has no source to attend to"
        if self.tie_word_embeddings and self.embedding.position_width:
            yield "tie_word_embeddings", "with concatenated positions, the embedding is narrower than the output layer"


class MaskedHead(nn.Module):
    """logits = W_u norm(f(W_f x + b_f)) (+ b_u)."""

    def __init__(self, width: int, norm: nn.Module, output: nn.Linear, activation: str = "gelu") -> None:
        super().__init__()
        self.name, self.activation = activation, pick("activation", activation, ACTIVATIONS)
        self.dense = nn.Linear(width, output.in_features)
        self.norm, self.output = norm, output
        nn.init.xavier_uniform_(self.dense.weight)
        nn.init.zeros_(self.dense.bias)

    def features(self, states: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, D of the head)."""
        return self.norm(self.activation(self.dense(states)))

    def forward(self, states: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, V)."""
        return self.output(self.features(states))


class MaskedModel(nn.Module):
    """A masked language model: an encoder, and a head that predicts the token at every position.

    Args:
        encoder: ids to states.
        head: states to logits.
    """

    def __init__(self, encoder: Encoder, head: MaskedHead) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def encode(self, tokens: AnyTokens) -> AnyMemory:
        """Encode the tokens."""
        return self.encoder.encode(tokens)

    @property
    def output(self) -> nn.Linear:
        """The layer that turns features into logits."""
        return self.head.output

    def features(self, tokens: AnyTokens) -> Tensor:
        """Compute the input of the output layer, (B, N, D of the head)."""
        return self.head.features(self.encoder.states(tokens))

    def forward(self, tokens: AnyTokens) -> Tensor:
        """Compute the logits (B, N, V) of the token at every position."""
        return self.output(self.features(tokens))


@dataclass(frozen=True, kw_only=True)
class MaskedModelConfig(EncoderConfig):
    """Config of a masked language model: an encoder with an output head."""

    kind: ClassVar[str] = "masked"
    mlm_width: int | None = integer(None, minimum=1, old="head_width")
    """Hidden features of the output head; by default the width of the model."""
    activation: str = choice(ACTIVATIONS, "gelu")
    """Activation function of the output head."""
    tie_word_embeddings: bool = renamed(True, old="tied")
    """Whether the output layer uses the embedding table as its weights."""
    output_bias: bool = True
    """Whether the output layer has a bias."""

    def build(self) -> MaskedModel:
        """Build the model with new parameters."""
        encoder, inner = self.encoder(), self.mlm_width or self.width
        last = make_output_layer(inner, self.vocab_size, bias=self.output_bias,
                                 tied=encoder.embedding if self.tie_word_embeddings else None)
        between = make_norm(self.stack.norm, inner, self.stack.epsilon)
        return MaskedModel(encoder, MaskedHead(self.width, between, last, self.activation))

    def parameters(self) -> int:
        inner = self.mlm_width or self.width
        last = (0 if self.tie_word_embeddings else self.vocab_size * inner) + self.output_bias * self.vocab_size
        between = inner * (2 if self.stack.norm == "layer" else 1)
        return super().parameters() + self.width * inner + inner + between + last

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Pairs of a key and the reason why its value conflicts with another."""
        yield from super().conflicts()
        table_width = self.width - (self.embedding.position_width or 0)
        if self.tie_word_embeddings and (self.mlm_width or self.width) != table_width:
            why = f"the head must be as wide as the embedding, {table_width}, but is {self.mlm_width or self.width}"
            yield "tie_word_embeddings", why
