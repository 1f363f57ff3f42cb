"""Diverse beams: as a plain computation has them, and apart from each other."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import assert_named
from writers import Table, drawn, keyed, logs_of, score_of

from regard.decoding.beam import beam

INF = math.inf


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


@pytest.mark.parametrize(("options", "parts"), [
    ({"num_beam_groups": 2, "beams": 3}, ["`num_beam_groups`", "divides the 3 beams", "is 2"]),
    ({"num_beam_groups": 0}, ["`num_beam_groups`", "at least 1"]),
    ({"diversity_penalty": -1}, ["`diversity_penalty`", "at least 0", "-1"]),
    ({"diversity_penalty": math.nan}, ["`diversity_penalty`", "nan"]),
    ({"diversity_penalty": "a"}, ["`diversity_penalty`", "'a'"]),
])
def test_what_is_refused(options, parts):
    assert_named(lambda: beam(Table(drawn(3)), **{"prompts": [[1]], "end": 0, "max_length": 3, "beams": 4} | options),
                 parts)
