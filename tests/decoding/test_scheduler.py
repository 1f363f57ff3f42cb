"""Requests, prefill, and continuous batching."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from queued import Moving
from refusals import assert_named
from tiny import LANGUAGE, TRANSLATING, built
from torch import nn
from writers import Table, drawn, keyed, translator

from regard.decoding import scheduler
from regard.decoding.beam import beam
from regard.decoding.constraints import ForbiddenTokens, MinLength, Prefixes
from regard.decoding.request import SearchRequest, Sources, select_memory
from regard.decoding.sampling import greedy
from regard.decoding.scheduler import continuing_rows, prefill, prompt_buckets
from regard.tokens import Tokens


def asked(model=None, memory=None, prompts=((1,),), end=0, max_length=3, min_length=0, constraints=()):
    return SearchRequest.of(model or Table(drawn(4)), memory, prompts, end, max_length, min_length, constraints)


LEFT = Tokens(torch.tensor([[9, 1, 2], [3, 4, 5]]), torch.tensor([2, 3]), side="left")
RIGHT = Tokens(torch.tensor([[1, 2, 9], [3, 4, 5]]), torch.tensor([2, 3]))


@pytest.mark.parametrize("prompts", [[[1, 2], [3, 4, 5]], ((1, 2), (3, 4, 5)), LEFT, RIGHT], ids=str)
def test_prompts_of_different_lengths(prompts):
    request = asked(prompts=prompts, max_length=[4, 1])
    assert (request.prompts, request.max_lengths, request.capacity) == ([[1, 2], [3, 4, 5]], [4, 1], 7)


def test_other_forms_of_prompts_lengths_and_ends():
    request = asked(prompts=torch.tensor([[1], [2]]), max_length=torch.tensor([2, 3]), end={7, 5})
    assert (request.prompts, request.max_lengths, request.ends) == ([[1], [2]], [2, 3], [5, 7])
    request = asked(prompts=Tokens(torch.tensor([[1], [2]])), end=(3, 3))
    assert (request.prompts, request.max_lengths, request.ends) == ([[1], [2]], [3, 3], [3])
    assert asked(end=()).ends == []
    assert asked(prompts=[]).prompts == []


def test_the_minimum_length_is_the_first_constraint():
    rule = ForbiddenTokens([1])
    first, second = asked(min_length=2, end=3, constraints=[rule]).constraints
    assert isinstance(first, MinLength)
    assert (first.min_length, first.forbidden.ids, second) == (2, [3], rule)
    assert asked(constraints=[rule]).constraints == (rule,)


@pytest.mark.parametrize(("given", "dtype"), [
    (torch.float16, torch.float32), (torch.bfloat16, torch.float32), (torch.float32, torch.float32),
    (torch.float64, torch.float64),
])
def test_log_probabilities_are_normalised_in_float32_or_more_before_constraints(given, dtype):
    logits = torch.randn(3, 5).to(given)
    nothing = torch.zeros(3, dtype=torch.long)
    written = Prefixes(nothing.view(3, 1)[:, :0], torch.arange(3), nothing, nothing)
    got = asked(constraints=[ForbiddenTokens([2])]).log_probabilities(logits, written)
    want = logits.double().log_softmax(-1)
    want[:, 2] = -torch.inf
    assert got.dtype == dtype
    torch.testing.assert_close(got, want.to(dtype), rtol=1e-6, atol=1e-6)


def test_which_tokens_are_ends():
    tokens = torch.tensor([[4, 1], [3, 0]])
    assert asked(end=(1, 3)).is_end(tokens, 5).tolist() == [[False, True], [True, False]]
    assert asked(end=()).is_end(tokens, 5).tolist() == [[False, False]] * 2
    assert_named(lambda: asked(end=(1, 5)).is_end(tokens, 5), ["`end`", "below 5", "is 5"])


def test_the_device_is_that_of_the_memory_or_of_the_parameters():
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.empty(1, device="meta"))

    assert asked(model=Bare().eval()).device.type == "meta"
    assert asked(model=Bare().eval(), memory=keyed([1])).device.type == "cpu"
    assert asked().device.type == "cpu"


class Training(Table):
    training = True


@pytest.mark.parametrize(("arguments", "parts"), [
    ({"model": Training(drawn(4))}, ["`model`", "evaluation mode", "training mode", "model.eval()"]),
    ({"prompts": [[1], []]}, ["`prompts`", "at least one id", "row 1", "[START]"]),
    ({"prompts": torch.zeros(2, 0, dtype=torch.long)}, ["`prompts`", "at least one id", "row 0"]),
    ({"prompts": [1, 2]}, ["`prompts`", "rows of ids", "1 in row 0"]),
    ({"prompts": ["ab"]}, ["`prompts`", "rows of ids", "'ab' in row 0"]),
    ({"prompts": "ab"}, ["`prompts`", "rows of ids", "str"]),
    ({"prompts": [[1, -2]]}, ["`prompts`", "at least 0", "-2"]),
    ({"prompts": [[1, 2.0]]}, ["`prompts`", "at least 0", "2.0"]),
    ({"prompts": torch.zeros(2)}, ["`ids`", "integers"]),
    ({"prompts": [[1]], "memory": keyed([1, 2])}, ["`prompts`", "rows, 2", "is 1", "memory.pick"]),
    ({"end": -1}, ["`end`", "-1"]), ({"end": "</s>"}, ["`end`", "'<'"]), ({"end": None}, ["`end`", "None"]),
    ({"end": True}, ["`end`", "True"]),
    ({"max_length": -1}, ["`max_length`", "at least 0", "-1"]), ({"max_length": 2.5}, ["`max_length`", "2.5"]),
    ({"max_length": True}, ["`max_length`", "True"]), ({"max_length": [1, -3], "prompts": [[1], [1]]},
                                                       ["`max_length`", "-3"]),
    ({"max_length": [1, 2]}, ["`max_length`", "1 in all", "2 numbers"]),
    ({"min_length": -1}, ["`min_length`", "at least 0", "-1"]),
    ({"min_length": 4}, ["`min_length`", "at most the maximum length, 3", "is 4"]),
    ({"min_length": 2, "max_length": [5, 1], "prompts": [[1], [1]]},
     ["`min_length`", "at most the maximum length, 1", "is 2"]),
])
def test_what_is_refused(arguments, parts):
    assert_named(lambda: asked(**arguments), parts)


CPU = torch.device("cpu")


@pytest.mark.parametrize("chunk", [1, 2, 3, 64])
@pytest.mark.parametrize("lengths", [[1], [5], [1, 5, 3], [4, 4], [2, 7, 6, 1]], ids=str)
def test_the_logits_after_the_last_token_of_each_row(monkeypatch, chunk, lengths):
    monkeypatch.setattr(scheduler, "PREFILL_CHUNK", chunk)
    function, keys = drawn(6), list(range(len(lengths)))
    prompts = [[(row + place) % 6 for place in range(length)] for row, length in enumerate(lengths)]
    model, memory = Table(function), keyed(keys)
    logits, state, cross = prefill(model, memory, prompts, 9, CPU)
    assert cross is None
    want = [function(key, tuple(prompt)) for key, prompt in zip(keys, prompts, strict=True)]
    assert logits.tolist() == want
    assert state.texts == [tuple(prompt) for prompt in prompts]
    assert max(tokens for _, tokens in model.batches) == min(chunk, max(lengths))


def test_lengths_are_given_only_where_rows_differ(monkeypatch):
    monkeypatch.setattr(scheduler, "PREFILL_CHUNK", 2)
    model = Table(drawn(4))
    prefill(model, None, [[1, 2, 3, 1, 2, 3], [1, 2, 3]], 6, CPU)
    assert model.lengths == [None, [2, 1], [2, 0]]
    assert model.batches == [(2, 2)] * 3


@pytest.mark.parametrize("kind", ["attention", "one context"])
def test_a_recurrent_model_reads_as_all_at_once(monkeypatch, kind):
    monkeypatch.setattr(scheduler, "PREFILL_CHUNK", 2)
    model = translator(kind)
    memory = model.encode(Tokens(torch.tensor([[1, 2, 3], [4, 5, 0], [6, 1, 2]]), torch.tensor([3, 2, 3])))
    prompts = [[1, 2, 3], [4], [5, 4, 3, 2, 1]]
    logits, state, cross = prefill(model, memory, prompts, 9, CPU)
    assert cross is None
    assert state.positions.tolist() == [3, 1, 5]
    for row, prompt in enumerate(prompts):
        want = model.decode(Tokens(torch.tensor([prompt])), memory.pick([row]))[0, -1]
        torch.testing.assert_close(logits[row], want, rtol=1e-12, atol=1e-12)


WRITING = {**{f"translating {name}": config for name, config in TRANSLATING.items()},
           **{f"language {name}": config for name, config in LANGUAGE.items()}}


def counting_down(key, text):
    """Writes 2 as often as the key says, then 0."""
    return [0.0, -9.0, 5.0 if len(text) <= key else -5.0]


def test_prompts_of_a_bucket_need_at_least_half_of_the_longest():
    request = SearchRequest.of(Moving(drawn(3)), None, [[1]] * 6, 0, [3, 99, 60, 48, 7, 1], 0, (), 220)
    assert [(bucket.sequences, bucket.slots, bucket.capacity) for bucket in prompt_buckets(request, 2)] == [
        ([1, 2], 1, 100), ([3], 1, 49), ([4, 0], 2, 8), ([5], 1, 2)]


def test_without_a_token_budget_there_is_one_bucket():
    [bucket] = prompt_buckets(SearchRequest.of(Moving(drawn(3)), None, [[1]] * 3, 0, [3, 99, 1], 0, ()), 4)
    assert (bucket.sequences, bucket.slots, bucket.capacity) == ([0, 1, 2], 3, 100)


@pytest.mark.thorough
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


def test_free_slots_are_filled_again_within_the_token_budget():
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


def test_a_budget_below_one_row_admits_one_row():
    model = Moving(counting_down)
    got = greedy(model, keyed([2, 3]), prompts=[[1]] * 2, end=0, max_length=9, token_budget=1)
    assert [len(one.ids) for one in got] == [2, 3]
    assert {rows for rows, _ in model.batches} == {1}


def test_rows_that_continue_are_the_parents_in_the_slots_that_stay():
    positions, parents = torch.tensor([3, 3, 5, 5, 2, 2]), torch.tensor([[1, 0], [2, 2], [5, 5]])
    for chosen, groups, expected in ((parents, None, [1, 0, 2, 2, 5, 5]), (parents, [0, 2], [1, 0, 5, 5]),
                                     (None, [2, 1], [4, 5, 2, 3])):
        rows = continuing_rows(chosen, None if groups is None else torch.tensor(groups), positions, 2)
        assert (rows.rows.tolist(), rows.size, rows.previous_size, rows.reuse_storage) == (expected, 2, 2, True)
        assert (None if rows.groups is None else rows.groups.tolist()) == groups


def test_sources_are_encoded_when_a_slot_is_free():
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


@pytest.mark.thorough
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
