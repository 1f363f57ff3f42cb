"""Beam search against searches with lists and loops, with groups and without."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import assert_named
from writers import Table, drawn, every, keyed, logs_of, plain_beam, score_of

from regard.decoding.beam import _interleave_groups, beam, total_dtype
from regard.decoding.constraints import ForbiddenTokens, NoRepeatNgram
from regard.decoding.request import Hypothesis
from regard.decoding.sampling import greedy
from regard.decoding.scoring import MeanLengthPenalty, PowerLengthPenalty

INF = math.inf
PENALTIES = st.sampled_from(["none", "mean", 0.6, 1.0, 2.0])


def assert_same(got, want):
    """Hypotheses against (score, ids, end), in this order."""
    assert [(one.ids, one.end) for one in got] == [(ids, end) for _, ids, end in want]
    assert [one.score for one in got] == pytest.approx([score for score, _, _ in want], rel=1e-11, abs=1e-11)


@given(seed=st.integers(0, 10_000), vocabulary=st.integers(1, 4), ends=st.sets(st.integers(0, 3), max_size=2),
       max_length=st.integers(0, 5), penalty=PENALTIES, min_length=st.integers(0, 5), nbest=st.integers(1, 40))
def test_over_everything_it_is_brute_force(seed, vocabulary, ends, max_length, penalty, min_length, nbest):
    ends = {end % vocabulary for end in ends}
    others = vocabulary - len(ends)
    max_length = min(max_length, 4) if others > 3 else max_length
    min_length, beams = min(min_length, max_length) if others else 0, max(nbest, vocabulary * others ** max_length)
    function = drawn(vocabulary, seed)
    [got] = beam(Table(function), keyed([3]), prompts=[[0, 0]], end=ends, max_length=max_length, min_length=min_length,
                 beams=beams,
                 length_penalty=penalty, nbest=nbest)
    assert_same(got, every(function, 3, (0, 0), ends, max_length, min_length, penalty)[:nbest])


@pytest.mark.parametrize("penalty", ["none", "mean", 0.6, 1.5])
@pytest.mark.parametrize("min_length", [0, 2])
def test_brute_force_with_four_tokens(penalty, min_length):
    function = drawn(4, seed=11)
    [got] = beam(Table(function), prompts=[[2]], end=1, max_length=5, min_length=min_length, beams=4 * 3 ** 5,
                 nbest=400,
                 length_penalty=penalty)
    want = every(function, 0, (2,), [1], 5, min_length, penalty)
    assert len(want) == sum(3 ** length for length in range(min_length, 6))
    assert_same(got, want[:400])


@given(seed=st.integers(0, 100_000), vocabulary=st.integers(1, 6), ends=st.sets(st.integers(0, 5), max_size=2),
       limits=st.lists(st.integers(0, 8), min_size=1, max_size=4), beams=st.integers(1, 7), nbest=st.integers(1, 7),
       penalty=PENALTIES, min_length=st.integers(0, 3), forbidden=st.sampled_from([0.0, 0.5]), spread=st.floats(0.1, 4))
def test_stopping_early_finds_what_a_search_to_the_maximum_length_finds(seed, vocabulary, ends, limits, beams, nbest,
                                                                        penalty,
                                                               min_length, forbidden, spread):
    ends, min_length, nbest = {end % vocabulary for end in ends}, min(min_length, *limits, 9), min(nbest, beams)
    function, rows = drawn(vocabulary, seed, forbidden, spread), range(len(limits))
    prompts = [[(row + place) % vocabulary for place in range(row % 3 + 1)] for row in rows]
    got = beam(Table(function), keyed(rows), prompts=prompts, end=ends, max_length=limits, min_length=min_length,
               beams=beams,
               length_penalty=penalty, nbest=nbest)
    assert len(got) == len(limits)
    for row in rows:
        want = plain_beam(function, row, prompts[row], ends, limits[row], beams, min_length, penalty)
        assert_same(got[row], want[:nbest])
        for one in got[row]:
            assert len(one.log_probabilities) == len(one.ids) + (not one.cut)
            assert min_length <= len(one.ids) <= limits[row] or one.cut
            assert math.isfinite(one.score)


@given(seed=st.integers(0, 100_000), vocabulary=st.integers(1, 6), max_length=st.integers(0, 8),
       min_length=st.integers(0, 3),
       ends=st.sets(st.integers(0, 5), max_size=2), forbidden=st.sampled_from([0.0, 0.5]))
def test_one_beam_is_greedy(seed, vocabulary, max_length, min_length, ends, forbidden):
    ends = {end % vocabulary for end in ends}
    options = {"prompts": [[0], [0, 0]], "end": ends, "max_length": max_length,
               "min_length": min(min_length, max_length)}
    model, memory = Table(drawn(vocabulary, seed, forbidden)), keyed([4, 5])
    assert [one for [one] in beam(model, memory, beams=1, **options)] == greedy(model, memory, **options)


@given(seed=st.integers(0, 100_000), beams=st.integers(2, 6), penalty=PENALTIES)
def test_the_best_is_never_worse_than_in_a_shorter_list(seed, beams, penalty):
    model = Table(drawn(5, seed))
    options = {"prompts": [[1]], "end": 0, "max_length": 6, "beams": beams, "length_penalty": penalty}
    [whole] = beam(model, nbest=beams, **options)
    for nbest in range(1, beams):
        assert beam(model, nbest=nbest, **options) == [whole[:nbest]]
    assert whole == sorted(whole, key=lambda one: (one.cut, -one.score))
    assert len({tuple(one.ids) for one in whole}) == len(whole)


def ending_with(probability, length):
    """An end of this probability after `length` tokens, of nearly none at other times; else 1, again and again."""
    def function(key, text):
        here = probability if len(text) - 1 == length else 1e-9
        return [math.log(here), math.log(1 - here)]

    return function


@pytest.mark.parametrize(("penalty", "steps"), [
    # The end has log 0.9, the one live hypothesis log 0.1 and never more.
    ("none", 3),
    # log 0.9 / 3 = −0.035, and the other can at best become log 0.1 / 21 = −0.110: three steps, one for each token.
    ("mean", 3),
    # log 0.9 / (8/6)^4 = −0.033, and the other can at best become log 0.1 / (26/6)^4 = −0.007: it must be followed.
    (4.0, 21),
])
def test_a_row_stops_as_soon_as_nothing_can_win(penalty, steps):
    model = Table(ending_with(0.9, 2))
    [[one]] = beam(model, prompts=[[1]], end=0, max_length=20, beams=1, length_penalty=penalty)
    assert (one.ids, len(model.batches)) == ([1, 1], steps)


def test_a_row_continues_while_something_longer_could_win():
    def function(key, text):  # an end at once, of probability 0.6; or 1 seven times and an end, of 0.4 together
        if len(text) == 1:
            return [math.log(0.6), math.log(0.4)]
        return [60.0, 0.0] if len(text) == 8 else [-60.0, 0.0]

    for penalty, ids, probability, length in (("none", [], 0.6, 1), ("mean", [1] * 7, 0.4, 8)):
        [[one]] = beam(Table(function), prompts=[[1]], end=0, max_length=8, beams=2, length_penalty=penalty)
        assert one.ids == ids
        assert one.score == pytest.approx(math.log(probability) / (length if penalty == "mean" else 1))


def test_rows_that_have_stopped_leave_the_batch():
    def function(key, text):
        return [9.0 if len(text) > key else -9.0, 0.0, -1.0]

    model = Table(function)
    got = beam(model, keyed([2, 5, 1]), prompts=[[1]] * 3, end=0, max_length=9, beams=2)
    assert [len(row[0].ids) for row in got] == [2, 5, 1]
    rows = [rows for rows, _ in model.batches]
    assert rows[0] == 3, "a prompt is read once a row, not once a beam"
    assert rows[1:] == sorted(rows[1:], reverse=True)
    assert rows[-1] == 2


def test_an_end_at_once_and_a_maximum_length_of_0():
    model = Table(lambda key, text: [1.0, 0.0, 0.0])
    for max_length in (0, 5):
        [[one]] = beam(model, prompts=[[1]], end=0, max_length=max_length, beams=3)
        assert (one.ids, one.end, len(one.log_probabilities)) == ([], 0, 1)
    [both] = beam(model, prompts=[[1]], end=0, max_length=0, beams=3, nbest=3)
    assert [(one.ids, one.end) for one in both] == [([], 0)], "what has ended is not listed as cut too"


def test_hypotheses_without_an_end_are_truncated():
    function = drawn(3, seed=5)
    got = beam(Table(function), prompts=[[1]], end=(), max_length=3, beams=40, nbest=5, length_penalty="mean")
    assert_same(got[0], every(function, 0, (1,), (), 3, 0, "mean")[:5])
    assert all(one.cut and len(one.ids) == len(one.log_probabilities) == 3 for one in got[0])


def test_truncated_hypotheses_come_after_finished_ones():
    # An end is so improbable that it never comes among the best two, but for the last step, where it is second.
    def function(key, text):
        return [-1.0 if len(text) == 4 else -50.0, 0.0, -0.1 if len(text) < 4 else -60.0]

    [row] = beam(Table(function), prompts=[[1]], end=0, max_length=3, beams=4, nbest=4)
    kinds = [one.cut for one in row]
    assert kinds == sorted(kinds)
    assert True in kinds
    assert False in kinds
    assert row[kinds.index(True)].score > row[0].score, "although its score is higher"


def test_more_beams_than_tokens():
    function = drawn(2, seed=1)
    [got] = beam(Table(function), prompts=[[1]], end=0, max_length=6, beams=50, nbest=50)
    assert_same(got, every(function, 0, (1,), [0], 6, 0, "none"))
    assert len(got) == 7


def test_a_vocabulary_of_end_tokens_only():
    [got] = beam(Table(lambda key, text: [0.0, 1.0]), prompts=[[1]], end=(0, 1), max_length=3, beams=2, nbest=2)
    assert [(one.ids, one.end) for one in got] == [([], 1), ([], 0)]


def test_equal_hypotheses_are_ordered_by_beam_and_then_by_token():
    flat = Table(lambda key, text: [0.0] * 40)  # wide enough for topk to lose the order
    [got] = beam(flat, prompts=[[1]], end=(), max_length=2, beams=3, nbest=3)
    assert [one.ids for one in got] == [[0, 0], [0, 1], [0, 2]]
    [got] = beam(flat, prompts=[[1]], end=39, max_length=1, beams=3, nbest=3, min_length=1,
                 constraints=[ForbiddenTokens(range(5))])
    assert [one.ids for one in got] == [[5], [6], [7]]
    # The best three among equals are the lowest tokens, and the end is none of them.
    assert all(one.cut for one in got)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_in_low_precision_do_not_depend_on_the_batch(dtype):
    def function(key, text):  # few different numbers
        return [round(x) / 4 for x in drawn(30, seed=8)(key, text)]

    model = Table(function, dtype=dtype)
    options = {"end": 0, "max_length": 4, "beams": 4, "nbest": 4}
    together = beam(model, keyed(range(6)), prompts=[[1]] * 6, **options)
    for row in range(6):
        assert beam(model, keyed([row]), prompts=[[1]], **options) == [together[row]]


def test_what_has_no_probability_is_no_result_and_no_nan():
    def function(key, text):
        return [-INF, 0.0, -INF, -INF]

    [got] = beam(Table(function), prompts=[[1]], end=0, max_length=3, beams=3, nbest=3)
    assert [(one.ids, one.end, one.score) for one in got] == [([1, 1, 1], None, 0.0)]


def test_hypotheses_are_truncated_where_constraints_leave_no_token():
    model = Table(lambda key, text: [0.0, 1.0 if len(text) < 3 else -INF, 0.5 if len(text) < 3 else -INF])
    [got] = beam(model, prompts=[[1]], end=0, max_length=9, beams=2, nbest=2, constraints=[ForbiddenTokens([0])])
    assert [(one.ids, one.cut) for one in got] == [([1, 1], True), ([1, 2], True)]


def test_a_constraint_sees_the_tokens_and_the_prompt_of_each_hypothesis():
    function, prompts, seen = drawn(5, seed=9), [[1], [2, 3], [4]], set()

    def rule(logs, written):
        for row, ids, got in zip(written.rows.tolist(), written.ids.tolist(), logs.tolist(), strict=True):
            assert got[1:] == pytest.approx(logs_of(function, row, (*prompts[row], *ids))[1:], rel=1e-10)
            seen.add((row, len(ids)))
        return logs

    beam(Table(function), keyed(range(3)), prompts=prompts, end=0, max_length=[5, 1, 4], beams=3, constraints=[rule],
         min_length=1)
    assert seen >= {(0, 0), (0, 2), (1, 0), (1, 1), (2, 2)}


def test_a_constraint_may_depend_on_the_tokens_so_far():
    def no_token_twice(logs, written):
        return logs.scatter(-1, written.ids, -INF)

    function = drawn(4, seed=2)
    [got] = beam(Table(function), prompts=[[1]], end=0, max_length=4, beams=100, nbest=100,
                 constraints=[no_token_twice])
    want = [one for one in every(function, 0, (1,), [0], 3, 0, "none") if len(set(one[1])) == len(one[1])]
    assert_same(got, want)
    assert len(got) == 1 + 3 + 6 + 6


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("penalty", ["none", "mean"])
def test_no_ngram_is_repeated(size, penalty):
    function = drawn(3, seed=6)
    [got] = beam(Table(function), prompts=[[1]], end=0, max_length=6, beams=200, nbest=200,
                 constraints=[NoRepeatNgram(size)],
                 length_penalty=penalty)
    def repeats(ids):
        there = [tuple(ids[first:first + size]) for first in range(len(ids) - size + 1)]
        return len(set(there)) < len(there)

    want = [one for one in every(function, 0, (1,), [0], 6, 0, penalty) if not repeats(one[1])]
    assert_same(got, want)
    assert len(got) == {1: 5, 2: 25, 3: 89}[size]


def test_no_rows_at_all():
    assert beam(Table(drawn(3)), prompts=[], end=0, max_length=3, beams=2) == []


@pytest.mark.parametrize("bad", [math.nan, -INF])
def test_a_model_without_numbers_is_named_with_its_row(bad):
    def function(key, text):
        return [bad] * 3 if key == 7 and len(text) == 3 else [-9.0, 1.0, 0.0]

    with pytest.raises(ValueError, match=r"NaN.* row 1 after 2 tokens"):
        beam(Table(function), keyed([1, 7]), prompts=[[1], [1]], end=0, max_length=5, beams=2)
    with pytest.raises(ValueError, match="row 2 after 2 tokens"):  # the others have left
        beam(Table(function), keyed([1, 2, 7]), prompts=[[1]] * 3, end=0, max_length=[1, 1, 5], beams=2)


def test_a_length_penalty_may_be_an_object():
    model, options = Table(drawn(4)), {"prompts": [[1]], "end": 0, "max_length": 5, "beams": 4, "nbest": 3}
    for penalty, same in (("mean", MeanLengthPenalty()), (0.8, PowerLengthPenalty(0.8))):
        assert beam(model, length_penalty=penalty, **options) == beam(model, length_penalty=same, **options)


@pytest.mark.parametrize(("arguments", "parts"), [
    ({"beams": 0}, ["`beams`", "at least 1", "is 0"]), ({"beams": 1.5}, ["`beams`", "1.5"]),
    ({"nbest": 0}, ["`nbest`", "at least 1", "is 0"]), ({"nbest": 3}, ["`nbest`", "beams, 2", "is 3"]),
    ({"length_penalty": "long"}, ["`length_penalty`", '"none"', "long"]), ({"end": 3}, ["`end`", "below 3", "is 3"]),
    ({"max_length": -1}, ["`max_length`"]), ({"prompts": [[]]}, ["`prompts`", "row 0"]),
    ({"constraints": [ForbiddenTokens([8])]}, ["`ids`", "below 3", "is 8"]),
])
def test_what_is_refused(arguments, parts):
    options = {"prompts": [[1]], "end": 0, "max_length": 3, "beams": 2} | arguments
    assert_named(lambda: beam(Table(drawn(3)), **options), parts)


def test_log_probabilities_are_added_up_in_float64_where_there_is_one():
    assert total_dtype(torch.device("cpu")) == total_dtype(torch.device("cuda")) == torch.float64
    assert total_dtype(torch.device("mps")) == torch.float32
    model = Table(lambda key, text: [-20.0, 0.0, -17.0], dtype=torch.float32)
    [[one]] = beam(model, prompts=[[1]], end=0, max_length=40, beams=1)
    assert one.score == pytest.approx(math.fsum(one.log_probabilities), rel=1e-15)


def plain_groups(function, key, prompt, ends, max_length, beams, groups, strength, penalty, places):
    """A search in groups that never stops before it must: for each group (cut, −score, ids, end), the best first."""
    each = beams // groups
    live = [[(0.0, [])] for _ in range(groups)]
    pools = [[] for _ in range(groups)]
    for t in range(max_length + 1):
        taken = {}
        for group in range(groups):
            candidates = []
            for parent, (total, ids) in enumerate(live[group]):
                for token, log in enumerate(logs_of(function, key, (*prompt, *ids))):
                    if log > -INF:
                        rank = total + (log - strength * taken.get(token, 0))
                        candidates.append((-rank, parent, token, total + log))
            candidates.sort()
            ended = set()
            for _, parent, token, total in candidates[:each]:
                if token in ends:
                    ended.add(parent)
                    pools[group].append((False, -score_of(total, t + 1, penalty), live[group][parent][1], token))
            following = [one for one in candidates if one[2] not in ends][:each]
            if live[group] and (t == max_length or not following):
                pools[group] += [(True, -score_of(total, t, penalty), ids, None)
                                 for parent, (total, ids) in enumerate(live[group]) if parent not in ended]
            live[group] = [(total, [*live[group][parent][1], token]) for _, parent, token, total in following]
            for _, _, token, _ in following:
                taken[token] = taken.get(token, 0) + 1
    return [sorted(pool, key=lambda one: one[:2])[:places] for pool in pools]


def mixed(pools, nbest):
    """The best of each group, then the second of each."""
    found = []
    for rank in range(max(map(len, pools))):
        for one in sorted((pool[rank] for pool in pools if rank < len(pool)), key=lambda one: one[1]):
            if all(one[2:] != other[2:] for other in found):
                found.append(one)
    return sorted(found, key=lambda one: one[0])[:nbest]


@given(seed=st.integers(0, 10_000), vocabulary=st.integers(2, 6), groups=st.integers(1, 3), each=st.integers(1, 3),
       strength=st.sampled_from([0.0, 0.37, 2.1]), penalty=st.sampled_from(["none", "mean", 0.6]),
       max_length=st.integers(0, 6), nbest=st.integers(1, 9), forbidden=st.sampled_from([0.0, 0.4]))
def test_it_is_the_plain_search_in_groups(seed, vocabulary, groups, each, strength, penalty, max_length, nbest,
                                          forbidden):
    assert_plain(drawn(vocabulary, seed, forbidden), groups, groups * each, strength, penalty, max_length,
                 min(nbest, groups * each))


@pytest.mark.parametrize("penalty", ["none", "mean"])
@pytest.mark.parametrize("nbest", [1, 2, 4])
def test_no_group_stops_before_the_others(penalty, nbest):
    for seed in range(12):
        assert_plain(drawn(5, seed, spread=1.5), 2, 4, 0.8, penalty, 7, nbest)


def assert_plain(function, groups, beams, strength, penalty, max_length, nbest):
    rows = beam(Table(function), keyed([0, 1]), prompts=[[1], [1]], end=0, max_length=max_length, beams=beams,
                num_beam_groups=groups,
                diversity_penalty=strength, length_penalty=penalty, nbest=nbest)
    for key, got in enumerate(rows):
        want = mixed(plain_groups(function, key, (1,), {0}, max_length, beams, groups, strength, penalty,
                                  -(-nbest // groups)), nbest)
        assert [(one.ids, one.end) for one in got] == [one[2:] for one in want]
        assert [-one.score for one in got] == pytest.approx([one[1] for one in want], rel=1e-10, abs=1e-12)


def test_the_best_of_each_group_differ_where_beams_do_not():
    def function(key, text):  # the first token decides little, and all that follows is one way
        if len(text) == 1:
            return [-30.0, 3.0, 2.9, 2.8, -30.0]
        return [5.0 if len(text) > 3 else -30.0, 3.0, 0.0, 0.0, 2.0]

    options = {"prompts": [[1]], "end": 0, "max_length": 6, "beams": 3, "nbest": 3}
    [plain] = beam(Table(function), **options)
    [apart] = beam(Table(function), num_beam_groups=3, diversity_penalty=2.0, **options)
    assert len({one.ids[0] for one in apart}) == 3
    assert apart[0] == plain[0]
    assert [one.score for one in apart] == sorted((one.score for one in apart), reverse=True)


def test_groups_without_diversity_all_find_the_same_and_none_is_given_twice():
    model, options = Table(drawn(5, seed=4)), {"prompts": [[1]], "end": 0, "max_length": 5, "nbest": 2}
    [both] = beam(model, beams=4, num_beam_groups=2, diversity_penalty=0.0, **options)
    [one] = beam(model, beams=2, **options)
    assert both == one[:1], "each group is asked for one, and finds the same"


@pytest.mark.parametrize("penalty", [1e6, 1e38, 1e300])
def test_a_penalty_beyond_single_precision_is_a_large_one(penalty):
    model, options = Table(drawn(6, seed=4), dtype=torch.float32), {"prompts": [[1]], "end": 0, "max_length": 4}
    [found] = beam(model, beams=3, nbest=3, num_beam_groups=3, diversity_penalty=penalty, **options)
    [want] = beam(model, beams=3, nbest=3, num_beam_groups=3, diversity_penalty=1000.0, **options)
    assert [one.ids for one in found] == [one.ids for one in want]
    assert len(found) == 3


@pytest.mark.parametrize(("options", "parts"), [
    ({"num_beam_groups": 2, "beams": 3}, ["`num_beam_groups`", "beams, 3", "is 2"]),
    ({"num_beam_groups": 0}, ["`num_beam_groups`", "at least 1"]),
    ({"diversity_penalty": -1}, ["`diversity_penalty`", "at least 0", "-1"]),
    ({"diversity_penalty": math.nan}, ["`diversity_penalty`", "nan"]),
    ({"diversity_penalty": "a"}, ["`diversity_penalty`", "'a'"]),
])
def test_wrong_groups_are_refused(options, parts):
    assert_named(lambda: beam(Table(drawn(3)), **{"prompts": [[1]], "end": 0, "max_length": 3, "beams": 4} | options),
                 parts)


def test_a_text_of_several_groups_keeps_its_first_place():
    """The second group finds what is the second best of the first group, as its best."""
    first = [Hypothesis([5], [-1.0], end=1, score=-1.0), Hypothesis([6], [-3.0], end=1, score=-3.0)]
    second = [Hypothesis([7], [-2.0], end=1, score=-2.0), Hypothesis([5], [-1.0], end=1, score=-1.0)]
    assert [one.ids for one in _interleave_groups([first, second])] == [[5], [7], [6]]
