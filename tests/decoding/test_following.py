"""What does not follow on sequences, against a literal check of every row and token."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.decoding.constraints import ForbiddenAfter, Prefixes, WithPrefix

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
    with pytest.raises(ValueError, match="`rows` must be sequences of at least one id"):
        ForbiddenAfter([[[]]], [1])
