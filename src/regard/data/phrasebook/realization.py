"""From a derivation to an English sentence, its French translation and the links between their words.

`write_pair` writes a whole sentence: clauses, noun phrases with French agreement, verbs with their auxiliaries and
negation, and finally elision and contraction (`de le` is du, `le homme` l'homme). Words are split at spaces and after
an elision (`l'` and `homme`), in English before `'s` or the apostrophe of a plural; punctuation is a word of its own. A
French question mark has a plain space before it. Two words are linked if one node of the derivation made both; the
package's docstring lists the links. Each node has a bit, and a written word has the bits of its nodes.
"""

from collections.abc import Sequence
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
    indefinite_article,
)

WordList = list[tuple[str, int]]
DEFINITE_ARTICLES = ("le", "la", "les", "les")
REFLEXIVE_PRONOUNS = ("me", "te", "se", "nous", "vous", "se")
FORMS_OF_BE = {PRESENT: ("am", "are", "is", "are", "are", "are"), PAST: ("was", "were", "was", "were", "were", "were")}
ELIDED = {"le": "l'", "la": "l'", "de": "d'", "ne": "n'", "que": "qu'", "je": "j'", "me": "m'", "se": "s'"}
AVOIR, ETRE = conjugate("avoir"), conjugate("être")
CONTRACTED = {("de", "le"): "du", ("de", "les"): "des", ("à", "le"): "au", ("à", "les"): "aux"}


class AlignedPair(NamedTuple):
    """An English sentence, its French translation, and the gold alignment between their words."""

    source: str
    target: str
    source_words: tuple[str, ...]
    target_words: tuple[str, ...]
    alignment: tuple[tuple[int, int], ...]
    """Sorted links (index of a source word, index of a target word)."""

    @property
    def source_offsets(self) -> tuple[tuple[int, int], ...]:
        """The range of each source word: source[start:end]."""
        return _word_offsets(self.source, self.source_words)

    @property
    def target_offsets(self) -> tuple[tuple[int, int], ...]:
        """The range of each target word: target[start:end]."""
        return _word_offsets(self.target, self.target_words)


def write_pair(sentence: Sentence) -> AlignedPair:
    """Both sides of a sentence, and the links between their words."""
    texts = []
    for index, clause in enumerate(sentence.clauses):
        text = ClauseText()
        if index:
            text.fixed(sentence.joiners[index - 1])
        _write_clause(text, clause)
        texts.append(text)
    return join_clauses(texts, "?" if sentence.clauses[0].asked else ".")


class ClauseText:
    """The words of both sides of one clause, with the bits of their nodes."""

    __slots__ = ("bit", "english", "french")

    def __init__(self) -> None:
        self.english: list[tuple[str, int]] = []
        self.french: list[tuple[str, int]] = []
        self.bit = 1

    def mark(self) -> int:
        """The bit of a new node."""
        bit = self.bit
        self.bit = bit << 1
        return bit

    def word(self, english: str, french: str) -> None:
        """Append one word on each side, linked."""
        bit = self.mark()
        self.english.append((english, bit))
        self.french.append((french, bit))

    def fixed(self, phrase: FixedPhrase) -> None:
        """Append a phrase with its own links."""
        bit = self.bit
        self.bit = bit << phrase.width
        self.english += [(word, mark * bit) for word, mark in phrase.english]
        self.french += [(word, mark * bit) for word, mark in phrase.french]


def _write_clause(text: ClauseText, clause: Clause) -> None:
    subject, predicate, middle, asked, question, front, where, last = clause
    if front:
        _write_when(text, front)
        text.word(",", ",")
    if question:
        text.fixed(question)
    bit = text.mark() if asked else 0
    if isinstance(predicate, ExistencePredicate):
        _write_existence(text, clause, predicate)
    else:
        agreement = agreement_of(subject)
        if isinstance(predicate, ActionPredicate):
            group = _action_with_pronoun(text, agreement, clause, predicate, bit)
        elif isinstance(predicate, PassivePredicate):
            group = passive_group(text, agreement, predicate.verb, predicate.tense, middle, bit)
        else:
            group = being_group(text, agreement, predicate.tense, middle, bit)
        if asked:
            text.english += group.auxiliary
            text.french += [("est-ce", bit), ("que", bit)]
            write_phrase(text, subject)
        else:
            write_phrase(text, subject)
            text.english += group.auxiliary
        text.english += group.english
        text.french += group.french
        _write_complements(text, agreement, clause)
    if where:
        _write_where(text, where)
    if last:
        _write_when(text, last)


