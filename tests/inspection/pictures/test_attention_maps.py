"""Attention maps: one matrix, all heads, entropies, position encodings."""

import math

import numpy as np
import pytest
import torch
from PIL import Image
from refusals import assert_named

from regard.inspection.pictures import alignment_picture, entropy_picture, heads_picture, position_picture, save
from regard.inspection.pictures.canvas import DIVERGING, SEQUENTIAL, colour_map
from regard.position.encoding import LinearEncoding, SinusoidalEncoding

SOURCE, TARGET = ["the", "black", "cat", "sleeps"], ["le", "chat", "noir"]
WEIGHTS = np.array([[0.95, 0.01, 0.03, 0.01], [0.02, 0.22, 0.75, 0.01], [0.01, 0.70, 0.28, 0.01]])


def image_of(figure):
    return figure.axes[0].images[0]


def names(ticks):
    return [tick.get_text() for tick in ticks]


def head(figure):
    return " ".join(text.get_text() for text in figure.texts)


def shown(figure, path, row, column):
    """The colour in the middle of a cell of the file."""
    save(figure, path)
    with Image.open(path) as image:
        box, (rows, columns) = figure.axes[0].get_position(), image_of(figure).get_array().shape
        x = box.x0 + (column + 0.5) / columns * box.width
        y = 1 - box.y1 + (row + 0.5) / rows * box.height
        return np.array(image.convert("RGB").getpixel((int(x * image.width), int(y * image.height)))) / 255


def test_numbers_and_words_are_those_given():
    figure = alignment_picture(torch.tensor(WEIGHTS), TARGET, SOURCE, title="Le chat", sides=("French", "English"))
    axes = figure.axes[0]
    np.testing.assert_array_equal(image_of(figure).get_array(), WEIGHTS)
    assert names(axes.get_yticklabels()) == TARGET
    assert names(axes.get_xticklabels()) == SOURCE
    assert axes.xaxis.get_ticks_position() == "top"
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("French", "English")
    assert head(figure) == "Le chat"


def test_the_first_row_is_on_top(tmp_path):
    figure = alignment_picture(WEIGHTS, TARGET, SOURCE)
    colours = image_of(figure).get_cmap()
    for row, column in ((0, 0), (1, 2), (2, 1), (2, 3)):
        expected = colours(WEIGHTS[row, column] / 0.95)[:3]
        np.testing.assert_allclose(shown(figure, tmp_path / "a.png", row, column), expected, atol=0.01)


def test_a_scale_goes_from_zero_to_the_largest_weight():
    figure = alignment_picture(WEIGHTS, TARGET, SOURCE)
    assert image_of(figure).get_clim() == (0.0, 0.95)
    assert image_of(figure).get_cmap() == colour_map(SEQUENTIAL)
    assert figure.axes[1].get_ylabel() == "weight"
    assert image_of(alignment_picture(WEIGHTS, TARGET, SOURCE, largest=1.0)).get_clim() == (0.0, 1.0)


def test_negative_weights_have_their_own_colours_and_zero_in_the_middle(tmp_path):
    weights = WEIGHTS - 0.5
    figure = alignment_picture(weights, TARGET, SOURCE)
    assert image_of(figure).get_clim() == (-0.49, 0.49)
    assert image_of(figure).get_cmap() == colour_map(DIVERGING)
    assert "9 of 12 cells are negative" in head(figure)
    assert "rows sum to -1, not to 1" in head(figure)


def test_rows_that_do_not_sum_to_one_are_told_of():
    assert head(alignment_picture(WEIGHTS, TARGET, SOURCE)) == ""
    assert head(alignment_picture(3 * WEIGHTS, TARGET, SOURCE)) == "rows sum to more than 1, up to 3"


def test_what_is_no_number_is_pink(tmp_path):
    weights = WEIGHTS.copy()
    weights[1, 1] = np.nan
    figure = alignment_picture(weights, TARGET, SOURCE)
    assert "1 of 12 cells are not finite: pink" in head(figure)
    red, green, blue = shown(figure, tmp_path / "a.png", 1, 1)
    assert red > blue > green


def test_one_token():
    figure = alignment_picture([[1.0]], ["x"], ["y"])
    assert image_of(figure).get_array().shape == (1, 1)
    assert len(figure.axes) == 2


@pytest.mark.parametrize("scale", [0.0, 1e-300, 1e-30, 1e30, 1e300])
def test_numbers_of_any_size_can_be_drawn(tmp_path, scale):
    save(alignment_picture(WEIGHTS * scale, TARGET, SOURCE), tmp_path / "a.png")
    save(alignment_picture((WEIGHTS - 0.5) * scale, TARGET, SOURCE), tmp_path / "b.png")
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in ("a.png", "b.png"))


