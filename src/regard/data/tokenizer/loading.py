"""Tokenizers from files: those that regard stored, and those of imported models.

    files = tokenizer.files()                              {"tokenizer.toml": ..., "tokenizer.model": ...}
    load_tokenizer(files, sha256=tokenizer.sha256)         the same tokenizer, or a ValueError
    JsonTokenizer(data, special)                           a Hugging Face `tokenizer.json`; needs `tokenizers`
    MarianTokenizer(model, vocabulary, special)            one side of a Marian model: `source.spm` and `vocab.json`

Nothing that is read could execute code: TOML, JSON and sentencepiece models are data. Other files are ignored. Imported
tokenizers are not lossless: letters may lose their case or accents, and what has no piece may become the unknown id.
Padding, truncation and special-token templates of a `tokenizer.json` are disabled, and a special token that is typed as
text stays text. A Marian vocabulary has language codes, >>fra<<, that no text encodes to: `piece_id` finds them.

This module does not open files: the caller reads the folder.
"""

import importlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from regard import checks
from regard.data.tokenizer import subwords as records
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
    ByteTokenizer,
    CharacterTokenizer,
    JsonRecord,
    MarianRecord,
    SentencePieceTokenizer,
    hash_data,
    load_sentencepiece,
    pack_files,
)
from regard.special_tokens import SpecialTokens


def load_tokenizer(files: Mapping[str, bytes], *, sha256: str | None = None, name: str = TOKENIZER_NAME) -> Tokenizer:
    """The tokenizer whose files begin with `name`; a ValueError where it is not the one with this sha256."""
    record, data = records.unpack_files(files, name)
    tokenizer: Tokenizer
    match record:
        case records.SentencePieceRecord():
            tokenizer = SentencePieceTokenizer(data["model"], record.model, record.normalisation)
        case records.CharactersRecord():
            tokenizer = CharacterTokenizer(_parse_characters(data["json"], f"{name}.json"), record.normalisation)
        case records.BytesRecord():
            tokenizer = ByteTokenizer(record.normalisation)
        case records.JsonRecord():
            tokenizer = JsonTokenizer(data["json"], record.special)
        case _:
            tokenizer = MarianTokenizer(data["model"], data["vocab.json"], record.special)
    if sha256 is not None:
        records.check_sha256("tokenizer", sha256, tokenizer.sha256)
    return tokenizer


def load_pair_tokenizer(files: Mapping[str, bytes], *, sha256: str | None = None, name: str = TOKENIZER_NAME) -> PairTokenizer:
    """The tokenizers of source and target; a ValueError where they are not the ones with this sha256."""
    if f"{name}.toml" in files:
        one = load_tokenizer(files, name=name)
        pair = PairTokenizer(one, one)
    else:
        pair = PairTokenizer(load_tokenizer(files, name=f"{name}.{SOURCE}"), load_tokenizer(files, name=f"{name}.{TARGET}"))
    if sha256 is not None:
        records.check_sha256("tokenizer", sha256, pair.sha256)
    return pair


def _parse_characters(data: bytes, name: str) -> list[str]:
    try:
        characters = json.loads(data)
    except (ValueError, RecursionError):
        characters = None
    if not isinstance(characters, list) or not all(isinstance(one, str) for one in characters):
        raise checks.wrong(name, "a JSON array of characters", "something else", "Restore it from a copy.")
    return characters


# ---- imported: A `tokenizer.json` of an imported model, behind the same interface. It needs the package `tokenizers`.
#
# It is as its makers left it, and so not exact: letters may lose their case or their accents, and what has no piece may
# become the unknown id. Its padding, its cutting at a length and its template of special ids are left out, and a special
# id that is typed as text stays text. Which ids are special is told by the model's config, or by `named_special`.

HUGGING_FACE_ROLES = {"bos_token": "start", "eos_token": "end", "pad_token": "padding", "unk_token": "unknown",
         "mask_token": "mask", "cls_token": "first", "sep_token": "separator"}
