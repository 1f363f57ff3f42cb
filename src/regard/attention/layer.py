"""Attention layers: who owns the projections and the parameters of scores.

Three layers, in the order in which attention grew, with one interface:

    PlainAttention   Y = A(X, X') X'              nothing learned: the inputs are queries, keys and values
    BasicAttention   Y = A(X W_Q, X' W_K) X'      queries and keys learned, the values are still the states
    Attention        Y = [heads of A(X W_Q, X' W_K) X' W_V] W_O     all learned, several heads

    layer(x)                       self-attention, Attn(X, X)
    layer(x, context)              cross-attention: queries from x, keys and values from the context
    layer.start(rows, capacity)    a cache; layer.step(x, cache) -> (y, cache) goes on from the tokens before
    layer.remember(context)        the context projected once; layer.step(x, memory) -> (y, memory)

A layer does not know positions (but for rotary ones, which turn its queries and keys), norms, residuals or other
layers. Step by step is causal: it equals layer(x, mask=Causal()) on all tokens at once.

Legend: B rows, H heads, N tokens, D width.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard import checks
from regard.attention.attend import AnyNormalizer, AnyScore, attend
from regard.attention.cache import Cache, ContextCache, families_apart, families_together, step_mask
from regard.attention.kernels.choice import BACKENDS
from regard.attention.linear import Linear, together
from regard.attention.look import Look
from regard.attention.looked import over_heads
from regard.attention.mask import Mask, Padding, as_mask
from regard.attention.normalize import NAMES as NORMALIZERS
from regard.attention.normalize import as_normalizer
from regard.attention.presence import cleared, there
from regard.attention.score import NAMES, Additive, Bilinear, as_score
from regard.attention.tap import Tap
from regard.config import Config, choice, share, whole
from regard.position.bias import Bias
from regard.position.rotary import Rotary


class AttentionLayer(nn.Module, ABC):
    """What the three layers share: the data flow, the steps and the tap. They differ in what is projected."""

    def __init__(self, *, normalize: AnyNormalizer, dropout: float, position_bias: Bias | None, rotary: Rotary | None,
                 backend: str | None) -> None:
        super().__init__()
        checks.probability("dropout", dropout)
        if backend is not None:
            checks.pick("backend", backend, BACKENDS)
        self.normalize, self.dropout, self.backend = as_normalizer(normalize), dropout, backend
        self.position_bias, self.rotary = position_bias, rotary
        self.tap = Tap()
        self.register_buffer("like", torch.empty(0), persistent=False)  # of the dtype and device that caches get

    width: int
    context_width: int
    like: Tensor

    @property
    @abstractmethod
    def score(self) -> AnyScore:
        """The score, with the layer's parameters in it."""

    @abstractmethod
    def queries(self, x: Tensor) -> Tensor:
        """(B, N, width) -> (B, H, N, D)."""

    @abstractmethod
    def keys_and_values(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """(B, N, context width) -> keys (B, key heads, N, D) and values (B, key heads, N, D of the values)."""

    def projected(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of x, and keys and values of the context: of x itself, where there is none."""
        return self.queries(x), *self.keys_and_values(x if context is None else context)

    def merge(self, output: Tensor) -> Tensor:
        """(B, H, N, D of the values) -> (B, N, width)."""
        return output.transpose(-3, -2).flatten(-2)

    def forward(self, x: Tensor, context: Tensor | None = None, *, mask: Mask | Tensor | None = None,
                positions: Tensor | None = None) -> Tensor:
        """Self-attention of x (B, N, width), or attention from x to the context (B, M, context width).

        Args:
            mask: who may attend: a mask, or a bool tensor (N, M), (B, N, M) or (B, heads, N, M).
            positions: where the tokens stand, (N,) or (B, N), for rotary positions; 0, 1, ... where not given.
        """
        _check_width("x", x, self.width)
        if context is not None:
            self._check_context(context)
            if isinstance(mask, Padding):  # what is projected must be finite, or the projections' gradients are not
                context = cleared(context, there(context, mask, "mask"))
        query, key, value = self.projected(x, context)
        if self.rotary is not None:
            positions = torch.arange(x.shape[-2], device=x.device) if positions is None else positions
            query, key = self.rotary(query, positions), self.rotary(key, positions)
        return self._look(query, key, value, None if mask is None else over_heads(as_mask(mask), x.dim()))

    def start(self, rows: int, capacity: int) -> Cache:
        """An empty cache for `rows` sequences of at most `capacity` tokens."""
        key, value = self.keys_and_values(self.like.new_zeros(rows, 0, self.context_width))
        keys, values = (t.new_zeros(rows, t.shape[1], capacity, t.shape[-1]) for t in (key, value))
        return Cache(keys, values, torch.zeros(rows, dtype=torch.long, device=key.device), 0)

    def remember(self, context: Tensor, lengths: Tensor | None = None) -> ContextCache:
        """Keys and values of a context (B, M, context width), of which row b has lengths[b] tokens."""
        self._check_context(context)
        if lengths is not None:
            context = cleared(context, there(context, Padding(lengths), "lengths"))
        return ContextCache.of(*self.keys_and_values(context), lengths)

    def step(self, x: Tensor, state: "Cache | ContextCache", *, mask: Mask | Tensor | None = None,
             lengths: Tensor | None = None) -> "tuple[Tensor, Cache | ContextCache]":
        """One token or a chunk of them, x (B, N, width), after those in the state; it consumes the state.

        Args:
            mask: a further mask, such as a window, beside the causal one (self-attention) or the lengths (context).
            lengths: how many of the N tokens each row has, (B,); all where not given.
        """
        _check_width("x", x, self.width)
        extra = None if mask is None else over_heads(as_mask(mask), x.dim())
        query = self.queries(x)
        if isinstance(state, ContextCache):
            return self._cross(query, state, extra), state
        key, value = self.keys_and_values(x)
        if self.rotary is not None:
            positions_BN = state.positions.unsqueeze(-1) + torch.arange(x.shape[-2], device=x.device)
            query, key = self.rotary(query, positions_BN), self.rotary(key, positions_BN)
        mask, state = step_mask(state, x.shape[-2], lengths, extra), state.extend(key, value, lengths)
        return self._look(query, *state.view(state.filled), mask), state

    def _check_context(self, context: Tensor) -> None:
        _check_width("context", context, self.context_width)
        if self.rotary is not None:
            raise checks.wrong("context", "None in a layer with rotary positions (for self-attention)", "given")

    def _cross(self, query: Tensor, context: ContextCache, extra: Mask | None) -> Tensor:
        """Queries of rows to their contexts. Families of rows look at one together, where nobody tells them apart."""
        each = context.each
        if each > 1 and extra is None and self.position_bias is None and not self.tap.listeners:
            together = families_together(query, each)
            return self.merge(families_apart(self._attended(together, context.key, context.value, context.mask), each))
        context = context.apart()
        own = context.mask
        both = extra if own is None else own if extra is None else own & extra
        return self._look(query, context.key, context.value, both)

    def _look(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | None) -> Tensor:
        if self.tap.listeners:
            self.tap.hand(Look(query.detach(), key.detach(), value.detach(), self.score, self.normalize, mask,
                               self.position_bias))
        return self.merge(self._attended(query, key, value, mask))

    def _attended(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | None) -> Tensor:
        return attend(query, key, value, score=self.score, normalize=self.normalize, mask=mask, bias=self.position_bias,
                      dropout=self.dropout if self.training else 0.0, backend=self.backend)


class PlainAttention(AttentionLayer):
    """Nothing learned: Y = A X', with A from the inputs themselves as queries and keys."""

    def __init__(self, width: int, *, score: AnyScore = "scaled_dot", normalize: AnyNormalizer = "softmax",
                 dropout: float = 0.0, backend: str | None = None) -> None:
        super().__init__(normalize=normalize, dropout=dropout, position_bias=None, rotary=None, backend=backend)
        self.width = self.context_width = width
        as_score(score)  # a name that is unknown, or that has parameters, is an error here and not at the first call
        self._score = score

    @property
    def score(self) -> AnyScore:
        return self._score

    def queries(self, x: Tensor) -> Tensor:
        return x.unsqueeze(-3)

    def keys_and_values(self, context: Tensor) -> tuple[Tensor, Tensor]:
        return context.unsqueeze(-3), context.unsqueeze(-3)


class BasicAttention(AttentionLayer):
    """Queries and keys learned, the states of the context themselves as values: Y = A X'. One head."""

    def __init__(self, width: int, *, context_width: int | None = None, head_width: int | None = None,
                 score: AnyScore = "scaled_dot", normalize: AnyNormalizer = "softmax", bias: bool = True,
                 dropout: float = 0.0, backend: str | None = None) -> None:
        super().__init__(normalize=normalize, dropout=dropout, position_bias=None, rotary=None, backend=backend)
        self.width, self.context_width = width, context_width or width
        self.query = Linear(width, head_width or width, bias)
        self.key = Linear(self.context_width, head_width or width, bias)
        self.scorer = OwnScore(score, 1, head_width or width)

    @property
    def score(self) -> AnyScore:
        return self.scorer()

    def queries(self, x: Tensor) -> Tensor:
        return self.query(x).unsqueeze(-3)

    def keys_and_values(self, context: Tensor) -> tuple[Tensor, Tensor]:
        key = self.key(context).unsqueeze(-3)
        return key, context.unsqueeze(-3).to(key.dtype)  # autocast lowers the key, and would not the states


class Attention(AttentionLayer):
    """Multi-head attention with learned queries, keys, values and output.

    Args:
        width: of x and of the result.
        heads: how many look in parallel.
        key_heads: how many heads of keys and values there are, each shared by heads / key_heads heads; `heads`
            where not given.
        context_width: of the context; `width` where not given.
        head_width: of the queries and keys of one head; width / heads where not given.
        value_width: of the values of one head; `head_width` where not given.
        score: as for `attend`, and "additive" and "bilinear", whose parameters the layer then owns.
        bias: whether the four projections have one.
        position_bias: added to the scores: `ALiBi`, `RelativeBias`, `BucketedBias`.
        rotary: turns queries and keys by their positions.
    """

    def __init__(self, width: int, *, heads: int, key_heads: int | None = None, context_width: int | None = None,
                 head_width: int | None = None, value_width: int | None = None, score: AnyScore = "scaled_dot",
                 normalize: AnyNormalizer = "softmax", bias: bool = True, dropout: float = 0.0,
                 position_bias: Bias | None = None, rotary: Rotary | None = None, backend: str | None = None) -> None:
        super().__init__(normalize=normalize, dropout=dropout, position_bias=position_bias, rotary=rotary,
                         backend=backend)
        key_heads = heads if key_heads is None else key_heads
        if heads < 1:
            raise checks.wrong("heads", "at least 1", heads)
        if key_heads < 1 or heads % key_heads:
            raise checks.wrong("key_heads", f"a number that divides the {heads} heads", key_heads)
        if head_width is None and width % heads:
            remedy = "Choose other heads, or give a head_width."
            raise checks.wrong("heads", f"a number that divides the width {width}", heads, remedy)
        head_width = head_width or width // heads
        value_width = value_width or head_width
        self.width, self.context_width, self.heads, self.key_heads = width, context_width or width, heads, key_heads
        self.query = Linear(width, heads * head_width, bias)
        self.key = Linear(self.context_width, key_heads * head_width, bias)
        self.value = Linear(self.context_width, key_heads * value_width, bias)
        self.output = Linear(heads * value_width, width, bias)
        self.scorer = OwnScore(score, heads, head_width)
        for linear in (self.query, self.key, self.value, self.output):
            nn.init.xavier_uniform_(linear.weight)
            if bias:
                nn.init.zeros_(linear.bias)

    @property
    def score(self) -> AnyScore:
        return self.scorer()

    def queries(self, x: Tensor) -> Tensor:
        return _split(self.query(x), self.heads)

    def keys_and_values(self, context: Tensor) -> tuple[Tensor, Tensor]:
        return _split(self.key(context), self.key_heads), _split(self.value(context), self.key_heads)

    def projected(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        if type(self) is not Attention or self.tap.listeners:  # who projects otherwise, or keeps parts alone
            return super().projected(x, context)
        if context is None:
            query, key, value = together(x, (self.query, self.key, self.value))
        else:
            query, (key, value) = self.query(x), together(context, (self.key, self.value))
        return _split(query, self.heads), _split(key, self.key_heads), _split(value, self.key_heads)

    def merge(self, output: Tensor) -> Tensor:
        return self.output(super().merge(output))


class OwnScore(nn.Module):
    """The score of a layer, with its parameters, one set a head, where it has any."""

    def __init__(self, score: AnyScore, heads: int, width: int) -> None:
        super().__init__()
        self.kind = score
        if isinstance(score, str) and score not in ("additive", "bilinear"):
            checks.pick("score", score, {**NAMES, "additive": None, "bilinear": None})
        if score == "additive":
            self.weight = nn.Parameter(torch.empty(heads, width).uniform_(-1, 1) * (3 / width) ** 0.5)
            self.bias = nn.Parameter(torch.zeros(heads, width))
        elif score == "bilinear":
            self.weight = nn.Parameter(nn.init.orthogonal_(torch.empty(heads, width, width)) * width ** -0.5)

    def forward(self) -> AnyScore:
        """The score as `attend` takes it."""
        if self.kind == "additive":
            return Additive(self.weight, self.bias)
        return Bilinear(self.weight) if self.kind == "bilinear" else self.kind


def _split(projected: Tensor, heads: int) -> Tensor:
    """(B, N, H·D) -> (B, H, N, D)."""
    return projected.unflatten(-1, (heads, -1)).transpose(-3, -2)


def _check_width(argument: str, tensor: Tensor, width: int) -> None:
    if tensor.shape[-1] != width:
        raise checks.wrong(argument, f"of the layer's width {width}", f"of shape {checks.shape(tensor)}")


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(Config):
    """`Attention`, as a table of a config file."""

    heads: int = whole(8, least=1)
    key_heads: int | None = whole(None, least=1)
    head_width: int | None = whole(None, least=1)
    score: str = choice([*NAMES, "additive", "bilinear"], "scaled_dot")
    normalize: str = choice(NORMALIZERS, "softmax")
    bias: bool = True
    dropout: float = share(0.0)
    backend: str | None = choice(BACKENDS, None)

    def build(self, width: int, *, position_bias: Bias | None = None, rotary: Rotary | None = None) -> Attention:
        """The layer, for tokens and a context of this width."""
        return Attention(width, heads=self.heads, key_heads=self.key_heads, head_width=self.head_width,
                         score=self.score, normalize=self.normalize, bias=self.bias, dropout=self.dropout,
                         position_bias=position_bias, rotary=rotary, backend=self.backend)

    def each(self, width: int) -> int:
        """The width of a head."""
        return self.head_width or width // self.heads

    def parameters(self, width: int) -> int:
        """How many learned numbers the layer has."""
        queries, keys = self.heads * self.each(width), (self.key_heads or self.heads) * self.each(width)
        own = {"additive": 2 * queries, "bilinear": queries * self.each(width)}.get(self.score, 0)
        return 2 * width * (queries + keys) + self.bias * (queries + 2 * keys + width) + own

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """What does not go together: key, and why."""
        if self.heads % (self.key_heads or self.heads):
            yield "key_heads", f"{self.key_heads} does not divide the {self.heads} heads"
        if self.backend in ("sdpa", "flex") and self.normalize != "softmax":
            yield "backend", f'"{self.backend}" normalises by softmax, not by "{self.normalize}"'
        if self.backend in ("sdpa", "flex") and self.score == "additive":
            yield "backend", f'"{self.backend}" computes dot products, and the score "additive" is none'

    def clashes(self, width: int, causal: bool) -> Iterator[tuple[str, str]]:
        """What does not go with a model of this width: key, and why."""
        if self.head_width is None and width % self.heads:
            yield "heads", f"{self.heads} does not divide the width {width}; choose another, or set head_width"
