"""Tokenizers whose every id stands for certain bytes: what they share.

    the ids of a text   →   their bytes, one after another   =   the prefix and the normalised text, as UTF-8

From this equation follow decoding and spans, whatever rule cuts the text, and so they are written here, once. A
character that has no piece of its own is cut into its bytes, so there is an id for everything, and no unknown.

The ids are, in this order: padding, unknown, start, end, mask; the 256 bytes; the pieces. U+2581 (▁), by which a space
is shown, is never part of a piece: who types it gets its three bytes, and it comes back as it was typed.

This file does not know how a text is cut.
"""

from abc import abstractmethod
from collections.abc import Sequence
from itertools import accumulate

from regard.data.tokenizer.contract import Tokenizer, check_ids
from regard.data.tokenizer.normalisation import NORMALISATIONS, Traced, trace, unchanged
from regard.data.tokenizer.words import Span
from regard.models.special import SpecialConfig

SPECIAL = SpecialConfig(padding=0, unknown=1, start=2, end=(3,), mask=4)
SHOWN = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
"""What the special ids are called, in the order of their ids."""
FIRST_BYTE, FIRST_PIECE = len(SHOWN), len(SHOWN) + 256
SPACE_SHOWN = "\u2581"
_SURROGATES = {code: "\ufffd" for code in range(0xDC80, 0xDD00)}


class SurfaceTokenizer(Tokenizer):
    """A tokenizer with bytes for every id.

    Args:
        surfaces: the text of each piece, of those ids that are neither special nor bytes.
        normalisation: what is done to a text first, by its name.
        prefix: what is set in front of every text that is not empty, so that its first word is cut like any other.
    """

    exact = True

    def __init__(self, surfaces: Sequence[str], normalisation: str, prefix: str = "") -> None:
        self.special, self.normalisation, self.prefix = SPECIAL, normalisation, prefix
        self.surfaces = (*[b""] * FIRST_BYTE, *(bytes((value,)) for value in range(256)), *map(str.encode, surfaces))
        """The bytes of each id; a special id has none."""
        self._normalise = NORMALISATIONS[normalisation]

    @abstractmethod
    def cut(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of texts that are normalised, not empty, and have the prefix."""

    @property
    def size(self) -> int:
        """How many ids there are, the special ones among them."""
        return len(self.surfaces)

    def normalise(self, text: str) -> str:
        """The text as the tokenizer sees it: see `regard.data.tokenizer.normalisation`."""
        return self._normalise(text)

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text."""
        return self._cut(list(map(self._normalise, texts)))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without those that are special, and without the prefix.

        Bytes that are no UTF-8, as a model may write them, become U+FFFD, one for each byte.
        """
        return self._read(ids)[0]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """What each id is called, to be shown: <pad>, <0xE2> for a byte, and ▁ in the place of a space."""
        check_ids(ids, self.size)
        return [SHOWN[id_] if id_ < FIRST_BYTE else f"<0x{id_ - FIRST_BYTE:02X}>" if id_ < FIRST_PIECE
                else self.surfaces[id_].decode().replace(" ", SPACE_SHOWN) for id_ in ids]

    def spans(self, text: str) -> list[Span]:
        """For each id of encode(text), the characters of the text that it stands for.

        A space in front of a piece is among its characters; the prefix is not, and white space that `normalise` takes
        away is in no span. The bytes of a character each have the span of the whole character, and where several
        characters were normalised together, all that is made of them has the span of them all.
        """
        traced = trace(self.normalisation, text)
        return self._place(self._cut([traced.text])[0], traced, len(self.prefix))

    def decoded_spans(self, ids: Sequence[int]) -> list[Span]:
        """For each of these ids, its characters in decode(ids); a special id has none of them."""
        text, prefix = self._read(ids)
        return self._place(ids, unchanged(text), prefix)

    def _cut(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of normalised texts."""
        given = iter(self.cut([self.prefix + text for text in texts if text]))
        return [next(given) if text else [] for text in texts]

    def _read(self, ids: Sequence[int]) -> tuple[str, int]:
        """The text of ids, and how many bytes of a prefix were in front of it."""
        check_ids(ids, self.size)
        data = b"".join([self.surfaces[id_] for id_ in ids])
        prefix = self.prefix.encode()
        skipped = len(prefix) if data.startswith(prefix) else 0
        text = data[skipped:].decode("utf-8", "surrogateescape")
        return text.translate(_SURROGATES), skipped

    def _place(self, ids: Sequence[int], traced: Traced, skipped: int) -> list[Span]:
        """The span of each id, where the bytes of the ids are those of the traced text after `skipped` others."""
        data = b"".join([self.surfaces[id_] for id_ in ids])[skipped:]
        raw = data.decode("utf-8", "surrogateescape")
        owner = [at for at, character in enumerate(raw) for _ in character.encode("utf-8", "surrogateescape")]
        ends = [max(0, end - skipped) for end in accumulate(len(self.surfaces[id_]) for id_ in ids)]
        spans = []
        for start, end in zip((0, *ends), ends, strict=False):
            if start == end:  # a special id, or the prefix alone: where the next character begins
                place = traced.spans[owner[start]].start if start < len(owner) else _end(traced)
                spans.append(Span(place, place))
            else:
                spans.append(Span(traced.spans[owner[start]].start, traced.spans[owner[end - 1]].end))
        return spans


def surface_ids(tokenizer: SurfaceTokenizer) -> dict[str, int]:
    """The id of each piece, by its text."""
    return {surface.decode(): FIRST_PIECE + at for at, surface in enumerate(tokenizer.surfaces[FIRST_PIECE:])}


def byte_ids(character: str) -> list[int]:
    """The ids of the bytes of a character."""
    return [FIRST_BYTE + value for value in character.encode()]


def _end(traced: Traced) -> int:
    return traced.spans[-1].end if traced.spans else 0
