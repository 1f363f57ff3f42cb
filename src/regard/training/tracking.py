"""A training in TensorBoard: its numbers as curves.

    tensorboard --logdir model/tensorboard

Needs the extra `track`. Whether it is there is asked when a `TensorBoard` is made, before any work, and torch's writer
is opened when the training starts. A training that goes on hides what was told of later steps. It knows events and
scalars, and nothing else of TensorBoard.
"""

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard import checks
from regard.training.reports import Event, Judged, Progress, Started

TRAINING = ("loss", "nll", "rate", "gradient_norm", "tokens_per_second", "epoch", "memory")
"""Fields of `Progress` that have a curve."""


class TensorBoard:
    """A logger that writes event files for TensorBoard into a folder."""

    name = "TensorBoard"

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        try:
            self._module: Any = importlib.import_module("torch.utils.tensorboard")
        except ImportError as error:
            raise checks.wrong("tensorboard", "installed, to track a training", f"not ({error})",
                               'Install it: pip install "regard[track]".') from error
        self._writer: Any = None

    def __call__(self, event: Event, /) -> None:
        match event:
            case Started():
                self.close()
                # What was told of steps that are made again is hidden: an interrupted training had come further.
                self._writer = self._open(event.first_step if event.first_step > 1 else None)
            case Progress():
                told = {f"training/{name}": getattr(event, name) for name in TRAINING}
                self._write({tag: value for tag, value in told.items() if value is not None}, event.step)
            case Judged():
                self._write({f"validation/{name}": value for name, value in event.scores.items()}, event.step)
                self._writer.flush()

    def close(self) -> None:
        """Write what is left, and close the file."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _open(self, hidden_from: int | None) -> Any:
        return self._module.SummaryWriter(str(self.folder), purge_step=hidden_from)

    def _write(self, values: Mapping[str, float], step: int) -> None:
        if self._writer is None:
            self._writer = self._open(None)
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, step)
