"""What cannot be seen has one name, in a terminal and in a picture."""

import sys
import unicodedata

import pytest

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


def test_a_second_variant_is_not_hidden():
    text, shown = "a\ufe0e\U000e0101", "a‹U+E0101›"
    assert labels.word_label(text).replace("\ufe0e", "") == shown
    assert heat_map([[1.0]], [text], ["x"], width=40)[1] == f"{shown}│██│"


def test_every_control_and_format_character_is_unseen():
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code))[0] in "CZ":
            assert not labels.is_visible(chr(code))
