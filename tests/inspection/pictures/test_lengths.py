"""Lines over lengths: medians with their range, gaps that are said, and calls that are refused."""

import math

import pytest

from regard.inspection.pictures.curves import length_picture


def test_the_line_is_the_median_and_the_band_goes_from_the_smallest_to_the_largest():
    figure = length_picture({"a": {4: [9.0, 1.0, 2.0], 2: [5.0]}}, "loss")
    (axes,) = figure.axes
    line = axes.get_lines()[0]
    assert list(line.get_xdata()) == [2, 4]
    assert list(line.get_ydata()) == [5.0, 2.0]
    corners = axes.collections[0].get_paths()[0].vertices
    assert corners[:, 1].min() == 1.0
    assert corners[:, 1].max() == 9.0
    assert any("medians" in text.get_text() for text in figure.texts)


def test_what_cannot_be_drawn_is_left_out_and_said():
    figure = length_picture({"a": {2: [1.0], 4: [math.nan], 8: [0.0]}}, "loss", scale="log", level={2: 0.5, 8: 0.1})
    (axes,) = figure.axes
    assert list(axes.get_lines()[0].get_xdata()) == [2]
    assert list(axes.get_lines()[1].get_ydata()) == [0.5, 0.1]
    said = " ".join(text.get_text() for text in figure.texts)
    assert "at 4" in said
    assert "at 8" in said


def test_every_length_is_written_at_the_axis_as_far_as_there_is_room():
    (few,) = length_picture({"a": {2: [1.0], 1024: [2.0]}}, "loss").axes
    assert list(few.get_xticks()) == [2, 1024]
    (many,) = length_picture({"a": {length: [1.0] for length in range(1, 101)}}, "loss").axes
    assert len(many.get_xticks()) <= 12


def test_what_others_found_is_a_cross_in_the_colour_of_the_line():
    values = {"a": {2: [1.0], 4: [2.0]}, "b": {2: [3.0]}}
    (axes,) = length_picture(values, "loss", marks={"b": {3: 0.5}}, marks_name="published").axes
    a, b, cross, shown = axes.get_lines()
    assert (list(cross.get_xdata()), list(cross.get_ydata())) == ([3], [0.5])
    assert cross.get_color() == b.get_color() != a.get_color()
    assert cross.get_marker() == shown.get_marker() == "x"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b", "published"]
    with pytest.raises(ValueError, match="`marks` must be one of"):
        length_picture(values, "loss", marks={"c": {3: 0.5}})


def test_nothing_to_draw_is_refused():
    for nothing in ({}, {"a": {}}, {"a": {2: []}}):
        with pytest.raises(ValueError, match="`values` must be at least one number"):
            length_picture(nothing, "loss")
    with pytest.raises(ValueError, match="`scale` must be one of"):
        length_picture({"a": {2: [1.0]}}, "loss", scale="logarithmic")
