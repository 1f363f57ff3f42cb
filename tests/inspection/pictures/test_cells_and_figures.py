"""Cells, figures, fonts and files: what all pictures share."""

import subprocess
import sys
import threading
import xml.etree.ElementTree as ElementTree

import matplotlib
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from refusals import assert_named

from regard.attention.look import Look
from regard.inspection.pictures import alignment_picture, canvas, picture_format, render_figure, save
from regard.inspection.pictures import canvas as fonts
from regard.inspection.pictures.canvas import DIVERGING, SEQUENTIAL, ColourScale
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
def test_other_values_are_refused(given, parts):
    assert_named(lambda: canvas.as_floats("weights", given, 2, "(rows, columns)"), parts)


def test_the_scale_has_zero_at_one_end_or_in_the_middle():
    assert ColourScale.of(np.array([0.2, 0.7])) == (0.0, 0.7, SEQUENTIAL)
    assert ColourScale.of(np.array([-0.2, 0.7])) == (-0.7, 0.7, DIVERGING)
    assert ColourScale.of(np.array([-0.9, 0.7])) == (-0.9, 0.9, DIVERGING)
    assert ColourScale.of(np.array([0.2, np.nan, np.inf])) == (0.0, 0.2, SEQUENTIAL)
    assert ColourScale.of(np.zeros(3)) == (0.0, 0.0, SEQUENTIAL)
    assert ColourScale.of(np.array([0.2]), 1.0) == (0.0, 1.0, SEQUENTIAL)


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
    ([[1.5, -0.5], [0.5, 0.5]], ["1 of 4 cells are negative: these are not probabilities"]),
    ([[np.nan, 0.5], [0.5, 0.5]], ["1 of 4 cells are not finite: pink"]),
    ([[np.inf, -np.inf], [0.5, 0.5]], ["1 of 4 cells are negative: these are not probabilities",
                                       "2 of 4 cells are not finite: pink"]),
])
def test_notes_describe_the_cells(weights, said):
    assert canvas.describe_cells([canvas.cells_from_weights(np.array(weights), 2)]) == said


def test_notes_mention_means():
    cells = canvas.cells_from_weights(np.full((5, 5), 0.2), 2)
    assert canvas.describe_cells([cells]) == ["each cell is the mean of 3 × 3 weights"]


def test_notes_describe_blocks_too():
    weights = np.full((6, 6), 0.5)
    weights[0, 0] = np.nan
    said = canvas.describe_cells([canvas.cells_from_weights(weights, 3)])
    assert said == ["each cell is the mean of 2 × 2 weights", "rows sum to more than 1, up to 3",
                    "1 of 9 cells are not finite: pink"]


def small(title="", notes=()):
    with canvas.new_figure() as figure:
        axes = canvas.add_panel(figure, 1.0, 0.5, 2.0, 1.0)
        image = canvas.draw_cells(axes, np.array([[0.0, 0.5], [1.0, np.nan]]), ColourScale(0.0, 1.0, SEQUENTIAL))
        canvas.add_colour_bar(figure, image, 3.2, 0.5, 1.0, "weight")
        return canvas.finish_figure(figure, title, notes)


def test_panels_keep_their_inches():
    figure = small("A title", ["a note"])
    width, height = figure.get_size_inches()
    box = figure.axes[0].get_position()
    assert box.width * width == pytest.approx(2.0)
    assert box.height * height == pytest.approx(1.0)


def test_everything_is_inside_the_figure():
    figure = small("A long title " * 8, ["a note " * 20])
    width, height = figure.get_size_inches()
    inner = figure.get_tightbbox(figure.canvas.get_renderer())
    assert inner.x0 >= 0
    assert inner.y0 >= 0
    assert inner.x1 <= width
    assert inner.y1 <= height


def test_title_and_notes_are_written_above_the_panels():
    figure = small("A title", ["one", "two"])
    assert [text.get_text() for text in figure.texts] == ["A title", "one; two"]
    assert all(text.get_position()[1] > figure.axes[0].get_position().y1 for text in figure.texts)
    assert not any(text.get_parse_math() for text in figure.texts)


