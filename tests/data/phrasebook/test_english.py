"""English spelling against forms typed by hand."""

import pytest

from regard.data.phrasebook import lexicon


@pytest.mark.parametrize(("base", "form"), [
    ("dog", "dogs"), ("box", "boxes"), ("church", "churches"), ("bench", "benches"), ("cherry", "cherries"),
    ("key", "keys"),
    ("princess", "princesses"), ("toy", "toys"), ("wash", "washes"), ("carry", "carries"), ("buy", "buys"),
])
def test_s(base, form):
    assert lexicon.add_s(base) == form
    assert lexicon.third_person(base) == form


def test_irregular_third_persons():
    assert (lexicon.third_person("have"), lexicon.third_person("go")) == ("has", "goes")


@pytest.mark.parametrize(("following", "article"), [
    ("dog", "a"), ("apple", "an"), ("old", "an"), ("honest", "an"), ("hotel", "a"), ("uniform", "a"), ("useful", "a"),
    ("umbrella", "an"), ("English", "an"), ("French", "a"), ("uncle", "an"), ("Italian", "an"), ("ugly", "an"),
])
def test_a_or_an(following, article):
    assert lexicon.indefinite_article(following) == article
