"""The heat map: it fits, it is aligned whatever the words are, and every shade says what its weight is."""

import math
import re
import unicodedata

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import assert_named

from regard.inspection import heat_map as heat
from regard.inspection.heat_map import SHADES, heat_map

ASCII = " .:+#"
SOURCE, TARGET = ["the", "black", "cat", "sleeps"], ["le", "chat", "noir", "dort"]
WEIGHTS = [[0.95, 0.01, 0.03, 0.01], [0.02, 0.22, 0.75, 0.01], [0.01, 0.70, 0.28, 0.01], [0.01, 0.02, 0.02, 0.95]]


def columns_of(text):
    """How many columns of a terminal a text takes, as Unicode says; enough for the characters of these tests."""
    none = ("Mn", "Me")
    return sum(0 if unicodedata.category(char) in none else 1 + (unicodedata.east_asian_width(char) in "WF")
               for char in text)


def body(lines):
    """The cells of the rows, between the frames."""
    return [re.fullmatch(r".*?[│|](.*)[│|]", line).group(1) for line in lines if line.endswith(("│", "|"))]


def test_the_example_of_the_module():
    drawn = "\n".join(f"    {line}" for line in heat_map(WEIGHTS, TARGET, SOURCE, width=32))
    assert f"\n\n{drawn}\n\n" in heat.__doc__


def test_words_beside_each_other_where_there_is_room():
    lines = heat_map(WEIGHTS, TARGET, SOURCE, width=80, shades=ASCII)
    assert lines == [
        "     the    black  cat    sleeps",
        "le  |######                     |",
        "chat|       ...... ++++++       |",
        "noir|       ++++++ ......       |",
        "dort|                     ######|",
        '" " 0   "." 0.24   ":" 0.47   "+" 0.71   "#" 0.95   weights from 0.01 to 0.95',
    ]


def test_layouts_from_wide_to_narrow():
    """One column a cell where there is no more."""
    narrow, narrowest = (heat_map(WEIGHTS, TARGET, SOURCE, width=width, shades=ASCII) for width in (11, 10))
    assert narrow[5:8] == ["   e k t s", "le|#      |", "c~|  . +  |"]
    assert narrowest[:6] == ["        s", "      b l", "      l e", "     tace", "     hcap", "     ekts"]
    assert narrowest[6:10] == ["le  |#   |", "chat| .+ |", "noir| +. |", "dort|   #|"]


@pytest.mark.parametrize(
    ("word", "width", "row"),
    [
        ("a", 17, "le chat│██ ██ ██│"), ("a", 16, "le chat│█ █ █│"), ("a", 14, "le chat│█ █ █│"),
        ("a", 13, "le…│█ █ █│"), ("a", 10, "l…│█ █ █│"), ("猫", 17, "le chat│██ ██ ██│"), ("猫", 16, "le chat│██████│"),
        ("猫", 15, "le chat│██████│"), ("猫", 14, "le…│██████│"), ("猫", 10, "l…│██████│"),
    ],
)  # fmt: skip
def test_widest_layout_that_fits(word, width, row):
    """Cells are made narrower before the words beside them are cut."""
    assert row.replace(" c", "␣c") in heat_map([[1.0] * 3], ["le chat"], [word * 9] * 3, width=width)


def test_what_does_not_fit_is_left_out_and_said():
    lines = heat_map([[1.0] * 60], ["word"], ["x"] * 60, width=20)
    assert body(lines) == ["█" * 14]
    assert " ".join(lines).endswith("46 of 60 words above are left out: only 14 fit into a width of 20")
    assert "left out" not in " ".join(heat_map([[1.0] * 14], ["word"], ["x"] * 14, width=20))


