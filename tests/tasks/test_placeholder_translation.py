"""Translations keep placeholders, and put them where they belong."""

import random
from itertools import combinations_with_replacement
from types import SimpleNamespace

import pytest
import texting
from hypothesis import given
from hypothesis import strategies as st
from linked import aligned

from regard.data.tokenizer.interface import find_units
from regard.tasks.placeholder_translation import (
    PlaceholderTranslation,
    PlacementScores,
    _has_space,
    best_places,
    place_marks,
    restore_placeholders,
    translate_with_placeholders,
)
from regard.tasks.placeholders import StrippedText, find_placeholders

TEXTS = ["Delete {count} files?", "the dog", "%s: %s", "", " \n", "  Open <b>%s</b>.\n\nSee https://a.org/{0}.\n",
         "100% of $5", "<a\nhref='x'>here</a>"]


def model(write, asked=None):
    """Something that translates with a function from text to text."""

    def ask(texts):
        if asked is not None:
            asked.append(texts)
        return [SimpleNamespace(text=write(text), score=-float(len(text)), cut=False, alternatives=())
                for text in texts]

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
    # %1s would be another placeholder, and there is no sign to leave out.
    (found,) = translate_with_placeholders(["%1b"], model(lambda text: "s"))
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
    assert translate_with_placeholders(["%s: <b>{0}</b>, 5"],
                                       model(lambda text: pytest.fail("asked")))[0].text == "%s: <b>{0}</b>, 5"


def test_a_translation_of_a_line_is_a_line():
    (found,) = translate_with_placeholders(["the dog"],
                                           model(lambda text: " le\nchien\t\0noir\ufffe\x1b\u2028dort\r\n"))
    assert found.text == "le chien noir dort"


def test_no_placeholder_comes_about_between_lines():
    (found,) = translate_with_placeholders(["a\nb"], model({"a": "{", "b": "}"}.get))
    assert (found.text, found.strategy) == ("a\nb", "source")


@given(st.lists(st.text("%s{}$<>/ab1 &;#x@.:w'-(n)d\n", max_size=30), max_size=4), st.integers(0, 2**32),
       st.sampled_from([None, alike]))
def test_any_text_and_any_model(texts, seed, align):
    draw = random.Random(seed)
    found = translate_with_placeholders(texts, model(lambda text: "".join(draw.choices("%s{}<>/b1 X2$:.w\n",
                                                                                       k=draw.randrange(12)))), align)
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


SCORES = st.one_of(st.integers(-5, 5).map(float), st.just(float("-inf")))


@given(st.integers(1, 5).flatmap(lambda count: st.lists(
    st.tuples(st.lists(SCORES, min_size=count, max_size=count), st.booleans()), max_size=4)))
def test_the_highest_of_all_ways(drawn):
    rows = [PlacementScores(scores, apart) for scores, apart in drawn]
    count = len(rows[0].scores) if rows else 1
    ways = [way for way in combinations_with_replacement(range(count), len(rows))
            if all(not row.apart or way[number] < way[number + 1] for number, row in enumerate(rows[1:]))]
    totals = [sum(row.scores[g] for row, g in zip(rows, way, strict=True)) for way in ways]
    found = best_places(rows)
    if max(totals, default=float("-inf")) == float("-inf"):
        assert found is None
    else:
        assert sum(row.scores[g] for row, g in zip(rows, found, strict=True)) == max(totals)
        assert tuple(found) in ways


@pytest.mark.parametrize(("line", "target", "links", "want"), [
    # a number that was left behind, and what was made of it
    ("Delete %s files.", "Supprimer 12 fichiers.", "0-0 1-1 2-2 3-3", [(1, 2)]),
    ("Delete %s files.", "Supprimer les douze fichiers.", "0-0 1-1 1-2 2-3 3-4", [(1, 3)]),
    ("Delete %s files.", "Supprimer fichiers.", "0-0 2-1 3-2", [(1, 1)]),  # nothing
    ("see the red %s", "voir la bidule rouge", "0-0 1-1 3-2 2-3", [(2, 3)]),
    # tags, also where words change places
    ("a <b>red</b> car", "une voiture rouge", "0-0 2-1 1-2", [(2, 2), (3, 3)]),
    ("<b>not</b> me", "ne moi pas", "0-0 1-1 0-2", [(0, 0), (1, 1)]),
    ("<b>not at all</b> me", "ne moi pas du tout", "0-0 3-1 0-2 1-3 2-4", [(2, 2), (5, 5)]),
    ("<b>the big dog</b>", "le chien", "1-0 2-1", [(0, 0), (2, 2)]),  # all is all, whatever the links say
    # signs at the end
    ("The dog. https://a.org", "Le chien.", "0-0 1-1", [(3, 3)]),
    ("Hello, {name}!", "Bonjour !", "0-0", [(1, 1)]),
    ("the dog (%s)", "le chien", "0-0 1-1", [(2, 2)]),
    ("%s: the dog", "le chien", "", [(0, 0)]),
    ("the dog (%s)", "le chien", "", [(2, 2)]),
    ("- (%s) dog", "- chien", "", [(1, 1)]),
    # nothing is known but the order
    ("a (%s) b (%d) c", "x y z", "", [(0, 0), (1, 1)]),
    ("<b>the dog</b>", "le chien noir", "", [(0, 0), (3, 3)]),
    ("<b>a</b> <i>b</i>", "x y z", "", [(0, 0), (1, 1), (1, 1), (2, 2)]),
])
def test_places(line, target, links, want):
    bare = StrippedText.of(line)
    assert place_marks(bare, aligned(bare.text, target, links)) == want


