"""Words as labels: invisible characters are shown by code point, long words are truncated."""

import sys
import unicodedata
import xml.etree.ElementTree as ElementTree
from html import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.inspection import labels
from regard.inspection.heat_map import heat_map

UNSEEN = ["\x00", "\n", "\x1b", "\x7f", "\x9b", "\u034f", "\u115f", "\u200b", "\u200d", "\u2028", "\u202e", "\u2060",
          "\u2800", "\u3164", "\ud800", "\ue000", "\ufeff", "\U000e0041"]


@pytest.mark.parametrize("char", UNSEEN)
def test_one_name_for_each(char):
    name = f"‹U+{ord(char):04X}›"
    assert not labels.is_visible(char)
    assert labels.code_point(char) == labels.word_label(char) == name
    assert heat_map([[1.0]], [f"a{char}b"], ["x"], width=40)[1] == f"a{name}b│██│"


def test_spaces_and_nothing():
    for text, shown in ((" ", "␣"), ("\u3000", "␣"), ("", "∅")):
        assert labels.word_label(text) == shown
        assert heat_map([[1.0]], [text], ["x"], width=40)[1] == f"{shown}│██│"


def test_second_variation_selector_is_shown():
    text, shown = "a\ufe0e\U000e0101", "a‹U+E0101›"
    assert labels.word_label(text).replace("\ufe0e", "") == shown
    assert heat_map([[1.0]], [text], ["x"], width=40)[1] == f"{shown}│██│"


def test_every_control_and_format_character_is_invisible():
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code))[0] in "CZ":
            assert not labels.is_visible(chr(code))


SHOWN = [
    ("chat", "chat"),
    ("▁the", "▁the"),
    ("", "∅"),
    (" ", "␣"),
    ("New York", "New␣York"),
    ("a\u00a0b", "a␣b"),
    ("\u200b", "‹U+200B›"),
    ("\n", "‹U+000A›"),
    ("\x00", "‹U+0000›"),
    ("\u202eevil", "‹U+202E›evil"),
    ("\ud800", "‹U+D800›"),
    ("\u2800", "‹U+2800›"),
    ("so\u00adft", "so‹U+00AD›ft"),
    ("e\u0301", "é"),
    ("\u0301", "◌\u0301"),
    ("שלום", "שלום"),
    ("می\u200cخواهم", "می\u200cخواهم"),
    ("👩\u200d👧", "👩\u200d👧"),
    ("👩\u200d", "👩‹U+200D›"),
    ("\u200d👩", "‹U+200D›👩"),
    ("❤\ufe0f", "❤\ufe0f"),
    ("\ufe0f", "◌\ufe0f"),
    ("👍🏽", "👍🏽"),
    ("🏴\U000e0067\U000e0062\U000e007f", "🏴\U000e0067\U000e0062\U000e007f"),
    ("a\U000e0067", "a‹U+E0067›"),
    ("a\U000e0100\U000e0101", "a\U000e0100‹U+E0101›"),
    ("<script>", "<script>"),
    ("$x$", "$x$"),
]


@pytest.mark.parametrize(("text", "shown"), SHOWN)
def test_a_word(text, shown):
    assert labels.word_label(text) == shown


def test_a_sentence_keeps_its_spaces():
    assert labels.text_label("Two  dogs.", 40) == "Two  dogs."
    assert labels.text_label("a\tb", 40) == "a‹U+0009›b"
    assert labels.text_label("", 40) == ""


def test_long_words_are_cut_and_say_so():
    assert labels.word_label("a" * 24) == "a" * 24
    assert labels.word_label("a" * 25) == "a" * 23 + "…"
    assert labels.word_label("中" * 20) == "中" * 11 + "…"  # each is two columns wide


def test_emoji_are_not_cut_in_the_middle():
    family = "👩\u200d👩\u200d👧"
    assert labels.word_label(family * 10, 16) in {family * count + "…" for count in range(1, 5)}


def test_stacked_marks_are_limited():
    shown = labels.word_label("a" + "\u0301" * 500)
    assert len(shown) < 20
    assert shown.endswith("…")


@given(st.text(st.characters(codec=None), max_size=40))
def test_any_text_can_be_seen_and_stands_in_xml(text):
    shown = labels.word_label(text)
    assert labels.display_width(shown) <= labels.MAX_COLUMNS
    assert shown
    assert all(char.isprintable() or char in labels.JOINERS or "\U000e0020" <= char <= "\U000e007f" for char in shown)
    assert ElementTree.fromstring(f"<a>{escape(shown)}</a>").text == shown


def test_few_words_are_all_named():
    assert labels.axis_labels(["a", "b", "c"], 1, 3) == ([0.0, 1.0, 2.0], ["a", "b", "c"])
    assert labels.describe_label_step(3, 3, 1, 3) == []


def test_of_many_words_some_are_named_with_their_positions():
    places, names = labels.axis_labels(list("abcdefg"), 1, 3)
    assert (places, names) == ([0.0, 3.0, 6.0], ["0 a", "3 d", "6 g"])
    assert labels.describe_label_step(7, 3, 1, 3) == ["one row in 3 is labelled"]
    assert labels.describe_label_step(7, 4, 1, 3) == ["one row in 3 and one column in 2 are labelled"]


def test_no_two_words_are_named_in_one_cell():
    places, names = labels.axis_labels(list("abcdefghij"), 4, 6)
    assert names == ["0 a", "4 e", "8 i"]
    assert places == [-0.375, 0.625, 1.625]  # at the first word of a cell that is four words wide
    assert labels.describe_label_step(10, 2, 4, 6) == ["one row in 4 and one column in 4 are labelled"]
