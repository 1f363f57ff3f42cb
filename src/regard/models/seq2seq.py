"""The recurrent encoder-decoder, before the Transformer: with one context vector, or with attention.

    source ids ── embedding ── Recurrence ──► h_1 … h_T ──► c = h_T (the last valid state)
                                                │
    one context:   c is fed to every step       │   s_0 = tanh(W c + b)
    attention:     c_t = Σ a_{t,i} h_i, a_t = softmax_i(score(s_{t-1}, h_i)), new for every step
                                                │
    target ids ── embedding ── s_t = g_U([y_t; c_t], s_{t-1}) ──► W_V tanh(W_O [s_t; c_t]) ──► logits

`y_t` is the word before the one that step t predicts ([START] first). Sources: Sutskever et al. 2014, Cho et al. 2014;
Bahdanau et al. 2015, whose encoder is bidirectional; Luong et al. 2015 for input feeding, where tanh(W_O [s; c]) of the
step before is an input too. Departures: s_0 is computed from the last state or, if chosen, from the mean of the states;
the c of an LSTM starts with zeros.

Legend: B rows, N tokens of the source, n tokens of the target, D width, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard import checks
from regard.attention.cache import ContextCache
from regard.attention.layer import Attention, AttentionLayer, BasicAttention
from regard.attention.look import Look, in_this_thread
from regard.attention.normalize import NORMALIZERS
from regard.attention.score import SCORES, Score
from regard.blocks.sublayer import Dropout
from regard.config import Config, choice, integer, probability
from regard.mixer import CompositeState, RowState
from regard.models.contract import Memory, Step
from regard.recurrence.cells import CELLS, make_cell
from regard.recurrence.cells import count_cell_parameters as cell_parameters
from regard.recurrence.scan import DIRECTIONS, Recurrence
from regard.tokens import Tokens

INITIAL_STATES = {"last": None, "mean": None}
ATTENTION_VALUES = {"states": None, "projected": None}


@dataclass(frozen=True)
class Seq2SeqState(CompositeState):
    """The state of the decoder for each row."""

    cells: RowState
    """The tensors of all cells, lowest layer first, then the output that input feeding reads."""
    source: "ContextCache | RowState"
    """The source for the decoder: projected keys and values, or the one context vector."""
    positions: Tensor
    """(B,): the number of tokens that each row has consumed."""
    with_cross: bool
    """Whether steps return the cross-attention weights."""


class RecurrentEncoder(nn.Module):
    """The encoder of `Seq2Seq`: source ids to a state for each token, h_1 … h_T, and their summary h_T.

    Args:
        vocabulary: the number of source ids.
        width: the width of the embedding and of the states.
        cell, layers, direction, dropout: as for `Recurrence`.
    """

    def __init__(self, vocabulary: int, width: int, *, cell: str = "gru", layers: int = 1, direction: str = "forward",
                 dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.dropout = Dropout(dropout)
        self.recurrence = Recurrence(width, cell=cell, layers=layers, direction=direction, dropout=dropout)
        self.width = width

    def forward(self, tokens: Tokens) -> Memory:
        """Encode the source; the states of padding are zeros."""
        if not isinstance(tokens, Tokens):
            raise checks.wrong("tokens", "Tokens, for a recurrent model", "PackedTokens", "Use Tokens.of(...).")
        tokens = tokens.right()
        states = self.recurrence(self.dropout(self.embedding(tokens.ids)), tokens.present)
        return Memory(states, tokens.lengths, self.summary(states, tokens.lengths))

    def summary(self, states: Tensor, lengths: Tensor | None) -> Tensor:
        """h_T, the last valid state of each row, zeros for an empty one; of the backward direction the first state."""
        if states.shape[1] == 0:
            return states.new_zeros(states.shape[0], states.shape[2])
        count = torch.full_like(states[:, 0, 0], states.shape[1], dtype=torch.long) if lengths is None else lengths
        last = states[torch.arange(states.shape[0], device=states.device), (count - 1).clamp(min=0)]
        first = states[:, 0]
        half = states.shape[-1] // 2
        return {"forward": last, "backward": first,
                "both": torch.cat([last[:, :half], first[:, half:]], dim=-1)}[self.recurrence.direction]


class RecurrentDecoder(nn.Module, ABC):
    """The base of both decoders: cells over [y; c], and logits from [s; c]. They differ in how c is computed."""

    def __init__(self, vocabulary: int, width: int, *, context_width: int, attended_width: int | None = None,
                 cell: str = "gru", layers: int = 1, initial: str = "last", input_feeding: bool = False,
                 dropout: float = 0.0) -> None:
        super().__init__()
        checks.pick("initial", initial, INITIAL_STATES)
        attended_width = context_width if attended_width is None else attended_width  # the width of c_t
        self.width, self.context_width, self.initial_from = width, context_width, initial
        self.embedding = nn.Embedding(vocabulary, width)
        self.dropout = Dropout(dropout)
        fed_width = width if input_feeding else 0
        cells = [make_cell(cell, width if layer else width + attended_width + fed_width,
                           width) for layer in range(layers)]
        self.memories = cells[0].memories
        self.cells = nn.ModuleList(cells)
        self.initial = nn.ModuleList(nn.Linear(context_width, width) for _ in range(layers))
        self.join = nn.Linear(width + attended_width, width)
        self.vocabulary = nn.Linear(width, vocabulary)
        self.input_feeding = input_feeding

    @abstractmethod
    def source(self, memory: Memory) -> "ContextCache | RowState":
        """The part of the memory that the decoder uses, computed once."""

    @abstractmethod
    def context(self, hidden: Tensor, source: "ContextCache | RowState") -> Tensor:
        """c_t for the step after the state s_{t-1} (B, D)."""

    def start(self, memory: Memory, with_cross: bool) -> Seq2SeqState:
        """Compute s_0 of every layer from the last state, or from the mean of the states."""
        initial = memory.summary if self.initial_from == "last" else memory.mean()
        assert initial is not None, "an encoder of this file makes a summary"
        zeros = initial.new_zeros(initial.shape[0], self.width)
        tensors: list[Tensor] = []
        for project in self.initial:
            tensors += [torch.tanh(project(initial)), *[zeros] * (self.memories - 1)]
        if self.input_feeding:
            tensors.append(zeros)
        positions = torch.zeros(initial.shape[0], dtype=torch.long, device=initial.device)
        return Seq2SeqState(RowState(tuple(tensors)), self.source(memory), positions, with_cross)

    def step(self, state: Seq2SeqState, ids: Tensor, present: Tensor | None = None) -> Step:
        """Consume the next tokens (B, n). Where `present` (B, n) is False the row has no token and keeps its state."""
        features, state, cross = self.step_features(state, ids, present)
        return Step(self.vocabulary(features), state, cross)

    def step_features(self, state: Seq2SeqState, ids: Tensor,
                      present: Tensor | None = None) -> tuple[Tensor, Seq2SeqState, Tensor | None]:
        """Like `step`, with the input of the output layer instead of the logits."""
        embedded = self.dropout(self.embedding(ids))
        outputs: list[Tensor] = []
        looks: list[Look] = []
        with self._collect_looks(looks) if state.with_cross else nullcontext():
            for t in range(ids.shape[1]):
                state, output = self._step_layers(embedded[:, t], state, None if present is None else present[:, t])
                outputs.append(output)
        joined = torch.stack(outputs, dim=1) if outputs else embedded
        cross = torch.cat([look.weights() for look in looks], dim=-2).unsqueeze(1) if looks else None
        return self.dropout(joined), state, cross

    def _collect_looks(self, looks: list[Look]) -> AbstractContextManager[None]:
        """Collect the decoder's attention; without attention there is none."""
        return nullcontext()

    def _step_layers(self, y: Tensor, state: Seq2SeqState, present: Tensor | None) -> tuple[Seq2SeqState, Tensor]:
        """One step of all layers: the next state, and tanh(W_O [s; c])."""
        before = state.cells.tensors
        after: list[Tensor] = []
        context = self.context(before[self.memories * (len(self.cells) - 1)], state.source)  # s_{t-1}, highest layer
        x = torch.cat([y, context, *([before[-1]] if self.input_feeding else [])], dim=-1)
        for layer, cell in enumerate(self.cells):
            following = cell(x, before[layer * self.memories:(layer + 1) * self.memories])
            after += following
            x = following[0]
        output = torch.tanh(self.join(torch.cat([x, context], dim=-1)))
        if self.input_feeding:
            after.append(output)
        if present is not None:
            after = [torch.where(present.unsqueeze(-1), new, old) for new, old in zip(after, before, strict=True)]
        positions = state.positions + (1 if present is None else present)
        return replace(state, cells=RowState(tuple(after)), positions=positions), output


