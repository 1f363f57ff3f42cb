"""Constraints and required terms, by themselves and in searches."""

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from queued import Moving
from refusals import assert_named
from tiny import TRANSLATING, built
from writers import Table, drawn, every, keyed

import regard
from regard.decoding.beam import beam
from regard.decoding.constraints import (
    ForbiddenAfter,
    ForbiddenTokens,
    MinLength,
    NoRepeatNgram,
    Prefixes,
    TermAutomaton,
    WithPrefix,
    allocate_beams,
    build_automata,
    check_term_vocabulary,
    check_vocabulary,
)
from regard.tokens import Tokens

INF = float("inf")


def written(count, rows=2):
    return of([[0] * count] * rows)


def of(texts, lengths=None):
    """What is written so far; without lengths all of it."""
    ids = torch.tensor(texts, dtype=torch.long).view(len(texts), -1)
    lengths = torch.full((len(texts),), ids.shape[1]) if lengths is None else torch.tensor(lengths)
    return Prefixes(ids, torch.arange(len(texts)), lengths, torch.zeros_like(lengths))


def test_forbidden_tokens_and_no_others():
    logs = torch.randn(2, 5)
    got = ForbiddenTokens([3, 1])(logs.clone(), written(7))
    assert got[:, [1, 3]].tolist() == [[-INF, -INF]] * 2
    assert torch.equal(got[:, [0, 2, 4]], logs[:, [0, 2, 4]])
    assert torch.equal(ForbiddenTokens([])(logs.clone(), written(0)), logs)


@pytest.mark.parametrize(("count", "forbidden"), [(0, True), (2, True), (3, False), (4, False)])
def test_ends_come_only_after_the_least_number_of_tokens(count, forbidden):
    logs = torch.randn(2, 5)
    got = MinLength(3, [0, 4])(logs.clone(), written(count))
    assert torch.equal(got[:, 1:4], logs[:, 1:4])
    assert bool((got[:, [0, 4]] == -INF).all()) is forbidden
    assert torch.equal(got, logs) is not forbidden


@pytest.mark.parametrize(("call", "parts"), [
    (lambda: ForbiddenTokens([-1]), ["`ids`", "at least 0", "-1"]),
    (lambda: ForbiddenTokens([1.5]), ["`ids`", "1.5"]),
    (lambda: ForbiddenTokens([True]), ["`ids`", "True"]),
    (lambda: ForbiddenTokens("a"), ["`ids`", "token ids", "'a'"]),
    (lambda: ForbiddenTokens([5])(torch.zeros(1, 5), written(0, 1)), ["`ids`", "below 5", "is 5"]),
    (lambda: NoRepeatNgram(0), ["`size`", "at least 1", "is 0"]),
    (lambda: MinLength(-1, [0]), ["`min_length`", "at least 0", "-1"]),
    (lambda: check_vocabulary("end", [1, 9], 4), ["`end`", "below 4", "is 9"]),
])
def test_wrong_constraints_are_refused(call, parts):
    assert_named(call, parts)


@pytest.mark.parametrize("lengths", [[0, 3], [4, 2]])
def test_prefixes_may_differ_in_length(lengths):
    logs = torch.randn(2, 5)
    got = MinLength(3, [0, 4])(logs.clone(), of([[1] * 4] * 2, lengths))
    for row, length in enumerate(lengths):
        assert torch.equal(got[row, 1:4], logs[row, 1:4])
        assert bool((got[row, [0, 4]] == -INF).all()) is (length < 3)


def repeating(text, size, vocabulary):
    """The tokens that would complete a sequence that is in the text."""
    there = {tuple(text[first:first + size]) for first in range(len(text) - size + 1)}
    return {token for token in range(vocabulary) if tuple([*text, token][-size:]) in there and len(text) >= size}


@given(texts=st.integers(0, 9).flatmap(lambda n: st.lists(st.lists(st.integers(0, 2), min_size=n, max_size=n),
                                                          min_size=1, max_size=4)),
       size=st.integers(1, 4), data=st.data())