class Agreement(NamedTuple):
    """The agreement of a verb with its subject: person, 0 to 5, and gender and number as an index into four forms."""

    person: int
    forms: int


class VerbGroup(NamedTuple):
    """A verb with its auxiliaries; a question moves the English auxiliary before the subject."""

    auxiliary: WordList
    english: WordList
    french: WordList


def _action_with_pronoun(text: ClauseText, agreement: Agreement, clause: Clause, action: ActionPredicate,
                         asked: int) -> VerbGroup:
    """The verb with its object pronoun, if any: after the English verb, before the French one."""
    pronoun = action.object
    if not isinstance(pronoun, Pronoun):
        return action_group(text, agreement, action.verb, action.tense, action.modal, clause.middle,
                            asked=asked, clitic=None, object_before=None)
    bit = text.mark()
    group = action_group(text, agreement, action.verb, action.tense, action.modal, clause.middle, asked=asked,
                         clitic=(pronoun.french_object, bit), object_before=agreement_of(pronoun).forms)
    group.english.append((pronoun.english_object, bit))
    return group


def _write_complements(text: ClauseText, agreement: Agreement, clause: Clause) -> None:
    """Write what follows the verb and belongs to it."""
    predicate = clause.predicate
    if isinstance(predicate, ActionPredicate):
        denied = int(clause.middle is not None and clause.middle.negative)
        if predicate.object and not isinstance(predicate.object, Pronoun):
            write_phrase(text, predicate.object, denied)
        if predicate.recipient:
            text.word("to", "à")
            write_phrase(text, predicate.recipient)
    elif isinstance(predicate, PassivePredicate):
        text.word("by", "par")
        write_phrase(text, predicate.agent)
    elif isinstance(predicate, AdjectivePredicate):
        if predicate.degree:
            text.fixed(predicate.degree)
        text.word(predicate.adjective.lemma, predicate.adjective.french[agreement.forms])
    elif isinstance(predicate, ComparisonPredicate):
        _write_comparison(text, agreement, predicate)


def _write_comparison(text: ClauseText, agreement: Agreement, comparison: ComparisonPredicate) -> None:
    adjective = comparison.adjective
    french = adjective.french[agreement.forms]
    if comparison.comparison.lemma == "more" and adjective.comparative:
        bit = text.mark()
        text.english.append((adjective.comparative, bit))
        text.french += [("plus", bit), (french, bit)]
    else:
        text.fixed(comparison.comparison)
        text.word(adjective.lemma, french)
    text.word("as" if comparison.comparison.lemma == "as" else "than", "que")
    write_phrase(text, comparison.other)


def _write_existence(text: ClauseText, clause: Clause, existence: ExistencePredicate) -> None:
    there, be, tense_bit = text.mark(), text.mark(), text.mark()
    french = AVOIR
    text.french += [("il", there), ("y", there)]
    text.english.append(("there", there))
    if existence.tense == FUTURE:
        text.english += [("will", tense_bit), ("be", be)]
        text.french.append((french.future[2], be | tense_bit))
    else:
        agreement = agreement_of(clause.subject)
        text.english.append((FORMS_OF_BE[existence.tense][agreement.person], be))
        text.french.append(((french.present if existence.tense == PRESENT else french.imperfect)[2], be))
    write_phrase(text, clause.subject)


def _write_where(text: ClauseText, where: WherePhrase) -> None:
    if isinstance(where, FixedPhrase):
        text.fixed(where)
    elif isinstance(where, PlacePhrase):
        text.fixed(where.preposition.words)
        write_phrase(text, where.phrase)
    elif isinstance(where, CompanyPhrase):
        text.word("with", "avec")
        write_phrase(text, where.phrase)
    else:
        assert_never(where)


