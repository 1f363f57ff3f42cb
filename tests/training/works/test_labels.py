"""Names of labels are sorted and numbered; one label alone is nothing to learn."""

import pytest

from regard.data.sources.text import DataError
from regard.training.tasks.labelled_data import check_classes, number_labels


def test_names_are_sorted_or_known():
    labels, numbers = number_labels(["b", "a", "b", "c"])
    assert labels == ("a", "b", "c")
    assert numbers.tolist() == [1, 0, 1, 2]
    assert number_labels(["10", "2"], ("2", "10"))[1].tolist() == [1, 0]
    assert number_labels([])[0] == ()


def test_nothing_to_tell_apart():
    check_classes("a.tsv", ("a", "b"))
    with pytest.raises(DataError, match=r'a.tsv: All examples have the same label, "a\\x1b"'):
        check_classes("a.tsv", ("a\x1b",))
    with pytest.raises(DataError, match=r"a.tsv: There are no labelled examples"):
        check_classes("a.tsv", ())
