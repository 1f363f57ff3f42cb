"""What the tests of attention share: questions to attention, each with the answer of the oracle, and ways to compare.

A `Case` holds the arguments of `attend` and the same question in the words of `regard.reference`. The matrix of a mask
is put together here from the oracle's functions alone, next to the mask, never asked from the mask.
"""

import functools
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

import regard
from regard.attention import backends
from regard.attention.normalize import Normalizer
from regard.reference import attention as oracle
from regard.reference import position as positions

DOTS = ("dot", "scaled_dot", "scaled_dot_d", "bilinear", "bilinear heads")
SCORES = (*DOTS, "additive", "additive heads", "additive bias", "additive heads bias", "function", "module")
OWN_NORMALIZERS = ("softmax_one", "sparsemax")
NORMALIZERS = ("softmax", "relu", "relu_sum", "sigmoid", *OWN_NORMALIZERS)


# ---- scores and normalisers that a user might write, in torch and for the oracle -------------------------------------


def nearness(query: Tensor, key: Tensor) -> Tensor:
    """3 - |q - k|², a user's score as a function."""
    return 3 - (query.unsqueeze(-2) - key.unsqueeze(-3)).square().sum(-1)


class Waves(nn.Module):
    """Σ w cos(q - k), a user's score as a module with a parameter."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return (self.weight * torch.cos(query.unsqueeze(-2) - key.unsqueeze(-3))).sum(-1)


def softmax_one(scores: Tensor) -> Tensor:
    """exp(e) / (1 + Σ exp(e)): a query may look at nothing."""
    return scores.exp() / (1 + scores.exp().sum(-1, keepdim=True))


class Sparsemax(Normalizer):
    """The nearest point of the simplex (Martins and Astudillo 2016): it needs the whole row, sorted."""

    def __call__(self, scores: Tensor) -> Tensor:
        if scores.shape[-1] == 0:
            return scores
        ordered = scores.sort(dim=-1, descending=True).values
        total = ordered.masked_fill(ordered == -torch.inf, 0.0).cumsum(-1)
        count = torch.arange(1, scores.shape[-1] + 1, device=scores.device, dtype=scores.dtype)
        size = (1 + count * ordered > total).sum(-1, keepdim=True)
        threshold = (total.gather(-1, size - 1) - 1) / size
        return (scores - threshold).clamp(min=0.0)


def _softmax_one(scores: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    row = np.where(allowed, np.exp(np.where(allowed, scores, -np.inf)), 0.0)
    return row / (1 + row.sum())


def _sparsemax(scores: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Brute force: the right threshold is the one of the k best keys, for the k whose weights are all positive."""
    row = np.zeros(len(scores))
    keys = [j for j in range(len(scores)) if allowed[j] and scores[j] != -math.inf]
    keys.sort(key=lambda j: -scores[j])
    for k in range(len(keys), 0, -1):
        chosen = scores[keys[:k]]
        shifted = chosen - (chosen.sum() - 1) / k
        if shifted.min() > 0:
            row[keys[:k]] = shifted
            return row
    return row


ORACLE_NORMALIZERS = {"softmax": oracle.softmax, "relu": oracle.relu_keys, "relu_sum": oracle.relu_sum,
                      "sigmoid": oracle.sigmoid, "softmax_one": _softmax_one, "sparsemax": _sparsemax}


def normalizer(name: str) -> Any:
    """What `attend` is given for the normaliser of this name."""
    return {"softmax_one": softmax_one, "sparsemax": Sparsemax()}.get(name, name)


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def scorer(name: str, heads: int | None, width: int, key_width: int | None = None, seed: int = 7) -> tuple[Any, Any]:
    """The score of this name for `attend`, and for the oracle (a list of one a head where heads differ)."""
    key_width = width if key_width is None else key_width
    if name in ("dot", "scaled_dot", "scaled_dot_d"):
        return name, getattr(oracle, name)
    if name == "function":
        return nearness, lambda q, k: 3 - float(((q - k) ** 2).sum())
    w, b = normal(heads or 1, width, seed=seed), normal(heads or 1, width, seed=seed + 1)
    if name == "module":
        own = w[0].numpy().copy()
        return Waves(w[0]), lambda q, k: float((own * np.cos(q - k)).sum())
    if name.startswith("bilinear"):
        matrix = normal(heads or 1, width, key_width, seed=seed) / math.sqrt(width)
        return _per_head(regard.Bilinear, oracle.bilinear, (matrix,), name.endswith("heads"))
    given = (w, b) if name.endswith("bias") else (w,)
    return _per_head(regard.Additive, oracle.additive, given, "heads" in name)


