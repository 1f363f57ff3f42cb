"""`train`: run a whole training, from a request to a model in a folder.

    request ─► survey of the data ─► defaults ─► tokenizer and ids ─► defaults ─► model ─► loop ─► the best model

Every setting that the request leaves open gets a default (`regard.training.defaults`), which is reported before the
first step and stored in the model folder. The output folder holds

    config.toml, model.safetensors, tokenizer.*, README.md, manifest.json     the best model so far
    metrics.jsonl                                                             losses, scores and rates over the steps
    checkpoints/                                                              the last training states, to resume from
    data/                                                                     tokenizer and ids, while training

This module knows the order of the stages and how they are put together, and the details of none.
"""

import contextlib
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from regard import checks, config
from regard.models.build import build
from regard.storage import filesystem, weights
from regard.storage import folder as folders
from regard.tasks.task import WEIGHTS_FILE
from regard.toml import TomlDocument
from regard.training import logging, resolution
from regard.training.checkpoints import CheckpointManager, LoadedCheckpoint
from regard.training.config import TrainingConfig
from regard.training.distributed import DistributedContext
from regard.training.engine import TrainingEngine
from regard.training.logging import EventHandler, Logger, LoggerCollection, MetricsLogger
from regard.training.loop import TrainingLoop, TrainingState, ended_event, stop_reason, stored_training_state
from regard.training.resolution import CHECKPOINTS_FOLDER, DATA_FOLDER, METRICS_FILE, TASKS, PreparedTraining, prepare
from regard.training.tasks.interface import TaskSetup, TrainingRequest


class TrainingResult(NamedTuple):
    """What came of a training."""

    standing: TrainingState
    folder: Path
    finished: bool
    """Whether there is nothing left to do."""
    main: bool
    """Whether this is the process that speaks for all."""


def train(request: TrainingRequest, loggers: Sequence[Logger] = ()) -> TrainingResult:
    """Train as it was asked for. A ValueError tells what is wrong with the request, a TrainingError what failed.

    Args:
        loggers: who is told how it goes; the metrics are always among them.
    """
    plan = checks.pick("task", request.task, TASKS)()
    document = resolution.requested_config(request, plan)
    with DistributedContext.joined() as processes:
        device = processes.device(None if request.device == "auto" else request.device)
        _claim_folder(request, processes)
        place = CheckpointManager(request.output / CHECKPOINTS_FOLDER, keep=1)
        with (place.hold() if processes.main else contextlib.nullcontext(), _flush_denormals(),
              LoggerCollection(loggers if processes.main else ()) as report):
            stored = _load_newest(place, processes) if request.resume else None
            return _train(request, plan, document, processes, device, report, stored)


@contextlib.contextmanager
def _flush_denormals() -> Iterator[None]:
    """Inside, numbers that are nearly 0 are 0: on a CPU they make the output layer many times slower."""
    before = sys.float_info.min / 2 == 0.0  # how it was; torch does not tell
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def _load_newest(place: CheckpointManager, processes: DistributedContext) -> LoadedCheckpoint | None:
    """The newest whole checkpoint, which the first process looks for, and the others then read too."""
    found = place.load() if processes.main else None
    step = processes.told(None if found is None else found.step)
    return found if processes.main or step is None else place.at(step)


def _train(request: TrainingRequest, plan: TaskSetup, asked: TomlDocument, processes: DistributedContext, device: torch.device,
           report: LoggerCollection, stored: LoadedCheckpoint | None) -> TrainingResult:
    standing, known = TrainingState(), None
    if stored is not None:
        for note in stored.notes:
            report(logging.Note(note))
        standing, known = stored_training_state(stored.snapshot), stored.snapshot.values["identity"]
        asked = resolution.stored_config(known, request, asked)
        settings = config.read_config(TrainingConfig, asked, ("training",))
        if (reason := stop_reason(standing, settings)) is not None:
            return _finish_ended(request, stored, settings, reason, processes, report)
    ready = prepare(request, plan, asked, resolution.device_properties(device, processes.count), report,
                    None if known is None else known["files"])
    checkpoints = CheckpointManager(request.output / CHECKPOINTS_FOLDER, keep=ready.settings.checkpoints.keep)
    training = _build_loop(request, ready, processes, device, checkpoints, report)
    processes.same(json.dumps(training.identity, indent=1))
    if stored is not None and known is not None:
        resolution.check_same_tokenizer(known, training.identity, request.output / DATA_FOLDER)
        training.resume(stored.snapshot)
        report(logging.Note(f"Going on after step {standing.step:,}."))
    if processes.main:
        report.loggers.append(MetricsLogger(request.output / METRICS_FILE))
    _report_start(training, ready, device, standing, report)
    training.try_largest()
    standing = training.run(standing)
    finished = stop_reason(standing, ready.settings) is not None
    processes.barrier()
    if finished and processes.main:
        _remove_data(request)
    return TrainingResult(standing, request.output, finished, processes.main)


