"""The grammar of the phrasebook: rules that choose a derivation, and tables of what they may choose from.

A rule asks a `Chooser` for choices: a random one gives one sentence, one that tries all answers gives every sentence,
one that counts them gives the number of sentences. So that counting is possible, a rule may inspect what it picked, but
not a phrase that it asked for: what others depend on is picked first. In a table, an option occurs as often as it
weighs; combinations of words that are held out of a split are not in its tables.

No English sentence has two derivations. Hence relative clauses have neither place nor time of their own, and `Paul and
my sister` has a name first. Nothing follows the relative clause of an object, because its attachment would be
ambiguous. No text is written here.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from regard.data.phrasebook.derivation import (
    FUTURE,
    PAST,
    PRESENT,
    TEST,
    TRAIN,
    VALIDATION,
    ActionPredicate,
    AdjectivePredicate,
    AgoPhrase,
    Clause,
    CompanyPhrase,
    ComparisonPredicate,
    Coordination,
    DatePhrase,
    ExistencePredicate,
    HencePhrase,
    NounPhrase,
    ObjectRelative,
    PassivePredicate,
    PlacePhrase,
    Predicate,
    Sentence,
    Subject,
    SubjectRelative,
    TimePhrase,
    WherePhrase,
    YearPhrase,
    split_of_combination,
)
from regard.data.phrasebook.lexicon import (
    Adjective,
    Determiner,
    FixedPhrase,
    Lexicon,
    MiddleAdverb,
    Modal,
    Noun,
    NumberWord,
    PersonName,
    Preposition,
    Pronoun,
    Verb,
)

Word = TypeVar("Word", Adjective, Verb)
Option = TypeVar("Option")

# The weight of combinations of each split in the tables of a split. Those that are held out together weigh as much as
# the others together, so that about every second choice is one of them.
SPLIT_WEIGHTS: dict[str, dict[str, int]] = {
    TRAIN: {TRAIN: 1, VALIDATION: 0, TEST: 0},
    VALIDATION: {TRAIN: 1, VALIDATION: 8, TEST: 0},
    TEST: {TRAIN: 1, VALIDATION: 1, TEST: 9},
}
EQUAL_WEIGHTS = {TRAIN: 1, VALIDATION: 1, TEST: 1}

ANY_NUMBER = "number"
DeterminerOption = Determiner | str
# The weight of each determiner in each role of a phrase. `number` is any number in words.
POSSESSIVE = dict.fromkeys(("my", "your", "his", "her", "our", "their"), 1)
DEFINITE = {"the": 9, "this": 2, "these": 2, **POSSESSIVE}
ROLES: dict[str, dict[str, int]] = {
    "definite": DEFINITE,
    "any": {**DEFINITE, "a": 8, "some": 4, "every": 2, "several": 2, "many": 2, "a few": 2, "all the": 2,
            ANY_NUMBER: 5},
    "denied": {**DEFINITE, "a": 8, "some": 6},
    "indefinite": {"a": 5, "some": 3, "several": 1, "many": 1, "a few": 1, ANY_NUMBER: 3},
    "place": {"the": 9, "this": 2, "a": 3, **POSSESSIVE},
    "only the": {"the": 1},
}
TENSES = (PRESENT,) * 4 + (PAST,) * 3 + (FUTURE,) * 2
LIVING, LARGE, SMALL = "PA", "PAV", "TCFWBM"
"""The kinds of what is in a place, of what is before it or in a city, and of what is on or under furniture."""
# The position of a time, and the mood of a clause.
NEVER, FIRST, LAST = "never", "first", "last"
TELL, ASK = "tell", "ask"
# The shapes of a phrase; a bare one has no adjectives.
PLAIN, BARE, OWNED, RELATIVE, PRONOUN, NAME, BOTH = "plain", "bare", "owned", "relative", "pronoun", "name", "both"
THINGS = (PLAIN,) * 8 + (OWNED,) * 2 + (RELATIVE,)
# Options; each occurs as often as it weighs.
OBJECTS = (*THINGS, PRONOUN, PRONOUN)
MOODS, STATEMENT = (TELL,) * 12 + (ASK,) * 3, (TELL,)
OPEN, CLOSED, OPEN_QUESTION = (NEVER,) * 5 + (FIRST, LAST, LAST), (NEVER, NEVER, FIRST), (NEVER, NEVER, LAST)
NOWHERE, THERE, SO, WITH = "nowhere", "there", "so", "with"
WAYS = (NOWHERE,) * 7 + (SO, WITH) + (THERE,) * 3
WAYS_THERE = (NOWHERE,) * 7 + (WITH,) + (THERE,) * 3
WAYS_WITH = (NOWHERE,) * 7 + (WITH,)
WAYS_ALONE = (NOWHERE,) * 7 + (THERE,) * 3
PERSONS = (PLAIN,) * 8 + (PRONOUN,) * 6 + (NAME,) * 3 + (OWNED, RELATIVE)
BARE_PERSONS = (BARE,) * 8 + (PRONOUN,) * 6 + (NAME,) * 3 + (OWNED,)
BARE_THINGS = (BARE,) * 8 + (OWNED,) * 2
RELATIVE_TENSES = (PRESENT, PRESENT, PAST, PAST, FUTURE)
SOMETIMES = (False, False, False, True)


class GrammarTables:
    """The options for every choice: the words of a lexicon, by what they depend on.

    Args:
        weights: the weight of combinations of each split; those of weight 0 are left out.
    """

    def __init__(self, words: Lexicon, weights: Mapping[str, int]) -> None:
        nouns, verbs, adjectives, prepositions = words.nouns, words.verbs, words.adjectives, words.prepositions

        def weighted(word: Adjective | Verb, kinds: str) -> tuple[Noun, ...]:
            return tuple(noun for noun in _nouns_of_kinds(nouns, kinds)
                         for _ in range(weights[split_of_combination(word, noun)]))

        self.words = words
        self.kinds = {kind: _nouns_of_kinds(nouns, kind) for kind in {noun.kind: None for noun in nouns}}
        self.people = _nouns_of_kinds(nouns, "P")
        self.subjects = {verb: _nouns_of_kinds(nouns, verb.subjects) for verb in verbs}
        self.objects = {verb: weighted(verb, verb.objects) for verb in verbs}
        self.transitive = tuple(verb for verb in verbs if self.objects[verb] and "only gives" not in verb.flags)
        self.intransitive = tuple(verb for verb in verbs if not verb.objects)
        self.giving = tuple(verb for verb in verbs if self.objects[verb] and verb.flags & {"gives", "only gives"})
        simple = [verb for verb in self.transitive if not verb.preposition]
        self.passive = tuple(verb for verb in simple if "lasts" not in verb.flags)
        # Verbs of relative clauses: those that take a noun as the object, and those that take a kind as the subject.
        self.takers = _invert_table({verb: self.objects[verb] for verb in simple}, nouns)
        self.doers = {kind: tuple(verb for verb in self.intransitive + self.transitive if kind in verb.subjects)
                      for kind in "PA"}
        # Nouns that an adjective describes, and the adjectives before and after a noun.
        self.bearers = {word: weighted(word, word.kinds) for word in adjectives}
        self.before = _invert_table({word: self.bearers[word] for word in adjectives if word.before}, nouns)
        self.after = _invert_table({word: self.bearers[word] for word in adjectives if not word.before}, nouns)
        # The bearers of one kind, and the adjectives with a comparative, each with the kinds that it describes.
        self.alike = {(word, kind): _nouns_of_kinds(self.bearers[word], kind)
                      for word in adjectives for kind in word.kinds}
        self.compared = tuple(key for key, found in self.alike.items() if found and key[0].comparative != "-")
        # Whether a noun has adjectives before and after it; by whether there are any for each side, and both may be.
        self.patterns = {(before, after, both): _adjective_patterns(before, after, both)
                         for before, after, both in itertools.product((False, True), repeat=3)}
        # Nouns after a preposition of place, and what can be there. None stands for a city.
        self.spots: tuple[Preposition | None, ...] = (
            None, None, *(word for word in prepositions for _ in range(1 if word.kinds == "S" else 2)))
        self.places = {word: _nouns_of_kinds(nouns, word.kinds) for word in prepositions}
        self.present: dict[Preposition | None, tuple[Noun, ...]] = {None: _nouns_of_kinds(nouns, LARGE)}
        for word in prepositions:
            kinds = SMALL if word.kinds == "S" else LARGE if "V" in word.kinds else LIVING
            self.present[word] = _nouns_of_kinds(nouns, kinds)
        self.determiners = {(role, mass): _determiner_options(words, role, mass)
                            for role in ROLES for mass in (False, True)}
        self.modes: tuple[str | Modal, ...] = (*TENSES * 2, *words.modals)
        self.middles = _adverb_options(words)
        # Subject pronouns, by the object pronoun: not `I` with `us`.
        self.beside: dict[Pronoun | None, tuple[Pronoun, ...]] = {None: words.pronouns}
        self.beside |= {word: _subject_pronouns(word, words.pronouns) for word in words.pronouns}
        self.counts = tuple(count for count in words.counts for _ in range(_number_weight(count.value)))
        self.few = tuple(count for count in words.counts if count.value <= 12)


def _nouns_of_kinds(nouns: Iterable[Noun], kinds: str) -> tuple[Noun, ...]:
    return tuple(noun for noun in nouns if noun.kind in kinds)


def _invert_table(table: Mapping[Word, Iterable[Noun]], nouns: Iterable[Noun]) -> dict[Noun, tuple[Word, ...]]:
    """From nouns by word to words by noun, with the same weights."""
    turned: dict[Noun, list[Word]] = {noun: [] for noun in nouns}
    for word, found in table.items():
        for noun in found:
            turned[noun].append(word)
    return {noun: tuple(found) for noun, found in turned.items()}


def _determiner_options(words: Lexicon, role: str, mass: bool) -> tuple[DeterminerOption, ...]:
    """The determiners of a role. A mass noun is never counted: it has singulars, and its own form of `some`."""
    found: list[DeterminerOption] = []
    for word in words.determiners:
        partitive = len(word.french[0]) == 2 and word.lemma == "some"
        if role == "place" and word.plural:
            continue
        singular = not word.plural and word.lemma not in ("a", "every")
        fits = partitive or singular if mass else not partitive
        found += [word] * (ROLES[role].get(word.lemma, 0) if fits else 0)
    return (*found, *[ANY_NUMBER] * (0 if mass else ROLES[role].get(ANY_NUMBER, 0)))


def _subject_pronouns(word: Pronoun, others: tuple[Pronoun, ...]) -> tuple[Pronoun, ...]:
    """Subject pronouns for an object: another person than the first or second person of the object."""
    third = word.person % 3 == 2
    return tuple(other for other in others if third or other.person % 3 != word.person % 3)


def _adjective_patterns(before: bool, after: bool, both: bool) -> tuple[tuple[bool, bool], ...]:
    options = (False, False), (True, False), (False, True), (True, True)
    weights = 6, 2 * before, 2 * after, before and after and both
    return tuple(option for option, weight in zip(options, weights, strict=True) for _ in range(weight))


def _adverb_options(words: Lexicon) -> dict[tuple[bool, bool], tuple[MiddleAdverb | None, ...]]:
    """Adverbs by whether the verb is negated, and whether the frequency is fixed: then not `often yesterday`."""
    negative = tuple(word for word in words.middles if word.negative)
    plain = tuple(word for word in negative if word.lemma == "not")
    adverbs = tuple(word for word in words.middles if not word.negative)
    return {(True, True): plain, (True, False): plain * 2 + negative, (False, True): (None,),
            (False, False): (None,) * max(1, 4 * len(adverbs)) + adverbs}


def _number_weight(value: int) -> int:
    """The weight of a number: about two fifths are up to twelve, as many up to a hundred."""
    return 160 if value <= 12 else 20 if value < 100 else 1


class Chooser(Protocol):
    """Makes the choices of rules: `pick` gives one of some options, repeated by weight; `phrase` follows a rule."""

    tables: GrammarTables
    persons: tuple[str, ...]
    """The shapes of a phrase for a person: PERSONS, with or without BOTH."""

    def pick(self, options: Sequence[Option]) -> Option: ...

    def phrase(self, rule: Callable[..., Option], *features: Any) -> Option: ...


def sentence_rule(c: Chooser, clauses: int) -> Sentence:
    """A sentence of `clauses` clauses joined by conjunctions; a single one may be a question."""
    if clauses == 1:
        return Sentence((c.phrase(c.pick(CLAUSE_RULES), MOODS),))
    parts = tuple(c.phrase(c.pick(CLAUSE_RULES), STATEMENT) for _ in range(clauses))
    return Sentence(parts, tuple(c.pick(c.tables.words.joiners) for _ in range(clauses - 1)))


def transitive_clause(c: Chooser, moods: tuple[str, ...]) -> Clause:
    """A person or an animal does something to something. Each clause rule takes the moods it may have."""
    verb = c.pick(c.tables.transitive)
    pronouns = "P" in verb.objects and not verb.preposition
    shape = c.pick(OBJECTS if pronouns else THINGS)
    tense, modal = _pick_tense(c)
    lasts = "lasts" in verb.flags
    moments = CLOSED if shape == RELATIVE else OPEN
    frame = _pick_frame(c, moods, moments, lasts or bool(verb.preposition), lasts and tense == PRESENT)
    pronoun = c.pick(c.tables.words.pronouns) if shape == PRONOUN else None
    thing = pronoun or c.phrase(noun_phrase, c.tables.objects[verb], object_role(verb, frame.negative), shape)
    where = None
    if not frame.question and shape != RELATIVE and not lasts:
        where = c.phrase(where_phrase, WAYS_WITH if verb.preposition else WAYS)
    subject = c.phrase(doer_phrase, verb, frame.negative, pronoun)
    return _make_clause(c, subject, ActionPredicate(verb, tense, modal, thing), frame, tense, where)


def intransitive_clause(c: Chooser, moods: tuple[str, ...]) -> Clause:
    """A person or an animal does something."""
    verb = c.pick(c.tables.intransitive)
    tense, modal = _pick_tense(c)
    frame = _pick_frame(c, moods, OPEN, False, False)
    where = None if frame.question else c.phrase(
        where_phrase, WAYS_ALONE if "alone" in verb.flags else WAYS_THERE if verb.flags else WAYS)
    subject = c.phrase(doer_phrase, verb, frame.negative, None)
    return _make_clause(c, subject, ActionPredicate(verb, tense, modal), frame, tense, where)


def giving_clause(c: Chooser, moods: tuple[str, ...]) -> Clause:
    """A person gives something to another."""
    verb = c.pick(c.tables.giving)
    tense, modal = _pick_tense(c)
    frame = _pick_frame(c, moods, OPEN, False, False)
    thing = c.phrase(noun_phrase, c.tables.objects[verb], object_role(verb, frame.negative), PLAIN)
    action = ActionPredicate(verb, tense, modal, thing, c.phrase(person_phrase))
    return _make_clause(c, c.phrase(doer_phrase, verb, frame.negative, None), action, frame, tense, None)


def adjective_clause(c: Chooser, moods: tuple[str, ...]) -> Clause:
    """Something has a quality."""
    word = c.pick(c.tables.words.adjectives)
    tense = c.pick(TENSES)
    frame = _pick_frame(c, moods, OPEN, True, tense == PRESENT)
    degree = None if word.comparative == "-" else c.phrase(one_of, (None,) * 3 + c.tables.words.degrees)
    subject = c.phrase(bare_subject, c.tables.bearers[word], "P" in word.kinds, frame.negative)
    return _make_clause(c, subject, AdjectivePredicate(word, tense, degree), frame, tense, None)


def comparison_clause(c: Chooser, moods: tuple[str, ...]) -> Clause:
    """Something has more, less or as much of a quality as something else."""
    word, kind = key = c.pick(c.tables.compared)
    tense = c.pick(TENSES)
    negative = c.pick(SOMETIMES)
    subject = c.phrase(bare_subject, c.tables.alike[key], kind == "P", negative)
    other = c.phrase(noun_phrase, c.tables.kinds[kind], "definite", BARE)
    return Clause(subject, ComparisonPredicate(word, tense, c.phrase(one_of, c.tables.words.comparisons), other),
                  c.phrase(middle_adverb, negative, True))


def passive_clause(c: Chooser, moods: tuple[str, ...]) -> Clause:
    """Something is done by a person or an animal."""
    verb = c.pick(c.tables.passive)
    tense = c.pick(TENSES)
    shape = c.pick(THINGS)
    frame = _pick_frame(c, moods, OPEN, False, False)
    thing = c.phrase(noun_phrase, c.tables.objects[verb], "definite" if frame.negative else "any", shape)
    agent = c.phrase(person_phrase) if "P" in verb.subjects else c.phrase(
        noun_phrase, c.tables.subjects[verb], "definite", PLAIN)
    return _make_clause(c, thing, PassivePredicate(verb, tense, agent), frame, tense, None)


def existence_clause(c: Chooser, moods: tuple[str, ...]) -> Clause:
    """Something is somewhere."""
    word = c.pick(c.tables.spots)
    where: WherePhrase = c.phrase(one_of, c.tables.words.cities) if word is None else PlacePhrase(
        word, c.phrase(noun_phrase, c.tables.places[word], "place", PLAIN))
    thing = c.phrase(noun_phrase, c.tables.present[word], "indefinite", PLAIN)
    return Clause(thing, ExistencePredicate(c.pick(TENSES)), where=where)


CLAUSE_RULES = ((transitive_clause,) * 11 + (intransitive_clause,) * 6 + (giving_clause,) * 4 + (adjective_clause,) * 5
                + (comparison_clause,) * 3 + (passive_clause,) * 4 + (existence_clause,) * 3)


def _pick_tense(c: Chooser) -> tuple[str, Modal | None]:
    """A tense, or a modal in the present."""
    mode = c.pick(c.tables.modes)
    return (mode, None) if isinstance(mode, str) else (PRESENT, mode)


class ClauseFrame(NamedTuple):
    """What surrounds the verb of a clause."""

    asked: bool
    question: FixedPhrase | None
    negative: bool
    moment: str


def _pick_frame(c: Chooser, moods: tuple[str, ...], moments: tuple[str, ...], settled: bool,
                timeless: bool) -> ClauseFrame:
    """A frame. A `settled` verb, a state or a way to a place, is only asked why; a `timeless` one has no time."""
    if c.pick(moods) == TELL:
        return ClauseFrame(False, None, c.pick(SOMETIMES), NEVER if timeless else c.pick(moments))
    questions = c.tables.words.questions
    question = c.pick((None, None, *(questions[:1] if settled else questions)))
    ends = not question and not timeless and LAST in moments
    return ClauseFrame(True, question, False, c.pick(OPEN_QUESTION) if ends else NEVER)


def _make_clause(c: Chooser, subject: Subject, predicate: Predicate, frame: ClauseFrame, tense: str,
                 where: WherePhrase | None) -> Clause:
    asked, question, negative, moment = frame
    settled = moment != NEVER or question is not None or (
        isinstance(predicate, ActionPredicate) and "lasts" in predicate.verb.flags)
    return Clause(
        subject, predicate, c.phrase(middle_adverb, negative, settled), asked, question,
        c.phrase(time_phrase, tense) if moment == FIRST else None, where,
        c.phrase(time_phrase, tense) if moment == LAST else None)


def one_of(c: Chooser, options: Sequence[Option]) -> Option:
    """One of the options; no other choice depends on it."""
    return c.pick(options)


def doer_phrase(c: Chooser, verb: Verb, negative: bool, beside: Pronoun | None) -> Subject:
    """The subject of a verb whose object is the pronoun `beside`, if any."""
    if "P" not in verb.subjects:
        return c.phrase(noun_phrase, c.tables.subjects[verb], "definite" if negative else "any", c.pick(THINGS))
    shape = c.pick(c.persons)
    if shape == PRONOUN:
        return c.phrase(one_of, c.tables.beside[beside])
    if shape == NAME:
        return c.phrase(one_of, c.tables.words.names)
    if shape == BOTH:
        return Coordination(c.phrase(one_of, c.tables.words.names),
                            c.phrase(noun_phrase, c.tables.subjects[verb], "definite", PLAIN))
    return c.phrase(noun_phrase, c.tables.subjects[verb], "definite" if negative else "any", shape)


def bare_subject(c: Chooser, nouns: tuple[Noun, ...], persons: bool, negative: bool) -> Subject:
    """The subject of an adjective, itself without adjectives: `the wild cat is wild` would be redundant."""
    shape = c.pick(BARE_PERSONS if persons else BARE_THINGS)
    if shape == PRONOUN:
        return c.phrase(one_of, c.tables.words.pronouns)
    if shape == NAME:
        return c.phrase(one_of, c.tables.words.names)
    if shape == OWNED:
        noun = c.pick(nouns)
        return NounPhrase(c.phrase(determiner_for_role, "only the", noun.mass), noun, owner=c.phrase(person_phrase))
    return c.phrase(noun_phrase, nouns, "definite" if negative else "any", BARE)


def person_phrase(c: Chooser) -> NounPhrase | PersonName:
    """A certain person."""
    if c.pick((PLAIN, PLAIN, PLAIN, NAME)) == NAME:
        return c.phrase(one_of, c.tables.words.names)
    return c.phrase(noun_phrase, c.tables.people, "definite", PLAIN)


def noun_phrase(c: Chooser, nouns: tuple[Noun, ...], role: str, shape: str) -> NounPhrase:
    """A phrase with one of these nouns."""
    return c.phrase(described_noun, c.pick(nouns), role, shape)


def described_noun(c: Chooser, noun: Noun, role: str, shape: str) -> NounPhrase:
    """A phrase with this noun: bare or with adjectives, with an owner, or with a relative clause."""
    before, after = c.tables.before[noun], c.tables.after[noun]
    has_before, has_after = (False, False) if shape == BARE else c.pick(
        c.tables.patterns[bool(before), bool(after), shape == PLAIN])
    return NounPhrase(
        c.phrase(determiner_for_role, role if shape in (PLAIN, BARE) else "only the", noun.mass), noun,
        c.phrase(one_of, before) if has_before else None, c.phrase(one_of, after) if has_after else None,
        c.phrase(person_phrase) if shape == OWNED else None,
        c.phrase(relative_clause, noun) if shape == RELATIVE else None)


def determiner_for_role(c: Chooser, role: str, mass: bool) -> Determiner | NumberWord:
    """A determiner that fits the role."""
    word = c.pick(c.tables.determiners[role, mass])
    return word if isinstance(word, Determiner) else c.phrase(one_of, c.tables.counts)


def relative_clause(c: Chooser, noun: Noun) -> SubjectRelative | ObjectRelative:
    """What the noun does, or what is done to it."""
    tables = c.tables
    doers = tables.doers.get(noun.kind, ())
    takers = tables.takers[noun]
    tense = c.pick(RELATIVE_TENSES)
    negative = c.pick(SOMETIMES)
    if c.pick((True,) * (2 * bool(doers)) + (False,) * bool(takers)):
        verb = c.pick(doers)
        role = object_role(verb, negative)
        thing = c.phrase(noun_phrase, tables.objects[verb], role, PLAIN) if verb.objects else None
        return SubjectRelative(verb, tense, c.phrase(middle_adverb, negative, "lasts" in verb.flags), thing)
    verb = c.pick(takers)
    adverb = c.phrase(middle_adverb, negative, "lasts" in verb.flags)
    return ObjectRelative(verb, tense, adverb, c.phrase(relative_subject, verb))


def relative_subject(c: Chooser, verb: Verb) -> Subject:
    """The subject inside a relative clause."""
    if "P" in verb.subjects:
        shape = c.pick((PLAIN, PLAIN, PRONOUN, PRONOUN, NAME))
        if shape != PLAIN:
            return c.phrase(one_of, c.tables.words.pronouns if shape == PRONOUN else c.tables.words.names)
    return c.phrase(noun_phrase, c.tables.subjects[verb], "definite", PLAIN)


def object_role(verb: Verb, negative: bool) -> str:
    """The role of the object of a verb."""
    return "definite" if verb.preposition or "definite" in verb.flags else "denied" if negative else "any"


def middle_adverb(c: Chooser, negative: bool, settled: bool) -> MiddleAdverb | None:
    """Not, never, often, or nothing; if a time, a question or a state fixes the frequency, only not or nothing."""
    return c.pick(c.tables.middles[negative, settled])


def where_phrase(c: Chooser, ways: tuple[str, ...]) -> WherePhrase | None:
    """Where, how or with whom."""
    words = c.tables.words
    sort = c.pick(ways)
    if sort == SO:
        return c.phrase(one_of, words.manners)
    if sort == WITH:
        return CompanyPhrase(c.phrase(person_phrase))
    if sort == NOWHERE:
        return None
    word = c.pick(c.tables.spots)
    if word is None:
        return c.phrase(one_of, words.cities)
    return PlacePhrase(word, c.phrase(noun_phrase, c.tables.places[word], "place", PLAIN))


def time_phrase(c: Chooser, tense: str) -> TimePhrase:
    """A time that fits the tense."""
    words = c.tables.words
    fixed = words.times[tense]
    if tense == PRESENT:
        return c.phrase(one_of, fixed)
    years = words.years[tense]
    relative = AgoPhrase if tense == PAST else HencePhrase
    sort = c.pick((FixedPhrase, FixedPhrase, DatePhrase, DatePhrase, YearPhrase, relative))
    if sort is DatePhrase:
        month = c.pick(words.months)
        return DatePhrase(c.phrase(one_of, range(1, month.days + 1)), month, c.phrase(one_of, years))
    if sort is YearPhrase:
        return YearPhrase(c.phrase(one_of, years))
    if sort is FixedPhrase:
        return c.phrase(one_of, fixed)
    count, unit = c.phrase(one_of, c.tables.few), c.phrase(one_of, words.units)
    return AgoPhrase(count, unit) if sort is AgoPhrase else HencePhrase(count, unit)
