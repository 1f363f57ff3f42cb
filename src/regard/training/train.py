"""`train`: run a whole training, from a request to a model in a folder.

    request ─► survey of the data ─► defaults ─► tokenizer and ids ─► defaults ─► model ─► loop ─► the best model

A training may start from a model that exists (`regard.training.starting_point`), whose tokenizer and architecture it
keeps. That model is validated before the first step, and may be blended with the result after the last one.

Every setting that the request leaves open gets a default (`regard.training.defaults`), which is reported before the
first step and stored in the model folder. The output folder holds

    config.toml, model.safetensors, tokenizer.*, README.md, manifest.json     the best model so far
    metrics.jsonl                                                             losses, scores and rates over the steps
    checkpoints/                                                              the last training states, to resume from
    data/                                                                     tokenizer, ids, and data that was
                                                                              given in memory, while training

This module knows the order of the stages and how they are put together, and the details of none.
"""

import contextlib
import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from regard import checks, config
from regard.attention.look import find_taps
from regard.models.build import build
from regard.storage import weights
from regard.storage.metrics import METRICS_FILE
from regard.tasks.info import read_info
from regard.tasks.load import load
from regard.toml import TomlDocument
from regard.training import distillation, resolution, synthesis
from regard.training.back_translation import back_translate
from regard.training.blending import choose_share, interpolate
from regard.training.callbacks import Callback, CallbackLogger
from regard.training.checkpoints import CheckpointManager, LoadedCheckpoint
from regard.training.choices import config_comments, explain_settings, summarize_choices
from regard.training.config import TrainingConfig
from regard.training.distributed import DistributedContext
from regard.training.engine import TrainingEngine
from regard.training.folder_claim import FolderClaim, claim_folder
from regard.training.logging import (
    Logger,
    LoggerCollection,
    MetricsLogger,
    Note,
    TensorBoardLogger,
    TrainingStarted,
)
from regard.training.loop import TrainingLoop, TrainingState, report_end, stop_reason, stored_training_state
from regard.training.resolution import CHECKPOINTS_FOLDER, DATA_FOLDER, TASKS, PreparedTraining, prepare
from regard.training.starting_point import load_start
from regard.training.status import format_score
from regard.training.synthesis import StageContext, Staged, StagesRecord
from regard.training.tasks.directions import with_file_directions
from regard.training.tasks.interface import TaskSetup, TrainingRequest, ValidationResult
from regard.training.tasks.translation import TranslationTask
from regard.training.threads import thread_count

__all__ = ["TrainingRequest", "TrainingResult", "train"]
BLEND_KEY = "blend"
"""The key of [start] in config.toml that has the share of the new weights in a blended model."""


class TrainingResult(NamedTuple):
    """The end of a training, finished or interrupted."""

    state: TrainingState
    folder: Path
    finished: bool
    """Whether there is nothing left to do."""
    main: bool
    """Whether this is the process that reports and writes for all."""
    task: str = ""
    """The name of the task, as in `TrainingStarted`."""
    sample: str | None = None
    """A validation input, to try the model with."""
    stopped: bool = False
    """Whether a callback stopped the training cleanly."""
    device: str = "cpu"
    sample_options: tuple[str, ...] = ()
    """The options that a command needs for that input."""
    has_attention: bool = True
    """Whether `regard look` can show the model."""


@dataclass(frozen=True)
class _Run:
    """What all parts of a training share: the request, its task, and where it runs and reports."""

    request: TrainingRequest
    setup: TaskSetup
    processes: DistributedContext
    device: torch.device
    report: LoggerCollection
    claim: FolderClaim
    callbacks: CallbackLogger


def train(request: TrainingRequest, loggers: Sequence[Logger] = (),
          callbacks: Sequence[Callback] = ()) -> TrainingResult:
    """Train a model. A ValueError says what is wrong with the request, a TrainingError what failed.

    Args:
        loggers: receive the events of the training; metrics.jsonl is always written.
        callbacks: functions of the user, which may stop the training; what they raise is raised here in the end.
    """
    following = CallbackLogger(callbacks)
    request = with_file_directions(request)
    kind = checks.pick("task", request.task, TASKS)
    setup = kind(None if request.start is None else load_start(request.start, request.task))
    document = resolution.requested_config(request, setup)
    synthesis.check_synthesis(request)
    distillation.check_teacher_share(request, document)
    with DistributedContext.joined() as processes:
        device = processes.device(None if request.device == "auto" else request.device)
        with (claim_folder(request.output, processes, resume=request.resume) as claim, flush_denormals(),
              _standard_modes(device),
              LoggerCollection((*loggers, following) if processes.main else ()) as report):
            result = _resume_or_train(_Run(request, setup, processes, device, report, claim, following), document)
    if following.error is not None:
        raise following.error
    return result


