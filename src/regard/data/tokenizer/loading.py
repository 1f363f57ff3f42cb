"""Tokenizers from files: those that regard stored, and those of imported models.

    files = tokenizer.files()                              {"tokenizer.toml": ..., "tokenizer.model": ...}
    load_tokenizer(files, sha256=tokenizer.sha256)         the same tokenizer, or a ValueError
    JsonTokenizer(data, special)                           a Hugging Face `tokenizer.json`; needs `tokenizers`
    MarianTokenizer(model, vocabulary, special)            one side of a Marian model: `source.spm` and `vocab.json`

Nothing that is read could execute code: TOML, JSON and sentencepiece models are data. Other files are ignored. Imported
tokenizers are not lossless: letters may lose their case or accents, and what has no piece may become the unknown id.
Padding, truncation and special-token templates of a `tokenizer.json` are disabled, and a special token that is typed as
text stays text. A Marian vocabulary has language codes, >>fra<<, that no text encodes to: they are its control tokens.

This module does not open files: the caller reads the folder.
"""

import importlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from regard import checks, config, toml
from regard.config import Config
from regard.data.tokenizer.interface import (
    SOURCE,
    TARGET,
    TOKENIZER_NAME,
    PairTokenizer,
    Span,
    Tokenizer,
    check_ids,
    check_text,
)
from regard.data.tokenizer.subwords import (
    SPACE_SYMBOL,
    TOKENIZER_FORMAT,
    BytesRecord,
    ByteTokenizer,
    CharactersRecord,
    CharacterTokenizer,
    SentencePieceRecord,
    SentencePieceTokenizer,
    hash_data,
    load_sentencepiece,
    pack_files,
)
from regard.special_tokens import SpecialTokens


def load_tokenizer(files: Mapping[str, bytes], *, sha256: str | None = None, name: str = TOKENIZER_NAME) -> Tokenizer:
    """The tokenizer whose files begin with `name`; a ValueError if its sha256 is another than given."""
    record, data = unpack_files(files, name)
    tokenizer: Tokenizer
    match record:
        case SentencePieceRecord():
            tokenizer = SentencePieceTokenizer(data["model"], record.model, record.normalisation,
                                               record.controls or ())
        case CharactersRecord():
            characters = _parse_characters(data["json"], f"{name}.json")
            tokenizer = CharacterTokenizer(characters, record.normalisation, record.controls or ())
        case BytesRecord():
            tokenizer = ByteTokenizer(record.normalisation, record.controls or ())
        case JsonRecord():
            tokenizer = JsonTokenizer(data["json"], record.special)
        case _:
            tokenizer = MarianTokenizer(data["model"], data["vocab.json"], record.special)
    if sha256 is not None:
        check_sha256("tokenizer", sha256, tokenizer.sha256)
    return tokenizer


def load_pair_tokenizer(files: Mapping[str, bytes], *, sha256: str | None = None,
                        name: str = TOKENIZER_NAME) -> PairTokenizer:
    """The tokenizers of source and target; a ValueError if their sha256 is another than given."""
    if f"{name}.toml" in files:
        one = load_tokenizer(files, name=name)
        pair = PairTokenizer(one, one)
    else:
        source, target = (load_tokenizer(files, name=f"{name}.{side}") for side in (SOURCE, TARGET))
        pair = PairTokenizer(source, target)
    if sha256 is not None:
        check_sha256("tokenizer", sha256, pair.sha256)
    return pair


def _parse_characters(data: bytes, name: str) -> list[str]:
    try:
        characters = json.loads(data)
    except (ValueError, RecursionError):
        characters = None
    if not isinstance(characters, list) or not all(isinstance(one, str) for one in characters):
        raise ValueError(f"{name} is damaged: it is not a JSON array of characters. Restore it from a copy.")
    return characters


HUGGING_FACE_ROLES = {"bos_token": "start", "eos_token": "end", "pad_token": "padding", "unk_token": "unknown",
                      "mask_token": "mask", "cls_token": "cls", "sep_token": "separator"}
"""The names of special tokens in special_tokens_map.json and tokenizer_config.json, and ours."""


