"""Two claims of memory: a vanilla RNN forgets with length, and an LSTM carries gradients further.

The task is to name the first symbol after so much noise. Network and training are the same but for the cell: an
embedding, one recurrent layer of 32 features, an output layer.

Legend: B rows, N tokens, D width.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from claimed.claim import Claim, Numbers, Rows, Verdict, middle, spread
from regard.comparison.memory import MemoryBudget, train_model
from regard.comparison.memory_tasks import SYMBOLS, MemoryBatch, MemoryTask
from regard.recurrence.gradient_flow import gradient_flow
from regard.recurrence.scan import Recurrence

CELLS = ("rnn", "lstm", "gru")
WIDTH, RATE = 32, 5e-3


class First(MemoryTask):
    """A symbol, then noise from other symbols: which was the first, asked at the last token."""

    name, measure, unit, shortest = "first", "accuracy", "tokens of the sequence", 2

    @property
    def tokens(self) -> int:
        return self.length

    @property
    def symbols(self) -> int:
        return 2 * SYMBOLS

    @property
    def outputs(self) -> int:
        return SYMBOLS

    @property
    def chance(self) -> float:
        return math.log(SYMBOLS)

    @property
    def chance_accuracy(self) -> float:
        return 1 / SYMBOLS

    def batch(self, rows: int, generator: torch.Generator) -> MemoryBatch:
        device = generator.device
        ids = torch.randint(SYMBOLS, 2 * SYMBOLS, (rows, self.length), generator=generator, device=device)
        first = torch.randint(0, SYMBOLS, (rows,), generator=generator, device=device)
        ids[:, 0] = first
        asked = torch.zeros_like(ids, dtype=torch.bool)
        asked[:, -1] = True
        return MemoryBatch(ids, first.unsqueeze(1).expand(-1, self.length), asked, asked)


class Recurrent(nn.Module):
    """Ids to outputs by one recurrent layer."""

    def __init__(self, task: MemoryTask, cell: str) -> None:
        super().__init__()
        assert task.symbols is not None
        self.embedding = nn.Embedding(task.symbols, WIDTH)
        self.recurrence = Recurrence(WIDTH, cell=cell)
        self.output = nn.Linear(WIDTH, task.outputs)

    def forward(self, ids: Tensor) -> Tensor:
        return self.output(self.recurrence(self.embedding(ids)))


def forgets(lengths: Sequence[int] = (5, 20, 80), seeds: int = 3, steps: int = 250) -> Numbers:
    """How often each cell names the first symbol, by the length."""
    accuracy = {cell: {str(length): [_taught(First(length), cell, seed, steps)[1] for seed in range(seeds)]
                       for length in lengths} for cell in CELLS}
    return {"accuracy": accuracy, "chance": 1 / SYMBOLS, "steps": steps}


def judge_forgets(found: Numbers) -> Verdict:
    """It was learned at the shortest length, and more than half of that is gone at the longest."""
    own = {int(length): middle(values) for length, values in found["accuracy"]["rnn"].items()}
    short, long = min(own), max(own)
    learned = own[short] > 0.5
    lost = own[long] - found["chance"] < 0.5 * (own[short] - found["chance"])
    return Verdict(learned and lost, f"the RNN names the first symbol of {short} tokens in {own[short]:.0%} of "
                   f"sequences, of {long} in {own[long]:.0%} (chance {found['chance']:.0%})")


def shown_forgets(found: Numbers) -> tuple[list[str], Rows]:
    lengths = list(found["accuracy"]["rnn"])
    return ["cell", *(f"N {length}" for length in lengths)], [
        [cell, *(spread(own[length], ".2f") for length in lengths)] for cell, own in found["accuracy"].items()]


def gradients(length: int = 40, seeds: int = 3, steps: int = 200, rows: int = 4) -> Numbers:
    """The norms of dh_N / ds_{N-k} for each cell before and after the same training, medians over rows, by k."""
    flows: dict[str, dict[str, list[list[float]]]] = {}
    task = First(length)
    for cell in CELLS:
        flows[cell] = {"new": [], "trained": []}
        for seed in range(seeds):
            ids = task.batch(rows, torch.Generator().manual_seed(1000 + seed)).inputs
            for when, count in (("new", 0), ("trained", steps)):
                model, _ = _taught(task, cell, seed, count)
                with torch.no_grad():
                    x = model.embedding(ids)
                flows[cell][when].append(gradient_flow(model.recurrence, x).median(1).values.tolist())
    return {"flow": flows, "length": length, "steps": steps}


def judge_gradients(found: Numbers) -> Verdict:
    """After the same training, more of the gradient arrives at the first step of the LSTM than of the RNN."""
    arrived = {cell: middle([norms[-1] for norms in found["flow"][cell]["trained"]]) for cell in ("rnn", "lstm")}
    times = arrived["lstm"] / arrived["rnn"] if arrived["rnn"] else math.inf
    return Verdict(times > 1, f"{found['length']} steps back, after the same training, {arrived['lstm']:.2g} of a "
                   f"gradient arrives in the LSTM and {arrived['rnn']:.2g} in the RNN: {times:.2g} times as much")


def shown_gradients(found: Numbers) -> tuple[list[str], Rows]:
    places = [0, found["length"] // 4, found["length"] // 2, found["length"]]
    rows = [[cell, when, *(spread([norms[place] for norms in own[when]], ".1e") for place in places)]
            for cell, own in found["flow"].items() for when in ("new", "trained")]
    return ["cell", "", *(f"{place} steps back" for place in places)], rows


def _taught(task: MemoryTask, cell: str, seed: int, steps: int) -> tuple[Recurrent, float]:
    """The network after so many steps, and its accuracy."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Recurrent(task, cell)
        if steps == 0:
            return model, math.nan
        lesson = train_model(model, task, MemoryBudget(steps=steps, rows=32, validation_rows=256, every=50), seed, RATE)
    assert lesson.accuracy is not None
    return model, lesson.accuracy


CLAIMS = {
    "forgets": Claim("A vanilla RNN forgets with length.", forgets, judge_forgets, shown_forgets),
    "gradients": Claim("An LSTM carries gradients further than a vanilla RNN.", gradients, judge_gradients,
                       shown_gradients),
}
