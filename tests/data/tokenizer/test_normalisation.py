"""Normalising does what its docstring says and no more, and every character knows where it came from."""

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.tokenizer.subwords import NORMALISATIONS, trace_normalisation

NAMES = [*NORMALISATIONS]
NO_BREAK = "\xa0\u2007\u202f"


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_a_result_is_its_own_result(name, texts, data):
    text = data.draw(texts)
    normalise = NORMALISATIONS[name]
    assert normalise(normalise(text)) == normalise(text)


@given(data=st.data())
def test_each_rule_by_another_road(texts, data):
    text = data.draw(texts)
    composed = unicodedata.normalize("NFC", text)
    blank = [" " if c.isspace() and c not in NO_BREAK else c for c in composed]
    assert NORMALISATIONS["exact"](text) == text
    assert NORMALISATIONS["nfc"](text) == composed
    assert NORMALISATIONS["line"](text) == " ".join(filter(None, "".join(blank).split(" ")))


def test_white_space_is_what_python_says_less_the_no_break_spaces():
    folded = {chr(code) for code in range(sys.maxunicode + 1)
              if not 0xD800 <= code < 0xE000 and NORMALISATIONS["line"](f"a{chr(code)}b") == "a b"}
    assert folded == {c for c in map(chr, range(sys.maxunicode + 1)) if c.isspace()} - {*NO_BREAK}


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_the_trace_has_the_same_text_and_points_at_its_characters(name, texts, data):
    text = data.draw(texts)
    traced = trace_normalisation(name, text)
    assert traced.text == NORMALISATIONS[name](text)
    assert len(traced.spans) == len(traced.text)
    reached = 0
    for at, (start, end) in enumerate(traced.spans):
        assert 0 <= start < end <= len(text)
        together = [other for other, span in enumerate(traced.spans) if span == (start, end)]
        part = "".join(traced.text[other] for other in together)
        assert part == " " or NORMALISATIONS["exact" if name == "exact" else "nfc"](text[start:end]) == part
        assert together == [*range(together[0], together[-1] + 1)]
        if at == together[0]:
            skipped = text[reached:start]
            assert not skipped or (name == "line" and skipped.isspace())
            assert start >= reached
            reached = end
    assert not text[reached:] or (name == "line" and text[reached:].isspace())


@pytest.mark.parametrize(("text", "result", "spans"), [
    ("e\u0301a", "éa", [(0, 2), (2, 3)]),
    ("\u1100\u1161\u11a8\u1100", "각\u1100", [(0, 3), (3, 4)]),
    ("a \t b", "a b", [(0, 1), (1, 4), (4, 5)]),
    ("  e\u0301 \n", "é", [(2, 4)]),
    ("q\u0307\u0323x", "q\u0323\u0307x", [(0, 3), (0, 3), (0, 3), (3, 4)]),
    ("n\xa0!", "n\xa0!", [(0, 1), (1, 2), (2, 3)]),
    (" \t\n", "", []),
])
def test_examples(text, result, spans):
    traced = trace_normalisation("line", text)
    assert (traced.text, [tuple(span) for span in traced.spans]) == (result, spans)


def test_groups_are_cut_where_nothing_changes_across(traps):
    for one in traps:
        for other in traps:
            text = f"e\u0301{one}{other}\u0323{one}\u1161"
            assert trace_normalisation("nfc", text).text == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize("name", NAMES)
def test_a_lone_surrogate_is_refused_by_its_place(name):
    for call in (NORMALISATIONS[name], lambda text: trace_normalisation(name, text)):
        with pytest.raises(ValueError, match=r"`text` must be text of whole characters.*U\+D800 at character 3"):
            call("abc\ud800")
        with pytest.raises(ValueError, match="`text` must be text, but is a bytes"):
            call(b"abc")