def test_no_sequence_is_completed_again(texts, size, data):
    lengths = [data.draw(st.integers(0, len(text))) for text in texts]
    logs = torch.randn(len(texts), 4)
    got = NoRepeatNgram(size)(logs.clone(), of(texts, lengths))
    for row, (text, length) in enumerate(zip(texts, lengths, strict=True)):
        want = repeating(text[:length], size, 4)
        assert {token for token in range(4) if got[row, token] == -INF} == want
        others = [token for token in range(4) if token not in want]
        assert torch.equal(got[row, others], logs[row, others])


@given(rows=st.lists(st.tuples(*[st.lists(st.integers(0, 2), max_size=5)] * 2), min_size=1, max_size=4),
       size=st.integers(1, 3))
def test_a_constraint_with_a_prefix_sees_it(rows, size):
    """Rows of (what stands in front, what is written), each twice, in another order than the prompts."""
    order = [number for number in reversed(range(len(rows))) for _ in range(2)]
    texts = [rows[number][1] for number in order]
    filled = [[*text, *[2] * (max(map(len, texts)) - len(text))] for text in texts]
    ids = torch.tensor(filled, dtype=torch.long).view(len(order), -1)
    lengths = torch.tensor([*map(len, texts)])
    state = Prefixes(ids, torch.tensor(order), lengths, torch.zeros_like(lengths))
    logs, before = torch.randn(len(order), 4), [front for front, _ in rows]
    repeats = WithPrefix(NoRepeatNgram(size), before)(logs.clone(), state)
    ends = WithPrefix(MinLength(4, [3]), before)(logs.clone(), state)
    for place, number in enumerate(order):
        whole = [*rows[number][0], *rows[number][1]]
        assert {token for token in range(4) if repeats[place, token] == -INF} == repeating(whole, size, 4)
        assert bool(ends[place, 3] == -INF) is (len(whole) < 4)


IDS = st.lists(st.integers(0, 4), max_size=5)


@given(st.lists(st.tuples(IDS, IDS, st.lists(IDS.filter(bool), max_size=3)), min_size=1, max_size=4),
       st.sets(st.integers(0, 4), max_size=3))
def test_against_a_literal_check(rows, forbidden):
    """Rows of (what stands in front, what is written, sequences), each twice, in another order than the prompts."""
    order = [number for number in reversed(range(len(rows))) for _ in range(2)]
    longest = max(len(written) for _, written, _ in rows)
    ids = torch.tensor([[*rows[number][1], *[3] * (longest - len(rows[number][1]))] for number in order]).long()
    written = Prefixes(ids.view(len(order), longest), torch.tensor(order),
                      torch.tensor([len(rows[number][1]) for number in order]), torch.zeros(len(order)).long())
    rule = WithPrefix(ForbiddenAfter([sequences for *_, sequences in rows], sorted(forbidden)),
                      [before for before, *_ in rows])
    logs = torch.randn(len(order), 5)
    found = rule(logs.clone(), written)
    for place, number in enumerate(order):
        before, mine, sequences = rows[number]
        text = [*before, *mine]
        ends = any(text[len(text) - len(one):] == one for one in sequences if len(one) <= len(text))
        for token in range(5):
            want = -torch.inf if ends and token in forbidden else float(logs[place, token])
            assert float(found[place, token]) == want


def test_what_stands_in_front_counts_only_where_it_is_given():
    logs, none = torch.zeros(1, 4), torch.zeros(1, 0).long()
    written = Prefixes(none, torch.tensor([0]), torch.tensor([0]), torch.tensor([0]))
    assert ForbiddenAfter([[[2]]], [1])(logs.clone(), written).tolist() == [[0, 0, 0, 0]]
    assert WithPrefix(ForbiddenAfter([[[2]]], [1]), [[2]])(logs.clone(), written).tolist() == [[0, -torch.inf, 0, 0]]


def test_an_empty_sequence_is_refused():
    with pytest.raises(ValueError, match="`rows` must be lists of sequences of at least one id"):
        ForbiddenAfter([[[]]], [1])


TERM_IDS = st.lists(st.integers(1, 3), min_size=1, max_size=3)
TERMS = st.lists(st.lists(TERM_IDS, min_size=1, max_size=2), max_size=3)