def test_order_is_kept_where_the_translation_changes_it():
    bare = StrippedText.of("<b>big</b> <i>dog</i>")
    found = place_marks(bare, aligned(bare.text, "chien gros", "1-0 0-1"))
    assert found == sorted(found)
    assert found[0] < found[1] <= found[2] < found[3]


def test_a_placeholder_is_not_put_behind_an_apostrophe():
    bare = StrippedText.of("see <br/> man")
    assert bare.text == "see man"
    assert place_marks(bare, aligned(bare.text, "l'homme", "0-0 1-1")) in ([(0, 0)], [(2, 2)])


def test_without_enough_words_there_are_no_places():
    bare = StrippedText.of("a <b>b</b> c <i>d</i> e")
    assert place_marks(bare, aligned(bare.text, "x", "")) is None
    assert place_marks(bare, aligned(bare.text, "", "")) is None


def test_spaces_between_words():
    assert [_has_space(aligned("", "l'homme dort ?", ""), g) for g in range(5)] == [False, False, True, True, False]


def put(line, target, links):
    bare = StrippedText.of(line)
    return restore_placeholders(bare, aligned(bare.text, target, links))


@pytest.mark.parametrize(("line", "target", "links", "want"), [
    ("%s files", "12 fichiers", "0-0 1-1", "%s fichiers"),
    ("%s files", "fichiers", "1-0", "%s fichiers"),
    ("Delete %s files?", "Supprimer douze fichiers ?", "0-0 1-1 2-2", "Supprimer %s fichiers ?"),
    ("Open %s.", "Ouvrir.", "0-0", "Ouvrir %s."),
    ("Open %s?", "Ouvrir ?", "0-0", "Ouvrir %s ?"),
    ("Open %dKB.", "Ouvrir 12.", "0-0 1-1", "Ouvrir %dKB."),
    ("Open %dKB now.", "Ouvrir maintenant.", "0-0 2-1", "Ouvrir %dKB maintenant."),
    ("see {name}'s dog", "voir le chien de 12", "0-0 3-1 3-2 2-3 1-4", "voir le chien de {name}"),
    ("does %s sleep?", "est-ce qu'Emma dort ?", "0-0 0-1 1-2 2-3", "est-ce qu'%s dort ?"),
    ("Hello, {name}!", "Bonjour !", "0-0", "Bonjour, {name} !"),
    ("Hello, {name}!", "Hallo!", "0-0", "Hallo, {name}!"),
    ("Hello {name}", "Bonjour", "0-0", "Bonjour {name}"),
    ("File: %s", "Fichier", "0-0", "Fichier: %s"),
    ("%s: no file", "aucun fichier", "0-0 1-1", "%s: aucun fichier"),
    ("The dog. https://a.org", "Le chien.", "0-0 1-1", "Le chien. https://a.org"),
    ("the dog (%s), a cat", "le chien, un chat", "0-0 1-1 2-2 3-3 4-4", "le chien (%s), un chat"),
    ("<b>big</b> dog", "gros chien", "0-0 1-1", "<b>gros</b> chien"),
    ("a <b>red</b> car.", "une voiture rouge.", "0-0 2-1 1-2 3-3", "une voiture <b>rouge</b>."),
    ("the <b>man</b> sleeps", "l'homme dort", "0-0 1-1 2-2", "l'<b>homme</b> dort"),
    ("<b>The dog.</b>", "Le chien.", "0-0 1-1", "<b>Le chien.</b>"),
    ("<b>The dog</b>.", "Le chien.", "0-0 1-1", "<b>Le chien</b>."),
    ("<b>The dog</b>.", "Le chien.", "0-0 1-1 0-2", "<b>Le chien</b>."),  # a sign is a sign, whatever it looks at
    ("see %s dog", "«chien»", "0-0 2-1", "«%s chien»"),
    ("<b>a</b> <i>b</i> c", "x y z", "0-0 1-1 2-2", "<b>x</b> <i>y</i> z"),
    ("<a href='x'><b>big</b> dog</a>", "chien gros", "1-0 0-1", "<a href='x'>chien <b>gros</b></a>"),
    ("<b>%s files</b>, {name}!", "12 fichiers !", "0-0 1-1", "<b>%s fichiers</b>, {name} !"),
    ("<b>open %s</b> now", "ouvrir 12 tout de suite", "0-0 1-1 2-2 2-3 2-4", "<b>ouvrir %s</b> tout de suite"),
    ("<b>%s</b> files", "12 fichiers", "0-0 1-1", "<b>%s</b> fichiers"),
    ("One.<br/>Two.", "Un. Deux.", "0-0 1-1 2-2 3-3", "Un.<br/>Deux."),
    ("one <br/> two", "un deux", "0-0 1-1", "un <br/> deux"),
    ("say &quot;save&quot; now", "dites enregistrer ici", "0-0 1-1 2-2", "dites &quot;enregistrer&quot; ici"),
    ("打开{name}文件", "打开12文件", "0-0 1-1 2-2 3-3 4-4", "打开{name}文件"),
    ("(%s files)", "(12 fichiers)", "0-0 1-1 2-2 3-3", "(%s fichiers)"),
    ("(%s files)", "(fichiers)", "0-0 2-1 3-2", "(%s fichiers)"),
])
def test_as_a_person_would_write_it(line, target, links, want):
    assert put(line, target, links) == want