"""Their names of special tokens, in special_tokens_map.json and tokenizer_config.json, and ours."""


class JsonTokenizer(Tokenizer):
    """A tokenizer.json, given as its bytes, with the special ids of its model."""

    exact = False

    def __init__(self, data: bytes, special: SpecialTokens) -> None:
        self.data, self.special = data, special
        self._inner = _parse_tokenizer_json(data)
        self._inner.no_padding()
        self._inner.no_truncation()
        self._names: dict[int, str] = {id_: name for name, id_ in self._inner.get_vocab(with_added_tokens=True).items()}
        self._controls = special.ids() - {special.unknown}
        check_ids([*special.ids()], self.size)
        self._inner.add_special_tokens([self._names[id_] for id_ in sorted(self._controls) if id_ in self._names])
        self._inner.encode_special_tokens = True  # what is typed like one is text

    @property
    def size(self) -> int:
        """How many ids there are, the special ones among them, and those that no token has."""
        return max(self._names, default=-1) + 1

    def normalise(self, text: str) -> str:
        """The text after its own normaliser. What decode(encode(text)) gives may differ further."""
        normaliser = self._inner.normalizer
        return check_text(text) if normaliser is None else normaliser.normalize_str(check_text(text))

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text."""
        return [self._text_ids(one.ids) for one in self._encoded(texts)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without those that are special."""
        check_ids(ids, self.size)
        special = self.special.ids()
        return self._inner.decode([id_ for id_ in ids if id_ not in special], skip_special_tokens=True)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """What each id is called, in its makers' spelling."""
        check_ids(ids, self.size)
        return [self._names.get(id_, f"<{id_}>") for id_ in ids]

    def spans(self, text: str) -> list[Span]:
        """For each id of encode(text), the characters of the text that it stands for, as `tokenizers` gives them."""
        return [Span(*offsets) for offsets in self._encoded([text])[0].offsets]

    def files(self, name: str = TOKENIZER_NAME) -> dict[str, bytes]:
        """The record, and the tokenizer.json as it came."""
        return pack_files(name, JsonRecord(special=self.special, sha256=hash_data(self.data)), {"json": self.data})

    def _encoded(self, texts: Sequence[str]) -> list[Any]:
        return self._inner.encode_batch([check_text(text) for text in texts], add_special_tokens=False)

    def _text_ids(self, ids: list[int]) -> list[int]:
        """The ids without any that text must not give: where a rule of theirs lets one through, it is unknown."""
        if self._controls.isdisjoint(ids):
            return ids
        if self.special.unknown is None:
            names = ", ".join(self.pieces(sorted(self._controls.intersection(ids))))
            raise checks.wrong("text", "without special tokens", f"text with {names}", "Take them out of the text.")
        return [self.special.unknown if id_ in self._controls else id_ for id_ in ids]


