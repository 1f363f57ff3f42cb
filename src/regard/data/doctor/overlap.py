"""Which validation pairs are in the training data too, exactly or but for case, spaces and normal form.

A score on such pairs says how well a model remembers, not how well it translates. The validation pairs are kept as
64-bit numbers (see `seen`), about 90 bytes a pair; of the training data nothing is kept. It reads no files.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from regard.data.doctor import seen
from regard.data.doctor.characters import folded
from regard.data.doctor.filters import FIRST
from regard.data.pair import Pair, Where


class Both(NamedTuple):
    """A validation pair, and the training pair that is the same."""

    validation: Where
    training: Where


class Overlap:
    """The validation pairs, and which of them were met again.

    Args:
        validation: its pairs, read once.
    """

    def __init__(self, validation: Iterable[Pair]) -> None:
        exact, whole, sources = array("Q"), array("Q"), array("Q")
        self._files: list[str] = []
        self._places = array("Q")  # of each pair its file and its line
        for source, target, where in validation:
            exact.append(seen.number(source, target))
            source, target = folded(source), folded(target)
            whole.append(seen.number(source, target))
            sources.append(seen.number(source))
            if not self._files or self._files[-1] != where.file:
                self._files.append(where.file)
            self._places.extend((len(self._files) - 1, where.line))
        self.pairs = len(exact)
        self._exact, self._folded, self._sources = _Met(exact), _Met(whole), _Met(sources)
        self.first: list[Both] = []

    def compare(self, block: Sequence[Pair]) -> None:
        """See which of these training pairs are validation pairs."""
        if not block or not self.pairs:
            return
        texts = [(folded(pair.source), folded(pair.target)) for pair in block]
        self._sources.meet([seen.number(source) for source, _ in texts])
        for at, new, own in self._folded.meet([seen.number(*pair) for pair in texts]):
            self._exact.meet([seen.number(block[at].source, block[at].target)])  # what is exact is folded too
            if new and len(self.first) < FIRST:
                file, line = self._places[2 * own : 2 * own + 2]
                self.first.append(Both(Where(self._files[file], line), block[at].where))

    @property
    def exact(self) -> int:
        """How many validation pairs are in the training data as they are."""
        return self._exact.count

    @property
    def folded(self) -> int:
        """How many are, but for case, spaces and normal form; the exact ones too."""
        return self._folded.count

    @property
    def sources(self) -> int:
        """How many have a source that is in the training data, whatever its target; folded."""
        return self._sources.count


class _Met:
    """Numbers of the validation pairs, and which of them were met."""

    def __init__(self, numbers: "array[int]") -> None:
        unsorted = np.array(numbers, dtype=np.uint64)
        self._numbers, self._own, self._times = np.unique(unsorted, return_index=True, return_counts=True)
        self._met = np.zeros(len(self._numbers), dtype=bool)

    def meet(self, numbers: list[int]) -> list[tuple[int, bool, int]]:
        """Those that are here: their place among `numbers`, whether they are met for the first time, and whose."""
        asked = np.array(numbers, dtype=np.uint64)
        place = np.minimum(np.searchsorted(self._numbers, asked), len(self._numbers) - 1)
        hits = []
        for at in np.flatnonzero(self._numbers[place] == asked).tolist():
            hits.append((at, not self._met[place[at]], int(self._own[place[at]])))
            self._met[place[at]] = True
        return hits

    @property
    def count(self) -> int:
        """How many validation pairs were met, each as often as it is there."""
        return int(self._times[self._met].sum())
