"""A cell over time: layers, directions, padding, and the state between calls.

    h_t = f(x_t, h_{t-1}), t = 1 .. N        direction "forward"
    h_t = f(x_t, h_{t+1}), t = N .. 1        direction "backward"
    [h_t of the one; h_t of the other]       direction "both"

A `Recurrence` is a mixer, (B, N, D) -> (B, N, D). Rows may be padded on either side: padding changes nothing, its
outputs are zeros, and it leaves the state unchanged; the backward direction starts at each row's own last token.

    y = recurrence(x, present)                      all tokens at once
    y, state = recurrence.run(x, present, state)    and the state of each row after its last token, to continue from
    y, state = recurrence.step(x, state)            one token or a chunk of them, as in decoding

Truncated back-propagation through time is `state.detach()` between two calls on a continuous text.

At the end are the four shapes of a recurrent network, each a few lines on a `Recurrence`:

    one to one       a label for one vector         (without recurrence)
    one to many      a caption for an image
    many to one      a class for a sentence
    many to many     a tag for every word; with `many_to_one` then `one_to_many`, a sentence for a sentence

`backends` computes a scan, `packing` orders the tokens of a padded batch, `cells` has the equations.

Legend: B rows, N tokens, D width, R tokens in the order of the scan.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from regard import checks
from regard.attention.mask import Padding
from regard.config import Config, choice, integer, probability
from regard.kernels.dispatch import Explanation
from regard.mixer import RowState
from regard.recurrence.backends import BACKENDS, ScanProblem, choose_scan_backend, explain_scan_backend
from regard.recurrence.cells import CELLS, Cell, count_cell_parameters, load_torch_cell
from regard.recurrence.packing import PackedOrder, PaddedOrder, scan_order

DIRECTIONS = {"forward": (False,), "backward": (True,), "both": (False, True)}
"""The scans of each direction: whether each of them goes in reverse."""


class Recurrence(nn.Module):
    """A recurrent network as a mixer: (B, N, input_width) -> (B, N, width).

    Args:
        width: the width of the output. With direction="both" each of the two directions has half of it.
        cell: the name of the cell ("rnn", "lstm", "gru", "mut1", "mut2", "mut3"), or a subclass of `Cell`.
        input_width: the width of x. Default: `width`.
        layers: the number of layers, each over the result of the one below.
        direction: "forward", "backward" or "both".
        dropout: the probability of dropout between layers, while training.
        backend: "fused", "native", "bptt" or "loop". Default: the fastest one that can do the work.
        cell_options: options of the cell's class, such as reset="after" of the GRU, which makes it that of torch.

    `cells` are in the order of layers; with direction="both" each layer has two, the forward one first. A state has the
    memories of each of them in this order, (B, width of the cell) each: h, or h and c.

    Example:
        import torch
        import regard

        network = regard.Recurrence(32, cell="gru", layers=2)
        x = torch.randn(4, 10, 32)
        output, state = network.run(x, present=regard.Padding([10, 7, 3, 1]))
        assert output.shape == (4, 10, 32)
    """

    def __init__(self, width: int, *, cell: str | type[Cell] = "lstm", input_width: int | None = None, layers: int = 1,
                 direction: str = "forward", dropout: float = 0.0, backend: str | None = None,
                 **cell_options: Any) -> None:
        super().__init__()
        scans = len(checks.pick("direction", direction, DIRECTIONS))
        checks.probability("dropout", dropout)
        if backend is not None:
            checks.pick("backend", backend, BACKENDS)
        checks.whole_number("layers", layers, 1)
        if width % scans:
            raise checks.wrong("width", 'even with direction="both", where each direction has half of it', width)
        make = cell if isinstance(cell, type) else checks.pick("cell", cell, CELLS)
        self.width, self.input_width = width, width if input_width is None else input_width
        self.layers, self.direction, self.dropout, self.backend = layers, direction, dropout, backend
        self.cells = nn.ModuleList(make(self.input_width if layer == 0 else width, width // scans, **cell_options)
                                   for layer in range(layers) for _ in range(scans))

    @property
    def scans(self) -> list[Cell]:
        """The cells, typed."""
        return cast(list[Cell], list(self.cells))

    def forward(self, x: Tensor, present: Padding | None = None, state: RowState | None = None) -> Tensor:
        """Run over all tokens at once: x (B, N, input_width) -> (B, N, width), zeros in the padding.

        Args:
            present: the tokens that are not padding. Default: all of them.
            state: the state to continue from. Default: zeros.
        """
        return self.run(x, present, state)[0]

    def run(self, x: Tensor, present: Padding | None = None,
            state: RowState | None = None) -> tuple[Tensor, RowState]:
        """Run like `forward`, and also return the state of each row after its last token (backward: its first).

        Args:
            present: the tokens that are not padding. Default: all of them.
            state: the state to continue from. Default: zeros.
        """
        self._check(x)
        return self._scan(x, scan_order(x, present), state)

    def _scan(self, x: Tensor, order: PackedOrder | PaddedOrder, state: RowState | None) -> tuple[Tensor, RowState]:
        """Run all layers and directions over x, in this order of its tokens."""
        before = self.start(x.shape[0]).tensors if state is None else self._memories(state, x.shape[0])
        tokens_RD, scans = order.gather(x), iter(self.scans)
        after: list[Tensor] = []
        for layer in range(self.layers):
            if layer:
                tokens_RD = nn.functional.dropout(tokens_RD, self.dropout, self.training)
            results = []
            for reverse in DIRECTIONS[self.direction]:
                cell = next(scans)
                own, before = before[:cell.memories], before[cell.memories:]
                inputs = order.reverse(tokens_RD) if reverse else tokens_RD
                problem = ScanProblem(cell, inputs, order.sizes, order.arrange(own), order.lengths)
                result, final = choose_scan_backend(problem, self.backend).run(problem)
                results.append(order.reverse(result) if reverse else result)
                after += order.restore(final, own)
            tokens_RD = results[0] if len(results) == 1 else torch.cat(results, -1)
        return order.scatter(tokens_RD), RowState(tuple(after))

    def start(self, rows: int, capacity: int | None = None) -> RowState:
        """Return the state before the first token: zeros. It does not grow with the tokens; `capacity` is not used."""
        return RowState(tuple(memory for cell in self.scans for memory in cell.initial(rows)))

    def step(self, x: Tensor, state: RowState, *, lengths: Tensor | None = None) -> tuple[Tensor, RowState]:
        """Continue with the next tokens of each row, x (B, n, input_width).

        Args:
            lengths: how many of the n tokens each row has, (B,). Default: all of them.
        """
        if self.direction != "forward":
            remedy = "A step cannot read the tokens after it."
            raise checks.wrong("direction", '"forward" to compute step by step', f'"{self.direction}"', remedy)
        return self.run(x, None if lengths is None else Padding(lengths), state)

    def explain(self, x: Tensor, present: Padding | None = None) -> Explanation:
        """Tell which backend runs the first layer, and why each faster one does not."""
        return explain_scan_backend(self.problem(x, present), self.backend)

    def problem(self, x: Tensor, present: Padding | None = None) -> ScanProblem:
        """The problem of the first layer, as backends take it."""
        self._check(x)
        order, cell = scan_order(x, present), self.scans[0]
        return ScanProblem(cell, order.gather(x), order.sizes, order.arrange(cell.initial(x.shape[0])), order.lengths)

    def load_torch(self, module: nn.RNNBase) -> None:
        """Copy the weights of an `nn.RNN`, `nn.LSTM` or `nn.GRU` of the same layers and directions."""
        if not isinstance(module, nn.RNNBase):
            raise checks.wrong("module", "an nn.RNN, nn.LSTM or nn.GRU", *checks.kind(module))
        ways = DIRECTIONS["both" if module.bidirectional else "forward"]
        if (module.num_layers, ways) != (self.layers, DIRECTIONS[self.direction]):
            expected = f"a module of {checks.plural(self.layers, 'layer')} with the direction {self.direction}"
            raise checks.wrong("module", expected, module)
        for i, cell in enumerate(self.scans):
            load_torch_cell(cell, module, i // len(ways), reverse=ways[i % len(ways)])

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
            remedy = "Get one from recurrence.start(rows)."
            wanted = f"a state of {checks.plural(len(expected), 'tensor')} of shape {expected[0]}"
            raise checks.wrong("state", wanted, f"one of {shapes or 'none'}", remedy)
        return state.tensors


@dataclass(frozen=True, kw_only=True)
class RecurrenceConfig(Config):
    """Config of a `Recurrence` mixer."""

    kind: ClassVar[str] = "recurrence"
    cell: str = choice(CELLS, "lstm")
    """Recurrent cell."""
    layers: int = integer(1, minimum=1)
    """Recurrent layers inside one layer of the stack."""
    direction: str = choice(DIRECTIONS, "forward")
    """Direction in which the sequence is read."""
    dropout: float = probability(0.0)
    """Dropout between the recurrent layers."""
    backend: str | None = choice(BACKENDS, None)
    """Backend of the recurrence; by default the fastest that can compute it."""

    def mixer(self, width: int, causal: bool, layer: int, layers: int) -> Recurrence:
        """Build the mixer of a layer; all layers are alike."""
        return Recurrence(width, cell=self.cell, layers=self.layers, direction=self.direction, dropout=self.dropout,
                          backend=self.backend)

    def parameters(self, width: int, causal: bool = True, layer: int = 0) -> int:
        """The number of parameters of the mixer of a layer."""
        scans = len(DIRECTIONS[self.direction])
        return self.layers * scans * count_cell_parameters(self.cell, width, width // scans)

    def clashes(self, width: int, causal: bool) -> Iterator[tuple[str, str]]:
        """Pairs of a key and the reason why its value does not fit a model of this width."""
        if causal and self.direction != "forward":
            yield "direction", f'a causal model needs "forward", but it is "{self.direction}"'
        if width % len(DIRECTIONS[self.direction]):
            yield "direction", f'"both" needs an even width, half for each direction, but it is {width}'


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
    """(B, input width) -> (B, steps, width). The input comes once; after it zeros, or `feed` of the last y.

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
    """(B, N, input width) -> (B, width): the last layer's hidden vector after each row's last token.

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