def special_ids_from_names(data: bytes, named: Mapping[str, object]) -> SpecialTokens:
    """The special ids of a tokenizer.json by the names that special_tokens_map.json gives them.

    Args:
        named: {"pad_token": "[PAD]", ...}; a name may also be a table with its `content`. Other keys are passed over.
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
        raise checks.wrong("tokenizers", "installed, to read a tokenizer.json", "missing",
                           "Install it: pip install 'regard[import]'.") from error
    try:
        json.loads(data)
        return tokenizers.Tokenizer.from_buffer(data)
    except (ValueError, RecursionError) as error:
        raise checks.wrong("tokenizer.json", "a file of the package `tokenizers`", f"none ({error})"[:200]) from error


# ---- marian: One side of an imported Marian translator: a sentencepiece model and a `vocab.json`, which has other ids.
#
#     source = MarianTokenizer(source.spm, vocab.json, special)     target = MarianTokenizer(target.spm, vocab.json, ...)
#
# Its sentencepiece model normalises by rules of its own, and a piece that the vocabulary lacks is unknown, so it is not
# exact. Special ids are taken from the vocabulary where none are given: Marian starts with padding. The codes of target
# languages, >>fra<<, are pieces of the vocabulary that no text gives: `piece_id` finds them.

MARIAN_END, MARIAN_UNKNOWN, MARIAN_PADDING = "</s>", "<unk>", "<pad>"


class MarianTokenizer(Tokenizer):
    """A sentencepiece model and a vocabulary, given as the bytes of their files."""

    exact = False

    def __init__(self, data: bytes, vocabulary: bytes, special: SpecialTokens | None = None) -> None:
        self.data, self.vocabulary = data, vocabulary
        self._inner, self._ids = load_sentencepiece(data, "source.spm or target.spm"), _parse_vocabulary(vocabulary)
        self._pieces = {id_: piece for piece, id_ in self._ids.items()}
        self.special = self._named() if special is None else special
        check_ids([*self.special.ids()], self.size)
        if self.special.unknown is None:
            raise checks.wrong("special.unknown", "an id, for a vocabulary that lacks pieces", None)
        self._table = [self._text_id(id_) for id_ in range(self._inner.get_piece_size())]

    @property
    def size(self) -> int:
        """How many ids there are, the special ones among them."""
        return max(self._pieces) + 1

    def piece_id(self, piece: str) -> int:
        """The id of a piece of the vocabulary, such as >>fra<<."""
        if piece not in self._ids:
            raise checks.wrong("piece", f"one of the {len(self._ids)} of the vocabulary", repr(piece)[:80])
        return self._ids[piece]

    def normalise(self, text: str) -> str:
        """The text after the rules of the sentencepiece model. What decode(encode(text)) gives may differ further."""
        return self._inner.normalize(check_text(text)).replace(SPACE_SYMBOL, " ").strip(" ")

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text."""
        return [[self._table[id_] for id_ in ids] for ids in self._inner.encode([check_text(text) for text in texts])]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without those that are special."""
        special = self.special.ids()
        pieces = self.pieces([id_ for id_ in ids if id_ not in special])
        return "".join(pieces).replace(SPACE_SYMBOL, " ").strip(" ")

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """What each id is called."""
        check_ids(ids, self.size)
        return [self._pieces.get(id_, f"<{id_}>") for id_ in ids]

    def spans(self, text: str) -> list[Span]:
        """For each id of encode(text), the characters of the text that it stands for, as sentencepiece gives them."""
        return [Span(*offsets) for offsets in self._inner.encode_as_offset_mapping(check_text(text))["offsets"]]

    def files(self, name: str = TOKENIZER_NAME) -> dict[str, bytes]:
        """The record, the sentencepiece model, and the vocabulary."""
        record = MarianRecord(special=self.special, sha256=hash_data(self.data),
                              vocabulary_sha256=hash_data(self.vocabulary))
        return pack_files(name, record, {"model": self.data, "vocab.json": self.vocabulary})

    def _text_id(self, inner: int) -> int:
        """Our id of a piece of the sentencepiece model. What is not known there is unknown, whatever it is called."""
        assert self.special.unknown is not None
        if self._inner.is_unknown(inner):
            return self.special.unknown
        id_ = self._ids.get(self._inner.id_to_piece(inner), self.special.unknown)
        return self.special.unknown if id_ in self.special.ids() else id_

    def _named(self) -> SpecialTokens:
        padding, end, unknown = map(self.piece_id, (MARIAN_PADDING, MARIAN_END, MARIAN_UNKNOWN))
        return SpecialTokens(start=padding, end=(end,), padding=padding, unknown=unknown)


def _parse_vocabulary(data: bytes) -> dict[str, int]:
    """The ids of pieces."""
    try:
        table = json.loads(data)
    except (ValueError, RecursionError):
        table = None
    if (not isinstance(table, dict) or not table or not all(type(id_) is int and id_ >= 0 for id_ in table.values())
            or len({*table.values()}) < len(table)):
        raise checks.wrong("vocab.json", "a JSON table of pieces with an id each", "something else")
    return table
