"""Rows that come and go: the same results in the same order, no more rows than there is room for, places used again."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from queued import Moving
from tiny import LANGUAGE, TRANSLATING, built
from writers import drawn, keyed

from regard.decoding.beam import beam
from regard.decoding.request import SearchRequest, Sources, select_memory
from regard.decoding.sampling import greedy
from regard.decoding.scheduler import prompt_buckets
from regard.tokens import Tokens

WRITING = {**{f"translating {name}": config for name, config in TRANSLATING.items()},
           **{f"language {name}": config for name, config in LANGUAGE.items()}}


def counting_down(key, text):
    """Writes 2 as often as the key says, then 0."""
    return [0.0, -9.0, 5.0 if len(text) <= key else -5.0]


def test_shares_have_rows_that_need_at_least_half_of_the_longest():
    request = SearchRequest.of(Moving(drawn(3)), None, [[1]] * 6, 0, [3, 99, 60, 48, 7, 1], 0, (), 220)
    assert [(share.sequences, share.slots, share.capacity) for share in prompt_buckets(request, 2)] == [
        ([1, 2], 1, 100), ([3], 1, 49), ([4, 0], 2, 8), ([5], 1, 2)]


def test_shares_without_a_room_are_one():
    [share] = prompt_buckets(SearchRequest.of(Moving(drawn(3)), None, [[1]] * 3, 0, [3, 99, 1], 0, ()), 4)
    assert (share.sequences, share.slots, share.capacity) == ([0, 1, 2], 3, 100)


@given(seed=st.integers(0, 1000), limits=st.lists(st.integers(0, 9), min_size=1, max_size=12),
       token_budget=st.integers(1, 60), beams=st.integers(1, 3))
def test_results_are_those_of_one_batch_in_order(seed, limits, token_budget, beams):
    model, count = Moving(drawn(5, seed)), len(limits)
    prompts = [[1, 2, 3][:row % 3 + 1] for row in range(count)]
    options = {"prompts": prompts, "end": 0, "max_length": limits}
    assert greedy(model, keyed(range(count)), token_budget=token_budget,
                  **options) == greedy(model, keyed(range(count)), **options)
    options |= {"beams": beams, "nbest": beams, "length_penalty": "mean"}
    together = beam(model, keyed(range(count)), **options)
    assert beam(model, keyed(range(count)), token_budget=token_budget, **options) == together


def test_places_are_used_again_and_no_more_rows_are_there_than_fit():
    keys = [1, 9, 2, 3, 3, 5, 1, 1, 8, 2, 4, 1]
    model = Moving(counting_down)
    got = greedy(model, keyed(keys), prompts=[[1]] * 12, end=0, max_length=9, token_budget=40)
    assert [len(one.ids) for one in got] == keys
    assert max(rows for rows, _ in model.batches) == 4
    # Three or four rows are written again and again, where batches of their own would each run out to the last one.
    rows = [rows for rows, _ in model.batches]
    assert sum(rows) == sum(keys) + 12 + 1, "one step of a row that has finished"
    assert any(first < second for first, second in pairwise(rows[2:9]))
    assert len(rows) < 25
    model = Moving(counting_down)
    beam(model, keyed(keys), prompts=[[1]] * 12, end=0, max_length=9, token_budget=80, beams=2)
    assert max(rows for rows, _ in model.batches) == 8


def test_a_row_that_has_finished_is_never_read_beyond_its_storage():
    # The first ends at once, and is but one of eight; it has read four tokens more than the others, which go on.
    model = Moving(lambda key, text: [9.0 if key == 1 else -9.0, 0.0])
    got = greedy(model, keyed([1, *[0] * 7]), prompts=[[1] * 5, *[[1]] * 7], end=0, max_length=[5, *[9] * 7],
                 token_budget=80)
    assert [len(one.ids) for one in got] == [0, *[9] * 7]
    assert {rows for rows, _ in model.batches} == {8, 7}


def test_room_for_less_than_one_row_is_room_for_one():
    model = Moving(counting_down)
    got = greedy(model, keyed([2, 3]), prompts=[[1]] * 2, end=0, max_length=9, token_budget=1)
    assert [len(one.ids) for one in got] == [2, 3]
    assert {rows for rows, _ in model.batches} == {1}


def test_sources_are_read_when_their_turn_comes():
    read = []

    def encode(numbers):
        read.append(numbers)
        return keyed(numbers)

    model = Moving(counting_down)
    got = greedy(model, Sources(8, encode), prompts=[[1]] * 8, end=0, max_length=9, token_budget=30)
    assert [len(one.ids) for one in got] == list(range(8))
    assert sorted(number for numbers in read for number in numbers) == list(range(8))
    assert len(read) > 2
    assert max(map(len, read)) == 3


def test_memories_of_some_rows():
    memory = keyed([4, 5, 6])
    assert select_memory(memory, [0, 1, 2]) is memory
    assert select_memory(memory, [2, 0]).states.flatten().tolist() == [6, 4]
    assert select_memory(None, [1]) is None
    assert select_memory(Sources(3, memory.pick), [1]).states.item() == 5


@torch.no_grad()
@pytest.mark.parametrize("config", WRITING.values(), ids=WRITING)
def test_every_model_whose_rows_are_replaced(config):
    model, sources = built(config), [[1, 2, 3, 4], [5], [6, 1], [2, 2, 2], [3, 5, 1, 6], [4], [2, 1]]
    prompts = [[1], [1, 3, 4], [2], [1], [4, 4], [1, 2], [3]]

    def encode(numbers):
        return model.encode(Tokens.of([sources[number] for number in numbers]))

    given, later = (encode(range(7)), Sources(7, encode)) if hasattr(model, "encode") else (None, None)
    for search, more in ((greedy, {}), (beam, {"beams": 2, "nbest": 2, "length_penalty": "mean"})):
        options = {"prompts": prompts, "end": 0, "max_length": [5, 3, 5, 4, 2, 5, 3], **more}  # they end one by one
        together = search(model, given, **options)
        again = search(model, later, token_budget=25 if search is greedy else 60, **options)
        for one, other in zip(again, together, strict=True):
            ones, others = ([one], [other]) if search is greedy else (one, other)
            assert [(found.ids, found.end) for found in ones] == [(found.ids, found.end) for found in others]
            for found, want in zip(ones, others, strict=True):
                assert found.log_probabilities == pytest.approx(want.log_probabilities, rel=1e-9)
