"""What all tasks share: a model with its config and its special ids, and the folder that holds all of it.

    task = regard.load("folder")      the task that fits the model
    task.model                        the bare module
    task.save("other")                config.toml, model.safetensors, README.md, manifest.json

A task does not know how its model was trained. Texts come with a tokenizer; until there is one, tasks take ids.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from regard import checks, config
from regard._version import __version__
from regard.decoding.rules import as_ids
from regard.models.build import ModelConfig
from regard.models.contract import Tokens
from regard.models.special import SpecialConfig
from regard.storage import folder as folders
from regard.storage import weights

CONFIG, WEIGHTS, CARD = "config.toml", "model.safetensors", "README.md"
Ids = Sequence[Sequence[int]]


class Task:
    """A model ready for use: in evaluation mode, with all that is needed to use it."""

    def __init__(self, model: nn.Module, made_from: ModelConfig, special: SpecialConfig | None = None) -> None:
        if special is not None and not isinstance(special, SpecialConfig):
            raise checks.wrong("special", "a SpecialConfig", *checks.kind(special))
        self.model, self.config = model.eval(), made_from
        self.special = SpecialConfig() if special is None else special

    def save(self, folder: str | Path) -> None:
        """Write the folder of this model. What regard saved there before is replaced; anything else is refused."""
        text = config.dumps({"model": self.config, "special": self.special})
        files: dict[str, folders.Content] = {
            CONFIG: text.encode(),
            WEIGHTS: partial(_write_weights, self.model),
        }
        folders.save(folder, files, editable={CARD: self._card().encode()})

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def tokens(self, rows: Ids) -> Tokens:
        """Rows of ids as the model reads them."""
        self.check_mode()
        if not _is_sequence(rows):
            raise checks.wrong("rows", "sequences of ids, such as [[5, 6], [7]]", *checks.kind(rows))
        if not rows:
            raise checks.wrong("rows", "at least one sequence of ids", "none")
        for number, row in enumerate(rows):
            if not _is_sequence(row):
                raise checks.wrong("rows", "sequences of ids, such as [[5, 6], [7]]", f"{row!r:.80} in row {number}")
            as_ids("rows", row)
        return Tokens.of(rows, padding=self.special.padding or 0).to(self.device)

    def check_mode(self) -> None:
        """Refuse a model that was put into training mode, where dropout would make results a matter of chance."""
        if self.model.training:
            raise checks.wrong("model", "in evaluation mode", "in training mode", "Call task.model.eval() first.")

    def end(self) -> tuple[int, ...]:
        """The ids that end what a model writes."""
        if not self.special.end:
            raise checks.wrong("special.end", "an id, for a model that writes", "none")
        return self.special.end

    def _card(self) -> str:
        """The README of the folder."""
        return (f"# A model of kind `{self.config.kind}`\n\n"
                f"{self.config.parameters():,} parameters; saved by regard {__version__}.\n\n"
                f'`regard.load("...")` with the path of this folder gives a `{type(self).__name__}`.\n')

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.config.kind}, {self.config.parameters():,} parameters)"


def _is_sequence(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _write_weights(model: nn.Module, path: Path) -> None:
    state: dict[str, Tensor] = model.state_dict()
    weights.write(path, state, {"regard": __version__})
