"""Tokenizers from their files: `load` and `load_pair` read what `files()` gave.

    files = tokenizer.files()                        {"tokenizer.toml": ..., "tokenizer.model": ...}
    load(files, sha256=tokenizer.sha256)             the same tokenizer, or a ValueError

Among the files may be others, which are passed over. Nothing is read that could run: TOML, JSON and models of
sentencepiece are data. It does not open files: whoever keeps the folder does.
"""

import json
from collections.abc import Mapping

from regard import checks
from regard.data.tokenizer import record as records
from regard.data.tokenizer.characters import ByteTokenizer, CharacterTokenizer
from regard.data.tokenizer.contract import NAME, Tokenizer
from regard.data.tokenizer.imported import JsonTokenizer
from regard.data.tokenizer.marian import MarianTokenizer
from regard.data.tokenizer.pair import SOURCE, TARGET, PairTokenizer
from regard.data.tokenizer.sentencepieces import SentencePieceTokenizer


def load(files: Mapping[str, bytes], *, sha256: str | None = None, name: str = NAME) -> Tokenizer:
    """The tokenizer whose files begin with `name`; a ValueError where it is not the one with this sha256."""
    record, data = records.unpacked(files, name)
    tokenizer: Tokenizer
    match record:
        case records.SentencePieceRecord():
            tokenizer = SentencePieceTokenizer(data["model"], record.model, record.normalisation)
        case records.CharactersRecord():
            tokenizer = CharacterTokenizer(_characters(data["json"], f"{name}.json"), record.normalisation)
        case records.BytesRecord():
            tokenizer = ByteTokenizer(record.normalisation)
        case records.JsonRecord():
            tokenizer = JsonTokenizer(data["json"], record.special)
        case _:
            tokenizer = MarianTokenizer(data["model"], data["vocab.json"], record.special)
    if sha256 is not None:
        records.check("tokenizer", sha256, tokenizer.sha256)
    return tokenizer


def load_pair(files: Mapping[str, bytes], *, sha256: str | None = None, name: str = NAME) -> PairTokenizer:
    """The tokenizers of source and target; a ValueError where they are not the ones with this sha256."""
    if f"{name}.toml" in files:
        one = load(files, name=name)
        pair = PairTokenizer(one, one)
    else:
        pair = PairTokenizer(load(files, name=f"{name}.{SOURCE}"), load(files, name=f"{name}.{TARGET}"))
    if sha256 is not None:
        records.check("tokenizer", sha256, pair.sha256)
    return pair


def _characters(data: bytes, name: str) -> list[str]:
    try:
        characters = json.loads(data)
    except (ValueError, RecursionError):
        characters = None
    if not isinstance(characters, list) or not all(isinstance(one, str) for one in characters):
        raise checks.wrong(name, "a JSON array of characters", "something else", "Restore it from a copy.")
    return characters