def test_hostile_words_are_drawn_as_text(tmp_path):
    words = ["$\\frac{1}$", "$$", "\\alpha", "<script>", "\n", "\u202e", "", "a" * 100, "_{^", "%d {}", "שלום", "\x00"]
    figure = alignment_picture(np.eye(len(words)), words, words, title="$x_", sides=("$", "${"))
    axes = figure.axes[0]
    for label in (*axes.get_yticklabels(), *axes.get_xticklabels(), axes.xaxis.label, axes.yaxis.label, *figure.texts):
        assert not label.get_parse_math()
    assert names(axes.get_yticklabels())[:2] == words[:2]
    save(figure, tmp_path / "a.png")


def test_many_words_are_thinned_and_it_is_said():
    words = [f"w{number}" for number in range(130)]
    figure = alignment_picture(np.full((130, 40), 1 / 40), words, words[:40])
    axes = figure.axes[0]
    assert names(axes.get_yticklabels()) == [f"{number} w{number}" for number in range(0, 130, 3)]
    assert list(axes.get_yticks()) == list(range(0, 130, 3))
    assert names(axes.get_xticklabels()) == words[:40]
    assert head(figure) == "one row in 3 is labelled"


@pytest.mark.thorough
def test_of_4096_tokens_it_shows_means_and_says_so(tmp_path):
    weights = np.zeros((4096, 4096), np.float32)
    weights[np.arange(4096), np.arange(4096)] = 1.0
    words = [f"w{number}" for number in range(4096)]
    figure = alignment_picture(weights, words, words, title="Long")
    drawn = image_of(figure).get_array()
    assert drawn.shape == (1366, 1366)
    np.testing.assert_allclose(np.diag(drawn)[:-1], 1 / 3)
    assert head(figure).startswith("Long each cell is the mean of 3 × 3 weights; one row in 69")
    save(figure, tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        assert min(image.size) > 1366


@pytest.mark.thorough
def test_every_cell_has_a_pixel(tmp_path):
    count = 1400
    weights = np.zeros((count, count))
    places = np.arange(count)
    places[9:-9] = 9 + np.random.default_rng(0).permutation(count - 18)  # those at the edges are left out below
    weights[np.arange(count), places] = 1.0
    figure = alignment_picture(weights, [""] * count, [""] * count)
    save(figure, tmp_path / "a.png")
    box = figure.axes[0].get_position()
    with Image.open(tmp_path / "a.png") as image:
        pixels = np.asarray(image.convert("L"))
    height, width = pixels.shape
    inner = pixels[round((1 - box.y1) * height) + 5:round((1 - box.y0) * height) - 5,
                   round(box.x0 * width) + 5:round(box.x1 * width) - 5]
    assert (inner < 50).any(axis=1)[9:-9].all()  # the one cell of every row is there
    assert (inner < 50).any(axis=0)[9:-9].all()


@pytest.mark.parametrize(("weights", "rows", "columns", "parts"), [
    (WEIGHTS, TARGET, TARGET, ["`weights`", "(3, 3)", "(3, 4)"]),
    (np.ones(3), TARGET, SOURCE, ["`weights`", "(rows, columns)"]),
    (np.ones((0, 0)), [], [], ["`weights`", "at least one"]),
])
def test_wrong_arguments_are_refused(weights, rows, columns, parts):
    assert_named(lambda: alignment_picture(weights, rows, columns), parts)


RANDOM = np.random.default_rng(0)


def softmax(*shape):
    weights = np.exp(RANDOM.normal(size=shape))
    return weights / weights.sum(-1, keepdims=True)


def maps(figure):
    return figure.axes[0].images






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
    assert head(figure) == "pink: entropy not defined"


@pytest.mark.parametrize(("call", "parts"), [
    (lambda: heads_picture({}), ["`layers`", "at least one"]),
    (lambda: heads_picture({"a": np.ones((0, 2, 2))}), ["`layers`", "at least one"]),
    (lambda: heads_picture({"a": np.ones((2, 0, 2))}), ["at least one row"]),
    (lambda: heads_picture({"a": np.ones((2, 2))}), ['layers["a"]', "(heads, rows, columns)"]),
    (lambda: entropy_picture({"a": [[1.0]]}), ['entropies["a"]', "(heads,)"]),
    (lambda: entropy_picture({"a": [1.0]}, {"b": 1.0}), ["`bounds`", '"b"']),
])
def test_wrong_head_arguments_are_refused(call, parts):
    assert_named(call, parts)


def images(figure):
    return [image for axes in figure.axes for image in axes.images]




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
        "sinusoidal", "sinusoidal: cosine similarity", "other one", "other one: cosine similarity"]
    assert head(figure) == "Positions"


def test_zero_vector_has_no_cosine():
    figure = position_picture({"linear": LinearEncoding(0.5, width=3)(torch.arange(4))})
    alike = images(figure)[1].get_array()
    assert np.ma.getmaskarray(alike)[0].all()
    assert head(figure) == "linear: a vector of zeros has no cosine: pink"


def test_axes_count_positions_not_cells(tmp_path):
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
def test_wrong_position_arguments_are_refused(call, parts):
    assert_named(call, parts)
