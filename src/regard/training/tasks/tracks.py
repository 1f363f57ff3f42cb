"""Training a forecaster of tracks: windows of scenes, the best of K futures, and distances as scores.

    survey_tracks(data, validation, config)     the scenes of the files
    TracksTask                                  batches, loss and validation
    TracksSetup                                 from files to a TracksTask

The loss of an agent is the distance of the best of its K futures, ADE + FDE, and the cross entropy of the mode that was
best; that of a window is the same of its joint futures. Only the best future learns, so that the others stay free for
other outcomes. Without validation data, whole scenes are held out if there are enough of them, else the end of every
scene, with a gap so that no window overlaps.

Legend: A agents of a batch, C agents that are predicted, T observed steps, P predicted steps, K futures.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard import checks
from regard import config as configs
from regard.checks import plural
from regard.data.batches.feed import BatchConfig, PlanFeed, WindowPlan
from regard.data.batches.plan import ExampleNumbers, derive_key
from regard.data.sources.text import DataError, ReadLog
from regard.data.tracks.checking import usual_step
from regard.data.tracks.reading import Scene, read_tracks
from regard.data.tracks.windows import TrackWindow, all_windows, split_scenes
from regard.models.build import ModelConfig
from regard.models.tracks import Futures, TrackForecaster, TracksConfig
from regard.special_tokens import SpecialTokens
from regard.tasks.forecast_baselines import fit_baselines
from regard.tasks.forecast_metrics import ForecastSums
from regard.tasks.forecaster import Forecaster, window_batches
from regard.tasks.load import make_task
from regard.tasks.task import Task
from regard.toml import TomlDocument
from regard.training import defaults
from regard.training.config import DataConfig, TrainingConfig
from regard.training.defaults import Default, DeviceProperties, lookup
from regard.training.logging import ValidationExample
from regard.training.loss import Loss
from regard.training.tasks.common import evaluation_mode, file_digests, read_summary, refuse_sampling
from regard.training.tasks.interface import (
    LABEL_KEYS,
    PAIR_KEYS,
    Objective,
    TaskSetup,
    TrainingRequest,
    TrainingTask,
    ValidationResult,
    validation_fraction_default,
)

VALIDATION_FRACTION = 0.15
MIN_SCENES = 5
"""With fewer scenes, the end of every scene is held out, and not whole scenes."""
MIN_WINDOWS = 20
"""With fewer windows there is no validation split."""
MODE_WEIGHT = 0.5
"""The weight of the cross entropy of the best mode, beside distances in usual steps."""
MIRRORED, SHORTENED = 0.5, 0.15
"""Augmentation: the share of batches that are mirrored, and of those whose first steps are not observed."""
ROUND_AGENTS = 32
"""On a GPU the agents of a batch are padded to a multiple of this, so that there are few shapes."""


@dataclass(frozen=True)
class TracksSurvey:
    """The scenes of the files."""

    files: dict[str, str]
    """The sha256 of every file by its name."""
    config: DataConfig
    scenes: tuple[Scene, ...]
    validation: tuple[Scene, ...]
    names: tuple[str, ...]
    log: ReadLog

    @property
    def counts(self) -> dict[str, int]:
        """What was read."""
        return {"tracks": sum(len(scene.agents) for scene in self.scenes)}

    @property
    def warnings(self) -> list[str]:
        """What was read, and notes about it."""
        rows = sum(len(scene.frame) for scene in self.scenes)
        read = read_summary(f"{plural(rows, 'row')} of {plural(self.counts['tracks'], 'track')}", self.names)
        unsorted = [f"{scene.unsorted}: The frames of an agent are not in order; they are sorted."
                    for scene in (*self.scenes, *self.validation) if scene.unsorted is not None]
        return [read, *self.log.notes, *unsorted]


def survey_tracks(data: Sequence[str], validation: Sequence[str], config: DataConfig) -> TracksSurvey:
    """Read all files."""
    log = ReadLog()
    scenes, others = (tuple(read_tracks(paths, config.columns, log)) for paths in (data, validation))
    return TracksSurvey(file_digests([*data, *validation]), config, scenes, others, tuple(data), log)


@dataclass(frozen=True)
class PreparedTracks:
    """Training and validation windows."""

    training: tuple[TrackWindow, ...]
    validation: tuple[TrackWindow, ...]
    unit: float
    """The usual step."""
    notes: tuple[str, ...] = ()

    @property
    def agents(self) -> int:
        """The agents of all training windows that are predicted."""
        return sum(int(predictable(window).sum()) for window in self.training)


def predictable(window: TrackWindow) -> Any:
    """Which agents a model can learn from: they are there in all steps to predict and in the last two observed."""
    return ~(np.isnan(window.future[..., 0]).any(1) | np.isnan(window.past[:, -2:, 0]).any(1))


def prepare_tracks(survey: TracksSurvey, observed: int, predicted: int) -> PreparedTracks:
    """The windows of the scenes, split."""
    config, notes = survey.config, []
    step = config.frame_step
    windows = all_windows(survey.scenes, observed, predicted, step=step)
    if survey.validation:
        training = [window for some in windows for window in some]
        held = [one for some in all_windows(survey.validation, observed, predicted, step=step) for one in some]
    else:
        by_scene = sum(map(bool, windows)) >= MIN_SCENES
        training, held = split_scenes(windows, config.validation_fraction, by_scene=by_scene)
        if not training:
            training, held = [window for some in windows for window in some], []
        if held:
            names = sorted({window.scene for window in held})
            where = f"{plural(len(names), 'scene')} of {len(windows)}" if by_scene else "the end of every scene"
            notes.append(f"Validation uses {where}: {plural(len(held), 'window')}.")
    notes.append(f"{plural(len(training), 'training window')} of {observed} observed and {predicted} predicted steps.")
    return PreparedTracks(tuple(training), tuple(held) or tuple(training), usual_step(survey.scenes, step),
                          tuple(notes))


@dataclass(frozen=True)
class TrackBatch:
    """Some windows as tensors."""

    past: Tensor
    """(A, T, 2)"""
    scene: Tensor
    """(A,): the window of each agent; -1 for padding."""
    chosen: Tensor
    """(C,): the agents that are predicted."""
    future: Tensor
    """(C, P, 2)"""
    counted: Tensor
    """(C,): 1, or 0 for padding."""
    numbers: ExampleNumbers
    tokens: int
    """The number of agents that are predicted."""

    def to(self, device: "torch.device | str") -> "TrackBatch":
        """The same batch on a device."""
        tensors: dict[str, Any] = {name: value.to(device, non_blocking=True) for name, value in vars(self).items()
                                   if isinstance(value, Tensor)}
        return replace(self, **tensors)


@dataclass(frozen=True)
class TrackCollator:
    """Makes batches of windows by their numbers."""

    windows: Sequence[TrackWindow]
    observed: int
    predicted: int
    seed: int | None = None
    """Augmentation follows from it and the epoch; None for none."""
    padded: bool = False
    """Whether agents are padded to a multiple of ROUND_AGENTS."""

    def __call__(self, numbers: ExampleNumbers, epoch: int) -> TrackBatch:
        some = [self.windows[number] for number in numbers]
        past = np.concatenate([window.past for window in some] or [np.zeros((0, self.observed, 2), np.float32)])
        future = np.concatenate([window.future for window in some] or [np.zeros((0, self.predicted, 2), np.float32)])
        scene = np.repeat(np.arange(len(some)), [len(window.past) for window in some])
        chosen = np.flatnonzero(np.concatenate([predictable(window) for window in some] or [np.zeros(0, bool)]))
        past, future = self._augmented(past, future[chosen], numbers, epoch)
        counted = np.ones(len(chosen), np.float32)
        more = 1 if not len(past) else -len(past) % ROUND_AGENTS + ROUND_AGENTS if self.padded else 0
        spare = 1 if not len(chosen) else -len(chosen) % ROUND_AGENTS if self.padded else 0
        if more:
            past = np.concatenate([past, np.zeros((more, self.observed, 2), np.float32)])
            scene = np.concatenate([scene, np.full(more, -1)])
            chosen = np.concatenate([chosen, np.full(spare, len(past) - 1)])
            future = np.concatenate([future, np.zeros((spare, self.predicted, 2), np.float32)])
            counted = np.concatenate([counted, np.zeros(spare, np.float32)])
        return TrackBatch(torch.from_numpy(past), torch.from_numpy(scene.astype(np.int64)),
                          torch.from_numpy(chosen.astype(np.int64)), torch.from_numpy(future),
                          torch.from_numpy(counted), numbers, int(counted.sum()))

    def _augmented(self, past: Any, future: Any, numbers: ExampleNumbers, epoch: int) -> tuple[Any, Any]:
        if self.seed is None or not len(numbers):
            return past, future
        rng = np.random.default_rng(derive_key(self.seed, epoch, int(numbers[0])) % 2**63)
        if rng.random() < MIRRORED:
            mirror = np.array([1.0, -1.0], np.float32)
            past, future = past * mirror, future * mirror
        if rng.random() < SHORTENED and self.observed > 2:
            past = past.copy()
            past[:, :rng.integers(1, self.observed - 1)] = np.nan
        return past, future


def tracks_feed(prepared: PreparedTracks, model: TracksConfig, rows: int, seed: int, rank: int = 0, processes: int = 1,
                padded: bool = False) -> PlanFeed:
    """The batches of all training windows, `rows` of them each."""
    collate = TrackCollator(prepared.training, model.observed_steps, model.predicted_steps, seed, padded)
    most = np.argsort([-len(window.past) for window in prepared.training], kind="stable")[:rows]
    return PlanFeed(WindowPlan(len(prepared.training), rows, seed), collate,  # type: ignore[arg-type]
                    rank=rank, processes=processes, largest=[most])


class ForecastErrors(NamedTuple):
    """The loss of each agent, (C,), and of its window: distances in usual steps, and cross entropies."""

    single: Tensor
    single_mode: Tensor
    joint: Tensor
    joint_mode: Tensor
    window_share: Tensor
    """1 / the agents of the window, so that the sum over agents is a sum over windows; 0 for padding."""


def forecast_errors(single: Futures, joint: Futures, batch: TrackBatch, unit: Tensor) -> ForecastErrors:
    """The errors of the best of K futures."""
    ade, fde = _distances(single, batch.future, unit)
    scene = batch.scene[batch.chosen]
    together = (scene.unsqueeze(1) == scene) * batch.counted.to(ade.dtype)
    count = together.sum(1, keepdim=True).clamp(min=1)
    joint_ade, joint_fde = (together @ each / count for each in _distances(joint, batch.future, unit))
    return ForecastErrors(
        ade.amin(1) + fde.amin(1), F.cross_entropy(single.logits, (ade + fde).argmin(1), reduction="none"),
        joint_ade.amin(1) + joint_fde.amin(1),
        F.cross_entropy(joint.logits, (joint_ade + joint_fde).argmin(1), reduction="none"),
        batch.counted / count.squeeze(1))


def _distances(futures: Futures, truth: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
    """ADE and FDE (C, K) in usual steps."""
    distance = (futures.points - truth.unsqueeze(1)).norm(dim=-1) / unit
    return distance.mean(-1), distance[..., -1]


class ForecastObjective(Objective):
    """The loss of a forecaster: single futures for every agent, and joint ones for every window, equally weighted."""

    def forward(self, batch: TrackBatch) -> Loss:
        """The sums over agents; those over windows are scaled to as many agents."""
        model = self.model
        assert isinstance(model, TrackForecaster)
        single, joint = model(batch.past, batch.scene, batch.chosen)
        errors = forecast_errors(single, joint, batch, model.unit)
        agents, windows = batch.counted.sum(), errors.window_share.sum().clamp(min=1e-6)
        own = ((errors.single + MODE_WEIGHT * errors.single_mode) * batch.counted).sum()
        shared = ((errors.joint + MODE_WEIGHT * errors.joint_mode) * errors.window_share).sum() * agents / windows
        total = own + shared
        return Loss(total, total.detach(), agents)


class TracksTask(TrainingTask):
    """Training of a forecaster, validated by the distances of the best of K futures."""

    name = "forecasting of tracks"
    prepared: PreparedTracks
    model_config: TracksConfig

    def __init__(self, prepared: PreparedTracks, model_config: ModelConfig, settings: TrainingConfig,
                 record: dict[str, Any] | None = None) -> None:
        if not isinstance(model_config, TracksConfig):
            raise checks.wrong("model.kind", f'"{TracksConfig.kind}", for tracks', f'"{model_config.kind}"')
        refuse_sampling(settings)
        if settings.rdrop or settings.label_smoothing:
            key = "rdrop" if settings.rdrop else "label_smoothing"
            raise checks.wrong(f"training.{key}", "0 for tracks", getattr(settings, key))
        steps = prepared.training[0].past.shape[1], prepared.training[0].future.shape[1]
        if steps != (model_config.observed_steps, model_config.predicted_steps):
            raise checks.wrong("model.observed_steps, model.predicted_steps", f"those of the windows, {steps}",
                               (model_config.observed_steps, model_config.predicted_steps))
        super().__init__(prepared, model_config, settings, record)
        self.validation_windows = prepared.validation[:settings.validation.max_examples]
        self.validation_count = len(self.validation_windows)

    def feed(self, rank: int, processes: int) -> PlanFeed:
        """The batches of this process."""
        batches = self.settings.batches
        return tracks_feed(self.prepared, self.model_config, batches.batch_size or 1, self.settings.seed, rank,
                           processes, padded=batches.shapes == "few")

    def initialize(self, model: nn.Module) -> None:
        """Fit anchors and the linear baseline to the training windows."""
        assert isinstance(model, TrackForecaster)
        past, future = _complete_agents(self.prepared.training)
        held = self.prepared.validation
        others = None if held is self.prepared.training else _complete_agents(held)
        fitted = fit_baselines(past, future, others, self.prepared.unit, self.model_config.num_futures,
                               self.settings.seed)
        model.set_anchors(self.prepared.unit, fitted.centres, fitted.regressions)

    def objective(self, model: nn.Module) -> Objective:
        """The model with its loss."""
        return ForecastObjective(model)

    def validation_batches(self) -> Sequence[TrackBatch]:
        """The validation windows in their order."""
        windows, config = self.validation_windows, self.model_config
        collate = TrackCollator(windows, config.observed_steps, config.predicted_steps)
        return [collate(numbers, 0) for numbers in window_batches([len(window.past) for window in windows])]

    def validate(self, task: Task) -> ValidationResult:
        """Loss and distances; `forecast_error` is the mean of minADE, minFDE, JADE and JFDE."""
        assert isinstance(task, Forecaster)
        objective, total, agents = self.objective(task.model), 0.0, 0.0
        with evaluation_mode(task.model):
            for batch in self.validation_batches():
                loss = objective(batch.to(task.device))
                total, agents = total + float(loss.total), agents + float(loss.tokens)
            sums = ForecastSums()
            for window, single, joint in task.window_futures(self.validation_windows):
                add_window(sums, window, single, joint)
        found = sums.means()
        scores = {name: found[name] for name in ("ade", "fde", "jade", "jfde")}
        return ValidationResult({"loss": total / max(1.0, agents), "forecast_error": sum(scores.values()) / 4,
                                 **scores}, tuple(self._examples(task)))

    def _examples(self, task: Forecaster) -> Iterator[ValidationExample]:
        """The last point of some agents, as it was and as the most probable future has it."""
        count, windows = self.settings.validation.samples_shown, self.validation_windows
        shown = [windows[number * len(windows) // max(1, count)] for number in range(min(count, len(windows)))]
        for window, single, _ in task.window_futures(shown):
            agent = int(np.flatnonzero(window.complete)[0])
            best = int(single.logits[agent].argmax())
            yield ValidationExample(f"agent {window.agents[agent]}, frame {window.frame:g}, at "
                                    f"{_point(window.past[agent, -1])}", _point(window.future[agent, -1]),
                                    _point(single.points[agent, best, -1]))

    def wrap(self, model: nn.Module) -> Task:
        """A Forecaster."""
        return make_task(model, self.model_config, SpecialTokens(), record=self.record)


def add_window(sums: ForecastSums, window: TrackWindow, single: Futures, joint: Futures) -> None:
    """Add the complete agents of a window."""
    chosen = torch.from_numpy(window.complete)
    sums.add(single.points[chosen], single.logits[chosen], joint.points[chosen],
             torch.from_numpy(window.future)[chosen], torch.from_numpy(window.past)[chosen, -1])


def _complete_agents(windows: Sequence[TrackWindow]) -> tuple[Tensor, Tensor]:
    """Past (A, T, 2) and future (A, P, 2) of the complete agents."""
    return (torch.from_numpy(np.concatenate([window.past[window.complete] for window in windows])),
            torch.from_numpy(np.concatenate([window.future[window.complete] for window in windows])))


def _point(point: Any) -> str:
    return f"({float(point[0]):.2f}, {float(point[1]):.2f})"


class TracksSetup(TaskSetup):
    """From files of tracks to a `TracksTask`; see `TaskSetup` for the methods."""

    recipes: tuple[str, ...] = (defaults.TRACKS_RECIPE,)
    model_kinds: tuple[str, ...] = ("tracks",)
    data_dependent: Mapping[str, Any] = {}
    scores: tuple[str, ...] = ("loss", "forecast_error", "ade", "fde", "jade", "jfde")
    unused: Mapping[str, Any] = {
        "training.windows": None, "training.masking": None, "training.random_shift": 0, "training.label_smoothing": 0.0,
        "training.rdrop": 0.0, "training.subword_sampling": 0.0, "training.batches.layout": "padded",
        "training.batches.max_tokens": BatchConfig().max_tokens, "tokenizer": None, "data.filters": None,
        **PAIR_KEYS, **LABEL_KEYS}

    def survey(self, request: TrainingRequest, config: DataConfig) -> TracksSurvey:
        return survey_tracks(request.data, request.validation, config)

    def data_defaults(self, survey: TracksSurvey, requested: Mapping[str, Any]) -> list[Default]:
        rows = sum(len(scene.frames) for scene in survey.scenes)
        fraction = 0.0 if survey.validation or rows < 2 * MIN_WINDOWS else VALIDATION_FRACTION
        return [validation_fraction_default(
            bool(survey.validation), fraction, f"{VALIDATION_FRACTION:.0%} of the windows, held out for validation",
            "too few frames to hold any out: validation uses the training data")]

    def prepare(self, survey: TracksSurvey, document: TomlDocument, place: Path) -> PreparedTracks:
        survey = replace(survey, config=configs.read_config(DataConfig, document, ("data",)))
        model = document.tables.get("model", {})
        own = TracksConfig(width=1, heads=1)
        if self.start is not None:
            assert isinstance(self.start.config, TracksConfig)
            own = self.start.config
        prepared = prepare_tracks(survey, lookup(model, "observed_steps", own.observed_steps),
                                  lookup(model, "predicted_steps", own.predicted_steps))
        if not prepared.agents:
            raise DataError(f"{', '.join(survey.names)}: No agent is there in all steps of a window. Give longer "
                            "tracks.")
        return prepared

    def recipe_default(self, prepared: PreparedTracks, device: DeviceProperties, requested: str | None) -> Default:
        return defaults.tracks_recipe(len(prepared.training), device, requested)

    def training_defaults(self, prepared: PreparedTracks, tables: Mapping[str, Any],
                          device: DeviceProperties) -> list[Default]:
        requested, model = tables.get("training", {}), tables["model"]
        scratch = [*defaults.tracks_training(len(prepared.training), prepared.agents, device, requested)]
        if self.start is None:
            return scratch
        data = defaults.FinetuningData(len(prepared.training), len(prepared.training), model["width"],
                                       len(prepared.validation), "window")
        rows = lookup(requested, "batches.batch_size", next(one.value for one in scratch
                                                            if one.key == "training.batches.batch_size"))
        return [*defaults.finetuning_training([*scratch, Default("training.batches.max_tokens", rows, "")], data,
                                              device, requested, fixed_batch=True)]

    def steps_per_epoch(self, prepared: PreparedTracks, document: TomlDocument) -> int:
        rows = lookup(document.tables, "training.batches.batch_size", 1)
        return tracks_feed(prepared, configs.read_config(TracksConfig, document, ("model",)), rows, seed=1).steps

    def build(self, prepared: PreparedTracks, model_config: ModelConfig, settings: TrainingConfig,
              record: dict[str, Any]) -> TracksTask:
        return TracksTask(prepared, model_config, settings, record)
