"""What a training that goes on must share with the one that was stored: task, config, files and how they are read.

    stored = identity(request, tables, files, tokenizer)      kept with every checkpoint
    document = stored_config(stored, request, asked)          the config of then, where no other is asked for

Whoever resumes may leave out what was set, but not set it otherwise. Every difference is told. It does not know the
state of the training itself.
"""

import os
from collections.abc import Mapping
from typing import Any

from regard.data.pair import DataError
from regard.toml import document as toml
from regard.toml.document import Document
from regard.training.asking import in_sizes, leaves
from regard.training.choices.choice import value
from regard.training.plans.plan import Request

Identity = Mapping[str, Any]
NAMES = ("source", "target", "format")


def identity(request: Request, tables: Mapping[str, Any], files: Mapping[str, str], tokenizer: str | None) -> Identity:
    """What stands for a training.

    Args:
        tables: the whole config, as plain values.
        files: the sha256 of each by its name.
        tokenizer: its sha256, where there is one.
    """
    return {"task": request.task, "reading": _reading(request), "config": tables, "files": files,
            "tokenizer": tokenizer}


def stored_config(stored: Identity, request: Request, asked: Document) -> Document:
    """The config that was stored, in which all must be that is asked for now."""
    there = {"task": stored["task"], **stored["reading"], **stored["config"]}
    wanted = {"task": request.task, **_reading(request), **asked.tables}
    if "recipe" in wanted and there.get("recipe") in in_sizes(wanted["recipe"]):  # the size was chosen
        wanted["recipe"] = there["recipe"]
    different = [f"  {key}: {_words(value(there, key))} is stored, {_words(each)} is asked for"
                 for key, each in leaves(wanted) if value(there, key) != each]
    if different:
        raise DataError("\n".join([f"{request.output}: This training cannot go on as another one.", *different,
                                   "Ask for the same, or choose another folder."]))
    return toml.given(stored["config"], f"the config in {request.output}")


def check_files(stored: Mapping[str, str], now: Mapping[str, str], request: Request) -> None:
    """Refuse files that are not what they were."""
    changed = [f"  {name}: its sha256 is {now.get(name, 'missing')}, and was {stored.get(name, 'missing')}"
               for name in {**stored, **now} if stored.get(name) != now.get(name)]
    if changed:
        raise DataError("\n".join([f"{request.output}: This training cannot go on with other data.", *changed,
                                   "Give the files as they were, or choose another folder."]))


def check_tokenizer(stored: Identity, now: Identity, folder: os.PathLike[str]) -> None:
    """Refuse another tokenizer than the one that the training has begun with."""
    if stored["tokenizer"] != now["tokenizer"]:
        raise DataError(f"{os.fspath(folder)}: The tokenizer is not the one that this training has begun with: its "
                        f"sha256 is {now['tokenizer']}, and was {stored['tokenizer']}. Restore the folder, or begin "
                        "anew in another one.")


def _reading(request: Request) -> dict[str, Any]:
    """How the data was asked for: what its order and its sides depend on besides the files."""
    files = {"DATA": request.data, "--validation": request.validation}
    return {**{key: [os.path.basename(path) for path in paths] for key, paths in files.items()},
            **{f"--{name}": getattr(request, name) for name in NAMES}}


def _words(given: Any) -> str:
    if isinstance(given, list | tuple):
        return " ".join(map(str, given)) or "nothing"
    return "nothing" if given is None else str(given)
