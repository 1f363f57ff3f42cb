"""One claim of order: self-attention does not know it, and position encodings give it.

Two measurements. Exactly: with its inputs in another order, the outputs are the same in that order, in float64. By
learning: two symbols stand among blanks, and every token is asked which of them comes first; half are right by chance.

Legend: B rows, N tokens, D width.
"""

import math

import torch
from torch import Tensor, nn

from claimed.claim import Claim, Numbers, Rows, Verdict, middle, spread
from regard.attention.layer import SelfAttentionConfig
from regard.blocks.feed_forward import FeedForwardConfig
from regard.blocks.stack import StackConfig
from regard.comparison.memory import MemoryBudget, train_model
from regard.comparison.memory_tasks import BLANK, MemoryBatch, MemoryTask
from regard.models.embedding import Embedding
from regard.position.encoding import PositionalEncoding, SinusoidalEncoding

WIDTH, RATE = 32, 3e-3
KINDS = ("no positions", "sinusoidal positions")


class Before(MemoryTask):
    """Two symbols among blanks: which is the first, asked at every token."""

    name, measure, unit, shortest = "before", "accuracy", "tokens of the sequence", 2

    @property
    def tokens(self) -> int:
        return self.length

    @property
    def symbols(self) -> int:
        return 3

    @property
    def outputs(self) -> int:
        return 2

    @property
    def chance(self) -> float:
        return math.log(2)

    @property
    def chance_accuracy(self) -> float:
        return 0.5

    def batch(self, rows: int, generator: torch.Generator) -> MemoryBatch:
        places = torch.rand(rows, self.length, generator=generator, device=generator.device).argsort(-1)[:, :2]
        ids = torch.full((rows, self.length), BLANK, device=generator.device)
        ids.scatter_(1, places, torch.tensor([1, 2], device=ids.device).expand(rows, 2))
        first = (places[:, 1] < places[:, 0]).long()
        asked = torch.ones_like(ids, dtype=torch.bool)
        return MemoryBatch(ids, first.unsqueeze(1).expand(-1, self.length), asked, asked)


class Looking(nn.Module):
    """Ids to outputs by self-attention in which every token sees all."""

    def __init__(self, task: MemoryTask, kind: str) -> None:
        super().__init__()
        assert task.symbols is not None
        places: PositionalEncoding | None = SinusoidalEncoding(WIDTH) if kind == KINDS[1] else None
        self.embedding = Embedding(task.symbols, WIDTH, positions=places, scale=True)
        self.stack = StackConfig(layers=2, mixer=SelfAttentionConfig(heads=2),
                                 feed_forward=FeedForwardConfig(ffn_width=2 * WIDTH)).build(WIDTH, causal=False)
        self.output = nn.Linear(WIDTH, task.outputs)

    def forward(self, ids: Tensor) -> Tensor:
        return self.output(self.stack(self.embedding(ids, torch.arange(ids.shape[1], device=ids.device))))


def positions(length: int = 16, seeds: int = 3, steps: int = 300) -> Numbers:
    """How far outputs of inputs in another order are from the outputs in that order; and how often it is right."""
    task = Before(length)
    error: dict[str, float] = {}
    accuracy: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with torch.random.fork_rng(devices=[]):
        for kind in KINDS:
            torch.manual_seed(0)
            model = Looking(task, kind).double()
            ids, order = torch.randint(0, 3, (4, length)), torch.randperm(length)
            with torch.no_grad():
                error[kind] = float((model(ids[:, order]) - model(ids)[:, order]).abs().max())
            for seed in range(seeds):
                torch.manual_seed(seed)
                budget = MemoryBudget(steps=steps, rows=32, validation_rows=256, every=50)
                lesson = train_model(Looking(task, kind), task, budget, seed, RATE)
                assert lesson.accuracy is not None
                accuracy[kind].append(lesson.accuracy)
    return {"error": error, "accuracy": accuracy, "length": length, "steps": steps}


def judge(found: Numbers) -> Verdict:
    """Equal to rounding and no better than chance without positions, neither with them."""
    without, given = KINDS
    right = {kind: middle(found["accuracy"][kind]) for kind in KINDS}
    held = (found["error"][without] < 1e-12 < 1e-6 < found["error"][given]
            and right[without] < 0.6 and right[given] > 0.9)
    return Verdict(held, f"in another order the outputs are the same to {found['error'][without]:.1e} without "
                   f"positions and differ by {found['error'][given]:.1e} with them; which symbol comes first is right "
                   f"in {right[without]:.0%} and {right[given]:.0%}")


def shown(found: Numbers) -> tuple[list[str], Rows]:
    return ["self-attention with", "difference in another order", "right about order"], [
        [kind, f"{found['error'][kind]:.1e}", spread(found["accuracy"][kind], ".2f")] for kind in KINDS]


CLAIMS = {"positions": Claim("Self-attention does not know order, and position encodings give it.", positions, judge,
                             shown)}
