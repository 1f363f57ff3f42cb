"""Runners: greedy search over any function of logits; that they run what was exported is tested with the exports."""

import torch
from writers import Table, drawn

from regard.decoding.constraints import ForbiddenTokens
from regard.decoding.sampling import greedy
from regard.special_tokens import SpecialTokens
from regard.tasks.export import StopTokens
from regard.tasks.export import greedy_rows as written


def test_greedy_search_is_ours():
    function, starts, sizes = drawn(6, spread=2.0), [[1], [1, 2], [4, 4, 1]], []
    for end, never in (((0,), ()), ((0, 5), (3,)), ((), (2, 3))):
        rules = [ForbiddenTokens(never)] if never else []
        want = [one.ids for one in greedy(Table(lambda key, text: function(0, text)), prompts=starts, end=end,
                                          max_length=7, constraints=rules)]

        def following(rows, texts):
            return [torch.tensor(function(0, tuple(text))) for text in texts]

        assert written(starts, StopTokens(SpecialTokens(end=end), never), 7, following) == want
        sizes += map(len, want)
    assert len({*sizes}) > 2  # some end at once, some late, some never


def test_a_row_that_has_ended_is_not_asked_again():
    asked = []

    def following(rows, texts):
        asked.append(rows)
        return [torch.tensor([0.0, 1.0 if row == len(asked) - 1 else -1.0]) for row in rows]

    assert written([[1], [1], [1]], StopTokens(SpecialTokens(end=(1,))), 9, following) == [[], [0], [0, 0]]
    assert asked == [[0, 1, 2], [1, 2], [2]]