class JsonTokenizer(Tokenizer):
    """A Hugging Face tokenizer.json, given as bytes, with the special ids of its model."""

    lossless = False

    def __init__(self, data: bytes, special: SpecialTokens) -> None:
        self.data, self.special = data, special
        self._inner = _parse_tokenizer_json(data)
        self._inner.no_padding()
        self._inner.no_truncation()
        self._names: dict[int, str] = {id_: name for name, id_ in self._inner.get_vocab(with_added_tokens=True).items()}
        self._controls = special.ids() - {special.unknown}
        check_ids([*special.ids()], self.size)
        self._inner.add_special_tokens([self._names[id_] for id_ in sorted(self._controls) if id_ in self._names])
        self._inner.encode_special_tokens = True  # a special token that is typed is text

    @property
    def size(self) -> int:
        """The number of ids, including special ones and gaps."""
        return max(self._names, default=-1) + 1

    def normalize(self, text: str) -> str:
        """The text after its own normaliser; decode(encode(text)) may differ further."""
        normaliser = self._inner.normalizer
        return check_text(text) if normaliser is None else normaliser.normalize_str(check_text(text))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self._text_ids(one.ids) for one in self._encoded(texts)]

    def decode(self, ids: Sequence[int]) -> str:
        check_ids(ids, self.size)
        special = self.special.ids()
        return self._inner.decode([id_ for id_ in ids if id_ not in special], skip_special_tokens=True)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        check_ids(ids, self.size)
        return [self._names.get(id_, f"<{id_}>") for id_ in ids]

    def spans(self, text: str) -> list[Span]:
        return [Span(*offsets) for offsets in self._encoded([text])[0].offsets]

    def files(self, name: str = TOKENIZER_NAME) -> dict[str, bytes]:
        """The record, and the tokenizer.json as it came."""
        return pack_files(name, JsonRecord(special=self.special, sha256=hash_data(self.data)), {"json": self.data})

    def _encoded(self, texts: Sequence[str]) -> list[Any]:
        return self._inner.encode_batch([check_text(text) for text in texts], add_special_tokens=False)

    def _text_ids(self, ids: list[int]) -> list[int]:
        """Ids without special ones: if a rule of the tokenizer lets one through, it becomes the unknown id."""
        if self._controls.isdisjoint(ids):
            return ids
        if self.special.unknown is None:
            names = ", ".join(self.pieces(sorted(self._controls.intersection(ids))))
            raise checks.wrong("text", "without special tokens", f"text with {names}", "Take them out of the text.")
        return [self.special.unknown if id_ in self._controls else id_ for id_ in ids]


def special_ids_from_names(data: bytes, named: Mapping[str, object]) -> SpecialTokens:
    """The special ids of a tokenizer.json, by the names in special_tokens_map.json.

    Args:
        named: {"pad_token": "[PAD]", ...}; a name may also be a table with its `content`. Other keys are ignored.
    """
    inner, found = _parse_tokenizer_json(data), dict[str, Any]()
    for theirs, ours in HUGGING_FACE_ROLES.items():
        name = named.get(theirs)
        name = name.get("content") if isinstance(name, Mapping) else name
        if name is None:
            continue
        id_ = inner.token_to_id(name) if isinstance(name, str) else None
        if id_ is None:
            raise checks.wrong(theirs, "a token of the tokenizer", repr(name)[:80])
        found[ours] = (id_,) if ours == "end" else id_
    return SpecialTokens(**found)


def _parse_tokenizer_json(data: bytes) -> Any:
    try:
        tokenizers = importlib.import_module("tokenizers")
    except ModuleNotFoundError as error:
        raise ValueError("Reading a tokenizer.json needs the package tokenizers: pip install 'regard[import]'.") \
            from error
    try:
        json.loads(data)
        return tokenizers.Tokenizer.from_buffer(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"tokenizer.json cannot be read by the package tokenizers: {str(error)[:200]}") from error


MARIAN_CONTROL = re.compile(r">>[^\s<>]+<<")
"""A token for the language to translate into."""
MARIAN_END, MARIAN_UNKNOWN, MARIAN_PADDING = "</s>", "<unk>", "<pad>"