@contextlib.contextmanager
def flush_denormals() -> Iterator[None]:
    """Denormal numbers, such as vanishing gradients, are flushed to 0: a CPU is many times slower with them."""
    before = sys.float_info.min / 2 == 0.0  # the present mode, which torch does not tell
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@contextlib.contextmanager
def _standard_modes(device: torch.device) -> Iterator[None]:
    """Gradients, float32 and no autocast, whatever modes the caller has: the settings alone decide about precision."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_default_dtype(dtype)


def _threads(run: _Run, stored: LoadedCheckpoint | None) -> contextlib.AbstractContextManager[None]:
    """The number of CPU threads; unchanged on a GPU, and with several processes, which torchrun gives theirs."""
    if run.device.type != "cpu" or run.processes.count > 1:
        return contextlib.nullcontext()
    return thread_count(None if stored is None else stored.snapshot.values.get("threads"), run.report,
                        resumed=stored is not None, adapt=run.request.adapt_threads)


def _load_newest(checkpoints: CheckpointManager, processes: DistributedContext) -> LoadedCheckpoint | None:
    """The newest complete checkpoint; the main process finds and verifies it for all."""
    found = checkpoints.load() if processes.main else None
    step = processes.broadcast(None if found is None else found.step)
    return found if processes.main or step is None else checkpoints.at(step)


def _resume_or_train(run: _Run, requested: TomlDocument) -> TrainingResult:
    """Train from the newest checkpoint if the request says so, else from the start."""
    stored = None
    if run.request.resume:
        stored = _load_newest(CheckpointManager(run.request.output / CHECKPOINTS_FOLDER, keep=1), run.processes)
    with _threads(run, stored):
        return _train(run, requested, stored)


def _train(run: _Run, requested: TomlDocument, stored: LoadedCheckpoint | None) -> TrainingResult:
    request, setup, processes, report = run.request, run.setup, run.processes, run.report
    state, identity, user_settings = TrainingState(), None, requested
    if stored is not None:
        for note in stored.notes:
            report(Note(note, warning=True))
        state, identity = stored_training_state(stored.snapshot), stored.snapshot.values["identity"]
        resolution.check_same_start(identity, setup.start, request)
        requested = resolution.stored_config(identity, request, synthesis.without_total_time(request, requested))
        settings = config.read_config(TrainingConfig, requested, ("training",))
        if (reason := stop_reason(state, settings)) is not None and not _awaits_blending(request, settings, state):
            return _finish_ended(run, stored, settings, reason)
    if request.write_data is not None:
        if processes.main:
            request.write_data()
        processes.barrier()
    context, teacher, staged = None, dict[str, float](), Staged(request, requested)
    if request.synthesis is None:
        synthesis.check_no_stages(request, user_settings, processes)
    else:
        context = _stage_context(run, user_settings)
        found = _run_stages(context, setup)
        if isinstance(found, TrainingResult):  # interrupted
            return found
        staged = found if identity is None else found._replace(document=requested)
    prepared = _prepare(run, staged, identity)
    if context is not None and isinstance(prepared.task, TranslationTask):
        if stored is None:
            distillation.report_sizes(context, prepared.model.parameters())
        teacher = distillation.add_teacher_scores(context, prepared.task)
    loop = _build_loop(run, prepared, resumed=stored is not None)
    processes.check_same(json.dumps(loop.identity, indent=1))
    if stored is not None and identity is not None:
        resolution.check_same_tokenizer(identity, loop.identity, request.output / DATA_FOLDER)
        loop.resume(stored.snapshot)
        if (reason := stop_reason(state, prepared.settings)) is not None:  # killed before the end of the blending
            _blend(run, prepared, state)
            return _finish_ended(run, stored, prepared.settings, reason)
        report(Note(f"Resuming after step {state.step:,}."))
    state = _run_loop(run, prepared, loop, state, resumed=stored is not None)
    if teacher and state.best_scores:
        report(Note(distillation.compare_scores(state.best_scores, teacher)))
    return _finish(run, prepared, loop, state)


def _prepare(run: _Run, staged: Staged, identity: Mapping[str, Any] | None) -> PreparedTraining:
    """The complete config, the data and the task, after they were checked against memory and the start model."""
    properties = resolution.device_properties(run.device, run.processes.count)
    prepared = prepare(staged.request, run.setup, staged.document, properties, run.report, identity)
    resolution.check_batch_memory(prepared, properties)
    start = run.setup.start
    if start is not None and prepared.settings.blend and not start.keeps_head(_labels(prepared)):
        raise ValueError(f"blend: The model gets a new output layer, so it cannot be blended with {start.name}. Leave "
                         "it out.")
    return prepared


def _run_loop(run: _Run, prepared: PreparedTraining, loop: TrainingLoop, state: TrainingState, *,
              resumed: bool) -> TrainingState:
    """Report the start, measure the speed, and train to the end or to an interruption."""
    if run.processes.main:
        run.report.loggers.append(MetricsLogger(run.request.output / METRICS_FILE))
    _report_start(run, prepared, state)
    loop.try_largest()
    state = loop.measure(state)
    run.claim.keep()
    if not resumed and run.setup.start is not None and run.setup.start.keeps_head(_labels(prepared)):
        state = loop.validate_start(state)
    return loop.run(state)


def _finish(run: _Run, prepared: PreparedTraining, loop: TrainingLoop, state: TrainingState) -> TrainingResult:
    """Blend and clean up after the last step; the result of the training, finished or interrupted."""
    request, processes, task = run.request, run.processes, prepared.task
    finished = stop_reason(state, prepared.settings) is not None
    processes.barrier()
    if finished or run.callbacks.stopped:
        if _awaits_blending(request, prepared.settings, state):
            _blend(run, prepared, state)
        if processes.main:
            _remove_data(request)
    return TrainingResult(state, request.output, finished, processes.main, task.name, task.sample_input(),
                          processes.any(run.callbacks.stopped), str(run.device), task.sample_options(),
                          bool(find_taps(loop.task.model)))


def _stage_context(run: _Run, settings: TomlDocument) -> StageContext:
    """The stages before a training with synthetic pairs."""
    record = StagesRecord(run.request.output, run.processes)
    return StageContext(run.request, record.settings(run.request, settings), run.processes, run.device, run.report,
                        run.claim, record)


def _run_stages(context: StageContext, setup: TaskSetup) -> "Staged | TrainingResult":
    """Write the synthetic pairs; the result of a stage if it was interrupted."""
    assert isinstance(context.report, LoggerCollection), "made in this module"
    shown = LoggerCollection(logger for logger in context.report.loggers
                             if not isinstance(logger, CallbackLogger | TensorBoardLogger))  # these follow the model

    def train_stage(request: TrainingRequest, document: TomlDocument | None = None) -> TrainingResult:
        processes, own = context.processes, setup if request.task == context.request.task else TASKS[request.task](None)
        settings = resolution.requested_config(request, own) if document is None else document
        with claim_folder(request.output, processes, resume=request.resume, outer=context.claim) as claim:
            run = _Run(request, own, processes, context.device, shown, claim, CallbackLogger())
            return _resume_or_train(run, settings)

    stages = back_translate if context.options.teacher is None else distillation.distill
    return stages(context, train_stage)


def _finish_ended(run: _Run, stored: LoadedCheckpoint, settings: TrainingConfig, reason: str) -> TrainingResult:
    """Report that all steps are done, and repeat what follows the last step, in case the training was killed there."""
    request, report, state = run.request, run.report, stored_training_state(stored.snapshot)
    report(Note(f"There is nothing left to do: the training ended after step {state.step:,}. To train again, choose "
                f"another folder."))
    if run.processes.main:
        checkpoints = CheckpointManager(request.output / CHECKPOINTS_FOLDER, keep=settings.checkpoints.keep)
        for note in checkpoints.clean_up(stored.step, stored.best):
            report(Note(note))
        metrics = MetricsLogger(request.output / METRICS_FILE)
        metrics.resume(state.step)
        report.loggers.append(metrics)
        _remove_data(request)
    report_end(reason, state, settings, report)
    return TrainingResult(state, request.output, True, run.processes.main, device=str(run.device))


def _remove_data(request: TrainingRequest) -> None:
    """Remove the ids, which only the training needed: a model folder holds no sentences."""
    shutil.rmtree(request.output / DATA_FOLDER, ignore_errors=True)


def _labels(prepared: PreparedTraining) -> tuple[str, ...] | None:
    """The labels of a classifier; None for other models."""
    return getattr(prepared.task, "labels", None)


def _awaits_blending(request: TrainingRequest, settings: TrainingConfig, state: TrainingState) -> bool:
    """Whether the best model is still to be blended with the start model, which its folder tells."""
    if not settings.blend or state.start_scores is None or not state.best_step:
        return False  # no step was better than the start model
    return BLEND_KEY not in read_info(request.output).record.get("start", {})


def _blend(run: _Run, prepared: PreparedTraining, state: TrainingState) -> None:
    """Interpolate the best model with the start model, and save the result in its place."""
    assert run.setup.start is not None
    assert state.start_scores is not None
    if run.processes.main:
        best, settings = load(run.request.output, device=run.device), prepared.settings
        start = run.setup.start.task.model.state_dict()
        new = {name: tensor.clone() for name, tensor in best.model.state_dict().items()}
        results = dict[float, ValidationResult]()

        def validate(share: float) -> Mapping[str, float]:
            interpolate(best.model, start, new, share)
            results[share] = prepared.task.validate(best)
            return results[share].scores

        chosen = choose_share(validate, settings.validation.metric, settings.blend_share,
                              {0.0: state.start_scores, 1.0: state.best_scores or {}})
        interpolate(best.model, start, new, chosen.share)
        details = (results.get(chosen.share) or prepared.task.validate(best)).details()
        best.record = {**best.record, "scores": {"step": state.best_step, **chosen.scores, **details},
                       "start": {**best.record["start"], BLEND_KEY: chosen.share}}
        prepared.task.finalize(best)
        best.save(run.request.output)
        run.report(Note(chosen.describe(settings.validation.metric)))
        scores = ", ".join(format_score(name, value) for name, value in chosen.scores.items())
        run.report(Note(f"Blended model: {scores}."))
    run.processes.barrier()


def _build_loop(run: _Run, prepared: PreparedTraining, *, resumed: bool) -> TrainingLoop:
    request, start = run.request, run.setup.start
    torch.manual_seed(prepared.settings.seed)
    model = build(prepared.model)
    if start is not None and not resumed:
        start.fill(model, _labels(prepared))
    elif not resumed:
        prepared.task.initialize(model)
    model = model.to(run.device).train()
    engine = TrainingEngine(prepared.task.objective(model).to(run.device), prepared.settings, run.processes)
    task = prepared.task.wrap(model)
    tokenizer = None if task.tokenizer is None else task.tokenizer.sha256
    identity = resolution.training_identity(request, prepared.tables, prepared.files, tokenizer, prepared.reasons,
                                            start)
    checkpoints = CheckpointManager(request.output / CHECKPOINTS_FOLDER, keep=prepared.settings.checkpoints.keep)

    def save_best(state: TrainingState) -> None:
        gathered = _gather_model(prepared, engine)  # a collective of all processes
        if run.processes.main:
            best = task if gathered is None else prepared.task.wrap(gathered)
            others = {name: table for name, table in best.record.get("scores", {}).items() if isinstance(table, dict)}
            best.record = {**best.record, "scores": {"step": state.best_step, **(state.best_scores or {}),
                                                     **(state.best_details or {}), **others}}
            before = state.start_scores or (state.best_scores if not state.best_step else None)
            if before:
                best.record["start"] = {**best.record["start"], "scores": before}
            best.comments = config_comments(prepared.reasons)
            prepared.task.finalize(best)
            best.save(request.output)

    return TrainingLoop(prepared.task, task, engine, prepared.settings, checkpoints, run.report, save_best, identity,
                        run.callbacks)


def _gather_model(prepared: PreparedTraining, engine: TrainingEngine) -> nn.Module | None:
    """A whole model of sharded parameters; None if they are not sharded."""
    if not engine.sharded:
        return None
    tensors = {name: tensor.full_tensor().cpu() if hasattr(tensor, "full_tensor") else tensor.cpu()
               for name, tensor in engine.objective.model.state_dict().items()}
    return weights.build_module(prepared.model.build, tensors, origin="the training")


def _report_start(run: _Run, prepared: PreparedTraining, state: TrainingState) -> None:
    for note in prepared.notes:
        run.report(Note(note))
    defaults = tuple(default._replace(value=_format_default(default.value)) for default in prepared.defaults)
    parameters = prepared.model.parameters()
    run.report(TrainingStarted(task=prepared.task.name, parameters=parameters, steps=prepared.settings.steps,
                               first_step=state.step + 1, device=str(run.device), defaults=defaults,
                               score=prepared.settings.validation.metric, best=state.best_scores or {},
                               choices=summarize_choices(prepared.tables, prepared.reasons, parameters),
                               settings=explain_settings(prepared.tables, prepared.reasons)))


def _format_default(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