class OneContextDecoder(RecurrentDecoder):
    """The decoder of `Seq2Seq` without attention: one vector, c = h_T, is an input of every step.

    Args:
        vocabulary: the number of target ids.
        width: the width of the embedding and of the state.
        context_width: the width of the encoder's states.
        attended_width: the width of c; `context_width` by default.
        cell, layers, dropout: as for `Recurrence`.
        initial: what the first state is computed from: "last", the encoder's summary; "mean", the mean of its states.
        input_feeding: whether each step also reads the output vector of the step before (Luong et al. 2015).
    """

    def source(self, memory: Memory) -> RowState:
        assert memory.summary is not None
        return RowState((memory.summary,))

    def context(self, hidden: Tensor, source: "ContextCache | RowState") -> Tensor:
        assert isinstance(source, RowState)
        return source.tensors[0]


class AttendingDecoder(RecurrentDecoder):
    """The decoder of `Seq2Seq` with attention: every step has a context c_t of its own, computed from s_{t-1}.

    Keys are projected once for each source.

    Args:
        vocabulary: the number of target ids.
        width: the width of the embedding and of the state.
        context_width: the width of the encoder's states.
        score: "additive" as in Bahdanau et al. 2015, "bilinear", or as for `attend`.
        normalize: as for `attend`.
        values: "states", the encoder's states themselves, or "projected", a learned projection of them.
        options: as for `OneContextDecoder`.
    """

    def __init__(self, vocabulary: int, width: int, *, context_width: int, score: "str | Score" = "additive",
                 normalize: str = "softmax", values: str = "states", **options: object) -> None:
        checks.pick("values", values, ATTENTION_VALUES)
        attended_width = {"states": context_width, "projected": width}[values]
        super().__init__(vocabulary, width, context_width=context_width, attended_width=attended_width,
                         **options)  # type: ignore[arg-type]
        self.attention: AttentionLayer
        if values == "states":
            self.attention = BasicAttention(width, context_width=context_width, score=score, normalize=normalize)
        else:
            self.attention = Attention(width, heads=1, context_width=context_width, score=score, normalize=normalize)

    def source(self, memory: Memory) -> ContextCache:
        return self.attention.remember(memory.states, memory.lengths)

    def context(self, hidden: Tensor, source: "ContextCache | RowState") -> Tensor:
        assert isinstance(source, ContextCache)
        return self.attention.step(hidden.unsqueeze(1), source)[0].squeeze(1)

    def _collect_looks(self, looks: list[Look]) -> AbstractContextManager[None]:
        return self.attention.tap.listen(in_this_thread(looks.append))


