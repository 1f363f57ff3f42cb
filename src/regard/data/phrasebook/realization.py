"""From a derivation to an English sentence, its French translation and the links between their words.

`write_pair` writes a whole sentence: clauses, noun phrases with French agreement, verbs with their auxiliaries and
negation, and finally elision and contraction (`de le` is du, `le homme` l'homme). Words are split at spaces and after an
elision (`l'` and `homme`), in English before `'s` or the apostrophe of a plural; punctuation is a word of its own. A
French question mark has a plain space before it. Two words are linked where one node of the derivation made both; the
package's docstring lists the links.
"""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple, assert_never

from regard.data.phrasebook.derivation import (
    FUTURE,
    PAST,
    PRESENT,
    ActionPredicate,
    AdjectivePredicate,
    AgoPhrase,
    Clause,
    CompanyPhrase,
    ComparisonPredicate,
    DatePhrase,
    ExistencePredicate,
    HencePhrase,
    NounPhrase,
    ObjectRelative,
    PassivePredicate,
    PlacePhrase,
    Sentence,
    Subject,
    SubjectRelative,
    TimePhrase,
    WherePhrase,
    YearPhrase,
)
from regard.data.phrasebook.english import indefinite_article
from regard.data.phrasebook.lexicon import (
    VOWELS,
    Adjective,
    Conjugation,
    Determiner,
    FixedPhrase,
    MiddleAdverb,
    Modal,
    Noun,
    NumberWord,
    PersonName,
    Pronoun,
    Verb,
    begins_with_vowel,
    conjugate,
)

# ---- pair: A sentence in two languages, with the links between its words; and how written words become one.
#
# Words are split at spaces and after an elision (`l'` and `homme`), in English before `'s` or the apostrophe of a plural;
# punctuation is a word of its own. A French question mark has a plain space before it. This file knows how French words
# change where they meet (elision, contraction); it knows nothing of grammar.


class AlignedPair(NamedTuple):
    """An English sentence, its French translation, and the gold alignment between their words."""

    source: str
    target: str
    source_words: tuple[str, ...]
    target_words: tuple[str, ...]
    alignment: tuple[tuple[int, int], ...]
    """sorted links (index of a source word, index of a target word)"""

    @property
    def source_offsets(self) -> tuple[tuple[int, int], ...]:
        """Where each source word stands: source[start:end]."""
        return _word_offsets(self.source, self.source_words)

    @property
    def target_offsets(self) -> tuple[tuple[int, int], ...]:
        """Where each target word stands: target[start:end]."""
        return _word_offsets(self.target, self.target_words)


def write_pair(sentence: Sentence) -> AlignedPair:
    """Both sides of a sentence, and the links that its derivation makes between them."""
    pages = []
    for index, clause in enumerate(sentence.clauses):
        page = ClauseText()
        if index:
            page.fixed(sentence.joiners[index - 1])
        _write_clause(page, clause)
        pages.append(page)
    return join_clauses(pages, "?" if sentence.clauses[0].asked else ".")


class ClauseText:
    """What has been written of one clause: words of both sides, with the bits of the nodes they came from."""

    __slots__ = ("bit", "english", "french")

    def __init__(self) -> None:
        self.english: list[tuple[str, int]] = []
        self.french: list[tuple[str, int]] = []
        self.bit = 1

    def mark(self) -> int:
        """A bit for a new node."""
        bit = self.bit
        self.bit = bit << 1
        return bit

    def word(self, english: str, french: str) -> None:
        """One word on each side, linked."""
        bit = self.mark()
        self.english.append((english, bit))
        self.french.append((french, bit))

    def fixed(self, phrase: FixedPhrase) -> None:
        """A phrase with links of its own."""
        bit = self.bit
        self.bit = bit << phrase.width
        self.english += [(word, mark * bit) for word, mark in phrase.english]
        self.french += [(word, mark * bit) for word, mark in phrase.french]