def _write_when(text: ClauseText, when: TimePhrase) -> None:
    if isinstance(when, FixedPhrase):
        text.fixed(when)
    elif isinstance(when, DatePhrase):
        text.word("on", "le")
        text.word(str(when.day), "premier" if when.day == 1 else str(when.day))
        text.word(when.month.lemma, when.month.french)
        text.word(str(when.year), str(when.year))
    elif isinstance(when, YearPhrase):
        text.word("in", "en")
        text.word(str(when.year), str(when.year))
    elif isinstance(when, AgoPhrase):
        bit = text.mark()
        text.french += [("il", bit), ("y", bit), ("a", bit)]
        _write_span(text, when.number, when.unit)
        text.english.append(("ago", bit))
    elif isinstance(when, HencePhrase):
        text.word("in", "dans")
        _write_span(text, when.number, when.unit)
    else:
        assert_never(when)


def _write_span(text: ClauseText, count: NumberWord, unit: Noun) -> None:
    text.fixed(count.feminine if unit.feminine else count.masculine)
    text.word(unit.english[1], unit.french[1])


def agreement_of(subject: Subject) -> Agreement:
    """Person, gender and number of a subject; a coordination is masculine unless both parts are feminine."""
    if isinstance(subject, NounPhrase):
        return Agreement(5, subject.noun.feminine + 2) if subject.plural else Agreement(2, int(subject.noun.feminine))
    if isinstance(subject, Pronoun):
        return Agreement(subject.person, subject.feminine + 2 * (subject.person > 2))
    if isinstance(subject, PersonName):
        return Agreement(2, int(subject.feminine))
    return Agreement(5, 2 + (subject.first.feminine and subject.second.noun.feminine))


def write_phrase(text: ClauseText, phrase: Subject, denied: int = 0) -> None:
    """Write any phrase; under a negation (`denied`, 1 or 0) an indefinite article is `any`, and de."""
    if isinstance(phrase, NounPhrase):
        _write_noun_phrase(text, phrase, denied)
    elif isinstance(phrase, PersonName):
        text.word(phrase.lemma, phrase.lemma)
    elif isinstance(phrase, Pronoun):
        text.word(phrase.english, phrase.french)
    else:
        text.word(phrase.first.lemma, phrase.first.lemma)
        text.word("and", "et")
        _write_noun_phrase(text, phrase.second, denied)


def _write_noun_phrase(text: ClauseText, phrase: NounPhrase, denied: int) -> None:
    determiner, noun, before, after, owner, relative = phrase
    english, french = text.english, text.french
    plural = determiner.plural
    forms = noun.feminine + 2 * plural
    head = noun.french[plural]
    ahead = _preceding_adjective(before, forms, head) if before else head
    owned = 0
    tail: list[tuple[str, int]] = []
    if owner:
        start = len(french)
        write_phrase(text, owner)
        tail = french[start:]
        del french[start:]
        owned = text.mark()
        plural_s = isinstance(owner, NounPhrase) and owner.plural and owner.noun.english[1].endswith("s")
        english.append(("'" if plural_s else "'s", owned))
        french.append((DEFINITE_ARTICLES[forms], owned))
    elif isinstance(determiner, NumberWord):
        text.fixed(determiner.feminine if noun.feminine else determiner.masculine)
    else:
        first = before or after
        following = first.lemma if first else noun.english[plural]
        _write_determiner(text, determiner, forms, ahead, following, before, denied)
    if before:
        text.word(before.lemma, ahead)
    bit = text.mark()
    french.append((head, bit))
    if after:
        text.word(after.lemma, after.french[forms])
    english.append((noun.english[plural], bit))
    if owned:
        french.append(("de", owned))
        french += tail
    if relative:
        _write_relative(text, phrase, relative, forms)


def _preceding_adjective(adjective: Adjective, forms: int, head: str) -> str:
    """The form of an adjective before the noun `head`: un bel homme."""
    return adjective.liaison if forms == 0 and begins_with_vowel(head) else adjective.french[forms]


def _write_determiner(text: ClauseText, determiner: Determiner, forms: int, ahead: str, following: str,
                      before: Adjective | None, denied: int) -> None:
    """Write a determiner; `ahead` and `following` are the next words, French and English."""
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
            text.word(*pair)
    else:
        bit = text.mark()
        text.english += [(word, bit) for word in english]
        text.french += [(word, bit) for word in french]