def _per_head(make: Any, function: Any, given: tuple[Tensor, ...], heads: bool) -> tuple[Any, Any]:
    tensors = tuple((t if heads else t[0]).clone().requires_grad_() for t in given)
    own = [functools.partial(_with, function, tuple(t[h].numpy() for t in given)) for h in range(len(given[0]))]
    return make(*tensors), own if heads else own[0]


def _with(function: Any, parameters: tuple[np.ndarray, ...], q: np.ndarray, k: np.ndarray) -> float:
    return function(q, k, *parameters)


def parameters(score: Any) -> list[Tensor]:
    """The tensors of a score that can be learned."""
    if isinstance(score, nn.Module):
        return list(score.parameters())
    return [t for t in (getattr(score, name, None) for name in ("weight", "bias")) if isinstance(t, Tensor)]


# ---- masks -----------------------------------------------------------------------------------------------------------


@dataclass
class Known:
    """A mask, its matrix according to the oracle, and the distances it gives (None: both sequences end together)."""

    mask: Any
    matrix: np.ndarray
    distances: np.ndarray | None = None
    moved: bool = False


def per_sequence(numbers: np.ndarray, leading: int, of_one: Any) -> np.ndarray:
    """One matrix for each number, under as many leading dimensions as are asked for."""
    matrices = [of_one(int(n)) for n in numbers.flatten()]
    if not matrices:
        return np.zeros((*numbers.shape, *(1,) * (leading - numbers.ndim), *of_one(0).shape), dtype=of_one(0).dtype)
    shape = (*numbers.shape, *(1,) * (leading - numbers.ndim), *matrices[0].shape)
    return np.stack(matrices).reshape(shape)


@st.composite
def prefixes(draw: Any, leading: tuple[int, ...], least: int, most: int) -> np.ndarray:
    """Numbers for the first few leading dimensions, or one number for all."""
    shape = tuple(draw(st.sampled_from(sorted({1, size}))) for size in leading[:draw(st.integers(0, len(leading)))])
    count = math.prod(shape)
    return np.array(draw(st.lists(st.integers(least, most), min_size=count, max_size=count)), dtype=int).reshape(shape)


@st.composite
def cuts(draw: Any, room: int, segments: int) -> list[int]:
    """Lengths of segments that fit into the room: empty ones, and room behind the last, included."""
    ends = sorted(draw(st.lists(st.integers(0, room), min_size=segments, max_size=segments)))
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


@st.composite
def some_masks(draw: Any, leading: tuple[int, ...], n_queries: int, n_keys: int) -> Known:
    """One of the masks that have nothing to do with positions, or a `Causal`, or a `Window`."""
    size = (n_queries, n_keys)
    kind = draw(st.sampled_from(("causal", "window", "padding", "tensor")))
    if kind == "causal":
        return Known(regard.Causal(), oracle.causal(*size))
    if kind == "window":
        left, right = (draw(st.none() | st.integers(0, 6)) for _ in range(2))
        return Known(regard.Window(left, right), oracle.window(*size, left, right))
    if kind == "padding":
        lengths, side = draw(prefixes(leading, 0, n_keys)), draw(st.sampled_from(("left", "right")))
        matrix = per_sequence(lengths, len(leading), lambda n: oracle.padding([n], *size, side)[0])
        return Known(regard.Padding(torch.tensor(lengths), side=side), matrix)
    full = (*leading, *size)
    shape = tuple(draw(st.sampled_from(sorted({1, n}))) for n in full[draw(st.integers(0, len(full))):])
    tensor = normal(*shape, seed=draw(st.integers(0, 99))) < draw(st.sampled_from((-1.0, 0.5, 2.0)))
    matrix = tensor.numpy() if len(shape) > 1 else np.broadcast_to(tensor.numpy(), size)
    return Known(tensor, np.broadcast_to(matrix, (*matrix.shape[:-2], *size)))


