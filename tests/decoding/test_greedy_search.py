"""Greedy search and streaming: the most probable token, one after another, in every kind of batch."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import LANGUAGE, built
from writers import Table, drawn, keyed, logs_of, translator

from regard.decoding.constraints import ForbiddenTokens, NoRepeatNgram, Prefixes
from regard.decoding.request import SearchRequest
from regard.decoding.sampling import (
    SamplingFilters,
    TokenSampler,
    TokenSearch,
    greedy,
    most_probable,
    sample,
    seed_tensor,
    stream,
)
from regard.decoding.scheduler import run_search
from regard.tokens import Tokens

INF = math.inf


def plain(function, key, prompt, ends, max_length, min_length):
    """The same with a loop: ids, log-probabilities and the end."""
    ids, logs = [], []
    while True:
        row = logs_of(function, key, (*prompt, *ids))
        row = [-INF if token in ends and len(ids) < min_length else log for token, log in enumerate(row)]
        token = row.index(max(row))
        if row[token] == -INF:
            return ids, logs, None
        if token in ends:
            return ids, [*logs, row[token]], token
        if len(ids) == max_length:
            return ids, logs, None
        ids, logs = [*ids, token], [*logs, row[token]]


@given(seed=st.integers(0, 10_000), vocabulary=st.integers(1, 6), ends=st.sets(st.integers(0, 5), max_size=2),
       limits=st.lists(st.integers(0, 6), min_size=1, max_size=5), min_length=st.integers(0, 3),
       lengths=st.lists(st.integers(1, 4), min_size=5, max_size=5), forbidden=st.sampled_from([0.0, 0.4]))
def test_it_is_a_loop_over_the_most_probable_tokens(seed, vocabulary, ends, limits, min_length, lengths, forbidden):
    ends, min_length = {end % vocabulary for end in ends}, min(min_length, *limits, 9)
    function, rows = drawn(vocabulary, seed, forbidden), len(limits)
    prompts = [[(row + place) % vocabulary for place in range(lengths[row])] for row in range(rows)]
    got = greedy(Table(function), keyed(range(rows)), prompts=prompts, end=ends, max_length=limits,
                 min_length=min_length)
    assert len(got) == rows
    for row, one in enumerate(got):
        ids, logs, end = plain(function, row, prompts[row], ends, limits[row], min_length)
        assert (one.ids, one.end) == (ids, end)
        assert one.log_probabilities == pytest.approx(logs, rel=1e-12, abs=1e-12)
        assert one.score == pytest.approx(sum(logs), rel=1e-12, abs=1e-12)


def test_the_end_at_once():
    [one] = greedy(Table(lambda key, text: [1.0, 0.0]), prompts=[[1]], end=0, max_length=5)
    assert (one.ids, one.end, one.cut, len(one.log_probabilities)) == ([], 0, False, 1)


def test_hypotheses_without_an_end_are_truncated():
    model = Table(lambda key, text: [0.0, 1.0])
    [one] = greedy(model, prompts=[[1]], end=0, max_length=5)
    assert (one.ids, one.cut, len(one.log_probabilities)) == ([1] * 5, True, 5)
    [one] = greedy(model, prompts=[[1]], end=(), max_length=2)
    assert (one.ids, one.cut) == ([1, 1], True)


def test_an_end_right_after_the_maximum_length_counts():
    model = Table(lambda key, text: [1.0 if len(text) == 4 else -1.0, 0.0])
    assert [greedy(model, prompts=[[1]], end=0, max_length=max_length)[0].cut for max_length in (2, 3, 4)] == [True,
                                                                                                               False,
                                                                                                               False]


def test_a_maximum_length_of_0():
    for logits, end in (([1.0, 0.0], 0), ([0.0, 1.0], None)):
        [one] = greedy(Table(lambda key, text, logits=logits: logits), prompts=[[1]], end=0, max_length=0)
        assert (one.ids, one.end) == ([], end)


def test_the_lowest_of_equal_tokens():
    [one] = greedy(Table(lambda key, text: [-1.0, 2.0, 2.0, 2.0]), prompts=[[1]], end=0, max_length=2)
    assert one.ids == [1, 1]


def test_several_ends_and_which_of_them_came():
    model = Table(lambda key, text: [0.0, 1.0, 0.0, 9.0 if key == len(text) else 0.0, 5.0 if len(text) > 2 else 0.0])
    got = greedy(model, keyed([1, 0]), prompts=[[1], [1]], end=[4, 3], max_length=5)
    assert [(one.ids, one.end) for one in got] == [([], 3), ([1, 1], 4)]


def test_a_row_is_truncated_where_constraints_leave_no_token():
    model = Table(lambda key, text: [0.0, 1.0 if len(text) < 3 else -INF])
    [one] = greedy(model, prompts=[[1]], end=0, max_length=9, constraints=[ForbiddenTokens([0])])
    assert (one.ids, one.cut, len(one.log_probabilities)) == ([1, 1], True, 2)
    assert math.isfinite(one.score)


def test_no_rows_at_all():
    assert greedy(Table(drawn(3)), prompts=[], end=0, max_length=3) == []


@pytest.mark.parametrize("bad", [math.nan, -INF, INF])
def test_a_model_without_numbers_is_named_with_its_row(bad):
    def function(key, text):
        return [bad, bad] if key == 7 and len(text) == 3 else [-9.0, 1.0]

    with pytest.raises(ValueError, match=r"NaN.* row 1 after 2 tokens"):
        greedy(Table(function), keyed([1, 7]), prompts=[[1], [1]], end=0, max_length=5)
    # After its end nobody looks at a row.
    got = greedy(Table(function), keyed([1, 7, 2]), prompts=[[1]] * 3, end=0, max_length=[5, 1, 5])
    assert [len(one.ids) for one in got] == [5, 1, 5]


def test_an_end_that_the_model_does_not_know():
    with pytest.raises(ValueError, match=r"`end` must be token ids below 3, .* but is 3 instead"):
        greedy(Table(drawn(3)), prompts=[[1]], end=3, max_length=5)


def test_half_precision_is_added_up_in_float32():
    function = drawn(50, spread=0.2)
    [one] = greedy(Table(function, dtype=torch.bfloat16), prompts=[[1]], end=(), max_length=8)
    for place, log in enumerate(one.log_probabilities):
        logits = torch.tensor(function(0, (1, *one.ids[:place]))).bfloat16().double()
        assert log == pytest.approx(logits.log_softmax(-1).max().item(), rel=1e-6)


SOURCES = [[1, 2, 3, 4], [5], [6, 1], [2, 2, 2], [3, 5, 1, 6]]
PROMPTS = [[1], [1, 3, 4], [2], [1], [4, 4]]


def translated(model, order, max_length=8):
    memory = model.encode(Tokens.of([SOURCES[row] for row in order]))
    return greedy(model, memory, prompts=[PROMPTS[row] for row in order], end=0, max_length=max_length)


@pytest.mark.parametrize("kind", ["attention", "one context"])
def test_a_sentence_does_not_depend_on_its_batch(kind):
    model = translator(kind)
    alone = [translated(model, [row])[0] for row in range(5)]
    assert len({tuple(one.ids) for one in alone}) > 1
    assert len({len(one.ids) for one in alone}) > 1, "rows that finish at different times"
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1], [1, 1, 3], [2, 4]):
        for row, one in zip(order, translated(model, order), strict=True):
            assert (one.ids, one.end) == (alone[row].ids, alone[row].end)
            assert one.log_probabilities == pytest.approx(alone[row].log_probabilities, rel=1e-10)


@pytest.mark.parametrize("kind", ["attention", "one context"])
def test_with_a_state_equals_without_one(kind):
    model = translator(kind)
    for row, one in enumerate(translated(model, range(5))):
        memory, ids, logs = model.encode(Tokens.of([SOURCES[row]])), [], []
        while len(ids) <= 8:  # everything is read again for every token
            text = Tokens(torch.tensor([[*PROMPTS[row], *ids]]))
            log, token = model.decode(text, memory)[0, -1].log_softmax(-1).max(-1)
            if token == 0 or len(ids) < 8:
                logs.append(log.item())
            if token == 0 or len(ids) == 8:
                break
            ids.append(int(token))
        assert (one.ids, one.cut) == (ids, token != 0)
        assert one.log_probabilities == pytest.approx(logs, rel=1e-10)


def test_a_model_in_training_mode_is_refused_and_no_gradient_is_kept():
    model = translator("attention")
    memory = model.encode(Tokens.of([[1, 2]]))
    assert memory.states.requires_grad
    [one] = greedy(model, memory, prompts=[[1]], end=0, max_length=3)
    assert all(isinstance(log, float) for log in one.log_probabilities)
    with pytest.raises(ValueError, match=r"`model` must be in evaluation mode.*model\.eval\(\)"):
        greedy(model.train(), memory, prompts=[[1]], end=0, max_length=3)


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


def test_rows_end_at_their_own_maximum_length():
    model, memory = Table(counting_down), keyed([9, 9, 1])
    got = found(model, memory, asked(model, memory, 3, [0, 4, 3]), highest)
    assert [(one.ids, one.end) for one in got] == [([], None), ([2] * 4, None), ([2], 0)]
    assert [len(one.log_probabilities) for one in got] == [0, 4, 2]


def test_chosen_tokens_have_the_log_probabilities_of_the_model():
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
    assert seen == [[0, 1, 2, 3], [3, 1], [3, 1], [1]]  # the last row fills the gap of the first


@pytest.mark.parametrize("name", ["attention", "recurrence", "old", "rotary"])
def test_as_greedy_search_and_sampling(name):
    model, prompt = built(LANGUAGE[name]), [4, 5, 6]
    options = {"end": 2, "max_length": 8, "min_length": 3, "constraints": [NoRepeatNgram(2)]}
    (want,) = greedy(model, prompts=[prompt], **options)
    assert [*stream(model, prompt, most_probable, **options)] == want.ids
    for seed in range(4):
        ((drawn_,),) = sample(model, prompts=[prompt], seed=[seed], top_k=5, **options)
        draw = TokenSampler(SamplingFilters(top_k=5), seed_tensor([seed], torch.device("cpu")))
        assert [*stream(model, prompt, draw, **options)] == drawn_.ids


def test_a_stream_runs_no_step_before_it_is_needed():
    model = Table(drawn(6, seed=1))
    found = stream(model, [1], most_probable, end=(), max_length=5)
    assert model.batches == []
    next(found)
    assert len(model.batches) == 1
    assert len([*found]) == 4


@pytest.mark.parametrize("max_length", [0, 1, 4])
def test_a_stream_ends_at_the_maximum_length(max_length):
    assert len([*stream(Table(drawn(6, seed=2)), [1], most_probable, end=(), max_length=max_length)]) == max_length


def test_an_end_is_not_given():
    ends = Table(lambda key, text: [0.0, 0.0, 9.0 if len(text) > 2 else -9.0, 1.0])
    assert [*stream(ends, [1], most_probable, end=2, max_length=9)] == [3, 3]
