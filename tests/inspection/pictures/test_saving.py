"""Files: the format that their names say, the same bytes every time, and none where there is nothing to write."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from PIL import Image
from refusals import assert_named

from regard.inspection.pictures import alignment_picture, picture_format, render_figure, save

WORDS = ["le", "chat", "<script>alert(1)</script>", "שלום", "مرحبا", "\u200b", "$x^2$", "中", "👩\u200d👧", "\ud800"]
STARTS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


def picture():
    return alignment_picture(np.eye(len(WORDS)), WORDS, WORDS, title="$\\frac{1} <b> 中")


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
