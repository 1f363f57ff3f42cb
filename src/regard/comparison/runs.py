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
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from regard.checks import plural
from regard.comparison.settings import ComparisonSettings, RoadStep, match_parameters, steps_for_amount
from regard.comparison.splits import SplitFiles
from regard.storage.filesystem import FolderError, write_file
from regard.tokens import IGNORED_LABEL
from regard.training import logging, resolution
from regard.training.checkpoints import CheckpointManager
from regard.training.logging import Logger
from regard.training.resolution import CHECKPOINTS_FOLDER, TASKS, PreparedTraining, prepare
from regard.training.tasks.interface import TrainingRequest
from regard.training.threads import torch_threads
from regard.training.train import train

PLAN_FILE, DATA_FOLDER, RUNS_FOLDER, STEPS_FILE = "plan.json", "data", "runs", "steps.json"
RESULTS_FILE, PAGE_FILE = "results.json", "page.html"
PLAN_FORMAT = "regard comparison"
Table = dict[str, Any]


class ComparisonFolder:
    """The folder of a comparison."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def data(self) -> Path:
        """The folder of the data files."""
        return self.folder / DATA_FOLDER

    @contextmanager
    def removed_on_error(self) -> Iterator[None]:
        """Remove the folder if its data is refused, so that a call that fails before the first run leaves nothing."""
        try:
            yield
        except ValueError:
            if {entry.name for entry in self.folder.iterdir()} <= {PLAN_FILE, DATA_FOLDER}:
                shutil.rmtree(self.folder)
            raise

    def model(self, name: str, seed: int) -> Path:
        """The output folder of a training run."""
        return self.folder / RUNS_FOLDER / f"{name}-{seed}"

    def finished(self, name: str, seed: int) -> Table | None:
        """The measurements of a run; None if it is not finished."""
        path = self._measures(name, seed)
        return _read_object(path) if path.exists() else None

    def finish(self, name: str, seed: int, measured: Table) -> None:
        """Store the measurements of a run."""
        self.write(str(self._measures(name, seed).relative_to(self.folder)), json.dumps(measured, ensure_ascii=False))

    def write(self, name: str, text: str) -> Path:
        """Write a file completely or not at all, over an existing one."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, text.encode("utf-8", "backslashreplace"))
        return path

    def _measures(self, name: str, seed: int) -> Path:
        return self.folder / RUNS_FOLDER / f"{name}-{seed}.json"


def claim_folder(folder: Path, request: Mapping[str, Any]) -> ComparisonFolder:
    """Create the folder of a comparison, or open it if the same comparison was requested before."""
    place, plan = ComparisonFolder(folder), {"format": PLAN_FORMAT, **json.loads(json.dumps(request))}
    if folder.exists() and not folder.is_dir():
        raise FolderError(f"{folder}: This is a file, not a folder. Choose another folder with -o.")
    if not folder.exists() or not any(folder.iterdir()):
        folder.mkdir(parents=True, exist_ok=True)
        place.write(PLAN_FILE, json.dumps(plan, indent=1, ensure_ascii=False) + "\n")
        return place
    if not (folder / PLAN_FILE).is_file():
        raise FolderError(f"{folder}: The folder is not empty and has no comparison. Choose another folder with -o.")
    there = _read_object(folder / PLAN_FILE)
    if there.get("format") != PLAN_FORMAT:
        raise FolderError(f"{folder / PLAN_FILE}: This is not the plan of a comparison. Choose another folder with -o.")
    different = [f"  {key}: {json.dumps(there.get(key), ensure_ascii=False)} is stored, "
                 f"{json.dumps(plan.get(key), ensure_ascii=False)} is requested"
                 for key in dict.fromkeys((*there, *plan)) if there.get(key) != plan.get(key)]
    if different:
        raise FolderError("\n".join([f"{folder}: The folder has another comparison.", *different,
                                     "Repeat the same request, or choose another folder with -o."]))
    return place


def _read_object(path: Path) -> Table:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # also for text that is not UTF-8
        raise FolderError(f"{path}: The file is damaged ({error}). Remove it, or choose another folder with "
                          "-o.") from error
    if not isinstance(found, dict):
        raise FolderError(f"{path}: Expected a JSON object. Remove it, or choose another folder with -o.")
    return found


