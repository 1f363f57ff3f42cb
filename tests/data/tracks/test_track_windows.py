"""Windows, splits, checks and synthetic tracks, against literal loops over the rows."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from regard.data.sources.text import DataError
from regard.data.tracks.checking import check_tracks, usual_step
from regard.data.tracks.reading import Scene, read_tracks
from regard.data.tracks.synthetic import TrackRow, simulate
from regard.data.tracks.windows import all_windows, scene_windows, split_by_time, split_scenes


def scene_of(rows: list[tuple[float, str, float, float]], tmp_path: Path) -> Scene:
    path = tmp_path / "scene.csv"
    path.write_text("frame,agent,x,y\n" + "".join(f"{f},{a},{x},{y}\n" for f, a, x, y in rows))
    return read_tracks([str(path)])[0]


@pytest.fixture
def rows() -> list[tuple[float, str, float, float]]:
    """Agents that come late, leave early and have gaps."""
    rng = np.random.default_rng(1)
    found = []
    for agent, (first, last) in enumerate([(0, 30), (5, 12), (3, 40), (20, 27), (33, 34)]):
        found += [(step * 2.0, f"a{agent}", *rng.normal(size=2).round(3)) for step in range(first, last)
                  if (agent, step) not in {(0, 9), (2, 25)}]
    return found


def test_windows_equal_a_literal_loop(rows: list[tuple[float, str, float, float]], tmp_path: Path) -> None:
    where = {(frame / 2, agent): (x, y) for frame, agent, x, y in rows}
    agents = list(dict.fromkeys(agent for _, agent, _, _ in rows))
    windows = scene_windows(scene_of(rows, tmp_path), 4, 3)
    expected = []
    for start in range(40 - 7 + 1):
        there = [agent for agent in agents if (start + 3, agent) in where]
        if any(all((start + step, agent) in where for step in range(7)) for agent in there):
            expected.append((start, there))
    assert [(window.start, list(window.agents)) for window in windows] == expected
    for window in windows:
        assert window.frame == 2.0 * (window.start + 3)
        both = np.concatenate([window.past, window.future], 1)
        for agent, step in itertools.product(range(len(window.agents)), range(7)):
            point = where.get((window.start + step, window.agents[agent]))
            got = both[agent, step]
            assert np.isnan(got).all() if point is None else np.allclose(got, point)
        assert window.complete.tolist() == [all((window.start + step, agent) in where for step in range(7))
                                            for agent in window.agents]


def test_the_split_by_time_shares_no_step(rows: list[tuple[float, str, float, float]], tmp_path: Path) -> None:
    windows = scene_windows(scene_of(rows, tmp_path), 4, 3)
    training, held = split_by_time(windows, 0.3)
    assert len(held) == round(0.3 * len(windows))
    seen = {window.start + step for window in training for step in range(7)}
    assert not seen & {window.start + step for window in held for step in range(7)}
    assert len(training) == sum(window.start + 7 <= held[0].start for window in windows)


def test_the_split_by_scene_keeps_scenes_whole(rows: list[tuple[float, str, float, float]], tmp_path: Path) -> None:
    windows = scene_windows(scene_of(rows, tmp_path), 4, 3)
    parts = [windows, windows[:4], windows[:9]]
    training, held = split_scenes(parts, 4 / (len(windows) + 13), by_scene=True)
    assert [*map(id, held)] == [*map(id, windows[:4])]
    assert len(training) == len(windows) + 9


def test_too_short_tracks_are_refused_with_the_file(tmp_path: Path) -> None:
    scene = scene_of([(float(step), "a", step, 0.0) for step in range(10)], tmp_path)
    with pytest.raises(DataError, match=r"scene\.csv") as error:
        all_windows([scene], 8, 12)
    assert "20 steps" in str(error.value)
    assert "10 frames" in str(error.value)


def test_the_check_finds_gaps_jumps_and_standing_agents(tmp_path: Path) -> None:
    rows = [(float(step), "walks", 0.5 * step, 0.0) for step in range(60) if step != 30]
    rows += [(float(step), "stands", 3.0, 3.0) for step in range(60)]
    rows += [(float(step), "jumps", 0.5 * step + (200.0 if step >= 40 else 0.0), 9.0) for step in range(60)]
    report = check_tracks([scene_of(rows, tmp_path)], 8, 12).tables
    assert report["gaps"]["count"] == 1
    assert report["gaps"]["first"][0].endswith(f":{2 + 30}")
    assert report["jumps"]["count"] == 1
    assert report["jumps"]["first"][0].endswith(f":{2 + 59 + 60 + 40}")
    assert report["standing"] == pytest.approx(59 / (57 + 59 + 59))
    assert report["scenes"][0]["per_frame"]["max"] == 3
    assert report["windows"]["windows"] == 41
    assert report["windows"]["agents"] == 41 * 2 + 21
    assert any("jump" in text or "bearer" in text for text in report["warnings"])


def test_the_usual_step_ignores_standing_agents(tmp_path: Path) -> None:
    rows = [(float(step), "walks", 0.5 * step, 0.0) for step in range(30)]
    rows += [(float(step), f"s{agent}", 3.0 * agent, 3.0) for step in range(30) for agent in range(2)]
    assert usual_step([scene_of(rows, tmp_path)]) == pytest.approx(0.5)


def by_frame(rows: list[TrackRow]) -> dict[int, dict[int, np.ndarray]]:
    frames: dict[int, dict[int, np.ndarray]] = {}
    for row in rows:
        frames.setdefault(row.frame, {})[row.agent] = np.array([row.x, row.y])
    return frames


def test_synthetic_people_avoid_each_other_walk_in_groups_and_stand() -> None:
    rows = list(simulate(steps=150, agents=10, seed=3))
    assert rows == list(simulate(steps=150, agents=10, seed=3))
    assert rows != list(simulate(steps=150, agents=10, seed=4))
    frames = by_frame(rows)
    assert sorted(frames) == list(range(150))
    nearest, moved = [], []
    for frame in range(1, 150):
        place = np.array(list(frames[frame].values()))
        apart = np.linalg.norm(place[:, None] - place, axis=-1) + 99 * np.eye(len(place))
        nearest += apart.min(1).tolist()
        moved += [float(np.linalg.norm(frames[frame][agent] - frames[frame - 1][agent]))
                  for agent in frames[frame] if agent in frames[frame - 1]]
    assert np.mean(np.array(nearest) < 0.2) < 0.01
    assert 0.02 < np.mean(np.array(moved) < 0.05) < 0.6
    assert 0.3 < np.median(moved) < 0.8
    assert {row.kind for row in rows} == {"single", "group"}
