"""Where placeholders belong: brute force over all places, and sentences whose links are known."""

from itertools import combinations_with_replacement

import pytest
from hypothesis import given
from hypothesis import strategies as st
from linked import aligned

from regard.tasks.placeholder_translation import PlacementScores, _has_space, best_places, place_marks
from regard.tasks.placeholders import StrippedText

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