def _write_clause(page: ClauseText, clause: Clause) -> None:
    subject, predicate, middle, asked, question, front, where, last = clause
    if front:
        _write_when(page, front)
        page.word(",", ",")
    if question:
        page.fixed(question)
    bit = page.mark() if asked else 0
    if isinstance(predicate, ExistencePredicate):
        _write_existence(page, clause, predicate)
    else:
        who = agreement_of(subject)
        if isinstance(predicate, ActionPredicate):
            group = _action_with_pronoun(page, who, clause, predicate, bit)
        elif isinstance(predicate, PassivePredicate):
            group = passive_group(page, who, predicate.verb, predicate.tense, middle, bit)
        else:
            group = being_group(page, who, predicate.tense, middle, bit)
        if asked:
            page.english += group.auxiliary
            page.french += [("est-ce", bit), ("que", bit)]
            write_phrase(page, subject)
        else:
            write_phrase(page, subject)
            page.english += group.auxiliary
        page.english += group.english
        page.french += group.french
        _write_complements(page, who, clause)
    if where:
        _write_where(page, where)
    if last:
        _write_when(page, last)


# ---- groups: How a verb is written with its auxiliaries: do, will, be and modals; avoir and être; what negation puts around them.
#
# A group is three runs of words: the English auxiliary, which a question moves before its subject, the rest of the
# English, and the French. Nouns are written elsewhere. Links: a verb with its verb, and so is its particle (look at,
# regarder), `to` and se; what carries the tense (did, will, the end of ate) with what carries it in French; both parts of
# a French negation with not, never, no longer, and with the do that it brings.


class Agreement(NamedTuple):
    """What a verb must know of its subject: the person, 0 to 5, and gender and number as an index into four forms."""

    person: int
    forms: int


WordList = list[tuple[str, int]]


class VerbGroup(NamedTuple):
    """A written verb."""

    auxiliary: WordList
    english: WordList
    french: WordList


def action_group(page: ClauseText, who: Agreement, verb: Verb, tense: str, modal: Modal | None, middle: MiddleAdverb | None, *,
           asked: int, clitic: tuple[str, int] | None, object_before: int | None) -> VerbGroup:
    """A verb that does something.

    `asked` is the bit of the question, or 0. `clitic` is a written object pronoun. `object_before` is the gender and
    number of an object that stands before the verb, with which the participle then agrees.
    """
    bits = (page.mark(), page.mark(), page.mark())
    auxiliary, english = _english_action(who, verb, tense, modal, middle, asked, bits)
    meant, shift, around = bits
    clitics: WordList = [clitic] if clitic else []
    moving = "moves" in verb.flags
    if "reflexive" in verb.flags:
        moving = True
        clitics.append((REFLEXIVE_PRONOUNS[who.person], meant))
    forms = verb.french
    french: WordList = [("ne", around)] if middle and middle.negative else []
    if modal:
        french.append((modal.french.present[who.person], shift))
        _append_middle(french, middle, around)
        french += clitics
        french.append((forms.infinitive, meant))
    else:
        french += clitics
        if tense == PAST and "lasts" not in verb.flags:
            french.append(((etre() if moving else avoir()).present[who.person], shift))
            _append_middle(french, middle, around)
            agreed = who.forms if moving else object_before or 0
            french.append((forms.participle[agreed], meant))
        else:
            french.append((_finite_forms(forms, tense)[who.person], meant if tense == PRESENT else meant | shift))
            _append_middle(french, middle, around)
    if verb.preposition:
        bit = page.mark() if verb.particle else meant
        french.append((verb.preposition, bit))
        if verb.particle:
            english.append((verb.particle, bit))
    elif verb.particle:
        english.append((verb.particle, meant))
    return VerbGroup(auxiliary, english, french)