def appears(ids, text):
    return any(text[first:first + len(ids)] == ids for first in range(len(text)))


@given(terms=TERMS, text=st.lists(st.integers(1, 4), max_size=12))
def test_no_term_is_open_exactly_where_all_appear(terms, text):
    automaton, state = TermAutomaton(terms), 0
    for count, token in enumerate([*text, None]):
        met = [any(appears(ids, text[:count]) for ids in term) for term in terms]
        assert (automaton.needed(state) == 0) is all(met)
        assert (automaton.wanted(state) == []) is all(met)
        assert automaton.needed(state) <= sum(min(map(len, term)) for term, done in zip(terms, met, strict=True)
                                              if not done)
        if token is not None:
            after = automaton.next_state(state, token)
            assert automaton.needed(after) >= automaton.needed(state) - len(terms) * 3
            state = after


@given(terms=TERMS, text=st.lists(st.integers(1, 4), max_size=6))
def test_wanted_tokens_complete_the_terms_in_as_many_tokens_as_needed(terms, text):
    automaton, state = TermAutomaton(terms), 0
    for token in text:
        state = automaton.next_state(state, token)
    while automaton.needed(state):
        nearer = [automaton.next_state(state, token) for token in automaton.wanted(state)]
        best = min(nearer, key=automaton.needed)
        assert automaton.needed(best) < automaton.needed(state)
        state = best


def test_going_on_with_a_term_counts_and_breaking_off_is_forgotten():
    automaton = TermAutomaton([[[1, 2, 3]], [[4]]])
    assert automaton.needed(0) == 4
    state = automaton.next_state(automaton.next_state(0, 1), 2)
    assert (automaton.needed(state), automaton.wanted(state)) == (2, [1, 3, 4])
    broken = automaton.next_state(state, 9)
    assert (automaton.needed(broken), automaton.wanted(broken)) == (4, [1, 4])
    again = automaton.next_state(state, 1)
    assert automaton.needed(again) == 3, "the last token begins it again"


def test_terms_that_overlap_share_tokens():
    automaton, state = TermAutomaton([[[1, 2]], [[2, 3]], [[2]]]), 0
    for token in (1, 2, 3):
        state = automaton.next_state(state, token)
    assert automaton.needed(state) == 0


@pytest.mark.parametrize(("needed", "count", "kept"), [
    ([0, 0, 0, 0], 2, [0, 1]), ([2, 2, 2, 0], 2, [0, 3]), ([2, 2, 1, 1, 0, 0], 4, [0, 2, 4, 5]),
    ([2, 1, 0], 2, [1, 2]), ([1, 1, 1, 0], 9, [0, 1, 2, 3]), ([], 3, []), ([5, 0], 1, [1]),
])
def test_beams_are_divided_among_banks(needed, count, kept):
    assert allocate_beams(needed, count) == kept


@pytest.mark.parametrize(("call", "parts"), [
    (lambda: build_automata([[]], [0], [3, 3]), ["`terms`", "2 in all", "1 list"]),
    (lambda: build_automata([[[]]], [0], [3]), ["`terms`", "at least one id", "[] in row 0"]),
    (lambda: build_automata([[], [[[]]]], [0], [3, 3]), ["`terms`", "[] in row 1"]),
    (lambda: build_automata([[[1, 2]]], [0], [3]), ["`terms`", "alternatives", "1 in row 0"]),
    (lambda: build_automata([["ab"]], [0], [3]), ["`terms`", "'ab' in row 0"]),
    (lambda: build_automata([[[[-1]]]], [0], [3]), ["`terms`", "-1"]),
    (lambda: build_automata([[[[1, 0]]]], [0], [3]), ["`terms`", "not end tokens", "[1, 0] in row 0"]),
    (lambda: build_automata([[[[1, 2]], [[3, 4]]]], [0], [3]),
     ["`terms`", "3 tokens", "4 in row 0", "Raise"]),
    (lambda: check_term_vocabulary([TermAutomaton([[[1], [9]]])], 5), ["`terms`", "below 5", "is 9"]),
])
def test_what_is_no_term(call, parts):
    assert_named(call, parts)


