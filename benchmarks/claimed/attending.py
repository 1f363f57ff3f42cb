"""Claims of the parts of attention: the normaliser, the score, its scaling, the heads.

Everything but the part is the same: two causal self-attention blocks with rotary positions, and associative recall or
copying to learn. What is compared is the accuracy on new sequences after the same steps, with several seeds.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

import regard
from claimed.claim import Claim, Numbers, Rows, Verdict, clearly, middle, spread
from regard.attention.layer import SelfAttentionConfig
from regard.comparison.memory import MemoryBudget, MemoryMixer, MemoryModel, train_model
from regard.comparison.memory_tasks import make_task as made
from regard.position.rotary import RotaryConfig

RATE = 5e-3
NORMALISERS = ("softmax", "relu", "relu_sum")
SCORES = ("dot", "scaled_dot", "scaled_dot_d", "additive")
Seeds = int | Sequence[int]
"""How many, from 0, or which."""


def normalisers(length: int = 32, width: int = 64, seeds: Seeds = 3, steps: int = 400) -> Numbers:
    """Recall with each normaliser, one head."""
    return {"accuracy": {name: _accuracies("recall", length, width, seeds, steps, {"heads": 1, "normalize": name})
                         for name in NORMALISERS}, "steps": steps}


def judge_normalisers(found: Numbers) -> Verdict:
    """Softmax is clearly the highest."""
    right = {name: middle(own) for name, own in found["accuracy"].items()}
    others = [value for name, own in found["accuracy"].items() if name != "softmax" for value in own]
    why = ("softmax {softmax:.2f}, ReLU over the number of keys {relu:.2f}, ReLU over its sum "
           "{relu_sum:.2f}").format_map(right)
    return Verdict(clearly(found["accuracy"]["softmax"], others), why)


def scores(length: int = 32, width: int = 64, seeds: Seeds = 3, steps: int = 250) -> Numbers:
    """Recall with each score, one head as wide as the model."""
    return {"accuracy": {name: _accuracies("recall", length, width, seeds, steps, {"heads": 1, "score": name})
                         for name in SCORES}, "steps": steps, "width": width}


def judge_scores(found: Numbers) -> Verdict:
    """Dot / √d is clearly better than dot alone or than dot / d, and neither is clearly better than it."""
    right = {name: middle(own) for name, own in found["accuracy"].items()}
    own, others = found["accuracy"]["scaled_dot"], [found["accuracy"][name] for name in ("dot", "scaled_dot_d")]
    held = any(clearly(own, other) for other in others) and not any(clearly(other, own) for other in others)
    return Verdict(held, "dot {dot:.2f}, dot / √d {scaled_dot:.2f}, dot / d {scaled_dot_d:.2f}, additive "
                   "{additive:.2f}".format_map(right))


def scaling(widths: Sequence[int] = (16, 64, 256, 1024), keys: int = 64, queries: int = 256) -> Numbers:
    """Queries and keys by chance: the largest weight of a row, and how much of a gradient its softmax lets through."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for score in ("dot", "scaled_dot", "scaled_dot_d"):
        found[score] = {}
        for width in widths:
            generator = torch.Generator().manual_seed(width)
            query, key = (torch.randn(count, width, generator=generator) for count in (queries, keys))
            weights = regard.attention_weights(query, key, score=score)
            # ∂w_i/∂e_j = w_i (δ_ij - w_j): its trace is 1 - Σ w², the most that comes through when it is near 1.
            found[score][str(width)] = {"largest": float(weights.amax(-1).mean()),
                                        "through": float((1 - weights.square().sum(-1)).mean())}
    return {"by": found, "keys": keys}


def judge_scaling(found: Numbers) -> Verdict:
    """From the narrowest to the widest, dot loses more than half of what it lets through, dot / √d under a tenth."""
    low, high = (str(pick(map(int, found["by"]["dot"]))) for pick in (min, max))
    kept = {score: own[high]["through"] / own[low]["through"] for score, own in found["by"].items()}
    return Verdict(kept["dot"] < 0.5 and abs(kept["scaled_dot"] - 1) < 0.1,
                   f"from width {low} to {high} the softmax of dot keeps {kept['dot']:.0%} of what it lets through, "
                   f"that of dot / √d {kept['scaled_dot']:.0%}")


def heads(tasks: Mapping[str, int] | None = None, width: int = 64, counts: Sequence[int] = (1, 4, 8),
          seeds: Seeds = 2, steps: int = 400) -> Numbers:
    """Recall and copying with several heads, which share the width."""
    asked = {"recall": 32, "copy": 10} if tasks is None else tasks
    return {"accuracy": {name: {str(count): _accuracies(name, length, width, seeds, steps, {"heads": count})
                                for count in counts} for name, length in asked.items()}, "width": width, "steps": steps}


def judge_heads(found: Numbers) -> Verdict:
    """In every task some number of heads above one is clearly better than one."""
    said, held = [], True
    for name, own in found["accuracy"].items():
        best = max((count for count in own if count != "1"), key=lambda count: middle(own[count]))
        held = held and clearly(own[best], own["1"])
        said.append(f"{name}: one head {middle(own['1']):.2f}, {best} heads {middle(own[best]):.2f}")
    return Verdict(held, "; ".join(said))


def _accuracies(task: str, length: int, width: int, seeds: Seeds, steps: int,
                options: Mapping[str, Any]) -> list[float]:
    """The accuracy of each seed."""
    mixer = MemoryMixer(SelfAttentionConfig(**options, position=RotaryConfig()), lambda tokens: 2, RATE)
    found = []
    for seed in range(seeds) if isinstance(seeds, int) else seeds:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            problem = made(task, length)
            budget = MemoryBudget(steps=steps, rows=32, validation_rows=256, every=50)
            lesson = train_model(MemoryModel(problem, mixer, width), problem, budget, seed, mixer.rate)
        assert lesson.accuracy is not None
        found.append(lesson.accuracy)
    return found


def _shown(found: Numbers) -> tuple[list[str], Rows]:
    return ["", "accuracy"], [[name, spread(own, ".2f")] for name, own in found["accuracy"].items()]


def _shown_scaling(found: Numbers) -> tuple[list[str], Rows]:
    widths = list(found["by"]["dot"])
    return ["score", *(f"d {width}: largest, through" for width in widths)], [
        [score, *(f"{own[width]['largest']:.2f}, {own[width]['through']:.2f}" for width in widths)]
        for score, own in found["by"].items()]


def _shown_heads(found: Numbers) -> tuple[list[str], Rows]:
    counts = list(next(iter(found["accuracy"].values())))
    return ["task", *(f"{count} heads" for count in counts)], [
        [name, *(spread(own[count], ".2f") for count in counts)] for name, own in found["accuracy"].items()]


CLAIMS = {
    "normalisers": Claim("Softmax is the better normaliser, ReLU works too.", normalisers, judge_normalisers, _shown),
    "scaling": Claim("Dot products grow with their width and close the softmax; dot / √d keeps it open.", scaling,
                     judge_scaling, _shown_scaling),
    "scores": Claim("Scores are best divided by the root of their width.", scores, judge_scores, _shown),
    "heads": Claim("More heads of the same width in all do better than one.", heads, judge_heads, _shown_heads),
}
