"""The numbers of a picture: as given, or means that are said to be; and what is said of them is true."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import assert_named

from regard.attention.look import Look
from regard.inspection.pictures import canvas
from regard.inspection.pictures.canvas import DIVERGING, GREYS, ColourScale
from regard.inspection.records import WeightMatrix


def block_means(weights, size):
    """Block by block, as the words say."""
    rows, columns = weights.shape
    return np.array([[weights[top:top + size, left:left + size].mean() for left in range(0, columns, size)]
                     for top in range(0, rows, size)])


def test_what_fits_is_drawn_as_it_is():
    weights = np.random.default_rng(0).normal(size=(5, 7))
    drawn = canvas.cells_from_weights(weights, 7)
    assert drawn.values is weights
    assert (drawn.rows, drawn.columns, drawn.size) == (5, 7, 1)
    np.testing.assert_allclose(drawn.sums, weights.sum(1))


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 9))
def test_what_does_not_fit_is_drawn_as_means_of_blocks(rows, columns, most):
    weights = np.random.default_rng(rows).random((rows, columns))
    drawn = canvas.cells_from_weights(weights, most)
    assert max(drawn.values.shape) <= most
    np.testing.assert_allclose(drawn.values, block_means(weights, drawn.size))
    np.testing.assert_allclose(drawn.sums, [weights[top:top + drawn.size].sum(1).mean()
                                            for top in range(0, rows, drawn.size)])


@pytest.mark.parametrize("most", [4, 30])
@pytest.mark.parametrize("kind", ["look", "matrix"])
def test_a_look_is_drawn_as_its_weights_are(kind, most):
    look = Look(torch.randn(3, 11, 4, dtype=torch.float64), torch.randn(3, 30, 4, dtype=torch.float64))
    asked = look if kind == "look" else WeightMatrix(look.weights())
    drawn, whole = canvas.cells_from_record(asked, most), canvas.cells_from_weights(look.weights().numpy(), most)
    np.testing.assert_allclose(drawn.values, whole.values)
    np.testing.assert_allclose(drawn.sums, whole.sums)
    assert drawn[2:] == whole[2:]


@pytest.mark.parametrize("given", [torch.ones(2, 3, dtype=torch.bfloat16, requires_grad=True), np.ones((2, 3), np.int8),
                                   [[1.0] * 3] * 2])
def test_tensors_arrays_and_lists_are_numbers(given):
    found = canvas.as_floats("weights", given, 2, "(rows, columns)")
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, np.ones((2, 3)))


@pytest.mark.parametrize(("given", "parts"), [
    ([[1.0], [1.0, 2.0]], ["`weights`", "(rows, columns)"]),
    ("words", ["`weights`", "something else"]),
    (np.ones(3), ["`weights`", "(3,)"]),
    (np.ones((1, 2, 3)), ["`weights`", "(1, 2, 3)"]),
])
def test_anything_else_is_refused(given, parts):
    assert_named(lambda: canvas.as_floats("weights", given, 2, "(rows, columns)"), parts)


def test_the_scale_has_zero_at_one_end_or_in_the_middle():
    assert ColourScale.of(np.array([0.2, 0.7])) == (0.0, 0.7, GREYS)
    assert ColourScale.of(np.array([-0.2, 0.7])) == (-0.7, 0.7, DIVERGING)
    assert ColourScale.of(np.array([-0.9, 0.7])) == (-0.9, 0.9, DIVERGING)
    assert ColourScale.of(np.array([0.2, np.nan, np.inf])) == (0.0, 0.2, GREYS)
    assert ColourScale.of(np.zeros(3)) == (0.0, 0.0, GREYS)
    assert ColourScale.of(np.array([0.2]), 1.0) == (0.0, 1.0, GREYS)


@pytest.mark.parametrize("largest", [-1.0, np.nan, np.inf])
def test_a_scale_needs_an_end(largest):
    assert_named(lambda: ColourScale.of(np.ones(1), largest), ["`largest`"])


@pytest.mark.parametrize(("weights", "said"), [
    ([[0.5, 0.5], [0.25, 0.75]], []),
    ([[0.5, 0.495], [0.25, 0.75]], []),
    ([[0.5, 0.2], [0.25, 0.75]], ["rows sum to less than 1, down to 0.7"]),
    ([[0.5, 0.5], [1.25, 1.0]], ["rows sum to more than 1, up to 2.25"]),
    ([[0.5, 0.1], [1.25, 1.0]], ["rows sum to 0.6 … 2.25, not to 1"]),
    ([[0.0, 0.0], [0.5, 0.5]], ["1 of 2 rows sum to 0"]),
    ([[0.0, 0.0], [0.0, 0.0]], ["all weights are 0"]),
    ([[1.5, -0.5], [0.5, 0.5]], ["1 of 4 cells are negative"]),
    ([[np.nan, 0.5], [0.5, 0.5]], ["1 of 4 cells are no finite numbers: pink"]),
    ([[np.inf, -np.inf], [0.5, 0.5]], ["1 of 4 cells are negative", "2 of 4 cells are no finite numbers: pink"]),
])
def test_what_must_be_known_is_said(weights, said):
    assert canvas.describe_cells([canvas.cells_from_weights(np.array(weights), 2)]) == said


def test_means_are_said_to_be_means():
    assert canvas.describe_cells([canvas.cells_from_weights(np.full((5, 5), 0.2), 2)]) == ["each cell is the mean of 3 × 3 weights"]


def test_what_no_block_hides_is_said_of_blocks_too():
    weights = np.full((6, 6), 0.5)
    weights[0, 0] = np.nan
    said = canvas.describe_cells([canvas.cells_from_weights(weights, 3)])
    assert said == ["each cell is the mean of 2 × 2 weights", "rows sum to more than 1, up to 3",
                    "1 of 9 cells are no finite numbers: pink"]
