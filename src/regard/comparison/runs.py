"""The training runs of a comparison: its folder, the number of steps of each model, training and measuring.

    comparison/
      plan.json              what was requested; it marks the folder as a comparison
      steps.json             the number of training steps of each model
      data/                  the pairs that all models share
      runs/NAME-SEED/        a model folder, as `regard train` makes it
      runs/NAME-SEED.json    the measurements of a finished run
      results.json, page.html

The same request continues a comparison: finished runs are read, an interrupted training is resumed. More models or
seeds may be added; everything else must be unchanged. The steps for a token budget are counted in the batches that the
models will see; those for minutes are predicted by a few timed steps whose result is discarded.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from regard.comparison.measures import ModelMeasures, measure_model
from regard.comparison.settings import ComparisonSettings, RoadStep, match_parameters, steps_for_amount
from regard.comparison.splits import SplitFiles, read_pairs
from regard.storage.filesystem import FolderError
from regard.tokens import IGNORED_LABEL
from regard.training import logging, resolution
from regard.training.checkpoints import CheckpointManager
from regard.training.logging import Logger
from regard.training.resolution import CHECKPOINTS_FOLDER, TASKS, PreparedTraining, prepare
from regard.training.tasks.interface import TrainingRequest
from regard.training.train import train

PLAN_FILE, DATA_FOLDER, RUNS_FOLDER, STEPS_FILE = "plan.json", "data", "runs", "steps.json"
RESULTS_FILE, PAGE_FILE = "results.json", "page.html"
PLAN_FORMAT = "regard comparison"
Table = dict[str, Any]


class ComparisonFolder:
    """A folder that is ours."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def data(self) -> Path:
        """Where the pairs are."""
        return self.folder / DATA_FOLDER

    def model(self, name: str, seed: int) -> Path:
        """Where a model is trained."""
        return self.folder / RUNS_FOLDER / f"{name}-{seed}"

    def finished(self, name: str, seed: int) -> Table | None:
        """What was measured of a run; None where it is not finished."""
        path = self._measures(name, seed)
        return _read_object(path) if path.exists() else None

    def finish(self, name: str, seed: int, measured: Table) -> None:
        """Keep what was measured of a run."""
        self.write(f"{RUNS_FOLDER}/{name}-{seed}.json", json.dumps(measured, ensure_ascii=False))

    def write(self, name: str, text: str) -> Path:
        """A file of ours, whole or not at all; it may be there already."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.part")
        with aside.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
        return path

    def _measures(self, name: str, seed: int) -> Path:
        return self.folder / RUNS_FOLDER / f"{name}-{seed}.json"


def claim_folder(folder: Path, asked: Mapping[str, Any]) -> ComparisonFolder:
    """The folder of this comparison, which is made; or found, where the same was asked for before."""
    place, plan = ComparisonFolder(folder), {"format": PLAN_FORMAT, **json.loads(json.dumps(asked))}
    if folder.exists() and not folder.is_dir():
        raise FolderError(f"{folder}: This is no folder. Choose another name.")
    if not folder.exists() or not any(folder.iterdir()):
        folder.mkdir(parents=True, exist_ok=True)
        place.write(PLAN_FILE, json.dumps(plan, indent=1, ensure_ascii=False) + "\n")
        return place
    if not (folder / PLAN_FILE).is_file():
        raise FolderError(f"{folder}: There is something already, and no comparison. Choose another folder with -o.")
    there = _read_object(folder / PLAN_FILE)
    if there.get("format") != PLAN_FORMAT:
        raise FolderError(f"{folder / PLAN_FILE}: This is not the plan of a comparison. Choose another folder with -o.")
    different = [f"  {key}: {json.dumps(there.get(key), ensure_ascii=False)} is there, "
                 f"{json.dumps(plan.get(key), ensure_ascii=False)} is asked for"
                 for key in dict.fromkeys((*there, *plan)) if there.get(key) != plan.get(key)]
    if different:
        raise FolderError("\n".join([f"{folder}: There is another comparison.", *different,
                                     "Ask for the same, or choose another folder with -o."]))
    return place


def _read_object(path: Path) -> Table:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # also what is not UTF-8
        raise FolderError(f"{path}: This is not the JSON that was written there ({error}). Remove it, or choose "
                          f"another folder with -o.") from error
    if not isinstance(found, dict):
        raise FolderError(f"{path}: Expected a JSON object. Remove it, or choose another folder with -o.")
    return found


TASK = "seq2seq"
COUNTED_BATCHES = 200
"""Batches that are counted, at most."""
PILOT_STEPS, UNTIMED_STEPS = 24, 8
"""Steps of a trial for minutes, and those of them that are not timed."""


class TrainingAllowance(NamedTuple):
    """What one model is given."""

    steps: int
    changes: dict[str, Any]
    """Of its config, to match parameters."""


def plan_steps(setting: ComparisonSettings, files: SplitFiles, place: Path) -> dict[str, TrainingAllowance]:
    """The steps of each model, by its name. What is at the place for a while is removed in the end."""
    found, same = dict[str, TrainingAllowance](), None
    with _temporary_folder(place):
        for step in setting.steps:
            changes = dict[str, Any]()
            if setting.budget.parameters is not None:
                changes = match_parameters(_prepare_run(setting, step, files, place).model, setting.budget.parameters)
            if setting.budget.minutes is not None:
                steps = steps_for_amount(60 * setting.budget.minutes,
                                         _seconds_per_step(setting, step, files, place, changes))
            else:  # all models learn from the same batches
                steps = same = same or _steps_for_tokens(_prepare_run(setting, step, files, place),
                                                         setting.budget.tokens)
            found[step.name] = TrainingAllowance(steps, changes)
    return found


def training_request(setting: ComparisonSettings, step: RoadStep, files: SplitFiles, output: Path,
                     changes: dict[str, Any], *,
                     steps: int | None = None, seed: int = 1, resume: bool = False) -> TrainingRequest:
    """What a training of this model is asked for."""
    return TrainingRequest(task=TASK, data=(str(files.train),), validation=(str(files.validation),), output=output,
                           recipe=setting.recipe(step), resume=resume, device=setting.device,
                           changes={**setting.changes_of(step, steps), **changes, "training.seed": seed})


def _prepare_run(setting: ComparisonSettings, step: RoadStep, files: SplitFiles, place: Path) -> PreparedTraining:
    asked = training_request(setting, step, files, place / "trial", {})
    plan = TASKS[TASK]()
    name = setting.device if setting.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    return prepare(asked, plan, resolution.requested_config(asked, plan),
                   resolution.device_properties(torch.device(name)), lambda event: None)


def _steps_for_tokens(ready: PreparedTraining, tokens: int | None) -> int:
    """The steps that learn from so many target tokens; where none are given, those of a training by itself."""
    if tokens is None:
        return ready.settings.steps
    feed, many = ready.task.feed(0, 1), ready.settings.gradient_accumulation
    count = min(COUNTED_BATCHES, feed.steps)
    counted = sum(int((feed.at(number).labels != IGNORED_LABEL).sum()) for number in range(count))
    return steps_for_amount(tokens, many * counted / count)


class _StepClock:
    """A logger that notes when steps were done."""

    name = "clock"

    def __init__(self) -> None:
        self.times: dict[int, float] = {}

    def __call__(self, event: logging.TrainingEvent, /) -> None:
        if isinstance(event, logging.TrainingProgress):
            self.times[event.step] = time.monotonic()

    def close(self) -> None:
        """Nothing is held."""


def _seconds_per_step(setting: ComparisonSettings, step: RoadStep, files: SplitFiles, place: Path,
                      changes: dict[str, Any]) -> float:
    """Seconds of a step."""
    clock = _StepClock()
    few = {**changes, "training.log_every": UNTIMED_STEPS, "training.validation.max_examples": 1,
           "training.validation.every": PILOT_STEPS}
    train(training_request(setting, step, files, place / f"pilot-{step.name}", few, steps=PILOT_STEPS), [clock])
    return (clock.times[PILOT_STEPS] - clock.times[UNTIMED_STEPS]) / (PILOT_STEPS - UNTIMED_STEPS)


@contextmanager
def _temporary_folder(place: Path) -> Iterator[None]:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    try:
        yield
    finally:
        shutil.rmtree(place, ignore_errors=True)


RunResults = dict[str, list[ModelMeasures]]
QUICK_THREADS = 4
"""Of a quick comparison, at most."""


class InterruptedTraining(Exception):  # noqa: N818 (somebody asked for it: no error)
    """Somebody asked a training to end. The same comparison, asked for again, goes on."""


class RunReporter(NamedTuple):
    """Who is told what."""

    note: Callable[[str], None]
    """Takes a line for people."""
    loggers: Callable[[], Sequence[Logger]]
    """Makes those that are told of one training."""


def run_comparison(setting: ComparisonSettings, place: ComparisonFolder, files: SplitFiles,
                   told: RunReporter) -> RunResults:
    """Train and measure what is not finished yet."""
    with _few_threads(setting):
        return _run_all(setting, place, files, told)


def _run_all(setting: ComparisonSettings, place: ComparisonFolder, files: SplitFiles, told: RunReporter) -> RunResults:
    todo = [(step, seed) for step in setting.steps for seed in range(1, setting.seeds + 1)]
    tested = read_pairs(files.test)
    allowed: dict[str, TrainingAllowance] = {}
    if any(place.finished(step.name, seed) is None for step, seed in todo):
        allowed = _allowances(setting, place, files)
    results: RunResults = {step.name: [] for step in setting.steps}
    for number, (step, seed) in enumerate(todo, 1):
        known = place.finished(step.name, seed)
        if known is None:
            told.note(f"{number} of {len(todo)}: {step.name}, seed {seed}, {allowed[step.name].steps:,} steps")
            peak = _train_run(setting, step, seed, place, files, allowed[step.name], told)
            found = measure_model(place.model(step.name, seed), tested, beams=setting.beams,
                                  device=_device_name(setting), peak=peak)
            place.finish(step.name, seed, found.plain())
        else:
            told.note(f"{number} of {len(todo)}: {step.name}, seed {seed}: finished before")
            found = ModelMeasures.of_plain(known)
        results[step.name].append(found)
    return results


@contextmanager
def _few_threads(setting: ComparisonSettings) -> Iterator[None]:
    """Inside, small models have few threads: more of them would mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(min(QUICK_THREADS, before) if setting.small else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _allowances(setting: ComparisonSettings, place: ComparisonFolder, files: SplitFiles) -> dict[str,
                                                                                                 TrainingAllowance]:
    """The steps of each model: as found out before, so that a comparison goes on as it began, or found out now."""
    kept = place.folder / STEPS_FILE
    known: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    missing = tuple(step for step in setting.steps if step.name not in known)
    if missing:
        found = plan_steps(replace(setting, steps=missing), files, place.folder / "trial")
        known |= {name: one._asdict() for name, one in found.items()}
        place.write(kept.name, json.dumps(known, indent=1) + "\n")
    return {name: TrainingAllowance(**one) for name, one in known.items()}


def _train_run(setting: ComparisonSettings, step: RoadStep, seed: int, place: ComparisonFolder, files: SplitFiles,
               allowed: TrainingAllowance,
               told: RunReporter) -> int | None:
    """Train one model to its end; what a GPU held at most."""
    folder = place.model(step.name, seed)
    begun = _has_checkpoint(folder)
    if not begun and folder.exists():
        shutil.rmtree(folder)  # killed before there was anything to go on with; the folder is ours
    asked = training_request(setting, step, files, folder, allowed.changes, steps=allowed.steps, seed=seed,
                             resume=begun)
    cuda = _device_name(setting).startswith("cuda")
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    outcome = train(asked, told.loggers())
    if not outcome.finished:
        raise InterruptedTraining(f"{folder}: The training was interrupted. The same command goes on with it.")
    return torch.cuda.max_memory_allocated() if cuda else None


def _has_checkpoint(folder: Path) -> bool:
    """Whether there is a training to go on with."""
    return folder.is_dir() and bool(CheckpointManager(folder / CHECKPOINTS_FOLDER, keep=1).steps())


def _device_name(setting: ComparisonSettings) -> str:
    if setting.device != "auto":
        return setting.device
    return "cuda" if torch.cuda.is_available() else "cpu"