def _write_relative(text: ClauseText, head: NounPhrase, relative: SubjectRelative | ObjectRelative, forms: int) -> None:
    verb, tense, middle, other = relative
    denied = int(middle is not None and middle.negative)
    if isinstance(relative, SubjectRelative):
        text.word("who" if head.noun.kind == "P" else "that", "qui")
        group = action_group(text, agreement_of(head), verb, tense, None, middle,
                             asked=0, clitic=None, object_before=None)
        _write_group(text, group)
        if other:
            write_phrase(text, other, denied)
    else:
        text.word("that", "que")
        assert other is not None
        group = action_group(text, agreement_of(other), verb, tense, None, middle,
                             asked=0, clitic=None, object_before=forms)
        write_phrase(text, other)
        _write_group(text, group)


def _write_group(text: ClauseText, group: VerbGroup) -> None:
    text.english += group.auxiliary
    text.english += group.english
    text.french += group.french


def action_group(text: ClauseText, agreement: Agreement, verb: Verb, tense: str, modal: Modal | None,
                 middle: MiddleAdverb | None, *, asked: int, clitic: tuple[str, int] | None,
                 object_before: int | None) -> VerbGroup:
    """An active verb.

    Args:
        asked: the bit of the question, or 0.
        clitic: an object pronoun with its bit.
        object_before: gender and number of an object before the verb, with which the participle then agrees.
    """
    bits = (text.mark(), text.mark(), text.mark())
    auxiliary, english = _english_action(agreement, verb, tense, modal, middle, asked, bits)
    verb_bit, tense_bit, middle_bit = bits
    clitics: WordList = [clitic] if clitic else []
    moving = "moves" in verb.flags
    if "reflexive" in verb.flags:
        moving = True
        clitics.append((REFLEXIVE_PRONOUNS[agreement.person], verb_bit))
    forms = verb.french
    french: WordList = [("ne", middle_bit)] if middle and middle.negative else []
    if modal:
        french.append((modal.french.present[agreement.person], tense_bit))
        _append_middle(french, middle, middle_bit)
        french += clitics
        french.append((forms.infinitive, verb_bit))
    else:
        french += clitics
        if tense == PAST and "lasts" not in verb.flags:
            french.append(((ETRE if moving else AVOIR).present[agreement.person], tense_bit))
            _append_middle(french, middle, middle_bit)
            agreed = agreement.forms if moving else object_before or 0
            french.append((forms.participle[agreed], verb_bit))
        else:
            bit = verb_bit if tense == PRESENT else verb_bit | tense_bit
            french.append((_finite_forms(forms, tense)[agreement.person], bit))
            _append_middle(french, middle, middle_bit)
    if verb.preposition:
        bit = text.mark() if verb.particle else verb_bit
        french.append((verb.preposition, bit))
        if verb.particle:
            english.append((verb.particle, bit))
    elif verb.particle:
        english.append((verb.particle, verb_bit))
    return VerbGroup(auxiliary, english, french)


def _english_action(agreement: Agreement, verb: Verb, tense: str, modal: Modal | None, middle: MiddleAdverb | None,
                    asked: int, bits: tuple[int, int, int]) -> tuple[WordList, WordList]:
    """The English auxiliary, and the rest without a particle."""
    verb_bit, tense_bit, middle_bit = bits
    third = agreement.person == 2
    denied = middle is not None and middle.english[0] == "not"
    auxiliary: WordList
    if tense == FUTURE:
        auxiliary, main = [("will", tense_bit | asked)], [(verb.base, verb_bit)]
    elif modal and not modal.infinitive:
        if denied and modal.negative:
            return [(modal.negative, tense_bit | middle_bit)], [(verb.base, verb_bit)]
        auxiliary, main = [(modal.lemma, tense_bit | asked)], [(verb.base, verb_bit)]
    else:
        helped = denied or bool(asked)
        does = "did" if tense == PAST else "does" if third else "do"
        carried = asked | (middle_bit if denied else 0) | (tense_bit if tense == PAST else 0)
        auxiliary = [(does, carried)] if helped else []
        if modal:
            main = [(modal.third if third and not helped else modal.lemma, tense_bit)]
            main += [(word, verb_bit) for word in modal.infinitive]
            main.append((verb.base, verb_bit))
        elif helped:
            main = [(verb.base, verb_bit)]
        elif tense == PAST:
            main = [(verb.past, verb_bit | tense_bit)]
        else:
            main = [(verb.third if third else verb.base, verb_bit)]
    return auxiliary, ([(word, middle_bit) for word in middle.english] if middle else []) + main


