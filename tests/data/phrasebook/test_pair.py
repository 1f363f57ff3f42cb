"""Words that meet, plain text, and where words stand in it."""

import itertools

import pytest

from regard.data import phrasebook
from regard.data.phrasebook.realization import ClauseText, join_clauses


def french(*words):
    """The French words as they are where they meet, with their bits."""
    page = ClauseText()
    page.english.append(("x", 0))
    page.french += [(word, 1 << place) for place, word in enumerate(words)]
    pair = join_clauses([page], ".")
    return pair.target_words[:-1]


@pytest.mark.parametrize(("written", "met"), [
    ("le homme dort", ["L'", "homme", "dort"]),
    ("le *héros dort", ["Le", "héros", "dort"]),
    ("tu parles de le chien", ["Tu", "parles", "du", "chien"]),
    ("tu parles de le homme", ["Tu", "parles", "de", "l'", "homme"]),
    ("tu parles de la eau", ["Tu", "parles", "de", "l'", "eau"]),
    ("tu parles de le *hibou", ["Tu", "parles", "du", "hibou"]),
    ("tu parles de les hommes", ["Tu", "parles", "des", "hommes"]),
    ("tu vas à le marché", ["Tu", "vas", "au", "marché"]),
    ("tu vas à le hôtel", ["Tu", "vas", "à", "l'", "hôtel"]),
    ("tu vas à les îles", ["Tu", "vas", "aux", "îles"]),
    ("tu vas à la école", ["Tu", "vas", "à", "l'", "école"]),
    ("je ne ai pas de œuf", ["Je", "n'", "ai", "pas", "d'", "œuf"]),
    ("je entends que elle se endort", ["J'", "entends", "qu'", "elle", "s'", "endort"]),
    ("plus que *onze chats", ["Plus", "que", "onze", "chats"]),
    ("parce que Émile dort", ["Parce", "qu'", "Émile", "dort"]),
])
def test_french_words_that_meet(written, met):
    assert list(french(*written.split())) == met


def test_a_contraction_has_the_links_of_both():
    page = ClauseText()
    page.english += [("of", 1), ("the", 2), ("king", 4)]
    page.french += [("de", 1), ("le", 2), ("roi", 4)]
    assert join_clauses([page], ".").alignment == ((0, 0), (1, 0), (2, 1), (3, 2))


def test_pages_are_linked_apart():
    pages = [ClauseText(), ClauseText()]
    for page in pages:
        page.word("a", "un")
        page.word("b", "deux")
    assert join_clauses(pages, ".").alignment == tuple((place, place) for place in range(5))


def test_offsets_point_at_the_words():
    for pair in phrasebook.pairs(3000, seed=3, clauses=(1, 3)):
        for text, words, offsets in ((pair.source, pair.source_words, pair.source_offsets),
                                     (pair.target, pair.target_words, pair.target_offsets)):
            assert [text[start:end] for start, end in offsets] == list(words)
            gaps = [text[end:start] for (_, end), (start, _) in itertools.pairwise(offsets)]
            assert set(gaps) <= {"", " "}
            assert (offsets[0][0], offsets[-1][1]) == (0, len(text))


def test_plain_text_is_spaced_as_usual():
    for pair in phrasebook.pairs(3000, seed=4, clauses=(1, 2)):
        assert pair.source[0].isupper() or pair.source[0].isdigit()
        assert pair.target[0].isupper() or pair.target[0].isdigit()
        assert pair.source[-1] == pair.target[-1] in ".?"
        assert pair.target.endswith(" ?") == pair.source.endswith("?")
        for text in (pair.source, pair.target):
            assert "  " not in text
            assert " ," not in text
            assert " ." not in text
            assert " '" not in text
            assert "*" not in text
        assert "' " not in pair.target
