"""How sentences are written: subject, verb, what follows, times and places; statements and questions.

`write` is the whole way from a derivation to a pair. Links: the auxiliary that opens an English question with est-ce
que; than and the second as with que; `on` before a weekday with the weekday; `ago` with il y a; there with il y;
punctuation with punctuation. All links are sure ones. A word without a link is rare: `and` inside a number is one.
"""

from typing import assert_never

from regard.data.phrasebook import groups, phrases
from regard.data.phrasebook.pair import Page, Pair, joined
from regard.data.phrasebook.tree import (
    FUTURE,
    PRESENT,
    Action,
    Ago,
    Clause,
    Company,
    Comparison,
    Date,
    Existence,
    Hence,
    Place,
    Quality,
    Sentence,
    Suffering,
    When,
    Where,
    Year,
)
from regard.data.phrasebook.words import Count, Fixed, Noun, Pronoun


def write(sentence: Sentence) -> Pair:
    """Both sides of a sentence, and the links that its derivation makes between them."""
    pages = []
    for index, clause in enumerate(sentence.clauses):
        page = Page()
        if index:
            page.fixed(sentence.joiners[index - 1])
        _clause(page, clause)
        pages.append(page)
    return joined(pages, "?" if sentence.clauses[0].asked else ".")


def _clause(page: Page, clause: Clause) -> None:
    subject, predicate, middle, asked, question, front, where, last = clause
    if front:
        _when(page, front)
        page.word(",", ",")
    if question:
        page.fixed(question)
    bit = page.mark() if asked else 0
    if isinstance(predicate, Existence):
        _existence(page, clause, predicate)
    else:
        who = phrases.agreement(subject)
        if isinstance(predicate, Action):
            group = _action(page, who, clause, predicate, bit)
        elif isinstance(predicate, Suffering):
            group = groups.suffering(page, who, predicate.verb, predicate.tense, middle, bit)
        else:
            group = groups.being(page, who, predicate.tense, middle, bit)
        if asked:
            page.english += group.auxiliary
            page.french += [("est-ce", bit), ("que", bit)]
            phrases.write(page, subject)
        else:
            phrases.write(page, subject)
            page.english += group.auxiliary
        page.english += group.english
        page.french += group.french
        _rest(page, who, clause)
    if where:
        _where(page, where)
    if last:
        _when(page, last)


def _action(page: Page, who: groups.Agreement, clause: Clause, action: Action, asked: int) -> groups.Group:
    """The verb, with an object pronoun: after the English verb, before the French one."""
    pronoun = action.object
    if not isinstance(pronoun, Pronoun):
        return groups.action(page, who, action.verb, action.tense, action.modal, clause.middle,
                             asked=asked, clitic=None, object_before=None)
    bit = page.mark()
    group = groups.action(page, who, action.verb, action.tense, action.modal, clause.middle, asked=asked,
                          clitic=(pronoun.french_object, bit), object_before=phrases.agreement(pronoun).forms)
    group.english.append((pronoun.english_object, bit))
    return group


def _rest(page: Page, who: groups.Agreement, clause: Clause) -> None:
    """What follows the verb and belongs to it."""
    predicate = clause.predicate
    if isinstance(predicate, Action):
        denied = int(clause.middle is not None and clause.middle.negative)
        if predicate.object and not isinstance(predicate.object, Pronoun):
            phrases.write(page, predicate.object, denied)
        if predicate.recipient:
            page.word("to", "à")
            phrases.write(page, predicate.recipient)
    elif isinstance(predicate, Suffering):
        page.word("by", "par")
        phrases.write(page, predicate.agent)
    elif isinstance(predicate, Quality):
        if predicate.degree:
            page.fixed(predicate.degree)
        page.word(predicate.adjective.lemma, predicate.adjective.french[who.forms])
    elif isinstance(predicate, Comparison):
        _comparison(page, who, predicate)


def _comparison(page: Page, who: groups.Agreement, comparison: Comparison) -> None:
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
    phrases.write(page, comparison.other)


def _existence(page: Page, clause: Clause, existence: Existence) -> None:
    there, be, shift = page.mark(), page.mark(), page.mark()
    french = groups.avoir()
    page.french += [("il", there), ("y", there)]
    page.english.append(("there", there))
    if existence.tense == FUTURE:
        page.english += [("will", shift), ("be", be)]
        page.french.append((french.future[2], be | shift))
    else:
        who = phrases.agreement(clause.subject)
        page.english.append((groups.BE[existence.tense][who.person], be))
        page.french.append(((french.present if existence.tense == PRESENT else french.imperfect)[2], be))
    phrases.write(page, clause.subject)


def _where(page: Page, where: Where) -> None:
    if isinstance(where, Fixed):
        page.fixed(where)
    elif isinstance(where, Place):
        page.fixed(where.preposition.words)
        phrases.write(page, where.phrase)
    elif isinstance(where, Company):
        page.word("with", "avec")
        phrases.write(page, where.phrase)
    else:
        assert_never(where)


def _when(page: Page, when: When) -> None:
    if isinstance(when, Fixed):
        page.fixed(when)
    elif isinstance(when, Date):
        page.word("on", "le")
        page.word(str(when.day), "premier" if when.day == 1 else str(when.day))
        page.word(when.month.lemma, when.month.french)
        page.word(str(when.year), str(when.year))
    elif isinstance(when, Year):
        page.word("in", "en")
        page.word(str(when.year), str(when.year))
    elif isinstance(when, Ago):
        bit = page.mark()
        page.french += [("il", bit), ("y", bit), ("a", bit)]
        _span(page, when.number, when.unit)
        page.english.append(("ago", bit))
    elif isinstance(when, Hence):
        page.word("in", "dans")
        _span(page, when.number, when.unit)
    else:
        assert_never(when)


def _span(page: Page, count: Count, unit: Noun) -> None:
    page.fixed(count.feminine if unit.feminine else count.masculine)
    page.word(unit.english[1], unit.french[1])
