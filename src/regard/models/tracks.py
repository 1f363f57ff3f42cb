"""A forecaster of tracks: from the observed steps of many agents to several futures of each.

    past (A, T, 2) ── frame of each agent ── tokens (time, agent) of the agent and its neighbours ── agent-aware layers
         ──► state of each agent ── + query of each future ── residual to its anchor, and a logit
                                 └─ + query of each joint future ── attention between agents ── the same

Every agent has a frame of its own (`AgentFrame`): the origin is its last point, the first axis its last direction, and
lengths are divided by its speed; only observed points are used. In this frame it sees itself and its nearest
neighbours, as tokens (time, agent), so the poses of the neighbours are relative to it. Agent-aware attention
(`regard.attention.agent_aware`) tells its own tokens from those of others. Anchors are typical futures (k-means), one
set for agents that walk and one for those that stand. Joint futures have queries of the scene: future k of all agents
belongs together.

Agents of several scenes are one batch; `scene` says which belong together. The model knows nothing of files or frames
per second; lengths are in units of the data's usual step.

Legend: A agents of all scenes, M an agent and its neighbours, T observed steps, P predicted steps, K futures, D width.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from regard.attention.agent_aware import AgentAwareAttention
from regard.attention.layer import Attention
from regard.blocks.feed_forward import PlainFeedForward
from regard.blocks.sublayer import PreNorm, make_norm
from regard.config import Config, integer, probability

STANDING = 0.25
"""An agent stands if it moves less than this many units in its last step."""
SOFT_SPEED = 0.5
"""Lengths are divided by √(speed² + this²), in units: a slow agent may still start to walk."""
FAR = 8.0
"""Positions of neighbours are divided by this many units."""
FEATURES = 8
JOINT_SPREAD = 0.5
"""How far joint anchors are from their mean, as a share of the distance of the anchors."""


class AgentFrame(NamedTuple):
    """The frame of each agent: from positions in the scene to its own, and back."""

    origin: Tensor
    """(A, 2): its last point."""
    axes: Tensor
    """(A, 2, 2): its last direction, and the direction to the left of that."""
    scale: Tensor
    """(A,): the length that is 1 in its frame."""
    stands: Tensor
    """(A,): whether it stands."""

    @classmethod
    def of(cls, past: Tensor, unit: Tensor | float) -> "AgentFrame":
        """The frames of agents (A, T, 2) by their last two points; an agent with one point stands and looks along x."""
        last = past[:, -1]
        step = (last - past[:, -2]).nan_to_num() if past.shape[1] > 1 else torch.zeros_like(last)
        speed = step.norm(dim=-1)
        still = speed <= 1e-6 * unit
        along_x = torch.zeros_like(last)
        along_x[:, 0] = 1.0
        forward = torch.where(still.unsqueeze(-1), along_x, step / speed.clamp(min=1e-30).unsqueeze(-1))
        left = torch.stack([-forward[:, 1], forward[:, 0]], -1)
        scale = (speed.square() + (SOFT_SPEED * unit) ** 2).sqrt()
        return cls(last, torch.stack([forward, left], 1), scale, speed < STANDING * unit)

    def turn(self, vectors: Tensor) -> Tensor:
        """Vectors (A, ..., 2) of the scene along the axes of each agent, in lengths of the scene."""
        return torch.einsum("aij,a...j->a...i", self.axes, vectors)

    def enter(self, points: Tensor) -> Tensor:
        """Points (A, ..., 2) of the scene in the frame of each agent."""
        one = (slice(None), *(None,) * (points.dim() - 2))
        return self.turn(points - self.origin[one]) / self.scale[(*one, None)]

    def leave(self, points: Tensor) -> Tensor:
        """Points (A, ..., 2) of the frame of each agent in the scene."""
        one = (slice(None), *(None,) * (points.dim() - 2))
        return torch.einsum("aji,a...j->a...i", self.axes, points * self.scale[(*one, None)]) + self.origin[one]


class Futures(NamedTuple):
    """Several futures of each agent, in the coordinates of the scene."""

    points: Tensor
    """(A, K, P, 2)"""
    logits: Tensor
    """(A, K); the same for all agents of a scene where the futures are joint."""


class AgentBlock(nn.Module):
    """A pre-norm block of agent-aware attention and a feed-forward layer, for the tokens of one agent among others."""

    def __init__(self, width: int, heads: int, ffn_width: int, dropout: float) -> None:
        super().__init__()
        self.attention = AgentAwareAttention(width, heads=heads)
        self.around_attention = PreNorm(make_norm("layer", width), dropout)
        self.feed_forward = PlainFeedForward(width, ffn_width, activation="gelu")
        self.around_feed_forward = PreNorm(make_norm("layer", width), dropout)

    def forward(self, x: Tensor, others: Tensor, agents: Tensor, present: Tensor) -> Tensor:
        """The tokens of an agent (A, T, D) after they attended to themselves and to those of its neighbours.

        Args:
            others: the tokens of the neighbours, (A, N, D), normalised.
            agents: (T + N,): the agent of each token, its own first.
            present: (A, T + N): which tokens exist.
        """
        steps = x.shape[1]

        def attend(normed: Tensor) -> Tensor:
            context = torch.cat([normed, others], 1)
            return self.attention(normed, context, agents=agents[:steps], context_agents=agents,
                                  mask=present[:, None, :])

        return self.around_feed_forward(self.around_attention(x, attend), self.feed_forward)


class TrackForecaster(nn.Module):
    """Futures of many agents from their observed steps.

    Args:
        config: the sizes of the model.
    """

    unit: Tensor
    """The usual step of the data."""
    anchors: Tensor
    """(2, K, P, 2): typical futures of agents that walk and that stand, in their frames."""
    joint_anchors: Tensor
    """(2, K, P, 2): anchors of joint futures, nearer to their mean: what a whole scene shares is less extreme."""
    regressions: Tensor
    """(2, K, 2T + 1, 2P): the linear baseline, which is kept to be shown beside the model."""

    def __init__(self, config: "TracksConfig") -> None:
        super().__init__()
        self.config = config
        width, futures, steps = config.width, config.num_futures, config.predicted_steps
        self.embed, self.embed_others = (nn.Sequential(nn.Linear(FEATURES, width), nn.GELU(), nn.Linear(width, width))
                                         for _ in range(2))
        self.time = nn.Parameter(torch.randn(config.observed_steps, width) * 0.02)
        self.blocks = nn.ModuleList(AgentBlock(width, config.heads, config.ffn_width, config.dropout)
                                    for _ in range(config.layers))
        self.others_norm = nn.LayerNorm(width)
        self.history = nn.Linear(config.observed_steps * 3, width)
        self.norm = nn.LayerNorm(width)
        self.query = nn.Parameter(torch.randn(2, futures, width) * 0.5)
        self.joint_query = nn.Parameter(torch.randn(futures, width) * 0.5)
        self.heads = nn.ModuleList(FutureHead(width, config.ffn_width, steps, config.dropout) for _ in range(2))
        self.between = Attention(width, heads=config.heads)
        self.around_between = PreNorm(make_norm("layer", width), config.dropout)
        self.register_buffer("unit", torch.ones(()))
        self.register_buffer("anchors", torch.zeros(2, futures, steps, 2))
        self.register_buffer("joint_anchors", torch.zeros(2, futures, steps, 2))
        self.register_buffer("regressions", torch.zeros(2, futures, 2 * config.observed_steps + 1, 2 * steps))

    def set_anchors(self, unit: float, anchors: Tensor, regressions: Tensor) -> None:
        """Set what the model takes from the data before it is trained; the arguments are the buffers of these names."""
        self.unit.fill_(unit)
        self.anchors.copy_(anchors)
        self.regressions.copy_(regressions)
        mean = anchors.mean(1, keepdim=True)
        self.joint_anchors.copy_(mean + JOINT_SPREAD * (anchors - mean))

    def neighbours(self, past: Tensor, scene: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """The nearest neighbours (C, M) of the chosen agents (C,), and which of these exist."""
        last = past[:, -1]
        own = chosen.unsqueeze(1) == torch.arange(len(past), device=past.device)
        apart = (scene[chosen].unsqueeze(1) != scene) | own
        distance = torch.cdist(last[chosen], last).masked_fill(apart, torch.inf)
        near = distance.topk(min(self.config.neighbours, len(past)), largest=False)
        return near.indices, near.values < torch.inf

    def features(self, points: Tensor, frame: AgentFrame) -> Tensor:
        """The features (C, M, T, F) of points (C, M, T, 2) in the frame of each agent; zeros where none is."""
        place = frame.turn(points - frame.origin[:, None, None]) / self.unit
        step = torch.cat([torch.zeros_like(place[:, :, :1]), place[:, :, 1:] - place[:, :, :-1]], 2).nan_to_num()
        place = place.nan_to_num()
        scale = (frame.scale / self.unit)[:, None, None, None].expand(*place.shape[:-1], 1)
        distance = (place.square().sum(-1, keepdim=True) + 1e-12).sqrt()
        return torch.cat([place / FAR, step, step / scale, (distance / FAR).log1p(), scale], -1)

    def states(self, past: Tensor, scene: Tensor, frame: AgentFrame, chosen: Tensor) -> Tensor:
        """The states (C, D) of the chosen agents (C,), which see all agents of their scene; `frame` is theirs."""
        own_past = past[chosen]
        members, exist = self.neighbours(past, scene, chosen)
        seen = past[members][:, :, 1 - past.shape[1] % 2::2]  # neighbours at every second step, the last among them
        x = self.embed(self.features(own_past.unsqueeze(1), frame)).squeeze(1) + self.time
        others = self.embed_others(self.features(seen, frame)) + self.time[1 - past.shape[1] % 2::2]
        there = ~torch.cat([own_past[..., 0], seen[..., 0].masked_fill(~exist.unsqueeze(-1), torch.nan).flatten(1)],
                           1).isnan()
        numbers = torch.arange(1, members.shape[1] + 1, device=past.device).repeat_interleave(seen.shape[2])
        agents = torch.cat([numbers.new_zeros(x.shape[1]), numbers * self.config.agent_aware])
        others = self.others_norm(others.flatten(1, 2))
        for block in self.blocks:
            x = block(x, others, agents, there)
        own = frame.enter(own_past)
        history = torch.cat([own.nan_to_num(), (~own[..., :1].isnan()).to(own.dtype)], -1).flatten(1)
        return self.norm(x[:, -1]) + self.history(history)

    def forward(self, past: Tensor, scene: Tensor, chosen: Tensor | None = None) -> tuple[Futures, Futures]:
        """Futures of each agent by itself, and joint futures of the agents of each scene.

        Args:
            past: (A, T, 2), NaN where an agent is not there; all are there in the last step.
            scene: (A,): agents with the same number are in one scene.
            chosen: (C,): the numbers of the agents to predict; all by default. The others are only seen.
        """
        chosen = torch.arange(len(past), device=past.device) if chosen is None else chosen
        frame, scene_of = AgentFrame.of(past[chosen], self.unit), scene[chosen]
        state = self.states(past, scene, frame, chosen)
        kind = frame.stands.long()
        residual, logits = self.heads[0](state.unsqueeze(1) + self.query[kind])
        single = Futures(frame.leave(self.anchors[kind] + residual), logits)
        together = scene_of.unsqueeze(1) == scene_of
        shared = self.around_between(state, lambda normed: self.between(normed.unsqueeze(0), mask=together).squeeze(0))
        residual, logits = self.heads[1](shared.unsqueeze(1) + self.joint_query)
        joint = Futures(frame.leave(self.joint_anchors[kind] + residual), scene_means(logits, together))
        return single, joint


def scene_means(numbers: Tensor, together: Tensor) -> Tensor:
    """The numbers (A, K) of agents as means over the agents of the same scene; `together` (A, A) has those pairs."""
    share = together.to(numbers.dtype)
    return (share @ numbers) / share.sum(1, keepdim=True)


class FutureHead(nn.Module):
    """From the state of a future (..., D) to the residual of its points (..., P, 2) and its logit."""

    def __init__(self, width: int, ffn_width: int, steps: int, dropout: float) -> None:
        super().__init__()
        self.around = PreNorm(make_norm("layer", width), dropout)
        self.feed_forward = PlainFeedForward(width, ffn_width, activation="gelu")
        self.norm = nn.LayerNorm(width)
        self.points, self.logit = nn.Linear(width, steps * 2), nn.Linear(width, 1)
        nn.init.normal_(self.points.weight, std=0.01)
        nn.init.zeros_(self.points.bias)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """(..., K, D) -> (..., K, P, 2) and (..., K)."""
        h = self.norm(self.around(state, self.feed_forward))
        return self.points(h).unflatten(-1, (-1, 2)), self.logit(h).squeeze(-1)


@dataclass(frozen=True, kw_only=True)
class TracksConfig(Config):
    """Config of a forecaster of tracks."""

    kind: ClassVar[str] = "tracks"
    observed_steps: int = integer(8, minimum=2)
    """Time steps that the model observes."""
    predicted_steps: int = integer(12, minimum=1)
    """Time steps that it predicts."""
    num_futures: int = integer(20, minimum=1)
    """Futures of each agent."""
    neighbours: int = integer(8, minimum=0)
    """Nearest agents that an agent attends to; 0 for none."""
    agent_aware: bool = True
    """Whether an agent has other projections for its own tokens than for those of its neighbours."""
    width: int = integer(minimum=1)
    """Width of the model (d_model): features of each token."""
    heads: int = integer(4, minimum=1)
    """Attention heads."""
    layers: int = integer(2, minimum=1)
    """Layers of the encoder."""
    ffn_width: int = integer(128, minimum=1)
    """Width of the feed-forward layers."""
    dropout: float = probability(0.0)
    """Dropout of the output of every sublayer, before the residual connection."""

    @property
    def tokens(self) -> int:
        """The number of tokens that an agent attends to: its own, and those of its neighbours."""
        return self.observed_steps + self.neighbours * -(-self.observed_steps // 2)

    def build(self) -> TrackForecaster:
        """Build the model with new parameters."""
        return TrackForecaster(self)

    def parameters(self) -> int:
        """The number of parameters of the model, with the anchors and the linear baseline that are stored with it."""
        return _count_numbers(self)

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Pairs of a key and the reason why its value conflicts with another."""
        if self.width % self.heads:
            yield "heads", f"{self.heads} does not divide the width, {self.width}"


@cache
def _count_numbers(config: TracksConfig) -> int:
    """The numbers that are stored of a model, counted without allocating them."""
    with torch.device("meta"):
        return sum(tensor.numel() for tensor in config.build().state_dict().values())
