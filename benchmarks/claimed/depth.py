"""One claim of depth: a deep post-norm stack is harder to train than a pre-norm one.

Twelve blocks of self-attention learn to add two numbers, at several learning rates, with the same short warm-up. A case
is learned when the held-out loss falls below half of chance.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from claimed.claim import Claim, Numbers, Rows, Verdict, spread
from regard.attention.layer import SelfAttentionConfig
from regard.blocks.feed_forward import FeedForwardConfig
from regard.blocks.stack import StackConfig
from regard.comparison.memory import MemoryBudget, train_model
from regard.comparison.memory_tasks import AddingTask
from regard.position.rotary import RotaryConfig

WIDTH, LEARNED = 32, 0.5
ORDERS = ("post", "pre")


class Deep(nn.Module):
    """Numbers to outputs by a deep stack."""

    def __init__(self, order: str, layers: int) -> None:
        super().__init__()
        self.read = nn.Linear(2, WIDTH)
        mixer = SelfAttentionConfig(heads=2, position=RotaryConfig())
        self.stack = StackConfig(layers=layers, norm_position=order, mixer=mixer,
                                 feed_forward=FeedForwardConfig(ffn_width=2 * WIDTH)).build(WIDTH, causal=True)
        self.output = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.stack(self.read(x)))


def norms(layers: int = 12, rates: Sequence[float] = (3e-4, 1e-3, 3e-3, 1e-2), seeds: int = 1, steps: int = 150,
          length: int = 12) -> Numbers:
    """The held-out loss as a share of chance, by order and rate; 1e9 in the place of what is no number."""
    task = AddingTask(length)
    share: dict[str, dict[str, list[float]]] = {}
    for order in ORDERS:
        share[order] = {}
        for rate in rates:
            own = []
            for seed in range(seeds):
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(seed)
                    budget = MemoryBudget(steps=steps, rows=32, validation_rows=256, every=50)
                    loss = train_model(Deep(order, layers), task, budget, seed, rate).loss
                own.append(loss / task.chance if loss == loss else 1e9)
            share[order][f"{rate:g}"] = own
    return {"share": share, "layers": layers, "steps": steps}


def judge(found: Numbers) -> Verdict:
    """Pre-norm learned in more of the cases."""
    learned = {order: sum(value < LEARNED for own in found["share"][order].values() for value in own)
               for order in ORDERS}
    cases = sum(map(len, found["share"]["pre"].values()))
    return Verdict(learned["pre"] > learned["post"], f"of {cases} cases with {found['layers']} layers, pre-norm "
                   f"learned {learned['pre']} and post-norm {learned['post']}")


def shown(found: Numbers) -> tuple[list[str], Rows]:
    rates = list(found["share"]["pre"])
    return ["order", *(f"rate {rate}" for rate in rates)], [
        [order, *(spread(found["share"][order][rate], ".2f") for rate in rates)] for order in ORDERS]


CLAIMS = {"norms": Claim("A deep stack learns with pre-norm where it does not with post-norm.", norms, judge, shown)}
