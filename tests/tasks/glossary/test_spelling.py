"""Ways to write a word in tokens: each is the word, at the beginning of a word, and nothing goes on with it."""

import pytest
import texting
from theirs import byte_level

from regard.data.tokenizer.subwords import ByteTokenizer
from regard.data.tokenizer.training import UnigramConfig, train_tokenizer
from regard.tasks.glossary import RequiredTerm, TermSpelling, can_continue

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