def test_a_long_word_above_is_cut():
    lines = heat_map([[1.0, 0.0]], ["a"], ["x" * 100, "b"], width=40)
    assert [line.split() for line in lines[:13]] == [*[["x"]] * 11, ["…", "b"], ["a│██", "│"]]


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("猫", "猫"), ("e\u0301", "é"), ("q\u0301", "q\u0301"), ("\u0301", "◌\u0301"), ("", "∅"), (" ", "␣"),
        ("\xa0", "␣"),
        ("\n", "‹U+000A›"), ("\x1b[31m", "‹U+001B›[31m"), ("\x7f", "‹U+007F›"), ("\x9b", "‹U+009B›"),
        ("a\u200db", "a‹U+200D›b"), ("\u202e", "‹U+202E›"), ("\ud800", "‹U+D800›"), ("\u2028", "‹U+2028›"),
        ("\u3164", "‹U+3164›"), ("[/bold]", "[/bold]"), ("❤\ufe0f", "❤"), ("👍🏽", "👍"), ("▁the", "▁the"),
        ("\u1112\u1161\u11ab", "한"),
    ],
)  # fmt: skip
def test_how_a_word_is_shown(word, shown):
    line = heat_map([[1.0]], [word], ["x"], width=40)[1]
    assert line == f"{shown}│██│"
    above = heat_map([[1.0]], ["x"], [word], width=40)[0]
    assert above == f"  {shown}"
    assert heat_map([[1.0]], [word], [word], width=40, shades=ASCII)[1].isascii()


@pytest.mark.parametrize("width", [10, 14, 20, 40, 80])
def test_wide_characters_stand_in_their_columns(width):
    """Each character above begins in the column where its cell begins."""
    across = ["猫", "a", "好き", "e\u0302x\u0302"]
    lines = heat_map([[1.0, 0.0, 1.0, 0.0]], ["日本"], across, width=width)
    (cells,) = body(lines)
    row = next(line for line in lines if line.endswith("│"))
    margin = columns_of(row[: row.index("│") + 1])
    starts = [match.start() for match in re.finditer("█+", cells)]
    head = lines[lines.index(row) - 1]
    where = {columns_of(head[:place]): char for place, char in enumerate(head) if columns_of(char) == 2}
    assert [margin + start for start in starts] == [place for place in where if place >= margin][:2]
    assert where[margin] == "猫"


@pytest.mark.parametrize("values", [[0.0, 0.3, 0.6, 1.0], [0.0, 2.0, 17.0, 30.0], [-1.0, 0.0, 0.4, 1.0],
                                    [1e-9, 2e-9, 0, 0], [-3.0, -2.0, -1.0, 0.0],
                                    [1e308, -1e308, 0.0, 5e307], [0.2, 0.2, 0.2, 0.2]])
def test_the_scale_tells_the_weight_of_each_shade(values):
    """What a reader takes from the scale is never further from the weight than half a step."""
    lines = heat_map([values], ["w"], list("abcd"), width=100)
    scale = {shade: float(value) for shade, value in re.findall(r'"(.)" (\S+)', lines[-1])}
    assert list(scale) == list(SHADES)
    read = [scale[cell[0]] for cell in re.findall(r"(..) ?", body(lines)[0])]
    low, high = min(0.0, *values), max(0.0, *values)
    for value, found in zip(values, read, strict=True):
        # Two digits of the scale are shown, so one more hundredth of the largest may be between them.
        assert abs(value - found) <= (high / 8 - low / 8) + 0.06 * max(high, -low)
    least, most = re.search(r"weights from (\S+) to (\S+)$", lines[-1]).groups()
    assert float(least) == pytest.approx(min(values), rel=0.06)
    assert float(most) == pytest.approx(max(values), rel=0.06)


def test_not_finite_weights_are_counted():
    zeros = heat_map([[0.0, 0.0]], ["a"], ["x", "y"])
    assert (body(zeros), zeros[-1]) == (["     "], "all weights are 0")
    lines = heat_map([[math.nan, 1.0, math.inf]], ["a"], ["x", "y", "z"], width=60)
    assert body(lines) == ["?? ██ ??"]
    assert '"?" 2 not finite' in " ".join(lines)
    assert heat_map([[math.nan]], ["a"], ["x"])[-1] == '"?" 1 not finite'