def test_a_character_without_a_font_is_told_of(monkeypatch):
    first = {fonts.DEFAULT_FONT: fonts._default_font_file()}
    monkeypatch.setattr(fonts, "_font_files", lambda: first)
    fonts._choose_families.cache_clear()
    with canvas.new_figure() as figure:
        axes = canvas.add_panel(figure, 0, 0, 1, 1)
        axes.set_yticks([0.5], ["中"], **canvas.text_style(["中"]))
        canvas.finish_figure(figure)
    fonts._choose_families.cache_clear()
    assert [text.get_text() for text in figure.texts] == ["no font here has U+4E2D: shown as boxes"]


def test_matplotlib_is_left_as_it_was():
    with matplotlib.rc_context({"font.size": 33.0, "axes.facecolor": "red", "text.usetex": True}):
        before = dict(matplotlib.rcParams)
        figure = small("A title")
        assert dict(matplotlib.rcParams) == before
    assert figure.axes[0].get_facecolor() == matplotlib.colors.to_rgba(canvas.PAPER)
    assert not figure.texts[0].get_usetex()


def test_the_style_of_a_user_changes_no_picture(tmp_path):
    save(small("A title"), tmp_path / "a.png")
    with matplotlib.rc_context({"font.size": 33.0, "axes.facecolor": "red", "savefig.facecolor": "blue"}):
        save(small("A title"), tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


@pytest.mark.parametrize("colours", [SEQUENTIAL, DIVERGING])
def test_colours_differ_in_lightness_alone(colours):
    """More is darker, on both sides of 0, so neither colour vision nor a printer is needed."""
    table = canvas.colour_map(colours)(np.linspace(0, 1, 256))[:, :3] @ [0.2126, 0.7152, 0.0722]
    sides = [table] if colours == SEQUENTIAL else [table[128:], table[127::-1]]
    for side in sides:
        assert (np.diff(side) <= 1e-3).all()
        assert side[0] > 0.9
        assert side[-1] < 0.3


def test_colour_bar_shows_values_beyond_its_ends():
    for largest, extend in ((None, "neither"), (0.5, "max")):
        figure = alignment_picture([[0.0, 1.0]], ["a"], ["b", "c"], largest=largest)
        assert figure.axes[0].images[0].colorbar.extend == extend
    figure = alignment_picture([[-1.0, 1.0]], ["a"], ["b", "c"], largest=0.5)
    assert figure.axes[0].images[0].colorbar.extend == "both"


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"matplotlib.*regard\[plot\]"):
        alignment_picture([[1.0]], ["a"], ["b"])


def test_importing_pictures_imports_neither_matplotlib_nor_torch():
    code = "import sys, regard.inspection.pictures; sys.exit('matplotlib' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_no_window_is_needed_nor_pyplot():
    code = ("import sys; from regard.inspection.pictures import *; import io\n"
            "figure = alignment_picture([[1.0]], ['a'], ['b'])\n"
            "sys.exit('matplotlib.pyplot' in sys.modules)")
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_a_picture_can_be_drawn_in_another_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(small("A title")))
    thread.start()
    thread.join()
    assert found[0].texts[0].get_text() == "A title"


LOST = "\U0001cc00"
"""A sign that hardly any font has."""


def test_ascii_needs_nothing_else():
    assert canvas.choose_fonts(["cat", "$x$"]) == ((canvas.DEFAULT_FONT,), ())


@pytest.mark.parametrize("text", ["été", "▁the", "שלום", "مرحبا", "Ελλάδα", "мир", "‹U+200B›", "∅␣…◌"])
def test_default_font_has_most_alphabets(text):
    assert canvas.choose_fonts([text]) == ((canvas.DEFAULT_FONT,), ())


def test_characters_without_a_font_are_reported(monkeypatch):
    first = {canvas.DEFAULT_FONT: canvas._default_font_file()}
    monkeypatch.setattr(canvas, "_font_files", lambda: first)
    canvas._choose_families.cache_clear()
    assert canvas.choose_fonts(["a中文b"]) == ((canvas.DEFAULT_FONT, canvas.FALLBACK_FONT), ("中", "文"))
    canvas._choose_families.cache_clear()


def test_the_font_that_has_most_is_asked_first(monkeypatch):
    files = {canvas.DEFAULT_FONT: "first", "Some": "some", "All": "all"}
    characters = {"first": {1}, "some": {0x4e2d}, "all": {0x4e2d, 0x6587}}
    monkeypatch.setattr(canvas, "_default_font_file", lambda: "first")
    monkeypatch.setattr(canvas, "_font_files", lambda: files)
    monkeypatch.setattr(canvas, "_font_characters", lambda path: frozenset(characters[path]))
    canvas._choose_families.cache_clear()
    assert canvas.choose_fonts(["中文"]) == ((canvas.DEFAULT_FONT, "All"), ())
    canvas._choose_families.cache_clear()


