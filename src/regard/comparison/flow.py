"""Gradient flow through a whole translator: how much of what it writes depends on each word that it read.

    d f_t / d x_i     f_t: what the output layer reads at step t; x_i: the embedding of token i of the source

Of the last step alone ("last"), and of all steps together ("all"), which is what a training feels. The size of a
Jacobian is the root of the mean square of v·J over directions v of length 1, here drawn at random: with the loss in the
place of v, a model that is sure of itself would seem to have none. Models differ in the size of their embeddings, so
what is told is each position's share, times the number of positions: 1 where all count alike. Positions of sentences
of different lengths are put together by how far along the source they are.

It knows encoder-decoders. For a cell alone, step by step, there is `regard.recurrence.gradient`.

Legend: B rows, N tokens of the source, n tokens of the target, D width.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from regard.models.contract import Tokens
from regard.tasks.translating import Translator

PARTS = 10
"""Into which a source is divided."""
DRAWS = 4
"""Directions that are drawn for each sentence."""
MOST = 16
"""Sentences, the longest ones."""


class Flow(NamedTuple):
    """Shares by tenths of the source, the first tenth first: 1 where all positions count alike."""

    last: tuple[float, ...]
    """Of the last step."""
    all: tuple[float, ...]
    """Of all steps."""
    sentences: int
    tokens: float
    """Of a source, on average."""


def source_flow(task: Translator, pairs: Sequence[tuple[str, str]]) -> Flow:
    """The flow through a model that reads these sources and targets; of the longest ones."""
    both = task.pair_tokenizer()
    rows = sorted(zip(both.source_ids([pair[0] for pair in pairs]), both.target_ids([pair[1] for pair in pairs]),
                      strict=True), key=lambda row: -len(row[0]))[:MOST]
    chance = torch.Generator().manual_seed(1)
    found: dict[str, list[np.ndarray]] = {"last": [], "all": []}
    for source, target in rows:
        norms = _norms(task, source, [task.start(), *target], chance)
        for name, norms_N in zip(found, norms, strict=True):
            found[name].append(_tenths(norms_N))
    mean = {name: tuple(float(value) for value in np.mean(one, axis=0)) for name, one in found.items()}
    return Flow(mean["last"], mean["all"], len(rows), float(np.mean([len(row[0]) for row in rows])))


def position_norms(task: Translator, source: Sequence[int], target: Sequence[int], directions: Tensor) -> Tensor:
    """The norms (N,) of the gradient of `directions` (n, D) · f at the embedding of each token of one source."""
    model, kept = task.model, list[Tensor]()
    embedding: nn.Module = model.encoder.embedding  # type: ignore[assignment,union-attr]

    def keep(_: nn.Module, __: object, made: Tensor) -> Tensor:
        kept.append(made.detach().requires_grad_())
        return kept[-1]

    modes = [(module, module.training) for module in model.modules()]
    hook = embedding.register_forward_hook(keep)
    try:
        model.eval()
        with torch.enable_grad():
            features_BnD = model.features(*(Tokens.of([row]).to(task.device)  # type: ignore[operator]
                                            for row in (source, target)))
            (gradient_BND,) = torch.autograd.grad((features_BnD[0] * directions.to(features_BnD)).sum(), kept[0])
    finally:
        hook.remove()
        for module, mode in modes:
            module.training = mode
    return gradient_BND[0].norm(dim=-1).double().cpu()


def _norms(task: Translator, source: Sequence[int], target: Sequence[int],
           chance: torch.Generator) -> tuple[Tensor, Tensor]:
    """Root mean squares over directions: of the last step, and of all."""
    width: int = task.config.width
    last_N, all_N = torch.zeros(len(source), dtype=torch.float64), torch.zeros(len(source), dtype=torch.float64)
    for _ in range(DRAWS):
        drawn = torch.randn(len(target), width, generator=chance)
        only = torch.zeros_like(drawn)
        only[-1] = drawn[-1]
        last_N += position_norms(task, source, target, only).square()
        all_N += position_norms(task, source, target, drawn).square()
    return (last_N / DRAWS).sqrt(), (all_N / DRAWS).sqrt()


def _tenths(norms_N: Tensor) -> np.ndarray:
    """The mean share of each tenth of the positions, times their number."""
    norms = norms_N.numpy()
    total = norms.sum()
    shares = norms * len(norms) / total if total > 0 else np.zeros_like(norms)
    middles = (np.arange(PARTS) + 0.5) / PARTS * len(shares) - 0.5
    return np.interp(middles, np.arange(len(shares)), shares)
