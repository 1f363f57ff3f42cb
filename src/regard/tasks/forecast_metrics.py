"""Metrics of forecasts: how far K futures are from the truth, agent by agent, and for a scene as a whole.

    ADE_k       mean distance over the predicted steps of future k            FDE_k   distance at the last step
    minADE      minimum over the futures, agent by agent; mean over agents    minFDE  the same of FDE
    top         ADE and FDE of the most probable future
    JADE, JFDE  the mean over the agents of a window, of one future k for all of them; minimum over k; mean over windows
    collisions  the share of agents whose path comes nearer than a limit to that of another agent, in joint futures

Two agents collide if their distance is below the limit at any time, also between two steps: both move on straight lines
there. minADE takes the best future of each agent for itself, so it does not tell whether futures fit together; JADE
does. All distances are in the units of the data.

Legend: A agents of a window, K futures, P predicted steps.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

COLLISION_DISTANCE = 0.2
"""Below this distance two agents collide, in the units of the data: metres, for people."""


class Displacements(NamedTuple):
    """The errors of each future of each agent, (A, K)."""

    ade: Tensor
    fde: Tensor


def displacements(points: Tensor, truth: Tensor) -> Displacements:
    """ADE and FDE of futures (A, K, P, 2) against the truth (A, P, 2)."""
    distance = (points - truth.unsqueeze(1)).norm(dim=-1)
    return Displacements(distance.mean(-1), distance[..., -1])


def closest_approach(paths: Tensor, starts: Tensor) -> Tensor:
    """The least distance of every pair of agents, (A, A), of paths (A, P, 2) that begin at `starts` (A, 2)."""
    track = torch.cat([starts.unsqueeze(1), paths], 1)
    apart = track.unsqueeze(1) - track.unsqueeze(0)  # (A, A, P + 1, 2)
    first, move = apart[:, :, :-1], apart[:, :, 1:] - apart[:, :, :-1]
    length = move.square().sum(-1)
    along = (-(first * move).sum(-1) / length.clamp(min=1e-12)).clamp(0.0, 1.0)
    return (first + along.unsqueeze(-1) * move).norm(dim=-1).amin(-1)


def collision_share(points: Tensor, starts: Tensor, limit: float = COLLISION_DISTANCE) -> float:
    """The share of agents that collide with another one, mean over joint futures (A, K, P, 2)."""
    if len(points) < 2:
        return 0.0
    own = torch.eye(len(points), dtype=torch.bool)
    hits = [(closest_approach(points[:, k], starts).masked_fill(own, torch.inf) < limit).any(1).double().mean()
            for k in range(points.shape[1])]
    return float(torch.stack(hits).mean())


@dataclass
class ForecastSums:
    """Sums of the metrics over windows."""

    limit: float = COLLISION_DISTANCE
    agents: int = 0
    windows: int = 0
    _sums: dict[str, float] = field(default_factory=dict)

    def add(self, single: Tensor, probabilities: Tensor | None, joint: Tensor, truth: Tensor, starts: Tensor) -> None:
        """Add the agents of a window.

        Args:
            single: futures of each agent by itself, (A, K, P, 2).
            probabilities: (A, K); None where no future is more probable than the others.
            joint: futures of all agents together, (A, K, P, 2).
            truth: (A, P, 2).
            starts: the last observed points, (A, 2).
        """
        errors, shared = displacements(single, truth), displacements(joint, truth)
        found = {"ade": float(errors.ade.amin(1).sum()), "fde": float(errors.fde.amin(1).sum()),
                 "jade": float(shared.ade.mean(0).amin()), "jfde": float(shared.fde.mean(0).amin()),
                 "collisions": collision_share(joint, starts, self.limit)}
        if probabilities is not None:
            best = probabilities.argmax(1, keepdim=True)
            found |= {"top_ade": float(errors.ade.gather(1, best).sum()),
                      "top_fde": float(errors.fde.gather(1, best).sum())}
        for name, value in found.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        self.agents += len(truth)
        self.windows += 1

    def means(self) -> dict[str, float]:
        """The metrics: of agents over all agents, of windows over all windows."""
        return {name: value / (self.windows if name in ("jade", "jfde", "collisions") else self.agents)
                for name, value in self._sums.items()}
