"""Boards: a batch goes in and comes out the same, and a row that has finished stays as it is."""

import torch
from tiny import LANGUAGE, built

from regard.decoding.beam_search import BeamSearch
from regard.decoding.request import SearchRequest
from regard.decoding.scoring import as_length_penalty
from regard.decoding.static_state import POLL_STEPS, StaticBeamState, StaticGreedyState, static_state_for
from regard.decoding.token_search import TokenSearch, most_probable

VOCABULARY, END = 13, 2


def request(limits, end=END):
    model = built(LANGUAGE["none"])
    return SearchRequest.of(model, None, [[1]] * len(limits), end, limits, 0, ())


def logits(tokens, others=()):
    """Logits by which these tokens are the most probable, and others are the next."""
    draw = torch.Generator().manual_seed(1)
    made = torch.randn(len(tokens), VOCABULARY, dtype=torch.float64, generator=draw)
    made[range(len(tokens)), tokens] = 9.0
    if others:
        made[range(len(tokens)), others] = 8.0
    return made


def test_a_batch_of_lines_comes_out_as_it_went_in():
    search = TokenSearch(request([5, 6, 7]), most_probable)
    batch = search.first([2, 0, 1], None)
    for tokens in ([5, 6, 7], [8, 8, 9]):
        batch = search.turn(batch, logits(tokens), None).batch
    board = StaticGreedyState(search.request, 4, 9, torch.float64)
    board.load(batch, search)
    out = board.batch([0, 1, 2])
    assert (out.ids.tolist(), out.numbers, out.counts) == (batch.ids.tolist(), [2, 0, 1], [2, 2, 2])
    assert torch.equal(out.logs, batch.logs)
    assert board.batch([2]).numbers == [1]


def test_greedy_rows_end_where_they_end_and_the_device_is_asked_seldom():
    search = TokenSearch(request([9, 2, 9]), most_probable)
    board = static_state_for(search, 4, 10, torch.float64)
    board.load(search.first([0, 1, 2], None), search)
    asked = []
    for tokens in ([5, 6, 7, 0], [END, 6, 7, 0], [5, 6, 7, 0], [5, 6, 7, 0]):
        board.choose(logits(tokens))
        asked.append(board.settle(logits(tokens)))
        board.commit()
    assert asked == [None] * (POLL_STEPS - 1) + [[False, False, True]]
    found = dict(search.results(board.batch([0, 1])))
    assert (found[0].ids, found[0].end, found[1].ids, found[1].end) == ([5], END, [6, 6], None)
    assert board.batch([2]).ids.tolist() == [[7] * 4]


def test_rows_that_are_full_are_not_written_beyond():
    search = TokenSearch(request([1]), most_probable)
    board = static_state_for(search, 1, 2, torch.float64)  # room for a token and an end
    board.load(search.first([0], None), search)
    for tokens in ([5], [END], [6], [7]):
        board.choose(logits(tokens))
    ((_, found),) = search.results(board.batch([0]))
    assert (found.ids, found.end) == ([5], END)


def test_the_pool_of_a_row_that_has_finished_stays_as_it_is():
    search = BeamSearch(request([2, 4]), 2, as_length_penalty("none"), 1)
    board = StaticBeamState(search, 2, 5)  # room for four tokens and an end
    board.load(search.first([0, 1], None), search)
    verdicts = []
    # The first row is cut at its limit: an end that comes behind it is none of its own.
    for tokens in ([5, 5, 6, 6], [5, 5, 6, 6], [5, 5, 6, 6], [END, END, 6, 6]):
        board.choose(logits(tokens, [9] * 4))
        verdicts.append(list(board.settle(None)))
        board.commit()
    assert verdicts == [[True, True], [True, True], [False, True], [False, True]]
    (((_, (found,)),)) = search.results(board.batch([0]))
    assert (found.ids, found.end) == ([5, 5], None)
    assert board.batch([1]).counts == [4]
    assert board.batch([1]).live.ids[0, 0].tolist() == [6] * 4
    for _ in range(3):  # all have finished, and nothing is written beyond the storage
        board.choose(logits([5, 5, 6, 6]))
        board.commit()
    assert board.batch([0]).pool.ids[0, 0].tolist() == [5, 5]