def test_a_file_that_is_no_font_has_no_characters(tmp_path):
    (tmp_path / "broken.ttf").write_bytes(b"no font")
    assert canvas._font_characters(str(tmp_path / "broken.ttf")) == frozenset()
    assert canvas._font_characters(str(tmp_path / "missing.ttf")) == frozenset()


def test_font_order_is_fixed():
    names = list(canvas._font_files())
    assert names[0] == canvas.DEFAULT_FONT
    assert canvas.FALLBACK_FONT not in names
    assert names[1:] == sorted(names[1:], key=lambda name: ("Sans" not in name, name))


WORDS = ["le", "chat", "<script>alert(1)</script>", "שלום", "مرحبا", "\u200b", "$x^2$", "中", "👩\u200d👧", "\ud800"]
STARTS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


def picture():
    return alignment_picture(np.eye(len(WORDS)), WORDS, WORDS, title="$\\frac{1} <b> 中")


@pytest.mark.thorough
@pytest.mark.parametrize("ending", sorted(STARTS))
def test_the_same_picture_has_the_same_bytes(tmp_path, ending):
    figure = picture()
    for name, one in (("a", figure), ("b", figure), ("c", picture())):
        save(one, tmp_path / f"{name}.{ending}")
    found = {(tmp_path / f"{name}.{ending}").read_bytes() for name in "abc"}
    assert len(found) == 1
    data = found.pop()
    assert data.startswith(STARTS[ending])
    assert b"Date" not in data
    assert b"Matplotlib" not in data


def test_a_png_can_be_read(tmp_path):
    figure = picture()
    save(figure, tmp_path / "a.PNG")
    with Image.open(tmp_path / "a.PNG") as image:
        expected = figure.get_size_inches() * figure.dpi
        assert np.abs(np.array(image.size) - expected).max() < 2


def test_an_svg_is_inert(tmp_path):
    save(picture(), tmp_path / "a.svg")
    tags = {element.tag.rpartition("}")[2] for element in ElementTree.parse(tmp_path / "a.svg").iter()}
    assert not tags & {"script", "foreignObject", "a", "iframe"}
    assert b"<script" not in (tmp_path / "a.svg").read_bytes()


def test_an_svg_has_its_words_as_text(tmp_path):
    save(alignment_picture([[1.0]], ["chat"], ["un <b>"], title="Le chat noir"), tmp_path / "a.svg")
    texts = [element.text for element in ElementTree.parse(tmp_path / "a.svg").iter() if element.tag.endswith("}text")]
    assert {"chat", "un␣<b>", "Le chat noir", "weight"} <= set(texts)


def test_a_pdf_has_its_words_as_text(tmp_path):
    save(alignment_picture([[1.0]], ["chat"], ["cat"]), tmp_path / "a.pdf")
    data = (tmp_path / "a.pdf").read_bytes()
    assert b"/FontFile2" in data  # letters of a font, not drawings of them
    assert b"/Type3" not in data


@pytest.mark.parametrize("name", ["a.jpg", "a", "a.png.txt", ".png"])
def test_another_ending_is_refused(tmp_path, name):
    assert_named(lambda: save(picture(), tmp_path / name), ["`path`", ".png, .svg, .pdf", name])
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_an_error_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError):
        save(picture(), tmp_path / "none" / "a.png")


def test_what_cannot_be_drawn_leaves_the_old_file(tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(b"old")
    figure = picture()

    def fail(*args, **kwargs):
        raise RuntimeError("no ink")

    monkeypatch.setattr(figure, "savefig", fail)
    with pytest.raises(RuntimeError, match="no ink"):
        save(figure, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes() == b"old"


def test_the_bytes_can_be_had_without_a_file(tmp_path):
    figure = picture()
    save(figure, tmp_path / "a.svg")
    assert render_figure(figure, "svg") == (tmp_path / "a.svg").read_bytes()
    assert_named(lambda: render_figure(figure, "jpg"), ["`format`", '"png"'])


def test_the_format_can_be_asked_for_before():
    assert [picture_format(name) for name in ("a.png", "b.SVG", "c.d.pdf")] == ["png", "svg", "pdf"]