class MarianTokenizer(Tokenizer):
    """One side of a Marian model: a sentencepiece model and a vocabulary, given as bytes.

    Without given special ids they are taken from the vocabulary; Marian starts with padding.
    """

    lossless = False

    def __init__(self, data: bytes, vocabulary: bytes, special: SpecialTokens | None = None) -> None:
        self.data, self.vocabulary = data, vocabulary
        self._inner, self._ids = load_sentencepiece(data, "source.spm or target.spm"), _parse_vocabulary(vocabulary)
        self._pieces = {id_: piece for piece, id_ in self._ids.items()}
        self.special = self._named() if special is None else special
        check_ids([*self.special.ids()], self.size)
        if self.special.unknown is None:
            raise checks.wrong("special.unknown", "an id, for a vocabulary that lacks pieces", None)
        self.controls = {piece: id_ for piece, id_ in self._ids.items() if MARIAN_CONTROL.fullmatch(piece)}
        self._table = [self._text_id(id_) for id_ in range(self._inner.get_piece_size())]

    @property
    def size(self) -> int:
        return max(self._pieces) + 1

    def piece_id(self, piece: str) -> int:
        """The id of a piece of the vocabulary, such as >>fra<<."""
        if piece not in self._ids:
            raise checks.wrong("piece", f"one of the {len(self._ids)} of the vocabulary", repr(piece)[:80])
        return self._ids[piece]

    def normalize(self, text: str) -> str:
        """The text after the rules of the sentencepiece model; decode(encode(text)) may differ further."""
        return self._inner.normalize(check_text(text)).replace(SPACE_SYMBOL, " ").strip(" ")

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self._table[id_] for id_ in ids] for ids in self._inner.encode([check_text(text) for text in texts])]

    def decode(self, ids: Sequence[int]) -> str:
        special = self.special.ids()
        pieces = self.pieces([id_ for id_ in ids if id_ not in special])
        return "".join(pieces).replace(SPACE_SYMBOL, " ").strip(" ")

    def pieces(self, ids: Sequence[int]) -> list[str]:
        check_ids(ids, self.size)
        return [self._pieces.get(id_, f"<{id_}>") for id_ in ids]

    def spans(self, text: str) -> list[Span]:
        return [Span(*offsets) for offsets in self._inner.encode_as_offset_mapping(check_text(text))["offsets"]]

    def files(self, name: str = TOKENIZER_NAME) -> dict[str, bytes]:
        """The record, the sentencepiece model, and the vocabulary."""
        record = MarianRecord(special=self.special, sha256=hash_data(self.data),
                              vocabulary_sha256=hash_data(self.vocabulary))
        return pack_files(name, record, {"model": self.data, "vocab.json": self.vocabulary})

    def _text_id(self, inner: int) -> int:
        """The id of a piece of the sentencepiece model. Its unknown piece is unknown, whatever its name."""
        assert self.special.unknown is not None
        if self._inner.is_unknown(inner):
            return self.special.unknown
        id_ = self._ids.get(self._inner.id_to_piece(inner), self.special.unknown)
        return self.special.unknown if id_ in self.special.ids() or id_ in self.controls.values() else id_

    def _named(self) -> SpecialTokens:
        padding, end, unknown = map(self.piece_id, (MARIAN_PADDING, MARIAN_END, MARIAN_UNKNOWN))
        return SpecialTokens(start=padding, end=(end,), padding=padding, unknown=unknown)


def _parse_vocabulary(data: bytes) -> dict[str, int]:
    """The id of each piece."""
    try:
        table = json.loads(data)
    except (ValueError, RecursionError):
        table = None
    if (not isinstance(table, dict) or not table or not all(type(id_) is int and id_ >= 0 for id_ in table.values())
            or len({*table.values()}) < len(table)):
        raise ValueError("vocab.json is damaged: it is not a JSON object with an id for each piece.")
    return table


@dataclass(frozen=True, kw_only=True)
class JsonRecord(Config):
    """The record of an imported tokenizer.json."""

    kind: ClassVar[str] = "json"
    suffixes: ClassVar[Mapping[str, str]] = {"json": "sha256"}
    special: SpecialTokens
    sha256: str


@dataclass(frozen=True, kw_only=True)
class MarianRecord(Config):
    """The record of an imported Marian model: a sentencepiece model and a vocabulary."""

    kind: ClassVar[str] = "marian"
    suffixes: ClassVar[Mapping[str, str]] = {"model": "sha256", "vocab.json": "vocabulary_sha256"}
    special: SpecialTokens
    sha256: str
    vocabulary_sha256: str


AnyRecord = SentencePieceRecord | CharactersRecord | BytesRecord | JsonRecord | MarianRecord


def unpack_files(files: Mapping[str, bytes], name: str) -> tuple[Any, dict[str, bytes]]:
    """The record of the tokenizer called `name` among these files, and its data by their suffixes, checked."""
    text = require_file(files, f"{name}.toml")
    try:
        read = toml.parse_document(text.decode(), f"{name}.toml")
    except UnicodeDecodeError:
        raise ValueError(f"{name}.toml is damaged: it is not UTF-8. Restore it from a copy.") from None
    version = read.tables.get("format")
    if isinstance(version, int) and version > TOKENIZER_FORMAT:
        raise ValueError(f"{name}.toml has format {version}, and this version of regard reads format "
                         f"{TOKENIZER_FORMAT}. Install a newer regard.")
    record: Any = config.read_configs({"format": int, "tokenizer": AnyRecord}, read)["tokenizer"]
    data = {}
    for suffix, key in record.suffixes.items():
        data[suffix] = require_file(files, f"{name}.{suffix}")
        check_sha256(f"{name}.{suffix}", getattr(record, key), hash_data(data[suffix]))
    return record, data


def require_file(files: Mapping[str, bytes], name: str) -> bytes:
    """The file of this name; a ValueError if it is missing."""
    if name not in files:
        present = ", ".join(sorted(files)[:8]) or "none"
        raise ValueError(f"{name} is missing; there is {present}. Restore it from a copy.")
    return files[name]


def check_sha256(name: str, recorded: str, found: str) -> None:
    """Refuse a file that differs from what was recorded."""
    if found != recorded:
        raise ValueError(f"{name} was changed: its sha256 is {found}, and was {recorded}. A model works only with the "
                         "tokenizer that it was trained with: restore it from a copy.")