def _finish_ended(request: TrainingRequest, stored: LoadedCheckpoint, settings: TrainingConfig, reason: str, processes: DistributedContext,
                  report: LoggerCollection) -> TrainingResult:
    """Say so; and do what comes after the last step, in case that it was killed before that."""
    standing = stored_training_state(stored.snapshot)
    report(logging.Note(f"There is nothing left to do: the training ended after step {standing.step:,}. For another "
                        f"one choose another folder."))
    if processes.main:
        place = CheckpointManager(request.output / CHECKPOINTS_FOLDER, keep=settings.checkpoints.keep)
        for note in place.tidy(stored.step, stored.best):
            report(logging.Note(note))
        metrics = MetricsLogger(request.output / METRICS_FILE)
        metrics.resume(standing.step)
        report.loggers.append(metrics)
        _remove_data(request)
    report(ended_event(reason, standing))
    return TrainingResult(standing, request.output, True, processes.main)


def _remove_data(request: TrainingRequest) -> None:
    """Remove what only the training needed: a model folder holds no sentences."""
    shutil.rmtree(request.output / DATA_FOLDER, ignore_errors=True)


def _build_loop(request: TrainingRequest, ready: PreparedTraining, processes: DistributedContext, device: torch.device, checkpoints: CheckpointManager,
               report: EventHandler) -> TrainingLoop:
    torch.manual_seed(ready.settings.seed)
    model = build(ready.model).to(device).train()
    engine = TrainingEngine(ready.work.objective(model).to(device), ready.settings, processes)
    task = ready.work.task(model)
    tokenizer = None if task.tokenizer is None else task.tokenizer.sha256
    identity = resolution.training_identity(request, ready.tables, ready.files, tokenizer)

    def keep(standing: TrainingState) -> None:
        whole = _gather_model(ready, engine)  # in which all processes take part
        if processes.main:
            held = task if whole is None else ready.work.task(whole)
            held.record = {**held.record, "scores": {"step": standing.best_step, **(standing.best_scores or {})}}
            ready.work.complete(held)
            held.save(request.output)

    return TrainingLoop(ready.work, task, engine, ready.settings, checkpoints, report, keep, identity)


def _gather_model(ready: PreparedTraining, engine: TrainingEngine) -> nn.Module | None:
    """A model of its own with all parameters, where each process has a part of them; None where each has all."""
    if not engine.sharded:
        return None
    tensors = {name: tensor.full_tensor().cpu() if hasattr(tensor, "full_tensor") else tensor.cpu()
               for name, tensor in engine.objective.model.state_dict().items()}
    return weights.build_module(ready.model.build, tensors, origin="the training")


def _claim_folder(request: TrainingRequest, processes: DistributedContext) -> None:
    """Make the folder ours; or find that it is, where a training is to go on."""
    output = request.output
    if processes.main:
        folders.prepare(output)
        there = output.is_dir() and any(output.iterdir())
        begun = bool(CheckpointManager(output / CHECKPOINTS_FOLDER, keep=1).steps())
        if not begun and (output / WEIGHTS_FILE).exists():
            raise filesystem.FolderError(f"{output}: There is a model, and no training to go on with. Choose another "
                                      f"folder.")
        if begun and not request.resume:
            raise filesystem.FolderError(f"{output}: There is a training already. --resume goes on with it; for another "
                                      f"one choose another folder.")
        if not there and request.resume:
            raise filesystem.FolderError(f"{output}: There is no training to go on with. Leave out --resume to begin one.")
        if not there:
            folders.save(output, {})
    processes.barrier()


def _report_start(training: TrainingLoop, ready: PreparedTraining, device: torch.device, standing: TrainingState, report: EventHandler) -> None:
    for note in ready.notes:
        report(logging.Note(note))
    shown = tuple(logging.ShownDefault(choice.key, _format_default(choice.value), choice.reason) for choice in ready.choices)
    report(logging.TrainingStarted(task=type(ready.work).__name__.lower().removesuffix("task"), parameters=ready.model.parameters(),
                           steps=ready.settings.steps, first_step=standing.step + 1, tokens_per_epoch=None,
                           device=str(device), choices=shown, score=ready.settings.validation.metric,
                           best=standing.best_scores or {}))


def _format_default(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
