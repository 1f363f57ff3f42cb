"""`Look`: the queries and keys of one attention, and statistics of the weights between them; `Tap`: where to get one.

A look keeps what a weight matrix is made from, and computes from it on demand: the whole matrix, some of its rows, or
statistics that never hold it. Every attention layer has a tap. Without listeners a tap costs nothing; with listeners it
passes them a `Look` each time the layer runs, whichever backend computes. A tap keeps nothing and changes nothing of
what the layer computes. The keys of a look taken in a step are those of the cache: copy them to keep them beyond the
next step.
"""

import base64
import itertools
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard import checks
from regard.attention.backends import exact_weights
from regard.attention.mask import Mask
from regard.attention.normalize import NormalizerLike
from regard.attention.problem import AttentionProblem, build_problem
from regard.attention.score import ScoreLike
from regard.attention.statistics import (
    STATISTICS,
    StatisticRequest,
    compute_statistic,
    explain_statistic,
    some_rows,
)
from regard.kernels.dispatch import Explanation
from regard.position.bias import Bias

MAX_MAP_CELLS, MAX_MAPS, MAPS_PER_ROW, MAP_PIXELS = 96, 16, 8, 96
"""Of a drawing in a notebook: cells in a row of a map, maps, maps in a row, and the size of a map."""
PAPER, ACCENT, INK, NOT_FINITE_COLOUR = (251, 250, 247), (11, 98, 93), (31, 29, 26), (255, 122, 198)
ACCENT_SHARE = 0.7
"""Maps go from the paper (0) through the accent at this share of the largest weight to ink."""


class Peaks(NamedTuple):
    """The largest weights, and the positions of the keys that have them."""

    values: Tensor
    positions: Tensor


@dataclass(frozen=True)
class Look:
    """The attention weights of `attend(query, key, ...)`, computed on demand and without gradients.

    Rows are queries, columns are keys; `...` are the leading dimensions, heads last. The memory of every statistic
    grows with the number of tokens, not with its square; only `weights` holds the whole matrix.
    """

    query: Tensor
    key: Tensor
    value: Tensor | None = None
    score: ScoreLike = "scaled_dot"
    normalize: NormalizerLike = "softmax"
    mask: Mask | Tensor | None = None
    bias: Tensor | Bias | None = None

    def __repr__(self) -> str:
        parts: list[object] = [f"queries {checks.shape(self.query)}", f"keys {checks.shape(self.key)}", self.score,
                               self.normalize]
        for name, part in (("mask", self.mask), ("bias", self.bias)):
            if part is not None:
                parts.append(f"{name} {checks.shape(part)}" if isinstance(part, Tensor) else
                             type(part).__name__ if isinstance(part, Bias) else part)
        return f"Look({', '.join(map(str, parts))})"

    def _repr_html_(self) -> str:
        """A small map of each head, for a notebook."""
        return look_html(self)

    @cached_property
    def problem(self) -> AttentionProblem:
        """The arguments in the form that backends read, checked."""
        query, key = self.query.detach(), self.key.detach()
        return build_problem(query, key, key, score=self.score, normalize=self.normalize, mask=self.mask,
                             bias=self.bias, dropout=0.0)

    @torch.no_grad()
    def weights(self) -> Tensor:
        """The whole matrix, (..., queries, keys)."""
        return exact_weights(self.problem)

    def rows(self, indices: "int | list[int] | Tensor") -> Tensor:
        """The weights of these queries, (..., keys) for one index and (..., indices, keys) for several."""
        chosen = row_indices(indices, self.problem.n_queries, self.query.device)
        rows = some_rows(self.problem, chosen.reshape(-1))
        return rows if chosen.dim() else rows.squeeze(-2)

    def entropy(self) -> Tensor:
        """-Σ w log w of every row in nats, (..., queries): 0 for a single key, log n for n equal weights.

        Weights that do not sum to 1 (relu, sigmoid) are not normalised.
        """
        return self._compute("entropy")

    def row_max(self) -> Peaks:
        """The largest weight of every row and the first key that has it, (..., queries); 0 and 0 for an empty row."""
        return Peaks(*self._compute("row_max"))

    def column_sums(self) -> Tensor:
        """The sum of the weights that each key receives from all queries, (..., keys)."""
        return self._compute("column_sums")

    def top_k(self, count: int) -> Peaks:
        """The `count` largest weights of every row, largest first, (..., queries, count)."""
        return Peaks(*self._compute("top_k", count))

    def block_map(self, size: int) -> Tensor:
        """The mean weight of every block of `size` queries and `size` keys, (..., blocks, blocks)."""
        return self._compute("block_map", size)

    @checks.renamed_arguments(asked="statistic")
    def explain(self, statistic: str, number: int | None = None) -> Explanation:
        """Which backend computes a statistic, and why the preferred ones do not: `look.explain("block_map", 64)`."""
        return explain_statistic(self._request(statistic, number))

    def _compute(self, statistic: str, number: int | None = None) -> Any:
        return compute_statistic(self._request(statistic, number))

    def _request(self, statistic: str, number: int | None) -> StatisticRequest:
        checks.pick("statistic", statistic, dict.fromkeys(STATISTICS))
        if statistic == "top_k" and not 0 < (number or 0) <= self.problem.n_keys:
            raise checks.wrong("count", f"from 1 to the number of keys, {self.problem.n_keys}", number)
        if statistic == "block_map" and (number or 0) < 1:
            raise checks.wrong("size", "at least 1", number)
        return StatisticRequest(statistic, self.problem, number)