class Seq2Seq(nn.Module):
    """The recurrent encoder-decoder: with one context vector, or with attention.

    Args:
        encoder: the encoder of the source.
        decoder: `OneContextDecoder` or `AttendingDecoder`.
    """

    def __init__(self, encoder: RecurrentEncoder, decoder: RecurrentDecoder) -> None:
        super().__init__()
        if decoder.context_width != encoder.width:
            raise checks.wrong("decoder", f"a decoder for the encoder's width, {encoder.width}",
                               f"one for a context of width {decoder.context_width}")
        self.encoder, self.decoder = encoder, decoder

    def encode(self, tokens: Tokens) -> Memory:
        """Encode the source."""
        return self.encoder(tokens)

    def decode(self, tokens: Tokens, memory: Memory) -> Tensor:
        """Compute the logits (B, n, V) of all target positions."""
        return self.output(self.decode_features(tokens, memory))

    @property
    def output(self) -> nn.Linear:
        """The layer that turns features into logits."""
        return self.decoder.vocabulary

    def features(self, source: Tokens, target: Tokens) -> Tensor:
        """Compute the input of the output layer, (B, n, D)."""
        return self.decode_features(target, self.encode(source))

    def forward(self, source: Tokens, target: Tokens) -> Tensor:
        """Compute the logits (B, n, V) of all target positions at once, for training."""
        return self.output(self.features(source, target))

    def decode_features(self, tokens: Tokens, memory: Memory) -> Tensor:
        """Like `decode` without the logits: the input of the output layer, (B, n, D)."""
        mask = tokens.present
        present = None if mask is None else mask.matrix(1, tokens.ids.shape[1], device=tokens.ids.device).squeeze(-2)
        return self.decoder.step_features(self.decoder.start(memory, with_cross=False), tokens.ids, present)[0]

    def start(self, memory: Memory | None = None, *, rows: int | None = None, capacity: int | None = None,
              cross: bool = False) -> Seq2SeqState:
        """Return the state before the first token. `capacity` is not needed; `cross` requests the weights."""
        if memory is None:
            raise checks.wrong("memory", "the result of encode(...)", None)
        if rows is not None and rows != memory.rows:
            raise checks.wrong("rows", f"the number of rows of the memory, {memory.rows}", rows,
                               "Repeat rows with memory.pick(...).")
        return self.decoder.start(memory, with_cross=cross)

    def step(self, state: Seq2SeqState, ids: Tensor, lengths: Tensor | None = None) -> Step:
        """Consume the next token of every row, or a chunk (B, n), of which row b has lengths[b]."""
        present = None if lengths is None else torch.arange(ids.shape[1], device=ids.device) < lengths.unsqueeze(-1)
        return self.decoder.step(state, ids, present)


