"""Linear layers on a CPU with weights packed for few rows, where decoding spends nearly all of its time.

    with packed_linear_layers(model):
        ...                            each nn.Linear of the model computes the same, faster, in float32 on a CPU
    PACKED_WEIGHTS.of(q, k, v)         the weights of layers with one input side by side, as one product

A decoding step multiplies few rows by large matrices. torch's product repacks such a matrix at each call, or reads it
across its memory order, and uses one thread for a single row. Here the matrix is packed once, in the blocked layout of
oneDNN. That takes longer for one or two rows than for four to six, so fewer rows are padded to four. With one thread,
matrices that are taller than wide are also stored transposed, so that a single row is summed column by column. Measured
for the products of a step with one row of a Transformer-base with a vocabulary of 32,000, weights in no cache (two
cores of an AMD EPYC): 9.2 ms transposed or as they are, with any number of threads; packed 8.4 ms with one thread and
6.0 with two. torch sums as many numbers in 5.9 and 2.4 ms.

The packed weights and a copy to compare with are kept as long as the layer lives, and one more where layers are used
both alone and side by side. A model of more than MAX_BYTES, or whose first parameter is on another device, is left as
it is. A weight that has changed is packed again: torch counts writes to a tensor, but not writes through `.data`, so
all bytes are compared when the context begins (15 ms for 58 million weights, about two steps). With gradients, in
other dtypes, on other devices and under autocast the layers run as usual.

This module knows neither blocks nor models.
"""

import ctypes
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn.functional import linear as plain
from torch.nn.functional import pad

from regard.kernels.linear import Linear

MAX_BYTES = 1 << 30
"""The largest model that is packed, in bytes of weights."""
MIN_ROWS = 4
"""Products have at least this many rows; fewer are padded."""

WeightVersions = tuple[tuple[int, int, int], ...]
"""For each weight torch's version counter, its address, and the number of changes found by comparison."""


@dataclass
class PackedWeights:
    """The packed weights of one layer, or of several side by side. It does not keep the layers alive."""

    versions: WeightVersions
    blocked: Tensor | None = None
    finite: bool = True
    """Whether all blocked weights and the bias are finite."""
    transposed: Tensor | None = None
    """For one row and one thread."""

    def product(self, x: Tensor, weights: list[Tensor], bias: Tensor | None, activation: str = "none") -> Tensor:
        """(R, in) -> (R or MIN_ROWS, out): the caller cuts off padded rows.

        Args:
            weights: the weights to pack, where they are not packed yet.
            activation: "none" or "relu", applied to the product.
        """
        if self.blocked is None:
            together = _concatenate(weights)
            self.blocked = torch.ops.mkldnn._reorder_linear_weight(together, None)
            self.finite = all(bool(one.isfinite().all()) for one in (together, bias) if one is not None)
        fused = activation if self.finite else "none"  # oneDNN's ReLU of NaN is 0, which would hide a broken model
        made = torch.ops.mkldnn._linear_pointwise(pad_rows(x), self.blocked, bias, fused, [], "")
        return made if fused == activation else _activate(made, activation)

    def single(self, x: Tensor, weights: list[Tensor], bias: Tensor | None) -> Tensor:
        """One row, (1, in) -> (1, out), with the weights transposed in memory."""
        if self.transposed is None:
            self.transposed = _concatenate(weights).t().contiguous().t()
        return plain(x, self.transposed, bias)


@dataclass
class PackedWeightsCache:
    """The packed weights of all living layers."""

    kept: "weakref.WeakKeyDictionary[nn.Linear, PackedWeights]" = field(default_factory=weakref.WeakKeyDictionary)
    joint: "weakref.WeakKeyDictionary[nn.Linear, PackedWeights]" = field(default_factory=weakref.WeakKeyDictionary)
    """Those of layers side by side, by the first of them."""
    seen: "weakref.WeakKeyDictionary[nn.Linear, tuple[Tensor, int]]" = field(default_factory=weakref.WeakKeyDictionary)
    """A copy of each weight, and how often it had changed."""

    def of(self, first: nn.Linear, *others: nn.Linear) -> PackedWeights:
        """The packed weights of a layer, or of several layers side by side in this order, as they are now."""
        kept = self.joint if others else self.kept
        versions = tuple((layer.weight._version, layer.weight.data_ptr(), self._changes(layer))
                         for layer in (first, *others))
        found = kept.get(first)
        if found is None or found.versions != versions:
            found = kept[first] = PackedWeights(versions)
        return found

    def check_changes(self, layers: list[nn.Linear]) -> None:
        """Notice weights that were written to through `.data`, which torch does not count."""
        for layer in layers:
            weight, known = layer.weight.detach().contiguous(), self.seen.get(layer)
            if known is None or not same_bytes(known[0], weight):
                self.seen[layer] = weight.clone(), 0 if known is None else known[1] + 1

    def _changes(self, layer: nn.Linear) -> int:
        known = self.seen.get(layer)
        return 0 if known is None else known[1]


