"""All heads on one sheet: each map has the numbers of its head, all have one scale; and entropies with their bounds."""

import math

import numpy as np
import pytest
from refusals import assert_named

from regard.inspection.pictures import entropy_picture, heads_picture, save

RANDOM = np.random.default_rng(0)


def softmax(*shape):
    weights = np.exp(RANDOM.normal(size=shape))
    return weights / weights.sum(-1, keepdims=True)


def maps(figure):
    return figure.axes[0].images


def names(ticks):
    return [tick.get_text() for tick in ticks]


def head(figure):
    return " ".join(text.get_text() for text in figure.texts)


def test_every_head_has_its_map_at_its_place():
    layers = {"decoder.0.self": softmax(4, 5, 5), "decoder.0.cross": softmax(4, 5, 7)}
    figure = heads_picture(layers, title="Heads")
    assert len(maps(figure)) == 8
    for place, image in enumerate(maps(figure)):
        layer, number = divmod(place, 4)
        np.testing.assert_array_equal(image.get_array(), list(layers.values())[layer][number])
        left, _, _, top = image.get_extent()
        assert (left, top) == (number, layer)
    assert names(figure.axes[0].get_yticklabels()) == list(layers)
    assert names(figure.axes[0].get_xticklabels()) == ["0", "1", "2", "3"]
    assert head(figure) == "Heads"


def test_all_maps_have_one_scale():
    sharp, flat = np.eye(3)[None], np.full((1, 3, 3), 1 / 3)
    figure = heads_picture({"a": sharp, "b": flat})
    assert {image.get_clim() for image in maps(figure)} == {(0.0, 1.0)}
    assert len(figure.axes) == 2  # the maps and the bar
    figure = heads_picture({"a": sharp, "b": -flat})
    assert {image.get_clim() for image in maps(figure)} == {(-1.0, 1.0)}


def test_layers_may_have_different_numbers_of_heads():
    figure = heads_picture({"a": softmax(2, 3, 3), "b": softmax(5, 3, 3)})
    assert [image.get_extent()[::3] for image in maps(figure)] == [[0, 0], [1, 0], *([n, 1] for n in range(5))]


def test_96_heads_go_on_below(tmp_path):
    weights = softmax(96, 6, 6)
    figure = heads_picture({"a": weights, "b": softmax(1, 6, 6)})
    assert len(maps(figure)) == 97
    for number, image in enumerate(maps(figure)[:96]):
        assert image.get_extent()[::3] == [number % 16, number // 16]
        np.testing.assert_array_equal(image.get_array(), weights[number])
    assert maps(figure)[96].get_extent()[3] > 6  # below all of the other layer
    assert "16 more in each row below" in figure.axes[0].get_xlabel()
    save(figure, tmp_path / "a.png")


def test_long_maps_are_means_and_say_so():
    figure = heads_picture({"a": np.eye(1000)[None], "b": np.eye(96)[None]})
    np.testing.assert_allclose(np.diag(maps(figure)[0].get_array())[:-1], 1 / 11)
    np.testing.assert_array_equal(maps(figure)[1].get_array(), np.eye(96))
    assert head(figure) == "each cell is the mean of up to 11 × 11 weights"


def test_hostile_names_are_text(tmp_path):
    figure = heads_picture({"$\\frac": softmax(1, 2, 2), "\n<b>": softmax(1, 2, 2)}, title="$")
    assert names(figure.axes[0].get_yticklabels()) == ["$\\frac", "‹U+000A›<b>"]
    save(figure, tmp_path / "a.png")


def test_entropies_are_numbers_and_colours_up_to_the_largest_that_could_be():
    figure = entropy_picture({"a": [0.5, 1.0], "b": [0.0, 1.5]}, {"a": 1.25, "b": 2.0}, title="Entropy")
    assert [float(image.get_array()[0, 0]) for image in maps(figure)] == [0.5, 1.0, 0.0, 1.5]
    assert {image.get_clim() for image in maps(figure)} == {(0.0, 2.0)}
    assert [text.get_text() for text in figure.axes[0].texts] == ["0.50", "1.00", "0.00", "1.50"]
    assert names(figure.axes[0].get_yticklabels()) == ["a (at most 1.25)", "b (at most 2.00)"]
    assert figure.axes[1].get_ylabel() == "entropy in nats"


def test_entropies_need_no_bounds():
    figure = entropy_picture({"a": [0.5, math.nan]})
    assert maps(figure)[0].get_clim() == (0.0, 0.5)
    assert [text.get_text() for text in figure.axes[0].texts] == ["0.50", "–"]
    assert head(figure) == "pink: weights that have no entropy"


@pytest.mark.parametrize(("call", "parts"), [
    (lambda: heads_picture({}), ["`layers`", "at least one"]),
    (lambda: heads_picture({"a": np.ones((0, 2, 2))}), ["`layers`", "at least one"]),
    (lambda: heads_picture({"a": np.ones((2, 0, 2))}), ["at least one row"]),
    (lambda: heads_picture({"a": np.ones((2, 2))}), ['layers["a"]', "(heads, rows, columns)"]),
    (lambda: entropy_picture({"a": [[1.0]]}), ['entropies["a"]', "(heads,)"]),
    (lambda: entropy_picture({"a": [1.0]}, {"b": 1.0}), ["`most`", '"b"']),
])
def test_what_does_not_fit_is_refused(call, parts):
    assert_named(call, parts)
