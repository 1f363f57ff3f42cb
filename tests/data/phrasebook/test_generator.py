"""Random pairs: distinct, reproducible, and the splits share no combination."""

import itertools
import os
import random
import subprocess
import sys
import time
from collections import Counter

import pytest

from regard.data import phrasebook
from regard.data.phrasebook import generator, grammar, lexicon, realization
from regard.data.phrasebook.derivation import (
    TEST,
    TRAIN,
    VALIDATION,
    ActionPredicate,
    AdjectivePredicate,
    CompanyPhrase,
    ComparisonPredicate,
    Coordination,
    ObjectRelative,
    PassivePredicate,
    PlacePhrase,
    SubjectRelative,
    find_combinations,
    split_of_combination,
)
from regard.data.phrasebook.lexicon import Adjective, Noun, PersonName, Verb, full_lexicon

SPLITS = (TRAIN, VALIDATION, TEST)


def derivations(split, count, seed=0):
    """Derivations as `pairs` draws them, before those of another split are left out."""
    sampler = generator.RandomChooser(generator._split_tables(split), random.Random(seed).random)
    return [grammar.sentence_rule(sampler, 1) for _ in range(count)]


@pytest.mark.thorough
def test_pairs_are_distinct_and_splits_share_none():
    sources = {split: [pair.source for pair in phrasebook.pairs(6000, split=split)] for split in SPLITS}
    for found in sources.values():
        assert len(set(found)) == len(found) == 6000
    for first, second in itertools.combinations(SPLITS, 2):
        assert not set(sources[first]) & set(sources[second])


@pytest.mark.thorough
def test_english_says_what_french_says():
    """No English sentence has two translations, whatever the seed and the split."""
    translation = {}
    for seed, split in itertools.product(range(6), SPLITS):
        for pair in phrasebook.pairs(3000, seed=seed, split=split, clauses=1 + seed % 2):
            assert translation.setdefault(pair.source, pair.target) == pair.target
    assert len(translation) > 50_000


def test_training_holds_no_combination_that_is_held_out():
    for sentence in derivations(TRAIN, 10_000):
        assert {phrasebook.split_of_combination(*found) for found in find_combinations(sentence)} <= {TRAIN}


@pytest.mark.parametrize("split", [VALIDATION, TEST])
def test_what_is_held_out(split, monkeypatch):
    written = []
    write = realization.write_pair
    monkeypatch.setattr(realization, "write_pair", lambda sentence: written.append(sentence) or write(sentence))
    given = list(phrasebook.pairs(3000, split=split))
    by_source = {write(sentence).source: sentence for sentence in written}
    for pair in given:
        shares = {phrasebook.split_of_combination(*found) for found in find_combinations(by_source[pair.source])}
        assert split in shares
        assert split == TEST or TEST not in shares


@pytest.mark.thorough
@pytest.mark.parametrize("split", [VALIDATION, TEST])
def test_few_draws_are_thrown_away(split):
    drawn = derivations(split, 3000)
    assert sum(phrasebook.split_of(sentence) == split for sentence in drawn) > 0.35 * len(drawn)


def lemmas(node):
    """All words of a derivation."""
    if isinstance(node, tuple):
        return {word for part in node for word in lemmas(part)}
    return {node} if isinstance(node, Noun | Verb | Adjective | PersonName) else set()


def test_every_word_of_a_held_out_sentence_occurs_in_training():
    known = set().union(*(lemmas(sentence) for sentence in derivations(TRAIN, 10_000)))
    words = lexicon.full_lexicon()
    assert known >= {*words.nouns, *words.verbs, *words.adjectives, *words.names}
    for split in (VALIDATION, TEST):
        for sentence in derivations(split, 5000):
            assert lemmas(sentence) <= known


def test_small_training_sets_have_every_construction():
    said = " ".join(pair.source for pair in phrasebook.pairs(5000)).lower()
    parts = (" who | that | there is | there will | by |'s |s' | never | no longer |cannot| ago| than | as |why |when "
             "|where | any | hundred and | will not | did not | to | in front of | wants to | every | all the |-nine "
             "| on mondays|last week")
    for part in parts.split("|"):
        assert part in said, part


def test_the_same_seed_gives_the_same_pairs_in_every_process():
    code = ("from regard.data import phrasebook; import hashlib\n"
            "text = ''.join(repr(tuple(pair)) for split in ('train', 'test')\n"
            "    for pair in phrasebook.pairs(500, seed=5, split=split, clauses=(1, 3)))\n"
            "print(hashlib.sha256(text.encode()).hexdigest())")
    seen = {subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, timeout=60,
                           capture_output=True, check=True).stdout for seed in ("0", "1", "4242")}
    assert len(seen) == 1
    short, long = (list(phrasebook.pairs(count, seed=5)) for count in (50, 200))
    assert long[:50] == short
    assert short != list(phrasebook.pairs(50, seed=6))