PACKED_WEIGHTS = PackedWeightsCache()


def same_bytes(one: Tensor, other: Tensor) -> bool:
    """Whether two contiguous tensors on the CPU have the same bytes; three times as fast as `torch.equal`."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return not _memcmp()(one.data_ptr(), other.data_ptr(), one.nbytes)


@lru_cache(maxsize=1)
def _memcmp() -> Callable[[int, int, int], int]:
    """The function of the C library."""
    function = ctypes.CDLL("msvcrt" if sys.platform == "win32" else None).memcmp
    function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_int
    return function


class PackedForward:
    """The forward pass of one layer with packed weights."""

    def __init__(self, layer: nn.Linear) -> None:
        self.layer = layer

    def __call__(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        return self.product(x)

    def with_relu(self, x: Tensor) -> Tensor:
        """ReLU of the output, as part of the packed product."""
        return self.product(x, "relu")

    def product(self, x: Tensor, activation: str = "none") -> Tensor:
        """(..., in) -> (..., out), with the activation "none" or "relu"."""
        layer = self.layer
        weight, bias = layer.weight, layer.bias
        if torch.is_grad_enabled() or x.dtype != torch.float32 or x.device.type != "cpu" or autocast_or_compiling():
            return _activate(plain(x, weight, bias), activation)
        rows = x.reshape(-1, layer.in_features)
        count = len(rows)
        if count == 1 and single_threaded():
            if layer.out_features < layer.in_features:
                return _activate(plain(x, weight, bias), activation)  # reading it in memory order is the fastest way
            return _activate(PACKED_WEIGHTS.of(layer).single(x, [weight], bias), activation)
        made = PACKED_WEIGHTS.of(layer).product(rows, [weight], bias, activation)
        return made[:count].view(*x.shape[:-1], layer.out_features)


@contextmanager
def packed_linear_layers(model: object) -> Iterator[None]:
    """In this context the layers of a model use packed weights. Other objects and other layers stay as they are."""
    layers = _packable_layers(model) if isinstance(model, nn.Module) else []
    changed = [layer for layer in layers if "forward" not in vars(layer)]  # not those of an outer context
    PACKED_WEIGHTS.check_changes(changed)
    for layer in changed:
        vars(layer)["forward"] = PackedForward(layer)
    try:
        yield
    finally:
        for layer in changed:
            vars(layer).pop("forward", None)


def is_packed(layer: nn.Linear) -> bool:
    """Whether a layer uses packed weights now, and has no hooks."""
    return packed_forward(layer) is not None


def packed_forward(layer: nn.Linear) -> PackedForward | None:
    """The packed forward pass of a layer; None if the layer has hooks, or uses no packed weights now."""
    found = vars(layer).get("forward")
    hooked = layer._forward_hooks or layer._forward_pre_hooks
    return found if isinstance(found, PackedForward) and not hooked else None


def pad_rows(x: Tensor) -> Tensor:
    """Rows (R, D), padded to MIN_ROWS with zeros, or with copies of a single row."""
    count = x.shape[0]
    if count == 1:
        return x.expand(MIN_ROWS, -1)  # faster than writing zeros
    return x if count >= MIN_ROWS or not count else pad(x, (0, 0, 0, MIN_ROWS - count))


def single_threaded() -> bool:
    """Whether torch uses one thread, which reads whole columns faster than blocks."""
    return torch.get_num_threads() == 1


def autocast_or_compiling() -> bool:
    """Whether autocast changes the dtype of products, or they are being compiled."""
    return torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling()


def _activate(x: Tensor, activation: str) -> Tensor:
    return x.relu() if activation == "relu" else x


def _concatenate(weights: list[Tensor]) -> Tensor:
    return weights[0].detach() if len(weights) == 1 else torch.cat([weight.detach() for weight in weights])


def _packable_layers(model: nn.Module) -> list[nn.Linear]:
    """The layers that can be packed; none where the model is too large, or torch has no oneDNN."""
    first = next(model.parameters(), None)
    if first is None or first.device.type != "cpu":  # walking through a model on a GPU would take longer than its steps
        return []
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return []
    found = [module for module in model.modules() if isinstance(module, nn.Linear)
             and type(module) in (nn.Linear, Linear) and _packable_weight(module.weight)]
    return found if sum(layer.weight.nbytes for layer in found) <= MAX_BYTES else []


def _packable_weight(weight: Tensor) -> bool:
    return (weight.device.type == "cpu" and weight.dtype == torch.float32 and type(weight) is nn.Parameter
            and not weight.is_inference() and weight.numel() > 0)
