"""LSTMN: self-attention inside a recurrent network (Cheng, Dong, Lapata 2016).

    a_i = v · tanh(W_h h_i + W_x x_t + W_s h~_{t-1}),  i < t      the score of a past state: additive, one head
    s   = softmax(a);  h~_t = Σ s_i h_i;  c~_t = Σ s_i c_i        a summary of all past states and memories
    (h_t, c_t) = LSTM(x_t, (h~_t, c~_t))                          an LSTM step from that summary

An LSTM continues from its last state, an LSTMN from a weighted sum of all past states: its *tape*. The keys W_h h_i are
projected once, when h_i is appended to the tape. The queries are W_x x_t + W_s h~_{t-1}, the values [h_i; c_i]; the
attention is `regard.attend`, so any other score works too. W_s is the paper's W_h~. The first token has no past: h~ and
c~ are zeros there (the paper does not say).

It is sequential, like a recurrence, and its work grows with the square of the number of tokens, like attention. It does
not know layers or directions. The equations of the LSTM are in `cells`.

Legend: B rows, N tokens, D width, A attention width, F tokens on the tape before the N, T = F + N, W any width.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard import checks
from regard.attention.attend import attend
from regard.attention.backends import BACKENDS
from regard.attention.cache import Cache
from regard.attention.layer import ScoreModule
from regard.attention.look import Look, Tap
from regard.attention.mask import BoolMask, Padding
from regard.attention.mask_cache import present_tokens
from regard.attention.normalize import NORMALIZERS, NormalizerLike, as_normalizer
from regard.attention.score import SCORES, ScoreLike
from regard.config import Config, choice, integer, probability
from regard.mixer import CompositeState
from regard.recurrence.cells import LSTMCell
from regard.recurrence.cells import count_cell_parameters as cell_parameters


@dataclass(frozen=True)
class LSTMNState(CompositeState):
    """The tape of an LSTMN: all past states and memories with their keys, and the last summary.

    A state that was passed to a step is consumed: its storage is overwritten. Copy it first to keep it.
    """

    cache: Cache
    """Keys W_h h_i, (B, 1, capacity, A), and values [h_i; c_i], (B, 1, capacity, 2D)."""
    summary: Tensor
    """h~ of each row's last token, (B, D)."""

    @property
    def positions(self) -> Tensor:
        """(B,): the number of tokens of each row."""
        return self.cache.positions

    def detach(self) -> "LSTMNState":
        """The same numbers without their history: gradients stop here (truncated back-propagation through time)."""
        cache = replace(self.cache, key=self.cache.key.detach(), value=self.cache.value.detach())
        return LSTMNState(cache, self.summary.detach())


