"""Glossaries: terms in a text, their spellings in tokens, and translations that have them."""

import copy
import pickle

import ending
import pytest
import texting
import torch
from asking import by_force, without_attention
from hypothesis import given
from hypothesis import strategies as st
from theirs import byte_level

from regard.data.sources.text import DataError
from regard.data.tokenizer.subwords import ByteTokenizer
from regard.data.tokenizer.training import UnigramConfig, train_tokenizer
from regard.decoding.request import Hypothesis
from regard.tasks.alignment import Alignment
from regard.tasks.glossary import (
    Glossary,
    GlossarySearch,
    RequiredTerm,
    TermSpelling,
    TranslationInput,
    can_continue,
    finish_search,
)
from regard.tasks.search import Beam

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


TEXTS = ["l'homme et l'oiseau, qu'un homme voit", "L'Homme (un homme) d'un-homme", "un homme «homme» ’homme"] * 20


def elided():
    """With a piece for l'."""
    return train_tokenizer([f"{one} l'ami d'ami" for one in TEXTS], UnigramConfig(vocab_size=330)).tokenizer


TOKENIZERS = {"unigram": lambda: texting.tokenizer(1), "elided": elided, "characters": texting.characters,
              "bytes": ByteTokenizer, "byte level": byte_level}


@pytest.fixture(scope="module", params=sorted(TOKENIZERS))
def spelling(request):
    return TermSpelling(TOKENIZERS[request.param]())


@pytest.mark.parametrize("word", ["homme", "le chien", "été", "Émile", "zqx"])
def test_every_way_is_the_word_and_begins_one(spelling, word):
    tokenizer = spelling.tokenizer
    before = tokenizer.encode("ab")
    for way in spelling.ways(word):
        text = tokenizer.decode([*before, *way])
        assert text.casefold().endswith(word.casefold())
        left = text[:len(text) - len(word)]
        assert not left[-1].isalnum() or text[len(left)].isupper(), text
    spaced = tokenizer.decode([*before, *spelling.at(word, glued=False)])
    assert spaced == f"ab {word}"
    glued = spelling.at(word, glued=True)
    assert not glued or tokenizer.decode([*tokenizer.encode("l'"), *glued]) == f"l'{word}"


def test_the_way_that_the_tokenizer_itself_takes_is_among_them(spelling):
    for text in ("un homme", "l'homme", "(homme", "Homme"):
        ids = tuple(spelling.tokenizer.encode(text))
        assert any(ids[len(ids) - len(way):] == way for way in spelling.ways("homme")), text


def test_what_goes_on_with_a_word(spelling):
    tokenizer, joining = spelling.tokenizer, {*spelling.joining}
    before = tokenizer.encode("homme")
    text = tokenizer.decode(before)
    special = tokenizer.special.ids()
    for id_ in range(tokenizer.size):
        added = tokenizer.decode([*before, id_])[len(text):]
        if id_ in special or not added:
            assert id_ not in joining
        elif added[0] != "\ufffd":
            behind = [added] if added.strip("-'’") else [added, f"{added}a"]  # a sign that may join what follows
            met = [RequiredTerm(0, 1, (word,)).appears_in(f"{word}{one}") for word in ("homme", "du") for one in behind]
            assert (id_ in joining) is not all(met), added


@pytest.mark.parametrize(("text", "goes"), [("chien", True), ("été", True), ("SA.", False), ("犬", False),
                                            ("x2", True)])
def test_what_could_be_gone_on_with(text, goes):
    assert can_continue(text) is goes


INSISTING_TEXTS = ["the big dog sleeps.", "Emma sees a cat.", "no", "", "the dog and the cat"]
INSISTING_TERMS = {"dog": "chameau", "cat": ["homme", "zqx é"], "big": "grand"}


def assert_met(glossary, text, one):
    for term in glossary.found(text):
        assert term.appears_in(one.text), (one.text, term)


