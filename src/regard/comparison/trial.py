"""How many steps each model may learn for, found out before the first of them is trained.

    steps_for(setting, files, place)      {"seq2seq": Allowed(1200, {...}), ...}

Target tokens are counted in the batches that the models will learn from. Minutes are foretold by a few steps of each
model, whose result is thrown away. It does not compare anything.
"""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from regard.comparison.budget import matched, steps_of
from regard.comparison.road import Step
from regard.comparison.setting import Setting
from regard.comparison.split import Files
from regard.models.contract import IGNORED
from regard.training import asking, devices, reports
from regard.training.plans.table import PLANS
from regard.training.run import Ready, Request, prepare, train

TASK = "seq2seq"
COUNTED = 200
"""Batches that are counted, at most."""
PILOT, FIRST = 24, 8
"""Steps of a trial for minutes, and those of them that are not timed."""


class Allowed(NamedTuple):
    """What one model is given."""

    steps: int
    changes: dict[str, Any]
    """Of its config, to match parameters."""


def steps_for(setting: Setting, files: Files, place: Path) -> dict[str, Allowed]:
    """The steps of each model, by its name. What is at the place for a while is removed in the end."""
    found, same = dict[str, Allowed](), None
    with _passing(place):
        for step in setting.steps:
            changes = dict[str, Any]()
            if setting.budget.parameters is not None:
                changes = matched(_ready(setting, step, files, place).model, setting.budget.parameters)
            if setting.budget.minutes is not None:
                steps = steps_of(60 * setting.budget.minutes, _seconds(setting, step, files, place, changes))
            else:  # all models learn from the same batches
                steps = same = same or _steps(_ready(setting, step, files, place), setting.budget.tokens)
            found[step.name] = Allowed(steps, changes)
    return found


def request(setting: Setting, step: Step, files: Files, output: Path, changes: dict[str, Any], *,
            steps: int | None = None, seed: int = 1, resume: bool = False) -> Request:
    """What a training of this model is asked for."""
    return Request(task=TASK, data=(str(files.train),), validation=(str(files.validation),), output=output,
                   recipe=setting.recipe(step), resume=resume, device=setting.device,
                   changes={**setting.changes_of(step, steps), **changes, "training.seed": seed})


def _ready(setting: Setting, step: Step, files: Files, place: Path) -> Ready:
    asked = request(setting, step, files, place / "trial", {})
    plan = PLANS[TASK]()
    name = setting.device if setting.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    return prepare(asked, plan, asking.asked(asked, plan), devices.about(torch.device(name)), lambda event: None)


def _steps(ready: Ready, tokens: int | None) -> int:
    """The steps that learn from so many target tokens; where none are given, those of a training by itself."""
    if tokens is None:
        return ready.settings.steps
    feed, many = ready.work.feed(0, 1), ready.settings.accumulate
    count = min(COUNTED, feed.steps)
    counted = sum(int((feed.at(number).labels != IGNORED).sum()) for number in range(count))
    return steps_of(tokens, many * counted / count)


class _Clock:
    """A logger that notes when steps were done."""

    name = "clock"

    def __init__(self) -> None:
        self.times: dict[int, float] = {}

    def __call__(self, event: reports.Event, /) -> None:
        if isinstance(event, reports.Progress):
            self.times[event.step] = time.monotonic()

    def close(self) -> None:
        """Nothing is held."""


def _seconds(setting: Setting, step: Step, files: Files, place: Path, changes: dict[str, Any]) -> float:
    """Seconds of a step."""
    clock = _Clock()
    few = {**changes, "training.report": FIRST, "training.validation.most": 1, "training.validation.every": PILOT}
    train(request(setting, step, files, place / f"pilot-{step.name}", few, steps=PILOT), [clock])
    return (clock.times[PILOT] - clock.times[FIRST]) / (PILOT - FIRST)


@contextmanager
def _passing(place: Path) -> Iterator[None]:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    try:
        yield
    finally:
        shutil.rmtree(place, ignore_errors=True)
