"""The one form of error message."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.checks import nearest, pick, plural, renamed_arguments, shape, wrong

TABLE = {"softmax": 1, "sigmoid": 2, "relu": 3}


def test_wrong_names_the_argument_the_expectation_and_what_came():
    error = wrong("heads", "a positive integer", -1)
    assert isinstance(error, ValueError)
    assert str(error) == "`heads` must be a positive integer, but is -1 instead."


def test_wrong_ends_with_the_remedy():
    assert str(wrong("mask", "boolean", "float32", "Put additive terms into `bias`.")).endswith(
        "but is float32 instead. Put additive terms into `bias`."
    )


def test_nearest_offers_a_close_name_and_stays_silent_otherwise():
    assert nearest("sofmax", TABLE) == 'Did you mean "softmax"?'
    assert nearest("zzzz", TABLE) == ""
    assert nearest("softmax", []) == ""


def test_nearest_reads_an_iterator_once():
    assert nearest("sofmax", iter(TABLE)) == 'Did you mean "softmax"?'


@pytest.mark.parametrize(("count", "expected"), [(0, "0 pairs"), (1, "1 pair"), (2, "2 pairs"), (5000, "5,000 pairs")])
def test_plural_writes_a_number_with_its_noun(count, expected):
    assert plural(count, "pair") == expected


def test_plural_takes_a_form_that_does_not_end_in_s():
    assert plural(1, "entry", "entries") == "1 entry"
    assert plural(1200, "entry", "entries") == "1,200 entries"


@pytest.mark.parametrize("name", TABLE)
def test_pick_gives_the_entry(name):
    assert pick("normalize", name, TABLE) == TABLE[name]


def test_pick_gives_an_entry_that_is_false():
    assert pick("normalize", "none", {"none": None}) is None


def test_pick_lists_the_valid_names_and_offers_the_nearest():
    with pytest.raises(ValueError, match="normalize") as caught:
        pick("normalize", "sofmax", TABLE)
    assert str(caught.value) == (
        '`normalize` must be one of "softmax", "sigmoid", "relu", but is "sofmax" instead. Did you mean "softmax"?'
    )


@given(st.text())
def test_pick_refuses_every_other_name(name):
    if name in TABLE:
        assert pick("normalize", name, TABLE) == TABLE[name]
    else:
        with pytest.raises(ValueError, match="`normalize` must be one of"):
            pick("normalize", name, TABLE)


def test_shape_is_written_as_users_write_it():
    numpy = pytest.importorskip("numpy")
    assert shape(numpy.zeros((2, 3, 4))) == "(2, 3, 4)"
    assert shape(numpy.zeros(5)) == "(5,)"
    assert shape(numpy.zeros(())) == "()"


@renamed_arguments(limit="max_length")
def search(start, *, max_length=10, beams=1):
    """A search."""
    return start, max_length, beams


def test_a_renamed_argument_works_by_both_names_and_warns_for_the_old_one():
    assert search(1, max_length=3) == (1, 3, 1)
    with pytest.warns(FutureWarning, match="`limit` is now called `max_length`"):
        assert search(1, limit=3, beams=2) == (1, 3, 2)
    with pytest.raises(TypeError, match="`limit` is the old name of `max_length`"):
        search(1, limit=3, max_length=4)
    assert search.__doc__ == "A search."
