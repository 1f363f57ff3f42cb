"""How checkpoints go: renamed at once, then removed, so that no half of one is ever taken for a checkpoint.

    found(folder)                the steps of which there are checkpoints
    removed(folder, steps)       these are gone; returns what could not be removed, and why
    tidied(folder)               what killed saves and removals have left is gone

Only what regard wrote is removed: a checkpoint into which a person has put something stays. What cannot be removed is
told and tried again at the next time; a training does not end for it. It knows names. It does not know which
checkpoints must stay, nor how they are written.
"""

import os
import re
import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path

from regard.storage import folder as folders
from regard.storage import system
from regard.storage.folder import FolderError

ASIDE = ".writing"
"""Where the files of a new checkpoint are before they are one."""
# The second is where a folder is for a moment when it is replaced on a system that cannot exchange two names.
STEP = re.compile(r"step-(\d{8,})|\.step-(\d{8,})\.old")
LEFT = re.compile(r"\.(step-\d{8,})\.(saving|lock|old)")
"""What a killed save of a folder leaves beside it."""
RUBBISH = re.compile(r"\.removed-.*|\.writing|(newest\.json|lock)\.kept\d*")
"""What is left of removals, and of the folder around this one when a save of it was killed."""
OURS = re.compile(r"((manifest|values)\.json|state(-\d+-of-\d+)?\.safetensors)(\.kept\d*)?")
"""The files of a checkpoint."""


def folder_of(step: int) -> str:
    """The name of the folder of a step."""
    return f"step-{step:08}"


def found(folder: Path) -> set[int]:
    """The steps of which there are checkpoints in this folder, whole or not."""
    if not folder.is_dir():
        return set()
    matches = [match for path in folder.iterdir() if (match := STEP.fullmatch(path.name))]
    digits = {match[1] or match[2] for match in matches}
    return {int(number) for number in digits if folder_of(int(number)) == f"step-{number}"}


def removed(folder: Path, steps: Iterable[int]) -> list[str]:
    """Remove the checkpoints of these steps: first their names, then what is in them. Returns what could not be."""
    notes: list[str] = []
    renamed: list[Path] = []
    for step in steps:
        path = folder / folder_of(step)
        strange = _strange(path)
        if strange is not None:
            notes.append(f"{path} is kept: there is {strange!r} in it, which regard did not make.")
            continue
        goal = folder / f".removed-{path.name}-{secrets.token_hex(4)}"
        try:
            os.rename(path, goal)
        except OSError as error:
            notes.append(f"{path} could not be removed: {error.strerror}.")
        else:
            renamed.append(goal)
    if renamed:
        system.sync(folder)  # the names are gone for good before the first file is
    return notes + [note for path in renamed for note in _erased(path)]


def tidied(folder: Path) -> list[str]:
    """Remove what killed saves and removals have left, and end what they began. Returns what could not be."""
    notes: list[str] = []
    for path in sorted(folder.iterdir()):
        if RUBBISH.fullmatch(path.name):
            notes += _erased(path)
        elif left := LEFT.fullmatch(path.name):
            try:
                folders.prepare(folder / left[1])
            except FolderError as error:
                notes.append(str(error))
    return notes


def _strange(path: Path) -> str | None:
    """Something in the place of a checkpoint that regard did not make; None where there is no such thing."""
    if path.is_symlink() or not path.is_dir():
        return path.name
    return next((inner.name for inner in sorted(path.iterdir()) if not OURS.fullmatch(inner.name) or inner.is_dir()),
                None)


def _erased(path: Path) -> list[str]:
    """Remove a file or a folder. Returns why it is still there, if it is."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError as error:
        return [f"{path} could not be removed: {error.strerror}."]
    return []