def being_group(text: ClauseText, agreement: Agreement, tense: str, middle: MiddleAdverb | None,
                asked: int) -> VerbGroup:
    """`is`, `was`, `will be`: est, était, sera."""
    be, tense_bit, middle_bit = text.mark(), text.mark(), text.mark()
    auxiliary, english = _english_being(agreement, tense, middle, asked, (be, tense_bit, middle_bit))
    french: WordList = [("ne", middle_bit)] if middle and middle.negative else []
    french.append((_finite_forms(ETRE, tense)[agreement.person], be | tense_bit))
    _append_middle(french, middle, middle_bit)
    return VerbGroup(auxiliary, english, french)


def passive_group(text: ClauseText, agreement: Agreement, verb: Verb, tense: str, middle: MiddleAdverb | None,
                  asked: int) -> VerbGroup:
    """The passive: `is eaten`, est mangé; `was eaten`, a été mangé."""
    be, tense_bit, middle_bit, verb_bit = text.mark(), text.mark(), text.mark(), text.mark()
    auxiliary, english = _english_being(agreement, tense, middle, asked, (be, tense_bit, middle_bit))
    english.append((verb.participle, verb_bit))
    if verb.particle:
        english.append((verb.particle, verb_bit))
    french: WordList = [("ne", middle_bit)] if middle and middle.negative else []
    if tense == PAST:
        french.append((AVOIR.present[agreement.person], be))
        _append_middle(french, middle, middle_bit)
        french.append((ETRE.participle[0], be))
    else:
        french.append((_finite_forms(ETRE, tense)[agreement.person], be | tense_bit))
        _append_middle(french, middle, middle_bit)
    french.append((verb.french.participle[agreement.forms], verb_bit))
    return VerbGroup(auxiliary, english, french)


def _english_being(agreement: Agreement, tense: str, middle: MiddleAdverb | None, asked: int,
                   bits: tuple[int, int, int]) -> tuple[WordList, WordList]:
    be, tense_bit, middle_bit = bits
    english: WordList = [(word, middle_bit) for word in middle.english] if middle else []
    if tense == FUTURE:
        return [("will", tense_bit | asked)], [*english, ("be", be)]
    return [(FORMS_OF_BE[tense][agreement.person], be | asked)], english


def _finite_forms(forms: Conjugation, tense: str) -> tuple[str, ...]:
    """The one-word forms of a tense; for the past, the imparfait."""
    return forms.present if tense == PRESENT else forms.future if tense == FUTURE else forms.imperfect


def _append_middle(french: WordList, middle: MiddleAdverb | None, bit: int) -> None:
    """Append what follows the finite verb: pas, jamais, plus, souvent."""
    if middle:
        french.append((middle.french, bit))


def join_clauses(texts: Sequence[ClauseText], end: str) -> AlignedPair:
    """The pair of these clauses. `end` is the last punctuation mark."""
    source: list[str] = []
    target: list[str] = []
    links: list[tuple[int, int]] = []
    for text in texts:
        words, marks = _elide_and_contract(text.french)
        first, second = len(source), len(target)
        links += [(first + i, second + j)
                  for i, (_, mark) in enumerate(text.english) for j, other in enumerate(marks) if mark & other]
        source += [word for word, _ in text.english]
        target += words
    links.append((len(source), len(target)))
    source[0] = source[0][0].upper() + source[0][1:]
    target[0] = target[0][0].upper() + target[0][1:]
    english = " ".join(source).replace(" '", "'").replace(" ,", ",") + end
    french = " ".join(target).replace("' ", "'").replace(" ,", ",") + (" ?" if end == "?" else end)
    return AlignedPair(english, french, (*source, end), (*target, end), tuple(links))


def _elide_and_contract(written: Sequence[tuple[str, int]]) -> tuple[list[str], list[int]]:
    """The French words after elision and contraction, without stars, and their bits."""
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
    offsets = []
    end = 0
    for word in words:
        start = text.index(word, end)
        end = start + len(word)
        offsets.append((start, end))
    return tuple(offsets)
