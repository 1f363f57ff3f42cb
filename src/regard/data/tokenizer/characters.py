"""Tokenizers without subwords: one id for each character, or one for each byte.

`CharacterTokenizer` has the characters that it was made with; any other is cut into its bytes. `ByteTokenizer` has
nothing but the bytes, and needs no training. There is one way to cut a text, so `sample` is `encode`.
"""

import json
from collections.abc import Sequence

from regard import checks
from regard.data.tokenizer.contract import NAME
from regard.data.tokenizer.record import BytesRecord, CharactersRecord, packed, sha256
from regard.data.tokenizer.surface import FIRST_BYTE, SPACE_SHOWN, SurfaceTokenizer, byte_ids, surface_ids


class CharacterTokenizer(SurfaceTokenizer):
    """One id for each of these characters, in this order, and the bytes of any other."""

    def __init__(self, characters: Sequence[str], normalisation: str = "nfc") -> None:
        if {*map(len, characters)} - {1} or len({*characters}) < len(characters) or SPACE_SHOWN in characters:
            got = "others, or some of them twice"
            raise checks.wrong("characters", f"single characters other than {SPACE_SHOWN}, each of them once", got)
        super().__init__(characters, normalisation)
        self.characters = tuple(characters)
        self._ids = surface_ids(self)

    def cut(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of normalised texts."""
        return [self._one(text) for text in texts]

    def files(self, name: str = NAME) -> dict[str, bytes]:
        """The record, and the characters as a JSON array."""
        data = json.dumps(self.characters).encode()
        return packed(name, CharactersRecord(normalisation=self.normalisation, sha256=sha256(data)), {"json": data})

    def _one(self, text: str) -> list[int]:
        ids = [self._ids.get(character, -1) for character in text]
        if -1 not in ids:
            return ids
        return [part for id_, character in zip(ids, text, strict=True)
                for part in ([id_] if id_ >= 0 else byte_ids(character))]


class ByteTokenizer(SurfaceTokenizer):
    """One id for each byte of the text as UTF-8."""

    def __init__(self, normalisation: str = "exact") -> None:
        super().__init__((), normalisation)

    def cut(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of normalised texts."""
        return [[FIRST_BYTE + value for value in text.encode()] for text in texts]

    def files(self, name: str = NAME) -> dict[str, bytes]:
        """The record alone."""
        return packed(name, BytesRecord(normalisation=self.normalisation), {})
