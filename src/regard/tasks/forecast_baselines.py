"""Forecasts that need no network, to be shown beside every model.

    constant velocity    the last step again and again: one future
    k-means              K typical futures in the frame of the agent, the same for all; nothing is learned of its past
    linear               K linear regressions from the past of the agent to its future, each fitted to the futures that
                         it predicts best; ridge chosen on the validation data

All see one agent at a time, and know nothing of its neighbours. They are hard to beat by the best of 20 futures, so a
model that is not better has learned nothing. Agents that stand have centres and regressions of their own.

Legend: A agents, T observed steps, P predicted steps, K futures, S kinds: walking, standing.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from regard.models.tracks import AgentFrame

ITERATIONS = 30
REFITS = 15
RIDGES = (0.01, 0.1, 1.0, 10.0, 100.0)
MAX_CLUSTERED = 20_000
"""Futures that k-means looks at."""


def constant_velocity(past: Tensor, steps: int) -> Tensor:
    """The future (A, 1, P, 2) of agents (A, T, 2) that repeat their last step."""
    step = (past[:, -1] - past[:, -2]).nan_to_num()
    times = torch.arange(1, steps + 1, dtype=past.dtype)
    return (past[:, -1, None] + times[:, None] * step[:, None]).unsqueeze(1)


def k_means(points: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """The centres (K, D) of points (N, D): k-means++ and Lloyd's iterations. Few points are repeated."""
    points = points.double()
    if not len(points):
        return torch.zeros(count, points.shape[1], dtype=torch.float64)
    if len(points) > MAX_CLUSTERED:
        points = points[torch.randperm(len(points), generator=generator)[:MAX_CLUSTERED]]
    centres = points[torch.randint(len(points), (1,), generator=generator)]
    nearest = (points - centres[0]).square().sum(1)
    while len(centres) < count:
        if float(nearest.sum()) <= 0:  # fewer distinct points than centres
            centres = torch.cat([centres, centres[len(centres) % max(1, len(points.unique(dim=0)))].unsqueeze(0)])
            continue
        chosen = points[torch.multinomial(nearest, 1, generator=generator)]
        centres = torch.cat([centres, chosen])
        nearest = torch.minimum(nearest, (points - chosen).square().sum(1))
    for _ in range(ITERATIONS):
        owner = torch.cdist(points, centres).argmin(1)
        counts = torch.bincount(owner, minlength=count).unsqueeze(1)
        sums = torch.zeros_like(centres).index_add_(0, owner, points)
        centres = torch.where(counts > 0, sums / counts.clamp(min=1), centres)
    return centres


class Baselines(NamedTuple):
    """What the baselines learned: typical futures, and linear regressions, of agents that walk and that stand."""

    centres: Tensor
    """(S, K, P, 2)"""
    regressions: Tensor
    """(S, K, 2T + 1, 2P): from the past in the frame of the agent, and a 1, to its future there."""

    def k_means_futures(self, past: Tensor, unit: Tensor | float) -> Tensor:
        """The futures (A, K, P, 2) of agents (A, T, 2)."""
        frame = AgentFrame.of(past, unit)
        return frame.leave(self.centres.to(past)[frame.stands.long()])

    def linear_futures(self, past: Tensor, unit: Tensor | float) -> Tensor:
        """The futures (A, K, P, 2) of agents (A, T, 2)."""
        frame = AgentFrame.of(past, unit)
        maps = self.regressions.to(past)[frame.stands.long()]
        return frame.leave(torch.einsum("af,akfp->akp", _inputs(past, frame), maps).unflatten(-1, (-1, 2)))


def _inputs(past: Tensor, frame: AgentFrame) -> Tensor:
    """(A, 2T + 1); zeros where an agent was not there."""
    own = frame.enter(past).nan_to_num().flatten(1)
    return torch.cat([own, torch.ones_like(own[:, :1])], 1)


def fit_baselines(past: Tensor, future: Tensor, validation: tuple[Tensor, Tensor] | None, unit: Tensor | float,
                  futures: int, seed: int = 0) -> Baselines:
    """Fit both baselines to agents (A, T, 2) with their futures (A, P, 2).

    Args:
        validation: past and future of other agents, by which the ridge is chosen; the training data without them.
        unit: the usual step.
    """
    past, future = past.double(), future.double()
    generator = torch.Generator().manual_seed(seed)
    frame = AgentFrame.of(past, unit)
    own = frame.enter(future).flatten(1)
    centres = torch.stack([k_means(own[frame.stands == kind], futures, generator) for kind in (False, True)])
    chosen = past, future
    if validation is not None and len(validation[0]):
        chosen = validation[0].double(), validation[1].double()
    best: tuple[float, Baselines] | None = None
    for ridge in RIDGES:
        maps = torch.stack([_fit_linear(_inputs(past, frame)[frame.stands == kind], own[frame.stands == kind],
                                        frame.scale[frame.stands == kind], centres[int(kind)], ridge)
                            for kind in (False, True)])
        fitted = Baselines(centres.unflatten(-1, (-1, 2)), maps)
        distance = (fitted.linear_futures(chosen[0], unit) - chosen[1].unsqueeze(1)).norm(dim=-1)
        error = float(distance.mean(-1).amin(1).mean() + distance[..., -1].amin(1).mean())
        if best is None or error < best[0]:
            best = error, fitted
    assert best is not None
    return best[1]


def _fit_linear(inputs: Tensor, targets: Tensor, scale: Tensor, centres: Tensor, ridge: float) -> Tensor:
    """K regressions (K, 2T + 1, 2P), each of the agents that it predicts best; it starts from the centres."""
    constant = torch.zeros(len(centres), inputs.shape[1], targets.shape[1], dtype=torch.float64)
    constant[:, -1] = centres
    if not len(inputs):
        return constant
    maps, weight = constant, scale.square().unsqueeze(1)  # squared errors in the units of the data
    for _ in range(REFITS):
        error = (torch.einsum("af,kfp->akp", inputs, maps) - targets.unsqueeze(1)).unflatten(-1, (-1, 2)).norm(dim=-1)
        owner = (error.mean(-1) + error[..., -1]).argmin(1)
        fitted = []
        for number, before in enumerate(maps):
            mine = owner == number
            x, y, w = inputs[mine], targets[mine], weight[mine]
            penalty = ridge * torch.eye(x.shape[1], dtype=torch.float64) * weight.mean()
            penalty[-1, -1] = 1e-9
            fitted.append(torch.linalg.solve((x * w).mT @ x + penalty, (x * w).mT @ y) if int(mine.sum()) else before)
        maps = torch.stack(fitted)
    return maps