def _action_with_pronoun(page: ClauseText, who: Agreement, clause: Clause, action: ActionPredicate, asked: int) -> VerbGroup:
    """The verb, with an object pronoun: after the English verb, before the French one."""
    pronoun = action.object
    if not isinstance(pronoun, Pronoun):
        return action_group(page, who, action.verb, action.tense, action.modal, clause.middle,
                             asked=asked, clitic=None, object_before=None)
    bit = page.mark()
    group = action_group(page, who, action.verb, action.tense, action.modal, clause.middle, asked=asked,
                          clitic=(pronoun.french_object, bit), object_before=agreement_of(pronoun).forms)
    group.english.append((pronoun.english_object, bit))
    return group


def _write_complements(page: ClauseText, who: Agreement, clause: Clause) -> None:
    """What follows the verb and belongs to it."""
    predicate = clause.predicate
    if isinstance(predicate, ActionPredicate):
        denied = int(clause.middle is not None and clause.middle.negative)
        if predicate.object and not isinstance(predicate.object, Pronoun):
            write_phrase(page, predicate.object, denied)
        if predicate.recipient:
            page.word("to", "à")
            write_phrase(page, predicate.recipient)
    elif isinstance(predicate, PassivePredicate):
        page.word("by", "par")
        write_phrase(page, predicate.agent)
    elif isinstance(predicate, AdjectivePredicate):
        if predicate.degree:
            page.fixed(predicate.degree)
        page.word(predicate.adjective.lemma, predicate.adjective.french[who.forms])
    elif isinstance(predicate, ComparisonPredicate):
        _write_comparison(page, who, predicate)


def _write_comparison(page: ClauseText, who: Agreement, comparison: ComparisonPredicate) -> None:
    adjective = comparison.adjective
    french = adjective.french[who.forms]
    if comparison.comparison.lemma == "more" and adjective.comparative:
        bit = page.mark()
        page.english.append((adjective.comparative, bit))
        page.french += [("plus", bit), (french, bit)]
    else:
        page.fixed(comparison.comparison)
        page.word(adjective.lemma, french)
    page.word("as" if comparison.comparison.lemma == "as" else "than", "que")
    write_phrase(page, comparison.other)


def _write_existence(page: ClauseText, clause: Clause, existence: ExistencePredicate) -> None:
    there, be, shift = page.mark(), page.mark(), page.mark()
    french = avoir()
    page.french += [("il", there), ("y", there)]
    page.english.append(("there", there))
    if existence.tense == FUTURE:
        page.english += [("will", shift), ("be", be)]
        page.french.append((french.future[2], be | shift))
    else:
        who = agreement_of(clause.subject)
        page.english.append((FORMS_OF_BE[existence.tense][who.person], be))
        page.french.append(((french.present if existence.tense == PRESENT else french.imperfect)[2], be))
    write_phrase(page, clause.subject)


def _write_where(page: ClauseText, where: WherePhrase) -> None:
    if isinstance(where, FixedPhrase):
        page.fixed(where)
    elif isinstance(where, PlacePhrase):
        page.fixed(where.preposition.words)
        write_phrase(page, where.phrase)
    elif isinstance(where, CompanyPhrase):
        page.word("with", "avec")
        write_phrase(page, where.phrase)
    else:
        assert_never(where)


def _write_when(page: ClauseText, when: TimePhrase) -> None:
    if isinstance(when, FixedPhrase):
        page.fixed(when)
    elif isinstance(when, DatePhrase):
        page.word("on", "le")
        page.word(str(when.day), "premier" if when.day == 1 else str(when.day))
        page.word(when.month.lemma, when.month.french)
        page.word(str(when.year), str(when.year))
    elif isinstance(when, YearPhrase):
        page.word("in", "en")
        page.word(str(when.year), str(when.year))
    elif isinstance(when, AgoPhrase):
        bit = page.mark()
        page.french += [("il", bit), ("y", bit), ("a", bit)]
        _write_span(page, when.number, when.unit)
        page.english.append(("ago", bit))
    elif isinstance(when, HencePhrase):
        page.word("in", "dans")
        _write_span(page, when.number, when.unit)
    else:
        assert_never(when)


