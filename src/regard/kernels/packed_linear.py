"""Linear layers with their weights laid out for few rows: what a search on a CPU spends nearly all of its time in.

    with packed(model):
        ...                    each nn.Linear of the model computes the same, faster, in float32 on a CPU
    LAYOUTS.of(q, k, v)        the weights of layers of one input side by side, as one product

A step of a search multiplies few rows by large matrices, and torch's product lays such a matrix out anew at each call,
or reads it against its order, and a single row with one thread alone. Here it is laid out once, blocked, as oneDNN
reads it. That takes longer for one row or two than for four to six: fewer are filled up to four. With one thread
matrices that are higher than wide are turned too, so that a single row is added up column by column. Measured for the
products of a step of one row of a Transformer-base with 32,000 tokens, weights in no cache (two cores of an AMD EPYC):
9.2 ms turned or as they are, with any number of threads; like this 8.4 ms with one thread and 6.0 with two. Torch sums
as many numbers up in 5.9 and 2.4 ms.

A second copy of the weights is kept as long as the layer lives, more where layers are met alone and side by side; a
model of more than MOST bytes, or whose first parameter lies on another device, is left as it is. A weight that was
written into is laid out again: torch counts what is written into a tensor, but not what is written through `.data`, so
that an entry of each row is compared too, when a block begins. With gradients, in other numbers, on other devices and
under autocast layers do what they always do.

It knows neither blocks nor models.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import linear as plain
from torch.nn.functional import pad

from regard.kernels.linear import Linear

MAX_BYTES = 1 << 30
"""Bytes of weights in a model that is laid out."""
MIN_ROWS = 4
"""Rows that are multiplied at least."""

WeightVersions = tuple[tuple[int, int, int], ...]


@dataclass
class PackedWeights:
    """The weights of some layers, laid out. It does not keep the layers."""

    stamp: WeightVersions
    blocked: Tensor | None = None
    turned: Tensor | None = None
    """For one row and one thread."""

    def product(self, x: Tensor, weights: list[Tensor], bias: Tensor | None, activation: str = "none") -> Tensor:
        """(R, in) -> (R or FILLED, out): rows that were filled up are left for the caller to cut off.

        Args:
            weights: what is laid out, where it is not yet.
            activation: "none" or "relu", of what is multiplied.
        """
        if self.blocked is None:
            self.blocked = torch.ops.mkldnn._reorder_linear_weight(_concatenate(weights), None)
        return torch.ops.mkldnn._linear_pointwise(pad_rows(x), self.blocked, bias, activation, [], "")

    def single(self, x: Tensor, weights: list[Tensor], bias: Tensor | None) -> Tensor:
        """One row, (1, in) -> (1, out), with the weights turned."""
        if self.turned is None:
            self.turned = _concatenate(weights).t().contiguous().t()
        return plain(x, self.turned, bias)


@dataclass
class PackedWeightsCache:
    """Those of all layers that are still there."""

    kept: "weakref.WeakKeyDictionary[nn.Linear, PackedWeights]" = field(default_factory=weakref.WeakKeyDictionary)
    several: "weakref.WeakKeyDictionary[nn.Linear, PackedWeights]" = field(default_factory=weakref.WeakKeyDictionary)
    """Of layers side by side, with the first of them."""
    seen: "weakref.WeakKeyDictionary[nn.Linear, tuple[Tensor, int]]" = field(default_factory=weakref.WeakKeyDictionary)
    """Some entries of each weight, and how often they were found to be others."""

    def of(self, first: nn.Linear, *others: nn.Linear) -> PackedWeights:
        """The layout of a layer's weight as it is; or of several, side by side in this order."""
        kept = self.several if others else self.kept
        stamp = tuple((layer.weight._version, layer.weight.data_ptr(), self._changes(layer))
                      for layer in (first, *others))
        found = kept.get(first)
        if found is None or found.stamp != stamp:
            found = kept[first] = PackedWeights(stamp)
        return found

    def look(self, layers: list[nn.Linear]) -> None:
        """Find weights that were written into without being counted."""
        for layer in layers:
            # At least one entry of each row, in one column after the other.
            entries = layer.weight.detach().flatten()[::max(1, layer.in_features - 1)]
            known = self.seen.get(layer)
            if known is None or not torch.equal(known[0], entries):
                self.seen[layer] = entries.clone(), 0 if known is None else known[1] + 1

    def _changes(self, layer: nn.Linear) -> int:
        known = self.seen.get(layer)
        return 0 if known is None else known[1]


