"""What tests of batches share: stores of sequences whose ids say where they belong."""

import os
import random

import pytest

from regard.data.store import open_or_make_pairs, open_or_make_texts


@pytest.fixture(autouse=True)
def _without_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="session")
def stored(tmp_path_factory):
    """A function from lengths [(source, target), ...] to a store of pairs; ids are from 10 up, all different."""

    def make(lengths):
        def rows():
            first = 10
            for source, target in lengths:
                yield list(range(first, first + source)), list(range(first + source, first + source + target))
                first += source + target

        total = 10 + sum(map(sum, lengths))
        return open_or_make_pairs(tmp_path_factory.mktemp("store"), "key", rows, vocabularies=(total, total)).store

    return make


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """A function from texts of ids to a store of them."""

    def make(texts, vocabulary=1000):
        return open_or_make_texts(tmp_path_factory.mktemp("store"), "key", lambda: texts, vocabulary=vocabulary).store

    return make


@pytest.fixture(scope="session")
def lognormal():
    """A function to lengths as sentences have them, the same for the same seed."""

    def make(count, seed=0):
        chance = random.Random(seed)
        pairs = []
        for _ in range(count):
            source = chance.lognormvariate(2.9, 0.5)
            pairs.append((1 + int(source), 1 + int(source * chance.lognormvariate(0.0, 0.2))))
        return pairs

    return make
