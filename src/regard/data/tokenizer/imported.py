"""A `tokenizer.json` of an imported model, behind the same interface. It needs the package `tokenizers`.

It is as its makers left it, and so not exact: letters may lose their case or their accents, and what has no piece may
become the unknown id. Its padding, its cutting at a length and its template of special ids are left out, and a special
id that is typed as text stays text. Which ids are special is told by the model's config, or by `named_special`.
"""

import importlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from regard import checks
from regard.data.tokenizer.contract import NAME, Tokenizer, check_ids, check_text
from regard.data.tokenizer.record import JsonRecord, packed, sha256
from regard.data.tokenizer.words import Span
from regard.models.special import SpecialConfig

ROLES = {"bos_token": "start", "eos_token": "end", "pad_token": "padding", "unk_token": "unknown",
         "mask_token": "mask", "cls_token": "first", "sep_token": "separator"}
"""Their names of special tokens, in special_tokens_map.json and tokenizer_config.json, and ours."""


class JsonTokenizer(Tokenizer):
    """A tokenizer.json, given as its bytes, with the special ids of its model."""

    exact = False

    def __init__(self, data: bytes, special: SpecialConfig) -> None:
        self.data, self.special = data, special
        self._inner = _read(data)
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

    def files(self, name: str = NAME) -> dict[str, bytes]:
        """The record, and the tokenizer.json as it came."""
        return packed(name, JsonRecord(special=self.special, sha256=sha256(self.data)), {"json": self.data})

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


def named_special(data: bytes, named: Mapping[str, object]) -> SpecialConfig:
    """The special ids of a tokenizer.json by the names that special_tokens_map.json gives them.

    Args:
        named: {"pad_token": "[PAD]", ...}; a name may also be a table with its `content`. Other keys are passed over.
    """
    inner, found = _read(data), dict[str, Any]()
    for theirs, ours in ROLES.items():
        name = named.get(theirs)
        name = name.get("content") if isinstance(name, Mapping) else name
        if name is None:
            continue
        id_ = inner.token_to_id(name) if isinstance(name, str) else None
        if id_ is None:
            raise checks.wrong(theirs, "a token of the tokenizer", repr(name)[:80])
        found[ours] = (id_,) if ours == "end" else id_
    return SpecialConfig(**found)


def _read(data: bytes) -> Any:
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
