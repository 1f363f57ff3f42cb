"""A cell over time: layers, directions, padding, and the state between calls.

    h_t = f(x_t, h_{t-1}), t = 1 .. N        direction "forward"
    h_t = f(x_t, h_{t+1}), t = N .. 1        direction "backward"
    [h_t of the one; h_t of the other]       direction "both"

A `Recurrence` is a mixer, (B, N, D) -> (B, N, D). Rows may be padded on either side: what stands there changes nothing,
its outputs are zeros, and it leaves the state as it was; the backward direction starts at each row's own last token.

    y = recurrence(x, present)                      all tokens at once
    y, state = recurrence.run(x, present, state)    and the state of each row after its last token, to go on from
    y, state = recurrence.step(x, state)            one token or a chunk of them, as in decoding

Truncated back-propagation through time is `state.detach()` between two calls on a continuous text.

How a scan is computed, and by which kernel, is in `kernels`; the equations are in `cell`.

Legend: B rows, N tokens, D width, R tokens that are read.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from regard import checks
from regard.attention.mask import Padding
from regard.config import Config, choice, integer, probability
from regard.mixer import RowState
from regard.recurrence import cells
from regard.recurrence.cells import CELLS, Cell
from regard.recurrence.cells import count_cell_parameters as cell_parameters
from regard.recurrence.kernels import choice as kernels
from regard.recurrence.kernels.problem import ScanProblem
from regard.recurrence.packing import PackedOrder, PaddedOrder, scan_order

DIRECTIONS = {"forward": (False,), "backward": (True,), "both": (False, True)}
"""For each direction of a recurrence, which scans it has and whether they read in reverse."""


class Recurrence(nn.Module):
    """A recurrent network over the tokens of a sequence.

    Args:
        width: of the result. With direction="both" each of the two directions has half of it.
        cell: its name ("rnn", "lstm", "gru", "mut1", "mut2", "mut3"), or a class of cells.
        input_width: of x; `width` where not given.
        layers: how many, each over the result of the one before.
        direction: "forward", "backward" or "both".
        dropout: between layers, while training.
        backend: how to compute it, by name ("fused", "native", "bptt", "loop"); the fastest that can where not given.
        cell_options: of the cell's class, such as reset="after" of the GRU.

    `cells` are in the order of layers; with direction="both" each layer has two, the forward one first. A state has the
    memories of each of them in this order, (B, width of the cell) each: h, or h and c.
    """

    def __init__(self, width: int, *, cell: str | type[Cell] = "lstm", input_width: int | None = None, layers: int = 1,
                 direction: str = "forward", dropout: float = 0.0, backend: str | None = None,
                 **cell_options: Any) -> None:
        super().__init__()
        scans = len(checks.pick("direction", direction, DIRECTIONS))
        checks.probability("dropout", dropout)
        if backend is not None:
            checks.pick("backend", backend, kernels.BACKENDS)
        if not isinstance(layers, int) or layers < 1:
            raise checks.wrong("layers", "a whole number, at least 1", repr(layers))
        if width % scans:
            raise checks.wrong("width", 'even with direction="both", where each direction has half of it', width)
        make = cell if isinstance(cell, type) else checks.pick("cell", cell, CELLS)
        self.width, self.input_width = width, width if input_width is None else input_width
        self.layers, self.direction, self.dropout, self.backend = layers, direction, dropout, backend
        self.cells = nn.ModuleList(make(self.input_width if layer == 0 else width, width // scans, **cell_options)
                                   for layer in range(layers) for _ in range(scans))

    @property
    def scans(self) -> list[Cell]:
        """The cells, as what they are."""
        return cast(list[Cell], list(self.cells))

    def forward(self, x: Tensor, present: Padding | None = None, state: RowState | None = None) -> Tensor:
        """All tokens at once, x (B, N, input_width) -> (B, N, width); zeros where `present` says that there is none."""
        return self.run(x, present, state)[0]

    def run(self, x: Tensor, present: Padding | None = None,
            state: RowState | None = None) -> tuple[Tensor, RowState]:
        """As `forward`, and the state of each row after its last token (its first, in the backward direction).

        Args:
            present: which tokens are there; all where None.
            state: what to go on from; zeros where None.
        """
        self._check(x)
        return self._read(x, scan_order(x, present), state)

    def _read(self, x: Tensor, order: PackedOrder | PaddedOrder, state: RowState | None) -> tuple[Tensor, RowState]:
        """All layers and directions over x, read in this order."""
        before = self.start(x.shape[0]).tensors if state is None else self._memories(state, x.shape[0])
        read_RD, scans = order.gather(x), iter(self.scans)
        after: list[Tensor] = []
        for layer in range(self.layers):
            if layer:
                read_RD = nn.functional.dropout(read_RD, self.dropout, self.training)
            results = []
            for reverse in DIRECTIONS[self.direction]:
                cell = next(scans)
                own, before = before[:cell.memories], before[cell.memories:]
                given = order.reverse(read_RD) if reverse else read_RD
                problem = ScanProblem(cell, given, order.sizes, order.arrange(own), order.lengths)
                result, final = kernels.choose(problem, self.backend).run(problem)
                results.append(order.reverse(result) if reverse else result)
                after += order.restore(final, own)
            read_RD = results[0] if len(results) == 1 else torch.cat(results, -1)
        return order.scatter(read_RD), RowState(tuple(after))

    def start(self, rows: int, capacity: int | None = None) -> RowState:
        """The state before the first token, zeros. It does not grow with the tokens: `capacity` is not used."""
        return RowState(tuple(memory for cell in self.scans for memory in cell.initial(rows)))

    def step(self, x: Tensor, state: RowState, *, lengths: Tensor | None = None) -> tuple[Tensor, RowState]:
        """The next tokens of each row, x (B, n, input_width), after those that the state has seen.

        Args:
            lengths: how many of the n tokens each row has, (B,); all where not given.
        """
        if self.direction != "forward":
            remedy = "A step cannot read what comes after it."
            raise checks.wrong("direction", '"forward" to go step by step', f'"{self.direction}"', remedy)
        return self.run(x, None if lengths is None else Padding(lengths), state)

    def explain(self, x: Tensor, present: Padding | None = None) -> kernels.Explanation:
        """Which backend runs the first layer, and why each one that is preferred to it does not."""
        return kernels.explain(self.problem(x, present), self.backend)

    def problem(self, x: Tensor, present: Padding | None = None) -> ScanProblem:
        """What the kernels are asked for the first layer."""
        self._check(x)
        order, cell = scan_order(x, present), self.scans[0]
        return ScanProblem(cell, order.gather(x), order.sizes, order.arrange(cell.initial(x.shape[0])), order.lengths)

    def load_torch(self, module: nn.RNNBase) -> None:
        """Copy the weights of an `nn.RNN`, `nn.LSTM` or `nn.GRU` of the same layers and directions."""
        if not isinstance(module, nn.RNNBase):
            raise checks.wrong("module", "an nn.RNN, nn.LSTM or nn.GRU", *checks.kind(module))
        ways = DIRECTIONS["both" if module.bidirectional else "forward"]
        if (module.num_layers, ways) != (self.layers, DIRECTIONS[self.direction]):
            raise checks.wrong("module", f"of {self.layers} layers, {self.direction}", module)
        for i, cell in enumerate(self.scans):
            cells.load_torch_cell(cell, module, i // len(ways), reverse=ways[i % len(ways)])

    def extra_repr(self) -> str:
        return f'{self.width}, layers={self.layers}, direction="{self.direction}", dropout={self.dropout}'

    def _check(self, x: Tensor) -> None:
        if x.dim() != 3 or x.shape[-1] != self.input_width:
            expected = f"of shape (rows, tokens, {self.input_width}), the input width last"
            raise checks.wrong("x", expected, f"of shape {checks.shape(x)}")

    def _memories(self, state: RowState, rows: int) -> tuple[Tensor, ...]:
        expected = [(rows, cell.width) for cell in self.scans for _ in range(cell.memories)]
        if [tuple(memory.shape) for memory in state.tensors] != expected:
            shapes = ", ".join(map(checks.shape, state.tensors))
            remedy = "recurrence.start(rows) makes one that fits."
            raise checks.wrong("state", f"of {len(expected)} tensors {expected[0]}", f"of {shapes or 'none'}", remedy)
        return state.tensors


@dataclass(frozen=True, kw_only=True)
class RecurrenceConfig(Config):
    """`Recurrence` as a mixer, as a table of a config file. `layers` is how many are in one block."""

    kind: ClassVar[str] = "recurrence"
    cell: str = choice(CELLS, "lstm")
    layers: int = integer(1, least=1)
    direction: str = choice(DIRECTIONS, "forward")
    dropout: float = probability(0.0)
    backend: str | None = choice(kernels.BACKENDS, None)

    def mixer(self, width: int, causal: bool, layer: int) -> Recurrence:
        """The mixer of a layer, from 0; all layers are alike."""
        return Recurrence(width, cell=self.cell, layers=self.layers, direction=self.direction, dropout=self.dropout,
                          backend=self.backend)

    def parameters(self, width: int) -> int:
        """How many learned numbers the mixer has."""
        scans = len(DIRECTIONS[self.direction])
        return self.layers * scans * cell_parameters(self.cell, width, width // scans)

    def clashes(self, width: int, causal: bool) -> Iterator[tuple[str, str]]:
        """What does not go with a model of this width: key, and why."""
        if causal and self.direction != "forward":
            yield "direction", f'a model that writes reads "forward", not "{self.direction}"'
        if width % len(DIRECTIONS[self.direction]):
            yield "direction", f'"both" needs an even width, half of it for each direction, and it is {width}'


# ---- shapes: The four shapes of a recurrent network, each a few lines on a `Recurrence`.
#
#     one to one       a label for one vector         (no recurrence to speak of)
#     one to many      a caption for an image
#     many to one      a class for a sentence
#     many to many     a tag for every word; with `many_to_one` then `one_to_many`, a sentence for a sentence
#
# They know no vocabulary and no loss. Legend: B rows, N tokens, D width.


def one_to_one(recurrence: Recurrence, x: Tensor) -> Tensor:
    """(B, input width) -> (B, width).

        y
        ↑
        h
        ↑
        x
    """
    return recurrence(x.unsqueeze(1)).squeeze(1)


def one_to_many(recurrence: Recurrence, x: Tensor, steps: int, *, feed: Callable[[Tensor], Tensor] | None = None,
                state: RowState | None = None) -> Tensor:
    """(B, input width) -> (B, steps, width). The input is read once; after it zeros, or what `feed` makes of y.

        y1   y2   y3            y1   y2   y3
        ↑    ↑    ↑             ↑  ↘ ↑  ↘ ↑
        h1 → h2 → h3            h1 → h2 → h3
        ↑                       ↑
        x                       x                 feed: y (B, width) -> the next input (B, input width)
    """
    if steps < 1:
        raise checks.wrong("steps", "at least 1", steps)
    state = recurrence.start(len(x)) if state is None else state
    if feed is None:
        rest = x.new_zeros(len(x), steps - 1, x.shape[-1])
        return recurrence.step(torch.cat([x.unsqueeze(1), rest], 1), state)[0]
    outputs = []
    for _ in range(steps):
        y, state = recurrence.step(x.unsqueeze(1), state)
        outputs.append(y)
        x = feed(y.squeeze(1))
    return torch.cat(outputs, 1)


def many_to_one(recurrence: Recurrence, x: Tensor, present: Padding | None = None) -> Tensor:
    """(B, N, input width) -> (B, width): the last layer's hidden vector after the last token that is there.

                  y
                  ↑
        h1 → h2 → h3            with direction="both": [h3 of the forward one; h1 of the backward one]
        ↑    ↑    ↑             a row without tokens: the state before the first, zeros
        x1   x2   x3
    """
    _, state = recurrence.run(x, present)
    memories = recurrence.scans[-1].memories
    last_layer = state.tensors[-len(DIRECTIONS[recurrence.direction]) * memories:]
    return torch.cat(last_layer[::memories], -1)


def many_to_many(recurrence: Recurrence, x: Tensor, present: Padding | None = None) -> Tensor:
    """(B, N, input width) -> (B, N, width).

        y1   y2   y3
        ↑    ↑    ↑
        h1 → h2 → h3
        ↑    ↑    ↑
        x1   x2   x3
    """
    return recurrence(x, present)
