"""What stands for the files of a training: the sha256 of each, by its name without its folder.

A training reads its data more than once, so what can be read only once is refused. It does not know what is in them.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from regard.data import store as stores
from regard.data.pair import DataError
from regard.data.sources.inputs import Input

Item = TypeVar("Item")


def inputs(paths: Sequence[str]) -> tuple[Input, ...]:
    """Files that can be read again and again."""
    found = tuple(Input(path) for path in paths)
    for one in found:
        if one.once:
            raise DataError(f"{one.name}: Training reads its data more than once, and this can be read only once. Save "
                            "it to a file first.")
    return found


def digests(paths: Iterable[str]) -> dict[str, str]:
    """The sha256 of each file by its name."""
    return named((path, stores.file_digest(path)) for path in paths)


def named(files: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Digests of paths, by the last part of each path; where several have one name, the later ones are numbered."""
    found = dict[str, str]()
    for path, digest in files:
        plain = name = os.path.basename(os.path.normpath(path))
        number = 1
        while found.get(name, digest) != digest:
            number += 1
            name = f"{plain} ({number})"
        found[name] = digest
    return found


def blocks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """The same items, so many at a time."""
    rest = iter(items)
    while block := list(islice(rest, size)):
        yield block
