"""Glossaries: which terms are found in a text, when one is met, and what is wrong with a file, by its line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.sources.text import DataError
from regard.tasks.glossary import Glossary, RequiredTerm

TERMS = Glossary({"dog": "chien", "hot dog": "saucisse", "big": ["grand", "gros"], "US": "États-Unis", "l": "litre",
                  "犬": "chien", "Inc.": "SA", "e-mail": "courriel"})


@pytest.mark.parametrize(("text", "want"), [
    ("The big dog.", [("big", "grand"), ("dog", "chien")]),
    ("Dog, DOG", [("Dog", "chien"), ("DOG", "chien")]),  # without capitals it is found in any case
    ("dogs, hotdog, dog's", [("dog", "chien")]),  # between the borders of words
    ("a hot dog", [("hot dog", "saucisse")]),  # the longest
    ("a hot\u2002 dog", [("hot\u2002 dog", "saucisse")]),  # white space is one space
    ("a hot-dog", []),
    ("tell us of the US", [("US", "États-Unis")]),  # with capitals only as it is written
    ("白い犬です", [("犬", "chien")]),
    ("a firm, Inc., here", [("Inc.", "SA")]),
    ("an e-mail, an e mail", [("e-mail", "courriel")]),
    ("", []), (" ", []),
])
def test_terms_in_a_text(text, want):
    found = TERMS.found(text)
    assert [(text[one.start:one.end], one.targets[0]) for one in found] == want


def test_from_left_to_right_the_longest():
    glossary = Glossary({"a": "0", "a b": "1", "b c d": "2", "c": "3"})
    assert [one.targets for one in glossary.found("a b c d")] == [("1",), ("3",)]
    assert [one.targets for one in glossary.found("x b c d")] == [("2",)]


def test_composed_and_decomposed_letters_are_one():
    assert Glossary({"caf\u00e9": "x"}).found("un cafe\u0301.") == [RequiredTerm(3, 8, ("x",))]


@pytest.mark.parametrize(("targets", "text", "met"), [
    (("chien",), "Le chien.", True), (("chien",), "Chien !", True), (("chien",), "les chiens", False),
    (("chien",), "CHIEN", False), (("homme",), "l'homme", True), (("grand", "gros"), "un gros chat", True),
    (("gros chien",), "un Gros chien", True), (("gros chien",), "gros, chien", False),
    (("États-Unis",), "les États-Unis", True), (("États-Unis",), "les états-unis", False),
    (("犬",), "白い犬です", True), (("chien",), "", False), (("iPhone",), "IPhone", False),
])
def test_when_a_term_is_met(targets, text, met):
    assert RequiredTerm(0, 1, targets).appears_in(text) is met


@given(st.text(alphabet="abC .'-é\u0301犬\u200d", max_size=20), st.text(alphabet="abC .-", min_size=1, max_size=5))
def test_what_is_found_stands_there(text, term):
    if not term.strip():
        return
    for one in Glossary({term: "x"}).found(text):
        there = "".join(text[one.start:one.end].split())
        assert there.lower() == "".join(term.split()).lower()


def test_a_file(tmp_path):
    path = tmp_path / "terms.tsv"
    path.write_bytes("\ufeffdog\tchien\r\n\r\nbig \tgrand\nbig\tgros\nbig\tgros\n".encode())
    assert Glossary.read(path).entries == {"dog": ("chien",), "big": ("grand", "gros")}


@pytest.mark.parametrize(("data", "message"), [
    (b"dog\tchien\nbig\n", r"terms\.tsv:2: 1 column instead of 2"),
    (b"dog\tchien\tx\n", r"terms\.tsv:1: 3 columns instead of 2"),
    (b"a\tb\n\tchien\n", r"terms\.tsv:2: The source term"),
    (b"dog\t \n", r"terms\.tsv:1: The target term"),
    (b"dog\tchi\xffen\n", r"terms\.tsv:1: byte 8: 0xFF is not UTF-8"),
    (b"\n\n", r"terms\.tsv: There are no terms in it"), (b"", r"terms\.tsv: There are no terms in it"),
])
def test_a_file_that_is_wrong(tmp_path, data, message):
    (tmp_path / "terms.tsv").write_bytes(data)
    with pytest.raises(DataError, match=message):
        Glossary.read(tmp_path / "terms.tsv")


@pytest.mark.parametrize("entries", [{"": "x"}, {"a": ""}, {"a": []}, {"a": [" "]}, {"a": [5]}, {5: "a"}, ["a"], "a",
                                     {"a": 5}, {"a": None}])
def test_a_table_that_is_wrong(entries):
    with pytest.raises(ValueError, match="`entries` must be"):
        Glossary(entries)
