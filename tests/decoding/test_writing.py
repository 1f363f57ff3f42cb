"""Writing one hypothesis a row: whatever chooses the token, and rows that leave the batch."""

import math

import pytest
import torch
from writers import Table, drawn, keyed, logs_of

from regard.decoding.constraints import Prefixes
from regard.decoding.request import SearchRequest
from regard.decoding.sampling import TokenSearch
from regard.decoding.scheduler import run_search


def counting_down(key, text):
    """Writes 2 as often as the key says, then 0."""
    return [0.0, -9.0, 5.0 if len(text) <= key else -5.0]


def highest(logs, written):
    return logs.argmax(-1)


def asked(model, memory, rows, max_length, end=0):
    return SearchRequest.of(model, memory, [[1]] * rows, end, max_length, 0, ())


def found(model, memory, request, choose):
    return run_search(model, memory, request, TokenSearch(request, choose))


def test_the_batch_shrinks_when_half_of_it_has_finished():
    model, memory = Table(counting_down), keyed([1, 9, 2, 3, 3, 5])
    got = found(model, memory, asked(model, memory, 6, 20), highest)
    assert [one.ids for one in got] == [[2] * key for key in (1, 9, 2, 3, 3, 5)]
    # Those with 1 and 2 tokens are 2 of 6; those with 3 make it 4, and 2 stay; then 1 of these.
    assert [rows for rows, _ in model.batches] == [6, 6, 6, 6, 2, 2, 1, 1, 1, 1]


def test_rows_leave_at_their_own_limits():
    model, memory = Table(counting_down), keyed([9, 9, 1])
    got = found(model, memory, asked(model, memory, 3, [0, 4, 3]), highest)
    assert [(one.ids, one.end) for one in got] == [([], None), ([2] * 4, None), ([2], 0)]
    assert [len(one.log_probabilities) for one in got] == [0, 4, 2]


def test_the_chosen_tokens_are_written_with_the_models_log_probabilities():
    function, chosen, seen = drawn(4), [3, 1, 2, 0], []

    def choose(logs, written):
        assert isinstance(written, Prefixes)
        seen.append((written.ids.tolist(), written.rows.tolist()))
        return torch.full(logs.shape[:1], chosen[written.ids.shape[-1]])

    model = Table(function)
    [one] = found(model, None, asked(model, None, 1, 9), choose)
    assert (one.ids, one.end) == ([3, 1, 2], 0)
    want = [logs_of(function, 0, (1, *chosen[:count]))[token] for count, token in enumerate(chosen)]
    torch.testing.assert_close(one.log_probabilities, want, rtol=1e-12, atol=0)
    assert one.score == sum(one.log_probabilities)
    assert seen == [([chosen[:count]], [0]) for count in range(4)]


def test_the_row_of_a_broken_number_is_named_after_others_have_left():
    def function(key, text):
        return [math.nan] * 3 if key == 4 and len(text) == 4 else counting_down(key, text)

    model, memory = Table(function), keyed([1, 1, 1, 1, 2, 2, 4, 6])
    with pytest.raises(ValueError, match="row 6 after 3 tokens"):
        found(model, memory, asked(model, memory, 8, 9), highest)
    assert [rows for rows, _ in model.batches] == [8, 8, 4, 2], "they have left in two goes"


def test_a_choice_knows_which_prompt_a_row_continues_after_others_have_left():
    seen = []

    def choose(logs, written):
        seen.append(written.rows.tolist())
        return logs.argmax(-1)

    model, memory = Table(counting_down), keyed([0, 3, 0, 2])
    found(model, memory, asked(model, memory, 4, 9), choose)
    assert seen == [[0, 1, 2, 3], [1, 3], [1, 3], [1]]
