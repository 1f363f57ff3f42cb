"""Roles of heads against the reference, and a head that is set to zero against a layer without it."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.attention.layer import Attention, BasicAttention
from regard.attention.look import Look
from regard.attention.mask import Causal, Padding, Window
from regard.inspection.heads import (
    ROLE_NAMES,
    ROLES,
    AttentionTokens,
    RoleScores,
    batch_places,
    main_role,
    role_places,
    strongest_role,
    visible_keys,
    zeroed_head,
)
from regard.reference import statistics

ALPHABET = st.sampled_from("abc.")


@st.composite
def batches(draw, kind):
    """Sequences of few different tokens, so that many are the same."""
    sequences = []
    for _ in range(draw(st.integers(1, 3))):
        keys = draw(st.lists(ALPHABET, min_size=1, max_size=6))
        queries = keys if kind == "self" else draw(st.lists(ALPHABET, min_size=1, max_size=6))
        links = draw(st.frozensets(st.tuples(st.integers(0, len(queries) - 1), st.integers(0, len(keys) - 1))))
        sequences.append(AttentionTokens(queries, keys, [key == "." for key in keys], links))
    return sequences


@pytest.mark.parametrize(("kind", "mask"), [("self", None), ("self", Causal()), ("self", Causal() & Window(1, 0)),
                                            ("cross", None)])
@given(data=st.data())
def test_scores_are_those_of_the_reference(kind, mask, data):
    sequences = data.draw(batches(kind))
    B, H = len(sequences), 2
    n, N = (max(map(len, sides)) for sides in zip(*((one.queries, one.keys) for one in sequences), strict=True))
    padding = Padding(torch.tensor([len(one.keys) for one in sequences]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    query, key = (torch.randn(B, H, count, 4, generator=generator, dtype=torch.float64) for count in (n, N))
    whole = padding if mask is None else mask & padding
    look = Look(query, key, mask=whole)
    scores = RoleScores()
    for rows in (range(0, n), ) if kind == "self" else (range(0, 1), range(1, n)):  # a decoder may read step by step
        part = Look(query[:, :, rows], key, mask=whole)
        places = {role: given[:, rows] for role, given in batch_places(sequences, kind).items()}
        scores.add(part.weights(), places, visible_keys(part))
    weights, visible = look.weights().numpy(), visible_keys(look).numpy()
    means, even = scores.means(), scores.even()
    for role in ROLES[kind]:
        name = "copied" if role == "same" and kind == "cross" else role
        for head in range(H):
            cut = [slice(len(one.queries)) for one in sequences], [slice(len(one.keys)) for one in sequences]
            want, want_even, count = statistics.role_score(
                name, [weights[b, head][rows, columns] for b, (rows, columns) in enumerate(zip(*cut, strict=True))],
                [visible[b][rows, columns] for b, (rows, columns) in enumerate(zip(*cut, strict=True))],
                *([getattr(one, part) for one in sequences] for part in ("queries", "keys", "separators", "links")))
            assert scores.rows[role] == count
            assert (role in means) == (count > 0)
            if count:
                assert float(means[role][head]) == pytest.approx(want, rel=1e-12, abs=1e-15)
                assert even[role] == pytest.approx(want_even, rel=1e-12)


def test_places_by_hand():
    tokens = AttentionTokens(list("abab."), list("abab."), [False] * 4 + [True])
    found = {role: {(int(i), int(j)) for i, j in places.nonzero()}
             for role, places in role_places(tokens, "self").items()}
    assert found["previous"] == {(1, 0), (2, 1), (3, 2), (4, 3)}
    assert found["same"] == {(0, 2), (2, 0), (1, 3), (3, 1)}
    assert found["after_same"] == {(0, 3), (2, 1), (1, 4), (3, 2)}
    assert found["separators"] == {(i, 4) for i in range(5)}
    crossed = AttentionTokens(list("xy"), list("abcde"), [False] * 5, frozenset({(1, 3)}))
    places = role_places(crossed, "cross")
    assert places["in_order"].int().tolist() == [[1, 1, 0, 0, 0], [0, 0, 0, 1, 1]]
    assert places["gold"].nonzero().tolist() == [[1, 3]]
    assert set(ROLE_NAMES) == {role for roles in ROLES.values() for role in roles}
    with pytest.raises(ValueError, match="2 queries and 5 keys"):
        role_places(crossed, "self")


def test_the_only_key_is_no_choice():
    """The first token of a causal map attends to itself, whatever the head does."""
    sequences = [AttentionTokens(["a", "b"], ["a", "b"])]
    look = Look(torch.zeros(1, 1, 2, 1), torch.zeros(1, 1, 2, 1), mask=Causal())
    scores = RoleScores()
    scores.add(look.weights(), batch_places(sequences, "self"), visible_keys(look))
    assert scores.rows["itself"] == 1
    assert float(scores.means()["itself"]) == 0.5
    assert "next" not in scores.means()


def test_a_role_needs_half_of_the_weight_and_twice_that_of_even_weights():
    assert main_role({"first": 0.9, "previous": 0.95}, {"first": 0.1, "previous": 0.5}) == "first"
    assert main_role({"first": 0.49}, {"first": 0.1}) is None
    assert main_role({}, {}) is None
    scores, even = {"in_order": 0.64, "gold": 0.6}, {"in_order": 0.24, "gold": 0.09}  # in_order has three places
    assert main_role(scores, even) == strongest_role(scores, even) == "gold"
    assert strongest_role({"first": 0.2, "next": 0.1}, {"first": 0.1, "next": 0.1}) == "first"


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("head", [0, 2])
def test_a_zeroed_head_is_one_whose_output_weights_are_zero(head, gate):
    layer = Attention(12, heads=3, key_heads=1, gate=gate).double()
    x, context = torch.randn(2, 5, 12, dtype=torch.float64), torch.randn(2, 4, 12, dtype=torch.float64)
    other = copy.deepcopy(layer)
    with torch.no_grad():
        other.output.weight[:, 4 * head:4 * head + 4] = 0.0
    before = layer(x, context)
    with zeroed_head(layer, head):
        torch.testing.assert_close(layer(x, context), other(x, context), rtol=1e-12, atol=1e-12)
        step, _ = layer.step(x[:, :1], layer.remember(context))
        torch.testing.assert_close(step, other(x, context)[:, :1], rtol=1e-12, atol=1e-12)
        assert not torch.equal(layer(x, context), before)
    assert torch.equal(layer(x, context), before)
    with pytest.raises(ValueError, match=r"`head` .* from 0 to 2"), zeroed_head(layer, 3):
        pass


def test_a_layer_with_one_head_gives_zeros_without_it():
    layer = BasicAttention(6)
    with zeroed_head(layer, 0):
        assert not layer(torch.randn(1, 3, 6)).any()
    assert np.any(layer(torch.randn(1, 3, 6)).detach().numpy())
