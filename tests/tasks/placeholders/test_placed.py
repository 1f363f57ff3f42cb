"""Translations with their placeholders: spaces and signs as a person would write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from linked import aligned

from regard.data.tokenizer.interface import find_units
from regard.tasks.placeholder_translation import restore_placeholders
from regard.tasks.placeholders import StrippedText, find_placeholders


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
