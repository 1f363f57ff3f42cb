"""A hypothesis says whether it was cut, and is compared by what was written."""

import torch

from regard.decoding.request import Hypothesis


def test_what_has_no_end_was_cut():
    assert Hypothesis([4], [-1.0], -1.0, None).cut
    assert not Hypothesis([4], [-1.0, -0.5], -1.5, 0).cut, "0 is an id like any other"


def test_weights_do_not_count_in_a_comparison():
    one, other = (Hypothesis([4], [-1.0], -1.0, None, torch.full((1, 1, 1, 2), value)) for value in (0.5, 0.25))
    assert one == other
    assert one != Hypothesis([5], [-1.0], -1.0, None)