def test_the_placeholders_decide_where_the_model_copies_numbers():
    found = put("move %s to the %s", "mettre 12 vers le 12", "3-0 4-1 0-2 1-3 2-4")  # links that are all wrong
    assert found == "mettre %s vers le %s"


def test_tags_that_enclosed_words_do_not_enclose_signs_alone():
    """The words are lost, so that only the full stop is left behind the placeholder."""
    assert put("See %s and <b>two dogs</b>.", "Voir deux 12.", "0-0 0-1 1-2 5-3") is None
    assert put("See %s and <b>two dogs</b>.", "Voir 12 et deux chiens.", "0-0 1-1 2-2 3-3 4-4 5-5") == (
        "Voir %s et <b>deux chiens</b>.")


def test_no_space_before_a_comma_that_a_placeholder_took_along():
    assert put("<b>the %s</b> a, (%d).", "le.", "0-0 0-1") == "<b>le %s</b>, (%d)."


def test_words_do_not_all_become_placeholders():
    assert put("%s dog", "Hund", "0-0") is None  # what became of the dog?
    assert put("%s", "Hund", "0-0") == "%s"
    assert put("<b>%s</b> dog", "12 Hund", "0-0 0-1") == "<b>%s</b> Hund"  # the number was copied: the rest is the dog


@st.composite
def lines(draw):
    """A sentence in which some words are placeholders, some words are in tags, and which may end with an address."""
    words = draw(st.lists(st.sampled_from(["the", "dog", "sees", "%s", "{x}", "man", "a,"]), min_size=2, max_size=7))
    first = draw(st.integers(0, len(words) - 1))
    last = draw(st.integers(first, len(words) - 1))
    words[first] = f"<b>{words[first]}"
    words[last] += "</b>"
    end = draw(st.sampled_from([".", "", "!", ". www.a.org", " (%d)."]))
    return f"{draw(st.sampled_from(['', '%s: ', '<br/>']))}{' '.join(words)}{end}"


@given(lines(), st.lists(st.sampled_from(["le", "gros", "chien", "dort,", "12"]), min_size=1, max_size=7), st.data())
def test_any_text_and_any_links(line, words, data):
    bare, target = StrippedText.of(line), " ".join(words) + "."
    here, there = len(find_units(bare.text)), len(find_units(target))
    ends = data.draw(st.lists(st.integers(0, max(0, here - 1)), min_size=there, max_size=there))
    links = " ".join(f"{one}-{other}" for other, one in enumerate(ends) if here)
    found = restore_placeholders(bare, aligned(bare.text, target, links))
    if found is None:
        return
    assert find_placeholders(found) == find_placeholders(line)
    assert found == found.strip()
    for wrong in ("  ", "<b> ", " </b>", "<b></b>", " .", " ,", "( "):
        assert wrong not in found, (line, target, ends)
