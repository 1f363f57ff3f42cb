"""The folder of a comparison: what it was asked, what is finished, and that nothing else is ever written over.

    comparison/
      plan.json              what was asked; it makes the folder ours
      steps.json             how long each model may learn
      data/                  the pairs that all models share
      runs/NAME-SEED/        a model folder, as `regard train` makes it
      runs/NAME-SEED.json    what was measured of it: this run is finished
      results.json, page.html

Asked again for the same, a comparison goes on: finished runs are read, a training that was interrupted is resumed. More
models or seeds may be asked for; what else is asked for must be as it was. It does not know what is measured.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.storage.manifest import FolderError

PLAN, DATA, RUNS, STEPS = "plan.json", "data", "runs", "steps.json"
RESULTS, PAGE = "results.json", "page.html"
FORMAT = "regard comparison"
Table = dict[str, Any]


class Place:
    """A folder that is ours."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def data(self) -> Path:
        """Where the pairs are."""
        return self.folder / DATA

    def model(self, name: str, seed: int) -> Path:
        """Where a model is trained."""
        return self.folder / RUNS / f"{name}-{seed}"

    def finished(self, name: str, seed: int) -> Table | None:
        """What was measured of a run; None where it is not finished."""
        path = self._measures(name, seed)
        return _read(path) if path.exists() else None

    def finish(self, name: str, seed: int, measured: Table) -> None:
        """Keep what was measured of a run."""
        self.write(f"{RUNS}/{name}-{seed}.json", json.dumps(measured, ensure_ascii=False))

    def write(self, name: str, text: str) -> Path:
        """A file of ours, whole or not at all; it may be there already."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.part")
        with aside.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
        return path

    def _measures(self, name: str, seed: int) -> Path:
        return self.folder / RUNS / f"{name}-{seed}.json"


def claimed(folder: Path, asked: Mapping[str, Any]) -> Place:
    """The folder of this comparison, which is made; or found, where the same was asked for before."""
    place, plan = Place(folder), {"format": FORMAT, **json.loads(json.dumps(asked))}
    if folder.exists() and not folder.is_dir():
        raise FolderError(f"{folder}: This is no folder. Choose another name.")
    if not folder.exists() or not any(folder.iterdir()):
        folder.mkdir(parents=True, exist_ok=True)
        place.write(PLAN, json.dumps(plan, indent=1, ensure_ascii=False) + "\n")
        return place
    if not (folder / PLAN).is_file():
        raise FolderError(f"{folder}: There is something already, and no comparison. Choose another folder with -o.")
    there = _read(folder / PLAN)
    if there.get("format") != FORMAT:
        raise FolderError(f"{folder / PLAN}: This is not the plan of a comparison. Choose another folder with -o.")
    different = [f"  {key}: {json.dumps(there.get(key), ensure_ascii=False)} is there, "
                 f"{json.dumps(plan.get(key), ensure_ascii=False)} is asked for"
                 for key in dict.fromkeys((*there, *plan)) if there.get(key) != plan.get(key)]
    if different:
        raise FolderError("\n".join([f"{folder}: There is another comparison.", *different,
                                     "Ask for the same, or choose another folder with -o."]))
    return place


def _read(path: Path) -> Table:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # also what is not UTF-8
        raise FolderError(f"{path}: This is not the JSON that was written there ({error}). Remove it, or choose "
                          f"another folder with -o.") from error
    if not isinstance(found, dict):
        raise FolderError(f"{path}: Expected a JSON object. Remove it, or choose another folder with -o.")
    return found
