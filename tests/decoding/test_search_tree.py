"""The tree of a beam search: the same results, and in it what a search by hand considers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import assert_named
from writers import Table, drawn, keyed, logs_of

from regard.decoding.beam import BeamSearch, beam
from regard.decoding.request import SearchRequest
from regard.decoding.scheduler import run_search
from regard.decoding.scoring import as_length_penalty
from regard.decoding.tree import TreeRecorder, beam_tree

START, END = 0, 1


def options(**changes):
    return {"prompts": [[START]], "end": END, "max_length": 6, "beams": 3, "nbest": 3,
            "length_penalty": "mean"} | changes


def paths(tree):
    """The tokens of each branch up to it."""
    found = []
    for branch in tree.branches:
        found.append([*(found[branch.parent] if branch.parent >= 0 else []), branch.token])
    return found


def assert_whole(tree, function, key, prompt):
    """Every branch stands behind its parent, once, with the model's own numbers."""
    every = paths(tree)
    assert len({tuple(path) for path in every}) == len(every)
    for place, (branch, path) in enumerate(zip(tree.branches, every, strict=True)):
        assert branch.parent < place
        assert not (branch.ended and branch.kept)
        logs = [logs_of(function, key, (*prompt, *path[:count]))[token] for count, token in enumerate(path)]
        assert branch.log_probability == pytest.approx(logs[-1], abs=1e-9)
        assert branch.total == pytest.approx(sum(logs), abs=1e-9)
        if branch.parent >= 0:
            assert not tree.branches[branch.parent].ended


@given(seed=st.integers(0, 10_000), vocabulary=st.integers(2, 7), beams=st.integers(1, 5), max_length=st.integers(0, 6),
       penalty=st.sampled_from(["none", "mean", 0.6]))
def test_results_are_those_of_the_search_and_stand_in_the_tree(seed, vocabulary, beams, max_length, penalty):
    function = drawn(vocabulary, seed)
    asked = options(prompts=[[START], [START, 0]], beams=beams, nbest=beams, max_length=max_length,
                    length_penalty=penalty)
    want = beam(Table(function), keyed([3, 4]), **asked)
    got = beam_tree(Table(function), keyed([3, 4]), **asked)
    assert [found for found, _ in got] == want
    for row, (found, tree) in enumerate(got):
        assert_whole(tree, function, row + 3, asked["prompts"][row])
        every, parents = paths(tree), {branch.parent for branch in tree.branches}
        deepest = max(map(len, every), default=0)
        for place, branch in enumerate(tree.branches):
            assert branch.kept or place not in parents
            assert not branch.kept or len(every[place]) < deepest  # nobody goes on from the last turn
        assert [every[place] for place in tree.best] == [[*one.ids, *([] if one.cut else [one.end])] for one in found
                                                        if one.ids or not one.cut]
        assert [tree.branches[place].ended for place in tree.best] == [not one.cut for one in found
                                                                      if one.ids or not one.cut]
        assert [tree.branches[place].score for place in tree.best] == [one.score for one in found
                                                                      if one.ids or not one.cut]
        for place, branch in enumerate(tree.branches):
            if branch.ended:
                length = len(every[place])
                divisor = {"none": 1.0, "mean": length, 0.6: ((5 + length) / 6) ** 0.6}[penalty]
                assert branch.score == pytest.approx(branch.total / divisor, abs=1e-9)
            else:
                assert branch.score is None or place in tree.best


@pytest.mark.parametrize("seed", range(5))
def test_kept_branches_are_the_best_of_each_step(seed):
    function, beams = drawn(6, seed), 3
    [(_, tree)] = beam_tree(Table(function), keyed([0]), **options(beams=beams))
    every = paths(tree)
    live, count = [((), 0.0)], 0
    while True:
        kept = [tuple(path) for path, branch in zip(every, tree.branches, strict=True)
                if branch.kept and len(path) == count + 1]
        if not kept:
            break
        ways = [((*path, token), total + log) for path, total in live
                for token, log in enumerate(logs_of(function, 0, (START, *path)))]
        ways.sort(key=lambda way: -way[1])
        best = [way for way in ways if way[0][-1] != END][:beams]
        assert sorted(kept) == sorted(path for path, _ in best)
        ended = {tuple(path) for path, branch in zip(every, tree.branches, strict=True)
                 if branch.ended and len(path) == count + 1}
        assert {path for path, _ in ways[:beams] if path[-1] == END} == ended
        live, count = best, count + 1
    assert count > 1


def test_dropped_ones_are_there_too():
    [(_, tree)] = beam_tree(Table(drawn(8, 3)), keyed([0]), **options(beams=2, nbest=1))
    dropped = [branch for branch in tree.branches if not branch.kept and not branch.ended]
    assert len(dropped) >= 4
    parents = {branch.parent for branch in tree.branches}
    assert all(place not in parents for place, branch in enumerate(tree.branches) if branch in dropped)


def test_a_tree_has_no_more_branches_than_it_may_and_says_so():
    model, asked = Table(drawn(8, 3)), options(beams=4, nbest=2, max_length=6)
    [(found, whole)] = beam_tree(model, keyed([0]), **asked)
    [(same, small)] = beam_tree(model, keyed([0]), max_branches=5, **asked)
    assert same == found
    assert len(small.branches) + small.left_out == len(whole.branches)
    assert whole.left_out == 0
    assert small.branches[:5] == tuple(branch._replace(kept=small.branches[i].kept)
                                       for i, branch in enumerate(whole.branches[:5]))
    assert len(small.branches) <= 5 + sum(len(one.log_probabilities) for one in found)
    assert [paths(small)[place] for place in small.best] == [paths(whole)[place] for place in whole.best]


@pytest.mark.parametrize("groups", [1, 2])
def test_a_recorder_stands_in_for_any_beam_search(groups):
    function = drawn(6, 1)
    request = SearchRequest.of(Table(function), keyed([2]), [[START]], END, 5, 0, ())
    search = BeamSearch(request, 4, as_length_penalty("mean"), 4, groups, 0.7)
    recorder = TreeRecorder(search)
    assert (recorder.width, recorder.needs_cross) == (4, False)
    assert run_search(Table(function), keyed([2]), request, recorder) == run_search(Table(function), keyed([2]),
                                                                                    request, search)
    assert_whole(recorder.tree(0), function, 2, (START,))


def test_a_forbidden_continuation_is_no_branch():
    [(_, tree)] = beam_tree(Table(drawn(5, 9, forbidden=0.6)), keyed([0]), **options())
    assert all(math.isfinite(branch.total) for branch in tree.branches)


@pytest.mark.parametrize(("changes", "parts"), [
    ({"beams": 0}, ["`beams`", "at least 1"]),
    ({"max_branches": 0}, ["`max_branches`", "at least 1"]),
    ({"nbest": 9}, ["`nbest`", "beams, 3"]),
])
def test_wrong_sizes_are_named(changes, parts):
    assert_named(lambda: beam_tree(Table(drawn(5)), keyed([0]), **options(**changes)), parts)
