"""Lines as SVG: where they go, what is said of them, and that nothing in them is obeyed."""

import re
import xml.etree.ElementTree as ET

import pytest

from regard.inspection.pictures.svg import ChartLine, lines_svg

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*lines, **options):
    return ET.fromstring(lines_svg(lines, **{"across": "x", "down": "y", **options}))


def test_higher_numbers_are_higher_and_every_line_is_named():
    root = drawn(ChartLine("up", [0, 1, 2], [1, 2, 4]), ChartLine("down", [0, 1, 2], [3, 2, 1]))
    routes = [path.get("d") for path in root.iter(f"{SVG}path") if path.get("stroke-width") == "2"]
    points = [[tuple(map(float, point.split())) for point in route[1:].split("L")] for route in routes if "L" in route]
    assert [len(line) for line in points] == [3, 3]
    assert points[0][0][1] > points[0][1][1] > points[0][2][1]
    assert points[1][0][1] < points[1][2][1]
    assert points[0][1][1] == points[1][1][1]  # both are 2 there
    assert {"up", "down", "x", "y"} <= {text.text for text in root.iter(f"{SVG}text")}
    assert "up, 2: 4" in [title.text for title in root.iter(f"{SVG}title")]


def test_places_may_have_names_and_numbers_a_spread():
    root = drawn(ChartLine("a", [0, 1], [5, 6], [4, 5], [7, 8]), names=["1-10", "11-20"])
    assert {"1-10", "11-20"} <= {text.text for text in root.iter(f"{SVG}text")}
    assert any(path.get("opacity") == "0.18" for path in root.iter(f"{SVG}path"))
    assert "a, 11-20: 6 (5 to 8)" in [title.text for title in root.iter(f"{SVG}title")]


def test_powers_of_ten_are_equally_far_apart_and_zero_is_said_to_be_left_out():
    root = drawn(ChartLine("fades", [0, 1, 2, 3], [1, 0.1, 0.01, 0]), powers=True)
    route = next(path.get("d") for path in root.iter(f"{SVG}path") if path.get("stroke-width") == "2")
    tops = [float(point.split()[1]) for point in route[1:].split("L")]
    assert len(tops) == 3
    assert tops[1] - tops[0] == pytest.approx(tops[2] - tops[1], abs=0.11)
    assert "fades: not shown where it is 0" in [text.text for text in root.iter(f"{SVG}text")]


def test_very_many_points_are_thinned_and_nothing_is_no_error():
    many = lines_svg([ChartLine("a", range(100_000), range(100_000))], across="x", down="y")
    assert len(many) < 20_000
    ET.fromstring(lines_svg([ChartLine("a", [], [])], across="x", down="y"))
    ET.fromstring(lines_svg([ChartLine("a", [0, 1], [float("nan"), float("inf")])], across="x", down="y"))
    assert drawn(ChartLine("same", [1, 2], [3, 3])) is not None
    assert drawn(ChartLine("one", [1], [3])) is not None


def test_words_are_text():
    told = lines_svg([ChartLine('<script>"&', [0, 1], [1, 2])], across="<b>", down="</svg>", title='"><img>')
    assert not re.search("<script|<b>|<img", told)
    ET.fromstring(told)


def test_as_many_numbers_as_places_are_needed():
    with pytest.raises(ValueError, match="as many numbers as places"):
        drawn(ChartLine("a", [0, 1], [1]))
