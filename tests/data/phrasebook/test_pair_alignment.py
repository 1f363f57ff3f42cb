"""Gold links: in range, complete, and the same as those of an aligner that knows only a word list typed here."""

import itertools
import random

import pytest

from regard.data.phrasebook import grammar
from regard.data.phrasebook.derivation import Sentence
from regard.data.phrasebook.generator import RandomChooser
from regard.data.phrasebook.grammar import EQUAL_WEIGHTS, make_tables
from regard.data.phrasebook.realization import write_pair

# What every English word of the small language can be in French.
CONTENT = {
    "man": "homme", "men": "hommes", "woman": "femme", "women": "femmes", "dog": "chien", "dogs": "chiens",
    "cat": "chat", "cats": "chats",
    "apple": "pomme", "apples": "pommes", "orange": "orange", "oranges": "oranges", "cake": "gâteau",
    "cakes": "gâteaux", "big": "grand grande grands grandes", "small": "petit petite petits petites",
    "old": "vieux vieil vieille vieilles", "red": "rouge rouges", "black": "noir noire noirs noires",
    "sick": "malade malades", "Paul": "Paul", "Alice": "Alice", "quickly": "rapidement", "often": "souvent",
    "eats": "mange", "sees": "voit", "ate": "a ont mangé", "saw": "a ont vu",
    "eat": "mange mangent mangera mangeront mangé manger", "see": "voit voient verra verront vu voir",
    "will": "mangera mangeront verra verront", "can": "peut peuvent", "wants": "veut", "want": "veut veulent",
    "cannot": "peut peuvent ne n' pas", "not": "ne n' pas", "never": "ne n' jamais", "does": "ne n' pas",
    "do": "ne n' pas", "did": "ne n' pas a ont", "to": "manger voir", ".": ".", ",": ",", "yesterday": "hier",
    "tomorrow": "demain", "now": "maintenant",
}
ENGLISH_ARTICLES = ("the", "a", "an", "any", "some")
FRENCH_ARTICLES = ("le", "la", "les", "l'", "un", "une", "des", "de", "d'")


def small_pairs(small):
    """Sentences with an object in a language of a few words; those with a word that is not in the list are left out."""
    words = small(
        nouns=["man", "woman", "dog", "cat", "apple", "orange", "cake"], verbs=["eat", "see"],
        adjectives=["big", "small", "old", "red", "black", "sick"], determiners=["the", "a", "some"],
        names=["Paul", "Alice"], middles=["not", "never", "often"], manners=["quickly"], modals=["can", "want"],
        times=["yesterday", "tomorrow", "now"])
    sampler = RandomChooser(make_tables(words, EQUAL_WEIGHTS), random.Random(11).random)
    while True:
        try:
            pair = write_pair(Sentence((grammar.transitive_clause(sampler, grammar.STATEMENT),)))
        except IndexError:  # the small language has no place to be in
            continue
        plain = [word[0].lower() + word[1:] if index == 0 and word not in CONTENT else word
                 for index, word in enumerate(pair.source_words)]
        content = [word for word in plain if word not in ENGLISH_ARTICLES]
        if set(content) <= set(CONTENT) and len(set(content)) == len(content):
            yield pair, plain


def aligned(source, target):
    """Links by the word list; articles are linked in their order, for phrases do not change places."""
    lowered = [word[0].lower() + word[1:] for word in target]
    links = set()
    for place, word in enumerate(source):
        found = CONTENT[word].split() if word in CONTENT else ()
        links |= {(place, other) for other in range(len(target)) if lowered[other] in found or target[other] in found}
    articles = [place for place, word in enumerate(source) if word in ENGLISH_ARTICLES]
    french_articles = [place for place, word in enumerate(lowered) if word in FRENCH_ARTICLES]
    return links | set(zip(articles, french_articles, strict=True))


def error_rate(guess, gold):
    """Alignment error rate where all gold links are sure."""
    return 1 - 2 * len(guess & gold) / (len(guess) + len(gold))


def test_an_independent_aligner_finds_the_gold_links(small):
    kinds = set()
    for (pair, source), _ in zip(small_pairs(small), range(1500), strict=False):
        gold = set(pair.alignment)
        assert error_rate(aligned(source, pair.target_words), gold) == 0, pair
        kinds |= {"crossed" for i, j in gold for k, m in gold if i < k and j > m}
        kinds |= set(source)
    assert kinds >= {*CONTENT, *ENGLISH_ARTICLES, "crossed"}


def test_the_error_rate_sees_a_wrong_link():
    assert error_rate({(0, 0), (1, 2)}, {(0, 0), (1, 1)}) == pytest.approx(0.5)


def test_links_are_in_range_and_leave_hardly_a_word_alone(whole_pairs):
    alone = set()
    crossed = 0
    for pair in whole_pairs:
        sources, targets = {i for i, _ in pair.alignment}, {j for _, j in pair.alignment}
        assert list(pair.alignment) == sorted(set(pair.alignment))
        assert sources <= set(range(len(pair.source_words)))
        assert targets == set(range(len(pair.target_words)))
        alone |= {word for place, word in enumerate(pair.source_words) if place not in sources}
        crossed += any(i < k and j > m for i, j in pair.alignment for k, m in pair.alignment)
    assert alone == {"and"}  # inside numbers
    assert crossed > 0.3 * len(whole_pairs)


def test_links_do_not_depend_on_where_a_clause_stands(words, whole_sample):
    """They come from its derivation."""
    joiner = words.joiners["and"]
    clauses = [sentence.clauses[0] for sentence in whole_sample[:400] if not sentence.clauses[0].asked]
    for first, second in itertools.pairwise(clauses):
        single = write_pair(Sentence((second,)))
        double = write_pair(Sentence((first, second), (joiner,)))
        start, other = len(double.source_words) - len(single.source_words), len(double.target_words) - len(
            single.target_words)
        moved = {(i + start, j + other) for i, j in single.alignment}
        assert moved == {(i, j) for i, j in double.alignment if i >= start}
