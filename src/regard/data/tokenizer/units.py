"""Tokens that have a label each, and their ids: characters, or words with subwords underneath.

    TokenEncoder(tokenizer, "character").encode("MKVL")              an id for every character
    TokenEncoder(tokenizer, "word").encode(["The", "cats"])          the ids of each word, one after another
    token_spans("The cats sleep.", "word", split_punctuation=True)   the words of a text that is not split yet

The label of a word is that of its first id. Every token has at least one id: a character that the tokenizer does not
know, and a word that its normalisation removes, have the unknown id. Words are encoded one by one, so that the ids of a
word do not depend on its neighbours.
"""

from collections.abc import Sequence
from typing import NamedTuple

from regard import checks
from regard.data.tokenizer.interface import Span, Tokenizer, find_units
from regard.data.tokenizer.subwords import FIRST_PIECE, CharacterTokenizer, SentencePieceTokenizer

CACHED_TOKENS = 100_000
"""Distinct tokens whose ids are kept."""


class EncodedTokens(NamedTuple):
    """The ids of a sequence of tokens."""

    ids: list[int]
    first: list[int]
    """For each token the index of its first id."""


class TokenEncoder:
    """Encodes sequences of tokens, and keeps the ids of those that it has seen.

    Args:
        unit: "character" or "word".
    """

    def __init__(self, tokenizer: Tokenizer, unit: str) -> None:
        if unit == "character" and isinstance(tokenizer, SentencePieceTokenizer):
            raise ValueError("The tokenizer has subwords, but every character needs an id of its own. Train the model "
                             "with --set tokenizer.kind=characters.")
        self.tokenizer, self.unit = tokenizer, unit
        self._known = dict[str, list[int]]()

    def encode(self, tokens: Sequence[str]) -> EncodedTokens:
        """The ids of a sequence."""
        ids, first = list[int](), list[int]()
        for token in tokens:
            first.append(len(ids))
            found = self._known.get(token)
            if found is None:
                found = self._ids(token)
                if len(self._known) < CACHED_TOKENS:
                    self._known[token] = found
            ids += found
        return EncodedTokens(ids, first)

    def unknown(self, tokens: Sequence[str]) -> list[str]:
        """The tokens that have the unknown id, each once."""
        unknown = self.tokenizer.special.unknown
        return [token for token in dict.fromkeys(tokens) if unknown in self.encode([token]).ids]

    def _ids(self, token: str) -> list[int]:
        ids = self.tokenizer.encode(token)
        if self.unit == "character":
            learned = len(ids) == 1 and (not isinstance(self.tokenizer, CharacterTokenizer) or ids[0] >= FIRST_PIECE)
            ids = ids if learned else []
        return ids or [self._unknown_id()]

    def _unknown_id(self) -> int:
        if self.tokenizer.special.unknown is None:
            raise checks.wrong("tokenizer", "one with an unknown id", "one without")
        return self.tokenizer.special.unknown


def token_spans(text: str, unit: str, *, split_punctuation: bool = False) -> list[Span]:
    """The tokens of a text, by their characters.

    Args:
        unit: "character", or "word" for what is between white space.
        split_punctuation: whether punctuation marks are words of their own, also where no space separates them.
    """
    if unit == "character":
        return [Span(at, at + 1) for at in range(len(text))]
    if split_punctuation:
        return find_units(text)
    found, start = list[Span](), None
    for at, character in enumerate(f"{text} "):
        if character.isspace():
            if start is not None:
                found.append(Span(start, at))
            start = None
        elif start is None:
            start = at
    return found


def window_starts(first: Sequence[int], count: int, limit: int) -> list[tuple[int, int]]:
    """Windows of at most `limit` ids that begin at the first id of a token: each from its first to its last token.

    Args:
        first: for each token the index of its first id.
        count: the number of all ids.
    """
    found, start = list[tuple[int, int]](), 0
    ends = [*first[1:], count] if first else []
    for token, end in enumerate(ends):
        if end - first[token] > limit:
            raise ValueError(f"One word has {end - first[token]} subwords, more than the {limit} positions of the "
                             "model.")
        if end - first[start] > limit:
            found.append((start, token))
            start = token
    return [*found, (start, len(ends))] if ends else []


def overlapping_windows(first: Sequence[int], count: int, limit: int | None) -> list[tuple[int, int]]:
    """Windows as of `window_starts`, of which each begins in the middle of the one before; one if all ids fit."""
    if not first or limit is None or count <= limit:
        return [(0, len(first))] if first else []
    whole = window_starts(first, count, limit)  # refuses a word that is too long
    found = list[tuple[int, int]]()
    for (start, end), (_, following) in zip(whole, [*whole[1:], whole[-1]], strict=True):
        found.append((start, end))
        middle = start + (end - start + 1) // 2
        last = end
        while last < following and _token_end(first, count, last) - first[middle] <= limit:
            last += 1
        if last > end and middle > start:
            found.append((middle, last))
    return found


def _token_end(first: Sequence[int], count: int, token: int) -> int:
    return first[token + 1] if token + 1 < len(first) else count
