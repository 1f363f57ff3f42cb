"""The forecaster of tracks: what must change nothing changes nothing."""

import dataclasses

import pytest
import torch

import regard
from regard.models.tracks import TrackForecaster, TracksConfig

CONFIG = TracksConfig(observed_steps=5, predicted_steps=4, num_futures=3, neighbours=3, width=16, heads=2, ffn_width=16)


@pytest.fixture
def model() -> TrackForecaster:
    """A model in float64 with anchors."""
    torch.set_default_dtype(torch.float64)
    built = CONFIG.build().eval()
    built.set_anchors(0.4, torch.randn_like(built.anchors), torch.randn_like(built.regressions))
    return built


def draw(agents: int) -> torch.Tensor:
    return torch.randn(agents, 1, 2) * 3 + (torch.rand(agents, CONFIG.observed_steps, 2) * 0.5).cumsum(1)


def futures(model: TrackForecaster, past: torch.Tensor, scene: torch.Tensor | None = None) -> list[torch.Tensor]:
    """Points and logits, single and joint."""
    with torch.no_grad():
        single, joint = model(past, torch.zeros(len(past), dtype=torch.long) if scene is None else scene)
    return [*single, *joint]


def test_shapes_and_parameters(model: TrackForecaster) -> None:
    points, logits, joint, joint_logits = futures(model, draw(6))
    assert points.shape == joint.shape == (6, 3, 4, 2)
    assert logits.shape == joint_logits.shape == (6, 3)
    assert (joint_logits == joint_logits[:1]).all()
    assert CONFIG.parameters() == sum(tensor.numel() for tensor in model.state_dict().values())


def test_a_moved_turned_scene_has_moved_turned_futures(model: TrackForecaster) -> None:
    past = draw(6)
    turn, move = torch.tensor([[0.28, -0.96], [0.96, 0.28]]), torch.tensor([40.0, -7.0])
    before, after = futures(model, past), futures(model, past @ turn.T + move)
    for number in (0, 2):
        torch.testing.assert_close(after[number], before[number] @ turn.T + move, rtol=1e-8, atol=1e-8)
    for number in (1, 3):
        torch.testing.assert_close(after[number], before[number], rtol=1e-8, atol=1e-8)


def test_scenes_do_not_see_each_other_and_order_changes_nothing(model: TrackForecaster) -> None:
    past, other = draw(5), draw(7)
    alone = futures(model, past)
    scene = torch.tensor([0] * 5 + [4] * 7)
    both = futures(model, torch.cat([past, other]), scene)
    order = torch.randperm(12)
    mixed = futures(model, torch.cat([past, other])[order], scene[order])
    for one, two, three in zip(alone, both, mixed, strict=True):
        torch.testing.assert_close(two[:5], one, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(three, two[order], rtol=1e-9, atol=1e-9)


def test_neighbours_change_futures_unless_they_are_masked(model: TrackForecaster) -> None:
    past = draw(4)
    moved = past.clone()
    moved[1:] += 0.7
    assert not torch.allclose(futures(model, past)[0][0], futures(model, moved)[0][0])
    alone = dataclasses.replace(CONFIG, neighbours=0).build().eval()
    alone.load_state_dict(model.state_dict())
    torch.testing.assert_close(futures(alone, past)[0][0], futures(alone, moved)[0][0])
    torch.testing.assert_close(futures(alone, past)[0][:1], futures(alone, past[:1])[0])


def test_agents_beyond_the_nearest_change_nothing(model: TrackForecaster) -> None:
    past = draw(4)
    far = draw(2) + 500.0
    torch.testing.assert_close(futures(model, torch.cat([past, far]))[0][:4], futures(model, past)[0])


def test_missing_steps_are_finite_and_what_is_stored_there_is_not_read(model: TrackForecaster) -> None:
    past = draw(4)
    past[0, :3] = torch.nan
    past[1, 1] = torch.nan
    past[2, :4] = torch.nan  # one point only
    found = futures(model, past)
    assert all(tensor.isfinite().all() for tensor in found)
    for parameter in model.parameters():
        parameter.requires_grad_()
    single, joint = model(past, torch.zeros(4, dtype=torch.long))
    (single.points.sum() + joint.points.sum() + joint.logits.sum()).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_some_agents_are_predicted_and_the_others_only_seen(model: TrackForecaster) -> None:
    past, chosen = draw(6), torch.tensor([4, 1])
    with torch.no_grad():
        single, _ = model(past, torch.zeros(6, dtype=torch.long), chosen)
    torch.testing.assert_close(single.points, futures(model, past)[0][chosen])


def test_without_agent_awareness_the_second_projections_are_not_used(model: TrackForecaster) -> None:
    past = draw(4)
    plain = dataclasses.replace(CONFIG, agent_aware=False).build().eval()
    plain.load_state_dict(model.state_dict())
    before = futures(plain, past)[0]
    assert not torch.allclose(before, futures(model, past)[0])
    for block in plain.blocks:
        torch.nn.init.normal_(block.attention.query_other.weight)
    torch.testing.assert_close(futures(plain, past)[0], before)


def test_the_recipe_is_built() -> None:
    built = regard.build("tracks", observed_steps=4, num_futures=5)
    single, _ = built(torch.randn(3, 4, 2), torch.zeros(3, dtype=torch.long))
    assert single.points.shape == (3, 5, 12, 2)
    with pytest.raises(regard.ConfigError, match="heads"):
        regard.build("tracks", heads=5)
