"""What is stored beside a tokenizer's data: of which kind it is, and the sha256 of the data, so that a swap is seen.

    tokenizer.toml     the record
    tokenizer.model    the data of a sentencepiece model; other kinds have other endings

A record is a config, read as strictly as any other. This file packs and unpacks; it does not make tokenizers.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from regard import checks, config
from regard.config import Config, choice
from regard.data.tokenizer.normalisation import NORMALISATIONS
from regard.models.special import SpecialConfig
from regard.toml import document

FORMAT = 1
MODELS = ("unigram", "bpe")


@dataclass(frozen=True, kw_only=True)
class SentencePieceRecord(Config):
    """A sentencepiece model that regard trained."""

    kind: ClassVar[str] = "sentencepiece"
    endings: ClassVar[Mapping[str, str]] = {"model": "sha256"}
    model: str = choice(MODELS)
    normalisation: str = choice(NORMALISATIONS)
    sha256: str


@dataclass(frozen=True, kw_only=True)
class CharactersRecord(Config):
    """A list of characters."""

    kind: ClassVar[str] = "characters"
    endings: ClassVar[Mapping[str, str]] = {"json": "sha256"}
    normalisation: str = choice(NORMALISATIONS)
    sha256: str


@dataclass(frozen=True, kw_only=True)
class BytesRecord(Config):
    """Bytes, which need no data."""

    kind: ClassVar[str] = "bytes"
    endings: ClassVar[Mapping[str, str]] = {}
    normalisation: str = choice(NORMALISATIONS)


@dataclass(frozen=True, kw_only=True)
class JsonRecord(Config):
    """A tokenizer.json of an imported model."""

    kind: ClassVar[str] = "json"
    endings: ClassVar[Mapping[str, str]] = {"json": "sha256"}
    special: SpecialConfig
    sha256: str


@dataclass(frozen=True, kw_only=True)
class MarianRecord(Config):
    """A sentencepiece model and a list of ids, of an imported Marian model."""

    kind: ClassVar[str] = "marian"
    endings: ClassVar[Mapping[str, str]] = {"model": "sha256", "vocab.json": "vocabulary_sha256"}
    special: SpecialConfig
    sha256: str
    vocabulary_sha256: str


Record = SentencePieceRecord | CharactersRecord | BytesRecord | JsonRecord | MarianRecord


def sha256(data: bytes) -> str:
    """The sha256 of some data, as it is written."""
    return hashlib.sha256(data).hexdigest()


def packed(name: str, record: Record, data: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of a tokenizer: its record, and its data by their endings."""
    text = config.dumps({"format": FORMAT, "tokenizer": record})
    return {f"{name}.toml": text.encode(), **{f"{name}.{ending}": content for ending, content in data.items()}}


def unpacked(files: Mapping[str, bytes], name: str) -> tuple[Any, dict[str, bytes]]:
    """The record of the tokenizer called `name` among these files, and its data by their endings, checked."""
    text = given(files, f"{name}.toml")
    try:
        read = document.parse(text.decode(), f"{name}.toml")
    except UnicodeDecodeError:
        raise checks.wrong(f"{name}.toml", "a record of a tokenizer", "no UTF-8", "Restore it from a copy.") from None
    version = read.tables.get("format")
    if isinstance(version, int) and version > FORMAT:
        raise checks.wrong(f"{name}.toml", f"of format {FORMAT}", f"of format {version}", "Install a newer regard.")
    record: Any = config.make_all({"format": int, "tokenizer": Record}, read)["tokenizer"]
    data = {}
    for ending, key in record.endings.items():
        data[ending] = given(files, f"{name}.{ending}")
        check(f"{name}.{ending}", getattr(record, key), sha256(data[ending]))
    return record, data


def given(files: Mapping[str, bytes], name: str) -> bytes:
    """The file of this name; a ValueError where there is none."""
    if name not in files:
        there = ", ".join(sorted(files)[:8]) or "none"
        raise checks.wrong("files", f"with {name}", f"without it: {there}", "Restore it from a copy.")
    return files[name]


def check(name: str, recorded: str, found: str) -> None:
    """Refuse what is not as it was recorded."""
    if found != recorded:
        raise checks.wrong(name, f"as it was recorded, with sha256 {recorded}", f"another, with sha256 {found}",
                           "A model works with its own tokenizer alone: restore the one that it was trained with.")
