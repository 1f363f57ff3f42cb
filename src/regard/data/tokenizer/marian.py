"""One side of an imported Marian translator: a sentencepiece model and a `vocab.json`, which has other ids.

    source = MarianTokenizer(source.spm, vocab.json, special)     target = MarianTokenizer(target.spm, vocab.json, ...)

Its sentencepiece model normalises by rules of its own, and a piece that the vocabulary lacks is unknown, so it is not
exact. Special ids are taken from the vocabulary where none are given: Marian starts with padding. The codes of target
languages, >>fra<<, are pieces of the vocabulary that no text gives: `piece_id` finds them.
"""

import json
from collections.abc import Sequence

from regard import checks
from regard.data.tokenizer.contract import NAME, Tokenizer, check_ids, check_text
from regard.data.tokenizer.record import MarianRecord, packed, sha256
from regard.data.tokenizer.sentencepieces import loaded
from regard.data.tokenizer.surface import SPACE_SHOWN
from regard.data.tokenizer.words import Span
from regard.models.special import SpecialConfig

END, UNKNOWN, PADDING = "</s>", "<unk>", "<pad>"


class MarianTokenizer(Tokenizer):
    """A sentencepiece model and a vocabulary, given as the bytes of their files."""

    exact = False

    def __init__(self, data: bytes, vocabulary: bytes, special: SpecialConfig | None = None) -> None:
        self.data, self.vocabulary = data, vocabulary
        self._inner, self._ids = loaded(data, "source.spm or target.spm"), _vocabulary(vocabulary)
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
        return self._inner.normalize(check_text(text)).replace(SPACE_SHOWN, " ").strip(" ")

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text."""
        return [[self._table[id_] for id_ in ids] for ids in self._inner.encode([check_text(text) for text in texts])]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without those that are special."""
        special = self.special.ids()
        pieces = self.pieces([id_ for id_ in ids if id_ not in special])
        return "".join(pieces).replace(SPACE_SHOWN, " ").strip(" ")

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """What each id is called."""
        check_ids(ids, self.size)
        return [self._pieces.get(id_, f"<{id_}>") for id_ in ids]

    def spans(self, text: str) -> list[Span]:
        """For each id of encode(text), the characters of the text that it stands for, as sentencepiece gives them."""
        return [Span(*offsets) for offsets in self._inner.encode_as_offset_mapping(check_text(text))["offsets"]]

    def files(self, name: str = NAME) -> dict[str, bytes]:
        """The record, the sentencepiece model, and the vocabulary."""
        record = MarianRecord(special=self.special, sha256=sha256(self.data),
                              vocabulary_sha256=sha256(self.vocabulary))
        return packed(name, record, {"model": self.data, "vocab.json": self.vocabulary})

    def _text_id(self, inner: int) -> int:
        """Our id of a piece of the sentencepiece model. What is not known there is unknown, whatever it is called."""
        assert self.special.unknown is not None
        if self._inner.is_unknown(inner):
            return self.special.unknown
        id_ = self._ids.get(self._inner.id_to_piece(inner), self.special.unknown)
        return self.special.unknown if id_ in self.special.ids() else id_

    def _named(self) -> SpecialConfig:
        padding, end, unknown = map(self.piece_id, (PADDING, END, UNKNOWN))
        return SpecialConfig(start=padding, end=(end,), padding=padding, unknown=unknown)


def _vocabulary(data: bytes) -> dict[str, int]:
    """The ids of pieces."""
    try:
        table = json.loads(data)
    except (ValueError, RecursionError):
        table = None
    if (not isinstance(table, dict) or not table or not all(type(id_) is int and id_ >= 0 for id_ in table.values())
            or len({*table.values()}) < len(table)):
        raise checks.wrong("vocab.json", "a JSON table of pieces with an id each", "something else")
    return table
