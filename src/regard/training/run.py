"""A whole training: from what somebody asked for to a model in a folder.

    what was asked ─► survey of the data ─► choices ─► tokenizer and ids ─► choices ─► model ─► loop ─► the best model

Everything that was not asked for is chosen (`regard.training.choices`), told before the first step, and stored. In the
output folder:

    config.toml, model.safetensors, tokenizer.*, README.md, manifest.json     the best model so far
    metrics.jsonl                                                             how it went
    checkpoints/                                                              the last states, to go on from
    data/                                                                     tokenizer and ids, while training

It knows the order of things, and no details of any.
"""

import contextlib
import json
import math
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from regard import checks, config
from regard.models.build import ModelConfig, build
from regard.storage import folder as folders
from regard.storage import modules
from regard.tasks.task import WEIGHTS
from regard.toml import document as toml
from regard.toml.document import Document
from regard.training import asking, devices, reports, resuming
from regard.training.asking import TABLES, filled, of_recipe
from regard.training.checkpoints import Checkpoints, Loaded
from regard.training.choices.choice import Choice, Device, value
from regard.training.engine import Engine
from regard.training.loop import Standing, Training, ended, over, standing_of
from regard.training.metrics import Metrics
from regard.training.plans.plan import Plan, Request
from regard.training.plans.table import PLANS
from regard.training.processes import Processes
from regard.training.reports import Logger, Reporter, Reporters
from regard.training.settings import DataConfig, TrainingConfig
from regard.training.work import Work

CHECKPOINTS, DATA, METRICS = "checkpoints", "data", "metrics.jsonl"


class Outcome(NamedTuple):
    """What came of a training."""

    standing: Standing
    folder: Path
    finished: bool
    """Whether there is nothing left to do."""
    main: bool
    """Whether this is the process that speaks for all."""


@dataclass(frozen=True)
class Ready:
    """Everything that a training is made of, before anything is learned."""

    work: Work
    model: ModelConfig
    settings: TrainingConfig
    choices: tuple[Choice, ...]
    tables: Mapping[str, Any]
    """The whole config as plain values."""
    files: dict[str, str]
    notes: tuple[str, ...]


def train(request: Request, loggers: Sequence[Logger] = ()) -> Outcome:
    """Train as it was asked for. A ValueError tells what is wrong with the request, a TrainingError what failed.

    Args:
        loggers: who is told how it goes; the metrics are always among them.
    """
    plan = checks.pick("task", request.task, PLANS)()
    document = asking.asked(request, plan)
    with Processes.joined() as processes:
        device = processes.device(None if request.device == "auto" else request.device)
        _claim(request, processes)
        place = Checkpoints(request.output / CHECKPOINTS, keep=1)
        with (place.hold() if processes.main else contextlib.nullcontext(), _flushed(),
              Reporters(loggers if processes.main else ()) as report):
            stored = _stored(place, processes) if request.resume else None
            return _train(request, plan, document, processes, device, report, stored)


@contextlib.contextmanager
def _flushed() -> Iterator[None]:
    """Inside, numbers that are nearly 0 are 0: on a CPU they make the output layer many times slower."""
    before = sys.float_info.min / 2 == 0.0  # how it was; torch does not tell
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def _stored(place: Checkpoints, processes: Processes) -> Loaded | None:
    """The newest whole checkpoint, which the first process looks for, and the others then read too."""
    found = place.load() if processes.main else None
    step = processes.told(None if found is None else found.step)
    return found if processes.main or step is None else place.at(step)


def _train(request: Request, plan: Plan, asked: Document, processes: Processes, device: torch.device,
           report: Reporters, stored: Loaded | None) -> Outcome:
    standing, known = Standing(), None
    if stored is not None:
        for note in stored.notes:
            report(reports.Note(note))
        standing, known = standing_of(stored.snapshot), stored.snapshot.values["identity"]
        asked = resuming.stored_config(known, request, asked)
        settings = config.make(TrainingConfig, asked, ("training",))
        if (reason := over(standing, settings)) is not None:
            return _nothing_left(request, stored, settings, reason, processes, report)
    ready = prepare(request, plan, asked, devices.about(device, processes.count), report,
                    None if known is None else known["files"])
    checkpoints = Checkpoints(request.output / CHECKPOINTS, keep=ready.settings.checkpoints.keep)
    training = _assembled(request, ready, processes, device, checkpoints, report)
    processes.same(json.dumps(training.identity, indent=1))
    if stored is not None and known is not None:
        resuming.check_tokenizer(known, training.identity, request.output / DATA)
        training.resume(stored.snapshot)
        report(reports.Note(f"Going on after step {standing.step:,}."))
    if processes.main:
        report.loggers.append(Metrics(request.output / METRICS))
    _tell(training, ready, device, standing, report)
    training.try_largest()
    standing = training.run(standing)
    finished = over(standing, ready.settings) is not None
    processes.barrier()
    if finished and processes.main:
        _tidy(request)
    return Outcome(standing, request.output, finished, processes.main)


def _nothing_left(request: Request, stored: Loaded, settings: TrainingConfig, reason: str, processes: Processes,
                  report: Reporters) -> Outcome:
    """Say so; and do what comes after the last step, in case that it was killed before that."""
    standing = standing_of(stored.snapshot)
    report(reports.Note(f"There is nothing left to do: the training ended after step {standing.step:,}. For another "
                        f"one choose another folder."))
    if processes.main:
        place = Checkpoints(request.output / CHECKPOINTS, keep=settings.checkpoints.keep)
        for note in place.tidy(stored.step, stored.best):
            report(reports.Note(note))
        metrics = Metrics(request.output / METRICS)
        metrics.resume(standing.step)
        report.loggers.append(metrics)
        _tidy(request)
    report(ended(reason, standing))
    return Outcome(standing, request.output, True, processes.main)


