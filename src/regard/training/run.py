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
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from regard import checks, config
from regard.data.pair import DataError
from regard.data.tokenizer.settings import TokenizerConfig
from regard.models.build import ModelConfig, build
from regard.recipes import catalog
from regard.storage import folder as folders
from regard.storage import modules
from regard.toml import document as toml
from regard.toml.document import Document
from regard.training import devices, reports
from regard.training.checkpoints import Checkpoints, Loaded
from regard.training.choices.choice import Choice, Device, value
from regard.training.engine import Engine
from regard.training.loop import Standing, Training
from regard.training.metrics import Metrics
from regard.training.plans.plan import Plan, Request
from regard.training.plans.table import PLANS
from regard.training.processes import Processes
from regard.training.reports import Logger, Reporter, Reporters
from regard.training.settings import DataConfig, TrainingConfig
from regard.training.work import Work

CHECKPOINTS, DATA, METRICS = "checkpoints", "data", "metrics.jsonl"
TABLES = {"recipe": str | None, "data": DataConfig | None, "tokenizer": TokenizerConfig | None, "model": ModelConfig,
          "training": TrainingConfig}


class Outcome(NamedTuple):
    """What came of a training."""

    standing: Standing
    folder: Path
    finished: bool
    """Whether there is nothing left to do."""


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
    checks.pick("task", request.task, PLANS)
    asked = _asked(request)
    with Processes.joined() as processes:
        device = processes.device(None if request.device == "auto" else request.device)
        if device.type == "cpu":
            torch.set_flush_denormal(True)  # subnormal gradients make the output layer many times slower
        _claim(request, processes)
        place = Checkpoints(request.output / CHECKPOINTS, keep=1)
        with (place.hold() if processes.main else contextlib.nullcontext(),
              Reporters(loggers if processes.main else ()) as report):
            return _train(request, asked, processes, device, report, place.load() if request.resume else None)


def _train(request: Request, asked: Document, processes: Processes, device: torch.device, report: Reporters,
           stored: Loaded | None) -> Outcome:
    plan = PLANS[request.task]()
    for note in () if stored is None else stored.notes:
        report(reports.Note(note))
    if stored is not None:
        asked = _resumed(stored.snapshot.values["identity"], request, asked)
    ready = prepare(request, plan, asked, devices.about(device), report)
    if stored is not None:
        _check_files(stored.snapshot.values["identity"]["files"], ready.files, request)
    identity = {"task": request.task, "config": ready.tables, "files": ready.files}
    processes.same(config.dumps(ready.tables))
    checkpoints = Checkpoints(request.output / CHECKPOINTS, keep=ready.settings.checkpoints.keep)
    training = _assembled(request, ready, identity, processes, device, checkpoints, report)
    standing = Standing()
    if stored is not None:
        standing = training.resume(stored.snapshot)
        report(reports.Note(f"Going on after step {standing.step:,}."))
    if standing.step >= ready.settings.steps or training.out_of_patience(standing):
        report(reports.Note(f"There is nothing left to do: the training ended after step {standing.step:,}. For another "
                            f"one choose another folder."))
        return Outcome(standing, request.output, True)
    if processes.main:
        metrics = Metrics(request.output / METRICS)
        metrics.resume(standing.step)
        report.loggers.append(metrics)
    _tell(training, ready, device, standing, report)
    training.try_largest()
    standing = training.run(standing)
    finished = standing.step >= ready.settings.steps or training.out_of_patience(standing)
    processes.barrier()
    if finished and processes.main:
        shutil.rmtree(request.output / DATA, ignore_errors=True)  # a model folder holds no sentences
    return Outcome(standing, request.output, finished)


def prepare(request: Request, plan: Plan, asked: Document, device: Device, report: Reporter) -> Ready:
    """Read the data, make the choices, and put together what the loop is given."""
    filters = config.make(DataConfig | None, asked, ("data",)) or DataConfig()
    survey = plan.survey(request, filters)
    for warning in plan.warnings(survey):
        report(reports.Note(warning))
    first = plan.before(survey)
    document = _filled(asked, first)
    prepared = plan.prepare(survey, document, request.output / DATA)
    named = plan.named(prepared, device, asked.tables.get("recipe"))
    table = asked.tables.get("model", {})
    if "kind" not in table:  # a whole model of their own is not mixed with a recipe
        recipe = catalog.find(named.value).tables["model"]
        document = _filled(document, [Choice(f"model.{key}", each, named.reason) for key, each in _leaves(recipe)])
    second = plan.after(prepared, document.tables, device)
    document = _filled(document, second)
    made = [*first, named, *second]
    if "steps" not in document.tables["training"].get("schedule", {}):
        steps = _steps(document, plan.steps(prepared, document))
        document = _filled(document, [steps])
        made.append(steps)
    document = toml.changed(document, {"recipe": named.value}) if "kind" not in table else document
    tables = config.make_all(TABLES, document)
    settings, model = tables["training"], tables["model"]
    plain = config.plain(tables)
    record = {**{key: plain[key] for key in ("recipe", "data", "training") if key in plain},
              "tokenizer": plain.get("tokenizer", {})}
    record["data"] = {**record.get("data", {}), "files": [f"{name} {digest}" for name, digest in
                                                          plan.files(survey).items()]}
    work = plan.work(prepared, model, settings, record)
    kept = tuple(choice for choice in made if value(asked.tables, choice.key) is None)
    return Ready(work, model, settings, kept, plain, plan.files(survey), tuple(plan.notes(prepared)))


