"""`Forecaster`: predictions from files and from Python, evaluation beside baselines, and who looks at whom."""

from pathlib import Path

import numpy as np
import pytest
import torch

import regard
from regard.data.sources.text import DataError
from regard.data.tracks.reading import read_tracks
from regard.data.tracks.synthetic import simulate
from regard.data.tracks.windows import all_windows
from regard.tasks.forecast_metrics import ForecastSums
from regard.tasks.forecaster import BASELINES, evaluate_forecaster, window_batches


@pytest.fixture
def forecaster() -> regard.Forecaster:
    found = regard.task("tracks-tiny", observed_steps=5, predicted_steps=4, num_futures=6, neighbours=3)
    assert isinstance(found, regard.Forecaster)
    model = found.model
    model.set_anchors(0.4, torch.randn_like(model.anchors), 0.1 * torch.randn_like(model.regressions))
    return found


@pytest.fixture
def tracks(tmp_path: Path) -> str:
    """Frames 0 to 290 in steps of 10."""
    path = tmp_path / "live.csv"
    rows = list(simulate(steps=30, agents=6, seed=2))
    path.write_text("frame,agent,x,y\n" + "".join(f"{10 * r.frame},p{r.agent},{r.x},{r.y}\n" for r in rows))
    return str(path)


def test_a_file_and_the_same_points_from_python(forecaster: regard.Forecaster, tracks: str) -> None:
    (scene,) = read_tracks([tracks])
    points: dict[str, list[tuple[float, float] | None]] = {}
    for frame in range(250, 300, 10):
        for row in np.flatnonzero(scene.frame == frame):
            name = scene.agents[scene.agent[row]]
            points.setdefault(name, [None] * ((frame - 250) // 10))
            points[name] += [None] * ((frame - 250) // 10 - len(points[name]))
            points[name].append(tuple(scene.position[row].tolist()))
    points = {name: track for name, track in points.items() if len(track) == 5}
    found, same = forecaster.predict(tracks), forecaster(points)
    by_name = {one.agent: one for one in same}
    assert {one.agent for one in found} == set(by_name)
    for one in found:
        torch.testing.assert_close(one.futures, by_name[one.agent].futures, rtol=1e-4, atol=1e-4)
        assert one.futures.shape == (6, 4, 2)
        assert float(one.probabilities.sum()) == pytest.approx(1, abs=1e-5)
        assert (one.probabilities.diff() <= 0).all()
        assert one.observed == sum(point is not None for point in points[one.agent])
    array = np.full((len(points), 5, 2), np.nan)
    for number, track in enumerate(points.values()):
        for step, point in enumerate(track):
            array[number, step] = np.nan if point is None else point
    for one, other in zip(forecaster.predict(array), forecaster.predict(torch.tensor(array)), strict=True):
        torch.testing.assert_close(one.futures, other.futures)
        torch.testing.assert_close(one.futures, same[int(one.agent)].futures)


def test_some_futures_one_agent_and_joint_futures(forecaster: regard.Forecaster, tracks: str) -> None:
    every = forecaster.predict(tracks)
    few = forecaster.predict(tracks, k=2)
    for one, other in zip(every, few, strict=True):
        torch.testing.assert_close(other.futures, one.futures[:2])
        torch.testing.assert_close(other.probabilities, one.probabilities[:2])
    (single,) = forecaster.predict(tracks, agent=every[1].agent)
    torch.testing.assert_close(single.futures, every[1].futures)
    joint = forecaster.predict(tracks, joint=True)
    assert all(torch.equal(one.probabilities, joint[0].probabilities) for one in joint)
    earlier = forecaster.predict(tracks, frame=150)
    assert {one.agent for one in earlier} != {one.agent for one in every}


def test_one_agent_alone_and_agents_seen_once(forecaster: regard.Forecaster) -> None:
    track = [(float(step), 0.0) for step in range(5)]
    (alone,) = forecaster.predict({"a": track})
    assert alone.futures.isfinite().all()
    late = forecaster.predict({"a": track, "new": [(2.0, 2.0)], "gone": [*track[:4], None]})
    assert [(one.agent, one.observed) for one in late] == [("a", 5), ("new", 1)]
    assert all(one.futures.isfinite().all() for one in late)


@pytest.mark.parametrize(("given", "options", "part"), [
    ({"a": [(0, 0)] * 4}, {}, "5 steps"), ({}, {}, "at least one agent"), ({"a": [(0, 0)] * 4 + [None]}, {}, "none"),
    ({"a": [(0, 0)] * 5}, {"k": 7}, "at most 6"), ({"a": [(0, 0)] * 5}, {"k": 0}, "k"),
    ({"a": [(0, 0)] * 5}, {"agent": "b"}, "'b'"), ({"a": [(0, "x")] * 5}, {}, "tracks"),
    ({"a": [(0, float("inf"))] * 5}, {}, "finite"), (np.zeros((2, 5)), {}, r"\(2, 5\)"),
    ({"a": [(0, 0)] * 5}, {"frame": 3}, "frame")])
def test_wrong_arguments(forecaster: regard.Forecaster, given: object, options: dict[str, object], part: str) -> None:
    with pytest.raises(ValueError, match=part):
        forecaster.predict(given, **options)


def test_too_few_observed_steps_are_named_with_the_line(forecaster: regard.Forecaster, tmp_path: Path) -> None:
    path = tmp_path / "short.csv"
    path.write_text("frame,agent,x,y\n" + "".join(f"{frame},1,{frame},0\n" for frame in range(4)))
    with pytest.raises(DataError) as error:
        forecaster.predict(path)
    assert all(part in str(error.value) for part in ("short.csv:5", "5 steps", "only 4"))
    with pytest.raises(DataError, match="no frame 99"):
        forecaster.predict(path, frame=99)


def test_the_evaluation_equals_the_metrics_of_its_predictions(forecaster: regard.Forecaster, tracks: str) -> None:
    (windows,) = all_windows(read_tracks([tracks]), 5, 4)
    found = evaluate_forecaster(forecaster, windows)
    assert [*found] == ["agents>=1", "agents>=2"]
    for least in (1, 2):
        part, sums = found[f"agents>={least}"], ForecastSums()
        for window in windows:
            complete = torch.from_numpy(window.complete)
            if int(complete.sum()) < least:
                continue
            with torch.no_grad():
                single, joint = forecaster.model(torch.from_numpy(window.past),
                                                 torch.zeros(len(window.past), dtype=torch.long))
            sums.add(single.points[complete], single.logits[complete], joint.points[complete],
                     torch.from_numpy(window.future)[complete], torch.from_numpy(window.past)[complete, -1])
        assert (part["windows"], part["agents"]) == (sums.windows, sums.agents)
        assert part["model"] == pytest.approx(sums.means(), rel=1e-4)
        assert set(part) == {"windows", "agents", "model", *BASELINES}
        assert part["constant velocity"]["ade"] == part["constant velocity"]["top_ade"]


def test_looks_are_the_weights_of_the_model(forecaster: regard.Forecaster, tracks: str) -> None:
    (scene,) = read_tracks([tracks])
    window = forecaster.scene_window(scene)
    looks = forecaster.looks(window)
    seen = torch.from_numpy(~np.isnan(window.past[..., 0]))
    assert looks.shape == (len(window.agents), 5, len(window.agents))
    torch.testing.assert_close(looks.sum(-1), seen.float(), rtol=1e-5, atol=1e-5)
    last = torch.from_numpy(window.past[:, -1])
    distance = torch.cdist(last, last)
    for agent in range(len(last)):
        near = distance[agent].argsort()[:4].tolist()  # itself and three neighbours
        assert looks[agent, :, [other for other in range(len(last)) if other not in near]].sum() == 0
        assert looks[agent, -1, agent] > 0


def test_batches_of_windows_are_all_of_them_in_order() -> None:
    sizes = [3, 600, 2, 500, 20, 1]
    found = window_batches(sizes)
    assert [number for batch in found for number in batch.tolist()] == list(range(6))
    assert all(len(batch) == 1 or sum(sizes[number] for number in batch) <= 512 for batch in found)
    assert window_batches([]) == []
