"""Ids to vectors: the first layer of every model of tokens, and the output layer that may share its table.

    x = dropout(norm(√D · E[id] + PE(position) + S[segment]))      √D, PE, S and norm only where the model has them

E is a table with one vector for each id, and may be shared with another embedding and with the output layer. Position
encodings are added, or concatenated to the features (then E is that much narrower). An embedding knows nothing of
padding and of other tokens.

Legend: B rows, N tokens, D width, V vocabulary.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard import checks
from regard.blocks.sublayer import NORMS, Dropout, make_norm
from regard.config import Config, choice, integer, number, probability
from regard.kernels.launch import is_readable
from regard.position.encoding import (
    AddPositions,
    ConcatenatePositions,
    EncodingConfig,
    FormalSinusoidalConfig,
    PositionalEncoding,
)

POSITION_JOINS: dict[str, type[AddPositions] | type[ConcatenatePositions]] = {"added": AddPositions,
                                                                              "concatenated": ConcatenatePositions}


class Embedding(nn.Module):
    """ids (B, N) -> vectors (B, N, width).

    Args:
        vocabulary: the number of ids.
        width: the width of the vectors.
        positions: the position encoding; None for none.
        joined: "added", or "concatenated", where the width of the encoding is part of `width`.
        scale: whether the vectors of the table are multiplied by √width (Vaswani et al. 2017, section 3.4).
        segments: the number of segment embeddings (BERT's token types: 2); 0 for none.
        norm: a norm over the features of the sum; None for none.
        dropout: the probability of dropout on the result.
    """

    def __init__(self, vocabulary: int, width: int, *, positions: PositionalEncoding | None = None,
                 joined: str = "added", scale: bool = False, segments: int = 0, norm: nn.Module | None = None,
                 dropout: float = 0.0) -> None:
        super().__init__()
        checks.probability("dropout", dropout)
        join = checks.pick("joined", joined, POSITION_JOINS)
        beside = positions.width if positions is not None and joined == "concatenated" else 0
        if beside >= width:
            expected = f"an encoding narrower than the width of the model, {width}"
            raise checks.wrong("positions", expected, f"one of width {beside}")
        self.width, self.factor = width, math.sqrt(width) if scale else 1.0
        self.tokens = nn.Embedding(vocabulary, width - beside)
        self.positions = None if positions is None else join(positions)
        self.segments = nn.Embedding(segments, width) if segments else None
        self.norm, self.dropout = norm, Dropout(dropout)
        # With the factor √D tokens start as large as sinusoids; without it as in BERT and GPT-2.
        nn.init.normal_(self.tokens.weight, std=width**-0.5 if scale else 0.02)
        if self.segments is not None:
            nn.init.normal_(self.segments.weight, std=0.02)

    @property
    def limit(self) -> int | None:
        """The number of positions; None for no limit."""
        return None if self.positions is None else self.positions.encoding.limit

    def forward(self, ids: Tensor, positions: Tensor, segments: Tensor | None = None) -> Tensor:
        """The vectors of tokens at `positions`, (N,) or (B, N)."""
        _check_range("ids", ids, self.tokens, "vocabulary")
        x = self.tokens(ids)
        if self.factor != 1.0:
            x = x * self.factor
        if self.positions is not None:
            x = self.positions(x, positions)
        if self.segments is not None:
            if segments is not None:
                _check_range("segments", segments, self.segments, "segment table")
            x = x + (self.segments.weight[0] if segments is None else self.segments(segments))
        elif segments is not None:
            raise checks.wrong("segments", "None for a model without segment embeddings", "given")
        return self.dropout(x if self.norm is None else self.norm(x))


def _check_range(argument: str, ids: Tensor, table: nn.Embedding, name: str) -> None:
    """Name an id that is out of range, which torch does not. Ids on a GPU are not checked: it would wait for them."""
    if not is_readable(ids) or ids.numel() == 0:
        return
    low, high = (int(bound) for bound in torch.aminmax(ids))
    if low < 0 or high >= table.num_embeddings:
        expected = f"from 0 to {table.num_embeddings - 1}, because the {name} has {table.num_embeddings:,} entries"
        raise checks.wrong(argument, expected, low if low < 0 else high)


def make_output_layer(width: int, vocabulary: int, *, bias: bool, tied: Embedding | None = None) -> nn.Linear:
    """Make the layer from states to logits; with `tied` its weights are the table of that embedding."""
    layer = nn.Linear(width, vocabulary, bias)
    if tied is None:
        nn.init.normal_(layer.weight, std=0.02)
    else:
        layer.weight = tied.tokens.weight
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


@dataclass(frozen=True, kw_only=True)
class EmbeddingConfig(Config):
    """Config of an `Embedding`."""

    positions: EncodingConfig | None = None
    """Positional encoding; none without this table."""
    combine: str = choice(POSITION_JOINS, "added", old="joined")
    """Whether positions are added to the token embedding or concatenated with it."""
    position_width: int | None = integer(None, minimum=1, old="beside")
    """Features of concatenated positions."""
    scale: bool = False
    """Whether token embeddings are multiplied by the square root of the width (Vaswani et al. 2017)."""
    segments: int = integer(0, minimum=0)
    """Segment (token type) embeddings, as in BERT; 0 for none."""
    norm: str | None = choice(NORMS, None)
    """Normalization of the embedding; none by default."""
    epsilon: float = number(1e-5, minimum=0.0)
    """Epsilon of the normalization of the embedding."""
    dropout: float = probability(0.0)
    """Dropout of the embedding."""

    def build(self, vocabulary: int, width: int) -> Embedding:
        """Build the embedding of a vocabulary, in this width."""
        positions = None if self.positions is None else self.positions.build(self.position_width or width)
        return Embedding(vocabulary, width, positions=positions, joined=self.combine, scale=self.scale,
                         segments=self.segments, dropout=self.dropout,
                         norm=None if self.norm is None else make_norm(self.norm, width, self.epsilon))

    def parameters(self, vocabulary: int, width: int) -> int:
        """The number of parameters."""
        encodings = 0 if self.positions is None else self.positions.parameters(self.position_width or width)
        norms = {"layer": 2 * width, "rms": width}.get(self.norm or "", 0)
        return vocabulary * (width - (self.position_width or 0)) + encodings + self.segments * width + norms

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Pairs of a key and the reason why its value conflicts with another."""
        if (self.position_width is not None) != (self.combine == "concatenated"):
            yield "position_width", 'it is for concatenated positions: set combine = "concatenated", or leave it out'
        if self.positions is None and self.combine == "concatenated":
            yield "combine", "there are no positions to concatenate: set positions"

    def clashes(self, width: int) -> Iterator[tuple[str, str]]:
        """Pairs of a key and the reason why its value does not fit a model of this width."""
        if self.position_width is not None and self.position_width >= width:
            yield "position_width", f"it must be below the width of the model, {width}, but is {self.position_width}"
        if isinstance(self.positions, FormalSinusoidalConfig) and (self.position_width or width) % 2:
            yield "positions", f"formal sinusoids need an even width, but it is {self.position_width or width}"