def _tidy(request: Request) -> None:
    """Remove what only the training needed: a model folder holds no sentences."""
    shutil.rmtree(request.output / DATA, ignore_errors=True)


def prepare(request: Request, plan: Plan, asked: Document, device: Device, report: Reporter,
            known: Mapping[str, str] | None = None) -> Ready:
    """Read the data, make the choices, and put together what the loop is given.

    Args:
        known: the sha256 of the files that a training goes on with, by their names; others are refused.
    """
    filters = config.make(DataConfig | None, asked, ("data",)) or DataConfig()
    survey = plan.survey(request, filters)
    if known is not None:
        resuming.check_files(known, survey.files, request)
    for warning in survey.warnings:
        report(reports.Note(warning))
    first = plan.before(survey, asked.tables)
    document = filled(asked, first, asked)
    prepared = plan.prepare(survey, document, request.output / DATA)
    made = [*first]
    if value(asked.tables, "model.kind") is None:  # a whole model of their own is not mixed with a recipe
        named = plan.named(prepared, device, asked.tables.get("recipe"))
        document = filled(document, of_recipe(named.value), asked)
        made.append(named)
    second = plan.after(prepared, document.tables, device)
    document = toml.changed(filled(document, second, asked),
                            {choice.key: choice.value for choice in made if choice.key == "recipe"})
    made += second
    if "steps" not in document.tables["training"].get("schedule", {}):
        steps = _steps(document, plan.steps(prepared, document), device)
        document = filled(document, [steps], asked)
        made.append(steps)
    tables = config.make_all(TABLES, document)
    settings, model = tables["training"], tables["model"]
    plain = config.plain(tables)
    record = {**{key: plain[key] for key in ("recipe", "data", "training") if key in plain},
              "tokenizer": plain.get("tokenizer", {})}
    record["data"] = {**record.get("data", {}), "files": [f"{name} {digest}" for name, digest in
                                                          survey.files.items()]}
    work = plan.work(prepared, model, settings, record)
    kept = tuple(choice for choice in made if value(asked.tables, choice.key) is None)
    return Ready(work, model, settings, kept, plain, survey.files, (*prepared.notes, *work.notes))


def _assembled(request: Request, ready: Ready, processes: Processes, device: torch.device, checkpoints: Checkpoints,
               report: Reporter) -> Training:
    torch.manual_seed(ready.settings.seed)
    model = build(ready.model).to(device).train()
    engine = Engine(ready.work.objective(model).to(device), ready.settings, processes)
    task = ready.work.task(model)
    tokenizer = None if task.tokenizer is None else task.tokenizer.sha256
    identity = resuming.identity(request, ready.tables, ready.files, tokenizer)

    def keep(standing: Standing) -> None:
        whole = _whole(ready, engine)  # in which all processes take part
        if processes.main:
            held = task if whole is None else ready.work.task(whole)
            held.record = {**held.record, "scores": {"step": standing.best_step, **(standing.best_scores or {})}}
            ready.work.complete(held)
            held.save(request.output)

    return Training(ready.work, task, engine, ready.settings, checkpoints, report, keep, identity)


def _whole(ready: Ready, engine: Engine) -> nn.Module | None:
    """A model of its own with all parameters, where each process has a part of them; None where each has all."""
    if not engine.sharded:
        return None
    tensors = {name: tensor.full_tensor().cpu() if hasattr(tensor, "full_tensor") else tensor.cpu()
               for name, tensor in engine.objective.model.state_dict().items()}
    return modules.made(ready.model.build, tensors, origin="the training")


def _claim(request: Request, processes: Processes) -> None:
    """Make the folder ours; or find that it is, where a training is to go on."""
    output = request.output
    if processes.main:
        folders.prepare(output)
        there = output.is_dir() and any(output.iterdir())
        begun = bool(Checkpoints(output / CHECKPOINTS, keep=1).steps())
        if not begun and (output / WEIGHTS).exists():
            raise folders.FolderError(f"{output}: There is a model, and no training to go on with. Choose another "
                                      f"folder.")
        if begun and not request.resume:
            raise folders.FolderError(f"{output}: There is a training already. --resume goes on with it; for another "
                                      f"one choose another folder.")
        if not there and request.resume:
            raise folders.FolderError(f"{output}: There is no training to go on with. Leave out --resume to begin one.")
        if not there:
            folders.save(output, {})
    processes.barrier()


def _steps(document: Document, epoch: int, device: Device) -> Choice:
    """How many steps so many epochs have."""
    training = document.tables["training"]
    many, epochs = training.get("accumulate", 1) * device.count, training["epochs"]
    steps = max(1, math.ceil(epochs * epoch / many))
    return Choice("training.schedule.steps", steps, f"{epochs:g} epochs of {epoch / many:,.0f} steps")


def _tell(training: Training, ready: Ready, device: torch.device, standing: Standing, report: Reporter) -> None:
    for note in ready.notes:
        report(reports.Note(note))
    shown = tuple(reports.Choice(choice.key, _shown(choice.value), choice.reason) for choice in ready.choices)
    report(reports.Started(task=type(ready.work).__name__.lower(), parameters=ready.model.parameters(),
                           steps=ready.settings.steps, first_step=standing.step + 1, tokens_per_epoch=None,
                           device=str(device), choices=shown, score=ready.settings.validation.score,
                           best=standing.best_scores or {}))


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


__all__ = ["Outcome", "Ready", "Request", "prepare", "train"]