COUNTED_BATCHES = 200
"""At most this many batches are counted."""
PILOT_STEPS, UNTIMED_STEPS = 24, 8
"""Steps of a timed trial, and how many of them at the start are not timed."""


class TrainingAllowance(NamedTuple):
    """The training steps of one model, and the changes of its config."""

    steps: int
    changes: dict[str, Any]


def plan_steps(setting: ComparisonSettings, files: SplitFiles, place: Path) -> dict[str, TrainingAllowance]:
    """The training steps of each model by name. `place` is a temporary folder, removed at the end."""
    found, same = dict[str, TrainingAllowance](), None
    with _temporary_folder(place):
        for step in setting.steps:
            changes = dict[str, Any]()
            if setting.budget.parameters is not None:
                changes = match_parameters(_prepare_run(setting, step, files, place).model, setting.budget.parameters)
            if setting.budget.minutes is not None:
                steps = steps_for_amount(60 * setting.budget.minutes,
                                         _seconds_per_step(setting, step, files, place, changes))
            else:  # all models see the same batches
                steps = same = same or _steps_for_tokens(_prepare_run(setting, step, files, place),
                                                         setting.budget.tokens)
            found[step.name] = TrainingAllowance(steps, changes)
    return found


def training_request(setting: ComparisonSettings, step: RoadStep, files: SplitFiles, output: Path,
                     changes: dict[str, Any], *,
                     steps: int | None = None, seed: int = 1, resume: bool = False) -> TrainingRequest:
    """The training request for one model."""
    return TrainingRequest(task=setting.task, data=(str(files.train),), validation=(str(files.validation),),
                           output=output, recipe=setting.recipe(step), resume=resume, device=setting.device,
                           adapt_threads=False,
                           changes={**setting.changes_of(step, steps), **changes, "training.seed": seed})


def _prepare_run(setting: ComparisonSettings, step: RoadStep, files: SplitFiles, place: Path) -> PreparedTraining:
    request = training_request(setting, step, files, place / "trial", {})
    plan = TASKS[setting.task]()
    name = _device_name(setting)
    return prepare(request, plan, resolution.requested_config(request, plan),
                   resolution.device_properties(torch.device(name)), lambda event: None)


def _steps_for_tokens(ready: PreparedTraining, tokens: int | None) -> int:
    """The steps that see this number of target tokens; without one, the steps that the model would have by itself."""
    if tokens is None:
        return ready.settings.steps
    feed, many = ready.task.feed(0, 1), ready.settings.gradient_accumulation
    count = min(COUNTED_BATCHES, feed.steps)
    counted = sum(int((feed.at(number).labels != IGNORED_LABEL).sum()) for number in range(count))
    return steps_for_amount(tokens, many * counted / count)


class _StepClock:
    """A logger that records the time of each step."""

    name = "clock"

    def __init__(self) -> None:
        self.times: dict[int, float] = {}

    def __call__(self, event: logging.TrainingEvent, /) -> None:
        if isinstance(event, logging.TrainingProgress):
            self.times[event.step] = time.monotonic()

    def close(self) -> None:
        """Nothing to close."""


def _seconds_per_step(setting: ComparisonSettings, step: RoadStep, files: SplitFiles, place: Path,
                      changes: dict[str, Any]) -> float:
    """Seconds per training step, from a short trial."""
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


MeasuresT = TypeVar("MeasuresT")
QUICK_THREADS = 4
"""A quick comparison uses at most this many threads."""


class InterruptedTraining(Exception):  # noqa: N818 (requested by the user: no error)
    """The user stopped a training. The same command continues the comparison."""


class RunMeasures(NamedTuple, Generic[MeasuresT]):
    """How a trained model is measured, and how that is stored."""

    measure: Callable[[Path, str, int | None], MeasuresT]
    """(model folder, device, peak memory of a GPU) -> the measurements"""
    to_json: Callable[[MeasuresT], Table]
    from_json: Callable[[Table], MeasuresT]


