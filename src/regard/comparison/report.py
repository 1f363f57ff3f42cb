"""A whole comparison of steps of the road: from data to a table, a JSON file and a page.

    data, or the phrasebook ─► split ─► steps of each ─► trainings ─► measures ─► summary ─► results.json, page.html

It knows the order of things, and no details of any.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard.comparison import place as places
from regard.comparison import split
from regard.comparison.measures import shown_sentence
from regard.comparison.page import road_page
from regard.comparison.runs import THREADS, Results, Told, compared
from regard.comparison.setting import Setting
from regard.comparison.split import Files
from regard.comparison.summary import summary
from regard.training.works import files as paths

Table = dict[str, Any]
PHRASEBOOK = "the phrasebook"


@dataclass(frozen=True)
class Data:
    """What models learn from, are judged by and are tested on; without any data it is the phrasebook."""

    data: tuple[str, ...] = ()
    validation: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    source: str | None = None
    target: str | None = None
    format: str | None = None

    def identity(self) -> Table:
        """What stands for it: the sha256 of every file."""
        if not self.data:
            return {PHRASEBOOK: {"drawn": split.DRAWN, "clauses": split.CLAUSES, "words": split.WORDS}}
        paths.inputs((*self.data, *self.validation, *self.test))
        found = {name: paths.digests(getattr(self, name)) for name in ("data", "validation", "test")}
        return {**found, **{name: getattr(self, name) for name in ("source", "target", "format")}}

    def written(self, folder: Path) -> Files:
        """The three files, in this folder."""
        if not self.data:
            return split.of_phrasebook(folder)
        return split.of_data(self.data, folder, validation=self.validation, test=self.test, source=self.source,
                             target=self.target, format=self.format)

    def name(self) -> str:
        """What it is called."""
        return ", ".join(Path(path).name for path in self.data) or PHRASEBOOK


def road(setting: Setting, data: Data, folder: Path, told: Told) -> Table:
    """Compare; the table, which also is in the folder, with a page. What is there already is not done again."""
    place = places.claimed(folder, {"data": data.identity(), **setting.identity()})
    files = Files.at(place.data)
    if not all(path.exists() for path in files):
        files = data.written(place.data)
    results = compared(setting, place, files, told)
    found = summary(setting, results, _about(setting, data, files, results))
    place.write(places.RESULTS, json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    maps = {name: runs[0].attention for name, runs in results.items()}
    place.write(places.PAGE, road_page(found, maps))
    return found


def _about(setting: Setting, data: Data, files: Files, results: Results) -> Table:
    """What is the same for all models: the data, the machine, and the sentence that is shown."""
    tokenizers = {run.tokenizer for runs in results.values() for run in runs}
    assert len(tokenizers) == 1, "the same pairs and settings make the same tokenizer"
    tested = split.pairs_of(files.test)
    source, reference = tested[shown_sentence(tested)]
    counts = {name: len(split.pairs_of(path)) for name, path in zip(split.NAMES, files, strict=True)}
    device = "cuda" if setting.device == "auto" and torch.cuda.is_available() else setting.device
    return {"data": {"name": data.name(), **counts, "sha256": files.digests(), "tokenizer": tokenizers.pop()},
            "machine": {"device": torch.cuda.get_device_name() if device.startswith("cuda") else "CPU",
                        "threads": min(THREADS, torch.get_num_threads()) if setting.small
                        else torch.get_num_threads()},
            "sentence": {"source": source, "reference": reference}}