def test_max_words_and_clauses():
    assert max(len(pair.source_words) for pair in phrasebook.pairs(500, max_words=7)) == 7
    joints = {" and ", " or ", ", but ", " because "}
    for pair in phrasebook.pairs(200, clauses=8):
        assert sum(map(pair.source.count, joints)) >= 7
        assert not pair.source.endswith("?")
    lengths = [len(pair.source_words) for pair in phrasebook.pairs(20, clauses=(100, 120))]
    assert min(lengths) > 400
    mean = sum(len(pair.source_words) - 1 for pair in phrasebook.pairs(2000)) / 2000
    assert 6 <= mean <= 10


@pytest.mark.parametrize(("arguments", "message"), [
    ({"count": -1}, "`count` must be at least 0, but is -1"),
    ({"count": 1, "split": "tests"}, '`split` must be one of "train", .*Did you mean "test"'),
    ({"count": 1, "clauses": 0}, "`clauses` must be a number from 1"),
    ({"count": 1, "clauses": (3, 2)}, r"`clauses` must be .* but is \(3, 2\)"),
    ({"count": 1, "max_words": 0}, "`max_words` must be at least 1"),
])
def test_wrong_arguments_are_refused_at_once(arguments, message):
    with pytest.raises(ValueError, match=message):
        phrasebook.pairs(**arguments)


def test_more_than_there_is(monkeypatch):
    monkeypatch.setattr(generator, "PATIENCE", 500)
    with pytest.raises(ValueError, match="`count` must be at most 0 for max_words=2"):
        list(phrasebook.pairs(5, max_words=2))
    assert list(phrasebook.pairs(0)) == []


def test_thousands_a_second():
    """Far below what an idle machine does, because others may work on this one."""
    next(phrasebook.pairs(1))
    start = time.process_time()
    assert sum(1 for _ in phrasebook.pairs(5000, seed=1)) == 5000
    assert 5000 / (time.process_time() - start) > 3000


def found(sentence):
    return sorted((word.lemma, noun.lemma) for word, noun in find_combinations(sentence))


def test_adjectives_and_objects(words):
    thing = words.phrase("a new red hat")
    sentence = words.sentence("the old king", ActionPredicate(words.verbs["wear"], "present", None, thing),
                              where=PlacePhrase(words.prepositions["in"], words.phrase("the big garden")))
    assert found(sentence) == [
        ("big", "garden"), ("new", "hat"), ("old", "king"), ("red", "hat"), ("wear", "hat")]


def test_recipients_owners_and_company(words):
    owned = words.phrase("the book", owner=words.phrase("my kind aunt"))
    action = ActionPredicate(words.verbs["give"], "past", None, owned, words.phrase("the small girl"))
    sentence = words.sentence("she", action, where=CompanyPhrase(words.phrase("a sick dog")))
    assert found(sentence) == [("give", "book"), ("kind", "aunt"), ("sick", "dog"), ("small", "girl")]


def test_what_is_said_of_a_noun(words):
    assert found(words.sentence("the apple", AdjectivePredicate(words.adjectives["red"], "present"))) == [("red",
                                                                                                           "apple")]
    assert found(words.sentence("she", AdjectivePredicate(words.adjectives["tired"], "present"))) == []
    both = Coordination(words.names["Paul"], words.phrase("my aunt"))
    assert found(words.sentence(both, AdjectivePredicate(words.adjectives["tired"], "present"))) == [("tired", "aunt")]
    train = words.phrase("the red train")
    comparison = ComparisonPredicate(words.adjectives["fast"], "present", words.comparisons["more"], train)
    assert found(words.sentence("the car", comparison)) == [("fast", "car"), ("red", "train")]


def test_passives_and_relative_clauses(words):
    suffering = PassivePredicate(words.verbs["eat"], "past", words.phrase("the wild wolf"))
    assert found(words.sentence("the apple", suffering)) == [("eat", "apple"), ("wild", "wolf")]
    doing = SubjectRelative(words.verbs["drive"], "past", None, words.phrase("the old car"))
    suffered = ObjectRelative(words.verbs["see"], "past", None, words.phrase("a young boy"))
    sleep = ActionPredicate(words.verbs["sleep"], "present")
    for relative, expected in ((doing, [("drive", "car"), ("old", "car")]),
                               (suffered, [("see", "man"), ("young", "boy")])):
        assert found(words.sentence(words.phrase("the man", relative=relative), sleep)) == expected


def test_a_pronoun_is_no_combination(words):
    assert found(words.sentence("he", ActionPredicate(words.verbs["see"], "past", None, words.pronouns["she"]))) == []


def test_a_tenth_is_for_test_and_a_tenth_for_validation():
    words = full_lexicon()
    pairs = [(verb, noun) for verb in words.verbs for noun in words.nouns if noun.kind in verb.objects]
    pairs += [(word, noun) for word in words.adjectives for noun in words.nouns if noun.kind in word.kinds]
    shares = Counter(split_of_combination(*pair) for pair in pairs)
    assert 0.08 < shares["test"] / len(pairs) < 0.12
    assert 0.08 < shares["validation"] / len(pairs) < 0.12
    assert sum(shares.values()) == len(pairs) > 5000
