"""Which examples are held out to judge by, where no validation data is given: a share of them, chosen by a hash.

Equal examples have equal hashes, and so are all on one side; the choice does not depend on their order, nor on anything
else. It sees hashes and labels. It does not know what the examples are.
"""

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
Held = NDArray[np.bool_]
FEWEST = 20
"""Examples, below which none is held out."""
SHARE, MOST = 0.1, 2000
"""How much is held out, and how many examples at most."""


def hashed(data: bytes) -> int:
    """64 bits that stand for some bytes."""
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")


def hashes(examples: Iterable[bytes]) -> Hashes:
    """Those of several examples."""
    return np.fromiter(map(hashed, examples), np.uint64)


def held_out(found: Hashes, share: float, labels: NDArray[np.int64] | None = None) -> Held:
    """For each example whether it is held out: this share of the different ones, at least one where there is a share.

    The example with the highest hash is always learned from, and so is that of every label.
    """
    if not share or not len(found):
        return np.zeros(len(found), np.bool_)
    stay = _highest(found, np.zeros(len(found), np.int64) if labels is None else labels)
    different = np.unique(found)
    free = np.setdiff1d(different, stay)
    if not len(free):
        return np.zeros(len(found), np.bool_)
    count = min(len(free), max(1, round(share * len(different))))
    return (found <= free[count - 1]) & ~np.isin(found, stay)


def held_share(count: int) -> float:
    """How much of so many examples is held out."""
    return 0.0 if count < FEWEST else min(SHARE, MOST / count)


def _highest(found: Hashes, labels: NDArray[np.int64]) -> Hashes:
    """The highest hash of each label."""
    highest = np.zeros(int(labels.max(initial=0)) + 1, np.uint64)
    np.maximum.at(highest, labels, found)
    return np.unique(highest)
