"""Position encodings: their numbers as given, and how alike two positions are."""

import numpy as np
import pytest
import torch
from refusals import assert_named

from regard.inspection.pictures import position_picture, save
from regard.position.encoding import LinearEncoding, SinusoidalEncoding


def images(figure):
    return [image for axes in figure.axes for image in axes.images]


def head(figure):
    return " ".join(text.get_text() for text in figure.texts)


def test_vectors_and_the_cosines_between_them():
    vectors = SinusoidalEncoding(16)(torch.arange(30))
    figure = position_picture({"sinusoidal": vectors, "other one": torch.randn(30, 16)}, title="Positions")
    numbers, alike = images(figure)[:2]
    np.testing.assert_allclose(numbers.get_array(), vectors)
    expected = torch.nn.functional.cosine_similarity(vectors[:, None], vectors[None], dim=-1)
    np.testing.assert_allclose(alike.get_array(), expected, atol=1e-5)
    assert numbers.get_clim() == (-1.0, 1.0)
    assert alike.get_clim()[1] == 1.0
    assert [axes.get_title() for axes in figure.axes if axes.get_title()] == [
        "sinusoidal", "sinusoidal: how alike", "other one", "other one: how alike"]
    assert head(figure) == "Positions"


def test_a_vector_of_zeros_is_like_none():
    figure = position_picture({"linear": LinearEncoding(0.5, width=3)(torch.arange(4))})
    alike = images(figure)[1].get_array()
    assert np.ma.getmaskarray(alike)[0].all()
    assert head(figure) == "linear: a vector of zeros is like none: pink"


def test_axes_count_positions_whatever_a_cell_is(tmp_path):
    figure = position_picture({"long": SinusoidalEncoding(8)(torch.arange(3000))})
    numbers, alike = images(figure)
    assert numbers.get_array().shape == (1000, 3)
    assert alike.get_array().shape == (1000, 1000)
    assert numbers.get_extent()[2] == 2999.5
    assert alike.get_extent()[1] == 2999.5
    assert head(figure) == ("long: each cell is the mean of 3 × 3 numbers; long: one position in 3 is compared")
    save(figure, tmp_path / "a.png")


@pytest.mark.parametrize(("call", "parts"), [
    (lambda: position_picture({}), ["`encodings`"]),
    (lambda: position_picture({"a": np.ones(3)}), ['encodings["a"]', "(positions, features)"]),
])
def test_what_does_not_fit_is_refused(call, parts):
    assert_named(call, parts)
