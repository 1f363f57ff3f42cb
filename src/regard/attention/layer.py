"""Attention layers: the modules that own projections and the parameters of scores.

Three layers, in the order in which attention grew, with one interface:

    PlainAttention   Y = A(X, X') X'              nothing learned: the inputs are queries, keys and values
    BasicAttention   Y = A(X W_Q, X' W_K) X'      queries and keys learned, the values are the inputs
    Attention        Y = [heads of A(X W_Q, X' W_K) X' W_V] W_O     all learned, several heads
                     with gate=True, σ(X W_G) ⊙ [heads ...] W_O: a gate on the output of every head

    layer(x)                       self-attention, Attn(X, X)
    layer(x, context)              cross-attention: queries from x, keys and values from the context
    layer.start(rows, capacity)    an empty cache; layer.step(x, cache) -> (y, cache) continues after the cached tokens
    layer.remember(context)        the context projected once; layer.step(x, memory) -> (y, memory)

`SelfAttention` wraps a layer and a mask as a mixer, with the interface of recurrence and convolution. Step by step is
causal: it equals layer(x, mask=Causal()) on all tokens at once. A layer does not know positions (except rotary ones,
which rotate its queries and keys), norms, residuals or other layers.

Legend: B rows, H heads, N tokens, D width.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from regard import checks
from regard.attention.attend import attend
from regard.attention.backends import BACKENDS
from regard.attention.cache import Cache, ContextCache, fold_rows, unfold_rows
from regard.attention.look import Look, Tap
from regard.attention.mask import AndMask, Causal, Mask, Packed, Padding, Window, as_mask, mask_parts
from regard.attention.mask_cache import CachedPacked, CachedPadding, broadcast_over_heads, present_tokens, zero_absent
from regard.attention.normalize import NORMALIZERS, NormalizerLike, as_normalizer
from regard.attention.score import SCORES, Additive, Bilinear, ScoreLike, adjust_score, as_score
from regard.config import Config, choice, integer, number, probability
from regard.kernels.linear import Linear, apply_jointly
from regard.position.bias import ALiBiConfig, Bias, BucketedBiasConfig, RelativeBiasConfig
from regard.position.rotary import Rotary, RotaryConfig


class AttentionLayer(nn.Module, ABC):
    """The base of the three layers: the data flow, the steps and the tap. Subclasses define what is projected."""

    width: int
    context_width: int
    like: Tensor

    def __init__(self, *, normalize: NormalizerLike, dropout: float, position_bias: Bias | None, rotary: Rotary | None,
                 backend: str | None) -> None:
        super().__init__()
        checks.probability("dropout", dropout)
        if backend is not None:
            checks.pick("backend", backend, BACKENDS)
        self.normalize, self.dropout, self.backend = as_normalizer(normalize), dropout, backend
        self.position_bias, self.rotary = position_bias, rotary
        self.tap = Tap()
        self.register_buffer("like", torch.empty(0), persistent=False)  # has the dtype and device of new caches

    def extra_repr(self) -> str:
        """Sizes, and what differs from plain softmax attention."""
        parts = [str(self.width)]
        for name in ("heads", "key_heads"):
            if hasattr(self, name):
                parts.append(f"{name}={getattr(self, name)}")
        parts.append(f"score={self.score}")
        parts += [f"context_width={self.context_width}"] if self.context_width != self.width else []
        parts += [f"normalize={self.normalize}"] if str(self.normalize) != "softmax" else []
        parts += [f"dropout={self.dropout}"] if self.dropout else []
        parts += [f"backend={self.backend!r}"] if self.backend is not None else []
        return ", ".join(parts)

    @property
    @abstractmethod
    def score(self) -> ScoreLike:
        """The score, with the layer's parameters in it."""

    @abstractmethod
    def queries(self, x: Tensor) -> Tensor:
        """(B, N, width) -> (B, H, N, D)."""

    @abstractmethod
    def keys_and_values(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """(B, N, context width) -> keys (B, key heads, N, D) and values (B, key heads, N, D of the values)."""

    def projected(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of x, and keys and values of the context, by default of x itself."""
        return self.queries(x), *self.keys_and_values(x if context is None else context)

    def gates(self, x: Tensor) -> Tensor | None:
        """The gate of the heads' outputs before the sigmoid, (B, N, H · D of the values); None without a gate."""
        return None

    def merge(self, output: Tensor) -> Tensor:
        """(B, H, N, D of the values) -> (B, N, width)."""
        return output.transpose(-3, -2).flatten(-2)

    def forward(self, x: Tensor, context: Tensor | None = None, *, mask: Mask | Tensor | None = None,
                positions: Tensor | None = None) -> Tensor:
        """Compute self-attention of x, or attention from x to the context: (B, N, width) -> (B, N, width).

        Args:
            mask: a mask, or a bool tensor (N, M), (B, N, M) or (B, heads, N, M) in which True means may attend.
            positions: the positions of the tokens, (N,) or (B, N), for rotary layers; 0, 1, ... by default.
        """
        self._check_inputs(x, context)
        if context is not None and isinstance(mask, Padding):  # projections of NaN give their weights NaN gradients
            context = zero_absent(context, present_tokens(context, mask, "mask"))
        query, key, value = self.projected(x, context)
        if self.rotary is not None:
            positions = torch.arange(x.shape[-2], device=x.device) if positions is None else positions
            query, key = self.rotary(query, positions), self.rotary(key, positions)
        mask = None if mask is None else broadcast_over_heads(as_mask(mask), x.dim())
        return self.finish(self.attend_heads(query, key, value, mask), x)

    def start(self, rows: int, capacity: int) -> Cache:
        """An empty cache for `rows` sequences of at most `capacity` tokens."""
        key, value = self.keys_and_values(self.like.new_zeros(rows, 0, self.context_width))
        keys, values = (t.new_zeros(rows, t.shape[1], capacity, t.shape[-1]) for t in (key, value))
        return Cache(keys, values, torch.zeros(rows, dtype=torch.long, device=key.device), 0)

    def remember(self, context: Tensor, lengths: Tensor | None = None) -> ContextCache:
        """Compute the keys and values of a context once, for many steps.

        Args:
            context: (B, M, context width).
            lengths: the number of tokens of each row, (B,); M by default.
        """
        self._check_context(context)
        if lengths is not None:
            context = zero_absent(context, present_tokens(context, Padding(lengths), "lengths"))
        return ContextCache.of(*self.keys_and_values(context), lengths)

    def step(self, x: Tensor, state: "Cache | ContextCache", *, mask: Mask | Tensor | None = None,
             lengths: Tensor | None = None) -> "tuple[Tensor, Cache | ContextCache]":
        """Compute attention of the next token or chunk, x (B, N, width); it consumes the state and returns the next.

        Args:
            mask: a further mask, such as a window, in addition to the causal one (self-attention) or the lengths
                (context).
            lengths: the number of tokens of each row, (B,), at most N; N by default.
        """
        _check_width("x", x, self.width)
        extra = None if mask is None else broadcast_over_heads(as_mask(mask), x.dim())
        query = self.queries(x)
        if isinstance(state, ContextCache):
            return self.finish(self._attend_context(query, state, extra), x), state
        key, value = self.keys_and_values(x)
        if self.rotary is not None:
            positions_BN = state.positions.unsqueeze(-1) + torch.arange(x.shape[-2], device=x.device)
            query, key = self.rotary(query, positions_BN), self.rotary(key, positions_BN)
        mask, state = state.step_mask(x.shape[-2], lengths, extra), state.extend(key, value, lengths)
        return self.finish(self.attend_heads(query, *state.view(state.filled), mask), x), state

    def _check_inputs(self, x: Tensor, context: Tensor | None) -> None:
        _check_width("x", x, self.width)
        if context is not None:
            self._check_context(context)

    def _check_context(self, context: Tensor) -> None:
        _check_width("context", context, self.context_width)
        if self.rotary is not None:
            raise checks.wrong("context", "None in a layer with rotary positions, which is for self-attention", "given")

    def _attend_context(self, query: Tensor, context: ContextCache, extra: Mask | None) -> Tensor:
        """Attention of rows to their contexts. Rows that share a context are folded into one, where they can be."""
        each = context.rows_per_context
        if each > 1 and extra is None and self.position_bias is None and not self.tap.listeners:
            together = fold_rows(query, each)
            return unfold_rows(self._attend(together, context.key, context.value, context.mask, None), each)
        context = context.one_per_row()
        own = context.mask
        both = extra if own is None else own if extra is None else own & extra
        return self.attend_heads(query, context.key, context.value, both)

    def attend_heads(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | None,
                     bias: Tensor | None = None) -> Tensor:
        """Compute the outputs of the heads, (..., H, N, D of the values), and pass a `Look` to listeners.

        Args:
            query, key, value: as `projected` gives them.
            bias: added to the scores, in the place of the layer's position bias.
        """
        if self.tap.listeners:
            shown = self.position_bias if bias is None else bias.detach()
            self.tap.send(Look(query.detach(), key.detach(), value.detach(), self.score, self.normalize, mask, shown))
        return self._attend(query, key, value, mask, bias)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | None, bias: Tensor | None) -> Tensor:
        return attend(query, key, value, score=self.score, normalize=self.normalize, mask=mask,
                      bias=self.position_bias if bias is None else bias, dropout=self.dropout if self.training else 0.0,
                      backend=self.backend)

    def finish(self, output: Tensor, x: Tensor) -> Tensor:
        """Gate the outputs of the heads (..., H, N, D of the values) by x (..., N, width), and merge them."""
        gates = self.gates(x)
        if gates is not None:
            output = output * gates.sigmoid().unflatten(-1, (-1, output.shape[-1])).transpose(-3, -2)
        return self.merge(output)


class PlainAttention(AttentionLayer):
    """Attention without parameters: the inputs themselves are queries, keys and values.

        Y = A(X, X') X'

    Args:
        width: the width of x, of the context and of the output.
        score, scale, softcap, normalize, backend: as for `attend`; the score must have no parameters.
        dropout: the probability of dropping a weight, while training.
    """

    def __init__(self, width: int, *, score: ScoreLike = "scaled_dot", scale: float | None = None,
                 softcap: float | None = None, normalize: NormalizerLike = "softmax", dropout: float = 0.0,
                 backend: str | None = None) -> None:
        super().__init__(normalize=normalize, dropout=dropout, position_bias=None, rotary=None, backend=backend)
        self.width = self.context_width = width
        as_score(score)  # refuses an unknown name, or one that needs parameters, here and not at the first call
        self._score = adjust_score(score, scale, softcap)

    @property
    def score(self) -> ScoreLike:
        return self._score

    def queries(self, x: Tensor) -> Tensor:
        return x.unsqueeze(-3)

    def keys_and_values(self, context: Tensor) -> tuple[Tensor, Tensor]:
        return context.unsqueeze(-3), context.unsqueeze(-3)


class BasicAttention(AttentionLayer):
    """Attention with one head and learned queries and keys; the context itself is the values.

        Y = A(X W_Q, X' W_K) X'

    Args:
        width: the width of x.
        context_width: the width of the context, and so of the output; `width` by default.
        head_width: the width of queries and keys; `width` by default.
        score: as for `attend`, and also "additive" and "bilinear", whose parameters the layer then owns.
        scale, softcap, normalize, backend: as for `attend`.
        bias: whether the two projections have a bias.
        dropout: the probability of dropping a weight, while training.
    """

    def __init__(self, width: int, *, context_width: int | None = None, head_width: int | None = None,
                 score: ScoreLike = "scaled_dot", scale: float | None = None, softcap: float | None = None,
                 normalize: NormalizerLike = "softmax", bias: bool = True, dropout: float = 0.0,
                 backend: str | None = None) -> None:
        super().__init__(normalize=normalize, dropout=dropout, position_bias=None, rotary=None, backend=backend)
        self.width, self.context_width = width, context_width or width
        self.query = Linear(width, head_width or width, bias)
        self.key = Linear(self.context_width, head_width or width, bias)
        self.scorer = ScoreModule(score, 1, head_width or width, scale=scale, softcap=softcap)

    @property
    def score(self) -> ScoreLike:
        return self.scorer()

    def queries(self, x: Tensor) -> Tensor:
        return self.query(x).unsqueeze(-3)

    def keys_and_values(self, context: Tensor) -> tuple[Tensor, Tensor]:
        key = self.key(context).unsqueeze(-3)
        return key, context.unsqueeze(-3).to(key.dtype)  # autocast casts the key, but not the context


class Attention(AttentionLayer):
    """Multi-head attention with learned queries, keys, values and output.

        Y = [A(X W_Q, X' W_K) X' W_V of every head] W_O

    Called with x alone it is self-attention; with a context, x attends to the context (cross-attention). With a gate,
    every feature of every head's output is multiplied by a number between 0 and 1 that the query's token decides:

        Y = (σ(X W_G) ⊙ [A(X W_Q, X' W_K) X' W_V of every head]) W_O

    Args:
        width: the width of x and of the output.
        heads: the number of heads.
        key_heads: the number of heads of keys and values, each shared by heads / key_heads heads (grouped-query
            attention); `heads` by default.
        context_width: the width of the context; `width` by default.
        head_width: the width of the queries and keys of one head; width / heads by default.
        value_width: the width of the values of one head; `head_width` by default.
        score: as for `attend`, and also "additive" and "bilinear", whose parameters the layer then owns.
        scale, softcap, normalize, backend: as for `attend`.
        bias: whether the four projections have a bias.
        qkv_bias: whether the projections of queries, keys and values have a bias; `bias` by default.
        gate: whether a sigmoid gate multiplies the output of the heads, as in AlphaFold and recent language models
            (Jumper et al. 2021; Qiu et al. 2025). Its projection starts like the others, so that the gate is about
            1/2; it has a bias where the output has one.
        dropout: the probability of dropping a weight, while training.
        position_bias: added to the scores: `ALiBi`, `RelativeBias`, `BucketedBias`.
        rotary: rotates queries and keys by their positions; a `Rotary` of at most `head_width` features.

    Example:
        import torch
        import regard

        layer = regard.Attention(32, heads=4)
        x = torch.randn(2, 10, 32)                              # 2 sequences of 10 tokens
        assert layer(x, mask=regard.Causal()).shape == (2, 10, 32)
    """

    def __init__(self, width: int, *, heads: int, key_heads: int | None = None, context_width: int | None = None,
                 head_width: int | None = None, value_width: int | None = None, score: ScoreLike = "scaled_dot",
                 scale: float | None = None, softcap: float | None = None, normalize: NormalizerLike = "softmax",
                 bias: bool = True, qkv_bias: bool | None = None, gate: bool = False, dropout: float = 0.0,
                 position_bias: Bias | None = None, rotary: Rotary | None = None, backend: str | None = None) -> None:
        super().__init__(normalize=normalize, dropout=dropout, position_bias=position_bias, rotary=rotary,
                         backend=backend)
        key_heads = heads if key_heads is None else key_heads
        for name, size in (("width", width), ("heads", heads), ("head_width", head_width),
                           ("value_width", value_width)):
            if size is not None and size < 1:
                raise checks.wrong(name, "at least 1", size)
        if key_heads < 1 or heads % key_heads:
            raise checks.wrong("key_heads", f"a number that divides heads, {heads}", key_heads)
        if head_width is None and width % heads:
            remedy = "Choose another number of heads, or set head_width."
            raise checks.wrong("heads", f"a number that divides the width, {width}", heads, remedy)
        head_width = head_width or width // heads
        value_width = value_width or head_width
        self.width, self.context_width, self.heads, self.key_heads = width, context_width or width, heads, key_heads
        qkv_bias = bias if qkv_bias is None else qkv_bias
        self.query = Linear(width, heads * head_width, qkv_bias)
        self.key = Linear(self.context_width, key_heads * head_width, qkv_bias)
        self.value = Linear(self.context_width, key_heads * value_width, qkv_bias)
        self.output = Linear(heads * value_width, width, bias)
        self.gate = Linear(width, heads * value_width, bias) if gate else None
        self.scorer = ScoreModule(score, heads, head_width, scale=scale, softcap=softcap)
        for linear in (self.query, self.key, self.value, self.output, *([] if self.gate is None else [self.gate])):
            nn.init.xavier_uniform_(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    @property
    def score(self) -> ScoreLike:
        return self.scorer()

    def queries(self, x: Tensor) -> Tensor:
        return split_heads(self.query(x), self.heads)

    def keys_and_values(self, context: Tensor) -> tuple[Tensor, Tensor]:
        return split_heads(self.key(context), self.key_heads), split_heads(self.value(context), self.key_heads)

    def projected(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        if type(self) is not Attention or self.tap.listeners:  # a subclass may project otherwise
            return super().projected(x, context)
        if context is None:
            query, key, value = apply_jointly(x, (self.query, self.key, self.value))
        else:
            query, (key, value) = self.query(x), apply_jointly(context, (self.key, self.value))
        return split_heads(query, self.heads), split_heads(key, self.key_heads), split_heads(value, self.key_heads)

    def gates(self, x: Tensor) -> Tensor | None:
        return None if self.gate is None else self.gate(x)

    def merge(self, output: Tensor) -> Tensor:
        return self.output(super().merge(output))


class ScoreModule(nn.Module):
    """The score of a layer, with its parameters if it has any, one set for each head.

    Args:
        scale, softcap: as for `attend`.
    """

    def __init__(self, score: ScoreLike, heads: int, width: int, *, scale: float | None = None,
                 softcap: float | None = None) -> None:
        super().__init__()
        self.kind, self.scale, self.softcap = score, scale, softcap
        if isinstance(score, str) and score not in ("additive", "bilinear"):
            checks.pick("score", score, {**SCORES, "additive": None, "bilinear": None})
        if score == "additive":
            self.weight = nn.Parameter(torch.empty(heads, width).uniform_(-1, 1) * (3 / width) ** 0.5)
            self.bias = nn.Parameter(torch.zeros(heads, width))
        elif score == "bilinear":
            self.weight = nn.Parameter(nn.init.orthogonal_(torch.empty(heads, width, width)) * width ** -0.5)
        self.forward()  # refuses a wrong scale or softcap here, and not at the first call

    def extra_repr(self) -> str:
        """The kind of the score, and the scale and softcap if they are set."""
        numbers = {"scale": self.scale, "softcap": self.softcap}
        return ", ".join([str(self.kind), *(f"{name}={one:g}" for name, one in numbers.items() if one is not None)])

    def forward(self) -> ScoreLike:
        """The score, in the form that `attend` takes."""
        return adjust_score(self._own_score(), self.scale, self.softcap)

    def _own_score(self) -> ScoreLike:
        if self.kind == "additive":
            return Additive(self.weight, self.bias)
        return Bilinear(self.weight) if self.kind == "bilinear" else self.kind


def split_heads(projected: Tensor, heads: int) -> Tensor:
    """(B, N, H·D) -> (B, H, N, D)."""
    return projected.unflatten(-1, (heads, -1)).transpose(-3, -2)


def _check_width(argument: str, tensor: Tensor, width: int) -> None:
    if tensor.shape[-1] != width:
        raise checks.wrong(argument, f"of the layer's width {width}", f"of shape {checks.shape(tensor)}")


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(Config):
    """Config of an `Attention` layer."""

    heads: int = integer(8, minimum=1)
    """Attention heads."""
    key_heads: int | None = integer(None, minimum=1)
    """Heads of keys and values, which groups of query heads share; by default as many as heads."""
    head_width: int | None = integer(None, minimum=1)
    """Features of a head; by default the width of the model divided by the heads."""
    score: str = choice([*SCORES, "additive", "bilinear"], "scaled_dot")
    """How queries and keys are compared: by a dot product (scaled or not), a bilinear form, or an MLP (additive)."""
    scale: float | None = number(None)
    """Scale of the dot products; by default that of the score, 1 / √head_width for scaled_dot."""
    softcap: float | None = number(None, above=0.0)
    """Scores are limited smoothly to ±softcap, by softcap · tanh(score / softcap); by default not at all."""
    normalize: str = choice(NORMALIZERS, "softmax")
    """How scores become attention weights."""
    bias: bool = True
    """Whether the projections have a bias."""
    qkv_bias: bool | None = None
    """Whether the projections of queries, keys and values have a bias; by default as `bias`."""
    gate: bool = False
    """Whether a sigmoid of a projection of the input gates the output of every head (gated attention)."""
    dropout: float = probability(0.0)
    """Dropout of the attention weights."""
    backend: str | None = choice(BACKENDS, None)
    """Attention backend; by default the fastest that can compute this attention."""

    def build(self, width: int, *, position_bias: Bias | None = None, rotary: Rotary | None = None) -> Attention:
        """Build the layer for tokens and a context of this width."""
        return Attention(width, heads=self.heads, key_heads=self.key_heads, head_width=self.head_width,
                         score=self.score, scale=self.scale, softcap=self.softcap, normalize=self.normalize,
                         bias=self.bias, qkv_bias=self.qkv_bias, gate=self.gate, dropout=self.dropout,
                         position_bias=position_bias, rotary=rotary, backend=self.backend)

    def head_size(self, width: int) -> int:
        """The width of a head."""
        return self.head_width or width // self.heads

    @property
    def has_qkv_bias(self) -> bool:
        """Whether the projections of queries, keys and values have a bias."""
        return self.bias if self.qkv_bias is None else self.qkv_bias

    def parameters(self, width: int) -> int:
        """The number of parameters of the layer."""
        queries, keys = self.heads * self.head_size(width), (self.key_heads or self.heads) * self.head_size(width)
        own = {"additive": 2 * queries, "bilinear": queries * self.head_size(width)}.get(self.score, 0)
        biases = self.has_qkv_bias * (queries + 2 * keys) + self.bias * width
        gate = self.gate * (width + self.bias) * queries
        return 2 * width * (queries + keys) + biases + own + gate

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """The settings that contradict each other, with the reasons."""
        if self.heads % (self.key_heads or self.heads):
            yield "key_heads", f"{self.key_heads} does not divide heads, {self.heads}"
        if self.backend in ("sdpa", "flex") and self.normalize != "softmax":
            yield "backend", f'"{self.backend}" normalises by softmax, not by "{self.normalize}"'
        if self.backend in ("sdpa", "flex") and self.score == "additive":
            yield "backend", f'"{self.backend}" computes dot products, not the score "additive"'
        if self.backend in ("sdpa", "pointwise", "band") and self.softcap is not None:
            yield "backend", f'"{self.backend}" has no softcap; "flex", "tiled" and "exact" have it'
        if self.backend == "agents":
            yield "backend", '"agents" computes agent-aware attention only'
        if self.scale is not None and self.score not in SCORES:
            yield "scale", f'it is for dot products, and the score is "{self.score}"'

    def clashes(self, width: int, causal: bool) -> Iterator[tuple[str, str]]:
        """The settings that do not fit a model of this width, with the reasons."""
        if self.head_width is None and width % self.heads:
            yield "heads", f"{self.heads} does not divide the width, {width}; choose another number, or set head_width"




class SelfAttention(nn.Module):
    """Self-attention as a mixer: a layer that attends to its own input under a mask.

    Args:
        layer: `Attention`, `BasicAttention` or `PlainAttention`, whose context has the width of x.
        mask: `Causal()` by default; None lets every token attend to every other. It belongs to the mixer, so that a
            block does not need to know that its mixer attends.
    """

    def __init__(self, layer: AttentionLayer, mask: Mask | None = Causal()) -> None:  # noqa: B008 (a value, never changed)
        super().__init__()
        if layer.context_width != layer.width:
            raise checks.wrong("layer", "a layer whose context_width is its width, for self-attention",
                               f"of width {layer.width} with a context of {layer.context_width}")
        self.layer, self.mask = layer, mask

    def extra_repr(self) -> str:
        """The mask."""
        return f"mask={self.mask}"

    def forward(self, x: Tensor, present: Mask | None = None, positions: Tensor | None = None) -> Tensor:
        """Compute all tokens at once: (B, N, D) -> (B, N, D).

        Args:
            present: a `Padding` or `Packed` that says which tokens exist; absent tokens give zeros.
            positions: for rotary layers; by default every sequence starts at 0, packed ones too.
        """
        if isinstance(present, CachedPadding):
            mask: Mask | None = present.under(self.mask, x.shape[-2], x.device)
        elif isinstance(present, CachedPacked):
            mask = present.under(self.mask, x.shape[-2], x.shape[-2], x.dim() - 1, x.device)
        else:
            mask = self.mask if present is None else present if self.mask is None else self.mask & present
        if not isinstance(present, Padding):  # packed rows have no padding
            if isinstance(present, Packed) and positions is None and self.layer.rotary is not None:
                positions = _segment_positions(x, present)
            return self.layer(x, mask=mask, positions=positions)
        present_BN = present_tokens(x, present)
        if positions is None and present_BN is not None and present.side == "left":  # the first token is at 0
            positions = (present_BN.cumsum(-1) - 1).clamp(min=0)
        return zero_absent(self.layer(zero_absent(x, present_BN), mask=mask, positions=positions), present_BN)

    def start(self, rows: int, capacity: int) -> Cache:
        """An empty cache for `rows` sequences of at most `capacity` tokens."""
        self._further_mask()
        return self.layer.start(rows, capacity)

    def step(self, x: Tensor, state: Cache, *, lengths: Tensor | None = None) -> tuple[Tensor, Cache]:
        """Continue with one token or a chunk, (B, n, D); it consumes the cache and returns the next.

        Args:
            lengths: how many of the n tokens each row has, (B,); all by default.
        """
        present_BN = None if lengths is None else present_tokens(x, Padding(lengths), "lengths")
        further = self._further_mask()
        y, state = self.layer.step(zero_absent(x, present_BN), state, mask=further, lengths=lengths)  # type: ignore[assignment]
        return zero_absent(y, present_BN), state

    def _further_mask(self) -> Mask | None:
        """The mask without its causal part; a ValueError where it is not causal, and tokens would need later ones."""
        parts = mask_parts(self.mask)
        others = [part for part in parts if not isinstance(part, Causal)]
        if not any(isinstance(part, Causal) for part in parts):
            expected = "Causal(), alone or joined with others by &, to compute step by step"
            raise checks.wrong("mask", expected, repr(self.mask))
        return AndMask.of(*others) if others else None


def _segment_positions(x: Tensor, packed: Packed) -> Tensor:
    """The positions of the tokens of x (B, N, D) in their segments, (N,); each segment starts at 0."""
    if packed.key_lengths is not packed.query_lengths:
        raise checks.wrong("present", "a Packed without key_lengths, for self-attention",
                           repr(packed), "Leave out its key_lengths.")
    return packed.positions(x.shape[-2], x.device)


@dataclass(frozen=True, kw_only=True)
class SelfAttentionConfig(AttentionConfig):
    """Config of self-attention as a mixer."""

    kind: ClassVar[str] = "attention"
    window: int | None = integer(None, minimum=0)
    """Tokens on each side that a token may attend to; by default all."""
    position: RotaryConfig | ALiBiConfig | RelativeBiasConfig | BucketedBiasConfig | None = None
    """Positions inside attention: rotary, or a bias of the scores; none without this table."""

    def mixer(self, width: int, causal: bool, layer: int, layers: int) -> SelfAttention:
        """Build the mixer of a layer (numbered from 0); all layers are alike."""
        rotary, bias = None, None
        if isinstance(self.position, RotaryConfig):
            rotary = self.position.build(self.head_size(width))
        elif self.position is not None:
            bias = self.position.build(self.heads, causal)
        near = None if self.window is None else Window(self.window, self.window)
        mask = near if not causal else Causal() if near is None else Causal() & near
        return SelfAttention(self.build(width, position_bias=bias, rotary=rotary), mask)

    def parameters(self, width: int, causal: bool = True, layer: int = 0) -> int:
        count = super().parameters(width)
        if self.position is None or isinstance(self.position, RotaryConfig):
            return count
        return count + self.position.parameters(self.heads)

    def clashes(self, width: int, causal: bool) -> Iterator[tuple[str, str]]:
        """The settings that do not fit a model of this width, with the reasons."""
        yield from super().clashes(width, causal)
        if isinstance(self.position, RotaryConfig):
            for key, why in self.position.clashes(self.head_size(width)):
                yield f"position.{key}" if key else "position", why
        if isinstance(self.position, BucketedBiasConfig):
            buckets, ways = self.position.num_buckets, 1 if causal else 2
            if buckets % ways:
                yield "position.num_buckets", f"it must be even, half for each direction, but is {buckets}"
            exact = buckets // (2 * ways)
            if self.position.max_distance <= exact:
                yield "position.max_distance", f"it must be above {exact}, the number of distances with a bucket each"
