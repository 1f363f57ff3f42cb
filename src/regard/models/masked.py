"""The masked model: some tokens are hidden, and it says what stood there, from both sides.

    ids, some of them [MASK] ── Encoder ──► states ── W_f, GELU, norm ── output ──► logits of the token itself

Sources: BERT (Devlin et al. 2019) and algorithm 9 of Phuong and Hutter 2022. Unlike a language model, the logits at a
position are for that very position.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from regard.blocks.block import norm
from regard.blocks.feed_forward import ACTIVATIONS
from regard.checks import pick
from regard.config import choice, whole
from regard.models.contract import AnyMemory, AnyTokens
from regard.models.embedding import output
from regard.models.encoder import Encoder, EncoderConfig


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
    """An encoder, and a head that names the token at every position."""

    def __init__(self, encoder: Encoder, head: MaskedHead) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def encode(self, tokens: AnyTokens) -> AnyMemory:
        """The states of all tokens."""
        return self.encoder.encode(tokens)

    @property
    def output(self) -> nn.Linear:
        """The layer that makes logits of features."""
        return self.head.output

    def features(self, tokens: AnyTokens) -> Tensor:
        """What the output layer reads, (B, N, D of the head)."""
        return self.head.features(self.encoder.states(tokens))

    def forward(self, tokens: AnyTokens) -> Tensor:
        """The logits (B, N, V) of the token at every position."""
        return self.output(self.features(tokens))


@dataclass(frozen=True, kw_only=True)
class MaskedConfig(EncoderConfig):
    """A masked model, as a table of a config file: an encoder with these keys more.

    `head_width` is that of the head's hidden features (the paper's d_f), the model's own where not given.
    """

    kind: ClassVar[str] = "masked"
    head_width: int | None = whole(None, least=1)
    activation: str = choice(ACTIVATIONS, "gelu")
    tied: bool = True
    output_bias: bool = True

    def build(self) -> MaskedModel:
        """The model, with new parameters."""
        encoder, inner = self.encoder(), self.head_width or self.width
        last = output(inner, self.vocabulary, bias=self.output_bias, tied=encoder.embedding if self.tied else None)
        between = norm(self.stack.norm, inner, self.stack.epsilon)
        return MaskedModel(encoder, MaskedHead(self.width, between, last, self.activation))

    def parameters(self) -> int:
        inner = self.head_width or self.width
        last = (0 if self.tied else self.vocabulary * inner) + self.output_bias * self.vocabulary
        between = inner * (2 if self.stack.norm == "layer" else 1)
        return super().parameters() + self.width * inner + inner + between + last

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """What does not go together: key, and why."""
        yield from super().conflicts()
        if self.tied and (self.head_width or self.width) != self.width - (self.embedding.beside or 0):
            yield "tied", "the output layer can share the embedding's table only where both have one width"
