"""Fonts: DejaVu Sans for most, others for what it lacks, and boxes that are told of for what none has."""

import pytest

from regard.inspection.pictures import canvas

LOST = "\U0001cc00"
"""A sign that hardly any font has."""


def test_ascii_needs_nothing_else():
    assert canvas.choose_fonts(["cat", "$x$"]) == ((canvas.DEFAULT_FONT,), ())


@pytest.mark.parametrize("text", ["été", "▁the", "שלום", "مرحبا", "Ελλάδα", "мир", "‹U+200B›", "∅␣…◌"])
def test_most_alphabets_are_in_the_first(text):
    assert canvas.choose_fonts([text]) == ((canvas.DEFAULT_FONT,), ())


def test_what_no_font_has_is_told(monkeypatch):
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


def test_the_order_of_fonts_is_one():
    names = list(canvas._font_files())
    assert names[0] == canvas.DEFAULT_FONT
    assert canvas.FALLBACK_FONT not in names
    assert names[1:] == sorted(names[1:], key=lambda name: ("Sans" not in name, name))
