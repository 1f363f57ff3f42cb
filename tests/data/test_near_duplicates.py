"""Near-duplicates of a test set in the training data: exactly those that a double loop finds."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import near_duplicates, phrasebook
from regard.data.doctor import check_corpus
from regard.data.filters import FilterConfig, fold_text
from regard.data.near_duplicates import NearDuplicate, NearDuplicates, SimilarTexts, character_ngrams
from regard.data.sources.text import Location, SentencePair


def pairs(texts, file="train.tsv"):
    return [SentencePair(*both, Location(file, line)) for line, both in enumerate(texts, 1)]


def jaccard(one, other):
    """The definition, as a fraction; 0 for empty texts."""
    sets = []
    for text in map(fold_text, (one, other)):
        sets.append({text[at:at + 5] for at in range(len(text) - 4)} if len(text) >= 5 else {text} - {""})
    return Fraction(len(sets[0] & sets[1]), len(sets[0] | sets[1])) if sets[0] | sets[1] else Fraction(0)


def near(one, other):
    return jaccard(one, other) >= Fraction(8, 10)


def by_force(held_out, training):
    """Source, target, either, both: how many pairs have such a training pair."""
    found = [[(near(a, c), near(b, d)) for c, d in training] for a, b in held_out]
    return (sum(any(source for source, _ in row) for row in found),
            sum(any(target for _, target in row) for row in found),
            sum(any(source or target for source, target in row) for row in found),
            sum(any(source and target for source, target in row) for row in found))


def counts(found):
    return found.source, found.target, found.either, found.both


def compared(held_out, training, size=7):
    found, given_ = NearDuplicates(pairs(held_out, "test.tsv")), pairs(training)
    for start in range(0, len(given_), size):
        found.compare(given_[start:start + size])
    return found


# Few letters, so that many texts are alike; the lengths are around those where a text becomes similar.
SOME = st.text(st.sampled_from("ab "), max_size=24)
ALIKE = st.builds(lambda number, at, letter: (lambda text: text[:at] + letter + text[at:])(
    "the small black cat sat on the old green mat"[:number]), st.integers(0, 44), st.integers(0, 44),
    st.sampled_from(["", "x", "X", " ", "  ", "é", "e\u0301", "\U0001F600"]))
TEXTS = st.one_of(SOME, ALIKE, st.sampled_from(["", " ", "a", "A", "abcd", "abcde", "日本語", "aaaaaaa", "a" * 12]))


@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=12), st.lists(st.tuples(TEXTS, TEXTS), max_size=12))
def test_it_finds_what_a_double_loop_finds(held_out, training):
    found = compared(held_out, training)
    assert found.pairs == len(held_out)
    assert counts(found) == by_force(held_out, training)


@given(st.lists(TEXTS, max_size=10), TEXTS)
def test_all_similar_texts_with_their_similarities(texts, text):
    index = SimilarTexts([*map(fold_text, texts)])
    expected = {number: float(jaccard(each, text)) for number, each in enumerate(texts) if near(each, text)}
    assert dict(index.search(fold_text(text))) == expected
    for number in [*expected][::2]:
        index.remove(number)
    assert {*dict(index.search(fold_text(text)))} == {*[*expected][1::2]}


@pytest.mark.thorough
def test_sentences_that_are_all_alike():
    """Sentences of a grammar, and some with a word more: many are near 0.8, on both sides of it."""
    test = [(pair.source, pair.target) for pair in phrasebook.pairs(120, split="test", max_words=8)]
    training = [(pair.source, pair.target) for pair in phrasebook.pairs(250, max_words=8)]
    for number, (source, target) in enumerate(test[::2]):
        training.append((("not", "so", "why")[number % 3] + f" {source}", f"{target}?" if number % 2 else "x"))
    found = compared(test, training, 64)
    expected = by_force(test, training)
    assert counts(found) == expected
    assert 0 < expected[3] < expected[2] < len(test)


def text_of(count, first=0):
    """A text with this many n-grams, all of them different."""
    return "".join(chr(0x4E00 + number) for number in range(first, first + count + 4))


@pytest.mark.parametrize(("common", "more", "similar"), [(8, 2, True), (7, 2, False), (16, 4, True), (15, 4, False),
                                                         (80, 20, True), (79, 20, False), (4, 1, True), (3, 1, False)])
def test_the_threshold_itself_is_similar(common, more, similar):
    """A text that continues another one by `more` n-grams."""
    short, long = text_of(common), text_of(common + more)
    assert (jaccard(short, long) >= Fraction(4, 5)) is similar
    for one, other in ((short, long), (long, short)):
        assert bool(SimilarTexts([one]).search(other)) is similar


def test_short_texts_are_compared_as_a_whole():
    index = SimilarTexts(["yes", "no", "", "abcd", "abcde"])
    assert [index.search(text) for text in ("yes", "yess", "abcd", "abcdefg", "", "abcde")] == [
        [(0, 1.0)], [], [(3, 1.0)], [], [], [(4, 1.0)]]


def test_examples_are_told_with_both_places():
    held_out = [("Nothing like it.", "rien"), ("We do not need it anymore.", "Il n'en reste rien du tout."),
                ("An equal pair.", "Une paire égale.")]
    training = [("an equal  pair.", "Une paire e\u0301gale."), ("You do not need it anymore.", "Quoi ?"),
                ("We do not need it anymore.", "Il n'en reste rien du tout !")]
    found = compared(held_out, training, 2)
    assert counts(found) == by_force(held_out, training) == (2, 2, 2, 2)
    # Equal pairs are in the count, but no example: the overlap tells them.
    similarity = float(jaccard(held_out[1][0], training[1][0]))
    assert found.first == [NearDuplicate(Location("test.tsv", 2), Location("train.tsv", 2), "source", similarity,
                                         held_out[1][0], training[1][0])]


def test_many_examples_are_cut_and_texts_shortened():
    long = " ".join(map(str, range(200)))
    found = compared([(f"{long} {number}", "x") for number in range(30)], [(long, "y")])
    assert (found.source, len(found.first)) == (30, 10)
    assert len(found.first[0].held_out_text) < 100
    assert {one.side for one in found.first} == {"source"}


def test_a_text_of_many_megabytes(monkeypatch):
    """Its n-grams are not all kept: it has more than any similar text could have. One letter repeated has only one."""
    monkeypatch.setattr(near_duplicates, "SLICE_CHARACTERS", 1000)
    index = SimilarTexts(["aaaaaa", "some words that are here"])
    numbers = "".join(map(str, range(10**5, 2 * 10**5)))
    assert len(character_ngrams(numbers, 30)) <= 1000 < len(character_ngrams(numbers))
    assert index.search(numbers) == []
    assert index.search("a" * 10**6) == [(0, 1.0)]
    assert character_ngrams(numbers) == {numbers[at:at + 5] for at in range(len(numbers) - 4)}


def test_in_the_report():
    training = pairs([("I saw a dog in the garden.", "un"), ("What time is it now?", "Quelle heure est-il ?")])
    dev = pairs([("I saw a dog in the gardens.", "deux"), ("Other words here.", "D'autres mots."), ("", "x")],
                "dev.tsv")
    test = pairs([("What time is it, now?", "Quelle heure est-il ?")], "test.tsv")
    report = check_corpus(training, FilterConfig(), validation=dev, test=test, near_duplicates=True)
    tables = report.tables()
    assert {name: [each[key] for key in ("pairs", "source", "target", "either", "both")]
            for name, each in tables["near_duplicates"].items()} == {"validation": [2, 1, 0, 1, 0],
                                                                     "test": [1, 0, 1, 1, 0]}
    (example,) = tables["near_duplicates"]["validation"]["first"]
    assert (example["validation"], example["training"], example["side"]) == ("dev.tsv:1", "train.tsv:1", "source")
    (example,) = tables["near_duplicates"]["test"]["first"]
    assert (example["test"], example["training"], example["similarity"]) == ("test.tsv:1", "train.tsv:2", 1.0)
    assert tables["test_overlap"] == {"test": 1, "exact": 0, "folded": 0, "sources": 0, "first": []}
    told = [warning.split(" (")[0] for warning in tables["warnings"]]
    assert told == ["1 of 2 validation pairs", "1 of 1 test pairs"]
    assert check_corpus(training, validation=dev, test=test).tables()["near_duplicates"] is None
