"""Lines of texts: what is left out is counted by its reason, and what stays comes in its order."""

import re
from collections import Counter

import numpy as np
import pytest

from regard.data.filters import FilterConfig
from regard.data.sources.text import DataError
from regard.training.tasks.common import open_inputs
from regard.training.tasks.masked import FilteredLines, read_statistics

LINES = ["A cat.", "", " \u200b\u00a0", "A dog.", "A cat.", "w " * 5, "x" * 21, "A bird."]


def texts(file, **options):
    filters = FilterConfig(max_words=4, max_characters=20, **options)
    return FilteredLines(open_inputs([file("a.txt", "\n".join(LINES[:4]) + "\r\n"), file("b.txt", "\n".join(LINES[4:]))]), filters)


def test_what_stays_and_what_is_left_out(file):
    dropped = Counter()
    assert list(texts(file).read(dropped, iter)) == ["A cat.", "A dog.", "A bird."]
    assert dropped == {"empty": 2, "duplicate": 1, "too_long": 2}
    assert list(texts(file)) == ["A cat.", "A dog.", "A bird."]


def test_only_empty_lines_are_always_left_out(file):
    assert list(texts(file, drop=())) == [line for line in LINES if re.search(r"\w", line)]


def test_what_is_met(file):
    counted = []
    found = read_statistics(texts(file), lambda given: (counted.append(one) or one for one in given))
    assert len(counted) == len(LINES)
    assert found.count == 3
    assert len(np.unique(found.hashes)) == 3
    same = read_statistics(texts(file, drop=()), iter)
    assert same.hashes[0] == same.hashes[2] == found.hashes[0]


def test_a_bad_byte_is_named(file):
    with pytest.raises(DataError, match=r"bad.txt:2: byte 1: 0xFF is not UTF-8"):
        list(FilteredLines(open_inputs([file("bad.txt", b"fine\n\xff\n")]), FilterConfig()))
