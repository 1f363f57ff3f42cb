"""What stands in one text: each find against a literal definition, and texts that look alike and are fine."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import filters

ODD = "a é\u0301\u00a0\u200b\ufeff\ufffd\x00\x0b\x0c\x1b\x1c\x1f\t\n\r\x7f\x85\x9f\u2028\u2029ÃÂâ€™©\ud800 "
TEXTS = st.text(st.one_of(st.sampled_from(ODD), st.characters()), max_size=12)


@pytest.mark.parametrize(
    "text",
    ["", " ", "   \t", "\u00a0", "\u200b", "\ufeff", "\u200b \u00a0\u2060", "\x00\x07", "\u3164", "\u2800",
     "\u200e\u202c", "\xad"],
)  # fmt: skip
def test_what_has_nothing_to_read(text):
    assert filters.is_blank(text)


@pytest.mark.parametrize("text", ["a", ".", " 1 ", "\u200bא", "़x", "🙂", "한", "\ufffd"])
def test_what_can_be_read(text):
    assert not filters.is_blank(text)


@given(TEXTS)
def test_line_breaks_are_what_python_would_split_at(text):
    at = filters.find_line_break(text)
    assert (at >= 0) == (len((text + "x").splitlines()) > 1)
    if at >= 0:
        assert text[at] == text.splitlines(keepends=True)[0].rstrip(" ")[-1] or text[at] == "\r"


@pytest.mark.parametrize("char", "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")
def test_every_line_break(char):
    assert filters.find_line_break(f"a{char}b") == 1
    assert filters.find_control(f"a{char}b") == -1


@given(TEXTS)
def test_control_characters_are_those_of_unicode_but_for_the_tab_and_line_breaks(text):
    breaks = "\n\r\x0b\x0c\x1c\x1d\x1e\x85"
    odd = [at for at, char in enumerate(text)
           if (unicodedata.category(char) in ("Cc", "Cs") and char not in breaks + "\t") or char == "\ufeff"
           or char in "\ufffe\uffff" or "\ufdd0" <= char <= "\ufdef"]  # fmt: skip
    assert filters.find_control(text) == (odd[0] if odd else -1)


@given(st.text(st.characters(codec="utf-8", min_codepoint=0xA1), min_size=2, max_size=20))
def test_mojibake_of_any_text_that_went_through_latin_1(text):
    """Two letters that are not ASCII, at least, so that chance is no explanation."""
    assert filters.find_mojibake("plain " + text.encode().decode("latin-1")) >= 6


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("café".encode().decode("cp1252"), 3),
        ("It’s".encode().decode("cp1252"), 2),
        ("“so”".encode().decode("latin-1"), 0),
        ("Привет".encode().decode("latin-1"), 0),
        ("no. 5 costs £3, 5 °C".encode().decode("cp1252"), 12),
        ("Москва, and next to it cafÃ©", 26),  # only a part of the line
    ],
)
def test_mojibake_is_found(text, at):
    assert filters.find_mojibake(text) == at


@pytest.mark.parametrize(
    "text",
    [
        "plain", "café", "Ein Mädchen, „MENÜ“", "CAFÉ\u00a0!", "« À\u00a0» et « CAFÉ »",
        "« THÉ\u00a0» et « CAFÉ\u00a0»", "« il dit “café”\u00a0»",
        "AMANHÃ — SIM", "“AMANHÔ", "NÃO", "Âme", "ÂNGULO", "Đã", "ÇÖÜ", "Größe × 3", "España ¡olé!", "Å“", "5 €",
        "naïve…", "Ünïcödé", "Hrvatska šžč",
    ],
)  # fmt: skip
def test_texts_that_only_look_like_it(text):
    assert filters.find_mojibake(text) == -1


@given(TEXTS)
def test_decomposed_is_what_is_not_in_normal_form_c(text):
    at = filters.find_decomposed(text)
    assert (at >= 0) == (unicodedata.normalize("NFC", text) != text)
    if at > 0:
        assert unicodedata.normalize("NFC", text)[:at] == text[:at]
    assert filters.has_composed(text) == (unicodedata.normalize("NFD", text) != text)


@pytest.mark.parametrize(
    ("text", "at"),
    [("", -1), (" ", 0), ("a b", -1), (" a", 0), ("a ", 1), ("ab\u00a0", 2), ("\ta\n", 0), ("a\u200b", -1)],
)
def test_white_space_at_the_ends(text, at):
    assert filters.find_outer_space(text) == at


@given(st.lists(TEXTS, max_size=6))
def test_nothing_in_many_texts_is_nothing_in_each(texts):
    for name in ("line_break", "control", "replacement", "mojibake", "decomposed", "outer_space"):
        if getattr(filters, f"no_{name}")(texts):
            assert all(getattr(filters, f"find_{name}")(text) == -1 for text in texts), name


@pytest.mark.parametrize("name", ["line_break", "control", "replacement", "mojibake", "decomposed", "outer_space"])
def test_ordinary_texts_pass_at_once(name):
    assert getattr(filters, f"no_{name}")(["", "plain", "Mädchen – « oui\u00a0»", "北京", "Привет, мир!"])


@pytest.mark.parametrize("other", ["cafe\u0301  NOIR", "Café\u00a0noir", " café NOIR\t", "CAFÉ\nnoir"])
def test_folding(other):
    assert filters.fold_text(other) == filters.fold_text("café noir") == "café noir"
    assert filters.fold_text("Straße") == filters.fold_text("STRASSE")
    assert filters.fold_text("cafe noir") != filters.fold_text("café noir")