def _write_span(page: ClauseText, count: NumberWord, unit: Noun) -> None:
    page.fixed(count.feminine if unit.feminine else count.masculine)
    page.word(unit.english[1], unit.french[1])


# ---- phrases: How a noun is written with what belongs to it: determiner, adjectives, owner, relative clause.
#
# Here French agrees: determiner and adjectives with the gender and the number of the noun. Links: an article with its
# article; every adjective with its adjective, also where it changes sides; `'s` with both the article and the `de` that
# French has instead; who and that with qui and que.

DEFINITE_ARTICLES = ("le", "la", "les", "les")


def agreement_of(subject: Subject) -> Agreement:
    """Person, gender and number; of two, masculine unless both are feminine."""
    if isinstance(subject, NounPhrase):
        return Agreement(5, subject.noun.feminine + 2) if subject.plural else Agreement(2, int(subject.noun.feminine))
    if isinstance(subject, Pronoun):
        return Agreement(subject.person, subject.feminine + 2 * (subject.person > 2))
    if isinstance(subject, PersonName):
        return Agreement(2, int(subject.feminine))
    return Agreement(5, 2 + (subject.first.feminine and subject.second.noun.feminine))


def write_phrase(page: ClauseText, phrase: Subject, denied: int = 0) -> None:
    """Any phrase; under a negation (`denied`, 1 or 0) an indefinite article is `any`, and de."""
    if isinstance(phrase, NounPhrase):
        _write_noun_phrase(page, phrase, denied)
    elif isinstance(phrase, PersonName):
        page.word(phrase.lemma, phrase.lemma)
    elif isinstance(phrase, Pronoun):
        page.word(phrase.english, phrase.french)
    else:
        page.word(phrase.first.lemma, phrase.first.lemma)
        page.word("and", "et")
        _write_noun_phrase(page, phrase.second, denied)


def _write_noun_phrase(page: ClauseText, phrase: NounPhrase, denied: int) -> None:
    determiner, noun, before, after, owner, relative = phrase
    english, french = page.english, page.french
    plural = determiner.plural
    forms = noun.feminine + 2 * plural
    head = noun.french[plural]
    ahead = _preceding_adjective(before, forms, head) if before else head
    owned = 0
    tail: list[tuple[str, int]] = []
    if owner:
        start = len(french)
        write_phrase(page, owner)
        tail = french[start:]
        del french[start:]
        owned = page.mark()
        plural_s = isinstance(owner, NounPhrase) and owner.plural and owner.noun.english[1].endswith("s")
        english.append(("'" if plural_s else "'s", owned))
        french.append((DEFINITE_ARTICLES[forms], owned))
    elif isinstance(determiner, NumberWord):
        page.fixed(determiner.feminine if noun.feminine else determiner.masculine)
    else:
        first = before or after
        _write_determiner(page, determiner, forms, ahead, first.lemma if first else noun.english[plural], before, denied)
    if before:
        page.word(before.lemma, ahead)
    bit = page.mark()
    french.append((head, bit))
    if after:
        page.word(after.lemma, after.french[forms])
    english.append((noun.english[plural], bit))
    if owned:
        french.append(("de", owned))
        french += tail
    if relative:
        _write_relative(page, phrase, relative, forms)


def _preceding_adjective(adjective: Adjective, forms: int, head: str) -> str:
    """The form of an adjective that the noun `head` follows: un bel homme."""
    return adjective.liaison if forms == 0 and begins_with_vowel(head) else adjective.french[forms]


def _write_determiner(page: ClauseText, determiner: Determiner, forms: int, ahead: str, following: str,
                before: Adjective | None, denied: int) -> None:
    """`ahead` and `following` are the next words, French and English."""
    english = determiner.english
    french = determiner.french[(forms & 1) + 2 * begins_with_vowel(ahead)]
    if determiner.indefinite:
        if denied or (before and determiner.plural):
            french = ("de",)
        if english[0] == "a":
            english = (indefinite_article(following),)
        elif denied:
            english = ("any",)
    if len(english) == len(french):
        for pair in zip(english, french, strict=True):
            page.word(*pair)
    else:
        bit = page.mark()
        page.english += [(word, bit) for word in english]
        page.french += [(word, bit) for word in french]