@dataclass(frozen=True, kw_only=True)
class Seq2SeqAttentionConfig(Config):
    """Config of the decoder's attention in a recurrent encoder-decoder."""

    score: str = choice([*SCORES, "additive", "bilinear"], "additive")
    """How queries and keys are compared: by a dot product (scaled or not), a bilinear form, or an MLP (additive)."""
    normalize: str = choice(NORMALIZERS, "softmax")
    """How scores become attention weights."""
    values: str = choice(ATTENTION_VALUES, "states")
    """What is averaged by attention: the encoder's states, or a projection of them."""

    def parameters(self, width: int) -> int:
        """The number of parameters: projections of queries and keys, and two more for projected values."""
        own = {"additive": 2 * width, "bilinear": width**2}.get(self.score, 0)
        return (2 if self.values == "states" else 4) * width * (width + 1) + own


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig(Config):
    """Config of a recurrent encoder-decoder."""

    kind: ClassVar[str] = "seq2seq"
    source_vocab_size: int = integer(minimum=1, old="source_vocabulary")
    """Size of the source vocabulary; the tokenizer determines it."""
    target_vocab_size: int = integer(minimum=1, old="target_vocabulary")
    """Size of the target vocabulary; the tokenizer determines it."""
    width: int = integer(minimum=1)
    """Width of the model (d_model): features of each token."""
    cell: str = choice(CELLS, "gru")
    """Recurrent cell of encoder and decoder."""
    layers: int = integer(1, minimum=1)
    """Recurrent layers, of the encoder and of the decoder."""
    direction: str = choice(DIRECTIONS, "forward")
    """Direction in which the encoder reads the source."""
    init_hidden: str = choice(INITIAL_STATES, "last", old="initial")
    """Start of the decoder's state: the last state of the encoder, or the mean of its states."""
    input_feeding: bool = False
    """Whether the attention output of a step is an input of the next step (Luong et al. 2015)."""
    dropout: float = probability(0.0)
    """Dropout of embeddings, layers and the output."""
    attention: Seq2SeqAttentionConfig | None = None
    """Attention of the decoder; without this table the source is one context vector."""

    def build(self) -> Seq2Seq:
        """Build the model with new parameters."""
        encoder = RecurrentEncoder(self.source_vocab_size, self.width, cell=self.cell, layers=self.layers,
                                   direction=self.direction, dropout=self.dropout)
        common: dict[str, Any] = {
            "context_width": self.width, "cell": self.cell, "layers": self.layers, "initial": self.init_hidden,
            "input_feeding": self.input_feeding, "dropout": self.dropout}
        if self.attention is None:
            return Seq2Seq(encoder, OneContextDecoder(self.target_vocab_size, self.width, **common))
        look = self.attention
        return Seq2Seq(encoder, AttendingDecoder(self.target_vocab_size, self.width, score=look.score,
                                                 normalize=look.normalize, values=look.values, **common))

    def parameters(self) -> int:
        """The number of parameters of the model."""
        D, scans = self.width, len(DIRECTIONS[self.direction])
        encoder = self.source_vocab_size * D + self.layers * scans * cell_parameters(self.cell, D, D // scans)
        lowest = cell_parameters(self.cell, D * (3 if self.input_feeding else 2), D)
        cells = lowest + (self.layers - 1) * cell_parameters(self.cell, D, D)
        initial, join = self.layers * D * (D + 1), 2 * D * D + D
        words = self.target_vocab_size * D + (D + 1) * self.target_vocab_size
        look = 0 if self.attention is None else self.attention.parameters(D)
        return encoder + cells + initial + join + words + look

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Pairs of a key and the reason why its value conflicts with another."""
        if self.width % len(DIRECTIONS[self.direction]):
            yield "direction", f'"both" needs an even width, half for each direction, but it is {self.width}'