class RunReporter(NamedTuple):
    """Where a comparison reports its progress."""

    note: Callable[[str], None]
    """Called with a line of text."""
    loggers: Callable[[], Sequence[Logger]]
    """Makes the loggers of one training."""


def run_comparison(setting: ComparisonSettings, place: ComparisonFolder, files: SplitFiles, reporter: RunReporter,
                   measures: RunMeasures[MeasuresT]) -> dict[str, list[MeasuresT]]:
    """Train and measure every model with every seed; finished runs are read, not repeated."""
    with torch_threads(thread_number(setting)):
        return _run_all(setting, place, files, reporter, measures)


def _run_all(setting: ComparisonSettings, place: ComparisonFolder, files: SplitFiles, reporter: RunReporter,
             measures: RunMeasures[MeasuresT]) -> dict[str, list[MeasuresT]]:
    todo = [(step, seed) for step in setting.steps for seed in range(1, setting.seeds + 1)]
    allowed: dict[str, TrainingAllowance] = {}
    if any(place.finished(step.name, seed) is None for step, seed in todo):
        allowed = _allowances(setting, place, files)
    results: dict[str, list[MeasuresT]] = {step.name: [] for step in setting.steps}
    for number, (step, seed) in enumerate(todo, 1):
        known = place.finished(step.name, seed)
        if known is None:
            steps = plural(allowed[step.name].steps, "step")
            reporter.note(f"{number} of {len(todo)}: {step.name}, seed {seed}, {steps}")
            peak = _train_run(setting, step, seed, place, files, allowed[step.name], reporter)
            found = measures.measure(place.model(step.name, seed), _device_name(setting), peak)
            place.finish(step.name, seed, measures.to_json(found))
        else:
            reporter.note(f"{number} of {len(todo)}: {step.name}, seed {seed}: finished before")
            found = measures.from_json(known)
        results[step.name].append(found)
    return results


def thread_number(setting: ComparisonSettings) -> int:
    """The CPU threads of a comparison. A quick one has few: with small models, more mostly wait for each other."""
    threads = torch.get_num_threads()
    return min(QUICK_THREADS, threads) if setting.small else threads


def _allowances(setting: ComparisonSettings, place: ComparisonFolder,
                files: SplitFiles) -> dict[str, TrainingAllowance]:
    """The steps of each model: the stored ones, so that a comparison continues as it began, or new ones."""
    kept = place.folder / STEPS_FILE
    known: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    missing = tuple(step for step in setting.steps if step.name not in known)
    if missing:
        found = plan_steps(replace(setting, steps=missing), files, place.folder / "trial")
        known |= {name: one._asdict() for name, one in found.items()}
        place.write(kept.name, json.dumps(known, indent=1) + "\n")
    return {name: TrainingAllowance(**one) for name, one in known.items()}


def _train_run(setting: ComparisonSettings, step: RoadStep, seed: int, place: ComparisonFolder, files: SplitFiles,
               allowed: TrainingAllowance, reporter: RunReporter) -> int | None:
    """Train one model to the end, and return the peak memory of a GPU."""
    folder = place.model(step.name, seed)
    begun = _has_checkpoint(folder)
    if not begun and folder.exists():
        shutil.rmtree(folder)  # killed before its first checkpoint; the folder belongs to the comparison
    request = training_request(setting, step, files, folder, allowed.changes, steps=allowed.steps, seed=seed,
                               resume=begun)
    cuda = _device_name(setting).startswith("cuda")
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    outcome = train(request, reporter.loggers())
    if not outcome.finished:
        raise InterruptedTraining(f"{folder}: The training was interrupted. The same command resumes it.")
    return torch.cuda.max_memory_allocated() if cuda else None


def _has_checkpoint(folder: Path) -> bool:
    """Whether there is a checkpoint to resume from."""
    return folder.is_dir() and bool(CheckpointManager(folder / CHECKPOINTS_FOLDER, keep=1).steps())


def _device_name(setting: ComparisonSettings) -> str:
    if setting.device != "auto":
        return setting.device
    return "cuda" if torch.cuda.is_available() else "cpu"
