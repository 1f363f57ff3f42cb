"""Families of rows that look at one context: the same as a context for each of them, without a copy of it."""

import pytest
import torch
from problems import assert_close, normal

import regard
from regard.attention.cache import fold_rows, unfold_rows
from regard.mixer import RowGroups, row_indices

WIDTH, SIZE, LENGTHS = 4, 3, torch.tensor([5, 2, 4])
KINDS = ("attention", "grouped", "additive", "basic", "plain")


def make(kind):
    """A layer with random weights, in float64."""
    options = {"grouped": {"key_heads": 1}, "additive": {"score": "additive", "normalize": "relu_sum"}}.get(kind, {})
    if kind in ("basic", "plain"):
        layer = {"basic": regard.BasicAttention, "plain": regard.PlainAttention}[kind](WIDTH)
    else:
        layer = regard.Attention(WIDTH, heads=2, **options)
    layer = layer.double()
    for i, parameter in enumerate(layer.parameters()):
        parameter.data = normal(*parameter.shape, seed=100 + i)
    return layer


def begun(layer, lengths=LENGTHS):
    """A cache of one context a family, and one with a context for each row."""
    alone = layer.remember(normal(3, 5, WIDTH, seed=1), lengths)
    rows = torch.arange(3).repeat_interleave(SIZE)
    return alone.pick(RowGroups(rows, SIZE, 1)), alone.pick(rows)


def asked(layer, cache, count=2, seed=5):
    """What the rows of a cache see."""
    return layer.step(normal(len(cache.key) * cache.rows_per_context, count, WIDTH, seed=seed), cache)[0]


def siblings(parents, families=None):
    """Rows in families: which of its siblings each continues."""
    kept = range(len(parents)) if families is None else families
    rows = [family * SIZE + parent for family, row in zip(kept, parents, strict=True) for parent in row]
    return RowGroups(torch.tensor(rows), SIZE, SIZE, None if families is None else torch.tensor(families))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lengths", [LENGTHS, None])
def test_a_family_sees_what_each_of_its_rows_would(kind, lengths):
    layer = make(kind)
    shared, apart = begun(layer, lengths)
    assert (len(shared.key), shared.rows_per_context, len(apart.key), apart.rows_per_context) == (3, SIZE, 9, 1)
    for count in (1, 2):
        assert_close(asked(layer, shared, count), asked(layer, apart, count))
    moved = siblings([[2, 0, 0], [1, 1, 2], [0, 1, 2]])
    assert shared.pick(moved).key is shared.key, "nothing is copied where all families stay"
    assert_close(asked(layer, shared.pick(moved)), asked(layer, apart.pick(moved.rows)))
    fewer = siblings([[0, 2, 2], [1, 0, 0]], [2, 0])
    assert len(shared.pick(fewer).key) == 2
    assert_close(asked(layer, shared.pick(fewer)), asked(layer, apart.pick(fewer.rows)))


def test_rows_with_contexts_of_their_own_become_a_family():
    layer = make("attention")
    shared, apart = begun(layer)
    for moved in (siblings([[2, 0, 0], [1, 1, 2], [0, 1, 2]]), siblings([[0, 2, 2], [1, 0, 0]], [2, 0])):
        joined = apart.pick(moved)
        assert (joined.rows_per_context, len(joined.key)) == (SIZE, len(moved.rows) // SIZE)
        assert_close(asked(layer, joined), asked(layer, shared.pick(moved)))


def test_rows_of_families_can_be_picked_one_by_one():
    layer = make("attention")
    shared, apart = begun(layer)
    for rows in ([8, 0, 4, 4], torch.tensor([3]), [-1, -9], []):
        picked = shared.pick(rows)
        assert (picked.rows_per_context, len(picked.key)) == (1, len(rows))
        assert_close(asked(layer, picked), asked(layer, apart.pick(rows)))


def test_families_are_replaced_by_others():
    layer = make("attention")
    shared, apart = begun(layer)
    other = layer.remember(normal(2, 7, WIDTH, seed=8), torch.tensor([7, 1]))
    rows = torch.arange(2).repeat_interleave(SIZE)
    theirs, families = other.pick(RowGroups(rows, SIZE, 1)), torch.tensor([2, 0])
    places = (families.unsqueeze(-1) * SIZE + torch.arange(SIZE)).flatten()
    put = shared.put(RowGroups(places, SIZE, SIZE, families), theirs)
    assert (put.rows_per_context, len(put.key)) == (SIZE, 3)
    want = apart.put(places, other.pick(rows))
    assert_close(asked(layer, put), asked(layer, want))
    single = shared.put([4], other.pick([0]))
    assert (single.rows_per_context, len(single.key)) == (1, 9)
    assert_close(asked(layer, single), asked(layer, apart.put([4], other.pick([0]))))


def test_a_copy_and_rows_apart():
    layer = make("attention")
    shared, apart = begun(layer)
    assert shared.copy().rows_per_context == SIZE
    assert shared.copy().key is not shared.key
    assert_close(shared.one_per_row().key, apart.key)
    assert apart.one_per_row() is apart


def test_who_watches_or_masks_sees_every_row_by_itself():
    layer = make("attention")
    shared, apart = begun(layer)
    looks = []
    with layer.tap.listen(looks.append):
        got = asked(layer, shared)
    assert_close(got, asked(layer, apart))
    assert looks[0].weights().shape == (9, 2, 2, 5)
    x, mask = normal(9, 2, WIDTH, seed=5), normal(9, 2, 5, seed=6) > 0
    assert_close(layer.step(x, shared, mask=mask)[0], layer.step(x, apart, mask=mask)[0])


def test_queries_of_families_and_back():
    query = normal(6, 2, 3, 4)
    together = fold_rows(query, 3)
    assert together.shape == (2, 2, 9, 4)
    assert torch.equal(together[1, 0, 3:6], query[4, 0])
    assert torch.equal(unfold_rows(together, 3), query)


def test_siblings_are_rows():
    assert row_indices(siblings([[2, 0, 0], [1, 1, 2]]), torch.zeros(6)).tolist() == [2, 0, 0, 4, 4, 5]
