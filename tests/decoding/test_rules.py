"""Rules: what they forbid, and what they leave as it was."""

import pytest
import torch
from refusals import assert_named

from regard.decoding.rules import Forbidden, Least, Written, below_vocabulary

INF = float("inf")


def written(count, rows=2):
    return Written(torch.zeros(rows, count, dtype=torch.long), torch.arange(rows))


def test_forbidden_tokens_and_no_others():
    logs = torch.randn(2, 5)
    got = Forbidden([3, 1])(logs.clone(), written(7))
    assert got[:, [1, 3]].tolist() == [[-INF, -INF]] * 2
    assert torch.equal(got[:, [0, 2, 4]], logs[:, [0, 2, 4]])
    assert torch.equal(Forbidden([])(logs.clone(), written(0)), logs)


@pytest.mark.parametrize(("count", "forbidden"), [(0, True), (2, True), (3, False), (4, False)])
def test_ends_come_only_after_the_least_number_of_tokens(count, forbidden):
    logs = torch.randn(2, 5)
    got = Least(3, [0, 4])(logs.clone(), written(count))
    assert torch.equal(got[:, 1:4], logs[:, 1:4])
    assert bool((got[:, [0, 4]] == -INF).all()) is forbidden
    assert torch.equal(got, logs) is not forbidden


@pytest.mark.parametrize(("call", "parts"), [
    (lambda: Forbidden([-1]), ["`ids`", "whole numbers from 0", "-1"]),
    (lambda: Forbidden([1.5]), ["`ids`", "1.5"]),
    (lambda: Forbidden([True]), ["`ids`", "True"]),
    (lambda: Forbidden("a"), ["`ids`", "made of ids", "'a'"]),
    (lambda: Forbidden([5])(torch.zeros(1, 5), written(0, 1)), ["`ids`", "below 5", "is 5"]),
    (lambda: Least(-1, [0]), ["`count`", "at least 0", "-1"]),
    (lambda: below_vocabulary("end", [1, 9], 4), ["`end`", "below 4", "is 9"]),
])
def test_what_is_no_rule(call, parts):
    assert_named(call, parts)
