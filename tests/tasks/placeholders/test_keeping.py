"""Placeholders survive any model: one that copies, loses, adds, swaps, or writes anything at all."""

import random
from types import SimpleNamespace

import pytest
import texting
from hypothesis import given
from hypothesis import strategies as st
from linked import aligned

from regard.data.tokenizer.interface import find_units
from regard.tasks.placeholder_translation import PlaceholderTranslation, translate_with_placeholders
from regard.tasks.placeholders import find_placeholders

TEXTS = ["Delete {count} files?", "the dog", "%s: %s", "", " \n", "  Open <b>%s</b>.\n\nSee https://a.org/{0}.\n",
         "100% of $5", "<a\nhref='x'>here</a>"]


def model(write, asked=None):
    """Something that translates with a function from text to text."""

    def ask(texts):
        if asked is not None:
            asked.append(texts)
        return [SimpleNamespace(text=write(text), score=-float(len(text)), cut=False) for text in texts]

    return ask


def shout(text):
    return "".join(letter.upper() for letter in text)


def without(text):
    """A model that knows no placeholder, but copies codes."""
    return " ".join(word for word in shout(text).split() if not find_placeholders(word.lower()))


@pytest.mark.parametrize(("write", "how", "want"), [
    (lambda text: text.replace("Delete", "Supprimer"), "whole", "Supprimer {count} files?"),
    (without, "stand-ins", "DELETE {count} FILES?"),
    (lambda text: "".join(filter(lambda one: one.isalpha() or one in " ?", shout(text))).replace("X ", ""), "pieces",
     "DELETE {count} FILES?"),
    (lambda text: "{x}", "pieces", " {count} "),
])
def test_the_ways_in_turn(write, how, want):
    (found,) = translate_with_placeholders(["Delete {count} files?"], model(write))
    assert (found.text, found.strategy) == (want, how)


def alike(texts, found):
    """Words that belong together by their order, as far as there are enough."""
    return [aligned(text, one.text, " ".join(f"{word}-{word}" for word in range(min(len(find_units(text)),
                                                                                    len(find_units(one.text))))))
            for text, one in zip(texts, found, strict=True)]


@pytest.mark.parametrize(("text", "write", "how", "want"), [
    ("Delete {count} files?", lambda text: text.replace("Delete", "Supprimer"), "whole", "Supprimer {count} files?"),
    ("Delete {count} files?", without, "stand-ins", "DELETE {count} FILES?"),
    ("Delete {count} files?", {"Delete 12 files?": "Supprimer 12 fichiers ?"}.get, "placed",
     "Supprimer {count} fichiers ?"),
    ("Delete {count} files?", {"Delete 12 files?": "Supprimer deux fichiers ?"}.get, "placed",
     "Supprimer {count} fichiers ?"),
    ("Delete <b>all</b> {x}.", {"Delete all 12.": "Supprimer tout 12."}.get, "placed", "Supprimer <b>tout</b> {x}."),
    ("a <b>b</b> c <i>d</i>", lambda text: text.upper() if len(text) < 3 else "", "pieces", "A <b>B</b> C <i>D</i>"),
    ("Delete {count} files?", lambda text: shout(text) if len(text) < 9 else "a\x1b b c", "pieces",
     "DELETE {count} FILES?"),
])
def test_the_ways_where_words_are_aligned(text, write, how, want):
    (found,) = translate_with_placeholders([text], model(lambda text: write(text) or "no"), alike)
    assert (found.text, found.strategy) == (want, how)


def test_a_text_with_tags_has_no_codes():
    asked = []
    translate_with_placeholders(["a <b>big</b> dog"], model(lambda text: "x y", asked), alike)
    assert asked == [["a <b>big</b> dog"], ["a big dog"]]


def test_what_is_aligned_is_what_was_asked_and_found():
    seen = []
    translate_with_placeholders(["the dog", "see {x}, you", "see {y}, you"], model(lambda text: "le chien"),
         lambda texts, found: seen.append((texts, [one.text for one in found])) or alike(texts, found))
    assert seen == [(["see 12, you"], ["le chien"])]


def test_where_nothing_helps_the_text_stays():
    (found,) = translate_with_placeholders(["%1b"], model(lambda text: "s"))  # %1s would be another, and there is no sign to leave out
    assert found == PlaceholderTranslation("%1b", 0.0, False, "source")


def test_lines_white_space_and_blanks():
    asked = []
    found = translate_with_placeholders(["  two\n\n three \r\ntwo", "", " \u200b"], model(shout, asked))
    assert [one.text for one in found] == ["  TWO\n\n THREE \r\nTWO", "", ""]
    assert asked == [["two", "three"]]  # each line once
    assert found[0].score == -5.0
    assert translate_with_placeholders([], model(shout, asked)) == []
    assert len(asked) == 1


def test_what_is_asked_within_a_line():
    asked, inner = [], []
    ask = model(lambda text: f"I {text}" if len(text) < 3 else "", asked)
    found = translate_with_placeholders(["a %s b {x} c", "b %d a"], ask, None, model(shout, inner))
    assert [(one.text, one.strategy) for one in found] == [("I a %s B {x} C", "pieces"), ("I b %d A", "pieces")]
    assert (asked[-1], inner) == (["a", "b"], [["b", "c", "a"]])


def test_a_text_of_signs_and_placeholders_asks_no_model():
    assert translate_with_placeholders(["%s: <b>{0}</b>, 5"], model(lambda text: pytest.fail("asked")))[0].text == "%s: <b>{0}</b>, 5"


def test_a_translation_of_a_line_is_a_line():
    (found,) = translate_with_placeholders(["the dog"], model(lambda text: " le\nchien\t\0noir\ufffe\x1b\u2028dort\r\n"))
    assert found.text == "le chien noir dort"


def test_no_placeholder_comes_about_between_lines():
    (found,) = translate_with_placeholders(["a\nb"], model({"a": "{", "b": "}"}.get))
    assert (found.text, found.strategy) == ("a\nb", "source")


@given(st.lists(st.text("%s{}$<>/ab1 &;#x@.:w'-(n)d\n", max_size=30), max_size=4), st.integers(0, 2**32),
       st.sampled_from([None, alike]))
def test_any_text_and_any_model(texts, seed, align):
    draw = random.Random(seed)
    found = translate_with_placeholders(texts, model(lambda text: "".join(draw.choices("%s{}<>/b1 X2$:.w\n", k=draw.randrange(12)))), align)
    for text, one in zip(texts, found, strict=True):
        if text.strip():
            assert find_placeholders(one.text) == find_placeholders(text)
            assert one.text.count("\n") == text.count("\n") or find_placeholders(text)


def test_an_untrained_model():
    task = texting.translator()

    def ask(texts):
        return task.translate(texts, beams=1, max_length=8, length_penalty="none")

    for align, ways in ((None, {"whole", "pieces"}), (task.align, {"whole", "placed", "pieces"})):
        found = translate_with_placeholders(TEXTS, ask, align)
        for text, one in zip(TEXTS, found, strict=True):
            assert find_placeholders(one.text) == find_placeholders(text)
        assert {"whole", "pieces"} <= {one.strategy for one in found} <= ways