@pytest.mark.thorough
@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("make", [ending.translator, texting.translator, without_attention])
def test_terms_appear_even_where_nothing_was_learned(make, beams):
    task, glossary = make(), Glossary(INSISTING_TERMS)
    found = task.translate(INSISTING_TEXTS, beams=beams, nbest=min(beams, 2), glossary=glossary, max_length=40)
    for text, best in zip(INSISTING_TEXTS, found, strict=True):
        for one in (best, *best.alternatives):
            assert_met(glossary, text, one)
    assert found[3].text == ""


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_of_a_translator_that_has_spelled_terms(copied):
    task, options = ending.translator(), {"beams": 2, "glossary": INSISTING_TERMS, "max_length": 20}
    found = task.translate(INSISTING_TEXTS[:2], **options)
    other = copied(task)
    assert [one.ids for one in other.translate(INSISTING_TEXTS[:2], **options)] == [one.ids for one in found]
    assert other.spelling.tokenizer is other.pair_tokenizer().target


def test_a_text_without_terms_is_translated_as_without_a_glossary():
    task = ending.translator()
    plain, found = (task.translate(INSISTING_TEXTS, beams=3, max_length=12, **options)
                    for options in ({}, {"glossary": INSISTING_TERMS}))
    assert plain[2].ids == found[2].ids
    assert found[0].ids != plain[0].ids
    alone = [task.translate(text, beams=3, max_length=12, glossary=INSISTING_TERMS).ids for text in INSISTING_TEXTS]
    assert [one.ids for one in found] == alone


def test_a_text_has_a_turn_for_each_of_its_terms_whatever_is_beside_it():
    """A model that never writes a term as a word, and looks at everything with its last word."""
    tokenizer, rows = texting.characters(), []

    def write(some, search):
        rows.extend(some)
        return [[Hypothesis([*row.prefix, *tokenizer.encode("s u")], [], 0.0, None)] for row in some]

    def look(pairs):
        found = []
        for text, ids in pairs:
            source, target = tokenizer.words(text), tokenizer.decoded_words(ids)
            weights = torch.zeros(len(target), len(source))
            weights[-1] = 1.0
            found.append(Alignment.of(text, source, tokenizer.decode(ids), target, weights))
        return found

    def turns(*texts):
        rows.clear()
        asked = [TranslationInput(text, [number], [], Glossary({"dog": "chien"}).found(text)) for number,
                 text in enumerate(texts)]
        finish_search(GlossarySearch(look, TermSpelling(tokenizer), lambda row: 99).steps(asked, Beam()), write)
        return [sum(bool(row.prefix) for row in rows if row.source == [number]) for number in range(len(texts))]

    assert turns("a dog") == [1]
    assert turns("dog dog dog") == [3]
    assert turns("a dog", "dog dog dog", "a") == [1, 3, 0]


def test_probabilities_are_the_models_own():
    task = ending.translator()
    one = task.translate(INSISTING_TEXTS[0], glossary=INSISTING_TERMS, max_length=30)
    assert len(one.log_probabilities) == len(one.ids) + (not one.cut)
    assert one.log_probabilities == pytest.approx(by_force(task, INSISTING_TEXTS[0], one), abs=1e-4)


def test_a_prefix_that_has_the_term_is_enough():
    task = ending.translator()
    one = task.translate("a cat", prefix="un homme", glossary=INSISTING_TERMS, max_length=30)
    assert one.text.startswith("un homme")
    assert one.ids == task.translate("a cat", prefix="un homme", max_length=30).ids


def test_a_limit_that_is_too_short_for_the_terms_is_named():
    """By the words of the user: the term, and the text that it is in."""
    glossary = {"cat": "zqx zqx zqx", "dog": "chien"}
    with pytest.raises(ValueError, match=r"`glossary` must be terms that fit into a translation, here into 2 tokens, "
                                         r"but is \d+ tokens for 'cat' of 'a cat' instead"):
        ending.translator().translate(["no", "a cat"], glossary=glossary, max_length=2)
    with pytest.raises(ValueError, match=r"into 1 token, but is \d+ tokens for 'Cat', 'dog' of 'Cat, dog' instead"):
        ending.translator().translate("Cat, dog", prefix="un", glossary=glossary, max_length=4)


@pytest.mark.parametrize("embedding", ["sinusoidal", "learned"])
def test_a_term_that_is_longer_than_any_translation_is_named(embedding):
    """Where nobody gave a limit it follows from the source, or from the positions of the model."""
    with pytest.raises(ValueError, match=r"`glossary` must be .* tokens for 'cat' of 'a cat' instead"):
        texting.translator(embedding, tie_word_embeddings=False).translate("a cat", glossary={"cat": "zqx " * 60})