PACKED_WEIGHTS = PackedWeightsCache()


class PackedForward:
    """The forward pass of one layer."""

    def __init__(self, layer: nn.Linear) -> None:
        self.layer = layer

    def __call__(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        layer = self.layer
        weight, bias = layer.weight, layer.bias
        if torch.is_grad_enabled() or x.dtype != torch.float32 or x.device.type != "cpu" or autocast_or_compiling():
            return plain(x, weight, bias)
        rows = x.reshape(-1, layer.in_features)
        count = len(rows)
        if count == 1 and single_threaded():
            if layer.out_features < layer.in_features:
                return plain(x, weight, bias)  # to read it in its order is the fastest already
            return PACKED_WEIGHTS.of(layer).single(x, [weight], bias)
        made = PACKED_WEIGHTS.of(layer).product(rows, [weight], bias)
        return made[:count].view(*x.shape[:-1], layer.out_features)


@contextmanager
def packed_linear_layers(model: object) -> Iterator[None]:
    """Inside, the layers of a model use weights that are laid out; anything that is no module, or cannot, is left."""
    layers = _packable_layers(model) if isinstance(model, nn.Module) else []
    changed = [layer for layer in layers if "forward" not in vars(layer)]  # of an outer block they are its business
    PACKED_WEIGHTS.look(changed)
    for layer in changed:
        vars(layer)["forward"] = PackedForward(layer)
    try:
        yield
    finally:
        for layer in changed:
            vars(layer).pop("forward", None)


def is_packed(layer: nn.Linear) -> bool:
    """Whether a layer is inside of a block now, and nobody waits for its calls."""
    return (isinstance(vars(layer).get("forward"), PackedForward)
            and not (layer._forward_hooks or layer._forward_pre_hooks))


def pad_rows(x: Tensor) -> Tensor:
    """Rows (R, D), with others behind them where they are fewer than FILLED: zeros, or a single row itself."""
    count = x.shape[0]
    if count == 1:
        return x.expand(MIN_ROWS, -1)  # which takes less time than to write zeros
    return x if count >= MIN_ROWS or not count else pad(x, (0, 0, 0, MIN_ROWS - count))


def single_threaded() -> bool:
    """Whether one thread does all the work: then it reads whole columns faster than blocks."""
    return torch.get_num_threads() == 1


def autocast_or_compiling() -> bool:
    """Whether products are computed in other numbers than those given, or are being compiled."""
    return torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling()


def _concatenate(weights: list[Tensor]) -> Tensor:
    return weights[0].detach() if len(weights) == 1 else torch.cat([weight.detach() for weight in weights])


def _packable_layers(model: nn.Module) -> list[nn.Linear]:
    """The layers that can be laid out; none where that is too much, or where torch has no oneDNN."""
    first = next(model.parameters(), None)
    if first is None or first.device.type != "cpu":  # to look through a model on a GPU would take longer than its steps
        return []
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return []
    found = [module for module in model.modules() if isinstance(module, nn.Linear)
             and type(module) in (nn.Linear, Linear) and _packable_weight(module.weight)]
    return found if sum(layer.weight.nbytes for layer in found) <= MAX_BYTES else []


def _packable_weight(weight: Tensor) -> bool:
    return (weight.device.type == "cpu" and weight.dtype == torch.float32 and type(weight) is nn.Parameter
            and not weight.is_inference() and weight.numel() > 0)
