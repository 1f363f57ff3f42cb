"""SVG without matplotlib: attention maps and line charts."""

import re
import sys
import xml.etree.ElementTree as ET
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import assert_named

from regard.checks import plural
from regard.inspection.pictures import heads_svg, heat_svg
from regard.inspection.pictures.svg import ORANGE, ChartLine, lines_svg

WEIGHTS = np.array([[0.95, 0.05, 0.0], [0.25, 0.5, 0.25]])
NAMESPACE = "{http://www.w3.org/2000/svg}"
HARMLESS = {"svg", "g", "rect", "text", "title"}
ATTRIBUTES = {"x", "y", "width", "height", "fill", "stroke", "opacity", "text-anchor", "transform", "viewBox", "role",
              "aria-label", "font-family", "font-size", "shape-rendering", "xmlns"}


class Tags(HTMLParser):
    """What a browser would see in it."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes = set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def assert_inert(svg):
    found = Tags(svg)
    assert found.tags <= HARMLESS
    assert found.attributes <= {name.lower() for name in ATTRIBUTES}
    ElementTree.fromstring(svg)  # well-formed XML too


def texts(svg):
    return [element.text for element in ElementTree.fromstring(svg).iter(f"{NAMESPACE}text")]


def told(svg):
    return [element.text for element in ElementTree.fromstring(svg).iter(f"{NAMESPACE}title")]


def test_words_weights_and_a_scale():
    svg = heat_svg(torch.tensor(WEIGHTS), ["le", "chat"], ["the", "cat", "sat"], title="Le chat")
    assert texts(svg) == ["le", "chat", "the", "cat", "sat", "0", "0.95"]
    assert sorted(told(svg)) == sorted(["le → the: 0.95", "le → cat: 0.05", "le → sat: 0", "chat → the: 0.25",
                                        "chat → cat: 0.5", "chat → sat: 0.25"])
    assert ElementTree.fromstring(svg).attrib["aria-label"] == "Le chat"
    assert_inert(svg)


def test_the_share_of_ink_is_the_share_of_the_largest_weight():
    svg = heat_svg(WEIGHTS, ["le", "chat"], ["the", "cat", "sat"])
    for rect in ElementTree.fromstring(svg).iter(f"{NAMESPACE}rect"):
        title = rect.find(f"{NAMESPACE}title")
        if title is not None:
            weight = float(title.text.rpartition(" ")[2])
            assert float(rect.attrib["opacity"]) == pytest.approx(weight / 0.95, abs=1e-3)


def test_negative_weights_have_another_colour_and_it_is_said():
    svg = heat_svg([[-0.5, 1.5]], ["a"], ["b", "c"])
    groups = {group.attrib["fill"]: [title.text for title in group.iter(f"{NAMESPACE}title")]
              for group in ElementTree.fromstring(svg).iter(f"{NAMESPACE}g")}
    assert groups == {"currentColor": ["a → c: 1.5"], ORANGE: ["a → b: -0.5"]}
    assert texts(svg)[-3:] == ["-1.5", "1.5", "1 of 2 cells are negative: these are not probabilities"]


def test_what_is_no_number_is_pink_and_what_does_not_sum_to_one_is_said():
    svg = heat_svg([[np.nan, 3.0]], ["a"], ["b", "c"])
    assert 'fill="#ff7ac6"' in svg
    assert texts(svg)[-1] == "1 of 2 cells are not finite: pink"
    assert texts(heat_svg([[1.0, 3.0]], ["a"], ["b", "c"]))[-1] == "rows sum to more than 1, up to 4"


@given(st.lists(st.text(st.characters(codec=None), max_size=12), min_size=1, max_size=3), st.text(max_size=20))
def test_any_word_is_inert(words, title):
    svg = heat_svg(np.full((len(words), len(words)), 0.25), words, words, title=title)
    assert_inert(svg)
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200b]", svg)


@pytest.mark.parametrize("word", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "]]>", "<!--", "&lt;",
                                  "</svg>", "</title>"])
def test_tags_are_text(word):
    svg = heat_svg([[1.0]], [word], [word], title=word)
    assert_inert(svg)
    assert all("<" not in part for part in re.findall(r">([^<]*)<", svg))
    shown = word[:23] + "…" if len(word) > 24 else word
    assert texts(svg)[0] == shown.replace(" ", "␣")


def test_one_token_and_none():
    assert_inert(heat_svg([[1.0]], ["x"], ["y"]))
    for rows, columns in (([], []), (["a"], []), ([], ["a"])):
        svg = heat_svg(np.zeros((len(rows), len(columns))), rows, columns)
        assert texts(svg) == [f"no weights: {plural(len(rows), 'row')}, {plural(len(columns), 'column')}"]


def test_4096_tokens_stay_small_and_are_said_to_be_means():
    words = [f"w{number}" for number in range(4096)]
    svg = heat_svg(np.full((4096, 4096), 1 / 4096, np.float32), words, words)
    assert len(svg) < 600_000
    assert texts(svg)[-2:] == ["each cell is the mean of 64 × 64 weights",
                               "one row in 64 and one column in 64 are labelled"]
    assert texts(svg)[:2] == ["0 w0", "64 w64"]
    assert not told(svg)


def test_96_heads_have_one_scale():
    weights = np.full((96, 5, 4), 0.25)
    weights[7, 0] = [1.0, 0.0, 0.0, 0.0]
    svg = heads_svg(weights)
    assert_inert(svg)
    assert texts(svg) == [*map(str, range(96)), "0", "1"]
    maps = [group for group in ElementTree.fromstring(svg).iter(f"{NAMESPACE}g")]
    assert len(maps) == 96
    assert [rect.attrib["opacity"] for rect in maps[7]][:1] == ["1"]
    assert {rect.attrib["opacity"] for rect in maps[8]} == {"0.25"}


def test_no_head_has_nothing_to_show():
    assert texts(heads_svg(np.zeros((0, 2, 2)))) == ["no weights: (0, 2, 2)"]


def test_it_needs_no_other_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert_inert(heat_svg([[1.0]], ["x"], ["y"]))


def test_wrong_arguments_are_refused():
    assert_named(lambda: heat_svg(WEIGHTS, ["a"], ["b"]), ["`weights`", "(1, 1)", "(2, 3)"])
    assert_named(lambda: heads_svg(WEIGHTS), ["`weights`", "(heads, rows, columns)"])


SVG = "{http://www.w3.org/2000/svg}"


def drawn(*lines, **options):
    return ET.fromstring(lines_svg(lines, **{"x_label": "x", "y_label": "y", **options}))


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


def test_x_names_and_bands():
    root = drawn(ChartLine("a", [0, 1], [5, 6], [4, 5], [7, 8]), x_names=["1-10", "11-20"])
    assert {"1-10", "11-20"} <= {text.text for text in root.iter(f"{SVG}text")}
    assert any(path.get("opacity") == "0.18" for path in root.iter(f"{SVG}path"))
    assert "a, 11-20: 6 (5 to 8)" in [title.text for title in root.iter(f"{SVG}title")]


def test_logarithmic_axis_leaves_out_zeros_with_a_note():
    root = drawn(ChartLine("fades", [0, 1, 2, 3], [1, 0.1, 0.01, 0]), log=True)
    route = next(path.get("d") for path in root.iter(f"{SVG}path") if path.get("stroke-width") == "2")
    tops = [float(point.split()[1]) for point in route[1:].split("L")]
    assert len(tops) == 3
    assert tops[1] - tops[0] == pytest.approx(tops[2] - tops[1], abs=0.11)
    assert "fades: not shown where it is 0" in [text.text for text in root.iter(f"{SVG}text")]


def test_very_many_points_are_thinned_and_nothing_is_no_error():
    many = lines_svg([ChartLine("a", range(100_000), range(100_000))], x_label="x", y_label="y")
    assert len(many) < 20_000
    ET.fromstring(lines_svg([ChartLine("a", [], [])], x_label="x", y_label="y"))
    ET.fromstring(lines_svg([ChartLine("a", [0, 1], [float("nan"), float("inf")])], x_label="x", y_label="y"))
    assert drawn(ChartLine("same", [1, 2], [3, 3])) is not None
    assert drawn(ChartLine("one", [1], [3])) is not None


def test_words_are_text():
    told = lines_svg([ChartLine('<script>"&', [0, 1], [1, 2])], x_label="<b>", y_label="</svg>", title='"><img>')
    assert not re.search("<script|<b>|<img", told)
    ET.fromstring(told)


def test_x_and_y_have_one_length():
    with pytest.raises(ValueError, match="x and y of one length"):
        drawn(ChartLine("a", [0, 1], [1]))
