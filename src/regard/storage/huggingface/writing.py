"""Write one of our models as a folder that `transformers` loads, where one of its architectures can hold it.

A config that has something no family has a place for is refused with all that does not fit, never written as something
near it. The folder is saved as all of ours are: aside, then put in place by one rename, and never over what regard did
not save. It does not know tokenizers; their files come as `others`.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from regard import checks
from regard.models.build import ModelConfig
from regard.models.special import SpecialConfig
from regard.storage import folder as folders
from regard.storage import modules, weights
from regard.storage.huggingface import files, mapping
from regard.storage.huggingface import settings as keys
from regard.storage.huggingface.families import of_config
from regard.storage.huggingface.family import Asked, Made, check_fits


def write(folder: str | os.PathLike[str], config: ModelConfig, special: SpecialConfig, tensors: Mapping[str, Tensor], *,
          labels: Sequence[str] = (), longest: int | None = None,
          others: Mapping[str, folders.Content] | None = None) -> None:
    """Save a model as config.json and model.safetensors; a ValueError says what does not fit.

    Args:
        folder: not there yet, empty, or saved by regard before.
        tensors: the state of the model, by our names.
        labels: the names of the labels, where the model has labels and they have names.
        longest: how many positions the model was trained with, where ours have no end; the family's default otherwise.
        others: further files, such as those of a tokenizer.
    """
    family, architecture = of_config(config)
    with torch.device("meta"):
        model = config.build()
    modules.compare(model, modules.entries(tensors), origin="tensors")
    matches = mapping.matched(family.rules(config), model.state_dict(keep_vars=True))
    count = getattr(config, "labels", 0)
    if labels and len(labels) != count:
        raise checks.wrong("labels", f"{count} names, one for each label", f"{len(labels)} of them")
    settings = family.told(config, Made(special, longest))
    names = {name for match in matches.found for name in match.theirs}
    check_fits(config, family.config(settings, Asked(config.kind, count, names)), architecture)
    assert not matches.without, matches.without
    theirs = mapping.to_theirs(matches, _by_first_names(tensors, matches.second))
    kind = next(iter(theirs.values())).dtype
    theirs |= {name: tensor.to(kind) for name, tensor in family.derived(settings).items()}
    if architecture in family.bare:
        theirs = {name.removeprefix(family.base): tensor for name, tensor in theirs.items()}
    table = {"architectures": [architecture], "model_type": family.name, **_dtype(theirs), **keys.written(settings)}
    if count:
        named = list(labels) or keys.unnamed(count)
        table |= {"id2label": {str(index): name for index, name in enumerate(named)},
                  "label2id": {name: index for index, name in enumerate(named)}}

    def save(path: Path) -> None:
        weights.write(path, theirs, {"format": "pt"})

    text = json.dumps(table, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    folders.save(folder, {files.CONFIG: text.encode(), files.WEIGHTS: save, **(others or {})})


def _by_first_names(tensors: Mapping[str, Tensor], second: Mapping[str, str]) -> dict[str, Tensor]:
    """The tensors, those that are one in the model under the name that comes first; refused where they differ."""
    own = {name: tensor for name, tensor in tensors.items() if name not in second}
    for name in second.keys() & tensors.keys():
        if not torch.equal(own.setdefault(second[name], tensors[name]), tensors[name]):
            raise checks.wrong("tensors", f"equal for {second[name]!r} and {name!r}, which are one in the model", "not")
    return own


def _dtype(theirs: Mapping[str, Tensor]) -> dict[str, str]:
    """The precision of all tensors, where it is one."""
    found = {str(tensor.dtype).removeprefix("torch.") for tensor in theirs.values()}
    return {"dtype": found.pop()} if len(found) == 1 else {}
