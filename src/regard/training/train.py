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
from regard.storage import folder as folders
from regard.storage import weights
from regard.storage.filesystem import FolderError
from regard.tasks.task import WEIGHTS_FILE
from regard.toml import TomlDocument
from regard.training import resolution
from regard.training.checkpoints import CheckpointManager, LoadedCheckpoint
from regard.training.config import TrainingConfig
from regard.training.distributed import DistributedContext
from regard.training.engine import TrainingEngine
from regard.training.logging import EventHandler, Logger, LoggerCollection, MetricsLogger, Note, TrainingStarted
from regard.training.loop import TrainingLoop, TrainingState, ended_event, stop_reason, stored_training_state
from regard.training.resolution import CHECKPOINTS_FOLDER, DATA_FOLDER, METRICS_FILE, TASKS, PreparedTraining, prepare
from regard.training.tasks.interface import TaskSetup, TrainingRequest

__all__ = ["TrainingRequest", "TrainingResult", "train"]


class TrainingResult(NamedTuple):
    """The end of a training, finished or interrupted."""

    state: TrainingState
    folder: Path
    finished: bool
    """Whether there is nothing left to do."""
    main: bool
    """Whether this is the process that reports and writes for all."""


def train(request: TrainingRequest, loggers: Sequence[Logger] = ()) -> TrainingResult:
    """Train a model. A ValueError says what is wrong with the request, a TrainingError what failed.

    Args:
        loggers: receive the events of the training; metrics.jsonl is always written.
    """
    setup = checks.pick("task", request.task, TASKS)()
    document = resolution.requested_config(request, setup)
    with DistributedContext.joined() as processes:
        device = processes.device(None if request.device == "auto" else request.device)
        _claim_folder(request, processes)
        checkpoints = CheckpointManager(request.output / CHECKPOINTS_FOLDER, keep=1)
        with (checkpoints.lock() if processes.main else contextlib.nullcontext(), _flush_denormals(),
              LoggerCollection(loggers if processes.main else ()) as report):
            stored = _load_newest(checkpoints, processes) if request.resume else None
            return _train(request, setup, document, processes, device, report, stored)


def _claim_folder(request: TrainingRequest, processes: DistributedContext) -> None:
    """Create the output folder, or check that there is a training to resume in it."""
    output = request.output
    if processes.main:
        folders.prepare(output)
        exists = output.is_dir() and any(output.iterdir())
        started = bool(CheckpointManager(output / CHECKPOINTS_FOLDER, keep=1).steps())
        if not started and (output / WEIGHTS_FILE).exists():
            raise FolderError(f"{output}: There is a model in this folder, and no training to resume. Choose another "
                              "folder.")
        if started and not request.resume:
            raise FolderError(f"{output}: There is a training in this folder already. Resume it with --resume, or "
                              "choose another folder.")
        if not exists and request.resume:
            raise FolderError(f"{output}: There is no training to resume. Leave out --resume to start one.")
        if not exists:
            folders.save(output, {})
    processes.barrier()


@contextlib.contextmanager
def _flush_denormals() -> Iterator[None]:
    """Denormal numbers are flushed to 0: on a CPU they make the output layer many times slower."""
    before = sys.float_info.min / 2 == 0.0  # the present mode, which torch does not tell
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def _load_newest(checkpoints: CheckpointManager, processes: DistributedContext) -> LoadedCheckpoint | None:
    """The newest complete checkpoint; the main process finds and verifies it for all."""
    found = checkpoints.load() if processes.main else None
    step = processes.broadcast(None if found is None else found.step)
    return found if processes.main or step is None else checkpoints.at(step)