def test_lists_arrays_and_tensors_are_the_same():
    expected = heat_map(WEIGHTS, TARGET, SOURCE)
    tensor = torch.tensor(WEIGHTS, dtype=torch.float64, requires_grad=True)
    for weights in (np.array(WEIGHTS), tensor, list(tensor), tuple(map(tuple, WEIGHTS)), np.array(WEIGHTS).tolist()):
        assert heat_map(weights, TARGET, SOURCE) == expected
    assert len(heat_map(torch.tensor(WEIGHTS).bfloat16(), TARGET, SOURCE)) == len(expected)


def test_no_words():
    assert heat_map([], [], ["a"]) == ["no weights: 0 rows, 1 column"]
    assert heat_map([[]], ["a"], []) == ["no weights: 1 row, 0 columns"]
    assert heat_map(np.zeros((0, 0)), [], [], width=12) == ["no weights: "]


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        (([[1.0]], ["a", "b"], ["x"]), {}, ["weights", "2 rows of 1 numbers", "1 rows of 1"]),
        (([[1.0], [1.0, 2.0]], ["a", "b"], ["x"]), {}, ["weights", "2 rows of 1 or 2"]),
        (([[[1.0]]], ["a"], ["x"]), {}, ["weights", "1 rows of 1 numbers", "list"]),
        ((3.0, ["a"], ["x"]), {}, ["weights", "float"]),
        (([[1.0]], ["a"], ["x"]), {"width": 9}, ["width", "at least 10", "9"]),
        (([[1.0]], ["a"], ["x"]), {"shades": "#"}, ["shades", "two characters"]),
        (([[1.0]], ["a"], ["x"]), {"shades": " 猫"}, ["shades", "one column wide"]),
    ],
)
def test_wrong_calls(arguments, options, said):
    assert_named(lambda: heat_map(*arguments, **options), said)


CHARACTERS = st.one_of(st.sampled_from("ab\u0301猫▁ \n\x1b\u200d\ufe0f👍🏽"), st.characters())
WORDS = st.lists(st.text(CHARACTERS, max_size=20), min_size=1, max_size=30)


@given(WORDS, WORDS, st.integers(10, 120), st.sampled_from([SHADES, ASCII, "01"]), st.data())
def test_any_words_and_weights_fit_any_width(rows, columns, width, shades, data):
    weight = st.floats() if data.draw(st.booleans()) else st.floats(0, 1)
    weights = data.draw(st.lists(st.lists(weight, min_size=len(columns), max_size=len(columns)),
                                 min_size=len(rows), max_size=len(rows)))  # fmt: skip
    lines = heat_map(weights, rows, columns, width=width, shades=shades)
    assert all(heat.cell_len(line) <= width for line in lines)
    assert all(line.isprintable() for line in lines)
    if shades.isascii():
        assert all(line.isascii() for line in lines)
    frame = "|" if shades.isascii() else "│"
    drawn = [line for line in lines if line.endswith(frame)]
    assert len(drawn) >= len(rows)
    assert len({heat.cell_len(line) for line in drawn[-len(rows):]}) == 1


def test_a_row_that_would_be_blank_has_shades_of_its_own():
    """The first token of a causal map has weight 1, and the weights of late ones are all small."""
    weights = [[1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0], [0.1, 0.05, 0.02, 0.0]]
    lines = heat_map(weights, ["a", "b", "c"], ["w", "x", "y", "z"], width=80, shades=ASCII)
    assert body(lines) == ["##         ", "## ##      ", "## :: ..   "]
    legend = " ".join(lines)
    assert [part in legend for part in ('"." 25%', '"#" 100%', "each row", "from 0 to 1")] == [True] * 4
    weights[2] = [0.2, 0.1, 0.0, 0.0]  # visible on the scale of the map
    lines = heat_map(weights, ["a", "b", "c"], ["w", "x", "y", "z"], width=80, shades=ASCII)
    assert body(lines) == ["##         ", ":: ::      ", "..         "]
    assert "%" not in " ".join(lines)


@given(st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=1, max_size=5))
def test_no_row_with_a_weight_is_blank(weights):
    lines = heat_map(weights, ["w"] * len(weights), ["a", "b", "c"], shades=ASCII)
    for row, cells in zip(weights, body(lines), strict=True):
        assert (not cells.strip()) == (max(row) == 0)
