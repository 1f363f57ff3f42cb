"""The paper: it grows around what is on it, leaves matplotlib as it was, and says when it is missing."""

import subprocess
import sys
import threading

import matplotlib
import numpy as np
import pytest
from refusals import assert_named

from regard.inspection.pictures import alignment_picture, canvas, save
from regard.inspection.pictures import canvas as fonts
from regard.inspection.pictures.canvas import DIVERGING, GREYS, ColourScale


def small(title="", notes=()):
    with canvas.new_figure() as figure:
        axes = canvas.add_panel(figure, 1.0, 0.5, 2.0, 1.0)
        image = canvas.draw_cells(axes, np.array([[0.0, 0.5], [1.0, np.nan]]), ColourScale(0.0, 1.0, GREYS))
        canvas.add_colour_bar(figure, image, 3.2, 0.5, 1.0, "weight")
        return canvas.finish_figure(figure, title, notes)


def test_panels_keep_their_inches():
    figure = small("A title", ["a note"])
    width, height = figure.get_size_inches()
    box = figure.axes[0].get_position()
    assert box.width * width == pytest.approx(2.0)
    assert box.height * height == pytest.approx(1.0)


def test_all_is_inside():
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
    assert figure.axes[0].get_facecolor() == (1.0, 1.0, 1.0, 1.0)
    assert not figure.texts[0].get_usetex()


def test_the_style_of_a_user_changes_no_picture(tmp_path):
    save(small("A title"), tmp_path / "a.png")
    with matplotlib.rc_context({"font.size": 33.0, "axes.facecolor": "red", "savefig.facecolor": "blue"}):
        save(small("A title"), tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


@pytest.mark.parametrize("colours", [GREYS, DIVERGING])
def test_colours_differ_in_lightness_alone(colours):
    """More is darker, on both sides of 0, so neither colour vision nor a printer is needed."""
    table = matplotlib.colormaps[colours](np.linspace(0, 1, 256))[:, :3] @ [0.2126, 0.7152, 0.0722]
    sides = [table] if colours == GREYS else [table[128:], table[127::-1]]
    for side in sides:
        assert (np.diff(side) <= 1e-3).all()
        assert side[0] > 0.9
        assert side[-1] < 0.3


def test_the_bar_shows_where_numbers_go_on():
    for largest, extend in ((None, "neither"), (0.5, "max")):
        figure = alignment_picture([[0.0, 1.0]], ["a"], ["b", "c"], largest=largest)
        assert figure.axes[0].images[0].colorbar.extend == extend
    figure = alignment_picture([[-1.0, 1.0]], ["a"], ["b", "c"], largest=0.5)
    assert figure.axes[0].images[0].colorbar.extend == "both"


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert_named(lambda: alignment_picture([[1.0]], ["a"], ["b"]), ["matplotlib", "regard[plot]"])


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