def _train(request: TrainingRequest, setup: TaskSetup, requested: TomlDocument, processes: DistributedContext,
           device: torch.device, report: LoggerCollection, stored: LoadedCheckpoint | None) -> TrainingResult:
    state, identity = TrainingState(), None
    if stored is not None:
        for note in stored.notes:
            report(Note(note))
        state, identity = stored_training_state(stored.snapshot), stored.snapshot.values["identity"]
        requested = resolution.stored_config(identity, request, requested)
        settings = config.read_config(TrainingConfig, requested, ("training",))
        if (reason := stop_reason(state, settings)) is not None:
            return _finish_ended(request, stored, settings, reason, processes, report)
    prepared = prepare(request, setup, requested, resolution.device_properties(device, processes.count), report,
                       None if identity is None else identity["files"])
    loop = _build_loop(request, prepared, processes, device, report)
    processes.check_same(json.dumps(loop.identity, indent=1))
    if stored is not None and identity is not None:
        resolution.check_same_tokenizer(identity, loop.identity, request.output / DATA_FOLDER)
        loop.resume(stored.snapshot)
        report(Note(f"Resuming after step {state.step:,}."))
    if processes.main:
        report.loggers.append(MetricsLogger(request.output / METRICS_FILE))
    _report_start(prepared, device, state, report)
    loop.try_largest()
    state = loop.run(state)
    finished = stop_reason(state, prepared.settings) is not None
    processes.barrier()
    if finished and processes.main:
        _remove_data(request)
    return TrainingResult(state, request.output, finished, processes.main)


def _finish_ended(request: TrainingRequest, stored: LoadedCheckpoint, settings: TrainingConfig, reason: str,
                  processes: DistributedContext, report: LoggerCollection) -> TrainingResult:
    """Report that all steps are done, and repeat what follows the last step, in case the training was killed there."""
    state = stored_training_state(stored.snapshot)
    report(Note(f"There is nothing left to do: the training ended after step {state.step:,}. To train again, choose "
                f"another folder."))
    if processes.main:
        checkpoints = CheckpointManager(request.output / CHECKPOINTS_FOLDER, keep=settings.checkpoints.keep)
        for note in checkpoints.clean_up(stored.step, stored.best):
            report(Note(note))
        metrics = MetricsLogger(request.output / METRICS_FILE)
        metrics.resume(state.step)
        report.loggers.append(metrics)
        _remove_data(request)
    report(ended_event(reason, state))
    return TrainingResult(state, request.output, True, processes.main)


def _remove_data(request: TrainingRequest) -> None:
    """Remove the ids, which only the training needed: a model folder holds no sentences."""
    shutil.rmtree(request.output / DATA_FOLDER, ignore_errors=True)


def _build_loop(request: TrainingRequest, prepared: PreparedTraining, processes: DistributedContext,
                device: torch.device, report: EventHandler) -> TrainingLoop:
    torch.manual_seed(prepared.settings.seed)
    model = build(prepared.model).to(device).train()
    engine = TrainingEngine(prepared.task.objective(model).to(device), prepared.settings, processes)
    task = prepared.task.wrap(model)
    tokenizer = None if task.tokenizer is None else task.tokenizer.sha256
    identity = resolution.training_identity(request, prepared.tables, prepared.files, tokenizer)
    checkpoints = CheckpointManager(request.output / CHECKPOINTS_FOLDER, keep=prepared.settings.checkpoints.keep)

    def save_best(state: TrainingState) -> None:
        gathered = _gather_model(prepared, engine)  # a collective of all processes
        if processes.main:
            best = task if gathered is None else prepared.task.wrap(gathered)
            best.record = {**best.record, "scores": {"step": state.best_step, **(state.best_scores or {})}}
            prepared.task.finalize(best)
            best.save(request.output)

    return TrainingLoop(prepared.task, task, engine, prepared.settings, checkpoints, report, save_best, identity)


def _gather_model(prepared: PreparedTraining, engine: TrainingEngine) -> nn.Module | None:
    """A whole model of sharded parameters; None if they are not sharded."""
    if not engine.sharded:
        return None
    tensors = {name: tensor.full_tensor().cpu() if hasattr(tensor, "full_tensor") else tensor.cpu()
               for name, tensor in engine.objective.model.state_dict().items()}
    return weights.build_module(prepared.model.build, tensors, origin="the training")


def _report_start(prepared: PreparedTraining, device: torch.device, state: TrainingState, report: EventHandler) -> None:
    for note in prepared.notes:
        report(Note(note))
    defaults = tuple(default._replace(value=_format_default(default.value)) for default in prepared.defaults)
    report(TrainingStarted(task=prepared.task.name, parameters=prepared.model.parameters(),
                           steps=prepared.settings.steps, first_step=state.step + 1, device=str(device),
                           defaults=defaults, score=prepared.settings.validation.metric, best=state.best_scores or {}))


def _format_default(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