def _assembled(request: Request, ready: Ready, identity: dict[str, Any], processes: Processes, device: torch.device,
               checkpoints: Checkpoints, report: Reporter) -> Training:
    torch.manual_seed(ready.settings.seed)
    model = build(ready.model).to(device).train()
    engine = Engine(ready.work.objective(model), ready.settings, processes)
    task = ready.work.task(model)

    def keep(standing: Standing) -> None:
        whole = _whole(ready, engine)  # in which all processes take part
        if processes.main:
            held = task if whole is None else ready.work.task(whole)
            held.record = {**held.record, "scores": {"step": standing.best_step, **(standing.best_scores or {})}}
            held.save(request.output)

    return Training(ready.work, task, engine, ready.settings, checkpoints, report, keep, identity)


def _whole(ready: Ready, engine: Engine) -> nn.Module | None:
    """A model of its own with all parameters, where each process has a part of them; None where each has all."""
    if not engine.sharded:
        return None
    tensors = {name: tensor.full_tensor().cpu() if hasattr(tensor, "full_tensor") else tensor.cpu()
               for name, tensor in engine.objective.model.state_dict().items()}
    return modules.made(ready.model.build, tensors, origin="the training")


def _asked(request: Request) -> Document:
    """The config as far as somebody asked for it: a recipe's name or file, and single values."""
    name = request.recipe
    if name is None:
        document = toml.given({}, "config")
    elif name.endswith(".toml") or "/" in name:
        document = toml.read(name)
    else:
        catalog.find(name)  # an unknown name is refused at once
        document = toml.given({"recipe": name}, "config")
    document = toml.changed(document, request.changes)
    _check_keys(document)
    return document


def _check_keys(document: Document) -> None:
    """Refuse misspelt keys and wrong values now, and not after the data has been read."""
    for key in document.tables:
        if key not in TABLES:
            raise document.error([toml.Problem((key,), "unknown key ", f'; {checks.nearest(key, TABLES)}')])
    for key in ("data", "tokenizer"):
        config.make(TABLES[key], document, (key,))
    training = document.tables.get("training")
    if isinstance(training, Mapping):  # the steps, which it must have, may still be chosen
        schedule = training.get("schedule", {})
        whole = toml.changed(document, {"training.schedule.steps": 10**9}) if "steps" not in schedule else document
        whole = toml.changed(whole, {"training.schedule.peak": 1e-3}) if "peak" not in schedule else whole
        config.make(TrainingConfig, whole, ("training",))


def _claim(request: Request, processes: Processes) -> None:
    """Make the folder ours; or find that it is, where a training is to go on."""
    output = request.output
    if processes.main:
        folders.prepare(output)
        there = output.is_dir() and any(output.iterdir())
        if there and not request.resume:
            raise folders.FolderError(f"{output}: there is a model already. --resume goes on with its training; for "
                                      f"another one choose another folder.")
        if not there and request.resume:
            raise folders.FolderError(f"{output}: there is no training to go on with. Leave out --resume to begin one.")
        if not there:
            folders.save(output, {})
    processes.barrier()


def _resumed(identity: Mapping[str, Any], request: Request, asked: Document) -> Document:
    """The stored config. What somebody asks for now must be in it."""
    different = [f"task: {identity['task']} is stored, {request.task} is asked for"] if (
        identity["task"] != request.task) else []
    for key, wanted in _leaves(asked.tables):
        stored = value(identity["config"], key)
        if stored != wanted:
            different.append(f"{key}: {'nothing' if stored is None else stored} is stored, {wanted} is asked for")
    if different:
        raise DataError(f"{request.output}: this training cannot go on with another config.\n" + "\n".join(
            f"  {line}" for line in different) + "\nLeave these out, or choose another folder.")
    return toml.given(identity["config"], str(request.output / CHECKPOINTS))


def _check_files(stored: Mapping[str, str], now: Mapping[str, str], request: Request) -> None:
    names = [name for name in {**stored, **now} if stored.get(name) != now.get(name)]
    if names:
        words = [f"  {name}: {'not there before' if name not in stored else 'missing' if name not in now else 'changed'}"
                 for name in names]
        raise DataError(f"{request.output}: this training cannot go on with other data.\n" + "\n".join(words)
                        + "\nGive the same files, or choose another folder.")


def _steps(document: Document, epoch: int) -> Choice:
    """How many steps so many epochs have."""
    training = document.tables["training"]
    many, epochs = training.get("accumulate", 1), training["epochs"]
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


def _filled(document: Document, choices: "list[Choice]") -> Document:
    """The document, with what was chosen where nothing was asked for."""
    return toml.changed(document, {choice.key: choice.value for choice in choices
                                   if value(document.tables, choice.key) is None and "." in choice.key})


def _leaves(tables: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tables.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


__all__ = ["Outcome", "Ready", "Request", "prepare", "train"]
