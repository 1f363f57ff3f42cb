"""What a tokenizer is: text to ids and back, and which characters of the text each id stands for.

    tokenizer.encode("Two dogs.")      [412, 981, 263]
    tokenizer.spans("Two dogs.")       [Span(0, 3), Span(3, 8), Span(8, 9)]
    tokenizer.words("Two dogs.")       [Word(0, 3, 0, 0), Word(4, 8, 1, 1), Word(8, 9, 2, 2)]

No method adds the ids of start and end, nor any other special id: whoever makes a batch does. No text gives one either,
whatever is typed in it. Spans count characters of the text as it was given, before it was normalised.

It knows neither files nor how a tokenizer is trained.
"""

import hashlib
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from regard import checks
from regard.data.tokenizer import words
from regard.data.tokenizer.words import Span, Word
from regard.models.special import SpecialConfig

NAME = "tokenizer"
"""What the names of a tokenizer's files begin with, where no other is asked for."""


class Tokenizer(ABC):
    """Text to ids and back."""

    special: SpecialConfig
    """The ids that no text gives."""
    exact: bool
    """decode(encode(text)) == normalise(text), for every text. Our own are; those of other people's models are not."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many ids there are, the special ones among them."""

    @abstractmethod
    def normalise(self, text: str) -> str:
        """The text as the tokenizer sees it."""

    @abstractmethod
    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without those that are special."""

    @abstractmethod
    def pieces(self, ids: Sequence[int]) -> list[str]:
        """What each id is called, to be shown."""

    @abstractmethod
    def spans(self, text: str) -> list[Span]:
        """For each id of encode(text), the characters of the text that it stands for."""

    @abstractmethod
    def files(self, name: str = NAME) -> dict[str, bytes]:
        """The files that hold this tokenizer, by their names, which begin with `name`."""

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        return self.encode_many([text])[0]

    def sample(self, text: str, *, alpha: float, seed: int) -> list[int]:
        """The ids of one of the ways to cut the text, drawn by chance; the same for the same text, alpha and seed.

        A tokenizer that knows but one way gives that. What alpha means is told where there are several.
        """
        check_alpha(alpha)
        return self.encode(text)

    def words(self, text: str) -> list[Word]:
        """The words of a text, each with its ids among those of encode(text). What a word is, `words.py` says."""
        return words.group(text, self.spans(text))

    def decoded_spans(self, ids: Sequence[int]) -> list[Span]:
        """For each of these ids, its characters in decode(ids); a special id has none of them.

        An id ends where the text of the ids up to it ends, as far as that is how the whole text begins.
        """
        text, spans = self.decode(ids), [Span(0, 0)]
        for count in range(1, len(ids) + 1):
            end = _alike(self.decode(ids[:count]), text) if count < len(ids) else len(text)
            spans.append(Span(spans[-1].end, max(end, spans[-1].end)))
        return spans[1:]

    def decoded_words(self, ids: Sequence[int]) -> list[Word]:
        """The words of decode(ids), each with its ids; a special id belongs to no word."""
        apart = self.special.ids()
        return words.group(self.decode(ids), self.decoded_spans(ids), [id_ in apart for id_ in ids])

    @property
    def sha256(self) -> str:
        """What tells this tokenizer from any other: the sha256 of its files."""
        return digest(self.files())


def digest(files: Mapping[str, bytes]) -> str:
    """One sha256 of several files, with their names and lengths."""
    whole = hashlib.sha256()
    for name, data in sorted(files.items()):
        whole.update(f"{name}\n{len(data)}\n".encode())
        whole.update(data)
    return whole.hexdigest()


def check_text(text: object) -> str:
    """Refuse what is no text, and text that no file can hold."""
    if not isinstance(text, str):
        raise checks.wrong("text", "text", checks.kind(text)[0])
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            got = f"text with the lone surrogate U+{ord(text[error.start]):04X} at character {error.start}"
            remedy = "It is half of a character: read the text again with the encoding that it was written in."
            raise checks.wrong("text", "text of whole characters", got, remedy) from None
    return text


def check_ids(ids: Sequence[int], size: int) -> None:
    """Refuse ids that the tokenizer does not have."""
    for id_ in ids:
        if not 0 <= id_ < size:
            raise checks.wrong("ids", f"at least 0 and below {size}, the size of the tokenizer", f"one with {id_}")


def check_alpha(alpha: float, below: float = math.inf) -> None:
    """Refuse what is no strength of sampling."""
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 <= alpha < below:
        limit = "" if below == math.inf else f" and below {below:g}"
        raise checks.wrong("alpha", f"a number, at least 0{limit}", repr(alpha))


def chance(seed: int) -> random.Random:
    """The source of random numbers of a seed."""
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise checks.wrong("seed", "a whole number", repr(seed))
    return random.Random(seed)


def _alike(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    return next((at for at, (first, second) in enumerate(zip(one, other, strict=False)) if first != second),
                min(len(one), len(other)))
