"""Given weights answer what a look answers that has the same weights."""

import pytest
import torch

from regard.attention.look import Look
from regard.attention.mask import Causal
from regard.inspection.records import WeightMatrix


@pytest.fixture
def both():
    """A look, and the matrix of its weights."""
    query, key = torch.randn(2, 3, 7, 4, dtype=torch.float64), torch.randn(2, 3, 9, 4, dtype=torch.float64)
    look = Look(query, key, mask=Causal())
    return look, WeightMatrix(look.weights())


@pytest.mark.parametrize("ask", [
    lambda one: one.weights(), lambda one: one.rows(2), lambda one: one.rows([-1, 0, 3]), lambda one: one.entropy(),
    lambda one: one.column_sums(), lambda one: one.row_max().values, lambda one: one.row_max().positions,
    lambda one: one.top_k(3).values, lambda one: one.top_k(1).positions, lambda one: one.block_map(1),
    lambda one: one.block_map(2), lambda one: one.block_map(4), lambda one: one.block_map(100),
], ids=["weights", "row", "rows", "entropy", "column_sums", "max", "argmax", "top", "top places", "map 1", "map 2",
        "map 4", "map 100"])
def test_answers_as_a_look_does(both, ask):
    look, matrix = both
    torch.testing.assert_close(ask(matrix), ask(look), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("ask", "argument"), [
    (lambda one: one.rows(7), "indices"), (lambda one: one.rows(0.5), "indices"), (lambda one: one.top_k(0), "count"),
    (lambda one: one.top_k(10), "count"), (lambda one: one.block_map(0), "size"),
])
def test_refuses_what_a_look_refuses_in_the_same_words(both, ask, argument):
    messages = []
    for one in both:
        with pytest.raises(ValueError, match=f"`{argument}` must be") as error:
            ask(one)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_negative_weights_stay_what_they_are_and_have_no_entropy():
    matrix = WeightMatrix(torch.tensor([[[-0.5, 1.5], [0.25, 0.25]]]))
    assert matrix.entropy().isnan().tolist() == [[True, False]]
    assert matrix.column_sums().tolist() == [[-0.25, 1.75]]
    assert matrix.block_map(2).tolist() == [[[0.375]]]
    assert matrix.row_max().positions.tolist() == [[1, 0]]


def test_sums_of_half_precision_keep_their_digits():
    sums = WeightMatrix(torch.full((1, 4096, 1), 0.5, dtype=torch.bfloat16)).column_sums()
    assert sums.dtype == torch.bfloat16
    assert sums.tolist() == [[2048.0]]


def test_no_keys_at_all():
    matrix = WeightMatrix(torch.zeros(2, 3, 0))
    assert matrix.row_max().values.tolist() == [[0.0] * 3] * 2
    assert matrix.entropy().tolist() == [[0.0] * 3] * 2
    assert matrix.block_map(2).shape == (2, 2, 0)


@pytest.mark.parametrize("given", [[[0.5]], torch.zeros(3), torch.zeros(2, 2, dtype=torch.long)],
                         ids=["list", "vector", "integers"])
def test_only_matrices_of_numbers(given):
    with pytest.raises(ValueError, match="`given` must be"):
        WeightMatrix(given)


def test_it_is_told_in_short():
    assert repr(WeightMatrix(torch.zeros(2, 3, 4))) == "Matrix((2, 3, 4))"
