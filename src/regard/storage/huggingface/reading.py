"""Read a folder of `transformers` into what one of our models is made of.

    foreign = read("all-MiniLM-L6-v2")
    foreign.config, foreign.special     as ours
    foreign.build()                     the bare model, with the weights in it

Nothing is allocated before the config is understood, the files are known to hold what it asks for, each tensor has its
shape, and the model fits into memory. Nothing is dropped unsaid: what has no place here and is known not to matter is
named in `left_out`, anything else is refused. Numbers in half precision become float32, which changes none of them;
others keep their precision.

It does not know tokenizers, nor how a model is searched: generation_config.json is not read.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.models.build import ModelConfig, check_size
from regard.models.special import SpecialConfig
from regard.storage import modules, weights
from regard.storage.huggingface import files, mapping
from regard.storage.huggingface import settings as keys
from regard.storage.huggingface.families import of_file
from regard.storage.huggingface.family import Asked, Family
from regard.storage.huggingface.mapping import Matches
from regard.storage.manifest import wrong

HALF = {torch.float16, torch.bfloat16}
READ = {torch.float32, torch.float64, *HALF}
FAR = 10


@dataclass(frozen=True)
class Foreign:
    """A model of other people, in our terms."""

    config: ModelConfig
    special: SpecialConfig
    tensors: Mapping[str, Tensor]
    """By our names; a tensor that our model has under several is the same one under each."""
    family: str
    architecture: str
    labels: tuple[str, ...] = ()
    """The names of the labels, where they have any."""
    longest: int | None = None
    """How many positions it was trained with, where our positions have no end."""
    left_out: tuple[str, ...] = ()
    """Their tensors that our model does without."""

    def build(self) -> nn.Module:
        """The bare model with these weights, in evaluation mode."""
        return modules.made(self.config.build, self.tensors, origin=self.architecture).eval()


def read(folder: str | os.PathLike[str], *, ignore: Iterable[str] = ()) -> Foreign:
    """The model in a folder with config.json and safetensors; a ValueError says why it cannot be read.

    Args:
        ignore: keys of config.json that are taken as null, because whoever calls knows that they do not matter.
    """
    folder = Path(folder)
    raw, found = files.settings(folder), files.tensors(folder)
    path = folder / files.CONFIG
    family, architecture = of_file(raw, found.tensors, str(path))
    settings = keys.read(family.settings, raw, str(path), ignore)
    count, labels = keys.labels(raw, str(path))
    config = _config(family, settings, Asked(family.architectures[architecture], count, found.tensors), path)
    _check_sizes(config, found, path)
    with torch.device("meta"):
        state = config.build().state_dict(keep_vars=True)
    matches = _spelled(mapping.matched(family.rules(config), state), family, found)
    left_out = _check_tensors(matches, state, found, family, f"{folder} ({architecture})")
    tensors = _tensors(matches, found, left_out, folder)
    return Foreign(config, settings.special(), tensors, family.name, architecture,
                   labels if hasattr(config, "labels") else (), family.longest(settings), tuple(left_out))


def _config(family: Family[Any], settings: keys.Settings, asked: Asked, path: Path) -> ModelConfig:
    try:
        return family.config(settings, asked)
    except ValueError as error:  # of a config, or of a family that cannot be told with one
        raise wrong(path, "the config of a model that can be", "not", str(error)) from None


def _check_sizes(config: ModelConfig, found: files.Found, path: Path) -> None:
    """Refuse a config that asks for far more than the files hold, before even an empty model is made of it."""
    if config.parameters() > FAR * found.elements:  # where less is missing, the names of the tensors say more
        raise wrong(path, f"the config of a model of the {found.elements:,} numbers that the files hold",
                    f"that of one of {config.parameters():,} parameters")
    check_size(config)


def _spelled(matches: Matches, family: Family[Any], found: files.Found) -> Matches:
    """The same in the spelling of this file."""
    assert not matches.without, matches.without  # a family that makes a config has rules for all of its tensors
    spell = family.spelling(found.tensors)
    return matches._replace(found=[match._replace(theirs=tuple(map(spell, match.theirs))) for match in matches.found])


def _check_tensors(matches: Matches, state: Mapping[str, Tensor], found: files.Found, family: Family[Any],
                   origin: str) -> list[str]:
    """Refuse tensors that are missing, not known, or of another shape. Returns those that are known to be unused."""
    wanted = mapping.wanted(matches, state, found.tensors)
    spell = family.spelling(found.tensors)
    unused = [one._replace(theirs=spell(one.theirs)) for one in family.unused]
    left_out = [name for name in found.tensors if name not in wanted and mapping.is_unused(name, unused)]
    kept = {name: entry for name, entry in found.tensors.items() if name not in left_out}
    quantised = [name for name in kept if name in wanted and kept[name].dtype not in READ]
    if quantised:
        raise wrong(origin, "weights in float32, float64, float16 or bfloat16",
                    f"with {quantised[0]!r:.200} in {kept[quantised[0]].dtype}", "Quantised weights are not read.")
    modules.match(wanted, kept, origin=origin, owner="architecture")
    return left_out


def _tensors(matches: Matches, found: files.Found, left_out: list[str], folder: Path) -> dict[str, Tensor]:
    """Our tensors, file by file."""
    of_theirs = {name: match for match in matches.found for name in match.theirs}
    tensors: dict[str, Tensor] = {}
    for path in found.files:
        content = weights.read(path)
        for name in [name for name in content if name not in left_out]:
            match, theirs = of_theirs[name], content.pop(name)
            theirs = theirs.float() if theirs.dtype in HALF else theirs
            for ours, part in zip(match.ours, match.way.read(theirs), strict=True):
                if ours not in tensors:  # a part of a larger one would keep the whole alive
                    alone = part.is_contiguous() and part.numel() == theirs.numel()
                    tensors[ours] = part if alone else part.clone(memory_format=torch.contiguous_format)
                elif not torch.equal(tensors[ours], part):
                    remedy = f"The config says that {', '.join(match.theirs)} are one tensor."
                    raise wrong(folder, "a folder whose config fits its weights", f"one where {name} differs", remedy)
    return {**tensors, **{name: tensors[first] for name, first in matches.second.items()}}
