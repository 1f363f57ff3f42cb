"""Metrics and baselines of forecasts, against literal loops and brute force."""

import math

import numpy as np
import pytest
import torch

from regard.models.tracks import SOFT_SPEED, AgentFrame
from regard.tasks.forecast_baselines import constant_velocity, fit_baselines, k_means
from regard.tasks.forecast_metrics import ForecastSums, closest_approach, collision_share

A, K, P, T = 4, 3, 5, 6


def test_metrics_equal_literal_loops() -> None:
    sums, expected = ForecastSums(limit=0.5), dict.fromkeys(
        ("ade", "fde", "top_ade", "top_fde", "jade", "jfde", "collisions"), 0.0)
    agents = 0
    for count in (A, 1, 2):
        single, joint = torch.randn(2, count, K, P, 2, dtype=torch.float64)
        truth, starts = torch.randn(count, P, 2, dtype=torch.float64), torch.randn(count, 2, dtype=torch.float64)
        odds = torch.rand(count, K)
        sums.add(single, odds, joint, truth, starts)
        agents += count
        for a in range(count):
            errors = [[math.dist(single[a, k, p], truth[a, p]) for p in range(P)] for k in range(K)]
            expected["ade"] += min(sum(one) / P for one in errors)
            expected["fde"] += min(one[-1] for one in errors)
            best = max(range(K), key=lambda k: float(odds[a, k]))
            expected["top_ade"] += sum(errors[best]) / P
            expected["top_fde"] += errors[best][-1]
        both = [[[math.dist(joint[a, k, p], truth[a, p]) for p in range(P)] for a in range(count)] for k in range(K)]
        expected["jade"] += min(sum(map(sum, one)) / P / count for one in both)
        expected["jfde"] += min(sum(row[-1] for row in one) / count for one in both)
        expected["collisions"] += sum(_collides(joint[:, k].numpy(), starts.numpy(), a, 0.5)
                                      for k in range(K) for a in range(count)) / K / count
    found = sums.means()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value / (3 if name in ("jade", "jfde", "collisions") else agents)), name


def _collides(paths: np.ndarray, starts: np.ndarray, agent: int, limit: float) -> bool:
    """Brute force: many points on every segment."""
    tracks = np.concatenate([starts[:, None], paths], 1)
    for other in range(len(paths)):
        for step in range(P) if other != agent else ():
            for share in np.linspace(0, 1, 2001):
                points = [tracks[one, step] * (1 - share) + tracks[one, step + 1] * share for one in (agent, other)]
                if math.dist(*points) < limit:
                    return True
    return False


def test_paths_that_cross_between_two_steps_collide() -> None:
    starts = torch.tensor([[0.0, 0.0], [1.0, 0.1]])
    swap = torch.tensor([[[1.0, 0.0]], [[0.0, 0.1]]])  # they pass each other; at the steps they are 1 apart
    assert float(closest_approach(swap, starts)[0, 1]) == pytest.approx(0.1)
    assert collision_share(swap.unsqueeze(1), starts) == 1.0
    assert collision_share(swap.unsqueeze(1), starts, 0.05) == 0.0
    assert collision_share(swap[:1].unsqueeze(1), starts[:1]) == 0.0


def test_the_frame_of_an_agent_moves_turns_and_scales() -> None:
    past = torch.randn(A, T, 2, dtype=torch.float64)
    points = torch.randn(A, K, P, 2, dtype=torch.float64)
    frame = AgentFrame.of(past, 0.4)
    own = frame.enter(points)
    for a in range(A):
        (dx, dy), (ox, oy) = (past[a, -1] - past[a, -2]).tolist(), past[a, -1].tolist()
        angle, scale = math.atan2(dy, dx), math.sqrt(dx * dx + dy * dy + (SOFT_SPEED * 0.4) ** 2)
        for k in range(K):
            for p in range(P):
                x, y = points[a, k, p, 0] - ox, points[a, k, p, 1] - oy
                turned = [x * math.cos(angle) + y * math.sin(angle), y * math.cos(angle) - x * math.sin(angle)]
                np.testing.assert_allclose(own[a, k, p].numpy(), np.array(turned) / scale, atol=1e-12)
    torch.testing.assert_close(frame.leave(own), points)


def test_the_frame_does_not_depend_on_the_scene_or_on_missing_points() -> None:
    past = torch.randn(A, T, 2, dtype=torch.float64)
    turn = torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=torch.float64)
    moved = past @ turn.T + 7.0
    for one, other in zip(AgentFrame.of(past, 1.0).enter(past), AgentFrame.of(moved, 1.0).enter(moved), strict=True):
        torch.testing.assert_close(one, other)
    past[0, :-1] = torch.nan
    frame = AgentFrame.of(past, 1.0)
    assert frame.stands[0]
    assert torch.isfinite(torch.cat([frame.axes.flatten(), frame.scale])).all()


def test_constant_velocity_repeats_the_last_step() -> None:
    past = torch.randn(A, T, 2, dtype=torch.float64)
    future = constant_velocity(past, P)
    for a in range(A):
        for p in range(P):
            expected = past[a, -1] + (p + 1) * (past[a, -1] - past[a, -2])
            torch.testing.assert_close(future[a, 0, p], expected)


def test_k_means_is_a_fixed_point_and_finds_separate_clusters() -> None:
    centres = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    points = (centres[:, None] + 0.1 * torch.randn(3, 50, 2)).flatten(0, 1)
    found = k_means(points, 3, torch.Generator().manual_seed(0))
    order = torch.cdist(centres.double(), found).argmin(1)
    assert sorted(order.tolist()) == [0, 1, 2]
    for cluster in range(3):
        torch.testing.assert_close(found[order[cluster]], points[50 * cluster:50 * cluster + 50].double().mean(0))
    same = k_means(torch.ones(5, 2), 4, torch.Generator().manual_seed(0))
    assert (same == 1).all()
    assert k_means(torch.zeros(0, 2), 4, torch.Generator()).shape == (4, 2)


def test_one_linear_regression_equals_least_squares() -> None:
    torch.set_default_dtype(torch.float64)
    steps = torch.rand(400, T + P, 2) * 0.2 + torch.tensor([1.0, 0.0])
    tracks = steps.cumsum(1)
    tracks[:, T:] = tracks[:, T - 1:T] + 2.0 * (tracks[:, T - 1:T] - tracks[:, :1]) * torch.arange(1, P + 1)[:, None]
    past, future = tracks[:, :T], tracks[:, T:]
    fitted = fit_baselines(past, future, None, 1.0, futures=1)
    torch.testing.assert_close(fitted.linear_futures(past, 1.0)[:, 0], future, atol=0.03, rtol=0)  # the ridge


def test_several_regressions_find_several_behaviours() -> None:
    torch.set_default_dtype(torch.float64)
    speed = torch.rand(300, 1, 1) + 0.5
    past = speed * torch.arange(T)[None, :, None] * torch.tensor([1.0, 0.0])
    turns = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.6, -0.8]])[torch.arange(300) % 3]
    future = past[:, -1:] + speed * torch.arange(1, P + 1)[None, :, None] * turns[:, None]
    fitted = fit_baselines(past, future, (past, future), 1.0, futures=3)
    error = (fitted.linear_futures(past, 1.0) - future.unsqueeze(1)).norm(dim=-1).mean(-1).amin(1)
    assert float(error.max()) < 0.05
    one = (constant_velocity(past, P) - future.unsqueeze(1)).norm(dim=-1).mean(-1).amin(1)
    assert float(one.mean()) > 0.5