def _write_relative(page: ClauseText, head: NounPhrase, relative: SubjectRelative | ObjectRelative, forms: int) -> None:
    verb, tense, middle, other = relative
    denied = int(middle is not None and middle.negative)
    if isinstance(relative, SubjectRelative):
        page.word("who" if head.noun.kind == "P" else "that", "qui")
        group = action_group(page, agreement_of(head), verb, tense, None, middle,
                              asked=0, clitic=None, object_before=None)
        _write_group(page, group)
        if other:
            write_phrase(page, other, denied)
    else:
        page.word("that", "que")
        assert other is not None
        group = action_group(page, agreement_of(other), verb, tense, None, middle,
                              asked=0, clitic=None, object_before=forms)
        write_phrase(page, other)
        _write_group(page, group)


def _write_group(page: ClauseText, group: VerbGroup) -> None:
    page.english += group.auxiliary
    page.english += group.english
    page.french += group.french


REFLEXIVE_PRONOUNS = ("me", "te", "se", "nous", "vous", "se")
FORMS_OF_BE = {PRESENT: ("am", "are", "is", "are", "are", "are"), PAST: ("was", "were", "was", "were", "were", "were")}


@cache
def avoir() -> Conjugation:
    return conjugate("avoir")


@cache
def etre() -> Conjugation:
    return conjugate("être")


def _english_action(who: Agreement, verb: Verb, tense: str, modal: Modal | None, middle: MiddleAdverb | None,
                    asked: int, bits: tuple[int, int, int]) -> tuple[WordList, WordList]:
    """The auxiliary, and the rest without a particle."""
    meant, shift, around = bits
    third = who.person == 2
    denied = middle is not None and middle.english[0] == "not"
    auxiliary: WordList
    if tense == FUTURE:
        auxiliary, main = [("will", shift | asked)], [(verb.base, meant)]
    elif modal and not modal.infinitive:
        if denied and modal.negative:
            return [(modal.negative, shift | around)], [(verb.base, meant)]
        auxiliary, main = [(modal.lemma, shift | asked)], [(verb.base, meant)]
    else:
        helped = denied or bool(asked)
        does = "did" if tense == PAST else "does" if third else "do"
        carried = asked | (around if denied else 0) | (shift if tense == PAST else 0)
        auxiliary = [(does, carried)] if helped else []
        if modal:
            main = [(modal.third if third and not helped else modal.lemma, shift)]
            main += [(word, meant) for word in modal.infinitive]
            main.append((verb.base, meant))
        elif helped:
            main = [(verb.base, meant)]
        elif tense == PAST:
            main = [(verb.past, meant | shift)]
        else:
            main = [(verb.third if third else verb.base, meant)]
    return auxiliary, ([(word, around) for word in middle.english] if middle else []) + main


def being_group(page: ClauseText, who: Agreement, tense: str, middle: MiddleAdverb | None, asked: int) -> VerbGroup:
    """`is`, `was`, `will be`: est, était, sera."""
    be, shift, around = page.mark(), page.mark(), page.mark()
    auxiliary, english = _english_being(who, tense, middle, asked, (be, shift, around))
    french: WordList = [("ne", around)] if middle and middle.negative else []
    french.append((_finite_forms(etre(), tense)[who.person], be | shift))
    _append_middle(french, middle, around)
    return VerbGroup(auxiliary, english, french)