@st.composite
def moving_masks(draw: Any, leading: tuple[int, ...], n_queries: int, n_keys: int) -> Known:
    """`Packed` or `Placed`, alone or together with `Causal` and `Window`, which then follow it."""
    left, right = (draw(st.none() | st.integers(0, 4)) for _ in range(2))
    causal, window = draw(st.booleans()), draw(st.booleans())
    if draw(st.booleans()):
        segments = draw(st.integers(0, 4))
        queries = draw(cuts(n_queries, segments))
        equal = draw(st.booleans()) and sum(queries) <= n_keys
        keys = queries if equal else draw(cuts(n_keys, segments))
        mask, size = regard.Packed(queries, None if equal else keys), (n_queries, n_keys)
        matrices = [oracle.packed(queries, keys, *size), oracle.packed_causal(queries, keys, *size),
                    oracle.packed_window(queries, keys, left, right, *size)]
        distances = np.zeros(size, dtype=int)
        i = j = 0
        for q, k in zip(queries, keys, strict=True):
            distances[i:i + q, j:j + k] = oracle.distances(q, k)
            i, j = i + q, j + k
    else:
        starts, depth = draw(prefixes(leading[:-1], 0, max(0, n_keys))), len(leading)
        mask = regard.Placed(torch.tensor(starts))
        matrices = [per_sequence(starts, depth, lambda s: oracle.placed(s, n_queries, n_keys)),
                    per_sequence(starts, depth, lambda s: oracle.placed_causal(s, n_queries, n_keys)),
                    per_sequence(starts, depth, lambda s: oracle.placed_window(s, n_queries, n_keys, left, right))]
        distances = per_sequence(starts, depth, lambda s: oracle.distances(n_queries, n_keys, s))
    matrix = matrices[0]
    if causal:
        mask, matrix = draw(st.sampled_from((mask & regard.Causal(), regard.Causal() & mask))), matrix & matrices[1]
    if window:
        mask, matrix = mask & regard.Window(left, right), matrix & matrices[2]
    return Known(mask, matrix, distances, moved=True)


@st.composite
def masks(draw: Any, leading: tuple[int, ...], n_queries: int, n_keys: int, depth: int = 2) -> Known:
    """Any mask: one of the above, or several joined by &, | and ~."""
    args = (leading, n_queries, n_keys)
    kind = draw(st.sampled_from(("one", "one", "moving", "and", "or", "not"))) if depth else "one"
    if kind == "one":
        return draw(some_masks(*args))
    if kind == "moving":
        return draw(moving_masks(*args))
    a = draw(masks(*args, depth - 1))
    if kind == "not":
        return Known(~a.mask, ~a.matrix)
    b = draw(masks(*args, depth - 1))
    if kind == "and" and not a.moved and not b.moved:  # a moved one would move the other: see moving_masks
        return Known(a.mask & b.mask, a.matrix & b.matrix)
    return Known(a.mask | b.mask, a.matrix | b.matrix)


# ---- biases ----------------------------------------------------------------------------------------------------------


def table_of(bias: regard.RelativeBias, distances: np.ndarray) -> np.ndarray:
    """The oracle's bias of these distances (..., 1, queries, keys), or without the 1: (..., heads, queries, keys)."""
    table = bias.table.detach().cpu().double().numpy()
    limit = bias.max_distance
    rows = np.vectorize(lambda d: positions.relative_clip(int(d), limit) + limit, otypes=[int])(distances)
    rows = rows if rows.ndim > 2 else rows[None]
    return np.concatenate([table[rows, head] for head in range(bias.heads)], axis=-3)


def alibi_of(slopes: np.ndarray, distances: np.ndarray) -> np.ndarray:
    """-slope |distance|, heads in their place."""
    distances = distances if distances.ndim > 2 else distances[None]
    return np.concatenate([-slope * np.abs(distances) for slope in slopes], axis=-3)


@st.composite
def biases(draw: Any, leading: tuple[int, ...], n_queries: int, n_keys: int, distances: np.ndarray) -> tuple[Any, Any]:
    """A bias for `attend`, and its matrix for the oracle."""
    kind = draw(st.sampled_from(("none", "none", "tensor", "alibi", "relative")))
    seed = draw(st.integers(0, 99))
    if kind == "none" or (not leading and kind != "tensor"):
        return None, None
    if kind == "tensor":
        full = (*leading, n_queries, n_keys)
        shape = tuple(draw(st.sampled_from(sorted({1, n}))) for n in full[draw(st.integers(0, len(full))):])
        bias = normal(*shape, seed=seed)
        if draw(st.booleans()):
            bias = bias.masked_fill(normal(*shape, seed=seed + 1) > 0.5, -torch.inf)
        return bias.requires_grad_(), bias.detach().numpy()
    heads = leading[-1]
    if kind == "alibi":
        slopes = normal(heads, seed=seed).exp()
        return regard.ALiBi(nn.Parameter(slopes)), alibi_of(slopes.numpy(), distances)
    relative = regard.RelativeBias(heads, max_distance=draw(st.integers(0, 4))).double()
    relative.table.data = normal(*relative.table.shape, seed=seed)
    return relative, table_of(relative, distances)


# ---- cases -----------------------------------------------------------------------------------------------------------