class LSTMN(nn.Module):
    """An LSTM that attends over its own past states, as a mixer: (B, N, input_width) -> (B, N, width).

    Args:
        width: the width of the hidden state, which is the result, and of the memory.
        input_width: the width of x. Default: `width`.
        attention_width: the width of queries and keys. Default: `width`.
        score: "additive" as in the paper, "bilinear" (the layer owns the parameters of both), or as for `attend`.
        normalize: as for `attend`.
        dropout: the probability with which an attention weight is dropped, while training.
        backend: the backend of `attend`. While training, the memory of "tiled" grows with the number of tokens, that of
            "exact" with its square; "exact" is faster where it fits.

    Like the attention layers it has a `tap`, which gets a look for every token: one query against the tape before it,
    (B, 1, 1, A) against (B, 1, T, A); the first token of a sequence has no keys.
    """

    def __init__(self, width: int, *, input_width: int | None = None, attention_width: int | None = None,
                 score: ScoreLike = "additive", normalize: NormalizerLike = "softmax", dropout: float = 0.0,
                 backend: str | None = None) -> None:
        super().__init__()
        checks.probability("dropout", dropout)
        if backend is not None:
            checks.pick("backend", backend, BACKENDS)
        input_width = width if input_width is None else input_width
        attention_width = width if attention_width is None else attention_width
        self.cell = LSTMCell(input_width, width)  # it checks the two widths
        checks.whole_number("attention_width", attention_width, 1)
        self.width, self.input_width, self.attention_width = width, input_width, attention_width
        self.query_input = nn.Linear(input_width, attention_width, bias=False)
        self.query_summary = nn.Linear(width, attention_width, bias=False)
        self.key = nn.Linear(width, attention_width, bias=False)
        for linear in (self.query_input, self.query_summary, self.key):
            nn.init.xavier_uniform_(linear.weight)
        self.scorer = ScoreModule(score, 1, attention_width)
        if score == "additive":
            self.scorer.register_parameter("bias", None)  # the paper has none
        self.normalize, self.dropout, self.backend = as_normalizer(normalize), dropout, backend
        self.tap = Tap()

    @property
    def score(self) -> ScoreLike:
        """The score, with the layer's parameters in it."""
        return self.scorer()

    def named(self) -> dict[str, Tensor]:
        """Return the parameters by their names in the equation, with the additive score."""
        return {"v": self.scorer.weight[0], "W_h": self.key.weight, "W_x": self.query_input.weight,
                "W_s": self.query_summary.weight, **self.cell.named()}

    def forward(self, x: Tensor, present: Padding | None = None) -> Tensor:
        """Run over all tokens: (B, N, input_width) -> (B, N, width). Tokens that are not `present` are skipped."""
        self._check(x)
        start = self.start(x.shape[0], 0)
        there_BN = present_tokens(x, present)
        hidden_BND, _, _, _ = self._run(x, *start.cache.view(0), start.summary, there_BN, there_BN)
        return hidden_BND

    def start(self, rows: int, capacity: int) -> LSTMNState:
        """Return the state before the first token, for `rows` sequences of at most `capacity` tokens."""
        like = self.key.weight
        key = like.new_zeros(rows, 1, capacity, self.attention_width)
        value = like.new_zeros(rows, 1, capacity, 2 * self.width)
        positions = torch.zeros(rows, dtype=torch.long, device=like.device)
        return LSTMNState(Cache(key, value, positions, 0), like.new_zeros(rows, self.width))

    def step(self, x: Tensor, state: LSTMNState, *, lengths: Tensor | None = None) -> tuple[Tensor, LSTMNState]:
        """Continue with one token or a chunk, (B, n, input_width); it consumes the state.

        Where rows have fewer than n tokens, `lengths` (B,) says how many; the others give zeros. Gradients flow
        through this step and the steps before it.
        """
        self._check(x)
        if state.summary.shape[0] != x.shape[0]:
            raise checks.wrong("state", f"for the {x.shape[0]} rows of x", f"for {state.summary.shape[0]}")
        cache = state.cache
        cache.filled_after(x.shape[1])  # before anything is computed
        own = None if lengths is None else Padding(lengths)
        there_BN = present_tokens(x, own, "lengths")
        before_BF = Padding(cache.positions).matrix(1, cache.filled, device=x.device).squeeze(-2)
        allowed_BT = torch.cat([before_BF, before_BF.new_ones(x.shape[:2]) if there_BN is None else there_BN], 1)
        y, key, value, summary = self._run(x, *cache.view(cache.filled), state.summary, allowed_BT, there_BN)
        counts = None if own is None else own.lengths.to(x.device)
        return y, LSTMNState(cache.extend(key, value, counts), summary)

    def _run(self, x: Tensor, key: Tensor, value: Tensor, summary: Tensor, allowed_BT: Tensor | None,
             there_BN: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Run N tokens after a tape of F; `allowed_BT` (T = F + N) says which positions have a token.

        -> hidden states (B, N, D), their keys (B, 1, N, A) and values (B, 1, N, 2D), and the last summary (B, D).
        """
        if there_BN is not None:
            x = x.masked_fill(~there_BN.unsqueeze(-1), 0.0)
        query_BNA, projected = self.query_input(x), self.cell.project(x)
        keys, values = (_AppendBuffer(tape.to(query_BNA.dtype), x.shape[1]) for tape in (key, value))
        # `unbind` instead of indexing: the gradient of an index is as large as the tensor it is taken from.
        for i, (own, given) in enumerate(zip(query_BNA.unbind(1), projected.unbind(1), strict=True)):
            query = own + self.query_summary(summary)
            allowed = None if allowed_BT is None else allowed_BT[:, None, None, :keys.filled.shape[-2]]
            here = None if there_BN is None else there_BN[:, None, None, i, None]
            past = self._look(query[:, None, None], keys.filled, values.filled, allowed, here)
            new, past_memory = past.chunk(2, -1)
            hidden, memory = self.cell.advance(given, (new, past_memory))
            keys.append(self.key(hidden)[:, None, None])
            values.append(torch.cat([hidden, memory], -1)[:, None, None])
            summary = new if there_BN is None else torch.where(there_BN[:, i, None], new, summary)
        hidden_BND = values.new()[:, 0, :, :self.width]
        if there_BN is not None:
            hidden_BND = hidden_BND.masked_fill(~there_BN.unsqueeze(-1), 0.0)
        return hidden_BND, keys.new(), values.new(), summary

    def _look(self, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None, here: Tensor | None) -> Tensor:
        """Attend to the tape with one query: [h~; c~], (B, 2D). `here` (B, 1, 1, 1): whether there is a token."""
        mask = None if allowed is None else BoolMask(allowed)
        if self.tap.listeners:
            shown = mask if here is None or allowed is None else BoolMask(allowed & here)
            self.tap.send(Look(query.detach(), key.detach(), value.detach(), self.score, self.normalize, shown))
        output = attend(query, key, value, score=self.score, normalize=self.normalize, mask=mask,
                        dropout=self.dropout if self.training else 0.0, backend=self.backend)
        return output[:, 0, 0]

    def _check(self, x: Tensor) -> None:
        if x.dim() != 3 or x.shape[-1] != self.input_width:
            raise checks.wrong("x", f"of shape (rows, tokens, {self.input_width})", f"of shape {checks.shape(x)}")

    def extra_repr(self) -> str:
        return f"{self.width}, input_width={self.input_width}, attention_width={self.attention_width}"


class _AppendBuffer:
    """A tensor (B, 1, T, W) to which one token after another is appended, and which is used after each.

    It never writes into the tensor it starts from, so gradients may flow through both. With gradients, `torch.cat` for
    every token would keep N copies: here all prefixes share one storage.
    """

    def __init__(self, before: Tensor, room: int) -> None:
        self.filled, self.room = before, room
        self.pieces: list[Tensor] = []
        self.storage: Tensor | None = None
        if torch.compiler.is_compiling():
            self.filled = before.clone() if torch.is_grad_enabled() else before
        elif room > 1 or torch.is_grad_enabled():
            self.storage = before.new_empty(*before.shape[:-2], before.shape[-2] + room, before.shape[-1])
            self.filled = _Append.apply(self.storage[..., :0, :], before, self.storage)

    def append(self, new: Tensor) -> None:
        """Append one token, (B, 1, 1, W)."""
        self.pieces.append(new)
        if len(self.pieces) == self.room:
            return  # nothing follows the last token
        if self.storage is None:
            self.filled = torch.cat([self.filled, new], -2)
        else:
            self.filled = _Append.apply(self.filled, new.to(self.filled.dtype), self.storage)

    def new(self) -> Tensor:
        """The appended tokens, (B, 1, N, W)."""
        return torch.cat(self.pieces, -2) if self.pieces else self.filled[..., :0, :]


class _Append(torch.autograd.Function):
    """cat([filled, new]) where `filled` is the beginning of a larger storage.

    Numbers that an earlier operation has saved for its backward pass come before the new ones and do not change; but
    torch's version counter knows only whole storages, and would raise an error. `data` has a counter of its own.
    """

    @staticmethod
    def forward(ctx: Any, filled: Tensor, new: Tensor, storage: Tensor) -> Tensor:
        ctx.filled = filled.shape[-2]
        together = storage.data[..., :ctx.filled + new.shape[-2], :]
        together[..., ctx.filled:, :] = new
        return together

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, None]:
        (gradient,) = upstream
        return gradient[..., :ctx.filled, :], gradient[..., ctx.filled:, :], None


@dataclass(frozen=True, kw_only=True)
class LSTMNConfig(Config):
    """Config of an `LSTMN` mixer, an LSTM that attends to its past."""

    kind: ClassVar[str] = "lstmn"
    attention_width: int | None = integer(None, minimum=1)
    """Features that attention compares; by default the width of the model."""
    score: str = choice([*SCORES, "additive", "bilinear"], "additive")
    """How queries and keys are compared: by a dot product (scaled or not), a bilinear form, or an MLP (additive)."""
    normalize: str = choice(NORMALIZERS, "softmax")
    """How scores become attention weights."""
    dropout: float = probability(0.0)
    """Dropout of the attention weights."""

    def mixer(self, width: int, causal: bool, layer: int, layers: int) -> LSTMN:
        """Build the mixer of a layer; all layers are alike."""
        return LSTMN(width, attention_width=self.attention_width, score=self.score, normalize=self.normalize,
                     dropout=self.dropout)

    def parameters(self, width: int, causal: bool = True, layer: int = 0) -> int:
        """The number of parameters of the mixer of a layer."""
        across = self.attention_width or width
        own = {"additive": across, "bilinear": across**2}.get(self.score, 0)
        return cell_parameters("lstm", width, width) + 3 * width * across + own

    def clashes(self, width: int, causal: bool) -> Iterator[tuple[str, str]]:
        """Pairs of a key and the reason why its value does not fit: none."""
        return iter(())