VOCABULARY_IDS = st.lists(st.integers(1, 3), min_size=1, max_size=2)
REQUIRED = st.lists(st.lists(VOCABULARY_IDS, min_size=1, max_size=2), max_size=2)


def appear(terms, text):
    return all(any(text[first:first + len(ids)] == ids for ids in term for first in range(len(text)))
               for term in terms)


@given(seed=st.integers(0, 1000), terms=REQUIRED, penalty=st.sampled_from(["none", "mean", 0.6]))
def test_over_everything_it_is_the_brute_force_of_what_has_the_terms(seed, terms, penalty):
    function, max_length = drawn(4, seed), 4
    if sum(min(map(len, term)) for term in terms) > max_length:
        return
    [got] = beam(Table(function), prompts=[[2]], end=0, max_length=max_length, beams=4 * 3 ** max_length, nbest=20,
                 terms=[terms],
                 length_penalty=penalty)
    want = [one for one in every(function, 0, (2,), [0], max_length, 0, penalty) if appear(terms, one[1])]
    found = [(one.score, one.ids, one.end) for one in got]
    # Terms that overlap fit where there is no room for one after another: such texts may be missing.
    if len({token for term in terms for ids in term for token in ids}) == sum(len(ids) for t in terms for ids in t):
        assert [one[1:] for one in found] == [one[1:] for one in want[:20]]
        assert [one[0] for one in found] == pytest.approx([one[0] for one in want[:20]], rel=1e-10)
    assert found
    assert all(appear(terms, one.ids) for one in got)


@given(seed=st.integers(0, 1000), terms=REQUIRED, beams=st.integers(1, 6), extra=st.integers(0, 4),
       spread=st.sampled_from([1.0, 6.0]))
def test_terms_appear_if_the_maximum_length_allows_it(seed, terms, beams, extra, spread):
    max_length = sum(min(map(len, term)) for term in terms) + extra
    rows = beam(Table(drawn(7, seed, spread=spread)), keyed([0, 1]), prompts=[[2]] * 2, end=0, max_length=max_length,
                beams=beams,
                nbest=beams, terms=[terms, []])
    assert rows[0]
    for one in rows[0]:
        assert appear(terms, one.ids)
        assert len(one.ids) <= max_length
        assert len(one.log_probabilities) == len(one.ids) + (not one.cut)


@given(seed=st.integers(0, 1000), beams=st.integers(1, 5), penalty=st.sampled_from(["none", "mean"]))
def test_rows_without_terms_are_as_ever(seed, beams, penalty):
    options = {"prompts": [[1], [1]], "end": 0, "max_length": 6, "beams": beams, "nbest": beams,
               "length_penalty": penalty}
    model, memory = Table(drawn(5, seed)), keyed([0, 1])
    got = beam(model, memory, terms=[[], [[[3, 4]]]], **options)
    assert got[0] == beam(model, memory, **options)[0]
    assert got[1] != beam(model, memory, terms=[[], []], **options)[1] or appear([[[3, 4]]], got[1][0].ids)


def test_the_text_around_a_term_is_the_models():
    def function(key, text):  # 1 2 3 4 5, then an end; 6 fits nowhere, and least badly in the place of 3
        after = text[-1] % 6 + 1 if text[-1] != 6 else 4
        logits = [-9.0] * 8
        logits[0 if text[-1] == 5 else after] = 3.0
        if text[-1] == 2:
            logits[6] = -4.0
        return logits

    options = {"prompts": [[7]], "end": 0, "max_length": 9, "beams": 4}
    [[one]] = beam(Table(lambda key, text: function(key, text[1:] or (0,))), terms=[[[[6]]]], **options)
    assert one.ids == [1, 2, 6, 4, 5]


