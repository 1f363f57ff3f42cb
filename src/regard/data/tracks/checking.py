"""The doctor of tracks: what is in the files, what is odd about them, and how many windows they give.

`check_tracks` reads scenes once and gives a `TracksReport`; `TracksReport.tables` has all of it as plain values:

    scenes      [{name, rows, frames, agents, step, per_frame {mean, max}, windows, complete}]
    step        the difference of two frames that all scenes share; null if they differ
    length      rows per agent {"5", "50", "95", "max"}
    speed       distance of a step {"5", "50", "95", "99", "max"}, in the units of the data
    standing    the share of steps shorter than a quarter of the usual step
    gaps        {count, first}: an agent is missing for some steps between two rows; `first` are locations, "a.csv:7"
    jumps       {count, first}: a step so much longer than usual that the id has probably changed its bearer
    off_grid    {count, first}: rows between two steps, which are left out
    unsorted    {count, first}: scenes in which the frames of an agent are not in order; the order is restored
    windows     {observed, predicted, windows, agents, pairs}: windows with a complete agent, the complete agents in
                them, and the windows with at least two
    warnings    sentences

What cannot be read at all is refused by the reader, with file and line. Nothing is printed here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from regard.checks import plural
from regard.data.sources.text import Location
from regard.data.tracks.reading import Floats, Grid, Scene, to_grid
from regard.data.tracks.windows import grid_windows

EXAMPLES_KEPT = 5
JUMP_FACTOR = 5.0
"""A step is a jump if it is this many times as long as the 99th percentile of all steps."""
STANDING_FACTOR = 0.25
PERCENTILES = (5, 50, 95, 99)
FEW_WINDOWS = 100


@dataclass
class Places:
    """How often something was found, and where first."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, location: Location) -> None:
        """Count one more."""
        self.count += 1
        if len(self.first) < EXAMPLES_KEPT:
            self.first.append(str(location))

    def table(self) -> dict[str, Any]:
        """As plain values."""
        return {"count": self.count, "first": self.first}


@dataclass(frozen=True)
class TracksReport:
    """Everything that was found in tracks."""

    tables: dict[str, Any]

    @property
    def windows(self) -> int:
        """The number of windows with a complete agent."""
        count: int = self.tables["windows"]["windows"]
        return count


def check_tracks(scenes: Sequence[Scene], observed: int = 8, predicted: int = 12,
                 step: float | None = None) -> TracksReport:
    """Report on scenes; `step` is the difference between two frames, by default the usual one of each scene."""
    places = {name: Places() for name in ("gaps", "jumps", "off_grid", "unsorted")}
    grids = [to_grid(scene, step) for scene in scenes]
    moved = [_step_lengths(grid) for grid in grids]
    lengths = np.concatenate([one[~np.isnan(one)] for one in moved]) if moved else np.zeros(0)
    walking = _usual_step(lengths)
    counted, per_agent, totals = [], [], np.zeros(3, np.int64)
    for scene, grid, steps in zip(scenes, grids, moved, strict=True):
        if scene.unsorted is not None:
            places["unsorted"].add(scene.unsorted)
        for row in grid.off_grid:
            places["off_grid"].add(scene.location(int(row)))
        _find_gaps(scene, grid, places["gaps"])
        _find_jumps(scene, grid, steps, lengths, places["jumps"])
        present = grid.present
        per_agent.append(present.sum(0))
        windows = [window.complete.sum() for window in grid_windows(grid, scene.agents, scene.name, observed,
                                                                    predicted)]
        complete = np.array([count for count in windows if count], np.int64)
        totals += [len(complete), complete.sum(), (complete >= 2).sum()]
        counted.append({"name": scene.name, "rows": len(scene.frame), "frames": len(scene.frames),
                        "agents": len(scene.agents), "step": grid.step,
                        "per_frame": {"mean": float(present.sum(1).mean()), "max": int(present.sum(1).max())},
                        "windows": len(complete), "complete": int(complete.sum())})
    found: dict[str, Any] = {
        "scenes": counted, "step": grids[0].step if len({grid.step for grid in grids}) == 1 else None,
        "length": _percentiles(np.concatenate(per_agent), (5, 50, 95)), "speed": _percentiles(lengths, PERCENTILES),
        "standing": float((lengths < STANDING_FACTOR * walking).mean()) if len(lengths) else 0.0,
        **{name: place.table() for name, place in places.items()},
        "windows": {"observed": observed, "predicted": predicted, "windows": int(totals[0]), "agents": int(totals[1]),
                    "pairs": int(totals[2])}}
    return TracksReport({**found, "warnings": _warnings(found)})


