"""What can be chosen about a tokenizer before it is trained: one config for each kind.

    [tokenizer]
    kind = "unigram"
    vocabulary = 8000

It knows neither how a tokenizer is trained nor how it cuts a text.
"""

from dataclasses import dataclass
from typing import ClassVar

from regard.config import Config, choice, number, whole
from regard.data.tokenizer.normalisation import NORMALISATIONS
from regard.data.tokenizer.surface import FIRST_PIECE


@dataclass(frozen=True, kw_only=True)
class SubwordConfig(Config):
    """What unigram models and byte pair encoding share."""

    vocabulary: int = whole(8000, least=FIRST_PIECE + 1)
    """How many ids there are: 5 special ones, 256 bytes, and the pieces. A text may allow for fewer."""
    coverage: float = number(0.9998, least=0.98, most=1)
    """The share of the characters of the text that have a piece; the rarest have none, and are cut into bytes."""
    normalisation: str = choice(NORMALISATIONS, "line")
    split_digits: bool = False
    """Every digit is a piece of its own, so that numbers are copied rather than learned."""
    sentences: int = whole(200_000, least=1)
    """How many texts are looked at. Of more, so many are drawn at random. They take about 1 KB of memory each."""
    seed: int = whole(0, least=0)
    """Of that drawing."""


@dataclass(frozen=True, kw_only=True)
class UnigramConfig(SubwordConfig):
    """The pieces that make the text most probable (Kudo 2018)."""

    kind: ClassVar[str] = "unigram"


@dataclass(frozen=True, kw_only=True)
class BpeConfig(SubwordConfig):
    """Byte pair encoding: the most frequent pair becomes one piece, again and again (Sennrich et al. 2016)."""

    kind: ClassVar[str] = "bpe"


@dataclass(frozen=True, kw_only=True)
class CharactersConfig(Config):
    """One id for each character."""

    kind: ClassVar[str] = "characters"
    vocabulary: int | None = whole(None, least=FIRST_PIECE + 1)
    """How many ids there are at most: 5 special ones, 256 bytes, and the most frequent characters."""
    normalisation: str = choice(NORMALISATIONS, "nfc")


@dataclass(frozen=True, kw_only=True)
class BytesConfig(Config):
    """One id for each byte."""

    kind: ClassVar[str] = "bytes"
    normalisation: str = choice(NORMALISATIONS, "exact")


TokenizerConfig = UnigramConfig | BpeConfig | CharactersConfig | BytesConfig