def look_html(look: Look) -> str:
    """Small maps of the first heads of a look: one SVG element without scripts, links or ids.

    A map of more than MAX_MAP_CELLS queries or keys shows means of blocks, so that no whole matrix is computed.
    """
    n_queries, n_keys = look.problem.n_queries, look.problem.n_keys
    size = max(1, -(-max(n_queries, n_keys) // MAX_MAP_CELLS))
    maps = look.block_map(size).float().cpu()
    leading = maps.shape[:-2]
    numbers = list(itertools.islice(itertools.product(*map(range, leading)), MAX_MAPS)) if maps.numel() else []
    high = max([0.0, *(float(maps[number].nan_to_num(0.0, 0.0, 0.0).max()) for number in numbers)])
    notes = [f"{n_queries:,} queries (rows) × {n_keys:,} keys (columns), weights from 0 (paper) to {high:.3g} (ink)",
             *([f"each cell is the mean of {size} × {size} weights"] if size > 1 else []),
             *([f"the first {len(numbers)} of {leading.numel():,} maps"] if 0 < len(numbers) < leading.numel() else [])]
    side = MAP_PIXELS / max(*maps.shape[-2:], 1)
    across, down = maps.shape[-1] * side + 12, maps.shape[-2] * side + 20
    parts = []
    for place, number in enumerate(numbers):
        left, top = place % MAPS_PER_ROW * across, place // MAPS_PER_ROW * down + 14
        box = f'x="{left:.1f}" y="{top:.1f}" width="{across - 12:.1f}" height="{down - 20:.1f}"'
        parts.append(f'<text x="{left:.1f}" y="{top - 4:.1f}">{", ".join(map(str, number))}</text>'
                     f'<image {box} preserveAspectRatio="none" style="image-rendering:pixelated" '
                     f'href="data:image/png;base64,{base64.b64encode(_map_png(maps[number], high)).decode("ascii")}"/>'
                     f'<rect {box} fill="none" stroke="#888"/>')
    height = -(-len(numbers) // MAPS_PER_ROW) * down + 14
    parts += [f'<text x="0" y="{height + 14 * line:.1f}">{note}</text>' for line, note in enumerate(notes)]
    width = max(min(len(numbers), MAPS_PER_ROW) * across, 480)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height + 14 * len(notes):.0f}" '
            f'role="img" aria-label="attention weights, {len(numbers)} maps" font-family="sans-serif" font-size="11" '
            f'fill="currentColor">{"".join(parts)}</svg>')


def _map_png(weights: Tensor, high: float) -> bytes:
    """The weights (r, c) as a PNG of r × c pixels: the paper is 0, ink is `high`, and pink is not finite."""
    share = (weights / (high or 1.0)).nan_to_num(0.0, 0.0, 0.0).clamp(0, 1).unsqueeze(-1)
    paper, accent, ink = (torch.tensor(colour, dtype=torch.float32) for colour in (PAPER, ACCENT, INK))
    shades = torch.where(share < ACCENT_SHARE, torch.lerp(paper, accent, share / ACCENT_SHARE),
                         torch.lerp(accent, ink, (share - ACCENT_SHARE) / (1 - ACCENT_SHARE)))
    pixels = torch.where(weights.isfinite().unsqueeze(-1), shades.round(), torch.tensor(NOT_FINITE_COLOUR))
    rows = b"".join(b"\0" + bytes(row) for row in pixels.to(torch.uint8).flatten(1).tolist())
    header = struct.pack(">IIBBBBB", weights.shape[1], weights.shape[0], 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(struct.pack(">I", len(data)) + kind + data
                                           + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks)


def row_indices(indices: "int | list[int] | Tensor", count: int, device: torch.device) -> Tensor:
    """Indices of some of `count` rows, as a tensor of numbers from 0 on; a ValueError where they are not valid."""
    chosen = torch.as_tensor(indices, device=device)
    chosen = chosen.long() if chosen.numel() == 0 else chosen
    if chosen.is_floating_point() or chosen.dtype == torch.bool or chosen.dim() > 1:
        raise checks.wrong("indices", "an integer or a list of integers", repr(indices))
    if chosen.numel() and not (-count <= int(chosen.min()) and int(chosen.max()) < count):
        raise checks.wrong("indices", f"rows of the {count} queries", repr(indices))
    return chosen % max(1, count)



Listener = Callable[[Any], None]
"""It gets a `Look`, or what a mixer without queries and keys sends in its place."""


_LISTENERS_LOCK = threading.Lock()  # two threads may stop listening at the same time


class Tap:
    """The tap of one layer: passes each `Look` of the layer to its listeners."""

    def __init__(self) -> None:
        self.listeners: list[Listener] = []

    @contextmanager
    def listen(self, listener: Listener) -> Iterator[None]:
        """Call `listener` with every look inside the `with` block."""
        self.listeners.append(listener)
        try:
            yield
        finally:
            # Remove by identity, the last one first: other listeners may be equal to this one.
            with _LISTENERS_LOCK:
                for i in reversed(range(len(self.listeners))):
                    if self.listeners[i] is listener:
                        del self.listeners[i]
                        break

    def send(self, look: Any) -> None:
        """Pass a look to all listeners: a `Look`, or what a mixer without queries and keys has in its place."""
        for listener in tuple(self.listeners):
            listener(look)

    def __reduce__(self) -> "tuple[type[Tap], tuple[()]]":
        return Tap, ()  # a copy of a layer, also in another process, is another layer and has no listeners yet


def in_this_thread(listener: Listener) -> Listener:
    """A listener that hears only what this thread computes: others may use the model at the same time."""
    own = threading.get_ident()

    def hear(look: Any) -> None:
        if threading.get_ident() == own:
            listener(look)

    return hear


def find_taps(model: nn.Module) -> dict[str, Tap]:
    """Every tap of a model under the name of its layer; a single layer's tap has the empty name."""
    return {name: module.tap for name, module in model.named_modules() if isinstance(getattr(module, "tap", None), Tap)}
