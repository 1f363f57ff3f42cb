"""Names of labels and their numbers: the names are sorted, and the first has number 0. It knows no examples."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from regard.data.pair import DataError
from regard.data.sources.inputs import shown

Numbers = NDArray[np.int64]


def numbered(names: Sequence[str], known: tuple[str, ...] | None = None) -> tuple[tuple[str, ...], Numbers]:
    """The different names, or those that are known already, and the number of each of the names given."""
    labels = tuple(sorted(set(names))) if known is None else known
    number = {name: index for index, name in enumerate(labels)}
    return labels, np.array([number[name] for name in names], np.int64)


def check_classes(where: str, labels: Sequence[str]) -> None:
    """Refuse data that has nothing to tell apart."""
    if not labels:
        raise DataError(f"{where}: There is nothing to learn from in it. Give some that has labels.")
    if len(labels) == 1:
        raise DataError(f'{where}: All have the same label, "{shown(labels[0])}", so there is nothing to tell apart. '
                        "Give data with at least two labels.")
