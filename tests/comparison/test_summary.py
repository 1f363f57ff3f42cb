"""Means and spreads over seeds."""

import pytest

from regard.comparison.pages import bucket_name, long_sentence_ratio
from regard.comparison.road import SeedSpread


def test_a_spread_is_of_all_seeds():
    assert SeedSpread.of([1.0, 2.0, 6.0]) == (3.0, 1.0, 6.0, pytest.approx(7**0.5))
    assert SeedSpread.of([4.0]) == (4.0, 4.0, 4.0, None)


def test_lengths_are_named():
    assert [bucket_name({"least": least, "most": most}) for least, most in ((0, 10), (11, 20), (51, None))] == \
        ["1-10", "11-20", "51+"]


def test_what_is_kept_on_long_sentences_is_told_of_buckets_that_say_something():
    def model(*buckets):
        return {"by_length": [{"pairs": pairs, "bleu": {"mean": mean}} for pairs, mean in buckets]}

    assert long_sentence_ratio(model((50, 40.0), (50, 20.0), (50, 10.0), (1, 0.0))) == 0.25
    assert long_sentence_ratio(model((50, 40.0), (1, 0.0))) is None
    assert long_sentence_ratio(model((50, 0.0), (50, 0.0))) is None