def test_alternatives_that_fit_better_are_taken():
    def function(key, text):
        return [2.0 if len(text) > 3 else -3.0, 1.0, 0.0, -5.0, -1.0]

    [[one]] = beam(Table(function), prompts=[[1]], end=0, max_length=6, beams=5, terms=[[[[3, 3]]]])
    assert appear([[[3, 3]]], one.ids)
    [[one]] = beam(Table(function), prompts=[[1]], end=0, max_length=6, beams=5, terms=[[[[3, 3], [2]]]])
    assert 2 in one.ids
    assert 3 not in one.ids


@torch.no_grad()
@pytest.mark.parametrize("kind", ["attention", "seq2seq-attention"])
def test_models_of_every_kind_and_any_batch(kind):
    model, sources = built(TRANSLATING[kind]), [[1, 2, 3, 4], [5], [6, 1]]
    terms = [[[[7, 8]]], [], [[[9], [3, 3]], [[4]]]]

    def searched(order):
        memory = model.encode(Tokens.of([sources[row] for row in order]))
        return beam(model, memory, prompts=[[1]] * len(order), end=0, max_length=8, beams=4, nbest=2,
                    terms=[terms[row] for row in order])

    together = searched([0, 1, 2])
    for order in ([0], [2, 1], [1, 0]):
        for row, got in zip(order, searched(order), strict=True):
            assert [one.ids for one in got] == [one.ids for one in together[row]]
    assert all(appear(terms[row], one.ids) for row in range(3) for one in together[row])


def test_terms_with_groups_and_slots_that_are_filled_again():
    model, keys = Moving(drawn(6, seed=2)), [*range(7)]
    terms = [[[[row % 3 + 1, 4]]] if row else [] for row in range(7)]
    options = {"prompts": [[1]] * 7, "end": 0, "max_length": 6, "beams": 4, "num_beam_groups": 2, "nbest": 3,
               "terms": terms}
    together = beam(model, keyed(keys), **options)
    assert all(appear(terms[row], one.ids) for row in range(7) for one in together[row])
    assert beam(model, keyed(keys), token_budget=60, **options) == together


def test_a_constraint_that_forbids_a_term_truncates():
    [got] = beam(Table(drawn(4)), prompts=[[1]], end=0, max_length=4, beams=3, terms=[[[[2]]]],
                 constraints=[ForbiddenTokens([2])])
    assert all(one.cut for one in got)


def test_a_term_that_the_model_does_not_know():
    assert_named(lambda: beam(Table(drawn(4)), prompts=[[1]], end=0, max_length=4, beams=3, terms=[[[[4]]]]),
                 ["`terms`", "below 4", "is 4"])


def shortest_text(terms, begun):
    """The fewest further tokens with which all terms appear, by trying all texts, the shortest first."""
    tokens = sorted({token for term in terms for ids in term for token in ids})
    length = 0
    while True:
        for more in product(tokens, repeat=length):
            text = [*begun, *more]
            if all(any(appears(ids, text) for ids in term) for term in terms):
                return length
        length += 1


@given(terms=st.lists(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=2), min_size=1, max_size=2), min_size=1,
                      max_size=3), begun=st.lists(st.integers(1, 3), max_size=3))
def test_the_number_of_tokens_needed_is_that_of_the_shortest_text(terms, begun):
    automaton, state = TermAutomaton(terms), 0
    for token in begun:
        state = automaton.next_state(state, token)
    assert automaton.needed(state) == shortest_text(terms, begun)


@pytest.mark.parametrize(("terms", "needed"), [
    ([[[7]], [[7]]], 1), ([[[7, 8]], [[8]]], 2), ([[[7, 8]], [[8, 9]]], 3), ([[[5], [6]], [[6]]], 1),
    ([[[token]] for token in range(3, 12)], 9),
], ids=["twice", "part of another", "overlapping", "an alternative of another", "many"])
def test_terms_that_overlap_or_are_given_twice_need_no_more_tokens(terms, needed):
    assert TermAutomaton(terms).needed(0) == needed
    build_automata([terms], [0], [needed])


def test_a_term_given_twice_fits_into_one_token():
    model = regard.build("gpt-tiny", vocab_size=20).eval()
    (found,), = regard.beam(model, prompts=[[2]], end=1, max_length=1, beams=2, terms=[[[[0]], [[0]]]])
    assert found.ids == [0]