def passive_group(page: ClauseText, who: Agreement, verb: Verb, tense: str, middle: MiddleAdverb | None, asked: int) -> VerbGroup:
    """The passive: `is eaten`, est mangé; `was eaten`, a été mangé."""
    be, shift, around, meant = page.mark(), page.mark(), page.mark(), page.mark()
    auxiliary, english = _english_being(who, tense, middle, asked, (be, shift, around))
    english.append((verb.participle, meant))
    if verb.particle:
        english.append((verb.particle, meant))
    french: WordList = [("ne", around)] if middle and middle.negative else []
    if tense == PAST:
        french.append((avoir().present[who.person], be))
        _append_middle(french, middle, around)
        french.append((etre().participle[0], be))
    else:
        french.append((_finite_forms(etre(), tense)[who.person], be | shift))
        _append_middle(french, middle, around)
    french.append((verb.french.participle[who.forms], meant))
    return VerbGroup(auxiliary, english, french)


def _english_being(who: Agreement, tense: str, middle: MiddleAdverb | None, asked: int,
                   bits: tuple[int, int, int]) -> tuple[WordList, WordList]:
    be, shift, around = bits
    english: WordList = [(word, around) for word in middle.english] if middle else []
    if tense == FUTURE:
        return [("will", shift | asked)], [*english, ("be", be)]
    return [(FORMS_OF_BE[tense][who.person], be | asked)], english


def _finite_forms(forms: Conjugation, tense: str) -> tuple[str, ...]:
    """The forms in one word; the past in one word is the imparfait."""
    return forms.present if tense == PRESENT else forms.future if tense == FUTURE else forms.imperfect


def _append_middle(french: WordList, middle: MiddleAdverb | None, bit: int) -> None:
    """After the finite verb: pas, jamais, plus, souvent."""
    if middle:
        french.append((middle.french, bit))


ELIDED = {"le": "l'", "la": "l'", "de": "d'", "ne": "n'", "que": "qu'", "je": "j'", "me": "m'", "se": "s'"}
CONTRACTED = {("de", "le"): "du", ("de", "les"): "des", ("à", "le"): "au", ("à", "les"): "aux"}


def join_clauses(pages: Sequence[ClauseText], end: str) -> AlignedPair:
    """The pair that the pages make one after the other. `end` is the last punctuation mark."""
    source: list[str] = []
    target: list[str] = []
    links: list[tuple[int, int]] = []
    for page in pages:
        words, marks = _elide_and_contract(page.french)
        first, second = len(source), len(target)
        links += [(first + i, second + j)
                  for i, (_, mark) in enumerate(page.english) for j, other in enumerate(marks) if mark & other]
        source += [word for word, _ in page.english]
        target += words
    links.append((len(source), len(target)))
    source[0] = source[0][0].upper() + source[0][1:]
    target[0] = target[0][0].upper() + target[0][1:]
    english = " ".join(source).replace(" '", "'").replace(" ,", ",") + end
    french = " ".join(target).replace("' ", "'").replace(" ,", ",") + (" ?" if end == "?" else end)
    return AlignedPair(english, french, (*source, end), (*target, end), tuple(links))


def _elide_and_contract(written: Sequence[tuple[str, int]]) -> tuple[list[str], list[int]]:
    """French words as they are where they meet: `de le` is du, `le homme` l'homme; stars are gone."""
    words: list[str] = []
    marks: list[int] = []
    last = len(written) - 1
    taken = False
    for index, (word, mark) in enumerate(written):
        if taken:  # by a contraction with the word before
            taken = False
            continue
        if index < last and (word in ELIDED or word == "à"):
            following, other = written[index + 1]
            if following[0] in VOWELS:
                word = ELIDED.get(word, word)
            elif (word, following) in CONTRACTED and not (following == "le" and written[index + 2][0][0] in VOWELS):
                word, mark, taken = CONTRACTED[word, following], mark | other, True
        words.append(word[1:] if word[0] == "*" else word)
        marks.append(mark)
    return words, marks


def _word_offsets(text: str, words: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    places = []
    end = 0
    for word in words:
        start = text.index(word, end)
        end = start + len(word)
        places.append((start, end))
    return tuple(places)
