"""Which validation or test pairs have near-duplicates in the training data, found exactly.

    near = NearDuplicates(test_pairs)          the pairs are indexed
    near.compare(block)                        for every block of training pairs
    near.source, near.target, near.either, near.both, near.first

Two texts are near-duplicates if the Jaccard similarity of their sets of character 5-grams is at least 0.8:

    J(A, T) = |A ∩ T| / |A ∪ T|

Case, white space and Unicode normal form are ignored (`fold_text`), and equal texts are near-duplicates too. A text of
fewer than five characters has one n-gram, itself, so that only an equal text is its near-duplicate; an empty text has
no near-duplicates.

Nothing is missed: only pairs of texts that cannot be similar enough are left out, and the others are compared n-gram by
n-gram. Two filters leave them out:

- Prefixes (Chaudhuri et al. 2006; Bayardo et al. 2007). J(A, T) >= 0.8 requires |A ∩ T| >= 0.8 |A| and >= 0.8 |T|. So
  with all n-grams in one order, the first common one is among the first |A| - ceil(0.8 |A|) + 1 of A, and likewise of
  T. The order begins with n-grams that no indexed text has, then has those of few indexed texts, so the first ones of
  a training text lead to few indexed texts.
- Bitmaps (Sandes et al. 2020). Every n-gram sets one of 256 bits. A bit that only one of two texts has comes from an
  n-gram that only this one has; J(A, T) >= 0.8 allows (|A| + |T|) / 9 of these.

All arithmetic is in integers.

The index takes about 4 KB a pair; the training data is only passed through.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from regard.data.filters import EXAMPLES_KEPT, excerpt, fold_text
from regard.data.sources.text import Location, SentencePair

NGRAM_CHARACTERS = 5
MIN_SIMILARITY = (4, 5)
"""The Jaccard similarity from which on texts are near-duplicates, as a fraction: 4/5."""
BITS = tuple(1 << bit for bit in range(256))
"""The bits of a bitmap."""
SLICE_CHARACTERS = 50_000
"""Longer texts are read in slices, until they have more n-grams than any near-duplicate could have."""


class NearDuplicate(NamedTuple):
    """A validation or test pair and a training pair that are near-duplicates on one side or on both."""

    held_out: Location
    training: Location
    side: str
    """"source", "target" or "both"."""
    similarity: float
    """The Jaccard similarity of that side; of both, the smaller one."""
    held_out_text: str
    """An excerpt of that side; of the source for both."""
    training_text: str


class TextMatch(NamedTuple):
    """An indexed text that is similar to a given one."""

    number: int
    similarity: float


class NearDuplicates:
    """Finds the validation or test pairs that have near-duplicates among training pairs.

    Args:
        held_out: the validation or test pairs, read once and indexed.
    """

    def __init__(self, held_out: Iterable[SentencePair]) -> None:
        pairs = list(held_out)
        self.pairs = len(pairs)
        self.first: list[NearDuplicate] = []
        """The first pairs found that are not equal on both sides, each validation or test pair once."""
        self._pairs = pairs
        self._sides = (SimilarTexts([fold_text(pair.source) for pair in pairs]),
                       SimilarTexts([fold_text(pair.target) for pair in pairs]))
        self._found = [bytearray(self.pairs), bytearray(self.pairs)]
        self._both = bytearray(self.pairs)

    def compare(self, block: Iterable[SentencePair]) -> None:
        """Find the pairs that have near-duplicates among these training pairs."""
        for pair in block:
            sources = self._sides[0].search(fold_text(pair.source))
            targets = self._sides[1].search(fold_text(pair.target))
            if sources or targets:
                self._add(pair, dict(sources), dict(targets))

    @property
    def source(self) -> int:
        """How many pairs have a source that is a near-duplicate of a training source."""
        return sum(self._found[0])

    @property
    def target(self) -> int:
        """How many pairs have a target that is a near-duplicate of a training target."""
        return sum(self._found[1])

    @property
    def either(self) -> int:
        """How many pairs have a near-duplicate of their source, or of their target, or of both."""
        return sum(map(max, *self._found)) if self.pairs else 0

    @property
    def both(self) -> int:
        """How many pairs have a training pair that is a near-duplicate on both sides."""
        return sum(self._both)

    def _add(self, pair: SentencePair, sources: dict[int, float], targets: dict[int, float]) -> None:
        """Add a training pair and the similarities of the pairs whose source or target it resembles."""
        for number in sorted({*sources, *targets}):
            new = not (self._found[0][number] or self._found[1][number])
            source, target = sources.get(number, 0.0), targets.get(number, 0.0)
            if new and min(source, target) < 1 and len(self.first) < EXAMPLES_KEPT:
                self.first.append(self._example(number, pair, source, target))
            if source:
                self._found[0][number] = 1
            if target:
                self._found[1][number] = 1
            if source and target:
                self._both[number] = 1
                for side in self._sides:  # nothing more is to be found for this pair
                    side.remove(number)

    def _example(self, number: int, training: SentencePair, source: float, target: float) -> NearDuplicate:
        own = self._pairs[number]
        side = "both" if source and target else "source" if source else "target"
        similarity = min(source, target) if source and target else source or target
        texts = [pair.source if source else pair.target for pair in (own, training)]
        return NearDuplicate(own.location, training.location, side, similarity, *map(excerpt, texts))


class SimilarTexts:
    """An index of texts that finds those similar to a given one.

    Args:
        texts: the texts, which keep their numbers; equal ones are compared only once.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._members: list[list[int]] = []  # the numbers of equal texts
        self._entry = array("L", bytes(array("L").itemsize * len(texts)))  # of each text: its entry in `_members`
        distinct: dict[str, int] = {}
        for number, text in enumerate(texts):
            entry = self._entry[number] = distinct.setdefault(text, len(distinct))
            if entry == len(self._members):
                self._members.append([])
            self._members[entry].append(number)
        counts: Counter[str] = Counter()
        for text in distinct:
            counts.update(character_ngrams(text))
        ordered = sorted(counts, key=lambda ngram: (counts[ngram], ngram))
        self._ranks = {ngram: rank for rank, ngram in enumerate(ordered)}
        """The place of every n-gram in the order: rare ones first."""
        self._ngrams = [array("L", sorted(map(self._ranks.__getitem__, character_ngrams(text)))) for text in distinct]
        self._bitmaps = [*map(_bitmap, self._ngrams)]
        self._prefixes: dict[int, list[int]] = {}
        """The entries by the n-grams of their prefixes."""
        for entry, ranks in enumerate(self._ngrams):
            for rank in ranks[:_prefix_length(len(ranks), len(ranks))]:
                self._prefixes.setdefault(rank, []).append(entry)
        self._most = max(map(len, self._ngrams), default=0) * MIN_SIMILARITY[1] // MIN_SIMILARITY[0]

    def search(self, text: str) -> list[TextMatch]:
        """All texts that are similar to this one."""
        ngrams = character_ngrams(text, self._most)
        count = len(ngrams)
        known = [rank for rank in map(self._ranks.get, ngrams) if rank is not None]
        prefix = _prefix_length(count, len(known))
        if prefix <= 0:
            return []
        known.sort()
        entries = {*chain.from_iterable([self._prefixes.get(rank, ()) for rank in known[:prefix]])}
        if not entries:
            return []
        least, of = MIN_SIMILARITY
        bitmap, unknown = _bitmap(known), count - len(known)
        ranks: set[int] = set()
        matches = []
        for entry in entries:
            own = self._ngrams[entry]
            both = count + len(own)
            if (of + least) * (unknown + (bitmap ^ self._bitmaps[entry]).bit_count()) > (of - least) * both:
                continue
            ranks = ranks or {*known}
            common = len(ranks.intersection(own))
            if (of + least) * common >= least * both:  # common / (both - common) >= least / of
                matches += [TextMatch(number, common / (both - common)) for number in self._members[entry]]
        return matches

    def remove(self, number: int) -> None:
        """Find this text no more."""
        entry = self._entry[number]
        members, ranks = self._members[entry], self._ngrams[entry]
        if number in members:
            members.remove(number)
            for rank in ranks[:_prefix_length(len(ranks), len(ranks))] if not members else ():
                self._prefixes[rank].remove(entry)