def usual_step(scenes: Sequence[Scene], step: float | None = None) -> float:
    """The usual distance that an agent covers in a step, in the units of the data; 1 if none moves."""
    return _usual_step(np.concatenate([one[~np.isnan(one)] for one in (
        _step_lengths(to_grid(scene, step)) for scene in scenes)]))


def _usual_step(lengths: Floats) -> float:
    """The median of the steps that are not standing still."""
    if not len(lengths):
        return 1.0
    walking = lengths[lengths > 0.1 * np.quantile(lengths, 0.9)]
    return float(np.median(walking)) if len(walking) else 1.0


def _step_lengths(grid: Grid) -> Floats:
    """The distance of each step of each agent, (steps - 1, agents); NaN where it is not there."""
    return np.linalg.norm(np.diff(grid.position, axis=0), axis=-1)


def _row_at(scene: Scene, grid: Grid, step: int, agent: int) -> Location:
    """The location of the row of an agent at a step."""
    frame = grid.first + step * grid.step
    rows = np.flatnonzero((np.abs(scene.frame - frame) <= 0.01 * grid.step) & (scene.agent == agent))
    return scene.location(int(rows[0]))


def _find_gaps(scene: Scene, grid: Grid, found: Places) -> None:
    """Agents that are missing for some steps and come back."""
    present = grid.present
    for agent in range(present.shape[1]):
        steps = np.flatnonzero(present[:, agent])
        for after in steps[1:][np.diff(steps) > 1]:
            found.add(_row_at(scene, grid, int(after), agent))


def _find_jumps(scene: Scene, grid: Grid, steps: Floats, lengths: Floats, found: Places) -> None:
    """Steps that are far longer than all others."""
    if not len(lengths):
        return
    limit = JUMP_FACTOR * float(np.quantile(lengths, 0.99))
    with np.errstate(invalid="ignore"):
        far = np.argwhere(steps > max(limit, 1e-12))
    for step, agent in far:
        found.add(_row_at(scene, grid, int(step) + 1, int(agent)))


def _percentiles(values: Floats, which: Sequence[int]) -> dict[str, float]:
    if not len(values):
        return {}
    return {**{str(one): float(np.percentile(values, one)) for one in which}, "max": float(values.max())}


def _warnings(found: dict[str, Any]) -> list[str]:
    """What a user should look at."""
    texts = []
    steps = {scene["step"] for scene in found["scenes"]}
    if len(steps) > 1:
        texts.append(f"The scenes have different steps between frames: {', '.join(f'{one:g}' for one in sorted(steps))}"
                     ". If they are of one frame rate, set --frame-step.")
    for key, sentence in (("jumps", "{} far longer than all others: the id may have changed its bearer"),
                          ("off_grid", "{} between two steps and left out")):
        count = found[key]["count"]
        if count:
            noun = "step is" if key == "jumps" and count == 1 else "steps are" if key == "jumps" else (
                "row is" if count == 1 else "rows are")
            texts.append(sentence.format(f"{count:,} {noun}") + f" (first: {found[key]['first'][0]}).")
    if found["unsorted"]["count"]:
        texts.append("The frames of an agent are not in order; they are sorted. First: "
                     f"{found['unsorted']['first'][0]}.")
    table = found["windows"]
    if table["windows"] < FEW_WINDOWS:
        texts.append(f"There are only {plural(table['windows'], 'window')} of {table['observed']} observed and "
                     f"{table['predicted']} predicted steps, which is little to learn from.")
    return texts
