"""Token classification (one label for every token) and sequence classification (one label for the whole).

    Tagger               ids ── Encoder ──► states ── W ──► logits (B, N, labels)
    SequenceClassifier   ids ── Encoder ──► states ── pooling (── tanh W_p) ── W ──► logits (B, labels)

Pooling takes the state of the first token (as BERT does), of the last one (as recurrent networks do), or the mean of
all. The models do not know what the labels mean.

Legend: B rows, N tokens, D width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from regard import checks
from regard.blocks.sublayer import Dropout
from regard.config import choice, integer, probability
from regard.models.contract import AnyMemory, Memory, PackedMemory
from regard.models.encoder_decoder import Encoder, EncoderConfig
from regard.tokens import AnyTokens


def _pool_first(memory: Memory) -> Tensor:
    if memory.states.shape[1] == 0:  # no token at all: zeros, like the mean
        return memory.mean()
    return _zeros_for_empty(memory.states[:, 0], memory.lengths)


def _pool_last(memory: Memory) -> Tensor:
    if memory.states.shape[1] == 0:
        return memory.mean()
    if memory.lengths is None:
        return memory.states[:, -1]
    rows = torch.arange(memory.rows, device=memory.states.device)
    return _zeros_for_empty(memory.states[rows, (memory.lengths - 1).clamp(min=0)], memory.lengths)


def _zeros_for_empty(states: Tensor, lengths: Tensor | None) -> Tensor:
    """The states (B, D), with zeros for rows without tokens."""
    return states if lengths is None else states.masked_fill((lengths == 0).unsqueeze(-1), 0.0)


POOLINGS: dict[str, Callable[[Memory], Tensor]] = {"first": _pool_first, "last": _pool_last, "mean": Memory.mean}
POOLER_LAYERS = {"none": False, "tanh": True}
"""The layer between the pooled vector and the labels: whether there is one."""


class Tagger(nn.Module):
    """Token classification: an encoder, and a label for every token.

    Args:
        encoder: ids to states.
        labels: the number of labels.
        dropout: the probability of dropout before the output layer, while training.
    """

    def __init__(self, encoder: Encoder, labels: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.encoder, self.dropout = encoder, Dropout(dropout)
        self.output = nn.Linear(encoder.width, labels)

    def encode(self, tokens: AnyTokens) -> AnyMemory:
        """Encode the tokens."""
        return self.encoder.encode(tokens)

    def features(self, tokens: AnyTokens) -> Tensor:
        """Compute the input of the output layer, (B, N, D)."""
        return self.dropout(self.encoder.states(tokens))

    def forward(self, tokens: AnyTokens) -> Tensor:
        """Compute the logits (B, N, labels)."""
        return self.output(self.features(tokens))


class SequenceClassifier(nn.Module):
    """Sequence classification: an encoder, and a label for every sequence.

    Args:
        encoder: ids to states.
        labels: the number of labels.
        pooling: the state that represents the sequence: "first", "last" or "mean".
        between: "none"; or "tanh" for a hidden layer tanh(W_p x + b_p), as in BERT.
        dropout: the probability of dropout before the output layer, while training.
    """

    def __init__(self, encoder: Encoder, labels: int, *, pooling: str = "mean", between: str = "none",
                 dropout: float = 0.0) -> None:
        super().__init__()
        self.pool = checks.pick("pooling", pooling, POOLINGS)
        self.encoder, self.dropout = encoder, Dropout(dropout)
        width = encoder.width
        tanh = checks.pick("between", between, POOLER_LAYERS)
        self.between = nn.Linear(width, width) if tanh else None
        self.output = nn.Linear(width, labels)

    def encode(self, tokens: AnyTokens) -> AnyMemory:
        """Encode the tokens."""
        return self.encoder.encode(tokens)

    def features(self, tokens: AnyTokens) -> Tensor:
        """Compute the input of the output layer, (rows, D)."""
        memory = self.encode(tokens)
        pooled = self.pool(memory.padded() if isinstance(memory, PackedMemory) else memory)
        if self.between is not None:
            pooled = torch.tanh(self.between(pooled))
        return self.dropout(pooled)

    def forward(self, tokens: AnyTokens) -> Tensor:
        """Compute the logits (rows, labels)."""
        return self.output(self.features(tokens))


@dataclass(frozen=True, kw_only=True)
class LabelsConfig(EncoderConfig):
    """The keys that taggers and classifiers share."""

    num_labels: int = integer(minimum=1, old="labels")
    """Number of labels; the data determines it."""
    dropout: float = probability(0.0)
    """Dropout before the output layer."""

    def parameters(self) -> int:
        return super().parameters() + (self.width + 1) * self.num_labels


@dataclass(frozen=True, kw_only=True)
class TaggerConfig(LabelsConfig):
    """Config of a tagger, which labels tokens."""

    kind: ClassVar[str] = "tagger"

    def build(self) -> Tagger:
        """Build the model with new parameters."""
        return Tagger(self.encoder(), self.num_labels, dropout=self.dropout)


@dataclass(frozen=True, kw_only=True)
class ClassifierConfig(LabelsConfig):
    """Config of a classifier of texts."""

    kind: ClassVar[str] = "classifier"
    pooling: str = choice(POOLINGS, "mean")
    """State that represents a text: that of the first or the last token, or the mean over all."""
    pooler_activation: str = choice(POOLER_LAYERS, "none", old="between")
    """Layer between that state and the output layer: none, or a tanh layer as in BERT."""

    def build(self) -> SequenceClassifier:
        """Build the model with new parameters."""
        return SequenceClassifier(self.encoder(), self.num_labels, pooling=self.pooling, between=self.pooler_activation,
                                  dropout=self.dropout)

    def parameters(self) -> int:
        return super().parameters() + (self.width * (self.width + 1) if POOLER_LAYERS[self.pooler_activation] else 0)
