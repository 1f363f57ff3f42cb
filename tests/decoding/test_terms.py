"""Terms: an automaton that knows what is open, against reading the whole text again; and how places are shared out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import assert_named

from regard.decoding.constraints import TermAutomaton, allocate_beams, build_automata, check_term_vocabulary

IDS = st.lists(st.integers(1, 3), min_size=1, max_size=3)
TERMS = st.lists(st.lists(IDS, min_size=1, max_size=2), max_size=3)


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
def test_what_is_wanted_leads_there_in_as_many_tokens_as_are_needed(terms, text):
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
def test_banks_share_the_places(needed, count, kept):
    assert allocate_beams(needed, count) == kept


@pytest.mark.parametrize(("call", "parts"), [
    (lambda: build_automata([[]], [0], [3, 3]), ["`terms`", "each of the 2 rows", "1 of them"]),
    (lambda: build_automata([[[]]], [0], [3]), ["`terms`", "at least one id", "[] in row 0"]),
    (lambda: build_automata([[], [[[]]]], [0], [3, 3]), ["`terms`", "[] in row 1"]),
    (lambda: build_automata([[[1, 2]]], [0], [3]), ["`terms`", "alternatives", "1 in row 0"]),
    (lambda: build_automata([["ab"]], [0], [3]), ["`terms`", "'ab' in row 0"]),
    (lambda: build_automata([[[[-1]]]], [0], [3]), ["`terms`", "-1"]),
    (lambda: build_automata([[[[1, 0]]]], [0], [3]), ["`terms`", "no end", "[1, 0] in row 0"]),
    (lambda: build_automata([[[[1, 2]], [[3, 4]]]], [0], [3]),
     ["`terms`", "maximum length of 3", "4 tokens in row 0", "Raise"]),
    (lambda: check_term_vocabulary([TermAutomaton([[[1], [9]]])], 5), ["`terms`", "below 5", "is 9"]),
])
def test_what_is_no_term(call, parts):
    assert_named(call, parts)
