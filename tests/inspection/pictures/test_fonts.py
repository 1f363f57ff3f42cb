"""Fonts: DejaVu Sans for most, others for what it lacks, and boxes that are told of for what none has."""

import pytest

from regard.inspection.pictures import fonts

LOST = "\U0001cc00"
"""A sign that hardly any font has."""


def test_ascii_needs_nothing_else():
    assert fonts.choose(["cat", "$x$"]) == ((fonts.FIRST,), ())


@pytest.mark.parametrize("text", ["été", "▁the", "שלום", "مرحبا", "Ελλάδα", "мир", "‹U+200B›", "∅␣…◌"])
def test_most_alphabets_are_in_the_first(text):
    assert fonts.choose([text]) == ((fonts.FIRST,), ())


def test_what_no_font_has_is_told(monkeypatch):
    first = {fonts.FIRST: fonts._first()}
    monkeypatch.setattr(fonts, "_fonts", lambda: first)
    fonts._chosen.cache_clear()
    assert fonts.choose(["a中文b"]) == ((fonts.FIRST, fonts.LAST), ("中", "文"))
    fonts._chosen.cache_clear()


def test_the_font_that_has_most_is_asked_first(monkeypatch):
    files = {fonts.FIRST: "first", "Some": "some", "All": "all"}
    characters = {"first": {1}, "some": {0x4e2d}, "all": {0x4e2d, 0x6587}}
    monkeypatch.setattr(fonts, "_first", lambda: "first")
    monkeypatch.setattr(fonts, "_fonts", lambda: files)
    monkeypatch.setattr(fonts, "_characters", lambda path: frozenset(characters[path]))
    fonts._chosen.cache_clear()
    assert fonts.choose(["中文"]) == ((fonts.FIRST, "All"), ())
    fonts._chosen.cache_clear()


def test_a_file_that_is_no_font_has_no_characters(tmp_path):
    (tmp_path / "broken.ttf").write_bytes(b"no font")
    assert fonts._characters(str(tmp_path / "broken.ttf")) == frozenset()
    assert fonts._characters(str(tmp_path / "missing.ttf")) == frozenset()


def test_the_order_of_fonts_is_one():
    names = list(fonts._fonts())
    assert names[0] == fonts.FIRST
    assert fonts.LAST not in names
    assert names[1:] == sorted(names[1:], key=lambda name: ("Sans" not in name, name))
