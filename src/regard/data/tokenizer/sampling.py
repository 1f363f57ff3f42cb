"""Subword sampling: a word is cut now one way, now another, so that a model meets pieces in more than one company.

    unigram   P(pieces) ∝ exp(alpha · sum of their scores), over all ways to cut the word (Kudo 2018). alpha = 0: every
              way is as probable as any other; 1: as the model has it; large: the best way alone, as in `encode`
    bpe       every merge is left out with probability alpha (Provilkov et al. 2020). alpha = 0: as in `encode`

A word is a space and what follows up to the next space; no piece reaches across, so words are drawn one after another.
The generator of sentencepiece belongs to the whole process and cannot be set again within a thread; here the numbers
come from the caller's own source, so that the same seed gives the same pieces anywhere.

This file knows pieces by their text, with spaces as spaces. It does not know files, nor sentencepiece.
"""

import heapq
import math
import random
import re
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from typing import NamedTuple

from regard.data.tokenizer.contract import check_alpha
from regard.data.tokenizer.surface import byte_ids

BYTES = -1
_WORDS = re.compile(" ?[^ ]+| ")
UNKNOWN_PENALTY = 10.0
"""How far below the worst piece a character without a piece is scored, as in sentencepiece."""
KEPT, LONGEST = 20_000, 24
"""How many words are remembered with all their ways, and how many characters such a word has at most: some 90 MB."""


class Piece(NamedTuple):
    """A piece of the vocabulary."""

    id: int
    score: float


class Sampler(ABC):
    """Draws one of the ways to cut a text."""

    @abstractmethod
    def word(self, word: str, alpha: float, chance: random.Random) -> list[int]:
        """The ids of one word."""

    def text(self, text: str, alpha: float, chance: random.Random) -> list[int]:
        """The ids of a text."""
        return [id_ for word in _WORDS.findall(text) for id_ in self.word(word, alpha, chance)]


class _Ways(NamedTuple):
    """From one place in a word: the probabilities of the pieces that may follow, summed up, and what they lead to."""

    sums: list[float]
    ids: list[int]
    """Of each piece its id; BYTES for a character that has none."""
    ends: list[int]
    """The place behind each piece."""


class UnigramSampler(Sampler):
    """Draws from all ways to cut a word, each with its probability."""

    def __init__(self, pieces: Mapping[str, Piece]) -> None:
        self._pieces = pieces
        self._longest = max(map(len, pieces), default=1)
        self._unknown = min((piece.score for piece in pieces.values()), default=0.0) - UNKNOWN_PENALTY
        self._known: dict[float, dict[str, list[_Ways]]] = {}

    def word(self, word: str, alpha: float, chance: random.Random) -> list[int]:
        """The ids of one word."""
        known = self._known.get(alpha)
        if known is None:  # one alpha is remembered: who trains has but one
            known = {}
            self._known = {alpha: known}
        ways = known.get(word)
        if ways is None:
            ways = self._ways(word, alpha)
            if len(word) <= LONGEST and len(known) < KEPT:  # the frequent words come first
                known[word] = ways
        ids: list[int] = []
        at = 0
        while at < len(word):
            sums, pieces, ends = ways[at]
            chosen = min(bisect_right(sums, chance.random() * sums[-1]), len(sums) - 1) if len(sums) > 1 else 0
            if pieces[chosen] == BYTES:
                ids += byte_ids(word[at])
            else:
                ids.append(pieces[chosen])
            at = ends[chosen]
        return ids

    def _ways(self, word: str, alpha: float) -> list[_Ways]:
        """What may follow at each place. total[i] is the logarithm of the sum over all ways to cut word[i:]."""
        check_alpha(alpha)
        total = [0.0] * (len(word) + 1)
        ways: list[_Ways] = [_Ways([], [], [])] * len(word)
        for at in reversed(range(len(word))):
            ids, ends, scores = [], [], []
            for end in range(at + 1, min(at + self._longest, len(word)) + 1):
                piece = self._pieces.get(word[at:end])
                if piece is not None:
                    ids.append(piece.id)
                    ends.append(end)
                    scores.append(alpha * piece.score + total[end])
            if word[at] not in self._pieces:
                ids.append(BYTES)
                ends.append(at + 1)
                scores.append(alpha * self._unknown + total[at + 1])
            best = max(scores)
            shares = [math.exp(score - best) for score in scores]
            total[at] = best + math.log(sum(shares))
            ways[at] = _Ways([*accumulate(shares)], ids, ends)
        return ways


class BpeSampler(Sampler):
    """Merges the characters of a word, the best merge first, and leaves each one out with a probability."""

    def __init__(self, pieces: Mapping[str, Piece]) -> None:
        self._pieces = pieces

    def word(self, word: str, alpha: float, chance: random.Random) -> list[int]:
        """The ids of one word."""
        parts: list[str] = [*word]  # a part that was merged into the one on its left is empty
        before, after = [*range(-1, len(word) - 1)], [*range(1, len(word) + 1)]
        waiting: list[tuple[float, int, int, int]] = []

        def offer(left: int, right: int) -> None:
            if left >= 0 and right < len(parts):
                merged = self._pieces.get(parts[left] + parts[right])
                if merged is not None:
                    heapq.heappush(waiting, (-merged.score, left, right, len(parts[left]) + len(parts[right])))

        for left in range(len(word) - 1):
            offer(left, left + 1)
        while waiting:
            _, left, right, length = heapq.heappop(waiting)
            stale = not parts[left] or not parts[right] or len(parts[left]) + len(parts[right]) != length
            if stale or (alpha and chance.random() < alpha):
                continue
            parts[left] += parts[right]
            parts[right] = ""
            after[left] = after[right]
            if after[right] < len(parts):
                before[after[right]] = left
            offer(before[left], left)
            offer(left, after[left])
        return [id_ for part in parts if part for id_ in self._ids(part)]

    def _ids(self, part: str) -> list[int]:
        piece = self._pieces.get(part)
        return byte_ids(part) if piece is None else [piece.id]
