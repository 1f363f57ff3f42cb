"""Tokenizers that are trained once for a training and then read: another run must never get other ids.

    stored_pair(place, (sources, targets), config, ...)     the one at this place; trained where there is none
    stored_one(place, texts, config, ...)                   the same for one side

Beside its files lies what they were made from, and their sha256; what does not fit is made anew only where nothing has
been learned with it yet, which is for the caller to know. It does not know what is learned.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from regard import config as configs
from regard.data.store import store_key
from regard.data.tokenizer import storing, training
from regard.data.tokenizer.contract import Tokenizer
from regard.data.tokenizer.pair import PairTokenizer
from regard.data.tokenizer.settings import TokenizerConfig
from regard.storage import folder as folders

FOLDER, ABOUT = "tokenizer", "about.json"
Texts = Callable[[], Iterable[str]]
Kind = TypeVar("Kind", Tokenizer, PairTokenizer)


@dataclass(frozen=True)
class Stored(Generic[Kind]):
    """A tokenizer, and what its user should know of how it came to be."""

    tokenizer: Kind
    notes: tuple[str, ...] = ()


def stored_pair(place: Path, sides: tuple[Texts, Texts], config: TokenizerConfig, *, joint: bool,
                data: Sequence[str], settings: Mapping[str, Any]) -> Stored[PairTokenizer]:
    """The tokenizers of two sides."""
    key = store_key(data, json.dumps([configs.plain(config), joint], sort_keys=True), settings)

    def make() -> Stored[PairTokenizer]:
        sources, targets = sides
        made = (training.train_joint(sources(), targets(), config) if joint
                else training.train_separate(sources(), targets(), config, config))
        return Stored(made.tokenizer, made.notes)

    return _stored(place / FOLDER, key, make, storing.load_pair)


def stored_one(place: Path, texts: Texts, config: TokenizerConfig, *, data: Sequence[str],
               settings: Mapping[str, Any]) -> Stored[Tokenizer]:
    """The tokenizer of one side."""
    key = store_key(data, json.dumps(configs.plain(config), sort_keys=True), settings)

    def make() -> Stored[Tokenizer]:
        made = training.train(texts(), config)
        return Stored(made.tokenizer, made.notes)

    return _stored(place / FOLDER, key, make, storing.load)


def _stored(folder: Path, key: str, make: Callable[[], Stored[Kind]], load: Callable[..., Kind]) -> Stored[Kind]:
    if folder.exists():
        files = folders.load(folder, lambda saved: {name: saved.read_bytes(name) for name in saved.manifest.files})
        about = json.loads(files[ABOUT]) if ABOUT in files else {}
        if about.get("key") == key:
            return Stored(load(files, sha256=about["sha256"]), tuple(about["notes"]))
    made = make()
    about = {"key": key, "sha256": made.tokenizer.sha256, "notes": list(made.notes)}
    folders.save(folder, {**made.tokenizer.files(), ABOUT: json.dumps(about, indent=1).encode()})
    return made
