"""config.toml of a model's folder: what a task reads of it, and what it keeps for others.

    [model], [special]             what the model is, and its special ids
    [labels] names                 of a classifier
    [alignment]                    where the links between words are read, of a translator
    [tokenizer] sha256             which tokenizer the model works with; its other keys say how that was made
    recipe                         its name
    [data], [training], [scores]   how the model came to be, and how good it is

Of the last three lines only the sha256 is read here. The rest is kept as it is, so that a model that is loaded and
saved again does not forget where it comes from. Any other key is refused. It does not know folders, nor what the tables
that it keeps mean.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from regard import checks, config
from regard.config import Config
from regard.models.build import ModelConfig
from regard.models.special import SpecialConfig
from regard.tasks.alignment.words import AlignmentConfig
from regard.toml import schema
from regard.toml.document import Document, Problem
from regard.toml.lines import KeyPath

RECIPE, TOKENIZER, SHA256 = "recipe", "tokenizer", "sha256"
TABLES = (TOKENIZER, "data", "training", "scores")
KEPT = (RECIPE, *TABLES)
"""What a record may have."""


@dataclass(frozen=True, kw_only=True)
class NamesConfig(Config):
    """The names of the labels, in the order of the model's outputs."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class Description:
    """What config.toml says."""

    model: ModelConfig
    special: SpecialConfig | None
    labels: tuple[str, ...] | None = None
    tokenizer: str | None = None
    """The sha256 of the model's tokenizer; None where it has none."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """What is kept, by the names of KEPT."""
    alignment: AlignmentConfig | None = None

    def text(self) -> str:
        """The file."""
        tables = {"model": self.model, "special": self.special,
                  "labels": None if self.labels is None else NamesConfig(names=self.labels),
                  "alignment": self.alignment, **self.record}
        if self.tokenizer is not None:
            tables[TOKENIZER] = {**self.record.get(TOKENIZER, {}), SHA256: self.tokenizer}
        return config.dumps(tables)


def read(document: Document) -> Description:
    """The description in a document; a ConfigError has all that is wrong with it."""
    slots = {"model": schema.slot(ModelConfig, "model"), "special": schema.slot(SpecialConfig | None, "special"),
             "labels": schema.slot(NamesConfig | None, "labels"),
             "alignment": schema.slot(AlignmentConfig | None, "alignment"),
             RECIPE: schema.slot(str | None, RECIPE),
             **{key: schema.Slot(_AnyTable(), optional=True) for key in TABLES}}
    found: list[Problem] = []
    made = schema.read_keys(slots, document.tables, (), found)
    record = {key: made[key] for key in KEPT if made.get(key) is not None}
    sha256 = record.get(TOKENIZER, {}).pop(SHA256, None)
    if TOKENIZER in record and not isinstance(sha256, str):
        found.append(schema.instead((TOKENIZER, SHA256), "the sha256 of the tokenizer", sha256))
    if found:
        raise document.error(found)
    if not record.get(TOKENIZER, True):
        del record[TOKENIZER]
    names: NamesConfig | None = made["labels"]
    return Description(made["model"], made["special"], None if names is None else names.names, sha256, record,
                       made["alignment"])


def checked(record: Mapping[str, Any] | None) -> dict[str, Any]:
    """A record as plain values; a ValueError where a file could not hold it, or a key is none of those kept."""
    tables = config.plain(record or {})
    for key, value in tables.items():
        checks.pick("record", key, dict.fromkeys(KEPT))
        if not isinstance(value, str if key == RECIPE else Mapping):
            raise checks.wrong(f"record.{key}", "text" if key == RECIPE else "a table", checks.kind(value)[0])
    if SHA256 in tables.get(TOKENIZER, {}):
        raise checks.wrong(f"record.{TOKENIZER}", f"without {SHA256}, which follows from the tokenizer", "with it")
    config.dumps(tables)
    return {key: value for key, value in tables.items() if value}


class _AnyTable(schema.Reader):
    """A table of which nothing is asked."""

    expected = "a table"

    def read(self, value: Any, path: KeyPath, found: list[Problem]) -> Any:
        if isinstance(value, Mapping):
            return config.plain(value)
        found.append(schema.instead(path, self.expected, value))
        return None
