"""The tokenizer that lies in a folder of `transformers`, and the special ids that its files name.

    tokenizer.json                         of a model that reads or writes one side; it needs the package `tokenizers`
    source.spm, target.spm, vocab.json     of a Marian translator

config.json of such a folder names few special ids. The others are those that special_tokens_map.json, or else
tokenizer_config.json, names; and what stands around a text, `first` and `separator`, is what the template in
tokenizer.json says. A folder without these files, or a machine without `tokenizers`, gives no tokenizer: the model then
takes ids. It does not know models.
"""

import dataclasses
import importlib.util
import json
from pathlib import Path
from typing import Any, NamedTuple

from regard import checks
from regard.data.tokenizer.contract import Tokenizer
from regard.data.tokenizer.imported import JsonTokenizer, named_special
from regard.data.tokenizer.marian import MarianTokenizer
from regard.data.tokenizer.pair import PairTokenizer
from regard.models.special import SpecialConfig

JSON, NAMES = "tokenizer.json", ("special_tokens_map.json", "tokenizer_config.json")
MARIAN = ("source.spm", "target.spm", "vocab.json")


class Around(NamedTuple):
    """The ids in front of every text and behind it."""

    before: tuple[int, ...]
    behind: tuple[int, ...]


def one_side(folder: Path, special: SpecialConfig) -> Tokenizer | None:
    """The tokenizer.json of a folder, with the special ids of its model and those that its own files name."""
    if not (folder / JSON).is_file() or importlib.util.find_spec("tokenizers") is None:
        return None
    data, named = (folder / JSON).read_bytes(), dict[str, Any]()
    for name in NAMES:
        if not named and (folder / name).is_file():
            named = _table((folder / name).read_bytes(), folder / name)
    special = merged(special, named_special(data, named))
    around = template(data)
    if around is not None:
        if max(map(len, around)) > 1:
            raise checks.wrong(str(folder / JSON), "with a template of at most one token on each side of a text",
                               f"with {around.before} and {around.behind}")
        first, separator = (next(iter(ids), None) for ids in around)
        special = dataclasses.replace(special, first=first, separator=separator)
    return JsonTokenizer(data, special)


def two_sides(folder: Path, special: SpecialConfig) -> PairTokenizer | None:
    """The tokenizers of a Marian translator."""
    if not all((folder / name).is_file() for name in MARIAN):
        return None
    source, target, vocabulary = ((folder / name).read_bytes() for name in MARIAN)
    special = merged(special, MarianTokenizer(source, vocabulary).special)
    return PairTokenizer(MarianTokenizer(source, vocabulary, special), MarianTokenizer(target, vocabulary, special))


def merged(special: SpecialConfig, named: SpecialConfig) -> SpecialConfig:
    """The special ids of a model, and where it has none of a role, those of its tokenizer."""
    roles = [field.name for field in dataclasses.fields(SpecialConfig)]
    return SpecialConfig(**{role: getattr(named, role) if getattr(special, role) in (None, ()) else
                            getattr(special, role) for role in roles})


def template(data: bytes) -> Around | None:
    """What a tokenizer.json sets around a single text; None where it does not say."""
    return _around(json.loads(data).get("post_processor"))


def _around(processor: Any) -> Around | None:
    match processor:
        case {"type": "Sequence", "processors": [*parts]}:
            return next((found for part in parts if (found := _around(part)) is not None), None)
        case {"type": "BertProcessing" | "RobertaProcessing", "cls": [_, int(first)], "sep": [_, int(separator)]}:
            return Around((first,), (separator,))
        case {"type": "TemplateProcessing", "single": [*pieces], "special_tokens": dict(table)}:
            return _written(pieces, table)
    return None


def _written(pieces: list[Any], table: dict[str, Any]) -> Around:
    """What a template says that is written out, piece by piece; its ids are in the table."""
    names: list[Any] = [None if "Sequence" in piece else piece["SpecialToken"]["id"] for piece in pieces]
    if names.count(None) != 1 or not {*names} <= {None, *table}:
        raise checks.wrong(JSON, "with a template of one text and special tokens that it lists", f"with {names!r:.80}")
    text = names.index(None)
    return Around(*(tuple(id_ for name in side for id_ in table[name]["ids"])
                    for side in (names[:text], names[text + 1:])))


def _table(data: bytes, path: Path) -> dict[str, Any]:
    try:
        table = json.loads(data)
    except (ValueError, RecursionError):
        table = None
    if not isinstance(table, dict):
        raise checks.wrong(str(path), "a JSON object", "something else")
    return table
