"""`Forecaster` predicts the futures of many agents from their observed steps.

    forecaster = regard.load("model")
    forecaster.predict("live.csv")                        every agent that is there in the last frame
    forecaster.predict({"anna": [(0, 0), (0.5, 0)], ...}) from Python; shorter tracks began later

Each agent has K futures with probabilities; with `joint=True`, future k of all agents belongs together, and all agents
have the same probabilities. An agent that is missing in some frames, or came late, is predicted from what was seen.

Legend: A agents, T observed steps, P predicted steps, K futures.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard import checks
from regard.attention.look import Look
from regard.checks import plural
from regard.data.sources.text import DataError
from regard.data.tracks.reading import Scene, read_tracks, to_grid
from regard.data.tracks.windows import TrackWindow
from regard.inspection.scene.view import SceneView
from regard.models.tracks import Futures, TrackForecaster, TracksConfig
from regard.tasks.forecast_baselines import Baselines, constant_velocity
from regard.tasks.forecast_metrics import COLLISION_DISTANCE, ForecastSums
from regard.tasks.task import Task

BATCH_AGENTS = 512
"""Agents that are predicted at once, at least those of one window."""
BASELINES = ("constant velocity", "k-means", "linear")
MIN_AGENTS = (1, 2)
"""The minimum number of complete agents in the windows that metrics are computed over, one table for each."""


@dataclass(frozen=True)
class Forecast:
    """The futures of one agent, the most probable first."""

    agent: str
    futures: Tensor
    """(K, P, 2): the predicted points, in the coordinates of the data."""
    probabilities: Tensor
    """(K,), of all futures of the model: they sum to 1 if none was left out."""
    observed: int
    """The steps in which the agent was seen."""

    def __repr__(self) -> str:
        x, y = self.futures[0, -1].tolist()
        return (f"Forecast({self.agent!r}, {plural(len(self.futures), 'future')} of "
                f"{plural(self.futures.shape[1], 'step')}, most probable end ({x:.4g}, {y:.4g}))")


TracksLike = str | os.PathLike[str] | Mapping[Any, Sequence[Any]] | Tensor | np.ndarray


class Forecaster(Task):
    """A model that predicts where agents will be."""

    model: TrackForecaster
    config: TracksConfig

    def predict(self, tracks: TracksLike, *, k: int | None = None, joint: bool = False, agent: Any = None,
                frame: float | None = None, columns: str | None = None, frame_step: float | None = None
                ) -> list[Forecast]:
        """The futures of every agent that is there in the last frame. `forecaster(tracks)` is the same.

        Args:
            tracks: a file; or for each agent its points, the last one of all agents at the same time, and None where it
                was not seen; or an array (A, T, 2) with NaN there.
            k: how many futures of each agent, the most probable; by default all.
            joint: whether futures are of the scene: future k of all agents belongs together.
            agent: the only agent to return; its neighbours are still seen.
            frame: the last frame that is observed; by default the last of the file.
            columns, frame_step: how a file is read, as for `regard train`.
        """
        window = self.last_window(tracks, frame=frame, columns=columns, frame_step=frame_step)
        return self.predict_window(window, k=k, joint=joint, agent=agent)

    __call__ = predict

    def predict_window(self, window: TrackWindow, *, k: int | None = None, joint: bool = False,
                       agent: Any = None) -> list[Forecast]:
        """The futures of the agents of a window; the arguments are those of `predict`."""
        count = self.config.num_futures if k is None else checks.whole_number("k", k, 1)
        if count > self.config.num_futures:
            raise checks.wrong("k", f"at most {self.config.num_futures}, the futures of the model", k)
        if agent is not None and str(agent) not in window.agents:
            raise checks.wrong("agent", f"one that is there in the last frame: {', '.join(window.agents[:20])}",
                               repr(agent))
        ((_, single, shared),) = self.window_futures([window])
        points, logits = shared if joint else single
        points, odds = _most_probable(points, logits, count)
        seen = (~np.isnan(window.past[..., 0])).sum(1).tolist()
        return [Forecast(name, points[number], odds[number], seen[number])
                for number, name in enumerate(window.agents) if agent is None or str(agent) == name]

    def last_window(self, tracks: TracksLike, *, frame: float | None = None, columns: str | None = None,
                    frame_step: float | None = None) -> TrackWindow:
        """The observed steps that end at a frame, of the agents that are there in it; the future is NaN if unknown."""
        if isinstance(tracks, str | os.PathLike):
            scenes = read_tracks([os.fspath(tracks)], columns)
            if len(scenes) > 1:
                raise DataError(f"{scenes[0].file}: The file has {len(scenes)} scenes. Give one scene at a time.")
            return self.scene_window(scenes[0], frame, frame_step)
        for name, value in (("frame", frame), ("columns", columns), ("frame_step", frame_step)):
            if value is not None:
                raise checks.wrong(name, "None where the tracks are no file", repr(value))
        names, past = _as_array(tracks)
        steps = self.config.observed_steps
        if past.shape[1] < steps:
            raise checks.wrong("tracks", f"at least {steps} steps long, which the model observes", past.shape[1])
        there = ~np.isnan(past[:, -1, 0])
        if not there.any():
            raise checks.wrong("tracks", "of at least one agent that is there in the last step", "of none")
        kept = tuple(name for name, one in zip(names, there, strict=True) if one)
        future = np.full((len(kept), self.config.predicted_steps, 2), np.nan, np.float32)
        return TrackWindow(past[there, -steps:], future, kept, "", float(past.shape[1] - 1), 0)

    def scene_window(self, scene: Scene, frame: float | None = None, frame_step: float | None = None) -> TrackWindow:
        """The observed steps of a scene that end at a frame, by default the last; and the future, as far as known."""
        grid = to_grid(scene, frame_step)
        steps, total = self.config.observed_steps, len(grid.position)
        last = total - 1 if frame is None else round((frame - grid.first) / grid.step)
        if not 0 <= last < total or (frame is not None and abs(grid.first + last * grid.step - frame) > 1e-6):
            raise DataError(f"{scene.file}: There is no frame {frame:g}; the frames are {grid.first:g} to "
                            f"{grid.first + (total - 1) * grid.step:g}, {grid.step:g} apart.")
        if last + 1 < steps:
            row = int(np.flatnonzero(scene.frame <= grid.first + last * grid.step + 1e-6)[-1])
            raise DataError(f"{scene.location(row)}: The model observes {steps} steps, but there "
                            f"{'is' if last == 0 else 'are'} only {last + 1} up to frame {scene.frame[row]:g}. Give "
                            f"at least {steps} frames, {grid.step:g} apart.")
        chosen = np.flatnonzero(grid.present[last])
        if not len(chosen):
            raise DataError(f"{scene.file}: No agent is there in frame {grid.first + last * grid.step:g}. Choose "
                            "another frame with --frame.")
        block = np.full((len(chosen), self.config.predicted_steps, 2), np.nan, np.float32)
        future = grid.position[last + 1:last + 1 + self.config.predicted_steps, chosen].transpose(1, 0, 2)
        block[:, :future.shape[1]] = future
        past = grid.position[last + 1 - steps:last + 1, chosen].transpose(1, 0, 2).astype(np.float32)
        return TrackWindow(past, block, tuple(scene.agents[number] for number in chosen), scene.name,
                      grid.first + last * grid.step, last + 1 - steps)

    def latest_known(self, scene: Scene, frame_step: float | None = None) -> TrackWindow:
        """The last window of a scene whose future is in the file too; the last observed steps if there is none."""
        grid = to_grid(scene, frame_step)
        last = len(grid.position) - 1 - self.config.predicted_steps
        while last + 1 >= self.config.observed_steps and not grid.present[last].any():
            last -= 1
        if last + 1 < self.config.observed_steps:
            return self.scene_window(scene, None, frame_step)
        return self.scene_window(scene, grid.first + last * grid.step, frame_step)

    @torch.inference_mode()
    def window_futures(self, windows: Sequence[TrackWindow]) -> Iterator[tuple[TrackWindow, Futures, Futures]]:
        """Each window with the futures of its agents, single and joint, on the CPU."""
        weight = self.model.unit
        for numbers in window_batches([len(window.past) for window in windows]):
            some = [windows[number] for number in numbers]
            sizes = [len(window.past) for window in some]
            past = torch.from_numpy(np.concatenate([window.past for window in some])).to(weight)
            scene = torch.repeat_interleave(torch.arange(len(some)), torch.tensor(sizes)).to(weight.device)
            single, joint = self.model(past, scene)
            parts = [tensor.float().cpu().split(sizes) for tensor in (*single, *joint)]
            for window, points, logits, joint_points, joint_logits in zip(some, *parts, strict=True):
                yield window, Futures(points, logits), Futures(joint_points, joint_logits)

    @torch.inference_mode()
    def looks(self, window: TrackWindow) -> Tensor:
        """The weight that each agent gives to each agent at each observed step, (A, T, A); rows sum to 1.

        It is the mean over the heads of the last layer, summed over the steps of the agent that is looked at. An agent
        that was not seen at a step gives no weight then.
        """
        past = torch.from_numpy(window.past).to(self.model.unit)
        scene = torch.zeros(len(past), dtype=torch.long, device=past.device)
        found: list[Look] = []
        with self.model.blocks[-1].attention.tap.listen(found.append):  # type: ignore[operator, union-attr]
            self.model(past, scene)
        members, exist = self.model.neighbours(past, scene, torch.arange(len(past), device=past.device))
        weights = found[0].weights().mean(1).float()  # (A, T, T + M · seen)
        steps = past.shape[1]
        own, others = weights[..., :steps].sum(-1), weights[..., steps:]
        looks = torch.zeros(len(past), steps, len(past))
        rows = torch.arange(len(past))
        if members.shape[1]:
            each = others.unflatten(-1, (members.shape[1], -1)).sum(-1).masked_fill(~exist.unsqueeze(1), 0.0)
            looks.scatter_add_(2, members.unsqueeze(1).expand(-1, steps, -1).cpu(), each.cpu())
        looks[rows, :, rows] += own.cpu()
        return looks.masked_fill(past[..., :1].isnan().cpu(), 0.0)

    def view(self, window: TrackWindow, *, k: int | None = None, joint: bool = False, title: str = "") -> SceneView:
        """What a page or a picture shows of a window."""
        ((_, single, shared),) = self.window_futures([window])
        points, logits = shared if joint else single
        futures, odds = _most_probable(points, logits, k)
        known = not np.isnan(window.future).all()
        return SceneView(title, window.agents, window.past.astype(np.float64), futures.double().numpy(),
                         odds.double().numpy(), self.looks(window).double().numpy(),
                         window.future.astype(np.float64) if known else None, window.frame)

    @property
    def baselines(self) -> Baselines:
        """The baselines that were fitted to the training data of this model."""
        return Baselines(self.model.anchors.double().cpu(), self.model.regressions.double().cpu())


def _most_probable(points: Tensor, logits: Tensor, count: int | None) -> tuple[Tensor, Tensor]:
    """The futures (A, K, P, 2) of each agent in order of their probabilities, and these, at most `count`."""
    order = logits.argsort(dim=1, descending=True, stable=True)[:, :count]
    return (points.gather(1, order[..., None, None].expand(-1, -1, *points.shape[2:])),
            logits.softmax(1).gather(1, order))


def evaluate_forecaster(task: Forecaster, windows: Sequence[TrackWindow],
                        collision_distance: float = COLLISION_DISTANCE) -> dict[str, dict[str, Any]]:
    """The metrics of the model and of the baselines, over windows with at least 1 and at least 2 complete agents.

    Returns:
        {"agents>=1": {"windows", "agents", "model": {"ade", "fde", ...}, "constant velocity": {...}, ...}, ...}
    """
    sums = {(least, name): ForecastSums(collision_distance) for least in MIN_AGENTS for name in ("model", *BASELINES)}
    unit, steps, fitted = float(task.model.unit), task.config.predicted_steps, task.baselines
    for window, single, joint in task.window_futures(windows):
        chosen = torch.from_numpy(window.complete)
        past = torch.from_numpy(window.past)[chosen].double()
        future = torch.from_numpy(window.future)[chosen].double()
        guesses = {"constant velocity": constant_velocity(past, steps), "k-means": fitted.k_means_futures(past, unit),
                   "linear": fitted.linear_futures(past, unit)}
        for least in MIN_AGENTS:
            if len(past) < least:
                continue
            sums[least, "model"].add(single.points[chosen].double(), single.logits[chosen],
                                     joint.points[chosen].double(), future, past[:, -1])
            for name, points in guesses.items():
                odds = torch.ones(points.shape[:2]) if points.shape[1] == 1 else None
                sums[least, name].add(points, odds, points, future, past[:, -1])
    return {f"agents>={least}": {"windows": sums[least, "model"].windows, "agents": sums[least, "model"].agents,
                                 **{name: sums[least, name].means() for name in ("model", *BASELINES)}}
            for least in MIN_AGENTS if sums[least, "model"].windows}


def window_batches(sizes: Sequence[int]) -> list[np.ndarray]:
    """The numbers of windows in batches of about BATCH_AGENTS agents, in order."""
    batches, batch, count = [], list[int](), 0
    for number, size in enumerate(sizes):
        if batch and count + size > BATCH_AGENTS:
            batches.append(np.array(batch))
            batch, count = [], 0
        batch.append(number)
        count += size
    return [*batches, np.array(batch)] if batch else batches


def _as_array(tracks: Any) -> tuple[tuple[str, ...], np.ndarray]:
    """The names of agents and their points (A, T, 2), NaN where an agent was not seen."""
    if isinstance(tracks, Mapping):
        if not tracks:
            raise checks.wrong("tracks", "of at least one agent", "empty")
        longest = max(len(points) for points in tracks.values())
        past = np.full((len(tracks), longest, 2), np.nan, np.float32)
        for number, (name, points) in enumerate(tracks.items()):
            for place, point in enumerate(points, longest - len(points)):
                if point is not None:
                    past[number, place] = _as_point(name, point)
        return tuple(map(str, tracks)), past
    array = tracks.detach().cpu().numpy() if isinstance(tracks, Tensor) else np.asarray(tracks)
    if array.ndim != 3 or array.shape[-1] != 2 or not np.issubdtype(array.dtype, np.number):
        raise checks.wrong("tracks", "a file, points by agent, or an array (agents, steps, 2)",
                           f"of shape {tuple(array.shape)}")
    if np.isinf(array).any():
        raise checks.wrong("tracks", "of finite numbers, and NaN where an agent was not seen", "with inf")
    return tuple(map(str, range(len(array)))), array.astype(np.float32)


def _as_point(name: Any, point: Any) -> tuple[float, float]:
    try:
        x, y = map(float, point)
    except (TypeError, ValueError):
        raise checks.wrong(f"tracks[{name!r}]", "points (x, y), or None", repr(point)) from None
    if np.isinf([x, y]).any():
        raise checks.wrong(f"tracks[{name!r}]", "points of finite numbers", repr(point))
    return x, y