@dataclass
class Case:
    """A question: the arguments of `attend`, and the same for the oracle."""

    query: Tensor
    key: Tensor
    value: Tensor
    options: dict[str, Any] = field(default_factory=dict)
    known: dict[str, Any] = field(default_factory=dict)
    dotted: bool = True

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.query, self.key, self.value

    def backends(self) -> list[str]:
        """Those that must do this work, wherever it is."""
        return ["exact", "tiled", "sdpa"] if self.dotted else ["exact", "tiled"]

    def output(self) -> np.ndarray:
        return oracle.attend_many(*(t.detach().cpu().double().numpy() for t in self.tensors), **self.known)

    def weights(self) -> np.ndarray:
        query, key, _ = (t.detach().cpu().double().numpy() for t in self.tensors)
        return oracle.weights_many(query, key, **self.known)

    def learned(self) -> list[Tensor]:
        """Every tensor that gets a gradient."""
        bias = self.options.get("bias")
        own = [bias] if isinstance(bias, Tensor) else [] if bias is None else list(bias.parameters())
        return [*self.tensors, *own, *parameters(self.options["score"])]

    def gradients(self, backend: str) -> list[Tensor]:
        """Of a loss that weighs every number of the output differently."""
        output = regard.attend(*self.tensors, **self.options, backend=backend)
        weight = normal(*output.shape, seed=5).to(output)
        grads = torch.autograd.grad((output * weight).sum(), self.learned(), allow_unused=True)
        return [torch.zeros_like(t) if g is None else g for t, g in zip(self.learned(), grads, strict=True)]


@st.composite
def cases(draw: Any, most: int = 6) -> Case:
    """Any question at all, small enough for the oracle."""
    n_queries, n_keys = draw(st.integers(0, most)), draw(st.integers(0, most))
    width, value_width = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    batch = tuple(draw(st.lists(st.integers(1, 2), max_size=2)))
    key_heads, groups = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    plain = draw(st.booleans()) and not batch
    leading = () if plain else (*batch, key_heads * groups)
    name, kind = draw(st.sampled_from(SCORES)), draw(st.sampled_from(("softmax",) * 3 + NORMALIZERS))
    if plain:
        name = name.replace(" heads", "")
    key_width = draw(st.integers(1, 4)) if name.startswith("bilinear") else width
    score, known_score = scorer(name, leading[-1] if leading else None, width, key_width)
    mask = draw(masks(leading, n_queries, n_keys)) if draw(st.booleans()) else Known(None, np.array(True))
    distances = oracle.distances(n_queries, n_keys) if mask.distances is None else mask.distances
    bias, known_bias = draw(biases(leading, n_queries, n_keys, distances))

    def some(heads: int) -> tuple[int, ...]:
        """Leading dimensions that broadcast: some may be 1, some may be missing."""
        shape = tuple(draw(st.sampled_from((1, size))) for size in (*batch, heads))
        return shape[draw(st.integers(0, len(shape))):]

    if plain:
        shapes = ((),) * 3
    elif groups > 1 or draw(st.booleans()):  # one of query and key has all the leading dimensions
        shapes = (leading, some(key_heads), some(key_heads))
    else:
        shapes = (some(key_heads), leading, some(key_heads))
    seed = draw(st.integers(0, 999))
    sizes = ((n_queries, width), (n_keys, key_width), (n_keys, value_width))
    tensors = [normal(*shape, *size, seed=seed + i).requires_grad_()
               for i, (shape, size) in enumerate(zip(shapes, sizes, strict=True))]
    options = {"score": score, "normalize": normalizer(kind), "mask": mask.mask, "bias": bias}
    known = {"score": known_score, "normalize": ORACLE_NORMALIZERS[kind], "mask": mask.matrix, "bias": known_bias}
    return Case(*tensors, options, known, dotted=name in DOTS and kind == "softmax")


@contextmanager
def held(numbers: int) -> Iterator[None]:
    """Let `tiled` hold no more than this many numbers at once, so that small problems have many blocks and pieces."""
    bounds = [(backends, name) for name in ("TILE_NUMBERS_CPU", "TILE_NUMBERS_GPU", "PIECE_CPU", "PIECE_GPU")]
    with ExitStack() as stack:
        for module, name in bounds:
            stack.enter_context(mock.patch.object(module, name, numbers))
        yield


def assert_close(got: Tensor, want: "np.ndarray | Tensor", tolerance: float = 1e-12, floor: float = 0.0) -> None:
    """The same shape, and no number farther off than `tolerance` times the largest (which `floor` may stand in for)."""
    want = want.detach().cpu().double().numpy() if isinstance(want, Tensor) else want
    have = got.detach().cpu().double().numpy()
    assert have.shape == want.shape
    if want.size:
        assert np.abs(have - want).max() <= tolerance * max(np.abs(want).max(), floor)