def _bitmap(ranks: Iterable[int]) -> int:
    """A number with a bit for each of these n-grams, by its rank modulo the number of bits."""
    bitmap, last = 0, len(BITS) - 1
    for rank in ranks:
        bitmap |= BITS[rank & last]
    return bitmap


def _prefix_length(count: int, known: int) -> int:
    """Of a text with `count` n-grams, of which the index knows `known`: how many of these make up its prefix.

    The unknown ones come first in the order, and are in no indexed text. The result is 0 or less if there are too many.
    """
    least, of = MIN_SIMILARITY
    return known - (least * count + of - 1) // of + 1 if count else 0


def character_ngrams(text: str, most: int | None = None) -> set[str]:
    """The distinct n-grams of a text.

    Args:
        most: for a long text, more than this many are not looked for.
    """
    end = len(text) - NGRAM_CHARACTERS + 1
    if end <= 0:
        return {text} if text else set()
    if end <= SLICE_CHARACTERS:
        return {text[at:at + NGRAM_CHARACTERS] for at in range(end)}
    ngrams: set[str] = set()
    for start in range(0, end, SLICE_CHARACTERS):
        ngrams |= {text[at:at + NGRAM_CHARACTERS] for at in range(start, min(start + SLICE_CHARACTERS, end))}
        if most is not None and len(ngrams) > most:
            break
    return ngrams
