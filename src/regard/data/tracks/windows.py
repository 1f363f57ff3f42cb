"""Windows of tracks: the observed steps of all agents of a scene, and the steps that follow.

    scene_windows(scene, observed, predicted)      every window of a scene, one step apart
    split_by_time(windows, fraction)               training and validation windows that share no step

A window has the agents that are there at its last observed step. An agent may be missing in other steps: its position
is then NaN. `complete` marks the agents that are there in every step, which the usual metrics are about. Positions are
those of the file; nothing here depends on the future of an agent.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.checks import plural
from regard.data.sources.text import DataError
from regard.data.tracks.reading import Grid, Scene, to_grid


@dataclass(frozen=True)
class TrackWindow:
    """The agents of a scene around one step in time."""

    past: NDArray[np.float32]
    """(agents, observed, 2); NaN where an agent is not there."""
    future: NDArray[np.float32]
    """(agents, predicted, 2); NaN where an agent is not there."""
    agents: tuple[str, ...]
    scene: str
    frame: float
    """The last observed frame."""
    start: int
    """The first step in the grid of the scene."""

    @property
    def complete(self) -> NDArray[np.bool_]:
        """Which agents are there in every step."""
        missing = np.isnan(self.past[..., 0]).any(1) | np.isnan(self.future[..., 0]).any(1)
        return np.asarray(~missing)

    @property
    def steps(self) -> int:
        """The number of steps."""
        return self.past.shape[1] + self.future.shape[1]


def grid_windows(grid: Grid, names: Sequence[str], scene: str, observed: int, predicted: int,
                 stride: int = 1) -> Iterator[TrackWindow]:
    """The windows of a grid that have at least one agent at their last observed step."""
    present = grid.present
    for start in range(0, len(grid.position) - observed - predicted + 1, stride):
        last = start + observed
        chosen = np.flatnonzero(present[last - 1])
        if not len(chosen):
            continue
        block = grid.position[start:last + predicted, chosen].transpose(1, 0, 2).astype(np.float32)
        yield TrackWindow(block[:, :observed], block[:, observed:], tuple(names[int(number)] for number in chosen),
                          scene, grid.first + (last - 1) * grid.step, start)


def scene_windows(scene: Scene, observed: int, predicted: int, *, step: float | None = None,
                  stride: int = 1) -> list[TrackWindow]:
    """All windows of a scene with at least one complete agent."""
    grid = to_grid(scene, step)
    return [window for window in grid_windows(grid, scene.agents, scene.name, observed, predicted, stride)
            if window.complete.any()]


def all_windows(scenes: Sequence[Scene], observed: int, predicted: int, *, step: float | None = None,
                stride: int = 1) -> list[list[TrackWindow]]:
    """The windows of each scene; a DataError if there is none at all."""
    found = [scene_windows(scene, observed, predicted, step=step, stride=stride) for scene in scenes]
    if not any(found):
        longest = max(scenes, key=lambda scene: len(scene.frames))
        raise DataError(f"{longest.name}: No agent is there for {observed + predicted} steps in a row ({observed} "
                        f"observed and {predicted} predicted); the longest scene has "
                        f"{plural(len(longest.frames), 'frame')}. Give longer tracks, or set fewer steps.")
    return found


def split_by_time(windows: Sequence[TrackWindow], fraction: float) -> tuple[list[TrackWindow], list[TrackWindow]]:
    """Training windows and the last `fraction` of the windows for validation; no step is in both.

    Windows that overlap the first validation window are left out of the training data.
    """
    if not fraction or len(windows) < 2:
        return list(windows), []
    count = min(len(windows) - 1, max(1, round(fraction * len(windows))))
    held = list(windows[len(windows) - count:])
    first = held[0].start
    return [window for window in windows[:-count] if window.start + window.steps <= first], held


def split_scenes(windows: Sequence[Sequence[TrackWindow]], fraction: float, *,
                 by_scene: bool) -> tuple[list[TrackWindow], list[TrackWindow]]:
    """Training and validation windows: whole scenes for validation, or the end of every scene.

    By scene, the smallest scenes that make up the fraction are held out, and at least one scene stays.
    """
    if not by_scene:
        parts = [split_by_time(some, fraction) for some in windows]
        return [one for part in parts for one in part[0]], [one for part in parts for one in part[1]]
    order = sorted(range(len(windows)), key=lambda number: len(windows[number]))
    wanted, held, count = fraction * sum(map(len, windows)), set[int](), 0
    for number in order[:-1]:
        if count >= wanted:
            break
        held.add(number)
        count += len(windows[number])
    return ([one for number, some in enumerate(windows) if number not in held for one in some],
            [one for number, some in enumerate(windows) if number in held for one in some])
